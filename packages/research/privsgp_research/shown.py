"""Comparisons and figures in a terminal."""

from __future__ import annotations

from typing import Any

from privsgp.accounting.shown import span_up, up
from privsgp.report.terminal import out, show_lines, show_table
from privsgp.runs.views import LABELS, clocked
from privsgp_research import claims


def show_comparison(comparison: dict[str, Any]) -> None:
    """Print a comparison, as comparison.json holds it, method by method."""
    from privsgp.features.options import pretraining

    found = comparison["rows"]
    clock = any(clocked(_mean(row["virtual_seconds"]), row["steps"]) for row in found)
    extra = [name for name in ("auc", "r2") if any(name in row.get("metrics", {}) for row in found)]
    names = [LABELS[name] for name in extra]
    head = ["method", "accuracy %", *names, "loss", "ε", "step", "steps", "MB", *(["time"] if clock else [])]
    rows = [
        [
            row["algorithm"], _accuracy(row), *(_three(_mean(row.get("metrics", {}).get(name))) for name in extra),
            _three(_mean(row["test_loss"])), "–" if row["epsilon"] is None else up(row["epsilon"], 3),
            _three(row["step_size"]), str(row["steps"]), f"{(row['bytes_sent'] or 0) / 1e6:.1f}",
            *([_three(_mean(row["virtual_seconds"]))] if clock else []),
        ]
        for row in found
    ]  # fmt: skip
    show_table(comparison["config"]["name"], head, rows, words=["method"], wide=True)
    lines = ["time is virtual, in seconds; accuracy is mean ± standard deviation over seeds"] if clock else []
    settings: dict[str, list[str]] = {}
    for row in comparison["rows"]:
        settings.setdefault(f"network {row['graph']}, trust {row['trust']}", []).append(row["algorithm"])
    lines += [f"{words}: {', '.join(methods)}" for words, methods in settings.items()]
    rests_on = pretraining(comparison["config"].get("features", {}).get("name", "none"))
    show_lines([*lines, *([rests_on] if rests_on else []), comparison["note"]])


def show_figure(result: dict[str, Any]) -> None:
    """Print what a figure of the paper came to, as its JSON holds it."""
    out.print(f"{result['name']}, {result['mode']}, {result['scale']}: {result['paper']}", style="bold", soft_wrap=True)
    for verdict, found in claims.stated(result).items():
        out.print(f"  {verdict}: {found}", soft_wrap=True, highlight=False)
    spent = [c["epsilon_certified"] for c in result["curves"]]
    words = "no finite bound for some" if None in spent else f"ε = {span_up(spent)}"
    seeds = "one seed" if result["seeds"] == 1 else f"{result['seeds']} seeds"
    out.print(f"  certified: {words}; {seeds}", soft_wrap=True, highlight=False)


def _accuracy(row: dict[str, Any]) -> str:
    found = row["accuracy"]
    if found is None:
        return "–"
    lost = f", {row['diverged']} diverged" if row["diverged"] else ""
    return f"{100 * found['mean']:.2f} ± {100 * found['sd']:.2f}{lost}"


def _mean(spread: dict[str, Any] | None) -> float | None:
    return None if spread is None else float(spread["mean"])


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
