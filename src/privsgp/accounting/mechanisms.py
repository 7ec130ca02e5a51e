"""Mechanisms: what one step of a node reveals, as a small tree of frozen values.

An algorithm declares one of these beside its update. The same object gives the sampler its rate, the clip its radius
and the noise its σ. The accountant counts this object too. So the code that adds noise and the code that counts it
agree. An accountant that does not know a mechanism refuses it.

A base is one `Release`: `SampledMean`, `Saga`, `Gaussian`, `Sag`, `Unprotected`. `Anchored` is a run of two
bases, and `Composed` any list of mechanisms. A wrapper changes one thing about its base: `Shared` whose noise it is,
`Summed` which messages are seen, `Continued` what was released before, `PersonLevel` what a sample is. Every other
question to a wrapper is answered by its base. A new noise or a new unit of privacy is a new wrapper here and a line in
each of the accountant's dispatches.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_type_hints

from pydantic import Field, InstanceOf, ValidationError, create_model

from privsgp.errors import Refused
from privsgp.options import NotNegative, Options, Positive, Share

Sampling = Literal["poisson", "fixed"]
Relation = Literal["zero-out", "replace-one"]
Accountant = Literal["certified", "published"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
From0 = Annotated[int, Field(ge=0, le=2**53)]  # beyond, floats no longer count one by one
From1 = Annotated[int, Field(ge=1, le=2**53)]
_MOST_EARLIER = 64  # runs that another one continues


def nominal(kind: str) -> bool:
    """Tell whether the ε that an accountant turns into noise is a paper's: no guarantee, and shown as none."""
    return kind == "published"


