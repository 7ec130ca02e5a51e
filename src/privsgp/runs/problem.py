"""What is learnt and from what: data as they lie on the nodes, and the model with its loss."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp import data, models
from privsgp.algorithms import ALGORITHMS
from privsgp.data.hashes import hashes_of
from privsgp.data.loading import file_path, same_file, site_paths, with_test
from privsgp.data.same_records import is_tested_on_own
from privsgp.data.tables import is_table
from privsgp.devices import chosen_device
from privsgp.errors import Refused
from privsgp.features.maps import encoded, make_encoder
from privsgp.gradients import Layout
from privsgp.metrics import Measure
from privsgp.outside import From1
from privsgp.runs import booked
from privsgp.runs.budgets import per_node
from privsgp.runs.config import SITES, Config, EvaluationSection
from privsgp.seeds import public_seed
from privsgp.transport.rendezvous import greet
from privsgp.transport.world import World, blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from privsgp.accounting.book import Records
    from privsgp.data.hashes import Hashes


@dataclass(frozen=True)
class Problem:
    """Data as it lies on the nodes, and the model with its loss.

    With several processes, each has only the data of the nodes in `block`, and `sizes` of all nodes.
    `encoder` is what the samples have gone through, or, before `local_features`, are to go through;
    """

    dataset: data.Dataset
    parts: Sequence[NDArray[np.int64]]
    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor] | None
    block: range | None = None
    sizes: Sequence[int] = ()
    encoder: nn.Module | None = None
    measure: Callable[[Tensor, Tensor], dict[str, Any]] | None = None
    loss_name: str | None = None  # None: a loss of the user's own
    class_weights: tuple[float, ...] | None = None  # of that loss
    raw_shape: tuple[int, ...] | None = None  # of a sample before the encoder
    known: Hashes | None = None  # of samples before the encoder
    aside: Sequence[Records] = ()  # of each node, what is held out of training
    notes: Sequence[str] = ()  # what happened to single values of records here: for those who hold them alone

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of a sample as people bring it."""
        return tuple(self.dataset.x.shape[1:]) if self.raw_shape is None else self.raw_shape

    @property
    def samples(self) -> list[int]:
        """J_i of every node, here or elsewhere."""
        return [self.dataset.samples(rows) for rows in self.parts] if self.block is None else list(self.sizes)

    def local_shard(self, world: World) -> Problem:
        """Keep of all nodes' data what this process's nodes hold."""
        if world.alone or self.block is not None:
            return self
        block = blocks(len(self.parts), world.size)[world.rank]
        own = self.with_rows([self.parts[i] for i in block])
        return dataclasses.replace(own, block=block, sizes=self.samples, aside=self.aside[block.start : block.stop])

    def with_rows(self, chosen: Sequence[NDArray[np.int64]]) -> Problem:
        """Keep these rows alone, one array of them for each node."""
        rows = np.concatenate(chosen)
        parts = np.split(np.arange(len(rows)), np.cumsum([len(part) for part in chosen])[:-1])
        known = None if self.known is None else self.known[rows]
        return dataclasses.replace(self, dataset=self.dataset.taken(rows), parts=parts, known=known)

    def side(self, asked: EvaluationSection, *, held_out: bool) -> Problem:
        """Keep the samples that training sees, or those that are held out of it."""
        if asked.share is None:
            return self
        sides = [[side(self.dataset, rows, asked, held_out=which) for rows in self.parts] for which in (False, True)]
        aside = () if held_out else booked.records_of(self.hashes, self.dataset, sides[True])
        return dataclasses.replace(self, known=self.hashes, aside=aside).with_rows(sides[held_out])

    @functools.cached_property
    def hashes(self) -> Hashes:
        """Hashes of samples as they were brought, row by row (`known`)."""
        if self.known is None and self.raw_shape is not None:
            raise RuntimeError("features are in the place of samples, which were not hashed before")
        return hashes_of(self.dataset) if self.known is None else self.known

    def encoded(self, device: torch.device) -> Problem:
        """Put features in the place of samples."""
        if self.encoder is None:
            return self
        if self.known is None:
            return dataclasses.replace(self, known=self.hashes).encoded(device)
        dataset = encoded(self.dataset, self.parts, self.encoder, device)
        return dataclasses.replace(self, dataset=dataset, raw_shape=self.sample_shape)


