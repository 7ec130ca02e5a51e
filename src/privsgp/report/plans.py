"""What the planner saw, from plan.json: the bound and the noise against K, and the methods it chose from."""

from __future__ import annotations

from html import escape
from typing import Any

from privsgp.report.charts import Chart, curves, number, table
from privsgp.report.comparison import Series


def section(plan: dict[str, Any] | None) -> str:
    """Return the plan's part of the page; nothing where nothing was planned."""
    if plan is None:
        return ""
    said = (
        f"{plan['algorithm']}, {plan['steps']:,} steps of {plan['step_size']:.3g}, batch {plan['batch']:g}: "
        f"{plan['why']}. Estimated on {plan['estimated_on']['words']}."
    )
    rows = [[m["method"], number(m["steps"]), *(number(m[key]) for key in _COLUMNS)] for m in plan["methods"]]
    warned = "".join(f"<li>{escape(line)}</li>" for line in plan["warnings"])
    return (
        f'<section><h2>The plan</h2><p>{escape(said)}</p><div class="charts">{_drawn(plan)}</div>'
        f"{table(['method', 'steps', *_COLUMNS.values()], rows)}<ul>{warned}</ul></section>"
    )


_COLUMNS = {"step_size": "step size", "sigma": "σ", "noise_in_average": "noise in the average", "score": "score"}


def _drawn(plan: dict[str, Any]) -> str:
    """Draw what plan/picture.py draws; plans of older releases have no curves."""
    steps = plan.get("curve_steps")
    if steps is None:
        return ""
    mark = float(plan["steps"]), f"K* = {plan['steps']}"
    bound = Chart("Bound on E‖∇f‖²", "Theorem 1", "steps K", log=True, log_x=True, mark=mark)
    noise = Chart("Noise in the average model", "per coordinate", "steps K", log_x=True, zero=True, mark=mark)
    return _by_method(bound, plan, "bound_curve") + _by_method(noise, plan, "noise_curve")


def _by_method(chart: Chart, plan: dict[str, Any], key: str) -> str:
    x = [float(k) for k in plan["curve_steps"]]
    return curves(chart, [Series(m["method"], x, m[key], m[key], m[key]) for m in plan["methods"]])
