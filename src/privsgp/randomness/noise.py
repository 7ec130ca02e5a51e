"""Sources of noise and sampling coins: repeatable for simulations, secret for everything else.

Both are ChaCha20 read as a random-access table of words: one key for each purpose ("noise", "coins") and one nonce for
each (node, step), so that what a node draws never depends on which process it is in or what else was drawn.
ChaCha20 was also the fastest when measured: 50 rows of 50,890 float32 normals took 7 ms on one core, against 20 ms with
NumPy's SFC64, 22 with PCG64DXSM, 27 with Philox, and 9 with torch (whose CPU seed keeps 32 bits). Secret noise is
computed in float64, on a CPU by way of float32 (`privsgp.randomness.normals`). A GPU draws its own (`on_device`).
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import numpy as np
import torch

from privsgp.accounting.sampler_cost import SIGMAS
from privsgp.devices import device_of, in_threads
from privsgp.errors import Refused
from privsgp.randomness.normals import box_muller, to_cells_

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.randomness.pair_streams import PairStreams
    from privsgp.randomness.pairwise import Ends

    KeyExchange = Callable[[Ends], PairStreams]  # agrees on secrets with nodes elsewhere

    Rows = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]

PURPOSES = ("noise", "coins")

# Columns of a row made at a time: the buffers fit a core's cache. It is part of what `Keyed` promises to repeat.
_PIECE = 1 << 16
_TILE = 1 << 20  # numbers that a thread makes at a time: with fewer, threads wait for Python's lock
_BLOCK_BYTES = 64
_NONCE = struct.Struct("<4I")
_WIDE = 1 << 32
_ZEROS = memoryview(bytes(8 * _PIECE))

_CLAIMS = threading.Lock()  # of all secure sources: one thread at a time says what it will draw

# The grid of noise is about σ/16: it adds less than 0.07 % to the variance.
_GRID_BITS = 4


class Normals(Protocol):
    """Standard normals, drawn by the (node, step) they are for."""

    def fill_normal(self, out: torch.Tensor, nodes: Sequence[int], step: int) -> None:
        """Fill row r of `out` [m, d] with the standard normals of node `nodes[r]`."""


class Streams:
    """Words from ChaCha20 under given keys, and normals made of them on a CPU by Box–Muller."""

    secret = True  # nobody else can draw the same; False means "simulation, not private"

    def __init__(self, keys: dict[str, bytes]) -> None:
        self._keys = keys

    def key(self, purpose: str) -> bytes:
        """Return the key of a purpose, for a kernel that makes the same words elsewhere."""
        return self._keys[purpose]

    def coins(self, nodes: Sequence[int], step: int, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` coins of each node, [m, count], uniform on 0 … 2⁶⁴ − 1."""
        coins = np.empty((len(nodes), count), np.uint64)
        self._read(coins, "coins", nodes, step)
        return coins

    def _read(self, rows: Rows, purpose: str, nodes: Sequence[int], step: int, block: int = 0) -> None:
        """Fill each row with the key stream of its (node, step), from the 64-byte `block` on."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        for row, node in zip(rows, nodes, strict=True):
            refuse_wide(node=node, step=step, block=block + row.nbytes // _BLOCK_BYTES)
            cipher = algorithms.ChaCha20(self._keys[purpose], _NONCE.pack(block, node, step, 0))
            encryptor = Cipher(cipher, mode=None).encryptor()
            target = memoryview(row).cast("B") if len(row) else memoryview(b"")
            for start in range(0, len(target), len(_ZEROS)):
                some = target[start : start + len(_ZEROS)]
                encryptor.update_into(_ZEROS[: len(some)], some)

    def _fill(self, out: npt.NDArray[Any], nodes: Sequence[int], step: int, real: type[np.floating[Any]]) -> None:
        """Fill `out` [m, d] with standard normals, computed in `real`."""
        _each_tile(lambda rows, columns: self._normals(out[rows, columns], nodes[rows], step, columns, real), out.shape)

    def _normals(
        self, out: npt.NDArray[Any], nodes: Sequence[int], step: int, columns: slice, real: type[np.floating[Any]]
    ) -> None:
        """Fill a tile, which has these columns of its rows."""
        half = (out.shape[1] + 1) // 2
        words = np.empty((len(out), 2 * half), np.int32 if real is np.float32 else np.int64)
        self._read(words, "noise", nodes, step, columns.start * words.itemsize // _BLOCK_BYTES)
        box_muller(out, words, real, deep=self.secret)

    def _to_cells(
        self, g: npt.NDArray[np.float64], nodes: Sequence[int], step: int, levels: npt.NDArray[np.float64]
    ) -> None:
        """Add noise to g [m, d] and round it to its grid; `levels` [2, m, 1] are σ and the spacing."""

        def tile(rows: slice, columns: slice) -> None:
            here, first = g[rows, columns], nodes[rows.start]  # its stream has the words of all rows of the tile
            block = len(here) * columns.start * 4 // _BLOCK_BYTES
            behind = 1 + len(here) * (g.shape[1] + 1) * 4 // _BLOCK_BYTES  # lower halves come after all upper ones
            words = np.empty((len(here), here.shape[1] + here.shape[1] % 2), np.int32)
            self._read([words], "noise", [first], step, block)

            def lower(pairs: int) -> npt.NDArray[np.uint32]:
                some = np.empty(2 * pairs, np.uint32)
                self._read([some], "noise", [first], step, behind + block)
                return some

            to_cells_(here, words, lower, *levels[:, rows])

        _each_tile(tile, g.shape)


def _each_tile(work: Callable[[slice, slice], None], shape: tuple[int, ...]) -> None:
    """Do work(rows, columns) for tiles of an array: a part of a long row, or several short ones."""
    m, d = shape
    tall = max(1, _TILE // min(_PIECE, d))
    rows = [slice(top, min(m, top + tall)) for top in range(0, m, tall)]
    columns = [slice(first, min(d, first + _PIECE)) for first in range(0, d, _PIECE)]
    in_threads(lambda tile: work(*tile), [(r, c) for c in columns for r in rows])


class Keyed(Streams):
    """Repeatable noise and coins for simulation, keyed by (seed, purpose, node, step).

    The same key gives the same bits however nodes are grouped. A CPU and a GPU draw different numbers.

    Guarantee: none. Anyone who knows the seed can subtract the noise: artefacts say "simulation, not private".
    """

    secret = False

    def __init__(self, seed: int) -> None:
        super().__init__({p: hashlib.blake2b(f"privsgp 1 {p} {seed}".encode()).digest()[:32] for p in PURPOSES})
        self.seed = seed

    def derived(self, purpose: str) -> Keyed:
        """Return a source of other numbers that follow from the same seed."""
        digest = hashlib.blake2b(f"privsgp 1 {purpose} of {self.seed}".encode()).digest()
        return Keyed(int.from_bytes(digest[:16]))

    def fill_normal(self, out: torch.Tensor, nodes: Sequence[int], step: int) -> None:
        """Fill row r of `out` [m, d] with the standard normals of node `nodes[r]`."""
        _refuse_shape(out, nodes)
        if device_of(out).in_host_memory:
            self._fill(out.numpy(), nodes, step, _real(out))
        else:
            from privsgp.randomness import on_device

            on_device.fill_seeded(out, self.seed, nodes, step)

    def add_(self, g: torch.Tensor, nodes: Sequence[int], step: int, sigma: npt.NDArray[np.float64]) -> None:
        """Add σ times the normals in g's own precision."""
        real, scale = _real(g), sigma.astype(_real(g))

        def tile(rows: slice, columns: slice) -> None:
            here = g.numpy()[rows, columns]
            noise = np.empty(here.shape, real)
            self._normals(noise, nodes[rows], step, columns, real)
            noise *= scale[rows]
            here += noise

        _each_tile(tile, g.shape)