def side(
    dataset: data.Dataset, rows: NDArray[np.int64], asked: EvaluationSection, *, held_out: bool
) -> NDArray[np.int64]:
    """Return which of a node's rows training sees, or which are held out of it.

    Guarantee: a person's side depends on the identifier and on `asked` alone, at every node and in every run. Without
    persons a row's side depends on its place at the node, so the sizes of both sides tell nothing but J. Who is held
    out stays so if the share grows.
    """
    first = dataset.first_rows(rows)
    whose = np.arange(len(rows))[first, None].astype("<u8")
    if dataset.persons is not None:
        whose = dataset.persons.hashes[rows][first].astype("<u8")
    key = hashlib.sha256(f"privsgp/held out/{asked.key}".encode()).digest()
    keyed = b"".join(hashlib.blake2b(one.tobytes(), digest_size=8, key=key).digest() for one in whose)
    out = np.frombuffer(keyed, "<u8") < (asked.share or 0.0) * 2.0**64
    chosen: NDArray[np.int64] = rows[out[np.cumsum(first) - 1] == held_out]
    if not len(chosen):
        what = f"evaluation.share = {asked.share}: a node has no record {'to hold out' if held_out else 'to train on'}"
        raise Refused(what, "take another share, or remove the key")
    return chosen


def load_problem(config: Config, data_dir: Path | None = None, world: World | None = None) -> Problem:
    """Read the data a configuration names and build its model at x⁰.

    Of several processes each reads its own nodes' files, or keeps its own nodes' rows of a data set that is divided;
    before that, all of them must have the same shared configuration.
    """
    world = world or World()
    if config.sum.kind is not None:
        raise Refused(f"sum.kind = {config.sum.kind!r} for a model", "remove [sum]: it is not for training")
    refuse_other_configurations(config, world)
    block = blocks(config.data.nodes, world.size)[world.rank]
    problem = world.all_or_none(
        lambda: (
            unencoded(config, data_dir, block)
            .side(config.evaluation, held_out=False)
            .local_shard(world)
            .encoded(chosen_device(config.engine.device))
        )
    )
    if world.alone or config.data.path is None:
        return problem
    own = [problem.dataset.samples(rows) for rows in problem.parts]
    sizes = world.all_gather_nodes(own, From1, config.data.nodes)
    return dataclasses.replace(problem, sizes=sizes)


_PUBLIC = "data.test = 'public' (test_is_public=True)"


def unencoded(config: Config, data_dir: Path | None, block: range) -> Problem:
    """Read the files of the nodes in `block`, or a data set that is divided among all nodes; all records of them."""
    task, d, notes = models.task(config.model.loss), config.data, list[str]()
    how = "{test_is_public}" if d.test_path is None else f"data.test_path = {d.test_path!r}"
    if d.path is not None:
        dataset, parts = data.load_sites(
            d.path, block, task=task, classes=d.classes, form=d.form, base=config.base, names=d.sites, say=notes.append,
            look=lambda one: None if d.test_path else refuse_own_records(config, f"{one.name}, {how}", one, None),
        )  # fmt: skip
        kept = [_counted_side(config, dataset, rows) for rows in parts]
        _refuse_other_sizes(config, [dataset.samples(rows) for rows in kept], block)
    else:
        if d.schema is not None and not is_table(d.name):
            what = f"data.schema with data.name = {d.name!r}, which is no table"
            raise Refused(what, 'name the tables, for example data.path = "{site}.csv"')
        name = str(file_path(d.name, data_dir, config.base))
        dataset = data.load(name, data_dir=data_dir, task=task, classes=d.classes, form=d.form, own=config.seed is None)
        parts = split(config, dataset)
    dataset = with_test(dataset, _public_test(config, block, dataset.name), d.form)
    if not d.published:
        refuse_own_records(config, how, dataset, None if d.path is None else parts)
    apart = len(parts) < d.nodes
    problem = assembled(config, dataset, parts, block if apart else None)
    return dataclasses.replace(problem, notes=notes)


