"""The commands that help with tables and first configurations: `privsgp data …` and `privsgp init`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privsgp import later
from privsgp.errors import Refused
from privsgp.report.terminal import err, out, show, show_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.data.check import Checked
    from privsgp.data.schema import Schema
    from privsgp.runs.config import Config


def there(path: Path | None) -> Path | None:
    """Refuse a path that leads nowhere, before a command imports anything."""
    if path is not None and not path.exists():
        raise Refused(f"{path} does not exist", "name a file or folder that exists")
    return path


def configured(path: Path, changes: Sequence[str] | None, *, data: bool = True, planned: bool = False) -> Config:
    """Read run.toml; refuse what is wrong with it before torch is imported, which takes seconds.

    With `data`, files that it names must be there, but for processes of torchrun: each has its own nodes' alone. A run
    that is only `planned` needs no file if it has a schema and data.sizes.
    """
    with later.package("torch"):
        from privsgp.data.loading import site_paths
        from privsgp.runs import config as configs
    found = configs.read(path, changes or [])
    d = found.data
    data = data and not (planned and d.schema is not None and d.sizes is not None)
    if data and d.path is not None and "WORLD_SIZE" not in os.environ:
        tests = [] if d.test_path is None else [found.base / d.test_path]
        for file in (*site_paths(d.path, range(d.nodes), found.base, d.sites), *tests):
            if not file.exists():
                raise Refused(f"data: {file} does not exist", "name an existing file; paths are relative to run.toml")
    return found


Changes = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as for train.")]
DataDir = Annotated[Path | None, typer.Option(help="The folder of MNIST, CIFAR-10 and a9a; default PRIVSGP_DATA.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]


# Every command in the order of help: its panel there, and an example.
_COMMANDS = {
    "Train": {
        "train": "privsgp train run.toml --out runs/first",
        "describe": "privsgp describe run.toml --epsilon 0.5",
        "init": "privsgp init --public public.csv --target outcome --sites aachen,basel,cork",
        "plan": "privsgp plan run.toml",
        "data schema": "privsgp data schema public.csv --target outcome > schema.toml",
        "data check": "privsgp data check schema.toml aachen.csv",
    },
    "Use a model": {
        "predict": "privsgp predict runs/first new.csv -o predictions.csv",
        "evaluate": "privsgp evaluate runs/first public.csv",
        "report": "privsgp report runs/first",
        "dossier": "privsgp dossier runs/first --out dossier",
    },
    "Check privacy": {
        "ledger": "privsgp ledger runs/first",
        "budget": "privsgp budget",
        "audit": "privsgp audit run.toml",
        "calibrate": "privsgp calibrate --samples 1200 --batch 48 --steps 300 --epsilon 1",
        "account": "privsgp account --samples 1200 --batch 48 --steps 300 --sigma 0.1",
    },
    "Between organisations": {
        "site init": "privsgp site init --name basel --address fl.basel.example:8443",
        "site card": "privsgp site card",
        "site show": "privsgp site show aachen.card",
        "site rotate": "privsgp site rotate",
        "agree propose": "privsgp agree propose run.toml --site aachen.card --site basel.card -o lung.study",
        "agree amend": "privsgp agree amend lung.study --replace basel=basel-2.card -o lung-2.study",
        "agree show": "privsgp agree show lung.study",
        "doctor": "privsgp doctor lung.study",
        "join": "privsgp join lung.study --data own.npz",
        "status": "privsgp status lung.study",
        "leave": "privsgp leave lung.study",
        "relay": "privsgp relay lung.study",
    },
    "Research": {
        "compare": "privsgp compare run.toml --algorithms privsgp-vr,privsgp",
        "reproduce": "privsgp reproduce --list",
    },
}
_PANELS_AND_EXAMPLES = {name: (panel, example) for panel, found in _COMMANDS.items() for name, example in found.items()}
ORDER = list(dict.fromkeys(name.partition(" ")[0] for name in _PANELS_AND_EXAMPLES))


def about(name: str) -> dict[str, Any]:
    """Return the help panel and the example of a command, as typer takes them."""
    panel, example = _PANELS_AND_EXAMPLES[name]
    return {"rich_help_panel": panel, "epilog": f"Example: {example}"}


def note(*notes: str) -> None:
    """Write notes to stderr."""
    for text in notes:
        err.print(f"note: {text}", soft_wrap=True)


data = typer.Typer(help="Tables: draft a schema, check a table against it.", no_args_is_help=True)
SchemaFile = Annotated[Path, typer.Argument(help="schema.toml, the same at every site.")]
TableFile = Annotated[Path, typer.Argument(help=".csv or .parquet")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.add_typer(data, name="data", rich_help_panel="Train")
    app.command(**about("init"))(init)
    app.command(**about("describe"))(describe)


Event = Annotated[str | None, typer.Option(help="For survival: the column of the event; --target is its time.")]


@data.command("schema", **about("data schema"))
def schema(
    public: Annotated[
        Path, typer.Argument(help="A public table, or a data dictionary: column, type, min, max, values.")
    ],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    event: Event = None,
) -> None:
    """Draft a schema from public data, and print it. Training refuses a schema from a site's own table."""
    with later.package("torch"):
        from privsgp.data.draft import draft
        from privsgp.data.tables import read_arrow

    typer.echo(draft(read_arrow(public), target, public.name, event), nl=False)
    err.print("next: read every line, then give the same file to all sites. It must come from public data only")


