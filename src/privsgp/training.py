"""From a configuration to a finished run folder; the command line and `privsgp.train` are thin over this."""

from __future__ import annotations

import copy
import functools
import json
import math
import platform
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file

from privsgp import __version__, data, graph, models
from privsgp import config as configs
from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.config import Config, Schedule
from privsgp.engine.folder import Folder, read_metrics, write, write_json, write_tensors
from privsgp.engine.job import Job, Learning, Protection, kappa, public_seed
from privsgp.engine.loop import Outcome, Training
from privsgp.errors import Refused
from privsgp.gradient import Layout
from privsgp.privacy import ledger
from privsgp.privacy.counting import After, Certified, Published
from privsgp.privacy.filter import Filter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from privsgp.engine.loop import Watcher
    from privsgp.privacy.counting import Count
    from privsgp.privacy.ledger import Segment
    from privsgp.privacy.mechanism import Mechanism

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
    """Data as it lies on the nodes, and the model with its loss."""

    dataset: data.Dataset
    parts: Sequence[NDArray[np.int64]]
    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor] | None


def notes(config: Config, problem: Problem) -> list[str]:
    """Say what a careful colleague would say before the run."""
    said = []
    deltas = _per_node(config.privacy.delta, len(problem.parts))
    large = [i for i, rows in enumerate(problem.parts) if config.private and deltas[i] * len(rows) >= 1]
    if large:
        said.append(
            f"privacy.delta = {deltas[large[0]]:g} is not below 1/J of node {large[0]} ({len(problem.parts[large[0]])} "
            f"samples; {len(large)} such nodes): publishing a whole record with that probability would be allowed"
        )
    if config.seed is not None:
        said.append("the config has a seed: this is a simulation, not private")
    if not config.private:
        said.append(f"{config.algorithm.name} adds no noise and does not clip: [privacy] is ignored")
    return said


def load_problem(config: Config, data_dir: Path | None = None) -> Problem:
    """Read the data a configuration names and build its model at x⁰."""
    task = models.task(config.model.loss)
    if config.data.path is not None:
        dataset, parts = data.load_sites(config.data.path, range(config.data.nodes), task=task)
    else:
        dataset = data.load(config.data.name, data_dir=data_dir, task=task)
        parts = split(config, dataset)
    outputs = models.outputs(config.model.loss, classes=dataset.classes, target_shape=dataset.y.shape[1:])
    seed = public_seed(config.seed, config.shared_hash(), "x0")
    model = models.make(
        config.model.name, input_shape=dataset.x.shape[1:], outputs=outputs, hidden=config.model.hidden, seed=seed
    )
    return Problem(dataset, parts, model, models.per_sample(config.model.loss), models.correct(config.model.loss))


def split(config: Config, dataset: data.Dataset) -> list[NDArray[np.int64]]:
    """Lay a data set out on the nodes, by public randomness."""
    rng = np.random.default_rng(public_seed(config.seed, config.shared_hash(), "partition"))
    d = config.data
    return data.partition(d.partition, dataset.y, d.nodes, rng=rng, alpha=d.alpha, sizes=d.sizes)


