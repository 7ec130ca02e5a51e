"""run.toml: what a user may write, with defaults; anything else is refused with the key, the value and what is right.

Nothing here reads data. `Config.shared()` is the part all sites of a network must agree on; its hash keys public
randomness where no `seed` is given.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import re
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from privsgp import graph
from privsgp.algorithms import ALGORITHMS, PushSum
from privsgp.data.loading import BUILT_IN
from privsgp.data.partitions import check as check_partition
from privsgp.errors import Refused
from privsgp.foreign import read_bytes
from privsgp.models.networks import ACTIVATIONS
from privsgp.models.networks import NAMES as MODELS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from privsgp.algorithms.algorithm import Trust

_LONGEST, _DOTS = 2**20, 64  # bytes of a run.toml, and dots in one line of it
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d_]*\.\d[\d_]*(?:[eE][+-]?\d+)?(?![\w.])")
PLANNED = ("privsgp", "privsgp-vr", "privsgp-sag")  # what the planner rehearses and chooses from
AUTO = ("name", "steps", "step_size", "batch", "weights")  # of [algorithm]: what can be left to it
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Noise = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _one_of(known: Collection[str], *, unsaid: str | None = None) -> AfterValidator:
    def check(value: str) -> str:
        names = list(known)  # looked up anew: a user may have added an algorithm
        if value not in (*names, unsaid):
            close = difflib.get_close_matches(value, names, 1)
            raise ValueError(f"use one of {', '.join(names)}" + (f" (did you mean {close[0]!r}?)" if close else ""))
        return value

    return AfterValidator(check)


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", value):
        raise ValueError("it names a folder: use letters, digits, '_', '-' and '.'")
    return value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(_Section):
    """What is learnt from, and how it lies on the nodes."""

    name: str = "digits"
    nodes: Count = 16
    partition: str = "even"
    alpha: Positive = 0.5
    sizes: list[int] | None = None
    path: str | None = None  # "site-{node}.npz": each node its own file
    classes: Count | None = None  # of labels in files of one's own; else the file says it, or public test labels
    test: Literal["public", "private"] | None = None  # who may see metrics on test data; see `Config.test_is_public`

    @property
    def published(self) -> bool:
        """Whether this is a data set that anybody can have, its test set too."""
        return self.path is None and self.name in BUILT_IN

    @model_validator(mode="after")
    def _sizes_fit(self) -> Data:
        check_partition(self.partition, self.nodes, alpha=self.alpha, sizes=self.sizes)
        if self.path is not None and self.sizes is not None:
            raise Refused(
                "data.sizes beside data.path", "leave data.sizes out: each node's file says how much it holds"
            )
        return self


class Features(_Section):
    """What the model sees of a sample: the sample, or a fixed map of it; None is the map's own default."""

    name: Annotated[str, _one_of(("none", "scattering", "random-conv"), unsaid="module")] = "none"
    scales: Count | None = None
    angles: Count | None = None
    order: Literal[1, 2] | None = None
    filters: Count | None = None
    patch: Count | None = None
    grid: Count | None = None
    like: Literal["strokes", "leaves"] | None = None
    components: Count | None = None
    power: Annotated[float, Field(ge=0, le=1)] | None = None
    mirror: bool | None = None  # an image and its mirror image have the same features
    views: Literal["mirror", "shifts"] | None = None  # of a sample, averaged before its clip

    @property
    def options(self) -> dict[str, Any]:
        """The keys of the map that were given."""
        return self.model_dump(exclude={"name", "views"}, exclude_none=True)

    @model_validator(mode="after")
    def _options_have_a_use(self) -> Features:
        used = {"scattering": {"scales", "angles", "order"}, "random-conv": {"filters", "patch", "grid"}}
        known = used.get(self.name, set()) | ({"like", "mirror"} if self.name in used else set())
        known |= {"components", "power"} if self.like is not None else set()
        if unused := sorted(set(self.options) - known):
            beside = "" if self.like is None else f" and features.like = {self.like!r}"
            raise Refused(
                f"features.{unused[0]} = {self.options[unused[0]]!r} with features.name = {self.name!r}{beside}",
                f"leave it out; of use here: {', '.join(sorted(known)) or 'nothing'}",
            )
        if self.views is not None and self.name not in used:
            raise Refused(
                f"features.views = {self.views!r} with features.name = {self.name!r}",
                f"take one of {', '.join(used)}",
            )
        return self


