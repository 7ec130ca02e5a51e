"""run.toml: what a user may write, with defaults; anything else is refused with the key, the value and what is right.

A section has its own keys and those of the component that its `name` (for data: `partition`) chooses, which live beside
that component (`privsgp.options`). Nothing here reads data. `Config.shared()` is the part all sites of a network must
agree on; its hash keys public randomness where no `seed` is given.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import math
import tomllib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, WithJsonSchema, create_model, model_validator

from privsgp.accounting.mechanisms import Accountant, nominal
from privsgp.algorithms import ALGORITHMS, PushSum
from privsgp.algorithms.algorithm import Trust
from privsgp.algorithms.update_rule import UpdateOptions
from privsgp.data import schema as schemas
from privsgp.data.images import ImageOptions
from privsgp.data.loading import Form
from privsgp.data.partitions import PARTITIONS
from privsgp.data.partitions import check as check_partition
from privsgp.data.persons import PersonOptions
from privsgp.data.published import BUILT_IN
from privsgp.data.schema_text import toml_value, written
from privsgp.data.tables import is_table
from privsgp.data.text import TextOptions
from privsgp.engine.averaging import FinalModel
from privsgp.errors import Refused
from privsgp.features.options import FEATURES
from privsgp.files import flat, read_toml
from privsgp.graph import GRAPHS
from privsgp.models.options import MODELS
from privsgp.options import Count, NotNegative, Options, Positive, Probability, Section, option
from privsgp.randomness import NOISES, REGISTERED
from privsgp.runs.refusals import AUTO, CLIP, GONE, close, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pydantic import ModelWrapValidatorHandler

    Rules = Iterator[tuple[object, str, str]]  # whether keys exclude each other, the keys, what to do

PLANNED = ("privsgp", "privsgp-vr", "privsgp-sag")  # what the planner rehearses
SITES = "sites"  # the data.name of arrays that each node brings, from Python
_FINEST = 2.0**-60  # of a clip: the squares of entries far below have no relative precision left, which κ rests on
_SCALE, _DIFFERENCE = "algorithm.difference_scale", "algorithm.difference_clip"


def _one_of(known: Collection[str], *, unsaid: str | None = None) -> AfterValidator:
    def check(value: str) -> str:
        if value not in known and value != unsaid:
            raise ValueError(f"use one of {', '.join(known)}{close(value, known)}")
        return value

    return AfterValidator(check)


_FILE_OR_TABLE = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]})
_Schema = Annotated[schemas.Schema | None, _FILE_OR_TABLE]
_Stragglers = Annotated[float, Field(ge=0, le=1)] | list[Annotated[int, Field(ge=0)]]
_SiteName = Annotated[str, Field(pattern=r"^\w[\w.-]{0,63}$")]
# pydantic has a method `schema`, deprecated for years, that the key of [data] hides.
warnings.filterwarnings("ignore", 'Field name "schema"', UserWarning)


class Data(PersonOptions, Options):
    """Data, and their division among the nodes."""

    name: str = option("digits", "digits, mnist, cifar10 or a9a; from Python, your own arrays")
    nodes: Count = option(16, "n: the number of nodes")
    partition: str = option("even", "how a data set is divided among the nodes")
    sizes: list[int] | None = option(None, "J_i: the number of samples of each node; default: all, divided evenly")
    path: str | None = option(None, 'each node its own file, "site-{node}.csv" or "{site}.csv": .csv, .parquet or .npz')
    classes: Count | None = option(
        None, "the number of classes in your own files; default: the file's number, or that of public test labels"
    )
    vocabulary: Count | None = option(
        None,
        "inputs are tokens: whole numbers from 0 to vocabulary − 1; default: inputs are real numbers",
    )
    text: TextOptions | None = option(None, "files are texts: .jsonl, .csv or .tsv with a column of text")
    images: ImageOptions | None = option(None, "each node's path is a folder of class folders with PNG and JPEG images")
    test: Literal["public", "private"] | None = option(
        None, "who may see metrics on test data; default: everybody for built-in data and simulations, else the site"
    )
    schema: _Schema = option(None, "tables: the public schema.toml that all sites share")  # type: ignore[assignment]
    sites: list[_SiteName] | None = option(None, "names of the nodes, in their order")
    test_path: str | None = option(None, "public test data: .csv, .parquet or .npz")

    @property
    def published(self) -> bool:
        """Whether this is a data set that anybody can have, its test set too."""
        return self.path is None and self.name in BUILT_IN

    @property
    def form(self) -> Form:
        """How files are read."""
        return Form(self.tokens, self.text, self.images, self.schema, self.persons)

    @property
    def persons(self) -> PersonOptions | None:
        """How rows are grouped by person; None: each row is a record of its own."""
        return None if self.person is None else self

    @property
    def tokens(self) -> int | None:
        """How many tokens there are, where inputs are some: as given, or those of texts."""
        return self.vocabulary if self.text is None else self.text.size

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_sites(cls, values: Any) -> Any:  # noqa: ANN401 - whatever was given
        """Take the number of names for the number of nodes, where nothing else is said."""
        if isinstance(values, dict) and isinstance(values.get("sites"), list):
            return {"nodes": len(values["sites"])} | values
        return values


class Features(Options):
    """A fixed map of each sample before the model."""

    name: Annotated[str, _one_of(FEATURES, unsaid="module")] = option("none", "the map")

    @property
    def options(self) -> dict[str, Any]:
        """The keys of the map that were given."""
        return self.model_dump(exclude={"name"}, exclude_none=True)


class Model(Options):
    """The model and its loss."""

    name: Annotated[str, _one_of(MODELS, unsaid="module")] = option("mlp", "the network; from Python, any module")
    loss: Literal["cross-entropy", "binary", "mse", "survival"] = option("cross-entropy", "the loss of a sample")


class GraphSection(Options):
    """The network of nodes."""

    name: Annotated[str, _one_of(GRAPHS)] = option("exponential", "the network")


class _Planned(Options):
    """A section with keys that "auto" leaves to the planner: their values are then only defaults."""

    may_be_auto: ClassVar[tuple[str, ...]]
    _auto: tuple[str, ...] = PrivateAttr(())

    @property
    def auto(self) -> tuple[str, ...]:
        """The keys that are left to the planner."""
        return self._auto

    @model_validator(mode="wrap")
    @classmethod
    def _leave_to_the_planner(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401
        given = values if isinstance(values, dict) else {}
        auto = tuple(key for key in cls.may_be_auto if given.get(key) == "auto")
        checked = handler({key: value for key, value in given.items() if key not in auto} if auto else values)
        checked._auto = auto or checked._auto
        return checked


class Privacy(_Planned):
    """Budgets, or fixed noise; one value, or a list with one per node."""

    epsilon: Positive | list[Positive] | None = option(None, "ε_i: the budget that noise is calibrated for")
    delta: Probability | list[Probability] = option(1e-5, "δ_i; below 1/J_i")
    sigma: NotNegative | list[NotNegative] | None = option(None, "σ_i instead of a budget: ε is then reported")
    clip: Positive = option(1.0, "G: the largest norm of one sample's gradient; or \"auto\": the planner's choice")
    accountant: Accountant = option("certified", "the formula that turns ε into σ; the reported ε is always certified")
    relation: Literal["zero-out", "replace-one"] = option("zero-out", "which data sets count as neighbours")
    spare: Annotated[float, Field(ge=0, le=1)] = option(
        0.02, "share of K that is reserved for steps repeated after crashes"
    )
    sites_per_person: Count = option(
        1, "s: the number of sites at which a person may have rows; ε holds for all of them"
    )
    noise: Annotated[str, _one_of(NOISES)] = option(
        "independent", "each node's own; pairwise: shared by pairs of nodes, it cancels in the average"
    )
    may_be_auto: ClassVar[tuple[str, ...]] = ("clip",)

    @property
    def nominal(self) -> bool:
        """Whether noise is a paper's, and its ε therefore no guarantee."""
        return nominal(self.accountant)

    @property
    def without_noise(self) -> bool:
        """Whether σ_i = 0 was given for a node."""
        return 0 in (self.sigma if isinstance(self.sigma, list) else [self.sigma])


