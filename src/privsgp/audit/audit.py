"""The audit: attack a run of the user's own configuration, bound each node's ε from below, or raise the alarm.

Two runs with canaries. In the first all neighbours of each node work together, read every message and send back what
makes canaries stand out; their scores are compared with the certified trade-off curve of one release (white box). In
this run the audit also tests what the count of all releases assumes: noise is independent over steps and nodes, each
record is drawn by its own coin at each step, and no record moves a message too far. The second run is left alone, and
only its final model is looked at (black box). Neither touches anybody's data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.accounting import accountant
from privsgp.accounting.shown import up
from privsgp.algorithms import ALGORITHMS
from privsgp.audit import attack as canary
from privsgp.audit import statistics
from privsgp.audit.attack import Attacked, Canaries
from privsgp.engine.averaging import FinalModel
from privsgp.engine.evaluate import average
from privsgp.engine.folder import Folder
from privsgp.errors import Diverged, Refused, refuse_below_one
from privsgp.runs import build
from privsgp.runs import problem as problems
from privsgp.runs import train as training
from privsgp.runs.budgets import declared
from privsgp.runs.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.engine.spec import RunSpec
    from privsgp.engine.trainer import Watcher
    from privsgp.runs.config import Config

    Scores = NDArray[np.floating[Any]]
    # Shows, under some words, how many of so many steps are done.
    Stage = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]

REPORT_VERSION = 1
STATEMENTS = 7  # about each node: noise, its independence, coins, trade-off, white box, black box, cancellation
LARGER = 1.001  # times the declared largest shift: what rounding can explain
# The secure source rounds its sums to a grid of about σ/16. Noise of our own on what we saw makes that invisible to
# the tests; it is post-processing, and counted in the scores' scale.
BLUR = 1 / 8
PRESENT = 3 / 4  # of the canaries that are lured: an absent one shows noise on every side, so fewer are enough

ASSUMPTIONS = (
    "made-up data of the same shape and sizes: nobody's records were used, and no ledger is charged",
    "neighbours differ in one canary, which is zeroed out: gradient and table entry are 0 throughout",
    "white box: all neighbours of a node work together, see all its messages and choose all it receives",
    "the white-box bound is the ε of the declared mechanism with the least noise that the messages contradict",
    "the audit also reads each node's draws, and what the node would send without noise",
    "where nodes share noise: the attacker has the secrets of the worst coalition, and all that any other node added",
    "black box: only the final average model is seen, and only the canaries' losses under it are used",
    "the confidence holds for all statements about all nodes together; no alarm is no proof",
)


@contextlib.contextmanager
def silent(_words: str, _steps: int) -> Iterator[Callable[[int], None]]:
    """Show nothing."""
    yield lambda _done: None


@dataclass(frozen=True)
class NodeAudit:
    """What was found about one node; `alarms` says in words what contradicts its claim, and is empty if nothing does.

    `epsilon_claimed` is the node's budget, or the certified ε where noise was fixed by hand. `shift` is the farthest
    that a canary moved a message before noise, in units of the largest shift that the mechanism declares.
    """

    node: int
    delta: float
    epsilon_claimed: float
    epsilon_certified: float
    white_box: float
    black_box: float
    shift: float
    noise_p: float
    correlation_p: float
    coins_p: float
    trade_off_p: float
    cancellation_p: float
    alarms: tuple[str, ...]


@dataclass(frozen=True)
class AuditReport:
    """What an audit found."""

    name: str
    algorithm: str
    steps: int
    canaries: int
    observations: int
    confidence: float
    nodes: tuple[NodeAudit, ...]
    assumptions: tuple[str, ...] = ASSUMPTIONS

    @property
    def alarm(self) -> bool:
        """Whether any node is less private than claimed."""
        return any(node.alarms for node in self.nodes)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON; no finite ε is None."""
        values = dataclasses.asdict(self)
        nodes = [{key: _plain(value) for key, value in node.items()} for node in values.pop("nodes")]
        header = {"format": "privsgp-audit", "version": REPORT_VERSION, "alarm": self.alarm}
        return header | {key: _plain(value) for key, value in values.items()} | {"nodes": nodes}


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

    The white-box attack is repeated until it has at least so many `observations` of each node: (canary, step) pairs.

    Guarantee: with probability `confidence` all lower bounds are right and no alarm is false, for all nodes together.
    Assumes: what `AuditReport.assumptions` says. `seed` decides the canaries' coins; noise and sampling come from where
    the configuration's own runs take them.
    """
    refuse_below_one(observations=observations)
    if not 0 < confidence < 1:
        raise Refused(f"confidence = {confidence}", "take a probability, such as 0.9999")
    if not config.private:
        raise Refused(f"algorithm.name = {config.algorithm.name!r}", "it promises nothing: audit a private algorithm")
    if ALGORITHMS[config.algorithm.name].asynchronous:
        raise Refused(
            f"an audit of algorithm.name = {config.algorithm.name!r}, whose nodes act one at a time",
            "audit 'privsgp' with the same [privacy]: what a node releases is the same",
        )
    if ALGORITHMS[config.algorithm.name].network not in ("directed", "undirected"):
        raise Refused(
            f"an audit of algorithm.name = {config.algorithm.name!r}",
            "no neighbour can lure its nodes: audit 'privsgp' or 'privsgp-vr', which sample, clip and add noise alike",
        )
    problem = problems.load_problem(config, data_dir)
    rng = np.random.Generator(np.random.Philox(seed))
    # Only SAGA sends changes of a gradient: two lures in turn keep them large. Elsewhere one steady gradient is worst.
    lures = 2 if declared(config).sends_changes else 1
    lured = canary.draw(problem, canaries, rng, lures=lures, odds=PRESENT)
    spec = _spec(config, canary.plant(problem, lured, rng, lured=True))
    runs = max(1, math.ceil(observations / (spec.steps * lured.count)))
    with stage("attacked steps", (runs + 1) * spec.steps) as done:
        ran = _white_box(spec, lured, runs, done)
        scores, inside = _blurred(ran, rng), _inside(spec, ran, rng)
        alone = canary.draw(problem, canaries, rng)
        quiet = _spec(config, canary.plant(problem, alone, rng, lured=False))
        learnt = _black_box(quiet, alone, _counting(done, runs * spec.steps))
    alpha = (1 - confidence) / (STATEMENTS * spec.nodes)
    nodes = []
    for i in range(spec.nodes):
        mine, present = scores[:, i], lured.present[i]
        seen, unseen = mine[:, 0, present], mine[:, :, ~present]
        guesses = statistics.guess(learnt[i], alone.present[i])
        nodes.append(_judge(spec, i, (seen, unseen), guesses, inside[i], alpha))
    seen_of_each = len(scores) * lured.count
    return AuditReport(spec.name, spec.algorithm.name, spec.steps, lured.count, seen_of_each, confidence, tuple(nodes))


def _spec(config: Config, problem: problems.Problem) -> RunSpec:
    """Return the run as `privsgp train` would make it, on this data."""
    spec = build.build_run(resolve(config, problem))
    for i, mechanism in enumerate(spec.protection.mechanisms):
        if not mechanism.auditable:
            raise Refused(f"an audit of {type(mechanism).__name__}", "SampledMean, Saga and Sag can be audited")
        if not mechanism.sigma:
            raise Refused(f"privacy.sigma = 0 for node {i}", "without noise ε is infinite: there is nothing to audit")
    # Momentum, weights, unit steps and averages are made of noised directions, and whoever knows them can take them
    # back: the audit looks at the directions as they are.
    spec = dataclasses.replace(spec, momentum=0.0, weights=None, final_model=FinalModel())
    return dataclasses.replace(spec, evaluate_every=spec.steps, checkpoint_every=spec.steps)


def _white_box(spec: RunSpec, canaries: Canaries, runs: int, done: Callable[[int], None]) -> list[Attacked]:
    """Return runs, one after the other, whose nodes get lures back."""
    again = [spec if spec.seed is None else dataclasses.replace(spec, seed=spec.seed + run) for run in range(runs)]
    ran = [
        _run(one, canaries, feedback=True, watch=_counting(done, number * spec.steps))
        for number, one in enumerate(again)
    ]
    if not (seen := [one for one in ran if one.has_seen]):
        raise Refused("an audit of runs that diverge at their first step", "take a smaller algorithm.step_size")
    return seen


def _blurred(ran: list[Attacked], rng: np.random.Generator) -> Scores:
    """Return the scores [steps, n, sides, M] of all runs."""
    scores = np.concatenate([one.scores for one in ran])
    blurred: Scores = (scores + BLUR * rng.standard_normal(scores.shape, dtype=np.float32)) / math.sqrt(1 + BLUR**2)
    return blurred


def _inside(spec: RunSpec, ran: list[Attacked], rng: np.random.Generator) -> list[dict[str, float]]:
    """Return for each node the tests of noise, coins and shifts that the audit read inside the runs."""
    mechanisms, shared = spec.protection.mechanisms, spec.protection.covariance is not None
    # What is left of shared noise at two nodes is correlated within a step, as declared.
    correlation = statistics.correlation_p(np.concatenate([one.noise for one in ran]), same_step=not shared)
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


def _counting(done: Callable[[int], None], before: int) -> Watcher:
    return lambda step, _row: done(before + step)


def _black_box(spec: RunSpec, canaries: Canaries, watch: Watcher) -> Scores:
    """Return by how much the canaries' losses [n, M] fell from x⁰ to the final average model of a run left alone."""
    attacked = _run(spec, canaries, feedback=False, watch=watch)
    before, after = (attacked.losses(x) for x in (attacked.layout.flatten(attacked.model), average(attacked.state)))
    return np.nan_to_num(before - after)


