"""Runs in a terminal: a progress bar while they go, a table when they are done."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from privsgp import metrics
from privsgp.accounting.shown import span_up, up
from privsgp.errors import visible
from privsgp.paper import claims
from privsgp.runs.shown import LABELS, clocked, metric_rows, summary_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.text import Text

    from privsgp.accounting.book import DataSet
    from privsgp.accounting.observer import View
    from privsgp.accounting.statements import Statement
    from privsgp.engine.trainer import Watcher
    from privsgp.options import Key
    from privsgp.planner.record import Formula, Plan
    from privsgp.studies.audit import AuditReport
    from privsgp.studies.tune import Tuned


class Plain(Console):
    """A console that shows words as they are: no brackets, names of pictures or control characters have a meaning.

    Words come from paths, peers, ledgers and other people's run folders.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - rich's own
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - rich's own
        """Return text to be shown; everything printed as a string passes here, cells of tables too."""
        return super().render_str(visible(text), **options)


# What is not a terminal has no width: tables are written there as wide as they are.
_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
out, err = Plain(width=_WIDTH), Plain(stderr=True)


class _Visible(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class _Json(logging.Formatter):
    """One JSON object a line: time, level, message, and what else the record was given by name."""

    _usual: ClassVar[set[str]] = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        when = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        told = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        trace = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        named = {key: value for key, value in vars(record).items() if key not in self._usual}
        return json.dumps(told | named | trace, default=str)


LogFormat = Literal["text", "json"]


def show_log(form: LogFormat = "text") -> None:
    """Show what the package logs on stderr: text that only a terminal wraps, or one JSON object a line."""
    log = logging.getLogger("privsgp")
    log.setLevel(logging.INFO)
    handler: logging.Handler = logging.StreamHandler()
    if form == "text" and err.is_terminal:  # a bar may be shown below
        handler = RichHandler(console=err, show_time=False, show_level=False, show_path=False)
    handler.setFormatter(_Json() if form == "json" else _Visible())
    log.handlers = [handler]


def show_end(what: str, *then: str) -> None:
    """Say why a command ends, and what to do; as the log is written."""
    log = logging.getLogger("privsgp")
    if any(isinstance(handler.formatter, _Json) for handler in log.handlers):
        log.error(visible(what), extra={"remedy": " ".join(then).strip(" →")})
        return
    err.print(f"privsgp: {what}", style="bold red", highlight=False, soft_wrap=True)
    for line in then:
        err.print(line, highlight=False, soft_wrap=True)


_PAUSE = 30.0  # seconds between two lines about progress in a log
_FIRST = "before the first step: certifying the noise, which takes longest the first time"


@contextmanager
def bar(steps: int, *, quiet: bool = False) -> Iterator[Watcher]:
    """Show steps, accuracy and time left on stderr; the training loss only where the engine measured it."""
    columns = [
        TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    ]  # fmt: skip
    with Progress(*columns, console=err, transient=not err.is_terminal, disable=quiet) as progress:
        task = progress.add_task("", total=steps, figures=_FIRST)

        def watch(step: int, row: dict[str, Any] | None) -> None:
            progress.update(task, completed=step, figures=figures(row or {}))

        yield watch


@contextmanager
def stage(words: str, steps: int) -> Iterator[Callable[[int], None]]:
    """Show how far many runs are, all their steps together, on stderr; in a log, by a line now and then."""
    if not err.is_terminal:
        yield _in_lines(words, steps)
        return
    columns = [
        _description(), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    ]  # fmt: skip
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(visible(words), total=steps)
        yield lambda done: progress.update(task, completed=done)


def _in_lines(words: str, steps: int) -> Callable[[int], None]:
    last = -math.inf

    def watch(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PAUSE:
            last = time.monotonic()
            err.print(f"{words}: {done} of {steps}", soft_wrap=True)

    watch(0)
    return watch


@contextmanager
def doing(words: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show what is being computed, and for how long, on stderr, where nobody knows how much there is to do."""
    columns = [SpinnerColumn(), _description(), TimeElapsedColumn()]
    with Progress(*columns, console=err, transient=True, disable=quiet) as progress:
        task = progress.add_task(visible(words), total=None)
        yield lambda now: progress.update(task, description=visible(now))


def _description() -> TextColumn:
    return TextColumn("{task.description}", markup=False)


def figures(row: dict[str, Any]) -> str:
    """Write the few numbers of an evaluation that stand beside a bar."""
    words = []
    if row.get("test_accuracy") is not None:
        words.append(f"accuracy {row['test_accuracy']:.1%}")
    if row.get("train_loss") is not None:
        words.append(f"loss {row['train_loss']:.3f}")
    return "  ".join(words)


def _show_table(
    title: str | None, head: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[str], wide: bool = False
) -> None:
    """Print a table whose columns are numbers, to the right, but for those of `words`; without a head all are words."""
    box = SIMPLE_HEAD if wide else HEAVY_HEAD  # no lines between its columns
    table = Table(title=title, title_justify="left", title_style="bold", show_header=bool(head), box=box)
    for name in head:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=wide)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def tell(values: object, shown: Callable[..., None], *given: Any, as_json: bool) -> None:  # noqa: ANN401 - any to show
    """Print JSON on stdout, and nothing else there, or show what is given to people."""
    if as_json:
        sys.stdout.write(json.dumps(values) + "\n")
    else:
        shown(*given)


def show_lines(lines: Iterable[str]) -> None:
    """Print what there is to say beside a table."""
    for line in lines:
        out.print(f"  · {line}", soft_wrap=True)


def show(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print label and value, line by line."""
    _show_table(title, (), rows, words=())


def show_keys(section: str, whose: str, found: list[Key]) -> None:
    """Print the keys of a section of run.toml, or those that one of its components brings."""
    title = section + (f" with {whose}" if whose else "")
    head = ("key", "values", "default", "meaning")
    _show_table(title, head, found, words=head)


def show_plan(formula: Formula, plan: Plan | None, *, details: bool = False) -> None:
    """Print a plan, or the bound alone; the paper's bound and its theorems only with `details`."""
    from privsgp.planner import shown as words
    from privsgp.report.words import site_sentences

    with doing("certifying the noise of many K, for the bound"):
        rows = words.formula_rows(formula) if plan is None else words.plan_rows(plan)
        methods = words.method_rows(plan) if plan is not None and len(plan.choices) > 1 else []
        warnings = formula.warnings(formula.steps) if plan is None else plan.warnings
    theory = plan is not None and not details
    show("plan", [row for row in rows if not theory or row[0] not in words.THEORY])
    if methods:
        head = ("method", "batch", "steps", "step size", "σ", "noise in the average", "score in rehearsal")
        _show_table(None, head, methods, words=head)
    said = (*warnings, *([] if plan is None else site_sentences(plan)))
    show_lines(line for line in said if not theory or "Theorem" not in line)
    if theory:
        show_lines(["--details shows the paper's bound and where its theorems stand"])


def show_summary(summary: dict[str, Any], folder: Path) -> None:
    """Print what a run came to."""
    show(summary["name"], summary_rows(summary, folder))
    show_lines(summary.get(metrics.DULL) or ())


def show_metrics(title: str, found: dict[str, Any]) -> None:
    """Print metrics, each with what a guess without a model gets."""
    guess = (found.get(metrics.BASELINE) or {}).get("accuracy")
    beside = "" if guess is None else f" (a guess: {metrics.shown('accuracy', guess)})"
    accuracy = metrics.shown("accuracy", found.get("accuracy"))
    show(title, [*([("accuracy", accuracy + beside)] if accuracy != "–" else []), *metric_rows(found)])
    show_lines(found.get(metrics.DULL) or ())


def show_audit(report: AuditReport) -> None:
    """Print what an attack found about each node."""
    title = f"audit of {report.name}: {report.algorithm}, {report.steps} steps, {report.canaries} canaries a node"
    head = ("node", "ε claimed", "ε certified", "ε ≥ (messages)", "ε ≥ (final model)", "alarm")
    rows = []
    for n in report.nodes:
        promised, found = (n.epsilon_claimed, n.epsilon_certified), (n.white_box, n.black_box)
        bounds = *map(up, promised), *(f"{bound:.4g}" for bound in found)
        rows.append((str(n.node), *bounds, "; ".join(n.alarms) or "none"))
    _show_table(title, head, rows, words=["alarm"])
    verdict = "ALARM: not as private as claimed" if report.alarm else "no alarm"
    out.print(f"{verdict}, at {100 * report.confidence:g} % confidence, {report.observations} observations a node")
    if report.stopped:
        out.print("stopped early: the final model was not attacked")
    show_lines(report.assumptions)


def show_comparison(comparison: dict[str, Any]) -> None:
    """Print a comparison, as comparison.json holds it, method by method."""
    from privsgp.features.options import pretraining

    times = [row["virtual_seconds"] and row["virtual_seconds"]["mean"] for row in comparison["rows"]]
    clock = any(clocked(time, row["steps"]) for time, row in zip(times, comparison["rows"], strict=True))
    extra = [name for name in ("auc", "r2") if any(name in row.get("metrics", {}) for row in comparison["rows"])]
    names = [LABELS[name] for name in extra]
    head = ["method", "accuracy %", *names, "loss", "ε", "step", "steps", "msgs", "MB", *(["time"] if clock else [])]
    rows = [
        [
            row["algorithm"], _accuracy(row), *(_three(_mean(row, name)) for name in extra),
            _three(row["test_loss"] and row["test_loss"]["mean"]), _three(row["epsilon"], up),
            _three(row["step_size"]), str(row["steps"]), str(row["messages"] or 0),
            f"{(row['bytes_sent'] or 0) / 1e6:.1f}",
            *([_three(time)] if clock else []),
        ]
        for time, row in zip(times, comparison["rows"], strict=True)
    ]  # fmt: skip
    _show_table(comparison["config"]["name"], head, rows, words=["method"], wide=True)
    said = ["time is virtual, in seconds; accuracy is mean ± standard deviation over seeds"] if clock else []
    settings: dict[str, list[str]] = {}
    for row in comparison["rows"]:
        settings.setdefault(f"network {row['graph']}, trust {row['trust']}", []).append(row["algorithm"])
    said += [f"{words}: {', '.join(methods)}" for words, methods in settings.items()]
    rests_on = pretraining(comparison["config"].get("features", {}).get("name", "none"))
    show_lines([*said, *([rests_on] if rests_on else []), comparison["note"]])


def show_figure(told: dict[str, Any]) -> None:
    """Print what a figure of the paper came to, as its JSON holds it."""
    out.print(f"{told['name']}, {told['mode']}, {told['scale']}: {told['paper']}", style="bold", soft_wrap=True)
    for verdict, found in claims.stated(told).items():
        out.print(f"  {verdict}: {found}", soft_wrap=True, highlight=False)
    spent = [c["epsilon_certified"] for c in told["curves"]]
    words = "no finite bound for some" if None in spent else f"ε = {span_up(spent)}"
    seeds = "one seed" if told["seeds"] == 1 else f"{told['seeds']} seeds"
    out.print(f"  certified: {words}; {seeds}", soft_wrap=True, highlight=False)


def _accuracy(row: dict[str, Any]) -> str:
    found = row["accuracy"]
    if found is None:
        return "–"
    lost = f", {row['diverged']} diverged" if row["diverged"] else ""
    return f"{100 * found['mean']:.2f} ± {100 * found['sd']:.2f}{lost}"


def _mean(row: dict[str, Any], name: str) -> float | None:
    found = row.get("metrics", {}).get(name)
    return None if found is None else float(found["mean"])


def _three(value: float | None, write: Callable[[float, int], str] = lambda v, digits: f"{v:.{digits}g}") -> str:
    return "–" if value is None else write(value, 3)


def show_statements(statements: Sequence[Statement]) -> None:
    """Print what each node's ledger says."""
    rows = []
    for s in statements:
        state = ("finished" if s.complete else "open") + (", simulation" if s.simulation else "")
        state += f", only sums of {s.aggregated} nodes seen" if s.aggregated > 1 else ""
        state += f", if {s.honest} nodes are honest" if s.honest else ""
        epsilon = "no finite bound" if math.isinf(s.epsilon) else up(s.epsilon)
        budget = "–" if s.budget is None else up(s.budget)
        named = f"{s.node} {s.site}".strip()
        rows.append((named, str(s.runs), str(s.releases), epsilon, budget, up(s.delta), s.relation, state))
    head = ("node", "runs", "releases", "ε spent", "ε budget", "δ", "relation", "state")
    _show_table("ledgers, every line checked", head, rows, words=["state"])


def show_budget(found: Sequence[DataSet], limit: float | None) -> None:
    """Print what each data set of the budget book has spent, then the runs on it."""
    from privsgp.report.words import small

    head = ("data set", "records", "Σ ε", "Σ δ", "relation", "policy leaves")
    rows, runs = [], []
    for number, one in enumerate(found, 1):
        total, entries = one.spent.epsilon, one.entries
        spent = "no finite bound" if math.isinf(total) else up(total)
        left = "–" if limit is None else f"{max(0.0, limit - total):.3g}"
        data = ", ".join(sorted({f"{entry.data} (node {entry.node})" for entry in entries}))
        rows.append((f"{number}: {data}", f"{one.records:,}", spent, small(one.spent.delta), one.relation, left))
        for entry in entries:
            epsilon = "no finite bound" if entry.epsilon is None else up(entry.epsilon)
            counted = "simulation: not counted" if entry.simulation else epsilon
            agreed = ", ".join(entry.sites) or "this user"
            runs.append((str(number), entry.started, entry.command, entry.name, counted, small(entry.delta), agreed))
    _show_table("budget book: for the record that has spent most", head, rows, words=["data set"])
    titles = ("data set", "entered", "command", "run", "largest ε", "δ", "agreed by")
    _show_table("runs", titles, runs, words=["run", "agreed by"])


_MOST_SITES = 9  # for which a matrix fits into eighty characters


def show_view(view: View, guarantee: float) -> None:
    """Print what each site learns of each other: the matrix where it fits, else the most and the least of each."""
    from privsgp.accounting.observer import NOTE

    words = f"what one site learns of another: ε at δ = {up(view.delta)}; against everybody {up(guarantee)}"
    out.print(words, style="bold", soft_wrap=True, highlight=False)
    if len(view.epsilon) <= _MOST_SITES:
        columns, found = [f"of {j}" for j in range(len(view.epsilon))], view.epsilon.tolist()
    else:
        columns, found = ["the most", "of site", "the least", "of site"], view.extremes()
    rows = [[str(i), *("–" if math.isnan(value) else up(value, 3) for value in row)] for i, row in enumerate(found)]
    _show_table(None, ("observer", *columns), rows, words=())
    show_lines([NOTE])


def show_tuned(found: Tuned) -> None:
    """Print every trial with its score, the best one marked."""
    head = ("step size", "clip", "batch", "steps", "momentum", "tail", "score", "")
    rows = [
        (*(f"{value:.4g}" for value in astuple(trial)), f"{score:.4f}", "←" if trial == found.best else "")
        for trial, score in found.trials
    ]
    _show_table(f"tuned on {found.source.text}", head, rows, words=())