class AlgorithmSection(_Planned, UpdateOptions, FinalModel):
    """The method. Batch, steps and step_size may be "auto": the planner chooses them."""

    name: Annotated[str, _one_of(ALGORITHMS)] = option("privsgp-vr", "the method")
    batch: Positive = option(16, "b: expected samples a step, at the mean size; node i draws with q = b/J̄")
    steps: Count = option(300, "K: steps with a gradient and noise; ε counts each")
    local_steps: Count = option(1, "τ: steps of a message: nodes send after every τ-th of the K steps")
    step_size: Positive = option(0.2, "γ")
    trust: Trust | None = option(None, "what an adversary sees; default: the method's own")
    may_be_auto: ClassVar[tuple[str, ...]] = AUTO


class TransportSection(Options):
    """Messages between nodes.

    Example:
        >>> import privsgp
        >>> privsgp.Transport(bits=8).bits
        8

    """

    bits: Literal[32, 16, 8, 4] = option(
        32,
        "of each number of a message; below 32, the sender rounds and keeps the rest; 32: as engine.dtype",
    )


class Clock(Options):
    """The virtual clock: simulated seconds of a gradient and a message. It changes models of asynchronous methods only.

    Example:
        >>> import privsgp
        >>> privsgp.Clock(spread=0.3, stragglers=[3], slowdown=5.0).slowdown
        5.0

    """

    spread: NotNegative = option(0.0, "standard deviation of the time of a gradient, whose mean is 1; log-normal")
    latency: NotNegative = option(0.0, "time of a message; a gradient takes 1")
    stragglers: _Stragglers = option(0.0, "slow nodes: a fraction of them, or a list of their numbers")
    slowdown: Annotated[float, Field(ge=1, allow_inf_nan=False)] = option(1.0, "the factor by which they are slower")