def _run(spec: RunSpec, canaries: Canaries, *, feedback: bool, watch: Watcher) -> Attacked:
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place))
        with folder.locked():
            attacked = Attacked(spec, folder, canaries, feedback=feedback, watch=watch)
            folder.prepare()
            folder.identify(training.versions(), None)
            with contextlib.suppress(Diverged):  # what was sent until then has been seen
                attacked.run()
            if attacked.stopping.asked:  # in its last step, which ends like any other run
                raise KeyboardInterrupt
            return attacked


def _judge(
    spec: RunSpec,
    node: int,
    scores: tuple[Scores, Scores],
    guesses: tuple[int, int, int],
    inside: dict[str, float],
    alpha: float,
) -> NodeAudit:
    """Turn the scores of a node's present and absent canaries, and guesses about its final model, into a verdict."""
    p, (seen, unseen) = spec.protection, scores
    certified = _epsilon(spec, node, 1.0)
    budget = p.budgets[node]
    found = NodeAudit(
        node=node,
        delta=p.deltas[node],
        epsilon_claimed=certified if budget is None else budget,
        epsilon_certified=certified,
        white_box=_white_bound(spec, node, scores, alpha),
        black_box=statistics.guessed_epsilon(*guesses, delta=p.deltas[node], alpha=alpha),
        noise_p=statistics.noise_p(unseen),
        trade_off_p=statistics.trade_off_p(seen, _allowed(p.mechanisms[node])),
        alarms=(),
        **inside,
    )
    return dataclasses.replace(found, alarms=_alarms(found, alpha))


