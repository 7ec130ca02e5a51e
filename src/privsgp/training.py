"""From a configuration to a finished run folder; the command line and `privsgp.train` are thin over this."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import math
import os
import platform
import resource
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from privsgp import __version__, data, features, graph, models
from privsgp import config as configs
from privsgp.algorithms import ALGORITHMS
from privsgp.algorithms.compressors import compressor
from privsgp.algorithms.steering import node_weights
from privsgp.clock import Events, Times, Waiting, schedule
from privsgp.config import Config, Schedule
from privsgp.encoding import encoded, make_encoder
from privsgp.engine.averaging import Release
from privsgp.engine.evaluate import present
from privsgp.engine.faults import Faults
from privsgp.engine.folder import Folder, read_metrics, write, write_json, write_tensors
from privsgp.engine.job import NOT_DP, Job, Learning, kappa, public_seed, use_tensor_cores
from privsgp.engine.loop import Outcome, Training
from privsgp.engine.rendezvous import World, blocks, greet, join, refuse_differences, restarted
from privsgp.errors import Refused
from privsgp.gradient import Layout
from privsgp.privacy import ledger
from privsgp.protection import per_node, protect, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from privsgp.clock.waiting import Hears
    from privsgp.engine.job import Protection
    from privsgp.engine.loop import Watcher
    from privsgp.privacy.ledger import Segment

SUMMARY_VERSION = 1
MODEL_VERSION = 1


@dataclass(frozen=True)
class Result:
    """What came out of a run: `summary` as in summary.json, the average model, each node's, and where it all lies."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    model: nn.Module
    nodes: Tensor
    folder: Path


@dataclass(frozen=True)
class Problem:
    """Data as it lies on the nodes, and the model with its loss.

    Where a run has several processes, each has the data of the nodes in `block` alone, and `sizes` of all of them.
    `encoder` is what the samples have gone through, or, in a problem that is not yet `brought_home`, are to go through;
    `views` makes several views of a training sample, whose gradients are averaged before its clip.
    """

    dataset: data.Dataset
    parts: Sequence[NDArray[np.int64]]
    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor] | None
    block: range | None = None
    sizes: Sequence[int] = ()
    encoder: nn.Module | None = None
    views: str | None = None

    @property
    def samples(self) -> list[int]:
        """J_i of every node, here or elsewhere."""
        return [len(rows) for rows in self.parts] if self.block is None else list(self.sizes)

    @property
    def learnt_from(self) -> nn.Module:
        """The map of a training sample: its features, of every view where there are several."""
        encoder = self.encoder or nn.Identity()
        return encoder if self.views is None else features.Views(self.views, encoder)

    def at_home(self, world: World) -> Problem:
        """Keep of all nodes' data what this process's nodes hold."""
        if world.alone or self.block is not None:
            return self
        block = blocks(len(self.parts), world.size)[world.rank]
        rows = np.concatenate([self.parts[i] for i in block])
        parts = np.split(np.arange(len(rows)), np.cumsum([len(self.parts[i]) for i in block])[:-1])
        own = dataclasses.replace(self.dataset, x=self.dataset.x[rows], y=self.dataset.y[rows])
        return dataclasses.replace(self, dataset=own, parts=parts, block=block, sizes=self.samples)


def notes(config: Config, problem: Problem) -> list[str]:
    """Say what a careful colleague would say before the run; of several processes the first says it."""
    if join().rank:
        return []
    config, problem = pooled(config, problem)
    said = []
    samples = problem.samples
    deltas = per_node(config.privacy.delta, len(samples))
    large = [i for i, J in enumerate(samples) if config.private and deltas[i] * J >= 1]
    if large:
        said.append(
            f"privacy.delta = {deltas[large[0]]:g} is not below 1/J of node {large[0]} ({samples[large[0]]} "
            f"samples; {len(large)} such nodes): publishing a whole record with that probability would be allowed"
        )
    if config.seed is not None:
        said.append("the config has a seed: this is a simulation, not private")
    if config.privacy.clip_what == "mean":
        said.append(f"privacy.clip_what = 'mean': {NOT_DP}")
    if not config.private:
        said.append(f"{config.algorithm.name} adds no noise and does not clip: [privacy] is ignored")
    if ALGORITHMS[config.algorithm.name].network in ("server", "alone"):
        said.append(f"{config.algorithm.name} sends nothing from node to node: [graph] is ignored")
    return said


