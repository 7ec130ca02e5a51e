"""SoteriaFL (Li et al. 2022): noised local estimates, compressed against a shift that follows them; a server averages.

    node i    g_i = ĝ_i + N(0, σ_i² I);   v_i = C(g_i − s_i);   s_i ← s_i + γ_s v_i
    server    v = mean_i v_i;   x ← x − γ (s + v);   s ← s + γ_s v

The estimators ĝ_i are in files of their own. Compression comes after the noise: it is post-processing, and so is the
shift, which is made of messages that have left. Their code clips the *mean* of a batch (`privacy.clip_what = "mean"`),
which protects nobody; here that is for repeating their figures and marked "not DP".
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

from privsgp.algorithms.algorithm import Algorithm, Network
from privsgp.algorithms.block import State
from privsgp.algorithms.compressors import compressor

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Drawn

COMPRESSION = ("compressor", "kept", "levels", "shift_rate")


class SoteriaFL(Algorithm):
    """Shifts s_i [m, d] and the server's s [d] start at 0."""

    network: ClassVar[Network] = "server"
    options: ClassVar[tuple[str, ...]] = COMPRESSION

    @abstractmethod
    def estimate(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Return the nodes' ĝ_i [m, d] at x, before noise."""

    def begin(self, z: Tensor) -> None:
        """s_i = s = 0."""
        self.compress = compressor(self.settings, z.shape[1])
        self.shift, self.server_shift = torch.zeros_like(z), torch.zeros_like(z[0])

    def arrays(self) -> dict[str, Tensor]:
        """Return the shifts."""
        return {"shift": self.shift, "server_shift": self.server_shift}

    @property
    def shift_rate(self) -> float:
        """γ_s, unless it is given √((1 + 2ω) / 2(1 + ω)³), as in their code."""
        omega = self.compress.omega
        given = self.settings.shift_rate
        return math.sqrt((1 + 2 * omega) / (2 * (1 + omega) ** 3)) if given is None else given

    def step(self, k: int, s: State) -> State:
        """Take step k."""
        # g_i = ĝ_i + N(0, σ_i² I)
        g = self._clipped(self.estimate(k, s.z, self.block.sample(k)))
        self.block.noise(k, g)
        g = g.to(s.x.dtype)  # now it may be rounded
        # v_i = C(g_i − s_i);  s_i ← s_i + γ_s v_i
        v = self.compress(g.sub_(self.shift), self.block.public("compressor", k))
        self.block.release(k, v)
        self.shift.add_(v, alpha=self.shift_rate)
        # x ← x − γ (s + v);  s ← s + γ_s v, with v = mean_i v_i
        mean = self.block.average(k, v, self.compress.size(v.element_size()))
        x = s.x.sub_(self.server_shift + mean, alpha=self.block.step_size(k))
        self.server_shift.add_(mean, alpha=self.shift_rate)
        return State(x, s.w, s.z.copy_(x))

    def _clipped(self, g: Tensor) -> Tensor:
        """Return ĝ as it is where records were clipped; where the mean is to be, clip_G(ĝ)."""
        if self.settings.clip_what == "record":
            return g
        length = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        return g.mul_((self.settings.clip / length).clamp(max=1))
