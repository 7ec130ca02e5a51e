"""A real run with canaries, watched by neighbours who work together and send back what suits them.

Nothing is rebuilt here: `Attacked` is the engine's own `Trainer` on a real job. It adds four things: an absent canary
is zeroed out, every message is looked at before it leaves, what a node gets back may be the adversary's choice, and the
audit reads which records a node draws and what it would send without noise. All neighbours of a node together can make
its average any vector they like, since they know its message and the shares. Push-sum then sends that vector less its
own step; where nodes combine first and adapt then (DP²-SGD), the step follows, and the next gradient is taken that much
beside the lure.

Canaries: records of the auditor's own, among made-up ones, whose trace in a message can be told from all else.

A run to be audited gets data of the same shape and sizes as the real data, but nobody's. The first M records of every
node are canaries. Canary c owns input feature c, which is 0 in every other record: of all the node's records only c has
a gradient in column c of the first layer. Its input there is so large that hardly anything of its clipped gradient lies
elsewhere. What a message shows in that column is noise, and the canary's share if it is present.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from privsgp.algorithms import Block, Drawn, Exchange, Randomness, Release
from privsgp.algorithms.block import as_it_is
from privsgp.audit.collusion import Collusion, listen
from privsgp.audit.statistics import group_sizes
from privsgp.data import Dataset
from privsgp.engine.drive import RunDriver
from privsgp.engine.trainer import Trainer
from privsgp.errors import Refused
from privsgp.gradients import Layout, PerSample
from privsgp.gradients.per_sample import Outer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from privsgp.algorithms import Event, State, Step
    from privsgp.engine.folder import Folder
    from privsgp.engine.node_randomness import NodeRandomness
    from privsgp.engine.spec import RunSpec
    from privsgp.engine.trainer import Watcher
    from privsgp.gradients import Stacked
    from privsgp.runs.problem import Problem


@dataclass(frozen=True, kw_only=True)
class ZeroedOut(Block):
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


class Attacked(Trainer):
    """A run with canaries, to whose nodes the neighbours send the lures back in turn."""

    def __init__(self, spec: RunSpec, folder: Folder, canaries: Canaries, watch: Watcher | None = None) -> None:
        self.canaries = canaries
        super().__init__(spec, folder, watch)
        self.lures = canaries.lures(self.state.x[0], self.layout)
        self._lured = [self._canary_gradients(z) for z in self.lures]
        # What each message shows in each canary's column, in units of its σ: [n, sides, M] at each step. Side 0 is the
        # canary's own direction, the others are orthogonal to it; without the canary all are N(0, 1).
        self.scores: list[NDArray[np.float32]] = []
        self.noise: list[NDArray[np.float32]] = []  # [n, NUMBERS] at each step, in units of σ
        self.sizes: list[NDArray[np.int64]] = []  # how many records each node drew, in groups: [n, GROUPS]
        self.counts = np.zeros(self._taken.shape, np.int64)  # how often each record was drawn, [n, J + 1]
        self.shift = np.zeros(spec.nodes)  # how far a canary moved a message at most, 1 being what is declared
        self._before = self._columns(self.state.x).clone()
        self._gradient = self._canary_gradients(self.state.z)
        self._direction = _unit(self._gradient)
        self._coming: Tensor | None = None  # the canaries' gradients where the next step will take them
        self._bare = torch.zeros_like(self._before)  # the canaries' columns of the direction before noise
        self._added: Tensor | None = None  # the nodes' noise of the step, where they share it
        self.collusion = self._collusion()

    def _split(self, gradient: Stacked) -> list[slice]:
        """Let all nodes go at once: the audit looks at what was added to all of them together."""
        del gradient
        return [slice(0, len(self.spec.here))]

    def _block(self, spec: RunSpec, gradient: Stacked, randomness: NodeRandomness) -> Block:
        block = super()._block(spec, gradient, randomness)
        present = torch.ones(block.inputs.shape[:2], dtype=torch.bool, device=block.inputs.device)
        present[:, : self.canaries.count] = torch.from_numpy(self.canaries.present)
        values = {field.name: getattr(block, field.name) for field in fields(block)}
        values |= {"random": _WatchedRandomness(self), "recorded": as_it_is}
        self._taken = torch.zeros_like(present)
        return ZeroedOut(**values, present=present, taken=self._taken)

    def _stepper(self) -> Callable[[int, State], Step]:
        """Let the algorithm itself take the steps: what a GPU does in one kernel has no messages to look at."""
        return self.algorithm.step

    def _driver(self, sent: int = 0) -> RunDriver:
        return _AttackDriver(self, sent)

    def sample(self, k: int) -> list[Drawn]:
        """Choose where to look at this step: along the gradient, or along its change where that is what is sent."""
        if (coming := self._coming) is not None:
            change = coming - self._gradient if self.spec.protection.mechanisms[0].weighted else coming
            self._gradient, self._direction = coming, _unit(change)
        self._taken.zero_()  # gradients may have been taken to fill a table
        return self.randomness.sample(k)

    def _collusion(self) -> Collusion | None:
        """Return what others know of each node's noise; None where they know none of it."""
        covariance, shared = self.spec.protection.covariance, self.spec.protection.mechanisms[0].shared
        if covariance is None or shared is None:
            return None
        told = listen(self.randomness.node_noise, self._columns)
        return Collusion(covariance, shared.honest, told)

    def add_noise(self, k: int, g: Tensor) -> None:
        """Add the noise of step k, as the run does; keep what was there before, and noise that others know of."""
        self._bare = self._columns(g).clone()
        self.randomness.noise(k, g)
        self._added = None if self.collusion is None else self._columns(g) - self._bare

    def sent_back(self, k: int, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the nodes get back at step k: a lure."""
        lure = k % len(self.lures)
        x = w.to(self.lures.dtype)[:, None] * self.lures[lure]
        self._coming = self._lured[lure]
        self._before = self._columns(x).clone()
        return x, w

    def look(self, k: int, message: Tensor) -> None:
        """Turn each canary's column of y_i^k, the message being `_before` − γ_k y_i^k: its direction comes first."""
        step_size = self.spec.step_size(k)
        if step_size > 0:  # a message that does not move says nothing
            y = (self._before - self._columns(message)).double() / step_size
            if self.collusion is not None and self._added is not None:
                y = y - self.collusion.known(k, self._added).to(y)
            releases = self.spec.protection.mechanisms
            sigma = torch.tensor([m.sigma for m in releases], device=y.device)[:, None, None]
            turned = _turn(y, self._direction)[:, :SIDES] / sigma
            self.scores.append(turned.float().cpu().numpy())
            noise = ((y - self._bare) / sigma).flatten(1)
            self.noise.append(noise[:, :: -(-noise.shape[1] // NUMBERS)].float().cpu().numpy())
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
        if not (isinstance(first, Outer) and first.input_is_data):
            raise Refused(
                "an audit of a model whose first layer is not linear on the data",
                "audit the same privacy settings with model.name = 'mlp' or 'logistic'",
            )
        return first.delta.double().transpose(1, 2)

    def _columns(self, x: Tensor) -> Tensor:
        return first_layer(x, self.layout)[:, :, : self.canaries.count]


class _AttackDriver(RunDriver):
    """Does what the run does, looks at every message that is released, and sends back what the adversary chooses."""

    def __init__(self, attacked: Attacked, sent: int) -> None:
        super().__init__(attacked.transport, attacked.budget_guard, sent)
        self.attacked = attacked

    def __call__(self, k: int, event: Event) -> Any:  # noqa: ANN401
        """Answer an event of step k; nothing is mixed, since a node gets back what the adversary chooses."""
        if isinstance(event, Exchange):
            return self.attacked.sent_back(k, event.w)
        super().__call__(k, event)
        if isinstance(event, Release):
            self.attacked.look(k, event.message)
        return None


class _WatchedRandomness(Randomness):
    """Draws what the run draws; the audit looks on."""

    def __init__(self, attacked: Attacked) -> None:
        self.attacked, self.secret = attacked, attacked.randomness.secret

    def sample(self, k: int) -> list[Drawn]:
        """Return the samples of step k."""
        return self.attacked.sample(k)

    def noise(self, k: int, g: Tensor, node: int | None = None) -> None:
        """Add the noise of step k, of all nodes at once."""
        del node
        self.attacked.add_noise(k, g)


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
    nodes, room = len(problem.parts), min(features, *(len(rows) for rows in problem.parts))
    count = min(MOST, max(1, 3 * room // 4)) if canaries is None else canaries
    if not 1 <= count <= room:
        raise Refused(f"canaries = {count}", f"take 1 to {room}: each needs an input feature and a record of its own")
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
    sizes = [len(rows) for rows in problem.parts]
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
    return replace(problem, dataset=Dataset("canaries", x, y, None, None, real.classes), parts=parts)


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
