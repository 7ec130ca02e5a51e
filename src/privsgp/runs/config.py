"""run.toml: what a user may write, with defaults; anything else is refused with the key, the value and what is right.

A section has its own keys and those of the component that its `name` (for data: `partition`) chooses, which live beside
that component (`privsgp.options`). Nothing here reads data. `Config.shared()` is the part all sites of a network must
agree on; its hash keys public randomness where no `seed` is given.
"""

from __future__ import annotations

import copy
import difflib
import functools
import hashlib
import json
import math
import os
import re
import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)

from privsgp.accounting.mechanisms import Accountant, nominal
from privsgp.algorithms import ALGORITHMS, PushSum
from privsgp.algorithms.algorithm import Trust  # noqa: TC001 - a field has this type
from privsgp.algorithms.update_rule import UpdateOptions
from privsgp.data import schema as schemas
from privsgp.data.images import ImageOptions
from privsgp.data.loading import BUILT_IN, Form
from privsgp.data.partitions import PARTITIONS
from privsgp.data.partitions import check as check_partition
from privsgp.data.tables import is_table
from privsgp.data.text import TextOptions
from privsgp.engine.averaging import FinalModelOptions
from privsgp.errors import Refused
from privsgp.features.options import EFFICIENTNET, FEATURES
from privsgp.files import flat, read_toml
from privsgp.graph import GRAPHS
from privsgp.models.options import MODELS
from privsgp.options import Count, NotNegative, Options, Positive, Probability, option
from privsgp.randomness import NOISES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pydantic_core import ErrorDetails


PLANNED = ("privsgp", "privsgp-vr", "privsgp-sag")  # what the planner rehearses and chooses from
AUTO = ("name", "steps", "step_size", "batch", "weights")  # of [algorithm]: what can be left to it


_FINEST = 2.0**-60  # of a clip: the squares of entries far below have no relative precision left, which κ rests on
SITES = "sites"  # the data.name of arrays that each node brings, from Python


_SCALE, _DIFFERENCE = "algorithm.difference_scale", "algorithm.difference_clip"


def _one_of(known: Collection[str], *, unsaid: str | None = None) -> AfterValidator:
    def check(value: str) -> str:
        names = list(known)  # looked up anew: a user may have added an algorithm
        if value not in (*names, unsaid):
            close = difflib.get_close_matches(value, names, 1)
            raise ValueError(f"use one of {', '.join(names)}" + (f" (did you mean {close[0]!r}?)" if close else ""))
        return value

    return AfterValidator(check)


def _site_name(value: str) -> str:
    if not re.fullmatch(r"\w[\w.-]{0,63}", value):
        raise ValueError("a site's name has up to 64 letters, digits, '_', '-' and '.'")
    return value


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", value):
        raise ValueError("it names a folder: use letters, digits, '_', '-' and '.'")
    return value


_FILE_OR_TABLE = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]})

with warnings.catch_warnings():  # pydantic has a method `schema`, deprecated for years, that this key hides
    warnings.simplefilter("ignore", UserWarning)

    class _Tables(Options):
        """What tables of one's own are, and whose."""

        schema: Annotated[schemas.Schema | None, _FILE_OR_TABLE] = option(  # type: ignore[assignment]
            None, "tables: the public schema.toml that all sites share"
        )
        sites: list[Annotated[str, AfterValidator(_site_name)]] | None = option(
            None, "names of the nodes, in their order"
        )
        test_path: str | None = option(None, "public test data: .csv, .parquet, .feather or .npz")


