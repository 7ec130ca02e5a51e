"""The commands for a trained model: predict, evaluate."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privsgp.cli_data import Changes, DataDir, Json, about, configured, show_sum, there
from privsgp.errors import Refused, visible

if TYPE_CHECKING:
    from privsgp.runs.result import Result

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", callback=there)]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (predict, evaluate):
        app.command(**about(command.__name__))(command)


def predict(
    run: RunFolder,
    file: Annotated[
        Path,
        typer.Argument(
            help="Samples in the form of the run: .npz with x, a table, texts, an image or a folder of images.",
            callback=there,
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .csv file; default: stdout.")] = None,
) -> None:
    """Predict the class of each sample with probabilities, or its values."""
    from privsgp.files import write
    from privsgp.report.terminal import err
    from privsgp.runs.result import load
    from privsgp.runs.rows import encoded_rows, file_names

    result = load(run)
    x = encoded_rows(file, result.card)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_csv_rows(result, x, file_names(file, result.card)))
    if out is None:
        typer.echo(text.getvalue(), nl=False)
        return
    write(out, text.getvalue())
    err.print(f"written to {out}: {len(x):,} rows", soft_wrap=True)


def _csv_rows(result: Result, x: Any, files: list[str] | None) -> list[list[Any]]:  # noqa: ANN401 - an array
    """Return the rows of a table, its head first; a row is called by its file's name where it has one."""
    from privsgp.runs.rows import times_of

    first, called = ("row", range(len(x))) if files is None else ("file", list(map(visible, files)))
    if result.card["loss"] in ("cross-entropy", "binary"):
        p, known = result.predict_proba(x), result.card.get("class_names")
        names: list[Any] = list(range(p.shape[1])) if known is None else list(map(visible, known))
        if len(names) != p.shape[1]:
            raise Refused(f"the model names {len(names)} classes and has {p.shape[1]}", "put a copy of its file back")
        head = [first, "class", *(f"p{c}" if isinstance(c, int) else f"p({c})" for c in names)]
        rows = zip(called, result.calibration.classes(p), p, strict=True)
        return [head, *([i, names[c], *(f"{v:.6g}" for v in row)] for i, c, row in rows)]
    values = result.predict(x).reshape(len(x), -1)
    head = [first, *(f"value{c}" if values.shape[1] > 1 else "value" for c in range(values.shape[1]))]
    if result.card["loss"] == "survival":
        head = [first, *(f"S({time:g})" for time in times_of(result.card) or range(1, values.shape[1] + 1))]
    return [head, *([i, *(f"{v:.6g}" for v in row)] for i, row in zip(called, values.tolist(), strict=True))]


def evaluate(
    run: RunFolder,
    file: Annotated[
        Path,
        typer.Argument(
            help="Public samples with targets, in the form of the run; .npz with x and y. With --private the run's own "
            'run.toml, or files of the sites that none trained on: "test-{site}.csv". With --calibrate or '
            "--threshold-for also the evaluation.json of a private evaluation.",
            callback=lambda path: path if "{" in str(path) else there(path),
        ),
    ],
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit probabilities, and keep them in calibration.json.")
    ] = False,
    alone: Annotated[
        Path | None,
        typer.Option(
            help="This site's own training file: compare with a model of it alone, in RUN/private.",
            callback=there,
        ),
    ] = None,
    threshold_for: Annotated[
        str,
        typer.Option(help="A threshold for sensitivity=0.9 or specificity=0.9."),
    ] = "",
    private: Annotated[
        bool,
        typer.Option("--private", help="On held-out records of the sites, from one noised histogram: [evaluation]."),
    ] = False,
    changes: Changes = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Measure a trained model on public data, which no ε covers, or privately on held-out records."""
    if private:
        if calibrate or threshold_for:
            raise Refused(
                "--private does not go with --calibrate or --threshold-for",
                "evaluate privately first, then name RUN/evaluation-1/evaluation.json with these options",
            )
        _evaluate_privately(run, file, changes or [], data_dir, as_json=as_json)
        return
    if changes:
        raise Refused("--set was given without --private", "leave it out: public data need no [evaluation]")
    from privsgp.accounting.book import Book
    from privsgp.engine.folder import Folder
    from privsgp.report.terminal import err, show, tell
    from privsgp.runs import benefit
    from privsgp.runs.result import CALIBRATION, EVALUATION, load
    from privsgp.runs.views import metric_rows

    result = load(run)
    if alone is not None:
        compared = benefit.compare(result, file, alone)
        tell(compared, _show_benefit, compared, as_json=as_json)
        return
    if calibrate or threshold_for:
        result.calibrate(file, threshold_for, fit=calibrate)
        err.print(f"written to {run / CALIBRATION}: predict and evaluate use it from now on", soft_wrap=True)
    if file.name == EVALUATION:
        if not (calibrate or threshold_for):
            raise Refused(f"{file} has metrics already", "read them there, or add --calibrate or --threshold-for")
        return
    found = result.evaluate(file)
    if not result.summary["simulation"] and not Book().sets_of({Folder(run).run or ""}):
        err.print("note: the budget book does not know the run's records: nothing was compared", soft_wrap=True)
    err.print("note: no ε covers these: they are for those who may see the samples", soft_wrap=True)
    tell(found, show, file.name, metric_rows(found), as_json=as_json)


def _evaluate_privately(run: Path, file: Path, changes: list[str], data_dir: Path | None, *, as_json: bool) -> None:
    from privsgp.report.terminal import err

    def say(line: str) -> None:
        err.print(line, soft_wrap=True)

    config = configured(file, changes) if file.suffix == ".toml" else None  # refuses before torch is imported
    from privsgp.runs import evaluation

    if config is None:
        found = evaluation.on_files(run, str(file), changes, say)
    else:
        found = evaluation.of_run(run, config, data_dir, say)
    show_sum(found, as_json=as_json, more=evaluation.together(evaluation.of_folder(run)))


def _show_benefit(found: dict[str, Any]) -> None:
    from privsgp.metrics import shown
    from privsgp.report.terminal import out, show_table
    from privsgp.runs.views import LABELS

    rows = [
        (LABELS[name], *(shown(name, one[key]) for key in ("joint", "alone"))) for name, one in found["metrics"].items()
    ]
    head = ("metric", "joint model", "this site alone")
    show_table(f"{found['held_out']:,} held-out records, for this site alone", head, rows, words=["metric"])
    out.print(found["answer"], soft_wrap=True)