def load_problem(config: Config, data_dir: Path | None = None) -> Problem:
    """Read the data a configuration names and build its model at x⁰.

    Of several processes each reads its own nodes' files, or keeps its own nodes' rows of a data set that is divided;
    before that, all of them must have the same shared configuration.
    """
    world = join()
    _greet(config, world)
    if not world.alone and config.algorithm.auto:
        raise Refused(
            f"algorithm.{config.algorithm.auto[0]} = 'auto' with {world.size} processes",
            "write the number that `privsgp plan` gives",
        )
    block = blocks(config.data.nodes, world.size)[world.rank]
    problem = world.everywhere(
        lambda: encoded(_read(config, data_dir, block).at_home(world), _device(config.engine.device))
    )
    if world.alone or config.data.path is None:
        return problem
    sizes = [J for own in world.exchange([len(rows) for rows in problem.parts]) for J in own]
    return dataclasses.replace(problem, sizes=sizes)


def _read(config: Config, data_dir: Path | None, block: range) -> Problem:
    """Read the files of the nodes in `block`, or a data set that is divided among all nodes."""
    task = models.task(config.model.loss)
    if config.data.path is not None:
        dataset, parts = data.load_sites(config.data.path, block, task=task)
    else:
        dataset = data.load(config.data.name, data_dir=data_dir, task=task)
        parts = split(config, dataset)
    outputs = models.outputs(config.model.loss, classes=dataset.classes, target_shape=dataset.y.shape[1:])
    seed = public_seed(config.seed, config.shared_hash(), "x0")
    encoder, shape = make_encoder(config, dataset.x.shape[1:])
    m, views = config.model, config.features.views
    model = models.make(
        m.name,
        input_shape=shape,
        outputs=outputs,
        hidden=m.hidden,
        seed=seed,
        activation=m.activation,
        rows=views is not None,
    )
    apart = len(parts) < config.data.nodes
    return Problem(
        dataset,
        parts,
        model,
        models.per_sample(config.model.loss),
        models.correct(config.model.loss),
        block=block if apart else None,
        encoder=encoder,
        views=views,
    )


def brought_home(config: Config, problem: Problem) -> Problem:
    """Leave each process its own nodes' samples, and put features in their place."""
    world = join()
    _greet(config, world)
    return encoded(problem.at_home(world), _device(config.engine.device))


def split(config: Config, dataset: data.Dataset) -> list[NDArray[np.int64]]:
    """Lay a data set out on the nodes, by public randomness."""
    rng = np.random.default_rng(public_seed(config.seed, config.shared_hash(), "partition"))
    d = config.data
    return data.partition(d.partition, dataset.y, d.nodes, rng=rng, alpha=d.alpha, sizes=d.sizes)


