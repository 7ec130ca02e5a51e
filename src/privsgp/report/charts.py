"""Charts as SVG: curves with bands, and bars against a budget.

Colours are CSS classes, so that a page in the dark changes them; sizes are in units of a drawing that is as wide as a
column. Each chart is drawn twice, the second time for a telephone, on which the first one's letters would be too small;
the page shows one of them. Every chart has a title and a description for who cannot see it, what the page's script
shows on hover, and its numbers as a table: templates/parts.html puts them together. Elements are written by `_tag`
alone, which escapes what is put into them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from privsgp.report.sections import Series

    Account = tuple[str, float | None, float | None]  # a node's name, what it spent, its budget

WIDTH, HEIGHT = 480, 280
WIDTHS = {"wide": WIDTH, "narrow": 320}
COLOURS = 8
_LEFT, _TOP, _BOTTOM = 52, 18, 38
_LEAST = 15  # from one label to the next
_LETTER = 7.4  # mean width of a letter at the charts' font size
_LONGEST = {WIDTH: 24, WIDTHS["narrow"]: 13}  # letters of a label beside its curve
_LABELS = 14  # more of them do not fit beside a chart; hover and table tell them apart


@dataclass(frozen=True)
class Axis:
    """Values low … high laid on start … end, evenly or by their logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return where a value lies."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return round values between the ends."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            factors = (1, 2, 5) if len(decades) < 4 else (1,)
            found = [m * 10.0**e for e in decades[:: max(1, len(decades) // 6)] for m in factors]
            inside = [t for t in found if self.low <= t <= self.high]
            if len(inside) > 2 or self.low * 10 < self.high:
                return inside
        step = _round_step((self.high - self.low) / 4)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _round_step(rough: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def _scale(values: Sequence[float], start: float, end: float, *, log: bool, zero: bool = False) -> Axis:
    """Return an axis that holds all values, with round ends where it is not logarithmic."""
    low, high = min(values), max(values)
    if log:
        return Axis(low * 0.8, high * 1.25, start, end, log=True)
    low = 0.0 if zero else low
    if math.isclose(low, high):  # closer than what is written beside the axis
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    step = _round_step((high - low) / 4)
    return Axis(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end)


def _along(values: Sequence[float], right: float, chart: Chart) -> Axis:
    """Return the axis of steps: from 0 to the last one, or by its logarithms from the first."""
    first, last = min(values) if chart.log_x else 0.0, max(values)
    if chart.room and last > 0:
        step = _round_step(last / 4)
        last = (math.floor(last / step * 1.01) + 1) * step
    return Axis(first, last if last > first else first + 1, _LEFT, right, log=chart.log_x)


def number(value: float) -> str:
    """Write a number for people: 1,234, 0.0123, 1.2e-05."""
    if value == round(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """Write a fraction as percent."""
    return f"{100 * value:.1f} %"


@dataclass(frozen=True)
class Chart:
    """What a chart is about: its words, and how its values are written."""

    title: str
    note: str = ""
    x_label: str = "step"
    log: bool = False
    log_x: bool = False
    room: bool = False  # the x axis goes on to a round value beyond the last x
    zero: bool = False
    write: Callable[[float], str] = number
    write_x: Callable[[float], str] = number
    mark: tuple[float, str] | None = None  # an x worth pointing at
    cursor: bool = False  # a line that the network's slider moves


@dataclass(frozen=True)
class Table:
    """Numbers in rows; the first column names its row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A chart as the page shows it: a drawing for each width, what to say on hover, and its numbers."""

    chart: Chart
    drawings: Sequence[Markup]
    hover: dict[str, Any]
    numbers: Table


def _tag(name: str, /, *inside: str, **attributes: object) -> Markup:
    """Write an element, lengths with one decimal; what is put into it is escaped unless a tag itself."""
    values = (f"{v:.1f}" if isinstance(v, float) else v for v in attributes.values())
    return _blank(name, *attributes) % (*values, Markup().join(inside))


@cache  # thousands of bars have one form
def _blank(name: str, *attributes: str) -> Markup:
    places = [Markup(' %s="%%s"') % key.rstrip("_").replace("_", "-") for key in attributes]
    return Markup("<%s%s>%%s</%s>") % (name, Markup().join(places), name)


def _text(kind: str, x: float, y: float, *inside: str, anchor: str = "middle") -> Markup:
    return _tag("text", *inside, class_=kind, x=x, y=y, text_anchor=anchor)


def _upright(**attributes: object) -> Markup:
    return _tag("line", **attributes, y1=_TOP, y2=HEIGHT - _BOTTOM)


def _figure(chart: Chart, drawings: Sequence[Markup], hover: dict[str, Any], numbers: Table, words: str) -> Figure:
    """Frame the drawings, with their words for who cannot see them."""
    framed = [
        _tag("svg", drawing, class_=kind, viewBox=f"0 0 {width} {HEIGHT}", role="img", tabindex=0,
             aria_label=f"{chart.title}. {words}")
        for (kind, width), drawing in zip(WIDTHS.items(), drawings, strict=True)
    ]  # fmt: skip
    return Figure(chart, framed, hover, numbers)


def curves(chart: Chart, series: Sequence[Series]) -> Figure:
    """Draw curves with a band where several runs are behind one."""
    drawn = [_curves(chart, series, width) for width in WIDTHS.values()]
    every = sorted({v for s in series for v in s.x})
    hover = _hover(series, every, chart)
    told = {"x": [[round(x.at(v), 1) for v in every] for _, x in drawn],
            "at": [f"{chart.x_label} {chart.write_x(v)}" for v in every], "series": hover}  # fmt: skip
    rows = [[chart.write_x(v), *(s["value"][k] or "" for s in hover)] for k, v in enumerate(every)]
    numbers = Table([chart.x_label, *(s.name for s in series)], rows)
    return _figure(chart, [svg for svg, _ in drawn], told, numbers, _ends(series, chart))


def _curves(chart: Chart, series: Sequence[Series], width: int) -> tuple[Markup, Axis]:
    """Return the drawing and its x axis."""
    log = chart.log and all(value > 0 for s in series for value in s.low)
    labels = [_short(s.name, _LONGEST[width]) for s in series] if 1 < len(series) <= _LABELS else []
    right = width - (16 + max(map(len, labels)) * _LETTER if labels else 14)
    x = _along([v for s in series for v in s.x], right, chart)
    values = [v for s in series for v in (*s.low, *s.high)]
    y = _scale(values, HEIGHT - _BOTTOM, _TOP, log=log, zero=chart.zero)
    parts = [*_grid(x, y, chart), *(_mark(x, y, chart.mark) if chart.mark else ())]
    parts += [part for i, s in enumerate(series) for part in _curve(i, s, x, y)]
    heights = _apart([y.at(s.y[-1]) for s in series])
    for i, label in enumerate(labels):
        end = x.at(series[i].x[-1]), y.at(series[i].y[-1])
        parts += _label(i % COLOURS, end, (x.end, heights[i]), label, series[i].name)
    parts += [_upright(class_="cross"), *([_cursor(x)] if chart.cursor else ())]
    return Markup().join(parts), x


def _cursor(x: Axis) -> Markup:
    moved = _upright(), _text("axis", 0, _TOP - 5)
    return _tag("g", *moved, class_="cursor", data_left=x.start, data_right=x.end, data_unit=f"{x.at(1) - x.at(0):.6g}")


def _grid(x: Axis, y: Axis, chart: Chart) -> list[Markup]:
    lines = []
    for t in y.ticks():
        lines.append(_tag("line", class_="grid", x1=x.start, x2=x.end, y1=y.at(t), y2=y.at(t)))
        lines.append(_text("tick", x.start - 7, y.at(t) + 4, chart.write(t).replace(".0 %", " %"), anchor="end"))
    steps = [_text("tick", x.at(t), y.start + 17, number(t)) for t in x.ticks()]
    return [*lines, *steps, _text("axis", (x.start + x.end) / 2, HEIGHT - 4, chart.x_label)]


def _mark(x: Axis, y: Axis, mark: tuple[float, str]) -> list[Markup]:
    at, half = x.at(mark[0]), len(mark[1]) * _LETTER / 2
    middle = min(max(at, x.start + half), x.end - half)
    return [_upright(class_="mark", x1=at, x2=at), _text("axis", middle, y.end - 5, mark[1])]


def _curve(i: int, s: Series, x: Axis, y: Axis) -> list[Markup]:
    def points(values: Sequence[float], xs: Sequence[float]) -> str:
        return " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in zip(xs, values, strict=True))

    colour = f"s{i % COLOURS}"
    outline = points(s.high, s.x) + " " + points(s.low[::-1], s.x[::-1])
    band = [_tag("polygon", class_=f"band {colour}", points=outline)] if s.banded else []
    line = _tag("polyline", class_=f"line {colour} d{i // COLOURS % 3}", points=points(s.y, s.x))
    return [*band, line, _tag("circle", class_=f"dot {colour}", cx=x.at(s.x[-1]), cy=y.at(s.y[-1]), r=3)]


def _label(colour: int, end: tuple[float, float], place: tuple[float, float], text: str, whole: str) -> list[Markup]:
    """Write a curve's name in the margin, off all curves; a thread leads there from where the curve ends before."""
    x, y = place
    name = _text(f"label s{colour}", x + 8, y + 4, text, _tag("title", whole), anchor="start")
    thread = _tag("line", class_=f"leader s{colour}", x1=end[0] + 6, y1=end[1], x2=x + 5, y2=y)
    return [thread, name] if end[0] < x - 1 else [name]


def _short(name: str, longest: int) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _apart(heights: Sequence[float]) -> list[float]:
    """Move labels so that they do not cover each other, and stay above the ticks of the x axis."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for above, below in itertools.pairwise(order):
        placed[below] = max(placed[below], placed[above] + _LEAST)
    limit = HEIGHT - _BOTTOM - 4.0
    for i in reversed(order):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - _LEAST
    return placed


def _hover(series: Sequence[Series], every: Sequence[float], chart: Chart) -> list[dict[str, Any]]:
    """Return what the script needs to show values: for every x, each curve's value in words."""
    rows = []
    for i, s in enumerate(series):
        at = dict(zip(s.x, range(len(s.x)), strict=True))
        found = [at.get(v) for v in every]
        values = [None if k is None else _spread(s, k, chart.write) for k in found]
        rows.append({"name": s.name, "colour": i % COLOURS, "value": values})
    return rows


def _spread(s: Series, k: int, write: Callable[[float], str]) -> str:
    words = write(s.y[k])
    return words if s.low[k] == s.high[k] else f"{words} ({write(s.low[k])} … {write(s.high[k])})"


def _ends(series: Sequence[Series], chart: Chart) -> str:
    """Say in a sentence what the curves come to."""
    return "; ".join(f"{s.name}: {chart.write(s.y[0])} at first, {chart.write(s.y[-1])} at last" for s in series)


def bars(chart: Chart, spent: Sequence[Account]) -> Figure:
    """Draw (name, spent, budget) of every node: a bar, and a line that it must not cross."""
    axes = [_Named(0, len(spent), _LEFT, width - 14) for width in WIDTHS.values()]
    told = {"x": [[round(x.at(i + 0.5), 1) for i in range(len(spent))] for x in axes],
            "at": [f"{chart.x_label} {name}" for name, _, _ in spent], "series": _bar_hover(spent, chart)}  # fmt: skip
    rows = [[name, _or_none(used, chart), "–" if b is None else chart.write(b)] for name, used, b in spent]
    words = "; ".join(_account(*row, chart) for row in spent[:100])
    numbers = Table([chart.x_label, "spent", "budget"], rows)
    return _figure(chart, [_bars(chart, spent, x) for x in axes], told, numbers, words)


def _bars(chart: Chart, spent: Sequence[Account], x: Axis) -> Markup:
    finite = [v for _, used, budget in spent for v in (used, budget) if v is not None]
    y = _scale(finite or [1.0], HEIGHT - _BOTTOM, _TOP, log=False, zero=True)
    drawn = [part for i, account in enumerate(spent) for part in _bar(i, account, x, y, chart)]
    return Markup().join([*_grid(x, y, chart), *drawn, *_names(spent, x), _upright(class_="cross")])


class _Named(Axis):
    """An axis whose places have names instead of numbers."""

    def ticks(self) -> list[float]:
        """Return none."""
        return []


def _bar(i: int, account: Account, x: Axis, y: Axis, chart: Chart) -> Iterator[Markup]:
    _, used, budget = account
    left, pitch = x.at(i), x.at(1) - x.at(0)
    wide = pitch * 0.7 if pitch > 3 else pitch
    if used is not None:
        box = {"x": f"{left + (pitch - wide) / 2:.2f}", "width": f"{wide:.2f}"}
        said = _tag("title", _account(*account, chart))
        yield _tag("rect", said, class_="bar s0", **box, y=y.at(used), height=y.start - y.at(used))
    if budget is not None:
        ends = {"x1": f"{left:.2f}", "x2": f"{left + pitch:.2f}"}
        yield _tag("line", class_="budget", **ends, y1=y.at(budget), y2=y.at(budget))


def _names(spent: Sequence[Account], x: Axis) -> list[Markup]:
    longest = max(len(name) for name, _, _ in spent)
    most = int(x.end - x.start) // max(32, 7 * longest + 8)
    stride = int(_round_step(len(spent) / most)) if len(spent) > most else 1
    low = HEIGHT - _BOTTOM + 17
    return [_text("tick", x.at(i + 0.5), low, spent[i][0]) for i in range(0, len(spent), stride)]


def _account(name: str, used: float | None, budget: float | None, chart: Chart) -> str:
    paid = "" if budget is None else f" of {chart.write(budget)}"
    return f"{chart.x_label} {name}: {_or_none(used, chart)}{paid}"


def _or_none(used: float | None, chart: Chart) -> str:
    return "no finite bound" if used is None else chart.write(used)


def _bar_hover(spent: Sequence[Account], chart: Chart) -> list[dict[str, Any]]:
    used = [_or_none(u, chart) for _, u, _ in spent]
    budgets = [None if b is None else chart.write(b) for _, _, b in spent]
    return [{"name": "spent", "colour": 0, "value": used}, {"name": "budget", "colour": 1, "value": budgets}]
