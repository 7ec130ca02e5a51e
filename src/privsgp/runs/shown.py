"""What a run came to, as rows of words and numbers: a terminal prints them, a notebook makes a table of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privsgp import metrics
from privsgp.accounting.shown import span_up, up

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Rows = list[tuple[str, str]]
_ROUNDING = 1e-6


def summary_rows(s: dict[str, Any], folder: Path) -> Rows:
    """Return label and value of all that a summary tells people."""
    rows = [
        ("algorithm", f"{s['algorithm']} on {s['graph']}, {s['nodes']} nodes, {_steps(s)}, d = {s['dim']:,}"),
        ("ended early", s.get("ended") or "–"),
        ("test accuracy", _accuracy(s)),
        (
            "worst node's model",
            _percent(s["worst_node_accuracy"], f" ({_percent(s['mean_node_accuracy'])} on average)"),
        ),
        *metric_rows(s),
        ("test loss", _test_loss(s)),
        ("training loss", _plain(s["train_loss"])),
        ("consensus error", _plain(s["consensus_error"])),
        ("privacy", _privacy(s)),
        ("sites", _each_site(s)),
        ("noise σ", span(s["sigma"])),
        ("time", _time(s)),
        ("sent", f"{s['bytes_sent'] / 1e6:.1f} MB by all nodes"),
        ("folder", str(folder)),
    ]
    return [row for row in rows if row[1] != "–"]


def _accuracy(s: dict[str, Any]) -> str:
    if s["test_accuracy"] is None and s["test_loss"] is not None and s.get("mae") is None:
        return "unknown: the loss is your own, and no `correct` says which outputs are right"
    guess = (s.get(metrics.BASELINE) or {}).get("accuracy")
    beside = "" if guess is None else f"; {metrics.shown('accuracy', guess)} by always saying the most frequent class"
    return _percent(s["test_accuracy"], f" ({_whose(s)}{beside})")


LABELS = {
    "balanced_accuracy": "balanced accuracy", "f1": "F1", "auc": "AUC", "log_loss": "log loss",
    "calibration_error": "calibration error", "r2": "R²", "mae": "mean absolute error", "rmse": "RMSE",
}  # fmt: skip


def metric_rows(s: dict[str, Any]) -> Rows:
    """Return label and value of the metrics beyond accuracy, each with what a guess without a model gets."""
    guess, own = s.get(metrics.BASELINE) or {}, s.get(metrics.OWN) or {}
    known = [(name, label, s[name]) for name, label in LABELS.items() if s.get(name) is not None]
    rows = [(label, metrics.shown(name, value) + _beside(name, guess.get(name))) for name, label, value in known]
    return rows + [(name, "none" if value is None else f"{value:.4g}") for name, value in own.items()]


def _beside(name: str, guess: float | None) -> str:
    return "" if guess is None or name == "calibration_error" else f" (a guess: {metrics.shown(name, guess)})"


def _steps(s: dict[str, Any]) -> str:
    return f"{s['steps']} steps" if s.get("ended") is None else f"{s['steps']} of {s['steps_planned']} steps"


def _test_loss(s: dict[str, Any]) -> str:
    """Write the loss on test data; nothing where it is the log loss, which stands among the metrics beside a guess."""
    written = _plain(s["test_loss"])
    return "–" if written == metrics.shown("log_loss", s.get("log_loss")) else written


def _time(s: dict[str, Any]) -> str:
    rate = "" if s["steps_per_second"] is None else f", {s['steps_per_second']} steps/s"
    clock = f"; {s['virtual_seconds']:.4g} virtual s" if clocked(s["virtual_seconds"], s["steps"]) else ""
    return f"{s['seconds']:.1f} s{rate}{clock}"


def clocked(virtual_seconds: float | None, steps: int) -> bool:
    """Tell whether a virtual clock says more than the number of steps: left as it is, a step takes a second."""
    return virtual_seconds is not None and virtual_seconds != steps


_AGAINST = {
    "secure aggregation": "\nagainst those who see only sums of all nodes' messages, and not what the others added",
    "curator": "\nagainst all but the one node that holds everybody's records",
}


def _whose(s: dict[str, Any]) -> str:
    whose = "mean of the nodes' own models" if s["graph"] == "alone" and s["nodes"] > 1 else "average model"
    return whose + (f"; {s['pretraining']}" if s.get("pretraining") else "")


def _privacy(s: dict[str, Any]) -> str:
    if s["epsilon_spent"] is None:
        return "none: this method adds no noise"
    spent = "no finite bound" if None in s["epsilon_spent"] else f"ε = {span_up(s['epsilon_spent'])}"
    words = f"{spent}, δ = {span_up(s['delta'])} for each record of a node ({s['relation']}, certified)"
    if s["epsilon_nominal"] is not None:
        words += f"; nominal ε = {span_up(s['epsilon_nominal'])} by the published formula"
    words += _AGAINST.get(s["trust"], "") + _honest(s)
    return words + ("\nsimulation, not private: the config has a seed" if s["simulation"] else "")


def _each_site(s: dict[str, Any]) -> str:
    """Say what each site that has a name has spent."""
    names, spent = s.get("sites"), s["epsilon_spent"]
    if not names or spent is None or len(names) != len(spent):
        return "–"
    return ", ".join(f"{n} ε = {'?' if e is None else up(e)}" for n, e in zip(names, spent, strict=True))


def _honest(s: dict[str, Any]) -> str:
    """Say what shared noise asks one to trust, and what is left of ε where fewer are honest."""
    pairwise = s.get("pairwise")
    if not pairwise:
        return ""
    curve = {h: "no bound" if epsilon is None else up(epsilon) for h, epsilon in pairwise["curve"]}
    alone, all_of_them = curve[1], curve[s["nodes"]]
    return (
        f"\nas long as {pairwise['honest']} of {s['nodes']} nodes are honest, whatever the others do together; "
        f"if all are, ε = {all_of_them}, if none but the node itself is, {alone}"
    )


def site_lines(s: dict[str, Any]) -> list[str]:
    """Describe a site's model, how far others' were from it at the end, and the weight that left with sites."""
    own, n = s["site"], s["nodes"]
    lines = [f"The norm of this site's model is {own['model_norm']:.4g}."] if "model_norm" in own else []
    if distances := [
        f"{one['name']} {one['distance']:.2%}" for one in own["roster"] if one.get("distance") is not None
    ]:
        lines.append(f"The others' last models differ from it by: {', '.join(distances)}.")
    held, left = own.get("weight_of_all"), own.get("messages", {}).get("left", [])
    if held is not None and abs(held - n) > _ROUNDING * n:
        gone = f" {', '.join(left)} left with the rest." if held < n and left else ""
        far = f"{(n - len(left)) / held:.3g} times as far as planned"
        lines.append(
            f"The sites hold the weight {held:.3g} of {n}.{gone} Each step and its noise move the model {far}."
        )
    return lines


def warning_lines(warnings: Sequence[dict[str, Any]]) -> Rows:
    """Return what people should know of members: who, what, and whether its message was refused."""
    done = {True: "This site refused it", False: "This site took it"}
    return [(one["peer"], f"{one['what']}. {done[one['refused']]} ({one['at']}).") for one in warnings]


def span(values: Sequence[float]) -> str:
    """Write one number, or the smallest and the largest."""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} … {high}"


def _percent(value: float | None, after: str = "") -> str:
    return "–" if value is None else f"{value:.2%}{after}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