class Model(_Section):
    """What is learnt."""

    name: Annotated[str, _one_of(MODELS, unsaid="module")] = "mlp"
    hidden: Count | list[Count] = 64
    loss: Literal["cross-entropy", "binary", "mse"] = "cross-entropy"
    activation: Annotated[str, _one_of(ACTIVATIONS)] = "relu"  # of "mlp"

    @model_validator(mode="after")
    def _activation_has_a_use(self) -> Model:
        if self.activation != "relu" and self.name != "mlp":
            raise Refused(f"model.activation = {self.activation!r} with model.name = {self.name!r}", "take 'mlp'")
        return self


class Graph(_Section):
    """Who talks to whom."""

    name: Annotated[str, _one_of(graph.NAMES)] = "exponential"
    degree: Count = 1  # of `random`


class Privacy(_Section):
    """Budgets, or fixed noise; one value, or a list with one per node."""

    epsilon: Positive | list[Positive] | None = None
    delta: Probability | list[Probability] = 1e-5
    sigma: Noise | list[Noise] | None = None
    clip: Positive = 1.0
    clip_what: Literal["record", "mean"] = "record"  # "mean" is not DP: SoteriaFL's code, to repeat its figures
    accountant: Literal["certified", "published"] = "certified"
    relation: Literal["zero-out", "replace-one"] = "zero-out"
    c2: Positive = 0.3724
    spare: Annotated[float, Field(ge=0, le=1)] = 0.02

    @model_validator(mode="after")
    def _one_of_both(self) -> Privacy:
        if self.epsilon is not None and self.sigma is not None:
            raise Refused(
                f"privacy.epsilon = {self.epsilon} beside privacy.sigma = {self.sigma}",
                "give epsilon (noise is calibrated) or sigma (ε is reported), not both",
            )
        if self.accountant == "published" and self.epsilon is None:
            raise Refused(
                "privacy.accountant = 'published' without privacy.epsilon", "give the nominal ε it turns into noise"
            )
        return self


class Schedule(_Section):
    """A step size that falls from `start` to `end` over the run, or over what is left after a share `hold` of it."""

    schedule: Literal["cosine", "linear"]
    start: Positive
    end: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    hold: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def mean(self) -> float:
        """The mean of γ_k: what γK is divided by K."""
        return self.hold * self.start + (1 - self.hold) * (self.start + self.end) / 2


