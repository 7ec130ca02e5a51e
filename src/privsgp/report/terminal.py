"""Runs in a terminal or a notebook: a progress bar while they go; in a terminal, a table when they are done."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from markupsafe import Markup
from rich import progress as bars
from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from privsgp.accounting.shown import bound, down, small, up
from privsgp.errors import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.text import Text

    from privsgp.accounting.book import DataSet
    from privsgp.accounting.statements import Statement
    from privsgp.audit.audit import AuditReport
    from privsgp.engine.trainer import Watcher
    from privsgp.planner.record import Plan
    from privsgp.runs.views import RunView


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
        fields = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        trace = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        named = {key: value for key, value in vars(record).items() if key not in self._usual}
        return json.dumps(fields | named | trace, default=str)


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


_REDRAW = 0.2  # seconds between two drawings in a notebook
_BAR = Markup('<progress max="%d" value="%d" style="width:20em"></progress> step %d of %d · %s')
_FIRST = "before the first step: certifying the noise, which takes longest the first time"


@contextmanager
def _progress(words: str, steps: int | None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show on stderr what is done, for how long, and how far it is if anybody knows how much there is to do."""
    always = [bars.BarColumn(), bars.TextColumn("{task.description}", markup=False), bars.TimeElapsedColumn()]
    known = [] if steps is None else [bars.TextColumn("left"), bars.TimeRemainingColumn()]
    columns = [*([] if steps is None else [bars.MofNCompleteColumn()]), *always, *known]
    with bars.Progress(*columns, console=err, transient=True, disable=quiet) as progress:
        yield partial(progress.update, progress.add_task(visible(words), total=steps))


@contextmanager
def bar(steps: int, *, quiet: bool = False) -> Iterator[Watcher]:
    """Show steps, accuracy and time left; the training loss only where the engine measured it."""
    with _progress(_FIRST, steps, quiet=quiet) as update:
        yield lambda step, row: update(completed=step, description=figures(row or {}))


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return "ipykernel" in sys.modules and "IPython" in sys.modules


@contextmanager
def watching(steps: int, progress: bool | None) -> Iterator[Watcher | None]:  # noqa: FBT001 - as `train` has it
    """Show how far a run is, in a notebook or a terminal; None asks whether there is either."""
    if progress is False or (progress is None and not in_notebook() and not sys.stderr.isatty()):
        yield None
    elif in_notebook():
        yield _drawn(steps)
    else:
        with bar(steps) as watch:
            yield watch


def _drawn(steps: int) -> Watcher:
    from IPython.display import HTML, display

    handle, drawn = display(HTML(_BAR % (steps, 0, 0, steps, "")), display_id=True), [0.0]

    def watch(step: int, row: dict[str, Any] | None) -> None:
        if step == steps or time.monotonic() - drawn[0] > _REDRAW:
            handle.update(HTML(_BAR % (steps, step, step, steps, figures(row or {}))))
            drawn[0] = time.monotonic()

    return watch


@contextmanager
def stage(words: str, steps: int) -> Iterator[Callable[[int], None]]:
    """Show how far something long is, on stderr."""
    with _progress(words, steps) as update:
        yield lambda done: update(completed=done)


@contextmanager
def doing(words: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show what is being computed, and for how long, on stderr, where nobody knows how much there is to do."""
    with _progress(words, None, quiet=quiet) as update:
        yield lambda now: update(description=visible(now))


def figures(row: dict[str, Any]) -> str:
    """Write the few numbers of an evaluation that stand beside a bar."""
    shown = {"test_accuracy": "accuracy {:.1%}", "train_loss": "loss {:.3f}"}
    return "  ".join(words.format(row[name]) for name, words in shown.items() if row.get(name) is not None)


def show_table(
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
    show_table(title, (), rows, words=())


def show_plan(plan: Plan) -> None:
    """Print a plan, and what it asks of each site."""
    show("plan", plan.rows())
    signals = ("signal of the rehearsed rows", f"planned {plan.loss_name}", "a constant guess", "each site alone")
    show_table(None, signals, plan.signal_rows(), words=signals[:1])
    unit = "records" if plan.network.rows_per_person is None else "persons"
    titles = ("site", unit, "ε", "δ", "a guess is right at most", "share of the noise", "gains by taking part")
    show_table("sites", titles, plan.site_rows(), words=[titles[0], titles[-1]])
    show_lines(plan.warnings)


def show_run(view: RunView) -> None:
    """Print a finished run."""
    show(view.summary["name"], view.facts)


def show_audit(report: AuditReport) -> None:
    """Print what an attack found about each node."""
    title = f"audit of {report.name}: {report.algorithm}, {report.steps} steps, {report.canaries} canaries a node"
    head = ("node", "ε claimed", "ε certified", "ε ≥", "alarm")
    epsilons = [(up(n.epsilon_claimed), up(n.epsilon_certified), f"{n.white_box:.4g}") for n in report.nodes]
    alarms = ["; ".join(n.alarms) or "none" for n in report.nodes]
    rows = [(str(n.node), *found, alarm) for n, found, alarm in zip(report.nodes, epsilons, alarms, strict=True)]
    show_table(title, head, rows, words=["alarm"])
    verdict = "ALARM: not as private as claimed" if report.alarm else "no alarm"
    out.print(f"{verdict}, at {100 * report.confidence:g} % confidence, {report.observations} observations a node")
    show_lines(report.assumptions)


def show_statements(statements: Sequence[Statement]) -> None:
    """Print what each node's ledger says."""
    rows = []
    for s in statements:
        state = ("finished" if s.complete else "open") + (", simulation" if s.simulation else "")
        state += f", only sums of {s.aggregated} nodes seen" if s.aggregated > 1 else ""
        state += f", if {s.honest} nodes are honest" if s.honest else ""
        state += f", {s.unit}" if s.by_sites else ""
        state += "".join(f"; at {sites} sites: {bound(epsilon)}" for sites, epsilon in s.by_sites[1:])
        epsilons = (bound(s.epsilon), "–" if s.budget is None else up(s.budget), up(s.delta))
        rows.append((f"{s.node} {s.site}".strip(), str(s.runs), str(s.releases), *epsilons, s.relation, state))
    head = ("node", "runs", "releases", "ε spent", "ε budget", "δ", "relation", "state")
    show_table("ledgers, every line checked", head, rows, words=["state"])


def show_budget(found: Sequence[DataSet], limit: float | None) -> None:
    """Print what each data set of the budget book has spent, then the runs on it."""
    head = ("data set", "records", "Σ ε", "Σ δ", "relation", "policy leaves")
    rows, runs = [], []
    for number, one in enumerate(found, 1):
        total, entries = one.spent.epsilon, one.entries
        rest = "–" if limit is None else down(max(0.0, limit - total))
        data = ", ".join(sorted({f"{entry.data} (node {entry.node})" for entry in entries}))
        rows.append((f"{number}: {data}", f"{one.records:,}", bound(total), small(one.spent.delta), one.relation, rest))
        for entry in entries:
            counted = "simulation: not counted" if entry.simulation else bound(entry.epsilon)
            agreed = ", ".join(entry.sites) or "this user"
            runs.append((str(number), entry.started, entry.command, entry.name, counted, small(entry.delta), agreed))
    show_table("budget book: for the record that has spent most", head, rows, words=["data set"])
    titles = ("data set", "entered", "command", "run", "largest ε", "δ", "agreed by")
    show_table("runs", titles, runs, words=["run", "agreed by"])
