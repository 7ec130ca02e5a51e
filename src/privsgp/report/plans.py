"""What the planner saw, from plan.json: the bound and the noise against K, and the methods it chose from."""

from __future__ import annotations

from html import escape
from typing import Any

from privsgp.accounting.counting import nominal
from privsgp.planner import settle as planning
from privsgp.report.charts import Chart, curves, number, table
from privsgp.report.comparison import Series


def section(plan: dict[str, Any] | None) -> str:
    """Return the plan's part of the page; nothing where nothing was planned."""
    if plan is None or plan.get("asked") is None:  # plans of older releases do not tell what was given
        return ""
    said = [f"Planned: {planning.words(plan)}.", f"{_steps(plan)} {SCORE}"]
    told = "".join(f"<p>{escape(_sites(line))}</p>" for line in said)
    rows = [[m["method"], number(m["steps"]), *(number(m[key]) for key in _COLUMNS)] for m in plan["methods"]]
    warned = "".join(f"<li>{escape(_sites(line))}</li>" for line in plan["warnings"])
    return (
        f'<section><h2>The plan</h2>{told}<div class="charts">{_drawn(plan)}</div>'
        f"{table(['method', 'steps', *_COLUMNS.values()], rows)}<ul>{warned}</ul></section>"
    )


SCORE = (
    "A rehearsal is the run in miniature on these data; its score is the average model's accuracy on samples it has "
    "not seen, in a regression minus the loss."
)
_COLUMNS = {"step_size": "step size", "sigma": "σ", "noise_in_average": "noise in the average", "score": "score"}


def _sites(line: str) -> str:
    """Call nodes what the rest of the page calls them; the planner speaks to who writes configurations."""
    return line.replace("node", "site")


def _steps(plan: dict[str, Any]) -> str:
    """Say what K* is best for, which is not the bound: docs/planner.md, three answers."""
    if plan["asked"]["steps"] != "auto":
        return ""
    if nominal(plan["accountant"]):
        return "K* is where the bound is smallest (Corollary 1)."
    found = "about as many steps of this size as score best"
    if plan["asked"]["step_size"] == "auto":
        found = "the fewest steps that score like the best with noise close to the least"
    return (
        f"K* is {found} in rehearsal. It does not minimise the bound, a worst case, which is smallest at "
        f"K\u00a0=\u00a0{plan['bound_steps']:,}."
    )


def _drawn(plan: dict[str, Any]) -> str:
    """Draw what plan/picture.py draws."""
    at, steps, star = plan["steps"], plan["curve_steps"], "*" if plan["asked"]["steps"] == "auto" else ""
    mark = (float(at), f"K{star} = {at}") if steps[0] <= at <= steps[-1] else None
    bound = Chart("Bound on E‖∇f‖²", "Theorem 1", "steps K", log=True, log_x=True, mark=mark)
    noise = Chart("Noise in the average model", "per coordinate", "steps K", log_x=True, zero=True, mark=mark)
    return _by_method(bound, plan, "bound_curve") + _by_method(noise, plan, "noise_curve")


def _by_method(chart: Chart, plan: dict[str, Any], key: str) -> str:
    x = [float(k) for k in plan["curve_steps"]]
    return curves(chart, [Series(m["method"], x, m[key], m[key], m[key]) for m in plan["methods"]])