class Algorithm(_Section):
    """How it is learnt; name, batch, steps, step_size and weights may be "auto", which leaves them to the planner."""

    name: Annotated[str, _one_of(ALGORITHMS)] = "privsgp-vr"
    batch: Positive = 16
    steps: Count = 300
    step_size: Positive | Literal["theory"] | Schedule = 0.2
    sampling: Literal["poisson", "fixed"] = "poisson"
    difference_clip: Positive | None = None
    table: Literal["factored", "dense", "block"] = "factored"
    table_init: Literal["gradients", "zeros"] = "gradients"
    table_dtype: Literal["float32", "bfloat16"] | None = None  # engine.dtype
    table_place: Literal["auto", "device", "host", "disk"] = "auto"
    block: Count | None = None  # samples per entry of a block table
    period: Count | None = None  # 10; steps from one anchor to the next
    anchor_batch: Positive | None = None  # all samples
    anchor_noise: Positive | None = None  # 1; an anchor's noise in units of σ
    alpha: Annotated[float, Field(gt=0, le=1)] | None = None  # 0.1
    trust: Literal["per-node", "secure aggregation"] | None = None  # the algorithm's own
    compressor: Literal["none", "random-k", "quantisation"] | None = None  # none
    kept: Annotated[float, Field(gt=0, le=1)] | None = None  # 0.05; share of the coordinates that random-k sends
    levels: Count | None = None  # 16; of quantisation
    shift_rate: Annotated[float, Field(ge=0, le=1)] | None = None  # SoteriaFL's own
    anchor_probability: Annotated[float, Field(ge=0, le=1)] | None = None  # b/J
    weights: Literal["equal", "samples", "noise"] | list[Positive] = "equal"  # how much a node counts
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    unit_steps: bool = False  # noised directions of length 1
    average: Literal["none", "tail", "exponential"] = "none"  # of iterates: the model that is released
    average_share: Annotated[float, Field(gt=0, le=1)] | None = None  # of the steps, from the end; 0.5
    average_decay: Probability | None = None  # 0.99
    final_mixing: Annotated[int, Field(ge=0)] = 0  # rounds without gradients
    _auto: tuple[str, ...] = PrivateAttr(())

    @property
    def auto(self) -> tuple[str, ...]:
        """The keys whose values here are only their defaults, because the planner is to choose them."""
        return self._auto

    @model_validator(mode="wrap")
    @classmethod
    def _leave_to_the_planner(cls, values: Any, handler: ModelWrapValidatorHandler[Algorithm]) -> Algorithm:  # noqa: ANN401
        if not isinstance(values, dict):
            return handler(values)
        auto = tuple(key for key in AUTO if values.get(key) == "auto")
        if "name" in auto and values.get("difference_clip") is not None:
            raise Refused(
                f"algorithm.difference_clip = {values['difference_clip']} with algorithm.name = 'auto'", "leave it out"
            )
        checked = handler({key: value for key, value in values.items() if key not in auto})
        checked._auto = auto
        return checked

    @model_validator(mode="after")
    def _table_is_possible(self) -> Algorithm:
        if (self.table == "block") != (self.block is not None):
            raise Refused(
                f"algorithm.block = {self.block} with algorithm.table = {self.table!r}",
                "a block table ('privsgp-sag' alone has one) needs the samples per block, no other table does",
            )
        for key in ("difference_clip", "table_dtype") if self.block else ():
            if getattr(self, key) is not None:
                raise Refused(
                    f"algorithm.{key} = {getattr(self, key)} with algorithm.table = 'block'",
                    "leave it out: nothing but sums is taken of a block",
                )
        if self.block and (self.sampling == "fixed" or self.name != "privsgp-sag"):
            raise Refused(
                f"algorithm.table = 'block' with {self.name!r} and algorithm.sampling = {self.sampling!r}",
                "take 'privsgp-sag' with 'poisson' (a block's coin is no secret, and the others are counted with one)",
            )
        if self.table_dtype == "bfloat16" and self.difference_clip is not None:
            raise Refused(
                f"algorithm.table_dtype = 'bfloat16' with algorithm.difference_clip = {self.difference_clip}",
                "leave one of them out: a rounded entry may move by more than the difference clip",
            )
        return self

    @model_validator(mode="after")
    def _compressor_fits(self) -> Algorithm:
        for key, compressor in (("kept", "random-k"), ("levels", "quantisation")):
            if getattr(self, key) is not None and self.compressor != compressor:
                raise Refused(
                    f"algorithm.{key} = {getattr(self, key)} with algorithm.compressor = {self.compressor or 'none'!r}",
                    f"leave it out, or take algorithm.compressor = {compressor!r}",
                )
        return self

    @model_validator(mode="after")
    def _average_has_a_use(self) -> Algorithm:
        for key, kind in (("average_share", "tail"), ("average_decay", "exponential")):
            if getattr(self, key) is not None and self.average != kind:
                raise Refused(
                    f"algorithm.{key} = {getattr(self, key)} with algorithm.average = {self.average!r}",
                    f"leave it out, or take {kind!r}",
                )
        return self

    @model_validator(mode="after")
    def _can_be_steered(self) -> Algorithm:
        given = [
            key for key in ("weights", "momentum", "unit_steps") if getattr(self, key) not in ("equal", 0.0, False)
        ]
        if given and ALGORITHMS[self.name].step is not PushSum.step:
            raise Refused(
                f"algorithm.{given[0]} = {getattr(self, given[0])} with algorithm.name = {self.name!r}",
                "leave it out: this algorithm's steps are its own",
            )
        return self

    @model_validator(mode="after")
    def _options_have_a_use(self) -> Algorithm:
        for key in sorted({option for algorithm in ALGORITHMS.values() for option in algorithm.options}):
            if getattr(self, key, None) is not None and key not in ALGORITHMS[self.name].options:
                users = [repr(name) for name, algorithm in ALGORITHMS.items() if key in algorithm.options]
                raise Refused(
                    f"algorithm.{key} = {getattr(self, key)} with algorithm.name = {self.name!r}",
                    f"leave it out, or take {' or '.join(users)}",
                )
        return self


