"""The final model on test data: its metrics beside a guess, the ROC curve, calibration, and who is taken for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privsgp import metrics
from privsgp.report.charts import Chart, Figure, Table, curves, percent
from privsgp.report.sections import Section, Series
from privsgp.runs.shown import LABELS

if TYPE_CHECKING:
    from privsgp.report.reading import Run

_LARGEST = 20  # classes of a confusion that a page has room for
SAID = (
    "Computed once, on the final model and public test data: that costs no privacy, and no ε covers it. A guess is "
    "what the most frequent class or the mean gets without looking at a sample."
)


def tested(run: Run) -> Section | None:
    """Return the section; nothing where the test data are not public, or the run is older than these metrics."""
    s = run.summary or {}
    if not (rows := _rows(s)):
        return None
    told = {
        "said": [SAID, *(s.get(metrics.DULL) or ())],
        "table": Table(["metric", "model", "a guess"], rows),
        "figures": [figure for figure in (_roc(s), _calibration(s)) if figure is not None],
        "confusion": _confusion(s.get("confusion") or []),
    }
    return Section("tested", told)


def _rows(s: dict[str, Any]) -> list[list[str]]:
    guess = s.get(metrics.BASELINE) or {}
    names = {"accuracy": "accuracy"} | LABELS
    rows = [
        [names[name], metrics.shown(name, s[name]), metrics.shown(name, guess.get(name))]
        for name in names
        if s.get(name) is not None
    ]
    return rows + [[name, metrics.shown("", value), "–"] for name, value in (s.get(metrics.OWN) or {}).items()]


def _roc(s: dict[str, Any]) -> Figure | None:
    points = s.get("roc")
    if not points:
        return None
    x, y = [p[0] for p in points], [p[1] for p in points]
    one = "of class 1" if len(s.get("confusion") or []) == 2 else "one class against the rest, mean over classes"
    chart = Chart("ROC", f"{one}; the diagonal is a coin", "false positive rate", zero=True, write=percent)
    return curves(chart, [_line("model", x, y), _line("coin", [0.0, 1.0], [0.0, 1.0])])


def _calibration(s: dict[str, Any]) -> Figure | None:
    bins = s.get("calibration")
    if not bins or len(bins) < 2:
        return None
    x, y = [b[0] for b in bins], [b[1] for b in bins]
    chart = Chart(
        "Calibration", "how often it is right, by how sure it is; the diagonal is right", "confidence", zero=True,
        write=percent,
    )  # fmt: skip
    return curves(chart, [_line("model", x, y), _line("right", [0.0, 1.0], [0.0, 1.0])])


def _line(name: str, x: list[float], y: list[float]) -> Series:
    return Series(name, x, y, y, y)


def _confusion(counts: list[list[int]]) -> Table | None:
    if not 0 < len(counts) <= _LARGEST:
        return None
    head = ["true class", *(f"said {c}" for c in range(len(counts)))]
    return Table(head, [[str(c), *map(str, row)] for c, row in enumerate(counts)])
