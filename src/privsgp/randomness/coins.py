"""Which samples a node takes at a step, and how unequal draws become batches of one public shape.

The amplification that the accountant counts rests on these coins: they come from the same source as the noise, and
what is padded, repeated or split here never depends on the data, only on the coins.
"""

from __future__ import annotations

import itertools
import math
import os
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.randomness.noise import Source


def draw(source: Source, mechanism: Mechanism, node: int, step: int) -> npt.NDArray[np.int64]:
    """Return the samples of one step as sorted, distinct numbers in [0, J).

    Guarantee: each sample is taken by its own coin, with a probability of at most q = `mechanism.rate` and less than
    2⁻⁶⁴ below it.

    Assumes: `source` gives independent coins; what is drawn stays secret (a batch's size too).
    """
    if mechanism.rate >= 1:
        return np.arange(mechanism.samples)
    return np.flatnonzero(source.coins([node], step, mechanism.samples)[0] < _threshold(mechanism.rate))


def draw_all(
    source: Source, mechanisms: Sequence[Mechanism], nodes: Sequence[int], step: int
) -> list[npt.NDArray[np.int64]]:
    """Do `draw` for all nodes of a block; those of one size and rate are gone through at once."""
    J, rate = mechanisms[0].samples, mechanisms[0].rate
    if rate >= 1 or any(m.samples != J or m.rate != rate for m in mechanisms):
        return [draw(source, m, i, step) for i, m in zip(nodes, mechanisms, strict=True)]
    below = source.coins(nodes, step, J) < _threshold(rate)
    row, samples = np.divmod(np.flatnonzero(below), J)
    ends = np.searchsorted(row, np.arange(len(nodes) + 1))
    return [samples[start:end] for start, end in itertools.pairwise(ends)]


def _threshold(rate: float) -> np.uint64:
    """Return ⌊q 2⁶⁴⌋: exact, since 2⁶⁴ moves only the float's exponent, and never above the q that was paid for."""
    return np.uint64(int(rate * 2.0**64))


def capacity(mechanism: Mechanism, nodes: int, *, scattered: bool = False) -> int:
    """Return the public batch size at which a step of so many nodes is expected to cost least, in eights, at most J.

    Every slot costs, drawn or not. If one node of all draws more there is another pass, which costs about twice the
    first: it is seldom, so nothing is recorded or warm for it. If samples are `scattered` over the slots, the size is
    one that a draw exceeds with a probability below 2⁻⁶⁴.
    """
    J, rate = mechanism.samples, min(1.0, mechanism.rate)
    most = min(J, J * rate + 40 * math.sqrt(J * rate) + 512)  # no draw is larger; J may be anybody's
    sizes = np.arange(8 * math.ceil(J * rate / 8), most + 8, 8).clip(max=J)
    if scattered:
        return int(sizes[np.argmax(special.bdtrc(sizes, J, rate) < 2.0**-64)])
    within = special.bdtr(sizes, J, rate) ** nodes
    return int(sizes[np.argmin(sizes * (3 - 2 * within))])


def batches(
    draws: Sequence[npt.NDArray[np.int64]], capacity: int, dummy: int, *, scattered: bool = False
) -> list[npt.NDArray[np.int64]]:
    """Lay the draws of a block's m nodes into as many passes as the longest needs; there is always one.

    A pass is [m, capacity]: sample numbers, and `dummy` where none was drawn.

    Guarantee: every drawn sample is in exactly one pass, in its node's row; a draw above the capacity is never cut.
    Padding points to the row `dummy`, which must hold no sample (privacy.md, "Randomness"). If `scattered`, and if one
    pass has room for all, every placement of a node's samples is equally likely: where the others are does not depend
    on whether one sample was drawn. Else a sample's slot is the number of samples that were drawn before it.

    Assumes: the number of passes may be seen (it shows in a step's time): the engine does not send it.
    """
    lengths = np.array([len(d) for d in draws])
    passes = max(1, -(-int(lengths.max()) // capacity))
    mask = np.arange(passes * capacity) < lengths[:, None]
    index = np.full(mask.shape, dummy, np.int64)
    index[mask] = np.concatenate(draws)
    if scattered:
        order = np.frombuffer(os.urandom(index.nbytes), np.uint64).reshape(index.shape).argsort(axis=1)
        index = np.take_along_axis(index, order, axis=1)
    return [index[:, p * capacity : (p + 1) * capacity] for p in range(passes)]