class Data(_Tables):
    """What is learnt from, and how it lies on the nodes."""

    name: str = option("digits", "digits, mnist, cifar10 or a9a; from Python, your own arrays")
    nodes: Count = option(16, "n: how many nodes")
    partition: str = option("even", "how a data set is divided among the nodes")
    sizes: list[int] | None = option(None, "J_i: how many samples each node gets; left out: all of them, evenly")
    path: str | None = option(
        None, 'each node its own file, "site-{node}.csv" or "{site}.csv": .csv, .parquet, .feather or .npz'
    )
    classes: Count | None = option(
        None, "how many classes labels in files of one's own have; left out: the file says it, or public test labels"
    )
    vocabulary: Count | None = option(
        None,
        "inputs are tokens, whole numbers from 0 to vocabulary − 1, and stay so; left out: inputs are real numbers",
    )
    text: TextOptions | None = option(None, "files are texts: .jsonl, .csv or .tsv with a column of text")
    images: ImageOptions | None = option(None, "each node's path is a folder of class folders with PNG and JPEG images")
    test: Literal["public", "private"] | None = option(
        None, "who may see metrics on test data; left out: everybody of built-in data and in simulations, else the site"
    )

    @property
    def published(self) -> bool:
        """Whether this is a data set that anybody can have, its test set too."""
        return self.path is None and self.name in BUILT_IN

    @property
    def form(self) -> Form:
        """How files are read."""
        return Form(self.tokens, self.text, self.images, self.schema)

    @property
    def tokens(self) -> int | None:
        """How many tokens there are, where inputs are some: as given, or those of texts."""
        return self.vocabulary if self.text is None else self.text.size

    @property
    def brought(self) -> bool:
        """Whether each node brings its own records, and none is moved by how many there are elsewhere."""
        return self.path is not None or self.name == SITES

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_sites(cls, values: Any) -> Any:  # noqa: ANN401 - whatever was given
        """Take the number of names for the number of nodes, where nothing else is said."""
        if isinstance(values, dict) and "nodes" not in values and isinstance(values.get("sites"), list):
            return values | {"nodes": len(values["sites"])}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.sites is not None and len(self.sites) != self.nodes:
            raise Refused(f"data.sites has {len(self.sites)} names for data.nodes = {self.nodes}", "give one per node")
        if self.sites is not None and (twice := {name for name in self.sites if self.sites.count(name) > 1}):
            raise Refused(f"data.sites has {min(twice)!r} twice", "give each site a name of its own")
        for key in ("path", "test_path"):
            name = getattr(self, key)
            if name is not None and is_table(name) and self.schema is None and self.text is None:
                raise Refused(
                    f"data.{key} = {name!r} without data.schema",
                    'name the public schema.toml that all sites share: schema = "schema.toml"',
                )
        if self.schema is not None and self.path is not None and not is_table(self.path):
            raise Refused(f"data.schema beside data.path = {self.path!r}", "a schema is of .csv, .parquet or .feather")
        if self.schema is not None and self.classes is not None:
            raise Refused(f"data.classes = {self.classes} beside data.schema", "leave it out: the schema lists them")
        check_partition(self.partition, self.nodes, self.sizes)
        if self.path is not None and self.sizes is not None:
            raise Refused(
                "data.sizes beside data.path", "leave data.sizes out: each node's file says how much it holds"
            )
        return self


class Features(Options):
    """What the model sees of a sample: the sample, or a fixed map of it."""

    name: Annotated[str, _one_of(FEATURES, unsaid="module")] = option("none", "the map")

    @property
    def options(self) -> dict[str, Any]:
        """The keys of the map that were given."""
        return self.model_dump(exclude={"name"}, exclude_none=True)


class Model(Options):
    """What is learnt."""

    name: Annotated[str, _one_of(MODELS, unsaid="module")] = option("mlp", "the network; from Python, any module")
    loss: Literal["cross-entropy", "binary", "mse"] = option("cross-entropy", "what a sample's outputs cost")


class GraphSection(Options):
    """Who talks to whom."""

    name: Annotated[str, _one_of(GRAPHS)] = option("exponential", "the network")