class EvaluationSection(Options):
    """Private evaluation: `privsgp evaluate RUN run.toml --private`. Only share and key have a part in training."""

    share: Annotated[float, Field(gt=0, le=0.5)] | None = option(
        None,
        "share of persons held out of training, by a hash of the identifier; without persons, of rows by place",
    )
    key: str = option("privsgp", "the public key of that hash; use one key for all studies of the same persons")
    epsilon: Positive = option(1.0, "ε of the one release of each site")
    delta: Probability = option(1e-5, "its δ; below 1 / held-out records of a site")
    bins: Annotated[int, Field(ge=2, le=100)] | list[Probability] = option(
        10, "bins of the probability of class 1, or of the risk: their number, or the edges between 0 and 1"
    )
    subgroups: list[str] = option(
        [], "columns of the schema (categories, yes/no) for whose values privsgp also computes metrics"
    )
    residual: Positive | None = option(
        None, "numbers: residuals are clipped here, in the unit of the table; default: a quarter of the target's range"
    )
    time: Positive | None = option(
        None, "survival: the edge of the schema's bins until which the risk is predicted; default: the middle one"
    )


class SumSection(Options):
    """One noised sum instead of a model: `privsgp describe`, `evaluate --private` and `agree propose` write this."""

    kind: Literal["description", "evaluation"] | None = option(None, "the release; default: a model")
    columns: list[str] = option([], "description: the columns; default: all that the schema uses")
    bins: Annotated[int, Field(ge=2, le=200)] = option(20, "description: bins of a number's public range")
    by: list[str] = option([], "description: columns by whose values the target's classes are counted too")
    moments: Annotated[float, Field(ge=0.01, le=1000)] | None = option(
        None, "description: second moments of rows that are clipped to this norm"
    )
    model: str | None = option(None, "evaluation: the SHA-256 of the model's file")
    run: str | None = option(None, "evaluation: the id of the run that trained the model")


class StudySection(Options):
    """Facts about a study that people write down. All sites sign them, and `privsgp dossier` repeats them."""

    purpose: str = option("", "what the model is for")
    contact: str = option("", "who answers questions about the study")
    tuned_on: str = option("", "the data on which settings were chosen: public, made up, or earlier runs and their ε")
    schema_from: str = option("", "the source of the schema's ranges and categories")


class PlanSection(Options):
    """The data that the planner rehearses on.

    Example:
        >>> import privsgp
        >>> privsgp.Plan(data="public.npz").data
        'public.npz'

    """

    data: str = option("synthetic", "synthetic stand-ins, or public data (a name or a file)")


class Engine(Options):
    """Device, precision and checkpoints. Only `dtype` changes the numbers.

    Example:
        >>> import privsgp
        >>> privsgp.Engine(device="cpu", checkpoint_every=50).checkpoint_every
        50

    """

    device: str = option("auto", "cpu, cuda, cuda:1, …; auto: a GPU if there is one")
    dtype: Literal["float32", "float64"] = option("float32", "the precision of models and gradients")
    evaluate_every: Count | None = option(None, "steps between evaluations; default: ten in a run")
    checkpoint_every: Annotated[int, Field(ge=0)] | None = option(
        None, "steps between checkpoints; 0: never, in simulations; default: as the spare allows"
    )