def _alarms(found: NodeAudit, alpha: float) -> tuple[str, ...]:
    tests = (
        (found.noise_p, "there is less noise in its messages than declared"),
        (found.correlation_p, "its noise is not independent of the noise of other steps or nodes"),
        (found.coins_p, "it does not draw each record at each step by a coin of its own"),
        (found.trade_off_p, "a message shows more of a present canary than the certified curve allows"),
        (found.cancellation_p, "what nodes share does not cancel in their sum"),
    )
    said = [f"{words} (p = {p:.1e})" for p, words in tests if p < alpha]
    if found.shift > LARGER:
        said.append(f"before noise, a canary moves a message {found.shift:.3g} times as far as declared")
    for way, bound in (("messages", found.white_box), ("final model", found.black_box)):
        if bound > found.epsilon_claimed:
            said.append(f"ε is at least {bound:.3g} by its {way}, and {up(found.epsilon_claimed, 3)} is claimed")
    return tuple(said)


def _white_bound(spec: RunSpec, node: int, scores: tuple[Scores, Scores], alpha: float) -> float:
    """Return the ε of the node's K releases with the least noise that its messages contradict, 0 for none."""
    allowed = functools.partial(_allowed_at, spec.protection.mechanisms[node])
    factor = statistics.least_noise(*scores, allowed, alpha)
    return 0.0 if factor is None else _epsilon(spec, node, factor)


def _epsilon(spec: RunSpec, node: int, factor: float) -> float:
    """Return the ε of all steps with so much more noise."""
    mechanism = spec.protection.mechanisms[node]
    more = mechanism.with_sigma(mechanism.sigma * factor)
    return accountant.epsilon(more, spec.steps, spec.protection.deltas[node]).epsilon


def _allowed_at(mechanism: Mechanism, factor: float) -> statistics.TradeOff:
    return _allowed(mechanism.with_sigma(mechanism.sigma * factor))


@functools.lru_cache(maxsize=256)
def _allowed(mechanism: Mechanism) -> statistics.TradeOff:
    """Return the certified trade-off curve of one release; a second's work for SAGA."""
    return statistics.TradeOff.of(accountant.profile(mechanism, 1))


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return None if isinstance(value, float) and not math.isfinite(value) else value