def pooled(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """Put all nodes' data on one node, drawn at the same rate and at the strictest budget, if the algorithm wants that.

    Guarantee: every node's (ε_i, δ_i) is kept to: the one node has the smallest of each, or the largest σ_i.
    """
    n, p = config.data.nodes, config.privacy
    if n == 1 or not ALGORITHMS[config.algorithm.name].pooled:
        return config, problem
    strictest = {"delta": min(per_node(p.delta, n))}
    if p.epsilon is not None:
        strictest["epsilon"] = min(per_node(p.epsilon, n))
    if p.sigma is not None:
        strictest["sigma"] = max(per_node(p.sigma, n))
    values = config.model_dump()
    values["data"] |= {"nodes": 1, "sizes": None}
    values["clock"] |= {"stragglers": 0.0, "slowdown": 1.0}  # slow nodes have handed their data over
    values["privacy"] |= strictest
    values["algorithm"] |= {"batch": n * config.algorithm.batch}
    return configs.parse(values), dataclasses.replace(problem, parts=[np.concatenate(problem.parts)])


def prepare(
    config: Config,
    problem: Problem,
    earlier: Sequence[Sequence[Segment]] = (),
    world: World | None = None,
    faults: Faults | None = None,
) -> Job:
    """Decide everything: σ_i from budgets, the graph, the device. What is impossible is refused here."""
    config, problem = pooled(config, problem)
    if config.algorithm.auto:
        raise Refused(
            f"algorithm.{config.algorithm.auto[0]} = 'auto' where nothing is planned",
            "write the number that `privsgp plan` gives",
        )
    network = make_graph(config)
    device, dtype = _device(config.engine.device), getattr(torch, config.engine.dtype)
    a = config.algorithm
    use_tensor_cores(device)
    steps, clock = config.algorithm.steps, make_clock(config, network, Layout.of(problem.model).dim * dtype.itemsize)
    releases = [clock.released(i, steps) for i in range(network.nodes)] if isinstance(clock, Events) else ()
    protection = protect(config, problem.samples, kappa(dtype, device), earlier, world, releases)
    return Job(
        name=config.name,
        seed=config.seed,
        shared_hash=config.shared_hash(),
        learning=_learning(problem, device, dtype),
        protection=protection,
        algorithm=ALGORITHMS[config.algorithm.name],
        settings=settings(config),
        graph=network,
        clock=clock,
        steps=steps,
        step_size=step_size(config),
        device=device,
        dtype=dtype,
        evaluate_every=config.engine.evaluate_every or max(1, steps // 10),
        checkpoint_every=_checkpoint_every(config, protection),
        block=problem.block,
        faults=faults,
        momentum=a.momentum,
        normalised=a.unit_steps,
        weights=node_weights(a.weights, problem.samples, [m.sigma for m in protection.mechanisms]),
        release=_release(config, faults),
    )


def _release(config: Config, faults: Faults | None) -> Release:
    a = config.algorithm
    if faults is not None and (a.average != "none" or a.final_mixing):
        raise Refused(
            f"algorithm.average = {a.average!r} and algorithm.final_mixing = {a.final_mixing} with simulated faults",
            "leave them out: nodes that leave or fall behind have no common average",
        )
    given = {"share": a.average_share, "decay": a.average_decay}
    return Release(a.average, mixing=a.final_mixing, **{key: v for key, v in given.items() if v is not None})


def make_graph(config: Config) -> graph.Graph:
    """Build the network, check the paper's Assumptions 1 and 2, and that the algorithm can do with it."""
    algorithm = ALGORITHMS[config.algorithm.name]
    if algorithm.network in ("server", "alone"):
        return graph.unconnected(algorithm.network, config.data.nodes)
    seed = public_seed(config.seed, config.shared_hash(), "graph")
    network = graph.make(config.graph.name, config.data.nodes, seed=seed, degree=config.graph.degree)
    graph.check(network)
    if algorithm.network == "undirected" and not algorithm.asynchronous:  # pairs average evenly, whatever their shares
        graph.check_symmetric(network)
    return network


def make_clock(config: Config, network: graph.Graph, message_bytes: int) -> Waiting | Events:
    """Say when each step is done, or who acts when; messages of `message_bytes` bytes. All of it is public."""
    c, algorithm = config.clock, ALGORITHMS[config.algorithm.name]
    times = Times(
        network.nodes, c.compute, c.mean, c.spread or 0.0, c.latency, c.bandwidth or math.inf,
        tuple(c.stragglers) if isinstance(c.stragglers, list) else c.stragglers, c.slowdown,
        public_seed(config.seed, config.shared_hash(), "clock"),
    )  # fmt: skip
    number = getattr(torch, config.engine.dtype).itemsize
    sent = compressor(settings(config), message_bytes // number).size(number)
    message = (times.message(sent) + times.message(message_bytes)) / 2  # what a server sends back is not compressed
    if algorithm.asynchronous:
        return schedule(times, network, config.algorithm.steps, message)
    hears: dict[str, Hears] = {"server": "server", "alone": "nobody"}
    return Waiting(times, network, message, hears.get(algorithm.network, "neighbours"))


def simulated_faults(
    config: Config, *, drop: float, delay: int, crash: Sequence[str], leave: Sequence[str], staleness: int
) -> Faults | None:
    """Read the faults of a simulated network; which message is lost is public randomness."""
    if drop or delay or crash or leave:
        _refuse_faults(config)
    seed = public_seed(config.seed, config.shared_hash(), "faults")
    return Faults.parse(
        make_graph(config), drop=drop, delay=delay, crash=crash, leave=leave, staleness=staleness, seed=seed
    )


def _refuse_faults(config: Config) -> None:
    algorithm = ALGORITHMS[config.algorithm.name]
    if algorithm.network != "directed" and not algorithm.asynchronous:  # asynchronous ones have a clock for that
        raise Refused(
            f"faults with algorithm.name = {config.algorithm.name!r}",
            "only push-sum copes with lost messages: take 'privsgp-vr', say",
        )


def step_size(config: Config) -> Callable[[int], float]:
    """Return γ_k: a constant, the paper's √(n/K), or a schedule."""
    given, steps = config.algorithm.step_size, config.algorithm.steps
    if isinstance(given, Schedule):
        return functools.partial(_scheduled, given, steps)
    constant = math.sqrt(config.data.nodes / steps) if given == "theory" else float(given)
    return lambda _k: constant


def _scheduled(s: Schedule, steps: int, k: int) -> float:
    done = max(0.0, (k / max(1, steps - 1) - s.hold) / (1 - s.hold))
    left = (1 + math.cos(math.pi * done)) / 2 if s.schedule == "cosine" else 1 - done
    return s.end + (s.start - s.end) * left


def _learning(problem: Problem, device: torch.device, dtype: torch.dtype) -> Learning:
    def place(t: Tensor) -> Tensor:
        return t.to(device, dtype) if t.is_floating_point() else t.to(device)

    stacked, d = data.stack(problem.dataset, problem.parts), problem.dataset
    test = None
    if d.x_test is not None and d.y_test is not None:
        test = place(torch.from_numpy(d.x_test)), place(torch.from_numpy(d.y_test))
    inputs, targets = place(stacked.inputs), place(stacked.targets)
    return Learning(problem.model, problem.loss, problem.correct, inputs, targets, test)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:  # torchrun: each process of a machine takes a GPU of its own
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        if torch.empty(0, device=name).device.type not in ("cpu", "cuda"):
            raise Refused(f"engine.device = {name!r}", "take 'auto', 'cpu' or 'cuda' where there is one")
    except (RuntimeError, AssertionError) as error:
        raise Refused(
            f"engine.device = {name!r}: {error}", "take 'auto', 'cpu' or 'cuda' where there is one"
        ) from error
    return torch.device(name)


def _checkpoint_every(config: Config, protection: Protection) -> int:
    """Choose so that without a seed, where recomputed steps cost privacy, one crash is covered by half the spare."""
    if config.engine.checkpoint_every is not None:
        return config.engine.checkpoint_every
    if config.seed is not None or protection.allowance is None:
        return 64
    return max(1, min(64, math.ceil(config.privacy.spare * config.algorithm.steps) // 2))


def run(
    config: Config,
    problem: Problem,
    out: Path,
    *,
    resume: bool = False,
    ledgers: Path | None = None,
    watch: Watcher | None = None,
    plan: dict[str, Any] | None = None,
    faults: Faults | None = None,
) -> Result:
    """Train, and leave a complete run folder behind. On a finished run `resume` changes nothing.

    `ledgers` is the ledger folder of an earlier run on the same data: its budget is what this run may go on spending.
    `plan` is kept as plan.json: what `planning.settle` put in the place of "auto", and why. `faults` are of a simulated
    network. Started by torchrun, this is one process's share of the run; after a restart it resumes by itself.
    """
    world = join()
    with world.leaving(), contextlib.ExitStack() as locks:
        if problem.block is None:  # it was not `load_problem` that made it
            _greet(config, world)
            problem = problem.at_home(world)
        _refuse_other_model(problem, world)
        folder = Folder(out, "" if problem.block is None else f"-{problem.block.start}-{problem.block.stop - 1}")
        around = _circumstances(config, world, faults)
        done = world.everywhere(lambda: _finished(folder, config, around, resume=resume or restarted()))
        if all(world.exchange(done)):
            return load_result(folder, problem.model)
        nodes = pooled(config, problem)[0].data.nodes
        earlier = world.everywhere(lambda: earlier_runs(folder, ledgers, nodes, problem.block))
        job = prepare(config, problem, earlier, world, faults)
        training = Training(job, folder, watch, world)
        world.everywhere(lambda: locks.enter_context(folder.locked()))
        number = world.exchange(folder.run or uuid.uuid4().hex)[0]
        if first := _first_here(folder, world):
            folder.prepare()
            folder.identify(versions(), ledgers, number, around)
            write(folder.config, config.toml())
            if plan is not None:
                write_json(folder.plan, plan)
        world.exchange(None)  # the folder is ready
        world.everywhere(lambda: _refuse_other_run(folder, number))
        outcome = training.run()
        return _finish(job, folder, outcome, world, first=first)


def _greet(config: Config, world: World) -> None:
    """Refuse a peer with another shared configuration, or one that would evaluate or stop at other steps."""
    greet(world, config.shared() | {"engine": config.engine.model_dump(exclude={"device"})})


def _circumstances(config: Config, world: World, faults: Faults | None) -> dict[str, Any]:
    """Return what a resumed run must find as it was; refuse what the algorithm cannot do with."""
    name, algorithm = config.algorithm.name, ALGORITHMS[config.algorithm.name]
    if algorithm.asynchronous and (faults is not None or not world.alone):
        raise Refused(
            f"algorithm.name = {name!r} with " + (f"{world.size} processes" if faults is None else "simulated faults"),
            "run it in one process without --drop, --delay, --crash and --leave: asynchrony is simulated by [clock]",
        )
    if faults is not None:
        _refuse_faults(config)
    if not world.alone and algorithm.network in ("server", "alone"):
        raise Refused(
            f"algorithm.name = {name!r} with {world.size} processes", "run it in one process, without torchrun"
        )
    if faults is not None and not world.alone:
        raise Refused(f"faults with {world.size} processes", "faults are for simulation in one process")
    around: dict[str, Any] = {"processes": world.size, "faults": None if faults is None else dataclasses.asdict(faults)}
    if config.privacy.clip_what == "mean":
        around["not_dp"] = NOT_DP
    told: dict[str, Any] = json.loads(json.dumps(around))
    return told


def _first_here(folder: Folder, world: World) -> bool:
    """Tell whether this is the first of the processes that share this folder: it writes what they have in common."""
    machine = Path("/proc/sys/kernel/random/boot_id")
    name = (machine.read_text() if machine.exists() else platform.node()) + str(folder.path.resolve())
    places = world.exchange(hashlib.sha256(name.encode()).hexdigest())
    return places.index(places[world.rank]) == world.rank


def _refuse_other_model(problem: Problem, world: World) -> None:
    """Refuse a peer whose model has another size or other weights at x⁰, which are public."""
    if world.alone:
        return
    x0 = Layout.of(problem.model).flatten(problem.model)
    digest = hashlib.sha256(x0.cpu().numpy().tobytes()).hexdigest()
    encoder = None if problem.encoder is None else features.digest(problem.encoder)
    told = {"number of weights": x0.numel(), "SHA-256 of the first weights": digest, "SHA-256 of the features": encoder}
    refuse_differences(world, told)


def _refuse_other_run(folder: Folder, number: str) -> None:
    if folder.run != number:
        raise Refused(f"{folder.path} belongs to another run than process 0's folder", "choose another one with --out")


def earlier_runs(folder: Folder, ledgers: Path | None, nodes: int, block: range | None = None) -> list[list[Segment]]:
    """Return what other runs have already spent of each node's budget, by the ledgers this run continues."""
    where = ledgers or folder.ledgers
    if where is None:
        return [[] for _ in range(nodes)]
    if (where / f"node-{nodes}.jsonl").exists():
        raise Refused(
            f"{where} has the ledgers of more than {nodes} nodes",
            "go on with the nodes it began with: what a record has spent is in its own node's ledger",
        )
    here = range(nodes) if block is None else block
    found = [ledger.read(where / f"node-{i}.jsonl") if i in here else [] for i in range(nodes)]
    return [[segment for segment in segments if segment.header.run != folder.run] for segments in found]


def versions() -> dict[str, str]:
    """Return what a reader needs to repeat a run."""
    return {"privsgp": __version__, "python": platform.python_version(), "torch": torch.__version__}


def _finished(folder: Folder, config: Config, around: dict[str, Any], *, resume: bool) -> bool:
    """Tell whether the run is finished; refuse a folder that belongs to another one."""
    folder.refuse_unless_writable()
    if not folder.config.exists():
        return False
    if not resume:
        raise Refused(f"{folder.path} already holds a run", "add --resume to continue it, or choose another --out")
    changed = configs.differences(configs.read(folder.config), config)
    if changed:
        raise Refused(
            f"--resume with a changed configuration: {'; '.join(changed)}",
            "resume with the configuration of the run, or choose another --out",
        )
    before = folder.identity.get("circumstances") or around
    if changed := [f"{key}: {before.get(key)} → {around[key]}" for key in around if before.get(key) != around[key]]:
        raise Refused(f"--resume with other {'; '.join(changed)}", "resume as the run was started")
    return folder.summary.exists()


def _finish(job: Job, folder: Folder, outcome: Outcome, world: World, *, first: bool) -> Result:
    """Write the nodes' models, the average model where it is known, and a summary in each of the run's folders."""
    layout = Layout.of(job.learning.model)
    if outcome.average is not None:
        _save_model(job, folder.model, layout, outcome.average)
    for i, z, stayed in zip(job.here, outcome.state.z, present(outcome.state), strict=True):
        if stayed:
            _save_model(job, folder.node(i), layout, z)
    own = [job.protection.epsilon(i, outcome.releases[i]) for i in job.here] if job.guarantees else []
    spent = [_finite(epsilon) for theirs in world.exchange(own) for epsilon in theirs]
    summary = world.exchange(_summary(job, outcome, spent) if world.rank == 0 else {})[0]
    if first:
        write_json(folder.summary, summary)
    world.exchange(None)
    return load_result(folder, job.learning.model)


def _save_model(job: Job, path: Path, layout: Layout, x: Tensor) -> None:
    tensors = {name: value.contiguous().cpu() for name, value in layout.views(x).items()}
    # One entry: safetensors writes several in any order, and the same model is to be the same bytes.
    write_tensors(path, tensors, {"privsgp": f"model {MODEL_VERSION}" + (f", {NOT_DP}" if job.not_dp else "")})


def _summary(job: Job, outcome: Outcome, spent: list[float | None]) -> dict[str, Any]:
    last, p, private = outcome.metrics[-1], job.protection, job.guarantees
    return {
        "version": SUMMARY_VERSION,
        "name": job.name,
        "simulation": job.simulation,
        "not_dp": NOT_DP if job.not_dp else None,
        "algorithm": job.algorithm.name,
        "trust": job.settings.trust,
        "graph": job.graph.name,
        "nodes": job.nodes,
        "steps": outcome.steps,
        "model": job.release.words,
        "weights": None if job.weights is None else list(job.weights),
        "dim": outcome.state.x.shape[1],
        "test_accuracy": last.get("test_accuracy"),
        "mean_node_accuracy": last.get("mean_node_accuracy"),
        "worst_node_accuracy": last.get("worst_node_accuracy"),
        "test_loss": last.get("test_loss"),
        "train_loss": last.get("train_loss"),
        "consensus_error": last["consensus_error"],
        "epsilon_spent": spent if private else None,
        "epsilon_budget": list(p.budgets) if private and p.budgets[0] is not None else None,
        "epsilon_nominal": list(p.budgets) if job.algorithm.private and p.accountant == "published" else None,
        "delta": list(p.deltas) if private else None,
        "sigma": [m.sigma for m in p.mechanisms],
        "samples": [m.samples for m in p.mechanisms],
        "releases": outcome.releases,
        "relation": p.relation,
        "accountant": p.accountant,
        "test_data": "assumed public: metrics on it are not covered by the guarantee",
        "seconds": round(outcome.seconds, 3),
        "steps_per_second": round(outcome.steps / outcome.seconds, 3) if outcome.seconds else None,
        "virtual_seconds": last["virtual_seconds"],
        "bytes_sent": outcome.bytes_sent,
        "faults": outcome.faults,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def load_result(folder: Folder, model: nn.Module) -> Result:
    """Read a finished run back; where the average model is on another machine, `model` is the first node's here."""
    summary = json.loads(folder.summary.read_text())
    trained = copy.deepcopy(model)
    layout = Layout.of(model)
    here = [folder.node(i) for i in range(summary["nodes"]) if folder.node(i).exists()]
    best = folder.model if folder.model.exists() else here[0]
    trained.load_state_dict(load_file(best), strict=False)  # what is frozen is not in the file
    nodes = [load_file(path) for path in here]
    models = [torch.cat([t[name].reshape(-1) for name in layout.names]) for t in nodes]
    z = torch.stack(models) if models else torch.empty(0, layout.dim)  # a comparison keeps the average model alone
    return Result(summary, read_metrics(folder.metrics), trained, z, folder.path)