class Config(Options):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] = option("run", "the name of the run and of its folder")
    seed: Annotated[int, Field(ge=0)] | None = option(
        None, "makes a repeatable simulation, which is not private; default: secret noise"
    )
    data: Data = Data()
    features: Features = Features()
    model: Model = Model()
    graph: GraphSection = GraphSection()
    privacy: Privacy = Privacy()
    algorithm: AlgorithmSection = AlgorithmSection()
    transport: TransportSection = TransportSection()
    clock: Clock = Clock()
    plan: PlanSection = PlanSection()
    study: StudySection = StudySection()
    evaluation: EvaluationSection = EvaluationSection()
    sum: SumSection = SumSection()
    engine: Engine = Engine()
    _base: Path = PrivateAttr(default_factory=Path)

    def model_post_init(self, context: Any, /) -> None:  # noqa: ANN401 - pydantic's own
        """Remember the folder that paths are relative to."""
        self._base = context or Path()

    def __eq__(self, other: object) -> bool:
        """Compare what is said, wherever it stands."""
        return isinstance(other, Config) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.shared_hash())

    def site(self, node: int) -> str:
        """The name of a node in messages."""
        return f"node {node}" if self.data.sites is None else f"node {node} ({self.data.sites[node]})"

    @property
    def auto(self) -> tuple[str, ...]:
        """The keys, with their sections, that are left to the planner: their values here are only defaults."""
        both = ("algorithm", self.algorithm), ("privacy", self.privacy)
        return tuple(f"{name}.{key}" for name, section in both for key in section.auto)

    def with_planned(self, values: Mapping[str, Any]) -> Config:
        """Return the same configuration with the planner's values, by key; nothing is "auto" any more."""
        clip = {"clip": values[CLIP]} if CLIP in values else {}
        clipped = self.with_section("privacy", **clip) if clip else self
        return clipped.with_section(
            "algorithm", **{key.removeprefix("algorithm."): value for key, value in values.items() if key != CLIP}
        )

    @property
    def base(self) -> Path:
        """The folder that paths in it are relative to: that of run.toml."""
        return self._base

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_partition(self.data.partition, self.data.nodes, self.data.sizes)
        groups = (self._data_rules, self._person_rules, self._privacy_rules, self._algorithm_rules, self._list_rules)
        for broken, keys, remedy in (rule for rules in groups for rule in rules()):
            if broken:
                raise Refused(self._with_values(keys), remedy)
        if self.privacy.noise == "pairwise" and (why := self._unshared()) is not None:
            raise Refused(self._with_values(why[0]), why[1])
        return self

    def _with_values(self, keys: str) -> str:
        """Write keys with their values: "a.b = 1 with c.d = 2 without e.f"."""
        first, *others = keys.split()
        values = {key: self._value(key) for key in (first, *others)}
        values |= dict.fromkeys(self.auto, "auto")
        rest = [f" without {key}" if values[key] is None else f" with {key} = {values[key]!r}" for key in others]
        return f"{first} = {values[first]!r}{''.join(rest)}"

    def _value(self, key: str) -> Any:  # noqa: ANN401 - of any kind
        section, _, name = key.rpartition(".")
        return getattr(getattr(self, section) if section else self, name)

    def _data_rules(self) -> Rules:
        """Yield which keys of [data] exclude each other: whether they do, the keys, and what to do."""
        d, sites = self.data, self.data.sites or []
        yield sites and len(sites) != d.nodes, "data.sites data.nodes", "give one name per node"
        yield len(set(sites)) < len(sites), "data.sites", "give each site a name of its own, none twice"
        for key in ("path", "test_path"):
            unread = is_table(getattr(d, key) or "") and d.text is None and not d.schema
            yield unread, f"data.{key} data.schema", "name the public schema.toml that all sites share"
        other = d.schema and d.path and not is_table(d.path)
        yield other, "data.path", "a schema is of .csv or .parquet"
        unlike = d.schema is not None and (d.schema.times is not None) != (self.model.loss == "survival")
        yield unlike, "model.loss", "take 'survival' for a target of type 'survival', and for no other"
        yield d.schema and d.classes, "data.classes", "leave it out: data.schema lists them"
        own = d.text is not None and d.text.tokens == "minilm"
        apart = own != (self.features.name == "minilm")
        yield apart, "features.name", "take it for data.text.tokens too, or never"
        divided = self.seed is None and d.path is None and d.partition != "even"
        remedy = "take 'even' or data.path, or give a seed: public sizes J_i tell of labels"
        yield divided, "data.partition seed", remedy

    def _person_rules(self) -> Rules:
        d, p, s = self.data, self.privacy, self.privacy.sites_per_person
        for key in ("rows_per_person", "rows_date", "rows_weight"):
            alone = getattr(d, key) is not None and d.person is None
            yield alone, f"data.{key} data.person", 'name the column that says whose row it is: person = "patient_id"'
        latest = (d.rows_choice == "latest") != (d.rows_date is not None)
        yield latest, "data.rows_choice data.rows_date", "give both, 'latest' and a column of dates, or neither"
        yield s > d.nodes, "privacy.sites_per_person data.nodes", "take at most as many as there are nodes"
        if d.person is None:
            yield s > 1, "privacy.sites_per_person data.person", "leave it out: it is for persons"
            return
        for key in ("epsilon", "delta", "sigma") if s > 1 else ():
            keys = f"privacy.{key} privacy.sites_per_person"
            yield isinstance(getattr(p, key), list), keys, "give all nodes the same: a person is at several"
        yield d.rows_per_person is None, "data.person data.rows_per_person", "say how many rows of a person are used"
        both = self.evaluation.share is not None and p.relation == "replace-one"
        remedy = "take 'zero-out': the sides have public sizes, and another person may be on the other side"
        yield both, "privacy.relation evaluation.share data.person", remedy
        unnamed = d.images is not None and (d.person.count("{person}") != 1 or d.rows_date or d.rows_weight)
        yield unnamed, "data.person data.images", 'write it like "{person}_*.png", without rows_date and rows_weight'
        known = set() if d.schema is None else {*d.schema.encoded, *d.schema.target.columns}
        known |= set() if d.text is None else {d.text.column, d.text.label}
        yield (
            d.person in known,
            "data.person",
            "no model may see whose row it is: let the schema ignore it, or name another",
        )
        method = ALGORITHMS[self.algorithm.name]
        apart = s > 1 and (method.pooled or method.asynchronous)
        remedy = "leave it out: sites with one table, or with other numbers of steps, are no sites alike"
        yield apart, "privacy.sites_per_person algorithm.name", remedy

    def _privacy_rules(self) -> Rules:
        p, method = self.privacy, ALGORITHMS[self.algorithm.name]
        yield not _FINEST <= p.clip <= 1 / _FINEST, "privacy.clip", "take 2⁻⁶⁰ to 2⁶⁰: rounding is known there"
        both = p.epsilon is not None and p.sigma is not None
        yield both, "privacy.epsilon privacy.sigma", "give epsilon (noise is calibrated) or sigma (ε is reported)"
        unknown = p.nominal and p.epsilon is None
        yield unknown, "privacy.accountant privacy.epsilon", "give the ε it turns into noise"
        unknown = self.private and p.epsilon is None and p.sigma is None
        which = "algorithm.name privacy.epsilon privacy.sigma"
        yield unknown, which, "give privacy.epsilon = 3.0, or privacy.sigma = 0.1 (0: no noise)"
        unheld = p.nominal and method.asynchronous
        yield unheld, "privacy.accountant algorithm.name", "take 'certified': no published noise holds for one node"
        remedy = "give a seed: privsgp has no proof of this noise, so it is for simulations"
        yield p.noise in REGISTERED and self.seed is None, "privacy.noise seed", remedy
        never = self.engine.checkpoint_every == 0 and self.seed is None
        yield never, "engine.checkpoint_every seed", "leave it out: after a crash all steps would be paid for again"
        for key in ("epsilon", "delta", "sigma") if self.trust == "secure aggregation" else ():
            value = getattr(p, key)
            differ = isinstance(value, list) and len(set(value)) > 1
            yield differ, f"privacy.{key} algorithm.name", "give all nodes the same, or algorithm.trust = 'per-node'"

    def _algorithm_rules(self) -> Rules:
        a, c, method = self.algorithm, self.clock, ALGORITHMS[self.algorithm.name]
        for key, unused in (("weights", "equal"), ("momentum", 0.0)):
            used = method.step is not PushSum.step and getattr(a, key) != unused
            yield used, f"algorithm.{key} algorithm.name", "leave it out: this algorithm's steps are its own"
        if a.trust is not None and a.trust not in method.trusts:
            users = [repr(name) for name, one in ALGORITHMS.items() if a.trust in one.trusts]
            yield True, "algorithm.trust algorithm.name", f"leave it out, or take {' or '.join(users) or 'another'}"
        silent = a.weights == "noise" and (not self.private or self.privacy.without_noise)
        yield silent, "algorithm.weights algorithm.name", "take others: a node has no noise"
        for first in self.auto[:1]:
            unpaid = self.privacy.epsilon is None or not self.private
            remedy = "give a private algorithm and privacy.epsilon, or the number itself"
            yield unpaid, f"{first} privacy.epsilon", remedy
            remedy = f"give the number itself: the planner knows {', '.join(PLANNED)}"
            yield a.name not in PLANNED, f"{first} algorithm.name", remedy
        pushed = method.step is PushSum.step and method.network == "directed"
        remedy = "take privsgp, privsgp-vr or privsgp-sag: a node of push-sum can keep what a message leaves out. "
        remedy += "Compressed messages, servers, and pairs that average have no place for it"
        for key, used in (("transport.bits", self.transport.bits < 32), ("algorithm.local_steps", a.local_steps > 1)):
            yield used and not pushed, f"{key} algorithm.name", remedy
        remainder = a.steps % a.local_steps and "steps" not in a.auto
        yield remainder, "algorithm.local_steps algorithm.steps", "take K that it divides: K counts local steps too"
        apart = a.final_mixing and method.network in ("server", "alone")
        yield apart, "algorithm.final_mixing algorithm.name", "leave it out: its nodes have no neighbours to mix with"
        slow = bool(c.stragglers) != (c.slowdown > 1)
        remedy = "say both which nodes are slow and how much slower, or neither"
        yield slow, "clock.slowdown clock.stragglers", remedy

    def _list_rules(self) -> Rules:
        n, slow = self.data.nodes, self.clock.stragglers
        for key in ("privacy.epsilon", "privacy.delta", "privacy.sigma", "algorithm.weights"):
            value = self._value(key)
            yield isinstance(value, list) and len(value) != n, f"{key} data.nodes", "give one per node"
        beyond = isinstance(slow, list) and max(slow, default=0) >= n
        yield beyond, "clock.stragglers data.nodes", f"name nodes from 0 to {n - 1}, or give a fraction"

    def _unshared(self) -> tuple[str, str] | None:
        """Return why noise cannot be shared by pairs of nodes, as keys and a remedy; None where it can be."""
        p, n = self.privacy, self.data.nodes
        if not ALGORITHMS[self.algorithm.name].noise_cancels():
            users = "privsgp, privsgp-vr, privsgp-sag or dp2-sgd"
            return "privacy.noise algorithm.name", f"take 'independent' noise, or {users}: there shared noise cancels"
        if p.nominal:
            return "privacy.noise privacy.accountant", "take 'certified'"
        if p.without_noise:
            return "privacy.noise privacy.sigma", "give every node a noise above 0"
        if not 2 <= self.honest <= n:
            return "privacy.honest data.nodes", f"take 2 to {max(n, 2)}, oneself included, or 'independent' noise"
        return None

    @property
    def pairwise(self) -> bool:
        """Whether pairs of nodes share noise: where "auto" leaves the choice, wherever it can be."""
        kind = self.privacy.noise
        return kind == "pairwise" or (kind == "auto" and self._unshared() is None)

    @property
    def honest(self) -> int:
        """How many nodes are honest, each of them included: as given, else three quarters, at least 2."""
        given: int | None = getattr(self.privacy, "honest", None)
        return max(2, math.ceil(0.75 * self.data.nodes)) if given is None else given

    @property
    def pair_ratio(self) -> float:
        """ρ of pairwise noise."""
        ratio: float = getattr(self.privacy, "pair_ratio", 2.0)
        return ratio

    @property
    def trusted(self) -> int:
        """How many nodes have to be honest for ε to hold: without shared noise the node alone."""
        return self.honest if self.pairwise else 1

    @property
    def test_is_public(self) -> bool:
        """Whether metrics on test data may be told to peers and stand in what a run leaves for others.

        As `data.test` says; else in simulations, and where the test set is a published one or `data.test_path`.
        """
        if self.data.test is not None and self.seed is None:
            return self.data.test == "public"
        return self.seed is not None or self.data.published or self.data.test_path is not None

    @property
    def trust(self) -> Trust:
        """The view of an adversary: from the configuration, else the algorithm's own."""
        if self.pairwise:
            return "honest sites"
        return self.algorithm.trust or ALGORITHMS[self.algorithm.name].trust

    @property
    def private(self) -> bool:
        """Whether the algorithm adds noise at all."""
        return ALGORITHMS[self.algorithm.name].private

    @property
    def secret(self) -> bool:
        """Whether it adds noise that nobody can compute again: what it releases is paid for."""
        return self.private and self.seed is None

    def options(self, section: str) -> dict[str, Any]:
        """Return the values of the keys that the chosen component brings to a section."""
        chosen = getattr(self, section)
        own = SECTIONS[section].options(getattr(chosen, SECTIONS[section].key))
        return {key: getattr(chosen, key) for key in own.model_fields}

    def shared(self) -> dict[str, Any]:
        """Return what every site must agree on: no names, paths, devices or file layouts."""
        kept = {"share", "key"} if self.sum.kind is None else set(EvaluationSection.model_fields)
        return self.model_dump(
            mode="json",
            exclude={
                "name": True,
                "plan": True,
                "evaluation": set(EvaluationSection.model_fields) - kept,
                "data": {"path", "test", "test_path"},
                "engine": set(Engine.model_fields) - {"dtype"},
            },
        )

    def with_section(self, which: str, /, **values: Any) -> Config:  # noqa: ANN401 - keys of the section
        """Return the same configuration with other values in a section; what its component has no use for goes."""
        kept = getattr(self, which).model_dump()
        if (section := SECTIONS.get(which)) is not None:
            own = section.options(values.get(section.key, kept[section.key])).model_fields
            kept = {key: value for key, value in kept.items() if key in section.base.model_fields or key in own}
        return self.with_values({which: kept | values})

    def with_values(self, changed: dict[str, Any]) -> Config:
        """Return the same configuration with other sections, checked anew."""
        return parse(self._with_auto() | changed, base=self._base)

    def __reduce__(self) -> tuple[Callable[..., Config], tuple[dict[str, Any], tuple[str, ...], Path]]:
        """Pickle the values: the class is made of the components that they name."""
        return parse, (self._with_auto(), (), self._base)

    def _with_auto(self) -> dict[str, Any]:
        values = self.model_dump()
        for section, name in (key.split(".") for key in self.auto):
            values[section][name] = "auto"
        return values

    def shared_hash(self) -> str:
        """Return the SHA-256 of the shared part, on which public randomness hangs without a seed.

        θ, and C = G beside it, have no share in it: "auto" is settled once J_i are known, and x⁰ is drawn before.
        """
        values = self.shared()
        a = values["algorithm"]
        a.pop("difference_scale", None)
        if a.get("difference_clip") is not None and a["difference_clip"] == self.privacy.clip:
            a["difference_clip"] = None
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def toml(self) -> str:
        """Write the configuration out in full, defaults included."""
        values = self.model_dump(mode="json", exclude_none=True)
        schema = "" if self.data.schema is None else "\n" + written(self.data.schema, "data.schema.")
        values["data"].pop("schema", None)
        top = [f"{key} = {toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
        for section, keys in values.items():
            if isinstance(keys, dict):
                own = SECTIONS[section].base.model_fields if section in SECTIONS else keys
                ordered = sorted(keys.items(), key=lambda item: item[0] not in own)  # a component's keys come last
                top += ["", f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in ordered)]
        return "\n".join(top) + "\n" + schema


