"""Mechanisms that are made of others: a run of two kinds of releases, lists of mechanisms, and wrappers.

`Anchored` is a run of two bases, and `Composed` any list of mechanisms. A wrapper changes one thing about its base:
`Shared` whose noise it is, `Summed` which messages are seen, `Continued` what was released before, `PersonLevel` what a
sample is. Every other question to a wrapper is answered by its base. A new noise or a new unit of privacy is a new
wrapper here and a line in each of the accountant's dispatches.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, InstanceOf

from privsgp.accounting.mechanisms import Mechanism, Release, SampledMean, check_fields, described
from privsgp.errors import Refused
from privsgp.options import NotNegative, Positive  # noqa: TC001 - pydantic reads them
from privsgp.outside import From1, Whole  # noqa: TC001 - pydantic reads them

_MOST_EARLIER = 64  # runs that another one continues


@dataclass(frozen=True, kw_only=True)
class Anchored(Release):
    """Anchors and differences in turn: SVRG, SPIDER and SRM.

    The first release and every `period`-th after it (`None`: only the first) is an anchor, the mean of clipped
    gradients over `anchor_batch` samples (`None`: all of them) with noise `anchor_noise · sigma`. Every other one is
    (1/b) Σ_{j∈B} [α g_j(z) + (1 − α) clip(g_j(z) − g_j(z'), C)] + N(0, σ²) against a point z' that is public, with C =
    `difference_clip` (`None`: 2G, no further clip) and α = `alpha`, 0 but for SRM. The state consists of releases only,
    so releases are counted one by one.

    Up to `spare` releases may be steps made again after a crash. It is unknown which, so each of these counts both as
    an anchor and as a difference.
    """

    period: From1 | None = None
    difference_clip: Positive | None = None
    anchor_batch: Positive | None = None
    anchor_noise: Positive = 1.0
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.0
    spare: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor_batch is not None and self.anchor_batch > self.samples:
            size = f"anchor_batch = {self.anchor_batch:g} is more than samples = {self.samples}"
            raise Refused(size, "take 0 < anchor_batch <= samples")

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
    def kinds(self) -> tuple[Mechanism, ...]:
        """Anchors and differences."""
        return self.anchor, self.difference

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

    def over(self, steps: int) -> Composed:
        """Return what `steps` releases show at most.

        D steps and r ≤ spare repeats are R = D + r releases. The first R − spare steps are among the D, and each of the
        other spare releases, whichever it is, shows no more than an anchor and a difference together.
        """
        unsure = min(steps, self.spare)
        anchors = self.anchors(steps - unsure)
        return Composed(((self.anchor, anchors + unsure), (self.difference, steps - anchors)))

    def _mean(self, sigma: float, clip: float, batch: float) -> SampledMean:
        return SampledMean(
            sigma=sigma, clip=clip, batch=batch, samples=self.samples, sampling=self.sampling, kappa=self.kappa
        )


@dataclass(frozen=True)
class Composed(Mechanism):
    """Several mechanisms in one run, each so many times, in any order. No algorithm declares it alone."""

    parts: tuple[tuple[Mechanism, int], ...]

    def __post_init__(self) -> None:
        if any(isinstance(inner, PersonLevel | Continued) for inner, _ in self.parts):
            raise TypeError("Continued and PersonLevel are the outermost wrappers: wrap the whole list")

    def phases(self, steps: int) -> list[tuple[Mechanism, int]]:
        """Return the list."""
        return [(inner, steps * count) for inner, count in self.parts]

    def changed(self, **values: Any) -> Self:  # noqa: ANN401
        """Return the same list with other values in every part."""
        return dataclasses.replace(self, parts=tuple((inner.changed(**values), count) for inner, count in self.parts))


@dataclass(frozen=True)
class Wrapper(Mechanism):
    """A mechanism around another one: it answers what it changes, and hands every other question to its base."""

    keys: ClassVar[dict[str, str]] = {}  # of its own fields in ledgers and JSON

    base: Mechanism

    def __post_init__(self) -> None:
        if isinstance(self.base, PersonLevel):
            raise TypeError("PersonLevel is the outermost wrapper")
        if isinstance(self.base, Continued) and not isinstance(self, PersonLevel):
            raise TypeError("only PersonLevel is around Continued")
        check_fields(self)

    @classmethod
    def read(cls, base: Mechanism, own: dict[str, Any]) -> Mechanism:
        """Return the base as `own` values of this wrapper change it; the base itself if there are none."""
        return cls(base, **own) if any(own.values()) else base

    def describe(self) -> dict[str, Any]:
        """Return the base's values and the wrapper's own."""
        return self.base.describe() | {key: getattr(self, field) for field, key in self.keys.items()}

    def changed(self, **values: Any) -> Self:  # noqa: ANN401
        """Return the same wrapper around a base with other values."""
        return dataclasses.replace(self, base=self.base.changed(**values))


for _question in (
    "auditable", "has_table", "sigma", "clip", "batch", "samples", "sampling", "kappa", "coordinates",
    "amplified", "largest_shift", "kinds", "summed_nodes", "shared", "person", "weighted", "redo_limit",
    "is_anchor", "at",
):  # fmt: skip
    setattr(Wrapper, _question, property(attrgetter(f"base.{_question}")))


@dataclass(frozen=True)
class Shared(Wrapper):
    """Noise that nodes share: the base's `sigma` is what is left of it before a coalition of all but `honest` nodes.

    `partners` is how many nodes a node shares noise with. `least_own` is the least noise that any node has of its own
    (0: not known yet).
    """

    keys: ClassVar[dict[str, str]] = {"honest": "honest", "partners": "partners", "least_own": "least_own"}

    honest: From1
    partners: From1
    least_own: NotNegative = 0.0

    @property
    def shared(self) -> Shared:
        """Itself."""
        return self


@dataclass(frozen=True)
class Summed(Wrapper):
    """The messages of `nodes` nodes, each with the base's noise, are seen as one sum only (secure aggregation)."""

    keys: ClassVar[dict[str, str]] = {"nodes": "aggregated"}

    nodes: From1

    @classmethod
    def read(cls, base: Mechanism, own: dict[str, Any]) -> Mechanism:
        """Return the base itself for one node: its message is seen."""
        nodes = own.get("nodes", 1)
        return base if nodes == 1 and nodes is not True else cls(base, nodes)

    @property
    def summed_nodes(self) -> int:
        """`nodes`."""
        return self.nodes


@dataclass(frozen=True)
class Continued(Wrapper):
    """A run that continues others on the same records: `earlier` are their mechanisms, each with its releases.

    ε of the run is that of the whole: it composes with all that the earlier runs have released.
    """

    keys: ClassVar[dict[str, str]] = {"earlier": "earlier"}

    earlier: tuple[tuple[InstanceOf[Mechanism], From1], ...]

    @classmethod
    def read(cls, base: Mechanism, own: dict[str, Any]) -> Mechanism:
        """Return the run with what it continues, as `describe` wrote it; the base itself if that is nothing."""
        found = own.get("earlier", [])
        try:
            earlier = tuple((described(values), count) for values, count in found)
            if len(earlier) > _MOST_EARLIER or any(
                "earlier" in values or "person_rows" in values for values, _ in found
            ):
                raise ValueError("too many, or one that continues others")  # noqa: TRY301
        except (AttributeError, TypeError, ValueError) as error:
            what = f"earlier = {found!r:.80} is no list of mechanisms: {error!s:.80}"
            raise Refused(what, "list the mechanism of each earlier run, with its number of releases") from None
        return cls(base, earlier) if earlier else base

    def describe(self) -> dict[str, Any]:
        """Return the base's values and those of the earlier runs."""
        return self.base.describe() | {"earlier": [[one.describe(), count] for one, count in self.earlier]}

    def phases(self, steps: int) -> list[tuple[Mechanism, int]]:
        """Return the releases of this run, and those of the earlier ones."""
        return [(self.base, steps), *self.earlier]


@dataclass(frozen=True)
class PersonLevel(Wrapper):
    """A sample is a person with up to `rows` rows, whose mean gradient is clipped once. It is the outermost wrapper.

    ε is that of a person who has rows at `sites` sites like this one. With shared noise, `correlation` bounds what one
    site's message shows about another's: the matrix M of privacy.md has entries of at most `correlation` · μ² outside
    its diagonal. 1 is always safe; for equal sites it is 1 − 1/ρ. In a sum of messages shifts add up: there it is 1.
    """

    keys: ClassVar[dict[str, str]] = {
        "rows": "person_rows", "sites": "person_sites", "correlation": "person_correlation",
    }  # fmt: skip

    rows: From1
    sites: From1 = 1
    correlation: Annotated[float, Field(ge=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.summed_nodes > 1 and self.correlation < 1:
            raise Refused(f"correlation = {self.correlation}, and messages are seen as a sum", "take correlation = 1")

    @property
    def person(self) -> PersonLevel:
        """Itself."""
        return self

    @property
    def unit(self) -> str:
        """The unit that ε protects, in words."""
        return f"one person, up to {self.rows} row{'s' if self.rows > 1 else ''}"

    @property
    def apart(self) -> bool:
        """Whether the person's sites have noise of their own, and each of their messages is seen: then they compose."""
        return self.shared is None and self.summed_nodes == 1

    @property
    def together(self) -> float:
        """How many times farther a person at all `sites` moves messages with shared noise, in units of σ.

        μ_S² = Σ_ij M_ij ≤ μ² (s + s (s − 1) · correlation).
        """
        return math.sqrt(self.sites + self.sites * (self.sites - 1) * self.correlation)

    def phases(self, steps: int) -> list[tuple[Mechanism, int]]:
        """Return what composes, each for persons."""
        return [(dataclasses.replace(self, base=one), count) for one, count in self.base.phases(steps)]


WRAPPERS: tuple[type[Wrapper], ...] = (Summed, Shared, Continued, PersonLevel)
