"""A first run.toml with comments, and the schema.toml it names, for somebody who has tables and no configuration."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privsgp.data import draft, tables
from privsgp.data.loading import same_file, site_paths
from privsgp.data.persons import NAMES
from privsgp.data.same_records import same_rows
from privsgp.data.schema_text import written
from privsgp.errors import Refused
from privsgp.files import write
from privsgp.runs import config as configs
from privsgp.runs import description

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TEXT = """# A run of {count} sites. `privsgp options` lists every key, `privsgp plan run.toml` says what to expect,
# `privsgp train run.toml` trains with all files on this machine, and docs/sites.md between organisations.
name = {name}
# seed = 0                  # makes a simulation that anyone can repeat, and that is not private

[data]                      # paths are relative to this file
schema = "schema.toml"      # public, and the same at every site
sites = {sites}
{records}
{person}{test}

[model]
name = "logistic"           # logistic | mlp …; a number: name = "linear", loss = "mse"; survival: "hazard", "survival"
loss = {loss}

[graph]
name = "exponential"

[privacy]                   # one value, or a list with one per site, in the order of data.sites
epsilon = {epsilon}
delta = 1e-5                # far below 1 / records of a site
clip = "auto"               # the planner chooses it, like the values below; `privsgp plan run.toml --write` writes all

[algorithm]
name = "privsgp-sag"
batch = "auto"
steps = "auto"              # the planner chooses, on made-up data
step_size = "auto"
average = "tail"            # the model is the mean over the last half of the steps, which has less noise
weights = "samples"         # a site counts as much as it has records; or "equal", or "noise": by what it may spend too

[study]                     # all sites sign these answers, and `privsgp dossier` repeats them
# purpose = ""              # what the model is for
# contact = ""              # who answers questions about the study
# tuned_on = ""             # the data on which settings were chosen
# schema_from = ""          # where the schema's ranges and categories come from
"""
_HEAD = """# schema.toml: what the columns of a table are. It is public, and the same at every site.
# Ranges and lists are those of the schema that was described. Centres, scales, class shares and time bins come from
# {cost}.