SECTIONS = {
    "data": Section(Data, "partition", PARTITIONS),
    "features": Section(Features, "name", FEATURES),
    "model": Section(Model, "name", MODELS),
    "graph": Section(GraphSection, "name", GRAPHS),
    "privacy": Section(Privacy, "noise", NOISES),
    "algorithm": Section(AlgorithmSection, "name", ALGORITHMS),
}


@functools.cache
def _config_with(*options: type[Options]) -> type[Config]:
    """Return the configuration whose sections have these components' keys, in the order of `SECTIONS`."""
    fields: dict[str, Any] = {}
    for (name, section), own in zip(SECTIONS.items(), options, strict=True):
        base = section.base
        kind = base if own is Options else create_model(base.__name__, __base__=(base, own), __doc__=base.__doc__)
        fields[name] = kind, kind()
    return create_model("Config", __base__=Config, **fields)


def read(path: Path, changes: Sequence[str] = ()) -> Config:
    """Read run.toml and apply `--set KEY=VALUE` changes (VALUE is TOML, else a string; nothing takes the key out).

    Paths in it are relative to the folder it lies in.
    """
    return parse(read_toml(path, "config", "see run.toml in the README"), changes, path.parent)


def started(path: Path) -> Config:
    """Read config.toml of a run folder, which an earlier release may have written.

    Keys that are gone are dropped: reports and models are made without them. A folder from before differences had a
    weight is of the paper's estimator.
    """
    return _started(path)[0]