class Clock(_Section):
    """The virtual clock: seconds that a gradient and a message take. It changes models of asynchronous methods only."""

    compute: Literal["constant", "exponential", "lognormal"] = "constant"  # how a gradient's time is distributed
    mean: Positive = 1.0
    spread: Positive | None = None  # of lognormal: standard deviation / mean
    latency: Noise = 0.0
    bandwidth: Positive | None = None  # bytes a second; left out: no limit
    stragglers: Annotated[float, Field(ge=0, le=1)] | list[Annotated[int, Field(ge=0)]] = 0.0  # a fraction, or nodes
    slowdown: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0  # of the stragglers

    @model_validator(mode="after")
    def _has_a_use(self) -> Clock:
        if (self.spread is not None) != (self.compute == "lognormal"):
            raise Refused(
                f"clock.spread = {self.spread} with clock.compute = {self.compute!r}",
                "give the spread of 'lognormal' times, and of no other",
            )
        if bool(self.stragglers) != (self.slowdown > 1):
            raise Refused(
                f"clock.slowdown = {self.slowdown} with clock.stragglers = {self.stragglers}",
                "say both which nodes are slow and how much slower (above 1), or neither",
            )
        return self


class Plan(_Section):
    """What a plan may look at: "synthetic" stand-ins, public data (a name or an .npz file), or "private"."""

    data: str = "synthetic"
    may_spend: bool = False


class Engine(_Section):
    """Where and how it runs; only `dtype` changes the numbers."""

    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: Count | None = None
    checkpoint_every: Annotated[int, Field(ge=0)] | None = None  # 0: never, in simulations


