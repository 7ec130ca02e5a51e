"""A real run with canaries, watched by neighbours who work together and send back what suits them.

The algorithm, its gradients, coins and noise are those of a real run; `drive` takes its steps. Four things are added:
an absent canary is zeroed out, every message is looked at before it leaves, what a node gets back is the adversary's
choice, and the audit reads which records a node draws and what it would send without noise. All neighbours of a node
together can make its average any vector they like, since they know its message and the shares. Push-sum then sends that
vector less its own step; where nodes combine first and adapt then (DP²-SGD), the step follows, and the next gradient is
taken that much beside the lure.

Canaries: records of the auditor's own, among made-up ones, whose trace in a message can be told from all else.

A run to be audited gets data of the same shape and sizes as the real data, but nobody's. The first M records of every
node are canaries. Canary c owns input feature c, which is 0 in every other record: of all the node's records only c has
a gradient in column c of the first layer. Its input there is so large that hardly anything of its clipped gradient lies
elsewhere. In that column a message has noise, and the canary's share if it is present.

If nodes share noise, node i is attacked by the largest coalition: all but h nodes. The coalition reveals the numbers
of every pair that it belongs to. The attacker also gets the *total* noise of the other h − 1 honest nodes. It subtracts
from node i's message the noise that the coalition knows, and the best guess of the rest from the others' noise. By the
theorem, what remains is N(0, σ_eff,i²), independent of all that (docs/proofs/pairwise.md).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.func import functional_call

from privsgp.algorithms import Block, Drawn, Event, Exchange, Randomness, Release, State
from privsgp.audit.statistics import group_sizes
from privsgp.data import Dataset
from privsgp.data.dataset import PersonRows
from privsgp.devices import current
from privsgp.engine.drive import drive
from privsgp.engine.node_randomness import NodeRandomness
from privsgp.engine.spec import RunSpec, refuse_coarser
from privsgp.errors import Refused
from privsgp.gradients import Layout, PerSample, stack
from privsgp.gradients.per_sample import Outer
from privsgp.gradients.persons import Rows, of_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from privsgp.accounting.pairwise import PairwiseCovariance
    from privsgp.randomness.noise import Normals
    from privsgp.runs.problem import Problem


@dataclass(frozen=True, kw_only=True)
class _ZeroedOut(Block):
    """A block in which absent records count as the relation says: gradient and table entry are 0 throughout."""

    present: Tensor  # [m, J + 1]
    taken: Tensor  # [m, J + 1]: the records whose gradients were asked for

    def gradients(self, z: Tensor, drawn: Drawn, prepare: Callable[[PerSample], PerSample] | None = None) -> PerSample:
        """Return the clipped gradients of the drawn samples, 0 for absent ones."""
        nodes = torch.arange(len(self.present), device=z.device)[:, None]
        self.taken[nodes, drawn.rows] |= drawn.mask
        return super().gradients(z, drawn._replace(mask=drawn.mask & self.present[nodes, drawn.rows]), prepare)


NUMBERS = 64  # of each message whose noise is compared with that of other messages
SIDES = 8  # directions looked at per canary: its own, and some across it that show the same noise without the canary


class Attacked(Randomness):
    """A run with canaries, to whose nodes the neighbours send the lures back in turn.

    It hands the run's own randomness to the algorithm, and reads along.
    """

    def __init__(self, spec: RunSpec, canaries: Canaries) -> None:
        self.spec, self.canaries, learning = spec, canaries, spec.learning
        self.randomness = NodeRandomness.of_run(spec)
        self.secret = self.randomness.secret
        self.layout = Layout.of(learning.model)
        self.model = copy.deepcopy(learning.model).to(spec.device, spec.dtype)
        present = torch.ones(learning.inputs.shape[:2], dtype=torch.bool, device=learning.inputs.device)
        present[:, : canaries.count] = torch.from_numpy(canaries.present)
        self._taken = torch.zeros_like(present)
        block = _ZeroedOut(
            mechanisms=spec.mechanisms, data=learning.data, random=self,
            gradient=of_samples(stack(self.model, learning.loss, learning.made_up(), rules=spec.rules), learning.rows),
            step_size=spec.step_size, present=present, taken=self._taken,
        )  # fmt: skip
        self.algorithm = spec.algorithm(block, spec.settings)
        self.state = State.start(self.layout.flatten(self.model), spec.nodes)
        self.lures = canaries.lures(self.state.x[0], self.layout)
        self._lured = [self._canary_gradients(z) for z in self.lures]
        # The value of each message in each canary's column, in units of its σ: [n, sides, M] at each step. Side 0 is
        # the canary's own direction, the others are orthogonal to it; without the canary all are N(0, 1).
        self.scores: list[NDArray[np.float32]] = []
        self.noises: list[NDArray[np.float32]] = []  # [n, NUMBERS] at each step, in units of σ
        self.sizes: list[NDArray[np.int64]] = []  # how many records each node drew, in groups: [n, GROUPS]
        self.counts = np.zeros(self._taken.shape, np.int64)  # how often each record was drawn, [n, J + 1]
        self.shift = np.zeros(spec.nodes)  # how far a canary moved a message at most, 1 being what is declared
        self._before = self._columns(self.state.x).clone()
        self._gradient = self._canary_gradients(self.state.z)
        self._direction = _unit(self._gradient)
        self._coming: Tensor | None = None  # the canaries' gradients where the next step will take them
        self._bare = torch.zeros_like(self._before)  # the canaries' columns of the direction before noise
        self._added = self._bare  # the nodes' noise of the step
        covariance, shared = spec.protection.covariance, spec.protection.mechanisms[0].shared
        self.collusion = None  # what others know of each node's noise; None where they know none of it
        if covariance is not None and shared is not None:
            overheard = listen(self.randomness.node_noise, self._columns)
            self.collusion = _Collusion(covariance, shared.honest, overheard)

    def run(self, done: Callable[[int], None] = lambda _steps: None) -> None:
        """Take all steps."""
        current(self.spec.device)
        refuse_coarser(self.spec)
        self.algorithm.begin(self.state.z)
        for k in range(self.spec.steps):
            self.state = drive(self.algorithm.step(k, self.state), k, self._answer)
            done(k + 1)

    def _answer(self, k: int, event: Event) -> tuple[Tensor, Tensor] | None:
        """Look at every message that is released; nothing is mixed, since the adversary chooses what a node gets."""
        if isinstance(event, Release):
            self._look(k, event.message)
            if self.spec.settings.local_steps > 1:  # the next gradient may be taken at what was released
                self._before, self._coming = self._columns(event.message).clone(), None
        if not isinstance(event, Exchange):
            return None
        lure = k % len(self.lures)
        x = event.w.to(self.lures.dtype)[:, None] * self.lures[lure]
        self._coming, self._before = self._lured[lure], self._columns(x).clone()
        return x, event.w

    def sample(self, k: int) -> list[Drawn]:
        """Choose where to look at this step: along the gradient, or along its change where that is what is sent."""
        coming = self._coming
        if coming is None and k > 0:
            coming = self._canary_gradients(self.state.z)
        if coming is not None:
            change = coming - self._gradient if self.spec.protection.mechanisms[0].weighted else coming
            self._gradient, self._direction = coming, _unit(change)
        self._taken.zero_()  # gradients may have been taken to fill a table
        return self.randomness.sample(k)

    def noise(self, k: int, g: Tensor, node: int | None = None) -> None:
        """Add the noise of step k, of all nodes at once; keep what was there before, and what was added."""
        self._bare = self._columns(g).clone()
        self.randomness.noise(k, g, node)
        self._added = self._columns(g) - self._bare

    def _look(self, k: int, message: Tensor) -> None:
        """Turn each canary's column of y_i^k, the message being `_before` − γ_k y_i^k: its direction comes first."""
        step_size = self.spec.step_size(k)
        if step_size > 0 and message.isfinite().all():  # a message that does not move says nothing
            y = (self._before - self._columns(message)).double() / step_size
            if self.collusion is not None:
                y = y - self.collusion.known(k, self._added).to(y)
            releases = self.spec.protection.mechanisms
            sigma = torch.tensor([m.sigma for m in releases], device=y.device)[:, None, None]
            turned = _turn(y, self._direction)[:, :SIDES] / sigma
            self.scores.append(turned.float().cpu().numpy())
            noise = ((y - self._bare) / sigma).flatten(1)
            self.noises.append(noise[:, :: -(-noise.shape[1] // NUMBERS)].float().cpu().numpy())
            length = torch.linalg.vector_norm(self._bare.double(), dim=1).amax(1).cpu().numpy()
            self.shift = np.maximum(self.shift, length / [m.largest_shift for m in releases])
            taken = self._taken.cpu().numpy()
            self.counts += taken
            self.sizes.append(group_sizes(taken))
        self._taken.zero_()
        self._bare.zero_()

    def _canary_gradients(self, z: Tensor) -> Tensor:
        """Return every canary's clipped gradient in its own column, up to the factor AMPLITUDE: [n, units, M]."""
        n, M = self.canaries.present.shape
        rows = torch.arange(M, device=z.device).expand(n, M)
        drawn = Drawn(rows, torch.ones_like(rows, dtype=torch.bool))
        gradients = Block.gradients(self.algorithm.block, z, drawn)
        first = gradients.pieces[0]
        if not (isinstance(first, Outer | Rows) and first.input_is_data):
            raise Refused(
                "audit cannot plant records: the model's first layer is not linear on the data",
                "audit the same privacy settings with model.name = 'mlp' or 'logistic'",
            )
        delta = first.delta.double()
        return (delta if isinstance(first, Outer) else delta.sum(2)).transpose(1, 2)

    def _columns(self, x: Tensor) -> Tensor:
        return first_layer(x, self.layout)[:, :, : self.canaries.count]


def _unit(v: Tensor) -> Tensor:
    """Return unit vectors along axis 1; any will do where there is no direction."""
    norm: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    fallback = torch.zeros_like(v)
    fallback[:, 0] = 1
    return torch.where(norm > 0, v / norm.clamp(min=1e-300), fallback)


def _turn(y: Tensor, direction: Tensor) -> Tensor:
    """Reflect along axis 1 so that `direction` goes to the first coordinate (Householder); the rest is across it."""
    v = direction.clone()
    v[:, 0] -= 1
    length = v.square().sum(1, keepdim=True)
    return y - v * (2 * (v * y).sum(1, keepdim=True) / length.clamp(min=1e-30))


AMPLITUDE = 1e6  # of a canary's input
SWING = 100.0  # of what a lure makes a canary's first-layer outputs: saturates a softmax, yet is far below AMPLITUDE
MOST = 256  # canaries on a node, unless more are asked for


@dataclass(frozen=True, eq=False)
class Canaries:
    """M canaries on each of n nodes: who is present [n, M], and the unit each lure raises for them, [lures, n, M].

    A *lure* is a model the neighbours send back to make canaries' gradients what the adversary wants. In lure l the
    first layer's outputs for a canary are −SWING but for one unit; −1 stands for no unit at all.
    """

    present: NDArray[np.bool_]
    units: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number M of canaries on a node."""
        return int(self.present.shape[1])

    def lures(self, x0: Tensor, layout: Layout) -> Tensor:
        """Return the models to send back, [lures, n, d]: x⁰ but for the canaries' columns."""
        models = x0.expand(*self.units.shape[:2], -1).clone()
        columns = first_layer(models, layout)[..., : self.count]
        columns.fill_(-SWING / AMPLITUDE)
        lure, node, canary = np.nonzero(self.units >= 0)
        columns[lure, node, self.units[lure, node, canary], canary] = SWING / AMPLITUDE
        return models


def first_layer(x: Tensor, layout: Layout) -> Tensor:
    """View the first layer's weights in X [..., d], [..., units, features]."""
    return layout.views(x)[layout.names[0]]


def draw(
    problem: Problem, canaries: int | None, rng: np.random.Generator, *, lures: int = 1, odds: float = 0.5
) -> Canaries:
    """Toss every canary's coin, present with probability `odds`, and choose its units.

    Models and sizes that have no room for canaries are refused.
    """
    layout = Layout.of(problem.model)
    features, shape = int(np.prod(problem.dataset.x.shape[1:])), layout.shapes[0]
    if len(shape) != 2 or shape[1] != features:
        raise Refused(
            f"an audit of a model whose first parameter has shape {tuple(shape)} for {features} input features",
            "canaries need a linear first layer on the data: audit the same privacy settings with 'mlp' or 'logistic'",
        )
    nodes, room = len(problem.parts), min(features, *problem.samples)
    count = min(MOST, max(1, 3 * room // 4)) if canaries is None else canaries
    if not 1 <= count <= room:
        raise Refused(f"canaries = {count} do not fit", f"take 1 to {room}: each needs its own feature and record")
    if shape[0] > 1:
        units = np.stack([rng.choice(shape[0], 2, replace=False) for _ in range(nodes * count)], -1)
    else:
        units = np.repeat([[0], [-1]], nodes * count, axis=1)
    return Canaries(rng.random((nodes, count)) < odds, units.reshape(2, nodes, count)[:lures])


def plant(problem: Problem, canaries: Canaries, rng: np.random.Generator) -> Problem:
    """Return the problem with made-up data of the same shape and sizes, and the canaries as every node's first records.

    Of the real data only shapes, sizes and the number of classes are used.
    """
    real, M = problem.dataset, canaries.count
    sizes = problem.samples
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    own = np.stack([rows[:M] for rows in parts])
    x = rng.standard_normal((sum(sizes), int(np.prod(real.x.shape[1:]))), dtype=np.float32)
    x[:, :M] = 0
    x[own] = AMPLITUDE * np.eye(M, x.shape[1], dtype=np.float32)
    x = x.reshape(-1, *real.x.shape[1:])
    if real.classes is None:
        y: NDArray[Any] = rng.standard_normal((sum(sizes), *real.y.shape[1:]), dtype=np.float32)
        y[own] = 0
    else:
        y = rng.integers(real.classes, size=sum(sizes))
        y[own] = _wrong(problem, canaries, x[own[0]])
    made = replace(problem, dataset=Dataset("canaries", x, y, None, None, real.classes), parts=parts)
    return made if real.persons is None else _persons(made, real.persons.most, own.ravel(), rng)


def _persons(problem: Problem, most: int, canaries: NDArray[np.int64], rng: np.random.Generator) -> Problem:
    """Repeat each sample: a canary person has as many rows as are allowed, which together use the whole clip."""
    count = len(problem.dataset.x)
    times = rng.integers(1, most + 1, count)
    times[canaries] = most
    rows, ends = np.repeat(np.arange(count), times), np.cumsum(times)
    persons = PersonRows(np.stack([rows, rows], 1).astype(np.uint64), most)
    parts = [np.arange(ends[own[0]] - times[own[0]], ends[own[-1]]) for own in problem.parts]
    return replace(problem, dataset=problem.dataset.taken(rows, persons), parts=parts)


def _wrong(problem: Problem, canaries: Canaries, inputs: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the classes [n, M] that the lures make least likely, so that gradients are large."""
    layout = Layout.of(problem.model)
    lures = canaries.lures(layout.flatten(problem.model), layout).flatten(0, 1)
    x = torch.from_numpy(inputs)
    with torch.no_grad():
        logits = torch.stack([functional_call(problem.model, layout.views(z), (x,)) for z in lures])
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], -1)
    likely = logits.softmax(-1).reshape(*canaries.units.shape, -1).sum(0).numpy()
    least: NDArray[np.int64] = np.argmin(likely, -1)
    return least


ROUNDING = 1.02  # by which the grid may add to the variance of a sum of own noise


class _Overheard:
    """A source of pairs' numbers that lets the attacker read along."""

    def __init__(self, source: Normals, columns: Callable[[Tensor], Tensor]) -> None:
        self.source, self.columns = source, columns
        self.numbers: dict[tuple[int, int], Tensor] = {}  # by pair and step

    def fill_normal(self, out: Tensor, nodes: Sequence[int], step: int) -> None:
        """Fill as the source does, and keep what the canaries' columns are."""
        self.source.fill_normal(out, nodes, step)
        for pair, row in zip(nodes, self.columns(out).double(), strict=True):
            self.numbers[pair, step] = row.clone()


class _Collusion:
    """The attack on one run's shared noise: `honest` nodes are left, each of them attacked in its turn."""

    def __init__(self, covariance: PairwiseCovariance, honest: int, overheard: _Overheard) -> None:
        self.covariance, self.overheard = covariance, overheard
        self._sets = [worst(covariance, i, honest) for i in range(covariance.nodes)]
        self._guesses = [_regression(covariance, H) for H in self._sets]
        self._squares: list[float] = []
        self._count = 0

    def known(self, step: int, added: Tensor) -> Tensor:
        """Return what the attacker takes from each node's message: `added` [n, …] is all nodes' total noise."""
        steps = torch.tensor(self.covariance.steps, dtype=torch.float64)
        scaled = added.double().cpu() * steps[:, None, None]
        self._squares.append(float(scaled.sum(0).square().sum()))
        self._count += scaled[0].numel()
        found = torch.empty_like(scaled)
        for i, (H, beta) in enumerate(zip(self._sets, self._guesses, strict=True)):
            rest = [scaled[j] - self._shared(step, j, H) for j in H[1:]]
            guess = sum((b * one for b, one in zip(beta, rest, strict=True)), torch.zeros_like(scaled[0]))
            found[i] = self._shared(step, i, H) + guess
        for key in [key for key in list(self.overheard.numbers) if key[1] < step]:  # another thread may be adding to it
            del self.overheard.numbers[key]
        return found / steps[:, None, None]

    def cancellation_p(self) -> float:
        """Return a p-value against "the sum of all nodes' noise is their own": pairs that do not cancel add to it."""
        declared = ROUNDING * sum(self.covariance.own)
        return float(stats.chi2.sf(sum(self._squares) / declared, self._count)) if self._count else 1.0

    def _shared(self, step: int, node: int, honest: Sequence[int]) -> Tensor:
        """Return what a node shares with the coalition, as it adds it (times n p)."""
        size = float(np.sqrt(self.covariance.pair))
        total: Tensor | None = None
        for pair in combinations(range(self.covariance.nodes), 2):
            if node in pair and (pair[0] not in honest or pair[1] not in honest):
                number = self.overheard.numbers[pair[0] * self.covariance.nodes + pair[1], step].cpu()
                added = number * (size if pair[0] == node else -size)
                total = added if total is None else total + added
        return torch.zeros(()) if total is None else total


def worst(covariance: PairwiseCovariance, node: int, honest: int) -> list[int]:
    """Return the honest nodes that leave a node the least, itself first: those with the least noise of their own."""
    others = [j for j in range(covariance.nodes) if j != node]
    return [node, *sorted(others, key=lambda j: (covariance.own[j], j))[: honest - 1]]


def _regression(covariance: PairwiseCovariance, honest: Sequence[int]) -> list[float]:
    """Return β: how much of each other honest node's noise is in that of the first."""
    S = covariance.among(honest)
    return [float(b) for b in np.linalg.solve(S[1:, 1:], S[1:, 0])]


def listen(node_noise: object, columns: Callable[[Tensor], Tensor]) -> _Overheard:
    """Have the numbers of a process's pairs told to the attacker; pairs are then drawn one by one, never together."""
    overheard: list[_Overheard] = []
    node_noise.overhear(lambda source: overheard.append(_Overheard(source, columns)) or overheard[0])  # type: ignore[attr-defined, func-returns-value]
    return overheard[0]