class Mechanism:
    """The release of a node at each step. Code outside the accounting asks it these questions, never which it is."""

    auditable: ClassVar[bool] = False  # whether an audit knows the worst that canaries can do to it
    has_table: ClassVar[bool] = False  # whether a mean of all J entries is part of every release, and moved at each

    sigma: float  # the standard deviation per coordinate added to the *averaged* gradient
    clip: float  # the radius G of one sample's gradient
    batch: float  # the public constant b that a sum is divided by
    samples: int  # the node's public J
    sampling: Sampling  # how samples are drawn
    kappa: float  # the relative slack of the arithmetic: accounting uses `clip * (1 + kappa)`
    coordinates: int  # the length d of a message whose noise is computed; 0 takes the noise as ideal

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
    def kinds(self) -> tuple[Mechanism, ...]:
        """The releases that occur in a run."""
        return (self,)

    @property
    def summed_nodes(self) -> int:
        """How many nodes' messages are seen as one sum only; 1: every message is seen."""
        return 1

    @property
    def shared(self) -> Shared | None:
        """The wrapper that names the nodes that share noise; None if all noise is the node's own."""
        return None

    @property
    def person(self) -> PersonLevel | None:
        """The wrapper that says that a sample is a person; None where it is a record."""
        return None

    @property
    def weighted(self) -> Saga | None:
        """The mechanism as one in which a drawn sample adds the change of its gradient, with a weight θ; else None."""
        return None

    @property
    def redo_limit(self) -> int | None:
        """How many of the counted releases may be steps made again after a crash; None: any, for all cost alike."""
        return None

    def phases(self, steps: int) -> list[tuple[Mechanism, int]]:
        """Return what composes when a run makes `steps` releases: itself, and what earlier runs have released."""
        return [(self, steps)]

    def is_anchor(self, step: int) -> bool:
        """Tell whether the release of this step is an anchor."""
        del step
        return False

    def at(self, step: int) -> Mechanism:
        """Return what is released at one step, where not all are alike: its rate is drawn with, its noise added."""
        del step
        return self

    def changed(self, **values: Any) -> Self:  # noqa: ANN401 - fields of the base
        """Return the same mechanism with other values of its base."""
        raise NotImplementedError

    def with_sigma(self, sigma: float) -> Self:
        """Return the same release with other noise."""
        return self.changed(sigma=sigma)

    def describe(self) -> dict[str, Any]:
        """Return all that is counted, as plain values for ledgers and JSON (an infinite clip is None)."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Release(Mechanism):
    """One release of one node: a mean of clipped per-sample gradients plus N(0, sigma² I)."""

    sigma: NotNegative
    clip: Annotated[float, Field(gt=0)]  # infinite: none
    batch: Positive
    samples: From1
    sampling: Sampling = "poisson"
    kappa: Annotated[float, Field(ge=0, lt=1)] = 0.0
    coordinates: From0 = 0

    def __post_init__(self) -> None:
        _check(self)
        if self.batch > self.samples:
            raise Refused(f"batch = {self.batch:g} with samples = {self.samples}", "take 0 < batch <= samples")
        if self.sampling == "fixed" and self.batch != int(self.batch):
            raise Refused(f"batch = {self.batch:g} with fixed sampling", "a fixed-size batch is a whole number")

    def changed(self, **values: Any) -> Self:  # noqa: ANN401
        """Return the same mechanism with other values."""
        return dataclasses.replace(self, **values)

    def describe(self) -> dict[str, Any]:
        """Return the name of the mechanism and all its fields."""
        values = {"mechanism": type(self).__name__} | dataclasses.asdict(self)
        return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in values.items()}


@dataclass(frozen=True, kw_only=True)
class Unprotected(Release):
    """A release without noise (SGP): nothing is guaranteed, ε is infinite."""

    sigma: NotNegative = 0.0
    clip: Annotated[float, Field(gt=0)] = math.inf


@dataclass(frozen=True, kw_only=True)
class SampledMean(Release):
    """(1/b) Σ_{j∈B} clip(g_j) + N(0, σ²): the subsampled Gaussian of DP-SGD and PrivSGP."""

    auditable: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Saga(Release):
    """(θ/b) Σ_{j∈B} clip(g_j − t_j, C) + (1/J) Σ_j t_j + N(0, σ²): PrivSGP-VR.

    `difference_clip` is C; `None` is C = 2G (no further clip). `difference_scale` is θ. Without both this is the
    paper's estimator, and so is every ledger written before there was a θ.
    """

    auditable: ClassVar[bool] = True
    has_table: ClassVar[bool] = True

    difference_clip: Positive | None = None
    difference_scale: Share = 1.0

    @property
    def weighted(self) -> Saga:
        """Itself."""
        return self

    @property
    def largest_shift(self) -> float:
        """|t/J + θc/b| with |t| ≤ G, |t + c| ≤ G and |c| ≤ C: largest where t + c and c are parallel."""
        weight = max(0.0, self.difference_scale / self.batch - 1 / self.samples)
        reach = min(self.difference_clip or math.inf, 2 * self.clip)
        return (self.clip / self.samples + reach * weight) * (1 + self.kappa)


@dataclass(frozen=True, kw_only=True)
class Gaussian(Release):
    """(1/J) Σ_j v_j + N(0, σ²) over all records, each v_j clipped: no sampling, no amplification."""

    @property
    def amplified(self) -> bool:
        """False: a sample is part of every release."""
        return False

    @property
    def largest_shift(self) -> float:
        """G (1 + κ) / J."""
        return self.radius / self.samples


@dataclass(frozen=True, kw_only=True)
class Sag(Gaussian):
    """(1/J) Σ_j t_j + N(0, σ²) with the table already updated: PrivSGP-SAG."""

    auditable: ClassVar[bool] = True
    has_table: ClassVar[bool] = True


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
    spare: From0 = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor_batch is not None and self.anchor_batch > self.samples:
            size = f"anchor_batch = {self.anchor_batch:g} with samples = {self.samples}"
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
        _check(self)

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
            what = f"earlier = {found!r:.80}: {error!s:.80}"
            raise Refused(what, "it is a list of mechanisms of one run each, with their releases") from None
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
            raise Refused(f"correlation = {self.correlation} of messages that are seen as a sum", "take 1")

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

    def at_sites(self, sites: int) -> PersonLevel:
        """Return the same for a person at so many sites."""
        return dataclasses.replace(self, sites=sites)


_WRAPPERS: tuple[type[Wrapper], ...] = (Summed, Shared, Continued, PersonLevel)
_KINDS = {kind.__name__: kind for kind in (Unprotected, SampledMean, Saga, Gaussian, Sag, Anchored)}


def described(values: dict[str, Any]) -> Mechanism:
    """Return the mechanism that `describe` wrote down.

    Release 1.0.0rc1 could change clip and noise by a schedule. `clip` and `sigma` are then the largest clip and the
    least σ of any step, so the ε computed here is an upper bound.
    """
    fields = {key: value for key, value in values.items() if key not in ("schedule", "mechanism")}
    kind = _KINDS.get(str(values.get("mechanism")))
    if kind is None:
        raise Refused(f"mechanism = {values.get('mechanism')!r:.80}", f"known are {', '.join(_KINDS)}")
    own = [{f: fields.pop(key) for f, key in wrapper.keys.items() if key in fields} for wrapper in _WRAPPERS]
    clip = fields.pop("clip", None)
    try:
        made: Mechanism = kind(clip=math.inf if clip is None else clip, **fields)
        pairs = zip(_WRAPPERS, own, strict=True)
        return functools.reduce(lambda base, pair: pair[0].read(base, pair[1]), pairs, made)
    except TypeError as error:  # a key is missing, or not known
        raise Refused(f"mechanism = {kind.__name__}: {error!s:.200}", "docs/proofs/saga.md has its values") from None


@functools.cache
def _fields(kind: type[Mechanism]) -> type[Options]:
    """Return what pydantic checks of a mechanism: the types and ranges that its fields are annotated with."""
    hints = get_type_hints(kind, include_extras=True)
    own: Any = {f.name: (hints[f.name], ...) for f in dataclasses.fields(kind) if f.name != "base"}  # type: ignore[arg-type]
    made: type[Options] = create_model(kind.__name__, __base__=Options, **own)
    return made


def _check(made: Mechanism) -> None:
    """Refuse a value of another type or range than its field: it may come from a ledger that anybody wrote."""
    try:
        values = {key: value for key, value in vars(made).items() if key != "base"}
        _fields(type(made)).model_validate(values)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Refused(f"{first['loc'][0]} = {first['input']!r:.80}", first["msg"]) from None