class Config(_Section):
    """A whole run."""

    name: Annotated[str, AfterValidator(_folder_name)] = "run"
    seed: Annotated[int, Field(ge=0)] | None = None
    data: Data = Data()
    features: Features = Features()
    model: Model = Model()
    graph: Graph = Graph()
    privacy: Privacy = Privacy()
    algorithm: Algorithm = Algorithm()
    clock: Clock = Clock()
    plan: Plan = Plan()
    engine: Engine = Engine()

    @model_validator(mode="after")
    def _one_per_node(self) -> Config:
        lists = {f"privacy.{key}": getattr(self.privacy, key) for key in ("epsilon", "delta", "sigma")}
        for key, value in (lists | {"algorithm.weights": self.algorithm.weights}).items():
            if isinstance(value, list) and len(value) != self.data.nodes:
                raise Refused(f"{key} has {len(value)} entries for data.nodes = {self.data.nodes}", "give one per node")
        slow = self.clock.stragglers
        if isinstance(slow, list) and max(slow, default=0) >= self.data.nodes:
            raise Refused(
                f"clock.stragglers = {slow} with data.nodes = {self.data.nodes}",
                f"name nodes from 0 to {self.data.nodes - 1}, or give a fraction of them",
            )
        return self

    @model_validator(mode="after")
    def _noise_is_known(self) -> Config:
        if self.private and self.privacy.epsilon is None and self.privacy.sigma is None:
            raise Refused(
                f"algorithm.name = {self.algorithm.name!r} without privacy.epsilon and privacy.sigma",
                "give a budget (privacy.epsilon = 3.0) or a noise (privacy.sigma = 0.1; 0 for none)",
            )
        fixed = self.privacy.sigma
        if self.algorithm.weights == "noise" and (not self.private or (fixed is not None and not _positive(fixed))):
            raise Refused(
                "algorithm.weights = 'noise' where a node has no noise", "take 'equal' or 'samples', or a list"
            )
        if ALGORITHMS[self.algorithm.name].asynchronous and self.privacy.accountant == "published":
            raise Refused(
                f"privacy.accountant = 'published' with algorithm.name = {self.algorithm.name!r}",
                "take 'certified': no published noise of this method is known to hold for one node",
            )
        return self

    @model_validator(mode="after")
    def _can_be_planned(self) -> Config:
        if self.algorithm.auto and (self.privacy.epsilon is None or not self.private):
            raise Refused(
                f"algorithm.{self.algorithm.auto[0]} = 'auto' without privacy.epsilon and a private algorithm",
                "give a budget to plan for (privacy.epsilon = 3.0), or the number itself",
            )
        if self.algorithm.auto and self.algorithm.name not in PLANNED:
            raise Refused(
                f"algorithm.{self.algorithm.auto[0]} = 'auto' with algorithm.name = {self.algorithm.name!r}",
                f"give the number itself: the planner knows {', '.join(PLANNED)}",
            )
        return self

    @model_validator(mode="after")
    def _steps_are_possible(self) -> Config:
        a = self.algorithm
        if self.engine.checkpoint_every == 0 and self.seed is None:
            raise Refused(
                "engine.checkpoint_every = 0 without a seed",
                "leave it out: after a crash all steps would be taken, and paid for, again",
            )
        if a.sampling == "fixed" and a.batch != int(a.batch):
            raise Refused(f"algorithm.batch = {a.batch} with fixed sampling", "give a whole number")
        if a.final_mixing and ALGORITHMS[a.name].network in ("server", "alone"):
            raise Refused(
                f"algorithm.final_mixing = {a.final_mixing} with algorithm.name = {a.name!r}",
                "leave it out: its nodes have no neighbours to mix with",
            )
        if self.features.views is not None and a.difference_clip is not None:
            raise Refused(
                f"algorithm.difference_clip = {a.difference_clip} with features.views = {self.features.views!r}",
                "leave one of them out: a table of clipped differences keeps one input per sample",
            )
        return self

    @model_validator(mode="after")
    def _clipped_means_are_for_figures(self) -> Config:
        known = self.algorithm.name in ("soteriafl-sgd", "soteriafl-svrg")
        formula = self.privacy.accountant == "published" or self.privacy.sigma is not None
        if self.privacy.clip_what == "mean" and not (known and formula and self.seed is not None):
            raise Refused(
                f"privacy.clip_what = 'mean' with algorithm.name = {self.algorithm.name!r}, seed = {self.seed} and "
                f"privacy.accountant = {self.privacy.accountant!r}",
                "it is not DP: only simulations (a seed) of 'soteriafl-sgd' and 'soteriafl-svrg' take it, with "
                "privacy.accountant = 'published' or privacy.sigma; else leave it out",
            )
        return self

    @model_validator(mode="after")
    def _one_budget_where_noise_is_shared(self) -> Config:
        for key in ("epsilon", "delta", "sigma") if self.trust == "secure aggregation" else ():
            value = getattr(self.privacy, key)
            if isinstance(value, list) and len(set(value)) > 1:
                raise Refused(
                    f"privacy.{key} = {value} with algorithm.trust = 'secure aggregation'",
                    "give all nodes the same, or algorithm.trust = 'per-node': in a sum they share each other's noise",
                )
        return self

    @model_validator(mode="after")
    def _labels_move_no_record(self) -> Config:
        if self.seed is None and self.data.path is None and self.data.partition != "even":
            raise Refused(
                f"data.partition = {self.data.partition!r} without a seed",
                "take 'even', or a file for each site (data.path): where labels decide who holds which records, the "
                "public sizes J_i tell of labels; or give a seed: a simulation",
            )
        return self

    @property
    def test_is_public(self) -> bool:
        """Whether metrics on test data may be told to peers and stand in what a run leaves for others.

        As `data.test` says; else in simulations, and where the test set is a published one.
        """
        if self.data.test is not None and self.seed is None:
            return self.data.test == "public"
        return self.seed is not None or self.data.published

    @property
    def trust(self) -> Trust:
        """What an adversary sees: as the configuration says, else the algorithm's own."""
        return self.algorithm.trust or ALGORITHMS[self.algorithm.name].trust

    @property
    def private(self) -> bool:
        """Whether the algorithm adds noise at all."""
        return ALGORITHMS[self.algorithm.name].private

    def shared(self) -> dict[str, Any]:
        """Return what every site must agree on: no names, paths, devices or file layouts."""
        values = self.model_dump(mode="json")
        del values["name"]
        del values["data"]["path"]
        del values["data"]["test"]  # each site's own choice
        if self.data.classes is None:  # a key that came later: what was shared before is shared still
            del values["data"]["classes"]
        del values["plan"]
        del values["algorithm"]["table_place"]
        values["engine"] = {"dtype": self.engine.dtype}
        return values

    def with_algorithm(self, **values: Any) -> Config:  # noqa: ANN401 - keys of the section
        """Return the same configuration with other values in [algorithm], checked anew; nothing is "auto" any more."""
        section = self.algorithm.model_dump() | values
        return parse(self.model_dump() | {"algorithm": section})

    def shared_hash(self) -> str:
        """Return the SHA-256 of the shared part."""
        return hashlib.sha256(json.dumps(self.shared(), sort_keys=True).encode()).hexdigest()

    def toml(self) -> str:
        """Write the configuration out in full, defaults included."""
        values = self.model_dump(mode="json", exclude_none=True)
        top = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
        for section, keys in values.items():
            if isinstance(keys, dict):
                top += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())]
        return "\n".join(top) + "\n"