def _real(out: torch.Tensor) -> type[np.floating[Any]]:
    return np.float32 if out.dtype == torch.float32 else np.float64


class Secure(Streams):
    """Secret noise and coins: ChaCha20 under keys from the operating system, which this object shows to nobody.

    Guarantee: without the keys, noise and coins cannot be told from independent ones (ChaCha20 is a pseudo-random
    function). No (key, nonce) is used twice. Every draw has a new key, computed from the last one, fresh bytes of the
    operating system and two clocks. So a machine that is restored from a snapshot of its memory draws other numbers. A
    draw that was made, or passed over by a later step of its node, is refused, and so is any draw in a forked process;
    copying and pickling are refused. Normals are Box–Muller in float64 from 128 bits a pair, tails to 10.2 σ; what that
    and the grid of `add_noise_` cost is in `accounting/sampler_cost.py`.

    Assumes: the operating system's randomness, and a machine whose memory, also the GPU's, others cannot read. Nothing
    is claimed about timing. Floating-point sums leak in their low bits whatever the noise is: release through
    `add_noise_`.
    """

    def __init__(self) -> None:
        super().__init__({p: os.urandom(32) for p in PURPOSES})
        self._chains = {p: os.urandom(32) for p in PURPOSES}
        self._process = os.getpid()
        self._frontier: dict[str, dict[int, int]] = {}  # by purpose and node: the step after the last one drawn

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise Refused("a Secure() cannot be copied or pickled", "make a new Secure(): keys stay in one object's memory")

    def fill_normal(self, out: torch.Tensor, nodes: Sequence[int], step: int) -> None:
        """Fill row r of `out` [m, d] with the standard normals of node `nodes[r]`; each can be drawn once."""
        _refuse_shape(out, nodes)
        nodes, drawn = self.claim("noise", nodes, step)
        if device_of(out).in_host_memory:
            drawn._fill(out.numpy(), nodes, step, np.float64)
        else:
            from privsgp.randomness import on_device

            on_device.fill_secret(out, drawn, nodes, step)

    def add_(self, g: torch.Tensor, nodes: Sequence[int], step: int, sigma: npt.NDArray[np.float64]) -> None:
        """Add σ times the normals in float64 and round to the grid; each can be drawn once. A row with σ = 0 stays."""
        nodes, drawn = self.claim("noise", nodes, step)
        noised = np.flatnonzero(sigma[:, 0])
        levels = np.array([sigma, spacings(sigma[:, 0])[:, None]])[:, noised]
        whole = len(noised) == len(g) and g.dtype == torch.float64
        wide = g.numpy() if whole else g.numpy()[noised].astype(np.float64)
        drawn._to_cells(wide, [nodes[r] for r in noised], step, levels)
        if not whole:
            g.numpy()[noised] = wide

    def coins(self, nodes: Sequence[int], step: int, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` coins of each node; those of one (node, step) can be drawn once."""
        nodes, drawn = self.claim("coins", nodes, step)
        coins = np.empty((len(nodes), count), np.uint64)
        drawn._read([coins], "coins", nodes[:1], step)  # the key is this draw's own: one stream has all words
        return coins

    def claim(self, purpose: str, nodes: Sequence[int], step: int) -> tuple[list[int], Streams]:
        """Return the nodes, as plain numbers, and streams of a new key; refuse what may have been drawn before."""
        claimed, step = [operator.index(i) for i in nodes], operator.index(step)
        with _CLAIMS:
            self._claim(purpose, claimed, step)
            fresh = os.urandom(32) + struct.pack("<2q", time.time_ns(), time.perf_counter_ns())
            # The clocks add nothing that is secret: they make two lives of one memory differ even if urandom repeats.
            state = hashlib.blake2b(fresh, key=self._chains[purpose]).digest()
            self._chains[purpose], self._keys[purpose] = state[:32], state[32:]
            return claimed, Streams({purpose: state[32:]})

    def _claim(self, purpose: str, nodes: Sequence[int], step: int) -> None:
        """Let nobody draw these again; refuse steps up to the last one drawn, and a node that is named twice."""
        if os.getpid() != self._process:
            what = "a Secure() was used in a forked process"
            raise Refused(what, "make a new Secure() there: two copies would agree")
        frontier, claimed = self._frontier.setdefault(purpose, {}), set[int]()
        for node in nodes:
            if step < frontier.get(node, 0) or node in claimed:
                what = f"{purpose} of node {node}, step {step}: already used"
                raise Refused(what, "secret randomness is used once: draw in the order of the steps")
            claimed.add(node)
        frontier.update(dict.fromkeys(nodes, step + 1))


Source = Keyed | Secure  # several threads may draw from one at a time


def add_noise_(g: torch.Tensor, source: Source, nodes: Sequence[int], step: int, *, sigma: Sequence[float]) -> None:
    """Add N(0, σ_r² I) to each row of `g` [m, d] in place (Algorithm 1, line 8).

    Guarantee: with a secret source the sum is formed in float64 and rounded to a grid (`spacing`) before anything else
    sees it. So what leaves is a rounding of the ideal Gaussian mechanism's output, up to what `sampler_cost` counts.
    With a simulated source it is a plain sum in `g`'s own precision.

    Assumes: `g` and `sigma` are what the mechanism says; a row with σ = 0 is returned as it is, unprotected.
    """
    _refuse_shape(g, nodes)
    if device_of(g).in_host_memory:
        source.add_(g, nodes, step, np.array(sigma, np.float64)[:, None])
    else:
        from privsgp.randomness import on_device

        on_device.add_noise_(g, source, nodes, step, sigma)


def spacings(sigma: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the spacing of each row's grid; 0 where there is no noise."""
    return np.array([spacing(s) if s else 0.0 for s in sigma])


def spacing(sigma: float) -> float:
    """Return the spacing of the public grid that noised sums are rounded to: 2^(round(log₂ σ) − 4).

    Why: the floats reachable as g + σN differ from one g to the next (Mironov 2012), and a sampler's own outputs can be
    recognised by their low bits (Holohan and Braghin 2021). A grid cell holds about 2⁴⁸ float64 noise values whatever g
    is: every cell near the mean is reachable from every g, and the bits those attacks read are gone.
    """
    if not SIGMAS[0] <= sigma <= SIGMAS[1]:
        raise Refused(f"sigma = {sigma} is outside 2^-900 … 2^900: float64 has no room", "take a usual clip and budget")
    return 2.0 ** (round(math.log2(sigma)) - _GRID_BITS)


def refuse_wide(**fields: int) -> None:
    """Refuse a number that would not fit into the nonce of a stream."""
    for name, value in fields.items():
        if not 0 <= value < _WIDE:
            raise Refused(f"{name} = {value} names no stream of noise", "take a number from 0 to 2^32 - 1")


def _refuse_shape(out: torch.Tensor, nodes: Sequence[int]) -> None:
    if out.ndim != 2 or len(out) != len(nodes) or out.dtype not in (torch.float32, torch.float64):
        what = f"noise for {len(nodes)} nodes does not fit {tuple(out.shape)} of {out.dtype}"
        raise Refused(what, "pass one row for each node, in float32 or float64")


class NodeNoise(Protocol):
    """Adds the noise of one process's nodes."""

    # The source that a GPU's kernel may draw each node's own N(0, σ_i² I) from; None: `add_` alone adds it.
    kernel_source: Source | None = None

    def begin(self, step: int, like: torch.Tensor) -> None:
        """Draw what the nodes share at a step, for rows shaped like `like`, before `add_` is called for some of them.

        A single call of `add_` for all nodes needs no call of this.
        """
        del step, like

    def add_(self, g: torch.Tensor, nodes: Sequence[int], step: int) -> None:
        """Add the noise of a step to each node's row of g, in place (Algorithm 1, line 8).

        Guarantee: g is then a release of the node's mechanism at that step, as it is counted.

        Assumes: no two different g meet one (node, step).
        """


class Noise(Protocol):
    """Which noise a run adds to its nodes' gradients."""

    name: ClassVar[str]  # in a summary

    def of_nodes(
        self, nodes: range, mechanisms: Sequence[Mechanism], source: Source, exchange: KeyExchange | None = None
    ) -> NodeNoise:
        """Return the noise of a process's nodes, one mechanism each, drawn from `source`.

        `exchange` agrees on secrets with nodes that are elsewhere; None where all are here.
        """


@dataclass(frozen=True)
class IndependentNoise(Noise):
    """N(0, σ_i² I) for each node, independent of everything else."""

    name: ClassVar[str] = "independent"

    def of_nodes(
        self, nodes: range, mechanisms: Sequence[Mechanism], source: Source, exchange: KeyExchange | None = None
    ) -> NodeNoise:
        """Return the noise of a process's nodes: there is nothing to agree on."""
        del exchange
        return _OfNodes(nodes, mechanisms, source)


class _OfNodes(NodeNoise):
    def __init__(self, nodes: range, mechanisms: Sequence[Mechanism], source: Source) -> None:
        self._mechanisms = dict(zip(nodes, mechanisms, strict=True))
        self._source = self.kernel_source = source

    def add_(self, g: torch.Tensor, nodes: Sequence[int], step: int) -> None:
        """Add N(0, σ_i² I) to each node's row of g, in place."""
        sigma = [self._mechanisms[i].at(step).sigma for i in nodes]
        if any(sigma):
            add_noise_(g, self._source, nodes, step, sigma=sigma)