"""


def write_first(
    folder: Path, public: Path | None, target: str, sites: Sequence[str], path: str, epsilon: Sequence[float],
    test: Path | None = None, sizes: Sequence[int] = (), event: str | None = None, described: Path | None = None,
) -> list[Path]:  # fmt: skip
    """Write run.toml and schema.toml, or refuse: nothing that is there is overwritten.

    The schema is drafted from a public table, or is that of a description with what this says of its columns.

    Guarantee: no schema is drafted from the table of a site whose file this machine can read.
    """
    files = [folder / "run.toml", folder / "schema.toml"]
    if there := [file for file in files if file.exists()]:
        raise Refused(f"{there[0]} is there already", "choose another --out, or move it away")
    if (public is None) == (described is None):
        raise Refused("--public with --from-description, or neither", "give one of them")
    table, cost = None, ""
    if public is None:
        made, cost = description.drafted(description.read(described or Path()))
        schema = _HEAD.format(cost=cost) + written(made)
    else:
        table = _public(public, target, folder, sites, path)
        schema = draft.draft(table, target, public.name, event)
    folder.mkdir(parents=True, exist_ok=True)
    write(files[1], schema)
    try:
        test_path = None if test is None else os.path.relpath(test, folder)
        text = _run(files[1], table, sites, _records(path, sizes), epsilon, test_path)
        if cost:
            line = f"schema_from = {json.dumps(cost, ensure_ascii=False)}"
            text = re.sub("# schema_from = .*", lambda _old: line, text)
        write(files[0], text)
        configs.read(files[0])
    except Refused:
        for file in files:
            file.unlink(missing_ok=True)
        raise
    return files


def _public(public: Path, target: str, folder: Path, sites: Sequence[str], path: str) -> Any:  # noqa: ANN401 - Arrow's
    """Read a public table; refuse that of a site."""
    if not target:
        raise Refused("--target is missing", "name the column to predict")
    # Tables are relative to run.toml, but somebody who gives another --out often has them in the working folder.
    places = [file for base in (folder, Path()) for file in site_paths(path, range(len(sites)), base, sites)]
    own = [file for file in places if os.access(file, os.R_OK)]
    table = tables.read_arrow(public)
    if any(same_file(public, file) for file in own) or same_rows(table, [tables.read_arrow(file) for file in own]):
        raise Refused(
            f"--public {public} has the rows of a site's table, and schema.toml would show everybody their ranges",
            "name a table that no site trains on, or a data dictionary (column, type, min, max, values)",
        )
    return table


def _records(path: str, sizes: Sequence[int]) -> str:
    """Return the lines that say where records are, or how many each site of a study has."""
    if sizes:
        return f"sizes = {list(sizes)}  # records of each site, in the order of data.sites: public"
    line = "# sizes = [400, 300]        # records of each site, in the order of data.sites: then `plan` reads no table"
    return f"path = {json.dumps(path, ensure_ascii=False)}\n{line}"


def _run(
    schema: Path, table: Any, sites: Sequence[str], records: str, epsilon: Sequence[float], test: str | None,  # noqa: ANN401 - Arrow's
) -> str:  # fmt: skip
    from privsgp.data.schema import Ignored, read

    made = read(schema)
    regression, names = (
        made.classes is None and made.times is None,
        [name for name, _ in tables.repeating(table, made) if name in made.columns] if table is not None else [],
    )
    names += [name for name, one in made.columns.items() if isinstance(one, Ignored) and NAMES.search(name)]
    name = json.dumps((names or [""])[0], ensure_ascii=False)
    lines = f"# person = {name}  # whose row it is: ε is then for a person\n# rows_per_person = 4\n"
    network = '"hazard"  ' if made.times is not None else '"linear"  ' if regression else '"logistic"'
    text = _TEXT.replace('"logistic"', network, 1)
    said = '# test_path = "test.csv"    # public test data: anybody may see metrics on them'
    return text.format(
        count=len(sites),
        name=json.dumps(schema.resolve().parent.name if schema.resolve().parent.name.isidentifier() else "run"),
        sites=json.dumps(list(sites), ensure_ascii=False),
        records=records,
        person=lines if names else "",
        test=said if test is None else f"test_path = {json.dumps(test, ensure_ascii=False)}",
        loss=json.dumps("mse" if regression else "cross-entropy" if made.times is None else "survival"),
        epsilon=epsilon[0] if len(epsilon) == 1 else list(epsilon),
    )


def write_values(path: Path, values: Mapping[str, Any]) -> None:
    """Write values into a run.toml by their keys, "algorithm.steps" for example; comments and all other lines stay.

    Raises:
        Refused: If a value in the file has several lines, so that a line alone cannot be replaced.

    """
    before = tomllib.loads(path.read_text(encoding="utf-8"))
    lines = path.read_text(encoding="utf-8").splitlines()
    for key, value in values.items():
        section, name = key.split(".")
        heads = [i for i, line in enumerate(lines) if re.match(r"\s*\[", line)] + [len(lines)]
        start = next((i for i in heads[:-1] if lines[i].split("#")[0].strip() == f"[{section}]"), None)
        before.setdefault(section, {})[name] = value
        if start is None:
            lines += ["", f"[{section}]", f"{name} = {json.dumps(value)}"]
            continue
        own = range(start + 1, next(i for i in heads if i > start))
        at = next((i for i in own if re.match(rf"\s*{name}\s*=", lines[i])), None)
        if at is None:
            lines.insert(start + 1, f"{name} = {json.dumps(value)}")
        else:
            _, _, comment = lines[at].partition("#")
            lines[at] = f"{name} = {json.dumps(value)}" + (f"  # {comment.strip()}" if comment else "")
    text = "\n".join(lines) + "\n"
    try:
        made = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        made = {}
    if made != before:
        raise Refused(f"cannot write {', '.join(values)} into {path}", "give each of them a line of its own")
    write(path, text)