def _started(path: Path) -> tuple[Config, dict[str, Any]]:
    """Return what config.toml of a run folder says, and the keys that are gone and changed the result."""
    values = read_toml(path, "config", "see run.toml in the README")
    gone = _drop_gone(values)
    config = parse(values, base=path.parent)
    if "difference_scale" not in config.algorithm.model_fields_set and hasattr(config.algorithm, "difference_scale"):
        config = config.with_section("algorithm", difference_scale=1.0)
    return config, gone


def _drop_gone(values: dict[str, Any]) -> dict[str, Any]:
    """Take what is gone out of a configuration of release 1.0.0rc1; return what changed the result."""
    gone: dict[str, Any] = {}
    for key, (_, unused) in GONE.items():
        section, name = key.split(".")
        if (given := values.get(section, {}).pop(name, unused)) != unused:
            gone[key] = given
    for section, key in (("privacy", "clip"), ("algorithm", "step_size")):  # which could change over the run
        if isinstance(given := values.get(section, {}).get(key), dict):
            gone[f"{section}.{key}"], values[section][key] = given, given.get("start")
    if (a := values.get("algorithm", {})).get("step_size") == "theory":
        gone["algorithm.step_size"], a["step_size"] = "theory", math.sqrt(values["data"]["nodes"] / a["steps"])
    for section, key, former in _FORMER:
        if values.get(section, {}).get(key) in former:
            gone[f"{section}.{key}"] = values[section].pop(key)
            if section == "features":  # whose other keys were that map's
                gone["features"] = values.pop("features")
    if values.get("data", {}).get("partition") == "dirichlet" and "sizes" in values["data"]:
        gone["data.sizes"] = values["data"].pop("sizes")
    return gone