class Privacy(Options):
    """Budgets, or fixed noise; one value, or a list with one per node."""

    epsilon: Positive | list[Positive] | None = option(None, "ε_i: the budget that noise is calibrated for")
    delta: Probability | list[Probability] = option(1e-5, "δ_i; below 1/J_i")
    sigma: NotNegative | list[NotNegative] | None = option(None, "σ_i instead of a budget: ε is then reported")
    clip: Positive = option(1.0, "G: the largest norm of one sample's gradient")
    accountant: Accountant = option("certified", "who turns ε into σ; ε is always certified")
    relation: Literal["zero-out", "replace-one"] = option("zero-out", "which data sets count as neighbours")
    c2: Positive = option(0.3724, "c₂ of the published formula")
    spare: Annotated[float, Field(ge=0, le=1)] = option(0.02, "share of K that may be made again after crashes")
    noise: Annotated[str, _one_of(NOISES)] = option(
        "independent", "each node's own; pairwise: shared by pairs of nodes, it cancels in the average"
    )

    @property
    def nominal(self) -> bool:
        """Whether noise is a paper's, and its ε therefore no guarantee."""
        return nominal(self.accountant)

    @property
    def without_noise(self) -> bool:
        """Whether σ_i = 0 was given for a node."""
        return 0 in (self.sigma if isinstance(self.sigma, list) else [self.sigma])

    @model_validator(mode="after")
    def _can_be_counted(self) -> Self:
        if not _FINEST <= self.clip <= 1 / _FINEST:
            raise Refused(
                f"privacy.clip = {self.clip:g}", "take 2⁻⁶⁰ to 2⁶⁰: beyond, squares leave what is known of rounding"
            )
        if self.epsilon is not None and self.sigma is not None:
            raise Refused(
                f"privacy.epsilon = {self.epsilon} beside privacy.sigma = {self.sigma}",
                "give epsilon (noise is calibrated) or sigma (ε is reported), not both",
            )
        if self.nominal and self.epsilon is None:
            raise Refused(
                f"privacy.accountant = {self.accountant!r} without privacy.epsilon",
                "give the nominal ε it turns into noise",
            )
        return self


class Schedule(Options):
    """A step size that falls from `start` to `end` over the run, or over what is left after a share `hold` of it."""

    schedule: Literal["cosine", "linear"] = option(..., "how it falls")
    start: Positive = option(..., "γ at the first step")
    end: NotNegative = option(0.0, "γ at the last step")
    hold: Annotated[float, Field(ge=0, lt=1)] = option(0.0, "share of the steps before it begins to fall")

    @property
    def mean(self) -> float:
        """The mean of γ_k: what γK is divided by K."""
        return self.hold * self.start + (1 - self.hold) * (self.start + self.end) / 2

    def at(self, k: int, steps: int) -> float:
        """Return γ_k."""
        done = max(0.0, (k / max(1, steps - 1) - self.hold) / (1 - self.hold))
        left = (1 + math.cos(math.pi * done)) / 2 if self.schedule == "cosine" else 1 - done
        return self.end + (self.start - self.end) * left