def _positive(sigma: float | list[float]) -> bool:
    return min(sigma) > 0 if isinstance(sigma, list) else sigma > 0


def read(path: Path, changes: Sequence[str] = ()) -> Config:
    """Read run.toml and apply `--set KEY=VALUE` changes (VALUE is TOML, else a string; nothing takes the key out)."""
    try:
        text = read_bytes(path, _LONGEST).decode()
        _refuse_endless_keys(path, text)
        values = tomllib.loads(text)
    except OSError as error:
        raise Refused(f"cannot read the config {path}: {error.strerror}", "name a run.toml that is there") from error
    except Refused:
        raise
    except (ValueError, RecursionError) as error:  # bytes or digits that are none, brackets without an end
        raise Refused(f"{path} is not TOML: {error}", "see run.toml in the README") from error
    return parse(values, changes)


def _refuse_endless_keys(path: Path, text: str) -> None:
    """Refuse keys of many parts, which take tomllib a time that grows with their square; numbers have dots too."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _DOTS and _NUMBER.sub("", line).count(".") > _DOTS:
            raise Refused(f"{path}, line {number}: more than {_DOTS} dots", "see run.toml in the README")


def parse(values: dict[str, Any], changes: Sequence[str] = ()) -> Config:
    """Turn plain values into a checked configuration, after `--set KEY=VALUE` changes."""
    try:
        values = copy.deepcopy(values) if changes else values
        for change in changes:
            _apply(values, change)
        return Config.model_validate(values)
    except ValidationError as error:
        raise _refusal(error) from error
    except RecursionError as error:
        raise Refused("a value without an end: brackets in brackets", "see run.toml in the README") from error


def differences(old: Config, new: Config) -> list[str]:
    """Name every key whose change would change the result, with both values."""
    free = {("name",), ("plan", "data"), ("plan", "may_spend"), ("algorithm", "table_place")}
    free |= {("engine", key) for key in ("device", "evaluate_every", "checkpoint_every")}
    a, b = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    keys = [key for key in a | b if key not in free and a.get(key) != b.get(key)]
    return [f"{'.'.join(key)}: {a.get(key)} → {b.get(key)}" for key in keys]


def _apply(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    *sections, last = key.strip().split(".")
    if not equals or not all((*sections, last)):
        raise Refused(f"--set {change}", "write --set KEY=VALUE, for example --set algorithm.batch=32")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise Refused(f"--set {change}", f"{section} is a value, not a section")
    values[last] = value
    if not text:
        del values[last]


def _refusal(error: ValidationError) -> Refused:
    """Put pydantic's findings into our words: key, value, what would be right."""
    found: dict[str, list[str]] = {}
    errors = error.errors(include_url=False)
    for e in errors:
        if not _off_the_point(e):
            what, remedy = _told(e)
            found.setdefault(what, []).append(remedy)
    for what in found.keys() & {f"algorithm.{key} = {e['input']!r}" for e in errors for key in AUTO}:
        found[what].append("'auto', which leaves it to the planner")
    return Refused("\n".join(found), "\n  → ".join(" or ".join(remedies) for remedies in found.values()))


