"""What a run came to, as summary.json has it: what was promised and spent, what the model is worth, what it took."""

from __future__ import annotations

import math
import resource
import time
from typing import TYPE_CHECKING, Any

from privsgp import metrics
from privsgp.files import finite
from privsgp.transport import forms

if TYPE_CHECKING:
    from privsgp.engine.spec import RunSpec
    from privsgp.engine.trainer import Outcome

SUMMARY_VERSION = 1
PUBLIC_TEST = "public: metrics on it are not covered by the guarantee"
PRIVATE_TEST = "private: metrics on it are in private/ alone, and not covered by the guarantee"
_NUMBER = forms.perhaps(forms.real(-math.inf))
# What the first process alone can see of a run, and tells the others when it has ended.
_EVALUATED = (
    "test_accuracy", "mean_node_accuracy", "worst_node_accuracy", "test_loss", "train_loss", "consensus_error",
)  # fmt: skip
_MEASURED = (*_EVALUATED, "virtual_seconds", "seconds", "steps_per_second")
# Numbers of the final model on test data; pictures, lists and the user's own metrics stay in the first one's folder.
_SCORES = dict.fromkeys([*metrics.NAMES, *(f"{metrics.BASELINE}.{name}" for name in metrics.NAMES)], _NUMBER)
SEEN = dict.fromkeys(_MEASURED, _NUMBER) | {
    "scores": forms.keys(_SCORES),
    "virtual_seconds": forms.real(),
    "seconds": forms.real(),
    "peak_memory_bytes": forms.perhaps(forms.whole()),
    "finished": forms.text(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "a time"),
}


def seen(spec: RunSpec, outcome: Outcome) -> dict[str, Any]:
    """Return what is known where all nodes' models were brought together, and when that was."""
    last, finished = outcome.metrics[-1], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    measured: dict[str, Any] = {key: last.get(key) for key in _MEASURED} | _effort(spec, outcome)
    numbers = {key: None if measured[key] is None else float(measured[key]) for key in _MEASURED}
    return measured | numbers | {"scores": _scores(outcome), "finished": finished}


def _scores(outcome: Outcome) -> dict[str, float | None]:
    """Return the numbers among the final model's metrics, and their baselines, with fixed keys."""
    found, guess = outcome.measured, outcome.measured.get(metrics.BASELINE, {})
    return {name: found.get(name) for name in metrics.NAMES} | {
        f"{metrics.BASELINE}.{name}": guess.get(name) for name in metrics.NAMES
    }


def _tested(outcome: Outcome, scores: dict[str, float | None]) -> dict[str, Any]:
    """Return the final model's metrics: all of them where they were computed, elsewhere the numbers that were told."""
    if outcome.measured:
        return outcome.measured
    known = {name: value for name, value in scores.items() if value is not None}
    guess = {name: known[key] for name in metrics.NAMES if (key := f"{metrics.BASELINE}.{name}") in known}
    return {name: known[name] for name in metrics.NAMES if name in known} | ({metrics.BASELINE: guess} if guess else {})


def summary(
    spec: RunSpec,
    outcome: Outcome,
    spent: list[float | None],
    seen: dict[str, Any],
    reported: list[int],
    node: int | None = None,
) -> dict[str, Any]:
    """Return what came out: `seen` by the first process, of the nodes `reported` by others what they told.

    `node` is the one whose trust curve is told where noise is shared; left out: the one that has spent most.
    """
    p, private = spec.protection, spec.algorithm.private
    known = [math.inf if epsilon is None else epsilon for epsilon in spent]
    rests_on = {} if spec.pretraining is None else {"pretraining": spec.pretraining}
    return rests_on | {
        "version": SUMMARY_VERSION,
        "name": spec.name,
        "simulation": spec.simulation,
        "algorithm": spec.algorithm.name,
        "trust": spec.settings.trust,
        "graph": spec.graph.name,
        "nodes": spec.nodes,
        "sites": list(spec.sites) or None,
        "steps": outcome.steps,
        "steps_planned": spec.steps,
        "ended": _ended(spec, outcome),
        "model": spec.final_model.text,
        "started_from": spec.started_from,
        "weights": None if spec.weights is None else list(spec.weights),
        "difference_scale": getattr(p.mechanisms[0], "difference_scale", None),
        "dim": outcome.state.x.shape[1],
        **{key: seen[key] for key in _EVALUATED},
        **_tested(outcome, seen["scores"]),
        "epsilon_spent": spent if private else None,
        "epsilon_budget": list(p.budgets) if private and p.budgets[0] is not None else None,
        "epsilon_nominal": list(p.budgets) if spec.algorithm.private and p.nominal else None,
        "delta": list(p.deltas) if private else None,
        "sigma": [m.sigma for m in p.mechanisms],
        "noise": spec.noise.name,
        "pairwise": shared_noise(spec, known.index(max(known)) if node is None else node),
        "samples": [m.samples for m in p.mechanisms],
        "releases": outcome.releases,
        "reported": reported,
        "relation": p.relation,
        "accountant": p.accountant,
        "test_data": PUBLIC_TEST if spec.share_metrics else PRIVATE_TEST,
        "virtual_seconds": seen["virtual_seconds"],
        "bytes_sent": outcome.bytes_sent,
        "faults": outcome.faults,
        **{key: seen[key] for key in ("finished", "seconds", "steps_per_second", "peak_memory_bytes")},
    }


def shared_noise(spec: RunSpec, node: int) -> dict[str, Any] | None:
    """Return what shared noise is made of and what it asks one to trust: ε by how many nodes are honest.

    The curve is that of a node, for all its releases; None is "no finite bound".
    """
    p = spec.protection
    if p.covariance is None or p.trust_curve is None:
        return None
    honest, most = p.mechanisms[node].honest, spec.steps if p.allowance is None else p.allowance[node]
    told = {"honest": honest, "partners": p.covariance.graph.partners, "node": node}
    curve = [[h, finite(epsilon)] for h, epsilon in p.trust_curve(node, most)]
    return told | p.covariance.to_json(honest) | {"curve": curve}


def _ended(spec: RunSpec, outcome: Outcome) -> str | None:
    """Say why the run ended before its last step; None where it did not."""
    if outcome.steps == spec.steps:
        return None
    again = max(charged - spec.released(i, outcome.steps) for i, charged in enumerate(outcome.releases))
    return (
        f"{again} releases of a node were charged for steps that crashes undid, and its budget pays for no more: "
        "a larger privacy.spare leaves room for steps to be made again"
    )


def _effort(spec: RunSpec, outcome: Outcome) -> dict[str, Any]:
    """Return what the run took; without a seed in whole seconds alone, since the rest tells how much was drawn."""
    if not spec.simulation:
        return {"seconds": round(outcome.seconds, 0), "steps_per_second": None, "peak_memory_bytes": None}
    return {
        "seconds": round(outcome.seconds, 3),
        "steps_per_second": round(outcome.steps / outcome.seconds, 3) if outcome.seconds else None,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
