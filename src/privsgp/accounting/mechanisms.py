"""What one step of a node reveals, as small frozen values.

An algorithm declares one of these beside its update. The same object tells the sampler its rate, the clip its radius
and the noise its σ, *and* is what the accountant counts: the code that adds noise and the code that counts it cannot
drift apart. An accountant that does not know a mechanism refuses it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from privsgp.errors import Refused

Sampling = Literal["poisson", "fixed"]
Relation = Literal["zero-out", "replace-one"]
Accountant = Literal["certified", "published"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)

_SHARED = ("honest", "partners", "least_own")


def nominal(kind: str) -> bool:
    """Tell whether the ε that an accountant turns into noise is a paper's: no guarantee, and shown as none."""
    return kind == "published"


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One release of one node: a mean of clipped per-sample gradients plus N(0, sigma² I).

    `sigma` is the standard deviation per coordinate added to the *averaged* gradient; `clip` is the radius G of one
    sample's gradient; `batch` the public constant b the sum is divided by; `samples` the node's public J. `kappa` is
    the relative slack of the arithmetic: accounting uses `clip * (1 + kappa)` (privacy.md, "Clipping"). `coordinates`
    is the length d of a message, whose noise is computed (docs/privacy.md, "The sampler"); 0 takes the noise as ideal.
    Where nodes share noise, `sigma` is what is left of it before a coalition of all but `honest` nodes, and `partners`
    how many a node shares it with; `least_own` is the least noise that any node has of its own (0: not known yet).
    With `honest = 0` all of it is the node's own.

    What others need to know of a mechanism they ask it; nobody outside the accounting asks which it is.
    """

    auditable: ClassVar[bool] = False  # whether `studies.audit` knows the worst that canaries can do to it
    has_table: ClassVar[bool] = False  # whether a mean of all J entries is part of every release, and moved at each
    sends_changes: ClassVar[bool] = False  # whether a drawn sample adds the change of its gradient

    sigma: float
    clip: float
    batch: float
    samples: int
    sampling: Sampling = "poisson"
    kappa: float = 0.0
    coordinates: int = 0
    honest: int = 0
    partners: int = 0
    least_own: float = 0.0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise Refused(f"samples = {self.samples}", "a node needs at least one sample")
        if not 0 < self.batch <= self.samples:
            raise Refused(f"batch = {self.batch:g} with samples = {self.samples}", "take 0 < batch <= samples")
        if not (self.clip > 0 and not math.isnan(self.clip)):
            raise Refused(f"clip = {self.clip}", "the clip is a norm: take a number above 0")
        if not 0 <= self.sigma < math.inf:
            raise Refused(f"sigma = {self.sigma}", "take a finite standard deviation, 0 for no noise")
        if not 0 <= self.kappa < 1:
            raise Refused(f"kappa = {self.kappa}", "the slack of the arithmetic lies in [0, 1)")
        if self.coordinates < 0:
            raise Refused(f"coordinates = {self.coordinates}", "a message has at least one, 0 for ideal noise")
        if self.sampling not in ("poisson", "fixed"):
            raise Refused(f"sampling = {self.sampling!r}", "take 'poisson' or 'fixed'")
        if self.sampling == "fixed" and self.batch != int(self.batch):
            raise Refused(f"batch = {self.batch:g} with fixed sampling", "a fixed-size batch is a whole number")
        self._refuse_odd_sharing()

    def _refuse_odd_sharing(self) -> None:
        if (self.honest, self.partners) != (0, 0) and (self.honest < 1 or self.partners < 1):
            raise Refused(f"honest = {self.honest}, partners = {self.partners}", "take at least 1 each, or 0 for none")
        if not 0 <= self.least_own < math.inf:
            raise Refused(f"least_own = {self.least_own}", "take a finite standard deviation")

    @property
    def rate(self) -> float:
        """The paper's sampling probability q = b / J."""
        return self.batch / self.samples

    @property
    def radius(self) -> float:
        """The norm a clipped gradient surely does not exceed: G (1 + κ)."""
        return self.clip * (1 + self.kappa)

    @property
    def amplified(self) -> bool:
        """Whether the guarantee needs secret coins, one per sample and step, each with probability q."""
        return self.sampling == "poisson"

    @property
    def largest_shift(self) -> float:
        """How far one sample moves a release at most, before noise."""
        return self.radius / self.batch

    @property
    def largest_batch(self) -> float:
        """The expected samples of the release that takes most of them."""
        return self.batch

    @property
    def entry_clip(self) -> float | None:
        """What clips the moves of a table's entries; None where nothing does."""
        return None

    @property
    def seen_together(self) -> int:
        """How many nodes' messages are seen as one sum only; 1: every message is seen."""
        return 1

    @property
    def weighted(self) -> Saga | None:
        """The mechanism as one whose differences have a weight θ; None where they have none."""
        return None

    @property
    def redo_limit(self) -> int | None:
        """How many of the counted releases may be steps made again after a crash; None: any, for all cost alike."""
        return None

    def is_anchor(self, step: int) -> bool:
        """Tell whether the release of this step is an anchor."""
        del step
        return False

    def at(self, step: int) -> Mechanism:
        """Return what is released at one step, where not all are alike: its rate is drawn with, its noise added."""
        del step
        return self

    def with_sigma(self, sigma: float) -> Mechanism:
        """Return the same release with other noise."""
        return dataclasses.replace(self, sigma=sigma)

    def describe(self) -> dict[str, Any]:
        """Return all that is counted, as plain values for ledgers and JSON (an infinite clip is None)."""
        left_out = () if self.honest else _SHARED  # ledgers of noise that is not shared are as they were
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in left_out}
        return {"mechanism": type(self).__name__} | {
            k: None if isinstance(v, float) and math.isinf(v) else v for k, v in values.items()
        }