def _off_the_point(e: ErrorDetails) -> bool:
    """Where a key takes a number or a list, pydantic complains for both: keep what fits the value that was given."""
    compound = e["type"] in ("list_type", "model_type")
    optional = len(e["loc"]) > 2 and (compound or e["type"] in ("float_type", "int_type", "literal_error"))
    return optional and isinstance(e["input"], list | dict) != compound


def _told(e: ErrorDetails) -> tuple[str, str]:
    cause = e.get("ctx", {}).get("error")
    if isinstance(cause, Refused):
        return cause.what, cause.remedy
    if e["type"] == "extra_forbidden":
        sections, last = _path(e["loc"][:-1]), str(e["loc"][-1])
        return f"unknown key {'.'.join([*sections, last])} = {e['input']!r}", _known_keys(sections, last)
    message = e["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    message = re.sub("a valid dictionary or instance of .*", "a section with keys of its own", message)
    return f"{'.'.join(_path(e['loc']))} = {e['input']!r}", message


def _path(location: tuple[int | str, ...]) -> list[str]:
    """Leave out pydantic's names of the types it tried: int, Schedule, list[constrained-float], …"""
    tried = ("float", "int", "Schedule")
    return [str(p) for p in location if isinstance(p, int) or (p.isidentifier() and p not in tried)]


def _known_keys(sections: list[str], last: str) -> str:
    section: Any = Config
    for part in sections:
        section = Schedule if part == "step_size" else section.model_fields[part].annotation
    known = list(section.model_fields)
    close = difflib.get_close_matches(last, known, 1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known keys here: {', '.join(known)}"


def _flat(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    out: dict[tuple[str, ...], Any] = {}
    for key, value in values.items():
        out |= _flat(value, (*prefix, key)) if isinstance(value, dict) else {(*prefix, key): value}
    return out


def _toml(value: Any) -> str:  # noqa: ANN401 - any TOML value
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)