class AlgorithmSection(UpdateOptions, FinalModelOptions):
    """How it is learnt; name, batch, steps, step_size and weights may be "auto", which leaves them to the planner."""

    name: Annotated[str, _one_of(ALGORITHMS)] = option("privsgp-vr", "the method")
    batch: Positive = option(16, "b: expected samples a step, at the mean size; node i draws with q = b/J̄")
    steps: Count = option(300, "K")
    step_size: Positive | Literal["theory"] | Schedule = option(0.2, "γ; theory: √(n/K)")
    sampling: Literal["poisson", "fixed"] = option("poisson", "a coin a sample, or batches of one size")
    trust: Trust | None = option(None, "what an adversary sees; left out: the method's own")
    _auto: tuple[str, ...] = PrivateAttr(())

    @property
    def auto(self) -> tuple[str, ...]:
        """The keys whose values here are only their defaults, because the planner is to choose them."""
        return self._auto

    @model_validator(mode="wrap")
    @classmethod
    def _leave_to_the_planner(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401
        if not isinstance(values, dict):
            return handler(values)
        auto = tuple(key for key in AUTO if values.get(key) == "auto")
        for key in ("difference_clip", "difference_scale"):
            if "name" in auto and values.get(key) not in (None, "auto"):
                raise Refused(f"algorithm.{key} = {values[key]} with algorithm.name = 'auto'", "leave it out")
        checked = handler({key: value for key, value in values.items() if key not in auto})
        checked._auto = auto
        return checked

    @model_validator(mode="after")
    def _algorithm_can_do_so(self) -> Self:
        given = [key for key in ("weights", "momentum") if getattr(self, key) not in ("equal", 0.0)]
        if given and ALGORITHMS[self.name].step is not PushSum.step:
            raise Refused(
                f"algorithm.{given[0]} = {getattr(self, given[0])} with algorithm.name = {self.name!r}",
                "leave it out: this algorithm's steps are its own",
            )
        if self.trust is not None and self.trust not in ALGORITHMS[self.name].trusts:
            users = [repr(name) for name, algorithm in ALGORITHMS.items() if self.trust in algorithm.trusts]
            raise Refused(
                f"algorithm.trust = {self.trust!r} with algorithm.name = {self.name!r}",
                f"leave it out, or take {' or '.join(users)}" if users else "leave it out",
            )
        return self


class Clock(Options):
    """The virtual clock: seconds that a gradient and a message take. It changes models of asynchronous methods only."""

    compute: Literal["constant", "exponential", "lognormal"] = option(
        "constant", "how a gradient's time is distributed"
    )
    mean: Positive = option(1.0, "seconds that a gradient takes")
    spread: Positive | None = option(None, "standard deviation / mean of lognormal times")
    latency: NotNegative = option(0.0, "seconds that a message takes, however short")
    bandwidth: Positive | None = option(None, "bytes a second; left out: no limit")
    stragglers: Annotated[float, Field(ge=0, le=1)] | list[Annotated[int, Field(ge=0)]] = option(
        0.0, "slow nodes: a fraction of them, or a list of their numbers"
    )
    slowdown: Annotated[float, Field(ge=1, allow_inf_nan=False)] = option(1.0, "how much slower they are")

    @model_validator(mode="after")
    def _has_a_use(self) -> Self:
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


class PlanSection(Options):
    """What a plan may look at."""

    data: str = option("synthetic", "synthetic stand-ins, or public data (a name or a file)")


class Engine(Options):
    """Where and how it runs; only `dtype` changes the numbers."""

    device: str = option("auto", "cpu, cuda, cuda:1, …; auto: a GPU where there is one")
    dtype: Literal["float32", "float64"] = option("float32", "the precision of models and gradients")
    evaluate_every: Count | None = option(None, "steps between evaluations; left out: ten in a run")
    checkpoint_every: Annotated[int, Field(ge=0)] | None = option(
        None, "steps between checkpoints; 0: never, in simulations; left out: as the spare allows"
    )


class Config(Options):
    """A whole run."""

    name: Annotated[str, AfterValidator(_folder_name)] = option("run", "what the run is called")
    seed: Annotated[int, Field(ge=0)] | None = option(
        None, "makes a simulation that anyone can repeat, and that is not private; left out: secret noise"
    )
    data: Data = Data()
    features: Features = Features()
    model: Model = Model()
    graph: GraphSection = GraphSection()
    privacy: Privacy = Privacy()
    algorithm: AlgorithmSection = AlgorithmSection()
    clock: Clock = Clock()
    plan: PlanSection = PlanSection()
    engine: Engine = Engine()
    _base: Path = PrivateAttr(default_factory=Path)
    _gone: dict[str, Any] = PrivateAttr(default_factory=dict)  # keys of an earlier release, in a run folder

    def __eq__(self, other: object) -> bool:
        """Compare what is said, wherever it stands."""
        return isinstance(other, Config) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.shared_hash())

    def site(self, node: int) -> str:
        """What a node is called in messages."""
        return f"node {node}" if self.data.sites is None else f"node {node} ({self.data.sites[node]})"

    @property
    def base(self) -> Path:
        """The folder that paths in it are relative to: that of run.toml."""
        return self._base

    def beside(self, folder: Path) -> Config:
        """Return the same configuration for a run.toml in another folder: its paths lead to the same files."""
        named = {key: getattr(self.data, key) for key in ("path", "test_path")}
        moved = {key: os.path.relpath(self.base / name, folder) for key, name in named.items() if name is not None}
        if folder.resolve() == self.base.resolve() or not moved:
            return self
        return self.with_section("data", **moved)

    @model_validator(mode="after")
    def _one_per_node(self) -> Self:
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
    def _noise_is_known(self) -> Self:
        if self.private and self.privacy.epsilon is None and self.privacy.sigma is None:
            raise Refused(
                f"algorithm.name = {self.algorithm.name!r} without privacy.epsilon and privacy.sigma",
                "give a budget (privacy.epsilon = 3.0) or a noise (privacy.sigma = 0.1; 0 for none)",
            )
        if self.algorithm.weights == "noise" and (not self.private or self.privacy.without_noise):
            raise Refused(
                "algorithm.weights = 'noise' where a node has no noise", "take 'equal' or 'samples', or a list"
            )
        if ALGORITHMS[self.algorithm.name].asynchronous and self.privacy.nominal:
            raise Refused(
                f"privacy.accountant = {self.privacy.accountant!r} with algorithm.name = {self.algorithm.name!r}",
                "take 'certified': no published noise of this method is known to hold for one node",
            )
        return self

    @model_validator(mode="after")
    def _can_be_planned(self) -> Self:
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
    def _steps_are_possible(self) -> Self:
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
        return self

    @model_validator(mode="after")
    def _noise_is_counted(self) -> Self:
        for key in ("epsilon", "delta", "sigma") if self.trust == "secure aggregation" else ():
            value = getattr(self.privacy, key)
            if isinstance(value, list) and len(set(value)) > 1:
                raise Refused(
                    f"privacy.{key} = {value} with algorithm.trust = 'secure aggregation'",
                    "give all nodes the same, or algorithm.trust = 'per-node': in a sum they share each other's noise",
                )
        if self.privacy.noise == "pairwise" and (why_not := self._unshared()) is not None:
            raise why_not
        return self

    def _unshared(self) -> Refused | None:
        """Say why noise cannot be shared by pairs of nodes; None where it can be."""
        a, p, n = self.algorithm, self.privacy, self.data.nodes
        algorithm, honest = ALGORITHMS[a.name], self.honest
        asked, others = f"privacy.noise = {p.noise!r}", "take 'independent' noise"
        if not algorithm.noise_cancels():
            return Refused(
                f"{asked} with algorithm.name = {a.name!r}",
                f"{others}, or a method that moves every node by its noised gradient and mixes linearly (privsgp, "
                "privsgp-vr, privsgp-sag, dp2-sgd): only there does shared noise cancel",
            )
        if p.nominal:
            return Refused(f"{asked} with privacy.accountant = {p.accountant!r}", "take 'certified'")
        if p.without_noise:
            return Refused(f"{asked} with privacy.sigma = {p.sigma}", "give every node a noise above 0")
        if n < 2 or not 2 <= honest <= n:
            return Refused(
                f"privacy.honest = {honest} with data.nodes = {n}",
                f"take 2 to {max(n, 2)}, oneself included; who trusts nobody else takes privacy.noise = 'independent'",
            )
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

    @model_validator(mode="after")
    def _data_can_be_used(self) -> Self:
        made = self.data.text is not None and self.data.text.tokens == "wordllama"
        if made != (self.features.name == "wordllama"):
            raise Refused(
                f"features.name = {self.features.name!r} with data.text.tokens of another kind",
                'take both: [data.text] tokens = "wordllama" and [features] name = "wordllama", or neither',
            )
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

        As `data.test` says; else in simulations, and where the test set is a published one or `data.test_path`.
        """
        if self.data.test is not None and self.seed is None:
            return self.data.test == "public"
        return self.seed is not None or self.data.published or self.data.test_path is not None

    @property
    def trust(self) -> Trust:
        """What an adversary sees: as the configuration says, else the algorithm's own."""
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

    @property
    def takes_pixels(self) -> bool:
        """Whether samples go through a network that was trained on images with values from 0 to 1."""
        return self.features.name == EFFICIENTNET

    def step_size(self, k: int) -> float:
        """Return γ_k: a constant, the paper's √(n/K), or a schedule's."""
        given, steps = self.algorithm.step_size, self.algorithm.steps
        if isinstance(given, Schedule):
            return given.at(k, steps)
        return math.sqrt(self.data.nodes / steps) if given == "theory" else float(given)

    def options(self, section: str) -> dict[str, Any]:
        """Return the values of the keys that the chosen component brings to a section."""
        chosen = getattr(self, section)
        own = SECTIONS[section].components().get(getattr(chosen, SECTIONS[section].key), Options)
        return {key: getattr(chosen, key) for key in own.model_fields}

    def shared(self) -> dict[str, Any]:
        """Return what every site must agree on: no names, paths, devices or file layouts."""
        values = self.model_dump(mode="json")
        del values["name"]
        del values["data"]["path"]
        del values["data"]["test"], values["data"]["test_path"]  # each site's own choice
        for section, later in _LATER.items():
            for key, default in later.items():
                if values[section][key] == default:
                    del values[section][key]
        del values["plan"]
        values["engine"] = {"dtype": self.engine.dtype}
        return values

    def with_algorithm(self, **values: Any) -> Config:  # noqa: ANN401 - keys of the section
        """Return the same configuration with other values in [algorithm], checked anew; nothing is "auto" any more."""
        return self.with_section("algorithm", **values)

    def with_section(self, which: str, /, **values: Any) -> Config:  # noqa: ANN401 - keys of the section
        """Return the same configuration with other values in a section; what its component has no use for goes."""
        kept = getattr(self, which).model_dump()
        if (section := SECTIONS.get(which)) is not None:
            own = section.components().get(str(values.get(section.key, kept[section.key])), Options).model_fields
            kept = {key: value for key, value in kept.items() if key in section.base.model_fields or key in own}
        return self.with_values({which: kept | values})

    def with_values(self, changed: dict[str, Any]) -> Config:
        """Return the same configuration with other sections, checked anew."""
        return parse(self.model_dump() | changed, base=self._base)

    def __reduce__(self) -> tuple[Callable[..., Config], tuple[dict[str, Any], tuple[str, ...], Path]]:
        """Pickle the values: the class is made of the components that they name."""
        algorithm = self.algorithm.model_dump() | dict.fromkeys(self.algorithm.auto, "auto")
        return parse, (self.model_dump() | {"algorithm": algorithm}, (), self._base)

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
        schema = "" if self.data.schema is None else "\n" + self.data.schema.toml("data.schema.")
        values["data"].pop("schema", None)
        top = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
        for section, keys in values.items():
            if isinstance(keys, dict):
                own = SECTIONS[section].base.model_fields if section in SECTIONS else keys
                ordered = sorted(keys.items(), key=lambda item: item[0] not in own)  # a component's keys come last
                top += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in ordered)]
        return "\n".join(top) + "\n" + schema


