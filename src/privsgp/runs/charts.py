"""Charts of a run as HTML figures that stand on their own, for the report and for notebooks.

Text and axes have the colour of the text around them. Curves differ in colour (of Okabe and Ito, for all kinds of
colour vision) and in dashes. Below each chart is a table of its numbers. Markup comes from charts.html alone, which
escapes what is put into it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from markupsafe import Markup

    from privsgp.models import Shape
    from privsgp.runs.views import RunView

    Points = Sequence[tuple[float, float]]
    Write = Callable[[float], str]

WIDTH, HEIGHT = 440, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 10, 38
_LOOKS = (("#0072b2", "none"), ("#d55e00", "7 4"), ("#009e73", "2 4"))
_ROW = 18  # of a level
_MOST = 200  # points of a curve: a screen has no room for more
DIAGONAL = ((0.0, 0.0), (1.0, 1.0))
TEMPLATES = Environment(
    loader=PackageLoader("privsgp.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip
_PARTS: Any = TEMPLATES.get_template("charts.html").module


def number(value: float) -> str:
    """Write a number for people: 1,234, 0.0123, 1.2e-05."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e6 else f"{value:.3g}"


def percent(value: float) -> str:
    """Write a fraction as percent."""
    return f"{100 * value:.1f} %"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table whose first column names its rows."""
    made: Markup = _PARTS.table(head, rows)
    return made


def ticks(values: Sequence[float]) -> list[float]:
    """Return about five round numbers, evenly spaced, that enclose all values."""
    low, high = min(values), max(values)
    if math.isclose(low, high):
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _position(value: float, on: Sequence[float], start: float, end: float) -> float:
    return start + (end - start) * (value - on[0]) / (on[-1] - on[0])


def figure(title: str, series: Mapping[str, Points], x_label: str = "step", write: Write = number) -> Markup:
    """Return curves by their names: the drawing, a legend, and the numbers."""
    lines = {name: points[::-1][:: math.ceil(len(points) / _MOST)][::-1] for name, points in series.items()}
    keys = [(*_LOOKS[i], name) for i, name in enumerate(lines)]
    data = "; ".join(f"{name}: {write(p[0][1])} at first, {write(p[-1][1])} at last" for name, p in series.items())
    known = [dict(points) for points in lines.values()]
    rows = [[number(x), *(write(of[x]) if x in of else "" for of in known)] for x in sorted(set().union(*known))]
    parts = _drawing(lines, x_label, write)
    made: Markup = _PARTS.figure(title, keys, WIDTH, HEIGHT, f"{title}. {data}", parts, [x_label, *lines], rows)
    return made


def _drawing(lines: Mapping[str, Points], x_label: str, write: Write) -> list[Markup]:
    xs, ys = ([point[i] for points in lines.values() for point in points] for i in (0, 1))
    xs, ys = ticks([0.0, *xs]), ticks(ys)
    left, right, bottom = _LEFT, WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = [_PARTS.text((left + right) / 2, HEIGHT - 4, "middle", x_label)]
    for t in ys:
        y = _position(t, ys, bottom, _TOP)
        parts += [_PARTS.rule(left, right, y, y), _PARTS.text(left - 7, y + 4, "end", write(t).replace(".0 %", " %"))]
    parts += [_PARTS.text(_position(t, xs, left, right), bottom + 17, "middle", number(t)) for t in xs]
    for (colour, dashes), points in zip(_LOOKS, lines.values(), strict=False):
        line = [(_position(a, xs, left, right), _position(b, ys, bottom, _TOP)) for a, b in points]
        parts.append(_PARTS.line(line, colour, dashes))
        parts.append(_PARTS.dot(*line[-1], colour))
    return parts


def forest(shape: Shape) -> Markup:
    """Return the scores of an additive model's levels, with the band of the noise."""
    half = shape.half_widths or [0.0] * len(shape.labels)
    rows = [(label, v, v - h, v + h) for label, v, h in zip(shape.labels, shape.scores, half, strict=True)]
    return intervals(shape.title, rows, "score", lambda value: f"{value:.3f}")


def intervals(title: str, rows: Sequence[tuple[str, float, float, float]], what: str, write: Write) -> Markup:
    """Return a row for each (label, value, low, high): a dot on its interval."""
    xs = ticks([end for _, *ends in rows for end in ends])
    left, right, bottom = WIDTH * 0.36, WIDTH - _RIGHT, _TOP + len(rows) * _ROW
    parts = [_PARTS.text((left + right) / 2, bottom + _BOTTOM - 4, "middle", what)]
    for t in xs:
        x = _position(t, xs, left, right)
        parts += [_PARTS.rule(x, x, _TOP, bottom), _PARTS.text(x, bottom + 17, "middle", number(t))]
    for i, (label, *band) in enumerate(rows):
        (x, low, high), y = (_position(end, xs, left, right) for end in band), _TOP + (i + 0.5) * _ROW
        parts += [_PARTS.text(left - 7, y + 4, "end", label[:24]), _PARTS.dot(x, y, _LOOKS[0][0])]
        parts.append(_PARTS.line([(low, y), (high, y)], *_LOOKS[0]))
    data = [[label, write(value), f"{write(low)} to {write(high)}"] for label, value, low, high in rows]
    label, head = f"{title}: {what} of each level", ["level", what, "95 % interval"]
    made: Markup = _PARTS.figure(title, [], WIDTH, bottom + _BOTTOM, label, parts, head, data)
    return made


def figures(view: RunView) -> list[Markup]:
    """Return what the run measured as it went on, and the final model's ROC curve and calibration, where known."""
    over_steps: list[tuple[str, dict[str, str], Write]] = [
        ("Accuracy on test data", {"average model": "test_accuracy", "worst site": "worst_node_accuracy"}, percent),
        ("Loss", {"test": "test_loss", "training": "train_loss"}, number),
        ("Consensus error", {"distance from the average model": "consensus_error"}, number),
    ]
    found = []
    for title, names, write in over_steps:
        curves = {name: points for name, metric in names.items() if (points := view.curve(metric))}
        found += [figure(title, curves, write=write)] if curves else []
    roc, bins = ([(p[0], p[1]) for p in view.summary.get(key) or ()] for key in ("roc", "calibration"))
    if roc:
        found.append(figure("ROC", {"model": roc, "random guess": DIAGONAL}, "false positive rate", percent))
    if len(bins) > 1:
        right = {"model": bins, "ideal": DIAGONAL}
        found.append(figure("Calibration: how often it is right", right, "confidence", percent))
    if timed := view.summary.get("survival"):
        known = {"observed (Kaplan–Meier)": timed["kaplan_meier"], "model, mean": timed["predicted"]}
        drawn = {name: [(0.0, 1.0), *zip(timed["times"], values, strict=True)] for name, values in known.items()}
        found.append(figure("Survival", drawn, "time", percent))
        at = len(timed["times"]) // 2
        groups = {"model": [(p, o) for p, o, _ in timed["calibration"][at]], "ideal": DIAGONAL}
        title = f"Calibration of survival at {timed['times'][at]:g}: five groups by prediction"
        found.append(figure(title, groups, "predicted", percent))
    return found
