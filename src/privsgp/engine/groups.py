"""Some nodes at a time, on a CPU where all nodes are here: each core takes a group of its own from event to event.

A group is an algorithm with a block of its own, as a process has one under torchrun: the algorithm does not know.
`together` makes one step of the groups' steps. Threads that share out each of torch's operations instead wait for each
other hundreds of times a step, which took a fifth more time. The bits are the same: `gradients.product`.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from privsgp.algorithms import Exchange, PrivSGP, PushSum, Release, State
from privsgp.algorithms.saga import PrivSGPSAG, PrivSGPVR
from privsgp.devices import device_of, in_threads
from privsgp.gradients.persons import Persons
from privsgp.gradients.rounding import CHUNK
from privsgp.gradients.rules.ruled import RuledLayers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privsgp.algorithms import Algorithm, Step
    from privsgp.engine.spec import RunSpec
    from privsgp.gradients import Stacked

_MOST = 32  # nodes of a group: more gain nothing, and take memory
_BY_NODE = {PrivSGP.direction, PrivSGPVR.direction, PrivSGPSAG.direction}  # others may remember something of all nodes


class Group(NamedTuple):
    """An algorithm for some of the nodes."""

    nodes: slice
    algorithm: Algorithm


def together(groups: Sequence[Group], k: int, s: State) -> Step:
    """Take step k of all groups, each in a thread of its own from one event to the next."""
    steps = [group.algorithm.step(k, State(*(t[group.nodes] for t in s))) for group in groups]
    answers: list[Any] = [None] * len(steps)
    while True:
        found = in_threads(_advance, list(zip(steps, answers, strict=True)))
        match found[0]:
            case State():
                return State(*map(joined, zip(*found, strict=True)))
            case Release(_, None):
                yield Release(joined([event.message for event in found]))
                answers = [None] * len(steps)
            case Exchange():
                x, w = yield Exchange(*map(joined, zip(*found, strict=True)))
                answers = [(x[group.nodes], w[group.nodes]) for group in groups]
            case event:
                raise TypeError(f"groups of nodes have no {type(event).__name__} in common")


def _advance(one: tuple[Step, Any]) -> Any:  # noqa: ANN401 - an event, or the new state
    step, answer = one
    try:
        return step.send(answer)
    except StopIteration as end:
        return end.value


def joined(rows: Sequence[Tensor]) -> Tensor:
    """Return the rows of several tensors as one, without a copy where they follow each other in memory."""
    first, starts = rows[0], itertools.accumulate((len(r) for r in rows[:-1]), initial=0)
    size, stride = first.element_size() * first.stride(0), first.stride()
    if all(r.data_ptr() == first.data_ptr() + size * at and r.stride() == stride for r, at in zip(rows, starts)):  # noqa: B905
        return first.as_strided((sum(map(len, rows)), *first.shape[1:]), stride)
    return torch.cat(list(rows))


def split(spec: RunSpec, gradient: Stacked) -> list[slice]:
    """Return the nodes of each group: of about one size, none of a node alone; one group where they are no gain.

    Grouped convolutions are one operation for all nodes, and a model without rules is the user's own code.
    """
    n, everyone = len(spec.here), [slice(0, len(spec.here))]
    count = min(max(torch.get_num_threads(), -(-n // _MOST)), n // 2)
    by_node = spec.algorithm.step is PushSum.step and getattr(spec.algorithm, "direction", None) in _BY_NODE
    by_row = gradient.by_row if isinstance(gradient, Persons) else gradient
    ruled = isinstance(by_row, RuledLayers) and not by_row.rest and not by_row.samples_first
    if count < 2 or torch.get_num_threads() == 1 or not (by_node and ruled and device_of(spec.device).in_host_memory):
        return everyone
    ends = [n * i // count for i in range(count + 1)]
    groups = [slice(*pair) for pair in itertools.pairwise(ends)]
    return groups if all(same_alone(gradient, spec, groups[0].stop, b) for b in {spec.slots, CHUNK}) else everyone


def same_alone(gradient: Stacked, spec: RunSpec, few: int, batch: int) -> bool:
    """Tell whether nodes by themselves have the bits, for batches of made-up samples, that they have among others.

    Between layers may be products of the user's own, attention say, that round by their place among others.
    """
    nodes = len(spec.here)
    rows = () if spec.learning.rows == 1 else (spec.learning.rows,)
    number = torch.arange(nodes * batch * spec.learning.rows).view(nodes, batch, *rows)
    z = torch.randn(nodes, gradient.layout.dim, generator=torch.Generator().manual_seed(0)).mul_(0.1).to(spec.dtype)
    given = [z, *(t[number % len(t)] for t in spec.learning.made_up())]
    some = slice(1, 1 + few)  # a node further than where they are by themselves
    together = gradient(*given)
    (alone,) = in_threads(lambda nodes: gradient(*(t[nodes] for t in given)), [some])
    return torch.equal(together.norm()[some], alone.norm()) and torch.equal(together.sum()[some], alone.sum())


def same_in_slots(gradient: Stacked, spec: RunSpec) -> bool:
    """Tell whether a sample's clipped gradient has the same bits in every slot of a batch, for made-up samples.

    A matrix product may round by where a row begins in memory: MKL's does for rows of 33 numbers.
    """
    nodes, own = len(spec.here), spec.learning
    z = torch.randn(nodes, gradient.layout.dim, generator=torch.Generator().manual_seed(0)).mul_(0.1)
    for trial in range(max(1, 8 // nodes)):  # nodes have samples of their own
        number = (torch.arange(nodes * own.rows).view(nodes, 1, own.rows) + trial).expand(-1, spec.slots, -1)
        number = number if own.rows > 1 else number[..., 0]
        x, y = (t[(number % len(t)).to(t.device)] for t in own.made_up())
        g = gradient(z.to(spec.device, spec.dtype), x, y)
        g.clip_(g.norm().min().item() / 2, torch.ones_like(g.norm(), dtype=torch.bool), exact=True)
        if not all(torch.equal(f, f[:, :1].expand_as(f)) for piece in g.pieces for f in piece.factors().values()):
            return False
    return True


def one_at_a_time(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss that one thread calls at a time: it may be the user's own code, and keep what it is given."""
    lock = threading.Lock()

    def locked(outputs: Tensor, targets: Tensor) -> Tensor:
        with lock:
            return loss(outputs, targets)

    return locked