@data.command("check", **about("data check"))
def check(
    schema_file: SchemaFile,
    table: TableFile,
    person: Annotated[str | None, typer.Option(help="data.person of run.toml: count persons too.")] = None,
    rows_per_person: Annotated[int, typer.Option(min=1, help="data.rows_per_person of run.toml.")] = 1,
    as_json: Json = False,
) -> None:
    """List all problems of this site's table. It writes nothing and sends nothing."""
    with later.package("torch"):
        from privsgp.data import check as checks
        from privsgp.data import schema as schemas
        from privsgp.data.tables import count_notes

    found = schemas.read(schema_file)
    checked = checks.check(table, found, person=person)
    if as_json:
        values = {"schema": found.digest, "rows": checked.rows, "features": found.features, "counts": checked.counts}
        values |= _persons(checked, rows_per_person)
        problems = [problem._asdict() for problem in checked.problems]
        typer.echo(json.dumps(values | {"classes": _per_class(found, checked), "problems": problems}))
    else:
        persons = [(key, f"{value:,}") for key, value in _persons(checked, rows_per_person).items()]
        show(f"{table.name}, for this site alone", _rows(found, checked) + persons)
        for problem in checked.problems:
            head = "REFUSED" if problem.refused else "look at this"
            out.print(f"{head}: {problem.what}\n  → {problem.remedy}", soft_wrap=True, markup=False)
        show_lines(count_notes(checked.counts) or (() if checked.problems else ["every value fits"]))
    if any(problem.refused for problem in checked.problems):
        raise typer.Exit(2)


def _persons(table: Checked, most: int) -> dict[str, int]:
    """Return how many persons there are, the rows of the largest, and how many persons a run would cut."""
    if not table.rows_of_persons:
        return {}
    cut = sum(rows > most for rows in table.rows_of_persons)
    return {
        "persons": len(table.rows_of_persons),
        "most rows of a person": max(table.rows_of_persons),
        f"persons with more than {most} rows": cut,
    }


def _rows(schema: Schema, table: Checked) -> list[tuple[str, str]]:
    classes = _per_class(schema, table)
    rows = [
        ("rows", f"{table.rows:,}"),
        ("columns", f"{len(schema.encoded)} become {schema.width} numbers each row"),
        ("schema", schema.digest),
    ]
    return rows if not classes else [*rows, ("classes", ", ".join(f"{n:,} {name}" for name, n in classes.items()))]


def _per_class(schema: Schema, table: Checked) -> dict[str, int]:
    if schema.target.classes is None or table.y is None:
        return {}
    return {name: int((table.y == i).sum()) for i, name in enumerate(schema.target.classes)}