@dataclass(frozen=True, kw_only=True)
class Unprotected(Mechanism):
    """A release without noise (SGP): nothing is guaranteed, ε is infinite."""

    sigma: float = 0.0
    clip: float = math.inf


@dataclass(frozen=True, kw_only=True)
class SampledMean(Mechanism):
    """(1/b) Σ_{j∈B} clip(g_j) + N(0, σ²): the subsampled Gaussian of DP-SGD and PrivSGP."""

    auditable: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Saga(Mechanism):
    """(θ/b) Σ_{j∈B} clip(g_j − t_j, C) + (1/J) Σ_j t_j + N(0, σ²): PrivSGP-VR.

    `difference_clip` is C; `None` is C = 2G (no further clip). `difference_scale` is θ; with both left out this is the
    paper's estimator, and so is every ledger written before there was a θ.
    """

    auditable: ClassVar[bool] = True
    has_table: ClassVar[bool] = True
    sends_changes: ClassVar[bool] = True

    difference_clip: float | None = None
    difference_scale: float = 1.0

    @property
    def weighted(self) -> Saga:
        """Itself."""
        return self

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.difference_clip is not None and not 0 < self.difference_clip < math.inf:
            raise Refused(f"difference_clip = {self.difference_clip}", "take a norm above 0, or leave it out")
        if not 0 < self.difference_scale <= 1:
            raise Refused(f"difference_scale = {self.difference_scale}", "take a weight in (0, 1]; 1 is the paper's")

    @property
    def entry_clip(self) -> float | None:
        """C."""
        return self.difference_clip

    @property
    def largest_shift(self) -> float:
        """|t/J + θc/b| with |t| ≤ G, |t + c| ≤ G and |c| ≤ C: largest where t + c and c are parallel."""
        weight = max(0.0, self.difference_scale / self.batch - 1 / self.samples)
        reach = min(self.difference_clip or math.inf, 2 * self.clip)
        return (self.clip / self.samples + reach * weight) * (1 + self.kappa)


@dataclass(frozen=True, kw_only=True)
class Sag(Mechanism):
    """(1/J) Σ_j t_j + N(0, σ²) with the table already updated: PrivSGP-SAG."""

    auditable: ClassVar[bool] = True
    has_table: ClassVar[bool] = True

    @property
    def amplified(self) -> bool:
        """False: a sample is part of every release."""
        return False

    @property
    def largest_shift(self) -> float:
        """G (1 + κ) / J."""
        return self.radius / self.samples