# Keys that came later, and what they are where nothing is said: what was shared before is shared still.
_LATER: dict[str, dict[str, Any]] = {
    "data": dict.fromkeys(("schema", "sites", "classes", "vocabulary", "text", "images")),
    "privacy": {"noise": "independent"},
}


class _MethodOptions(Mapping[str, type[Options]]):
    """The keys of each method; only those of a method that is asked for are imported."""

    def __getitem__(self, name: str) -> type[Options]:
        return ALGORITHMS[name].Options

    def __iter__(self) -> Iterator[str]:
        return iter(ALGORITHMS)

    def __len__(self) -> int:
        return len(ALGORITHMS)


class Section(NamedTuple):
    """A section of run.toml whose further keys are those of the component that one of its keys names."""

    base: type[Options]
    key: str
    components: Callable[[], Mapping[str, type[Options]]]


SECTIONS = {
    "data": Section(Data, "partition", lambda: PARTITIONS),
    "features": Section(Features, "name", lambda: FEATURES),
    "model": Section(Model, "name", lambda: MODELS),
    "graph": Section(GraphSection, "name", lambda: GRAPHS),
    "privacy": Section(Privacy, "noise", lambda: NOISES),
    "algorithm": Section(AlgorithmSection, "name", _MethodOptions),
}


