"""Mechanisms: what one step of a node reveals, as a small tree of frozen values.

An algorithm declares one of these beside its update. The same object gives the sampler its rate, the clip its radius
and the noise its σ. The accountant counts this object too. So the code that adds noise and the code that counts it
agree. An accountant that does not know a mechanism refuses it.

A base is one `Release`: `SampledMean`, `Saga`, `Gaussian`, `Sag`, `Unprotected`. `compound` has what is made of bases.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_type_hints

from pydantic import Field, ValidationError, create_model

from privsgp.errors import Refused
from privsgp.options import NotNegative, Options, Positive, Share
from privsgp.outside import From1, Whole  # noqa: TC001 - pydantic reads them

if TYPE_CHECKING:
    from privsgp.accounting.compound import PersonLevel, Shared

Sampling = Literal["poisson", "fixed"]
Relation = Literal["zero-out", "replace-one"]
Accountant = Literal["certified", "published"]


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
        """Whether a sample is drawn by a secret coin of its own: only then does drawing it rarely hide it."""
        return self.sampling == "poisson" and self.rate < 1

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
    coordinates: Whole = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.batch > self.samples:
            raise Refused(f"batch = {self.batch:g} is more than samples = {self.samples}", "take 0 < batch <= samples")
        if self.sampling == "fixed" and self.batch != int(self.batch):
            raise Refused(f"batch = {self.batch:g} with fixed sampling is no whole number", "take a whole number")

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


_KINDS = {kind.__name__: kind for kind in (Unprotected, SampledMean, Saga, Gaussian, Sag)}


def described(values: dict[str, Any]) -> Mechanism:
    """Return the mechanism that `describe` wrote down.

    Release 1.0.0rc1 could change clip and noise by a schedule. `clip` and `sigma` are then the largest clip and the
    least σ of any step, so the ε computed here is an upper bound.
    """
    from privsgp.accounting.compound import WRAPPERS, Anchored  # made of what is in this file

    fields = {key: value for key, value in values.items() if key not in ("schedule", "mechanism")}
    kinds = _KINDS | {Anchored.__name__: Anchored}
    kind = kinds.get(str(values.get("mechanism")))
    if kind is None:
        raise Refused(f"mechanism = {values.get('mechanism')!r:.80} is unknown", f"take one of {', '.join(kinds)}")
    own = [{f: fields.pop(key) for f, key in wrapper.keys.items() if key in fields} for wrapper in WRAPPERS]
    clip = fields.pop("clip", None)
    try:
        made: Mechanism = kind(clip=math.inf if clip is None else clip, **fields)
        for wrapper, values_of_it in zip(WRAPPERS, own, strict=True):
            made = wrapper.read(made, values_of_it) if values_of_it else made
    except TypeError as error:  # a key is missing, or not known
        raise Refused(f"{kind.__name__} has wrong values: {error!s:.200}", "docs/proofs/saga.md lists them") from None
    return made


@functools.cache
def _fields(kind: type[Mechanism]) -> type[Options]:
    """Return what pydantic checks of a mechanism: the types and ranges that its fields are annotated with."""
    hints = get_type_hints(kind, include_extras=True)
    own: Any = {f.name: (hints[f.name], ...) for f in dataclasses.fields(kind) if f.name != "base"}  # type: ignore[arg-type]
    made: type[Options] = create_model(kind.__name__, __base__=Options, **own)
    return made


def check_fields(made: Mechanism) -> None:
    """Refuse a value of another type or range than its field: it may come from a ledger that anybody wrote."""
    try:
        values = {key: value for key, value in vars(made).items() if key != "base"}
        _fields(type(made)).model_validate(values)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Refused(f"{first['loc'][0]} = {first['input']!r:.80}", first["msg"]) from None