@dataclass(frozen=True, kw_only=True)
class Anchored(Mechanism):
    """Anchors and differences in turn: SVRG, SPIDER and SRM.

    The first release and every `period`-th after it (`None`: only the first) is an anchor, the mean of clipped
    gradients over `anchor_batch` samples (`None`: all of them) with noise `anchor_noise · sigma`. Every other one is
    (1/b) Σ_{j∈B} [α g_j(z) + (1 − α) clip(g_j(z) − g_j(z'), C)] + N(0, σ²) against a point z' that is public, with
    C = `difference_clip` (`None`: 2G, no further clip) and α = `alpha`, 0 but for SRM. What has been released is all
    the state there is, so releases are counted one by one.

    `aggregated` nodes' messages, each with this noise, are seen as one sum only (1: every message is seen). Up to
    `spare` releases may be steps made again after a crash; since nobody knows which, each of these is counted both as
    an anchor and as a difference.
    """

    period: int | None = None
    difference_clip: float | None = None
    anchor_batch: float | None = None
    anchor_noise: float = 1.0
    alpha: float = 0.0
    aggregated: int = 1
    spare: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period is not None and self.period < 1:
            raise Refused(f"period = {self.period}", "take at least 1, or leave it out for a single anchor")
        if self.difference_clip is not None and not 0 < self.difference_clip < math.inf:
            raise Refused(f"difference_clip = {self.difference_clip}", "take a norm above 0, or leave it out")
        if self.anchor_batch is not None and not 0 < self.anchor_batch <= self.samples:
            raise Refused(
                f"anchor_batch = {self.anchor_batch:g} with samples = {self.samples}",
                "take 0 < anchor_batch <= samples",
            )
        if not 0 < self.anchor_noise < math.inf:
            raise Refused(f"anchor_noise = {self.anchor_noise}", "take a finite factor above 0")
        if not 0 <= self.alpha <= 1:
            raise Refused(f"alpha = {self.alpha}", "the share of the plain gradient lies in [0, 1]")
        if self.aggregated < 1 or self.spare < 0:
            raise Refused(
                f"aggregated = {self.aggregated}, spare = {self.spare}", "take at least 1 node and 0 releases"
            )

    @property
    def anchor(self) -> SampledMean:
        """An anchor, as the release it is."""
        batch = self.samples if self.anchor_batch is None else self.anchor_batch
        return self._mean(self.sigma * self.anchor_noise, self.clip, batch)

    @property
    def difference(self) -> SampledMean:
        """A difference, as the release it is: α G + (1 − α) C bounds what a sample adds to the sum."""
        reach = min(self.difference_clip or math.inf, 2 * self.clip)
        return self._mean(self.sigma, self.alpha * self.clip + (1 - self.alpha) * reach, self.batch)

    @property
    def largest_batch(self) -> float:
        """An anchor's, or a difference's."""
        return max(self.batch, self.anchor.batch)

    @property
    def seen_together(self) -> int:
        """`aggregated`."""
        return self.aggregated

    @property
    def redo_limit(self) -> int | None:
        """Anchors and differences cost differently: only so many were counted as both."""
        return self.spare

    def is_anchor(self, step: int) -> bool:
        """Tell whether the release of this step is an anchor."""
        return step == 0 if self.period is None else step % self.period == 0

    def at(self, step: int) -> SampledMean:
        """Return the anchor or the difference of this step."""
        return self.anchor if self.is_anchor(step) else self.difference

    def anchors(self, steps: int) -> int:
        """Return how many of the first `steps` releases are anchors."""
        return min(steps, 1) if self.period is None else -(-steps // self.period)

    def _mean(self, sigma: float, clip: float, batch: float) -> SampledMean:
        return SampledMean(
            sigma=sigma, clip=clip, batch=batch, samples=self.samples, sampling=self.sampling, kappa=self.kappa
        )


_KINDS = (Unprotected, SampledMean, Saga, Sag, Anchored)


def described(values: dict[str, Any]) -> Mechanism:
    """Return the mechanism that `describe` wrote down.

    Release 1.0.0rc1 could change clip and noise by a schedule. `clip` and `sigma` are then the largest clip and the
    least σ of any step, so the ε computed here is an upper bound.
    """
    kinds: dict[str, type[Mechanism]] = {k.__name__: k for k in _KINDS}
    fields = {k: v for k, v in values.items() if k not in ("mechanism", "schedule")}
    kind = kinds.get(str(values.get("mechanism")))
    if kind is None:
        raise Refused(f"mechanism = {values.get('mechanism')!r}", f"known are {', '.join(kinds)}")
    return kind(**fields | {"clip": math.inf if fields["clip"] is None else fields["clip"]})