@functools.cache
def _with_options(base: type[Options], own: type[Options]) -> type[Options]:
    """Return a section with a component's keys."""
    return base if own is Options else create_model(base.__name__, __base__=(base, own), __doc__=base.__doc__)


@functools.cache
def _config_with(*options: type[Options]) -> type[Config]:
    """Return the configuration whose sections have these components' keys, in the order of `SECTIONS`."""
    kinds = {name: _with_options(SECTIONS[name].base, own) for name, own in zip(SECTIONS, options, strict=True)}
    fields: dict[str, Any] = {name: (kind, kind()) for name, kind in kinds.items()}
    return create_model("Config", __base__=Config, **fields)


def _named(values: object, section: Section) -> type[Options]:
    default = section.base.model_fields[section.key].default
    name = values.get(section.key, default) if isinstance(values, dict) else default
    known = section.components()
    if not isinstance(name, str):
        return Options
    return known.get(name, known.get(default, Options) if name == "auto" else Options)


def read(path: Path, changes: Sequence[str] = ()) -> Config:
    """Read run.toml and apply `--set KEY=VALUE` changes (VALUE is TOML, else a string; nothing takes the key out).

    Paths in it are relative to the folder it lies in.
    """
    return parse(read_toml(path, "config", "see run.toml in the README"), changes, path.parent)


def started(path: Path) -> Config:
    """Read config.toml of a run folder, which an earlier release may have written.

    Keys that are gone are dropped: reports and models are made without them. `differences` names those that changed the
    result. A folder from before differences had a weight is of the paper's estimator.
    """
    values = read_toml(path, "config", "see run.toml in the README")
    gone = _drop_gone(values)
    config = parse(values, base=path.parent)
    if "difference_scale" not in config.algorithm.model_fields_set and hasattr(config.algorithm, "difference_scale"):
        config = config.with_algorithm(difference_scale=1.0)
    config._gone = gone
    return config