def parse(values: dict[str, Any], changes: Sequence[str] = (), base: Path | None = None) -> Config:
    """Turn plain values into a checked configuration, after `--set KEY=VALUE` changes; paths are relative to `base`."""
    try:
        values = copy.deepcopy(values) if changes else values
        for change in changes:
            _apply(values, change)
        data = values.get("data")
        if isinstance(data, dict) and isinstance(name := data.get("schema"), str):  # a file: its content replaces it
            values = values | {"data": data | {"schema": schemas.read((base or Path()) / name).model_dump()}}
        kind = _config_with(*(section.options(section.chosen(values.get(name))) for name, section in SECTIONS.items()))
        return kind.model_validate(values, context=base)
    except ValidationError as error:
        raise refusal(error, kind, values, SECTIONS) from error
    except RecursionError as error:
        raise Refused("a value has too many nested brackets", "docs/reference/run-toml.md has all keys") from error


def changes(started: Path, now: Config) -> list[str]:
    """Name every key whose change since config.toml of a run folder would change the result, with both values."""
    old, gone = _started(started)
    return differences(old, now, gone)


def differences(old: Config, new: Config, gone: Mapping[str, Any] | None = None) -> list[str]:
    """Name every key whose change would change the result, with both values; `gone` are keys of an old run folder."""
    free = {"name", *(f"plan.{key}" for key in PlanSection.model_fields)}
    free |= {f"engine.{key}" for key in ("device", "evaluate_every", "checkpoint_every")}
    free |= {f"evaluation.{key}" for key in EvaluationSection.model_fields if key not in ("share", "key")}
    a, b = flat(old.model_dump(mode="json")) | dict(gone or {}), flat(new.model_dump(mode="json"))
    if b.get(_SCALE) == "auto":  # settled by the rest, or as the run that goes on has it
        free |= {_SCALE} if b.get(_DIFFERENCE) is not None else {_SCALE, _DIFFERENCE}
    keys = [key for key in a | b if key not in free and a.get(key) != b.get(key)]
    return [f"{key}: {a.get(key)} → {b.get(key)}" for key in keys]


def _apply(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    *sections, last = key.strip().split(".")
    if not equals or not all((*sections, last)):
        raise Refused(f"--set {change} has no key or value", "write --set KEY=VALUE, as in --set algorithm.batch=32")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise Refused(f"--set {change}: {section} is a value, not a section", "`privsgp options` lists all keys")
    values[last] = value
    if not text:
        del values[last]


# Values that are gone.
_FORMER = (
    ("algorithm", "table", ("block",)),
    ("algorithm", "average", ("exponential",)),
    ("features", "name", ("random-conv", "efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")),
)