def _counted_side(config: Config, dataset: data.Dataset, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that `data.sizes` counts: those that the run uses."""
    if config.evaluation.share is None:
        return rows
    return side(dataset, rows, config.evaluation, held_out=config.sum.kind is not None)


def _refuse_other_sizes(config: Config, found: Sequence[int], block: range) -> None:
    """Refuse files with another number of records than `data.sizes` says: it is public and agreed on."""
    for node, count in zip(block, found, strict=True):
        if config.data.sizes is not None and config.data.sizes[node] != count:
            what = f"{config.site(node)} has {count} records, and data.sizes says {config.data.sizes[node]}"
            raise Refused(what, "write the true number, or leave data.sizes out")


def _public_test(config: Config, block: range, name: str) -> Path | None:
    """Return where public test data lie; refuse a node's own file under that name."""
    d = config.data
    if d.test_path is None:
        return None
    path = config.base / d.test_path
    own = [Path(name)] if d.path is None else site_paths(d.path, block, config.base, d.sites)
    refuse_own_file(path, [] if d.published else own, f"data.test_path = {d.test_path!r}")
    return path


def refuse_own_records(
    config: Config, what: str, dataset: data.Dataset, parts: Sequence[NDArray[np.int64]] | None
) -> None:
    """Refuse public test data that nodes learn from, saved anew: no ε covers metrics on them. A simulation may."""
    if config.seed is None and config.test_is_public and is_tested_on_own(dataset, parts):
        what = f"{what}: half of these records are a node's own, or half of a node's records are among them"
        raise Refused(what, "test data are public: take records that no node learns from", test_is_public=True)


def refuse_own_file(test: Path, own: Sequence[Path], what: str) -> None:
    """Refuse test data, whose metrics everybody sees, that are a node's own file, by whatever path, link or copy."""
    if any(same_file(test, file) for file in own):
        raise Refused(f"{what} is a node's own file", "test data are public: take records that no node learns from")


def assembled(
    config: Config,
    dataset: data.Dataset,
    parts: Sequence[NDArray[np.int64]],
    block: range | None = None,
    sizes: Sequence[int] = (),
) -> Problem:
    """Put data and the model at x⁰ together."""
    refuse_counted(config, dataset)
    if config.sum.kind is not None:
        model, _ = first_model(config, dataset.x.shape[1:], ())
        return Problem(dataset, parts, model, lambda outputs, _y: -outputs.squeeze(-1), None, block, sizes)
    model, encoder = first_model(config, dataset.x.shape[1:], dataset.y.shape[1:], dataset.classes)
    name = config.model.loss
    schema = config.data.schema
    unit, times = ((0.0, 1.0), None) if schema is None else (schema.unit, schema.times)
    measure = Measure(name, dataset.classes, unit=unit, times=times)
    loss, correct = models.per_sample(name), models.correct(name)
    return Problem(dataset, parts, model, loss, correct, block, sizes, encoder, measure, loss_name=name)


def first_model(
    config: Config, sample: tuple[int, ...], target: tuple[int, ...], classes: int | None = None, device: str = "cpu"
) -> tuple[nn.Module, nn.Module | None]:
    """Return the model at x⁰ for samples and targets of these shapes, and the map that samples go through first.

    Of a noised sum it is zero, and its gradient is a sample's vector.
    """
    if config.sum.kind is not None:
        return models.mean(sample[0], device), None
    encoder, shape = make_encoder(config.features.name, config.features.options, sample)
    made = models.make(
        config.model.name,
        input_shape=shape,
        outputs=models.outputs(config.model.loss, classes=classes, target_shape=target),
        seed=public_seed(config.seed, config.shared_hash(), "x0"),
        vocabulary=config.data.tokens if encoder is None else None,
        schema=config.data.schema if encoder is None else None,
        device=device,
        **config.options("model"),
    )
    return made, encoder


def at_start(config: Config, problem: Problem) -> Problem:
    """Return the problem with the x⁰ of this configuration: without a seed, x⁰ depends on what was "auto"."""
    if config.seed is not None:
        return problem
    d = problem.dataset
    return dataclasses.replace(problem, model=first_model(config, problem.sample_shape, d.y.shape[1:], d.classes)[0])


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of x⁰: every process and every site of a run must start from the same."""
    return hashlib.sha256(Layout.of(model).flatten(model).cpu().numpy().tobytes()).hexdigest()


def refuse_counted(config: Config, dataset: data.Dataset) -> None:
    """Refuse, without a seed, a number of classes that was counted in records: it shapes the model, which all see."""
    public = ("", "y_test") if config.test_is_public else ("",)
    if config.seed is None and dataset.counted not in public:
        or_else = f", or say {_PUBLIC} if the test labels are" if dataset.counted == "y_test" else ""
        what = f"{dataset.name}: no data.classes, and privsgp does not count classes in private {dataset.counted}"
        remedy = "give data.classes, from Python classes=…, or store the number in the file as `classes`"
        raise Refused(what, f"{remedy}{or_else}")


def local_features(config: Config, problem: Problem, world: World) -> Problem:
    """Leave each process its own nodes' samples, and replace them by features."""
    refuse_other_configurations(config, world)
    return problem.local_shard(world).encoded(chosen_device(config.engine.device))


def layout(config: Config) -> str:
    """Return what decides which record lies on which node: [data], and the seed of a simulation.

    Guarantee: nothing else moves a record. Its node's ledger has its spending, for later runs.
    Assumes: with `data.path` each file keeps its name and its records. No hash of them may stand in a ledger.
    """
    d = config.data
    names = {} if d.sites is None else {"sites": d.sites}  # where they decide whose records a node has
    if d.path is not None:
        text = d.model_dump_json(include={"path", "nodes"} | (names.keys() if "{site}" in d.path else set()))
    else:  # in the words it was always told in: ledgers of earlier runs are compared with it
        values = {"name": d.name, "nodes": d.nodes, "partition": d.partition}
        values |= {"alpha": getattr(d, "alpha", 0.5), "sizes": d.sizes} | (names if d.name == SITES else {})
        text = f"{config.seed}/{json.dumps(values, separators=(',', ':'))}"
    return hashlib.sha256(f"privsgp/layout/{text}".encode()).hexdigest()


def split(config: Config, dataset: data.Dataset) -> list[NDArray[np.int64]]:
    """Lay a data set out on the nodes, by public randomness; a person's rows stay together."""
    rng = np.random.default_rng(public_seed(config.seed, layout(config), "partition"))
    d, every = config.data, np.arange(len(dataset.y))
    first = np.flatnonzero(dataset.first_rows(every))
    parts = data.partition(d.partition, dataset.y[first], d.nodes, rng=rng, sizes=d.sizes, **config.options("data"))
    if dataset.persons is None:
        return parts
    rows = np.split(every, first[1:])
    return [np.concatenate([rows[i] for i in part]) for part in parts]


def notes(config: Config, problem: Problem, world: World) -> list[str]:
    """Return what to know before the run. The first of several processes reports what holds for all of them."""
    lines = [*test_notes(config, problem), *problem.notes]
    if world.rank:
        return lines
    name, algorithm = config.algorithm.name, ALGORITHMS[config.algorithm.name]
    samples = [sum(problem.samples)] if algorithm.pooled else problem.samples
    if config.private:
        lines += careless_delta(samples, per_node(config.privacy.delta, len(samples)), config.site)
    if config.seed is not None:
        lines.append("the config has a seed: this is a simulation, not private")
    if config.privacy.noise != "independent":
        lines.append(_trust_words(config))
    if not config.private:
        lines.append(f"{name} adds no noise and does not clip: [privacy] is ignored")
    if algorithm.network in ("server", "alone"):
        lines.append(f"{name} sends nothing from node to node: [graph] is ignored")
    return lines


def careless_delta(samples: Sequence[int], deltas: Sequence[float], named: Callable[[int], str]) -> list[str]:
    """Warn of δ_i ≥ 1/J_i, which would allow a node to publish a record."""
    large = [i for i, (J, delta) in enumerate(zip(samples, deltas, strict=True)) if delta * J >= 1]
    if not large:
        return []
    which = f"{named(large[0])} ({samples[large[0]]} samples; {len(large)} such nodes)"
    allows = "publishing a whole record with that probability would be allowed"
    return [f"privacy.delta = {deltas[large[0]]} is not below 1/J of {which}: {allows}"]


def _trust_words(config: Config) -> str:
    """Say what shared noise asks one to trust; where it cannot be, that it is not."""
    n, h = config.data.nodes, config.honest
    if not config.pairwise:
        return "privacy.noise = 'auto': noise cannot be shared here, so it is independent"
    holds = f"privacy.noise = {config.privacy.noise!r}: ε holds as long as {h} of {n} sites are honest"
    outside = f", and only against those outside: another site by itself learns what summary.json says for {n - 1}"
    return f"{holds}{outside if h == n else ''}. summary.json says what ε is if fewer are honest"


def test_notes(config: Config, problem: Problem) -> list[str]:
    """Say who gets to see metrics on test data of one's own; every process says it of its own."""
    if config.seed is not None or problem.dataset.x_test is None or (config.data.published and not config.data.test):
        return []
    if config.test_is_public:
        how = "data.test_path" if config.data.test is None else _PUBLIC
        return [f"{how}: peers, summary and report get to see metrics on test data; no ε covers them"]
    kept = "metrics on test data stay in private/metrics.jsonl, and no ε covers them"
    return [f"data.test = 'private': {kept}; if anybody may see them, say {_PUBLIC}"]


def refuse_other_configurations(config: Config, world: World) -> None:
    """Refuse a peer with another shared configuration, or one that would evaluate or stop at other steps."""
    if world.alone:
        return
    shared = config.shared()
    if config.data.schema is not None:
        shared["data"]["schema"] = config.data.schema.digest
    own = {"engine": config.engine.model_dump(exclude={"device"}), "auto": config.auto}
    greet(world, shared | own)