def _drop_gone(values: dict[str, Any]) -> dict[str, Any]:
    """Take the keys that are gone out of a configuration; return those that changed the result."""
    gone: dict[str, Any] = {}
    sections = {name: keys for name, keys in values.items() if isinstance(keys, dict)}
    for key, unused in _UNUSED.items():
        section, name = key.split(".")
        value = sections.get(section, {}).pop(name, unused)
        gone |= {} if value == unused else {key: value}
    if isinstance(clip := sections.get("privacy", {}).get("clip"), dict):  # release 1.0.0rc1 could change it
        gone["privacy.clip"] = clip
        values["privacy"]["clip"] = clip.get("start")
    for key, value in (("table", "block"), ("compressor", "quantisation"), ("average", "exponential")):
        if sections.get("algorithm", {}).get(key) == value:
            gone[f"algorithm.{key}"] = values["algorithm"].pop(key)
    if sections.get("features", {}).get("name") in ("random-conv", "efficientnet-lite1", "efficientnet-lite2"):
        gone["features"] = values.pop("features")
    if sections.get("data", {}).get("partition") == "dirichlet" and sections["data"].get("sizes") is not None:
        gone["data.sizes"] = values["data"].pop("sizes")
    return gone


def parse(values: dict[str, Any], changes: Sequence[str] = (), base: Path | None = None) -> Config:
    """Turn plain values into a checked configuration, after `--set KEY=VALUE` changes; paths are relative to `base`."""
    try:
        values = copy.deepcopy(values) if changes else values
        for change in changes:
            _apply(values, change)
        values = _with_schema(values, base or Path())
        kind = _config_with(*(_named(values.get(name), section) for name, section in SECTIONS.items()))
        made = kind.model_validate(values)
    except ValidationError as error:
        raise _refusal(error, kind, values) from error
    except RecursionError as error:
        raise Refused("a value without an end: brackets in brackets", "see run.toml in the README") from error
    made._base = base or Path()
    return made


