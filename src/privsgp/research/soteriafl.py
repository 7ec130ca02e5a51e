"""SoteriaFL (Li et al. 2022): noised local estimates, compressed against a shift that follows them; a server averages.

    node i    g_i = ĝ_i + N(0, σ_i² I);   v_i = C(g_i − s_i);   s_i ← s_i + γ_s v_i
    server    v = mean_i v_i;   x ← x − γ (s + v);   s ← s + γ_s v

The compressor C is unbiased: E C(v) = v and E‖C(v) − v‖² = ω ‖v‖². Its coins are public, so that no indices are sent.
The three differ in their estimators ĝ_i. Compression comes after the noise: it is post-processing, and so is the
shift, which is made of messages that have left. Their code clips
the *mean* of a batch, which protects nobody; `experiments/soteriafl.py` repeats their figures with that.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from privsgp.algorithms.algorithm import Algorithm, Network
from privsgp.algorithms.block import Drawn, State, clipped_mean
from privsgp.algorithms.events import Release, Step, ToServer
from privsgp.algorithms.push_sum import PrivSGP
from privsgp.algorithms.saga import PrivSGPVR, SagaOptions, Tabled, saga_estimate
from privsgp.options import Options, Positive, Share, option
from privsgp.research.estimates import difference_mean, full_mean

if TYPE_CHECKING:
    from torch import Tensor


class _CompressionOptions(Options):
    """How messages to the server are compressed, after their noise."""

    kept: Share | None = option(None, "share of the coordinates that a message keeps, drawn at random; default: all")

    def make(self, dim: int) -> _RandomK:
        """Return the compressor for messages of so many numbers."""
        return _RandomK(dim, dim if self.kept is None else max(1, int(self.kept * dim)))


@dataclass(frozen=True)
class _RandomK:
    """(d/k) · v on k coordinates, each set of k equally likely and public; 0 elsewhere. k = d changes nothing."""

    dim: int
    kept: int

    @property
    def omega(self) -> float:
        """E‖C(v) − v‖² = (d/k − 1) ‖v‖²."""
        return self.dim / self.kept - 1

    def __call__(self, v: Tensor, bits: np.random.Philox) -> Tensor:
        """Keep of every row of v [m, d] the k coordinates with the smallest coins."""
        if self.kept == self.dim:
            return v
        coins = bits.random_raw(v.numel()).reshape(v.shape)
        chosen = torch.from_numpy(np.argpartition(coins, self.kept - 1, axis=1)[:, : self.kept]).to(v.device)
        return torch.zeros_like(v).scatter_(1, chosen, v.gather(1, chosen) * (self.dim / self.kept))


class SoteriaFL(Algorithm):
    """Shifts s_i [m, d] and the server's s [d] start at 0."""

    network: ClassVar[Network] = "server"
    Options: ClassVar[type[Options]] = _CompressionOptions

    @abstractmethod
    def estimate(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Return the nodes' ĝ_i [m, d] at x, before noise."""

    def begin(self, z: Tensor) -> None:
        """s_i = s = 0."""
        self.compress = self.settings.own(_CompressionOptions).make(z.shape[1])
        self.shift, self.server_shift = torch.zeros_like(z), torch.zeros_like(z[0])

    def arrays(self) -> dict[str, Tensor]:
        """Return the shifts."""
        return {"shift": self.shift, "server_shift": self.server_shift}

    @property
    def shift_rate(self) -> float:
        """γ_s = √((1 + 2ω) / 2(1 + ω)³), as in their code."""
        omega = self.compress.omega
        return math.sqrt((1 + 2 * omega) / (2 * (1 + omega) ** 3))

    def step(self, k: int, s: State) -> Step:
        """Take step k."""
        # g_i = ĝ_i + N(0, σ_i² I)
        g = self.estimate(k, s.z, self.block.random.sample(k))
        self.block.random.noise(k, g)
        g = g.to(s.x.dtype)  # now it may be rounded
        # v_i = C(g_i − s_i);  s_i ← s_i + γ_s v_i
        v = self.compress(g.sub_(self.shift), self.block.random.public("compressor", k))
        yield Release(v)
        self.shift.add_(v, alpha=self.shift_rate)
        # x ← x − γ (s + v);  s ← s + γ_s v, with v = mean_i v_i
        mean = yield ToServer(v, self.compress.kept * v.element_size())
        x = s.x.sub_(self.server_shift + mean, alpha=self.block.step_size(k))
        self.server_shift.add_(mean, alpha=self.shift_rate)
        return State(x, s.w, s.z.copy_(x))


class SoteriaFLSGD(SoteriaFL):
    """SoteriaFL-SGD: ĝ_i = (1/b) Σ_{j∈B} clip_G(∇f_i(x; j)).

    Before it is compressed, a message is DP-SGD's.
    """

    name: ClassVar[str] = "soteriafl-sgd"
    mechanism = staticmethod(PrivSGP.mechanism)

    def estimate(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        """ĝ_i = (1/b) Σ_{j∈B} clip_G(∇f_i(x; j))."""
        del k
        return clipped_mean(self.block, z, batch)


class _SoteriaSVRGOptions(_CompressionOptions):
    """Compression, and differences against an anchor."""

    difference_clip: Positive | None = option(None, "C: clips each g_j(x) − g_j(w); default: 2G, no clip")
    difference_scale: Share | Literal["auto"] = option(1.0, "θ: the weight of differences; auto as for privsgp-vr")


class SoteriaFLSVRG(SoteriaFL):
    """SoteriaFL-SVRG: differences against an anchor w that a public coin renews (loopless).

        ĝ_i = (θ/b) Σ_{j∈B} clip_C(g_j(x) − g_j(w)) + (1/J) Σ_j g_j(w),   g_j = clip_G(∇f_i(·; j))
        w ← x with probability p, after ĝ_i was taken

    The full local gradient at w stays inside, and only the noised sum leaves. So one release is a mixture of two
    shifts, as SAGA's is, with t_j = g_j(w) and c_j = clip_C(g_j(x) − g_j(w)). |t_j| ≤ G, |c_j| ≤ C, and t_j + c_j is on
    the chord from g_j(w) to g_j(x), inside the ball. w is public and has no coins in it, so this is the easier case of
    what `Saga` counts.

    One anchor for all nodes; p is b/J.
    """

    name: ClassVar[str] = "soteriafl-svrg"
    Options: ClassVar[type[Options]] = _SoteriaSVRGOptions
    mechanism = staticmethod(PrivSGPVR.mechanism)

    def begin(self, z: Tensor) -> None:
        """Set w = x⁰."""
        from privsgp.gradients.product import aligned_rows

        super().begin(z)
        self.point = aligned_rows(z, z.shape[1]).copy_(z)
        self.full = full_mean(self.block, z)

    def arrays(self) -> dict[str, Tensor]:
        """Return w and the full local gradients there too; the latter are for the site alone."""
        return super().arrays() | {"point": self.point, "full": self.full}

    def restored(self, z: Tensor) -> None:
        """Take (1/J) Σ_j g_j(w) anew: it has no noise of its own, and w is public."""
        del z
        self.full.copy_(full_mean(self.block, self.point))

    def estimate(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        """ĝ_i = (θ/b) Σ_{j∈B} clip_C(g_j(x) − g_j(w)) + (1/J) Σ_j g_j(w); then the coin for w."""
        C = self.settings.own(_SoteriaSVRGOptions).difference_clip
        g = difference_mean(self.block, z, self.point, batch, C).add_(self.full)
        if self.renews(k):
            self.point.copy_(z)
            self.full.copy_(full_mean(self.block, z))
        return g

    def renews(self, k: int) -> bool:
        """Toss the public coin of step k."""
        return float(self.block.random.public("anchor", k).random_raw()) * 2.0**-64 < self.block.mechanisms[0].rate


class _SoteriaSAGAOptions(SagaOptions, _CompressionOptions):
    """Compression, and SAGA's table."""

    difference_scale: Share | Literal["auto"] = option(1.0, "θ: the weight of differences; auto as for privsgp-vr")


class SoteriaFLSAGA(Tabled, SoteriaFL):
    """SoteriaFL-SAGA: the table of PrivSGP-VR on every node; the server keeps none.

    Before it is compressed, a message is PrivSGP-VR's.
    """

    name: ClassVar[str] = "soteriafl-saga"
    Options: ClassVar[type[Options]] = _SoteriaSAGAOptions
    mechanism = staticmethod(PrivSGPVR.mechanism)

    def estimate(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        """ĝ_i = (θ/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j."""
        del k
        return saga_estimate(self.block, self.table, z, batch)
