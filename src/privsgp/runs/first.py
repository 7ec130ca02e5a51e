"""A first run.toml with comments, and the schema.toml it names, for somebody who has tables and no configuration."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from privsgp.data import draft, tables
from privsgp.data import schema as schemas
from privsgp.data.loading import same_file, site_paths
from privsgp.data.persons import NAMES
from privsgp.data.same_records import same_rows
from privsgp.data.schema import Ignored
from privsgp.data.schema_text import toml_value, written
from privsgp.errors import Refused
from privsgp.files import write
from privsgp.runs import config as configs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TEXTS = Environment(  # TOML: `toml` writes every word of the user's
    loader=PackageLoader("privsgp", "runs"), autoescape=False, undefined=StrictUndefined, trim_blocks=True,  # noqa: S701
    lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip
_TEXTS.filters["toml"] = toml_value
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
        problem = "--public and --from-description were both given, or neither"
        remedy = "give one of them, for a table; for images and texts, write run.toml as docs/howto/data.md does"
        raise Refused(problem, remedy)
    table, cost = None, ""
    if public is None:
        from privsgp.runs import description  # it imports torch, which a table does not need

        made, cost = description.drafted(description.read(described or Path()))
        schema = _HEAD.format(cost=cost) + written(made)
    else:
        table = _public(public, target, folder, sites, path)
        schema = draft.draft(table, target, public.name, event)
    folder.mkdir(parents=True, exist_ok=True)
    write(files[1], schema)
    try:
        test_path = None if test is None else os.path.relpath(test, folder)
        rows = None
        if public is not None and table is not None and not draft.is_dictionary(table.column_names):
            rows = os.path.relpath(public, folder)
        asked = {"sites": list(sites), "path": path, "sizes": list(sizes), "test": test_path, "cost": cost}
        asked["public"] = rows
        write(files[0], _run(files[1], table, epsilon, asked))
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
    files = [file for base in (folder, Path()) for file in site_paths(path, range(len(sites)), base, sites)]
    own = [file for file in files if os.access(file, os.R_OK)]
    table = tables.read_arrow(public)
    if any(same_file(public, file) for file in own) or same_rows(table, [tables.read_arrow(file) for file in own]):
        raise Refused(
            f"--public {public} has the rows of a site's table, and schema.toml would show everybody their ranges",
            "name a table that no site trains on, or a data dictionary (column, type, min, max, values)",
        )
    return table


def _run(file: Path, table: Any, epsilon: Sequence[float], asked: Mapping[str, Any]) -> str:  # noqa: ANN401 - Arrow's
    schema, folder = schemas.read(file), file.resolve().parent.name
    repeating = [] if table is None else tables.repeating(table, schema)
    naming = [name for name, one in schema.columns.items() if isinstance(one, Ignored) and NAMES.search(name)]
    naming += [name for name, _ in repeating if name in schema.columns]
    network, loss = ("linear", "mse") if schema.classes is None else ("logistic", "cross-entropy")
    network, loss = (network, loss) if schema.times is None else ("hazard", "survival")
    return _TEXTS.get_template("first.toml").render(
        asked, name=folder if folder.isidentifier() else "run", person=naming[0] if naming else None, network=network,
        loss=loss, epsilon=epsilon[0] if len(epsilon) == 1 else list(epsilon),
    )  # fmt: skip


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