def _with_schema(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """Put what a schema says in the place of its file's name: a configuration is complete by itself."""
    data = values.get("data")
    if not isinstance(data, dict) or not isinstance(name := data.get("schema"), str):
        return values
    return values | {"data": data | {"schema": schemas.read(base / name).model_dump()}}


def differences(old: Config, new: Config) -> list[str]:
    """Name every key whose change would change the result, with both values."""
    free = {"name", *(f"plan.{key}" for key in PlanSection.model_fields)}
    free |= {f"engine.{key}" for key in ("device", "evaluate_every", "checkpoint_every")}
    a, b = flat(old.model_dump(mode="json")) | old._gone, flat(new.model_dump(mode="json"))
    if b.get(_SCALE) == "auto":  # settled by the rest, or as the run that goes on has it
        free |= {_SCALE} if b.get(_DIFFERENCE) is not None else {_SCALE, _DIFFERENCE}
    keys = [key for key in a | b if key not in free and a.get(key) != b.get(key)]
    return [f"{key}: {a.get(key)} → {b.get(key)}" for key in keys]


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


def _refusal(error: ValidationError, kind: type[Config], values: dict[str, Any]) -> Refused:
    """Put pydantic's findings into our words: key, value, what would be right."""
    found: dict[str, list[str]] = {}
    errors = error.errors(include_url=False)
    unknown = {e["loc"][0] for e in errors if e["loc"] in [(name, s.key) for name, s in SECTIONS.items()]}
    for e in errors:
        foreign = e["type"] == "extra_forbidden" and e["loc"][0] in unknown  # nobody knows what keys it would have
        if not _off_the_point(e) and not foreign:
            what, remedy = _told(e, kind, values)
            found.setdefault(what, []).append(remedy)
    for what in found.keys() & {f"algorithm.{key} = {e['input']!r}" for e in errors for key in AUTO}:
        found[what].append("'auto', which leaves it to the planner")
    return Refused("\n".join(found), "\n  → ".join(" or ".join(remedies) for remedies in found.values()))


def _off_the_point(e: ErrorDetails) -> bool:
    """Where a key takes a number or a list, pydantic complains for both: keep what fits the value that was given."""
    compound = e["type"] in ("list_type", "model_type")
    optional = len(e["loc"]) > 2 and (compound or e["type"] in ("float_type", "int_type", "literal_error"))
    return optional and isinstance(e["input"], list | dict) != compound


def _told(e: ErrorDetails, kind: type[Config], values: dict[str, Any]) -> tuple[str, str]:
    cause = e.get("ctx", {}).get("error")
    if isinstance(cause, Refused):
        return cause.what, cause.remedy
    if e["type"] == "extra_forbidden":
        return _unknown([*_path(e["loc"][:-1]), str(e["loc"][-1])], e["input"], kind, values)
    if e["type"] == "missing":
        return f"{'.'.join(_path(e['loc'][:-1]))} without {e['loc'][-1]}", f"give {e['loc'][-1]}"
    message = e["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    message = re.sub("a valid dictionary or instance of .*", "a section with keys of its own", message)
    return f"{'.'.join(_path(e['loc']))} = {e['input']!r}", message


def _unknown(path: list[str], value: object, kind: type[Config], values: dict[str, Any]) -> tuple[str, str]:
    """Say of a key that has no use here who has one, what it is called now, or which keys there are."""
    *sections, last = path
    key = ".".join(path)
    if key in _GONE:
        return f"{key} = {value!r}", _GONE[key]
    if len(sections) == 1 and sections[0] in SECTIONS:
        section = SECTIONS[sections[0]]
        chosen = values[sections[0]].get(section.key, section.base.model_fields[section.key].default)
        if users := [repr(name) for name, own in section.components().items() if last in own.model_fields]:
            where = f"{sections[0]}.{section.key} = {chosen!r}"
            return f"{key} = {value!r} with {where}", f"leave it out, or take {' or '.join(users)}"
    return f"unknown key {key} = {value!r}", _known_keys(sections, last, kind)


# Keys that are gone, and what to do.
_GONE = {
    "privacy.clip_what": "leave it out: each record's gradient is clipped, always",
    "privacy.noise_schedule": "leave it out: all steps have the same noise",
    "privacy.noise_curvature": "leave it out: all steps have the same noise",
    "privacy.pair_degree": "leave it out: all pairs of nodes share noise",
    "features.views": "leave it out: a model sees each sample once; features.mirror makes mirror images alike",
    "algorithm.levels": "leave it out: algorithm.compressor = 'random-k' makes messages shorter",
    "algorithm.block": "leave it out: each sample has its own entry; 'privsgp' keeps no table",
    "plan.may_spend": "leave it out: a plan never looks at the nodes' own data",
    "plan.evaluations": "leave it out: give algorithm.batch and algorithm.steps, whose product a node evaluates",
    "algorithm.unit_steps": "leave it out: a step is as long as its noised direction",
    "algorithm.average_decay": "leave it out: algorithm.average = 'tail' averages the last algorithm.average_share",
    "algorithm.table_place": "leave it out: privsgp puts a table on the device, or in memory if the device has no room",
}
# The values that those of release 1.0.0rc1 had without an effect: its run folders hold them.
_UNUSED = {
    "privacy.noise_schedule": "constant",
    "privacy.noise_curvature": 0.0,
    "privacy.pair_degree": None,
    "algorithm.block": None,
    "algorithm.levels": None,
    "features.views": None,
    "algorithm.table_place": "auto",
    "algorithm.unit_steps": False,
    "algorithm.average_decay": None,
    "plan.may_spend": False,
    "plan.evaluations": None,
}


def _path(location: tuple[int | str, ...]) -> list[str]:
    """Leave out pydantic's names of the types it tried: int, Schedule, list[constrained-float], …"""
    tried = ("float", "int", "Schedule")
    return [str(p) for p in location if isinstance(p, int) or (p.isidentifier() and p not in tried)]


def _known_keys(sections: list[str], last: str, kind: type[Config]) -> str:
    section: Any = kind
    for part in sections:
        told = section.model_fields[part].annotation  # a section, or a union with one: a schedule, or None for no such
        section = next(one for one in (told, *get_args(told)) if hasattr(one, "model_fields"))
    known = list(section.model_fields)
    close = difflib.get_close_matches(last, known, 1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known keys here: {', '.join(known)}"


def _toml(value: Any) -> str:  # noqa: ANN401 - any TOML value
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML does not take as it is