def prepare(config: Config, problem: Problem, earlier: Sequence[Sequence[Segment]] = ()) -> Job:
    """Decide everything: σ_i from budgets, the graph, the device. What is impossible is refused here."""
    if config.algorithm.auto:
        raise Refused(
            f"algorithm.{config.algorithm.auto[0]} = 'auto' where nothing is planned",
            "write the number that `privsgp plan` gives",
        )
    network = make_graph(config)
    device, dtype = _device(config.engine.device), getattr(torch, config.engine.dtype)
    protection = protect(config, [len(rows) for rows in problem.parts], kappa(dtype, device), earlier)
    steps = config.algorithm.steps
    return Job(
        name=config.name,
        seed=config.seed,
        shared_hash=config.shared_hash(),
        learning=_learning(problem, device, dtype),
        protection=protection,
        algorithm=ALGORITHMS[config.algorithm.name],
        settings=settings(config),
        graph=network,
        steps=steps,
        step_size=step_size(config),
        device=device,
        dtype=dtype,
        evaluate_every=config.engine.evaluate_every or max(1, steps // 10),
        checkpoint_every=config.engine.checkpoint_every or _checkpoint_every(config.seed, steps, protection.allowance),
    )


def make_graph(config: Config) -> graph.Graph:
    """Build the network and check the paper's Assumptions 1 and 2."""
    seed = public_seed(config.seed, config.shared_hash(), "graph")
    network = graph.make(config.graph.name, config.data.nodes, seed=seed, degree=config.graph.degree)
    graph.check(network)
    return network


def settings(config: Config) -> Settings:
    """Return the algorithm's share of the configuration."""
    a = config.algorithm
    return Settings(config.privacy.clip, a.difference_clip, a.sampling, a.table, a.table_init)


def step_size(config: Config) -> Callable[[int], float]:
    """Return γ_k: a constant, the paper's √(n/K), or a schedule."""
    given, steps = config.algorithm.step_size, config.algorithm.steps
    if isinstance(given, Schedule):
        return functools.partial(_scheduled, given, steps)
    constant = math.sqrt(config.data.nodes / steps) if given == "theory" else float(given)
    return lambda _k: constant


def _scheduled(s: Schedule, steps: int, k: int) -> float:
    done = k / max(1, steps - 1)
    left = (1 + math.cos(math.pi * done)) / 2 if s.schedule == "cosine" else 1 - done
    return s.end + (s.start - s.end) * left


def protect(
    config: Config, samples: Sequence[int], slack: float, earlier: Sequence[Sequence[Segment]] = ()
) -> Protection:
    """Give every node its mechanism: σ_i from its own J_i, b_i and budget, or as fixed by hand.

    Where earlier runs have spent from the same budget, a Rényi filter counts them and this one together.
    """
    algorithm, p, n = ALGORITHMS[config.algorithm.name], config.privacy, len(samples)
    deltas = _per_node(p.delta, n)
    budgets = _per_node(p.epsilon if algorithm.private else None, n)
    sigmas = _per_node(p.sigma if p.sigma is not None and algorithm.private else 0.0, n)
    steps = config.algorithm.steps
    allowance = steps + math.ceil(p.spare * steps) if budgets[0] is not None else None
    batches = batch_sizes(config, samples)
    mechanisms: list[Mechanism] = []
    counts = [_count(config, budgets[i], deltas[i], earlier[i] if earlier else ()) for i in range(n)]
    for i in range(n):
        bare = algorithm.mechanism(settings(config), sigma=sigmas[i], batch=batches[i], samples=samples[i], kappa=slack)
        budget = budgets[i]
        if budget is not None:
            bare = bare.with_sigma(counts[i].sigma(bare, allowance or steps, budget, deltas[i]))
        mechanisms.append(bare)

    def epsilon(node: int, releases: int) -> float:
        return counts[node].epsilon(mechanisms[node], releases, deltas[node])

    return Protection(mechanisms, budgets, deltas, p.relation, p.accountant, allowance, epsilon)


def _count(config: Config, budget: float | None, delta: float, earlier: Sequence[Segment]) -> Count:
    p = config.privacy
    if not any(segment.charged for segment in earlier):
        if p.accountant == "published":
            return Published(p.relation, config.algorithm.steps, p.c2)
        return Certified(p.relation)
    if p.accountant == "published":
        raise Refused("privacy.accountant = 'published' with --ledger", "several runs are counted by 'certified' alone")
    if budget is None:
        raise Refused("--ledger without privacy.epsilon", "name the (ε, δ) that all runs on this data must share")
    shared = Filter.over(earlier, budget, delta)
    return After(shared, shared.spent(earlier), p.relation)


def batch_sizes(config: Config, samples: Sequence[int]) -> list[float]:
    """Return b_i = q J_i, where q is the rate that gives `batch` at the mean size."""
    batch, mean = config.algorithm.batch, sum(samples) / len(samples)
    if batch > mean:
        raise Refused(
            f"algorithm.batch = {batch:g} with {mean:g} samples per node on average",
            f"take at most {int(mean)}, or fewer nodes",
        )
    sizes = [batch / mean * J for J in samples]
    return [float(max(1, round(b))) for b in sizes] if config.algorithm.sampling == "fixed" else sizes


def _per_node(value: Any, n: int) -> list[Any]:  # noqa: ANN401 - one value of any kind, or a list of them
    return list(value) if isinstance(value, list) else [value] * n


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
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if torch.empty(0, device=name).device.type not in ("cpu", "cuda"):
            raise Refused(f"engine.device = {name!r}", "take 'auto', 'cpu' or 'cuda' where there is one")
    except (RuntimeError, AssertionError) as error:
        raise Refused(
            f"engine.device = {name!r}: {error}", "take 'auto', 'cpu' or 'cuda' where there is one"
        ) from error
    return torch.device(name)


def _checkpoint_every(seed: int | None, steps: int, allowance: int | None) -> int:
    """Choose so that without a seed, where recomputed steps cost privacy, one crash is covered by half the spare."""
    if seed is not None or allowance is None:
        return 64
    return max(1, min(64, (allowance - steps) // 2))


def run(
    config: Config,
    problem: Problem,
    out: Path,
    *,
    resume: bool = False,
    ledgers: Path | None = None,
    watch: Watcher | None = None,
    plan: dict[str, Any] | None = None,
) -> Result:
    """Train, and leave a complete run folder behind. On a finished run `resume` changes nothing.

    `ledgers` is the ledger folder of an earlier run on the same data: its budget is what this run may go on spending.
    `plan` is kept as plan.json: what `planning.settle` put in the place of "auto", and why.
    """
    folder = Folder(out)
    folder.refuse_unless_writable()
    if _finished(folder, config, resume=resume):
        return load_result(folder, problem.model)
    job = prepare(config, problem, earlier_runs(folder, ledgers, config.data.nodes))
    training = Training(job, folder, watch)
    with folder.locked():
        folder.prepare()
        folder.identify(versions(), ledgers)
        write(folder.config, config.toml())
        if plan is not None:
            write_json(folder.plan, plan)
        outcome = training.run()
        return _finish(job, folder, outcome)


def earlier_runs(folder: Folder, ledgers: Path | None, nodes: int) -> list[list[Segment]]:
    """Return what other runs have already spent of each node's budget, by the ledgers this run continues."""
    where = ledgers or folder.ledgers
    if where is None:
        return [[] for _ in range(nodes)]
    found = [ledger.read(where / f"node-{i}.jsonl") for i in range(nodes)]
    return [[segment for segment in segments if segment.header.run != folder.run] for segments in found]


def versions() -> dict[str, str]:
    """Return what a reader needs to repeat a run."""
    return {"privsgp": __version__, "python": platform.python_version(), "torch": torch.__version__}


def _finished(folder: Folder, config: Config, *, resume: bool) -> bool:
    """Tell whether the run is finished; refuse a folder that belongs to another one."""
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
    return folder.summary.exists()


def _finish(job: Job, folder: Folder, outcome: Outcome) -> Result:
    layout = Layout.of(job.learning.model)
    _save_model(folder.model, layout, outcome.average)
    for i, z in enumerate(outcome.state.z):
        _save_model(folder.node(i), layout, z)
    write_json(folder.summary, _summary(job, outcome))
    return load_result(folder, job.learning.model)


def _save_model(path: Path, layout: Layout, x: Tensor) -> None:
    tensors = {name: value.contiguous().cpu() for name, value in layout.views(x).items()}
    # One entry: safetensors writes several in any order, and the same model is to be the same bytes.
    write_tensors(path, tensors, {"privsgp": f"model {MODEL_VERSION}"})


def _summary(job: Job, outcome: Outcome) -> dict[str, Any]:
    last, p, private = outcome.metrics[-1], job.protection, job.algorithm.private
    spent = [p.epsilon(i, releases) for i, releases in enumerate(outcome.releases)] if private else None
    return {
        "version": SUMMARY_VERSION,
        "name": job.name,
        "simulation": job.simulation,
        "algorithm": job.algorithm.name,
        "graph": job.graph.name,
        "nodes": job.nodes,
        "steps": outcome.steps,
        "dim": outcome.average.numel(),
        "test_accuracy": last.get("test_accuracy"),
        "mean_node_accuracy": last.get("mean_node_accuracy"),
        "worst_node_accuracy": last.get("worst_node_accuracy"),
        "test_loss": last.get("test_loss"),
        "train_loss": last.get("train_loss"),
        "consensus_error": last["consensus_error"],
        "epsilon_spent": spent and [_finite(e) for e in spent],
        "epsilon_budget": list(p.budgets) if private and p.budgets[0] is not None else None,
        "epsilon_nominal": list(p.budgets) if private and p.accountant == "published" else None,
        "delta": list(p.deltas) if private else None,
        "sigma": [m.sigma for m in p.mechanisms],
        "samples": [m.samples for m in p.mechanisms],
        "releases": outcome.releases,
        "relation": p.relation,
        "accountant": p.accountant,
        "test_data": "assumed public: metrics on it are not covered by the guarantee",
        "seconds": round(outcome.seconds, 3),
        "steps_per_second": round(outcome.steps / outcome.seconds, 3) if outcome.seconds else None,
        "bytes_sent": outcome.bytes_sent,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def load_result(folder: Folder, model: nn.Module) -> Result:
    """Read a finished run back."""
    summary = json.loads(folder.summary.read_text())
    trained = copy.deepcopy(model)
    trained.load_state_dict(load_file(folder.model), strict=False)  # what is frozen is not in the file
    layout = Layout.of(model)
    nodes = [load_file(folder.node(i)) for i in range(summary["nodes"])]
    z = torch.stack([torch.cat([t[name].reshape(-1) for name in layout.names]) for t in nodes])
    return Result(summary, read_metrics(folder.metrics), trained, z, folder.path)