def init(
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas between.")],
    public: Annotated[
        Path | None, typer.Option(help="A public table, or a data dictionary, to draft schema.toml from.")
    ] = None,
    described: Annotated[
        Path | None,
        typer.Option(
            "--from-description",
            callback=there,
            metavar="FILE",
            help="Or a description.json: its schema, with centres, scales and bins from it; run.toml names its cost.",
        ),
    ] = None,
    target: Annotated[str, typer.Option(help="With --public: the column to predict.")] = "",
    path: Annotated[str, typer.Option(help='Each site\'s file: "{site}.csv" or "site-{node}.csv".')] = "{site}.csv",
    epsilon: Annotated[str, typer.Option(help="ε: one for all, or one per site with commas between.")] = "2.0",
    test: Annotated[Path | None, typer.Option(help="Public test data.")] = None,
    sizes: Annotated[
        str, typer.Option(help="For a study between organisations: records of each site, with commas between.")
    ] = "",
    event: Event = None,
    folder: Annotated[Path, typer.Option("--out", help="The folder for run.toml and schema.toml.")] = Path(),
) -> None:
    """Write a commented run.toml, and a schema.toml beside it."""
    with later.package("torch"):
        from privsgp.runs.first import write_first

    counts = [round(count) for count in numbers("sizes", sizes)]
    files = write_first(
        folder, public, target, listed(sites), path, numbers("epsilon", epsilon), test, counts, event, described
    )
    for file in files:
        out.print(f"written: {file}", soft_wrap=True)
    out.print(f"next: read both; each site: privsgp data check {files[1]} ITS.csv; then: privsgp plan {files[0]}")


def listed(text: str) -> list[str]:
    """Return the parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(option: str, text: str) -> list[float]:
    """Return the numbers that stand between commas, if any; where one is missing, the next are not taken for it."""
    try:
        return [float(part) for part in text.strip().removesuffix(",").split(",")] if text else []
    except ValueError:
        raise Refused(f"--{option} {text} is no list of numbers", "give numbers with commas between") from None


def describe(
    config: Annotated[Path, typer.Argument(help="run.toml, whose [data] names the sites' tables and their schema.")],
    epsilon: Annotated[float, typer.Option(help="ε of the one release of each site.")],
    delta: Annotated[float, typer.Option(help="Its δ; below 1 / records of a site.")] = 1e-5,
    columns: Annotated[str, typer.Option(help="Names with commas between; default: all that the schema uses.")] = "",
    bins: Annotated[int, typer.Option(min=2, max=200, help="Bins of a number's public range.")] = 20,
    by: Annotated[str, typer.Option(help="Count the target's classes by these columns too, with commas between.")] = "",
    moments: Annotated[
        float | None,
        typer.Option(
            help="Correlations and ridge regression too; each row is clipped to this norm, on the schema's scale."
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Default: descriptions/.")] = None,
    changes: Changes = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Describe columns of all sites' tables privately: shares, missing values, means, quantiles, with intervals."""
    settings = configured(config, changes)
    from privsgp.runs import description

    found = description.describe(
        settings, epsilon, delta, out=folder, data_dir=data_dir, say=lambda line: err.print(line, soft_wrap=True),
        columns=listed(columns), bins=bins, by=listed(by), moments=moments,
    )  # fmt: skip

    show_sum(found, as_json=as_json)


def show_sum(found: dict[str, Any], *, as_json: bool, more: Sequence[str] = ()) -> None:
    """Show what a noised sum says, a description or an evaluation; of a description write its page."""
    from privsgp.report import page
    from privsgp.report.terminal import show_table, tell
    from privsgp.runs import description, evaluation

    described, folder = "columns" in found, Path(found["folder"])
    kind, what = (description, ("column", "what")) if described else (evaluation, ("metric", "group"))
    if described:
        page.write(folder, folder / page.NAME)
    title, head = (
        "all sites together" if described else "the model on held-out records",
        (*what, "value, 95 % interval"),
    )
    words = what if described else what[:1]
    tell(found, lambda: show_table(title, head, kind.rows_of(found), words=words), as_json=as_json)
    written = f"written to {folder}, for people: {page.NAME}" if described else f"written to {folder}"
    for line in (*kind.statement(found), *more, written):
        err.print(line, soft_wrap=True)
