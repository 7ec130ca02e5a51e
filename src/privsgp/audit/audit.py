"""The audit: attack a run of the user's own configuration, bound each node's ε from below, or raise the alarm.

Runs with canaries: all neighbours of each node work together, read every message and send back what makes canaries
stand out. Their scores are compared with the certified trade-off curve of one release. The audit also tests what the
count of all releases assumes: noise is independent over steps and nodes, each record is drawn by its own coin at each
step, and no record moves a message too far. The final model is made of these messages, so it shows nothing more.
It uses no private data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.accounting import accountant
from privsgp.accounting.shown import up
from privsgp.algorithms import ALGORITHMS
from privsgp.audit import attack as canary
from privsgp.audit import statistics
from privsgp.audit.attack import Attacked, Canaries
from privsgp.errors import Refused, refuse_below_one
from privsgp.files import finite
from privsgp.runs import build
from privsgp.runs import problem as problems
from privsgp.runs.budgets import declared
from privsgp.runs.resolve import resolve
from privsgp.runs.views import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.audit.statistics import Scores
    from privsgp.engine.spec import RunSpec
    from privsgp.runs.config import Config

    # Shows, under some words, how many of so many steps are done.
    Stage = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]

REPORT_VERSION = 2
STATEMENTS = 6  # about each node: noise, its independence, coins, trade-off, ε from messages, cancellation
LARGER = 1.001  # times the declared largest shift: what rounding can explain
# The secure source rounds its sums to a grid of about σ/16. Noise of our own on what we saw makes that invisible to
# the tests; it is post-processing, and counted in the scores' scale.
BLUR = 1 / 8
PRESENT = 3 / 4  # of the canaries that are lured: an absent one shows noise on every side, so fewer are enough

ASSUMPTIONS = tuple(written("audit.txt"))


@contextlib.contextmanager
def silent(_words: str, _steps: int) -> Iterator[Callable[[int], None]]:
    """Show nothing."""
    yield lambda _done: None


@dataclass(frozen=True)
class _NodeAudit:
    """What was found about one node; `alarms` says in words what contradicts its claim, and is empty if nothing does.

    `epsilon_claimed` is the node's budget, or the certified ε where noise was fixed by hand. `shift` is the farthest
    that a canary moved a message before noise, in units of the largest shift that the mechanism declares.
    """

    node: int
    delta: float
    epsilon_claimed: float
    epsilon_certified: float
    white_box: float
    shift: float
    noise_p: float
    correlation_p: float
    coins_p: float
    trade_off_p: float
    cancellation_p: float
    alarms: tuple[str, ...]


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit."""

    name: str
    algorithm: str
    steps: int
    canaries: int
    observations: int
    confidence: float
    nodes: tuple[_NodeAudit, ...]
    assumptions: tuple[str, ...] = ASSUMPTIONS

    @property
    def alarm(self) -> bool:
        """Whether any node is less private than claimed."""
        return any(node.alarms for node in self.nodes)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON; no finite ε is None."""
        values = dataclasses.asdict(self)
        for node in values["nodes"]:
            node |= {key: finite(value) for key, value in node.items() if isinstance(value, float)}
        return {"format": "privsgp-audit", "version": REPORT_VERSION, "alarm": self.alarm} | values


def audit(
    config: Config,
    data_dir: Path | None = None,
    canaries: int | None = None,
    seed: int = 0,
    confidence: float = 0.9999,
    observations: int = 50_000,
    stage: Stage = silent,
) -> AuditReport:
    """Attack runs of this configuration and say how private its nodes at most are.

    The attack is repeated until it has at least so many `observations` of each node: (canary, step) pairs.

    Guarantee: with probability `confidence` all lower bounds are right and no alarm is false, for all nodes together.
    Assumes: what `AuditReport.assumptions` says. `seed` decides the canaries' coins; noise and sampling come from where
    the configuration's own runs take them.
    """
    refuse_below_one(observations=observations)
    if not 0 < confidence < 1:
        raise Refused(f"confidence = {confidence} is not between 0 and 1", "take a probability, such as 0.9999")
    if not config.private:
        raise Refused(f"algorithm.name = {config.algorithm.name!r} adds no noise", "audit an algorithm that adds noise")
    kind = ALGORITHMS[config.algorithm.name]
    if kind.asynchronous or kind.network not in ("directed", "undirected"):
        raise Refused(
            f"an audit of algorithm.name = {config.algorithm.name!r}, whose nodes do not exchange messages in step",
            "audit 'privsgp' or 'privsgp-vr' with the same [privacy]: they sample, clip and add noise in the same way",
        )
    problem = problems.load_problem(config, data_dir)
    rng = np.random.Generator(np.random.Philox(seed))
    # Only SAGA sends changes of a gradient: two lures in turn keep them large. Elsewhere one steady gradient is worst.
    lures = 2 if declared(config).weighted else 1
    planted = canary.draw(problem, canaries, rng, lures=lures, odds=PRESENT)
    spec = _spec(config, canary.plant(problem, planted, rng))
    runs = max(1, math.ceil(observations / (spec.steps * planted.count)))
    with stage("attacked steps", runs * spec.steps) as done:
        ran = [run for number in range(runs) if (run := _run(spec, planted, number, done)).scores]
    if not ran:
        raise Refused("every audited run diverged at its first step", "take a smaller algorithm.step_size")
    scores = np.concatenate([one.scores for one in ran])  # [steps, n, sides, M]
    scores = (scores + BLUR * rng.standard_normal(scores.shape, dtype=np.float32)) / math.sqrt(1 + BLUR**2)
    alpha = (1 - confidence) / (STATEMENTS * spec.nodes)
    nodes = tuple(
        _judge(spec, i, scores[:, i, 0, present], scores[:, i, :, ~present], inside, alpha)
        for i, (present, inside) in enumerate(zip(planted.present, _inside(spec, ran, rng), strict=True))
    )
    observed = len(scores) * planted.count
    return AuditReport(spec.name, spec.algorithm.name, spec.steps, planted.count, observed, confidence, nodes)


def _spec(config: Config, problem: problems.Problem) -> RunSpec:
    """Return the run as `privsgp train` would make it, on this data."""
    spec = build.build_run(resolve(config, problem))
    for i, mechanism in enumerate(spec.protection.mechanisms):
        if not mechanism.auditable:
            raise Refused(f"the audit does not know {type(mechanism).__name__}", "audit privsgp, privsgp-vr or -sag")
        if not mechanism.sigma:
            raise Refused(f"privacy.sigma = 0 for node {i}: there is no ε to audit", "set privacy.epsilon")
    # Momentum, weights and averages depend on noised directions only, and anyone who knows them can take them
    # back: the audit looks at the directions as they are.
    return dataclasses.replace(spec, momentum=0.0, weights=None)


def _inside(spec: RunSpec, ran: list[Attacked], rng: np.random.Generator) -> list[dict[str, float]]:
    """Return for each node the tests of noise, coins and shifts that the audit read inside the runs."""
    mechanisms, shared = spec.protection.mechanisms, spec.protection.covariance is not None
    # What is left of shared noise at two nodes is correlated within a step, as declared.
    correlation = statistics.correlation_p(np.concatenate([one.noises for one in ran]), same_step=not shared)
    coins = [1.0] * spec.nodes
    if all(m.amplified for m in mechanisms):
        counts = np.sum([one.counts for one in ran], 0)
        of_records = [row[: m.samples] for row, m in zip(counts, mechanisms, strict=True)]
        sizes = np.concatenate([one.sizes for one in ran])
        coins = statistics.coins_p(sizes, of_records, [m.rate for m in mechanisms], rng)
    cancelled = [1.0 if one.collusion is None else one.collusion.cancellation_p() for one in ran]
    shift = np.max([one.shift for one in ran], 0).tolist()
    return [
        {"shift": s, "correlation_p": r, "coins_p": c, "cancellation_p": statistics.bonferroni(*cancelled)}
        for s, r, c in zip(shift, correlation, coins, strict=True)
    ]


def _run(spec: RunSpec, canaries: Canaries, number: int, done: Callable[[int], None]) -> Attacked:
    """Attack one run of several; a seeded one takes another seed each time."""
    spec = spec if spec.seed is None else dataclasses.replace(spec, seed=spec.seed + number)
    attacked = Attacked(spec, canaries)
    attacked.run(lambda step: done(number * spec.steps + step))
    return attacked


def _judge(
    spec: RunSpec, node: int, present: Scores, absent: Scores, inside: dict[str, float], alpha: float
) -> _NodeAudit:
    """Turn the scores of a node's present and absent canaries into a verdict."""
    p, mechanism = spec.protection, spec.protection.mechanisms[node]
    delta, budget = p.deltas[node], p.budgets[node]

    def noisier(factor: float) -> Mechanism:
        return mechanism.with_sigma(mechanism.sigma * factor)

    def epsilon(factor: float) -> float:
        return accountant.epsilon(noisier(factor), spec.steps, delta).epsilon

    # The ε of all releases with the least noise that the messages contradict is a lower bound.
    factor = statistics.least_noise(present, absent, lambda factor: _allowed(noisier(factor)), alpha)
    found = _NodeAudit(
        node=node,
        delta=delta,
        epsilon_claimed=epsilon(1.0) if budget is None else budget,
        epsilon_certified=epsilon(1.0),
        white_box=0.0 if factor is None else epsilon(factor),
        noise_p=statistics.noise_p(absent),
        trade_off_p=statistics.trade_off_p(present, _allowed(mechanism)),
        alarms=(),
        **inside,
    )
    return dataclasses.replace(found, alarms=_alarms(found, alpha))


def _alarms(found: _NodeAudit, alpha: float) -> tuple[str, ...]:
    tests = (
        (found.noise_p, "there is less noise in its messages than declared"),
        (found.correlation_p, "its noise is not independent of the noise of other steps or nodes"),
        (found.coins_p, "it does not draw each record at each step by a coin of its own"),
        (found.trade_off_p, "a message shows more of a present canary than the certified curve allows"),
        (found.cancellation_p, "what nodes share does not cancel in their sum"),
    )
    alarms = [f"{words} (p = {p:.1e})" for p, words in tests if p < alpha]
    if found.shift > LARGER:
        alarms.append(f"before noise, a canary moves a message {found.shift:.3g} times as far as declared")
    if found.white_box > found.epsilon_claimed:
        alarms.append(f"ε is at least {found.white_box:.3g}, and {up(found.epsilon_claimed, 3)} is claimed")
    return tuple(alarms)


@functools.lru_cache(maxsize=256)
def _allowed(mechanism: Mechanism) -> statistics.TradeOff:
    """Return the certified trade-off curve of one release; a second's work for SAGA."""
    return statistics.TradeOff.of(accountant.profile(mechanism, 1))
