"""From a configuration to a plan, and from a plan to the numbers that stand in for "auto".

A plan is made from what is public: the configuration, how many samples each node holds, the shape of a sample, the
model at x⁰, and stand-in or public data to rehearse with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp import data, features
from privsgp.accounting.sharing import Sharing
from privsgp.data.loading import file_path, hashes_in, holds_records_of, like, site_paths
from privsgp.data.same_records import in_common
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.files import flat
from privsgp.gradients import Layout
from privsgp.planner import public_rows, stand_in
from privsgp.planner.choose import Choice, Planner, best_batch, best_clip, planner
from privsgp.planner.noise import Method, Network
from privsgp.planner.record import Plan, Source, enough
from privsgp.planner.rehearsal import Rehearsal
from privsgp.planner.stand_in import Samples, Signal
from privsgp.runs import budgets as protection
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.config import PLANNED, Config
from privsgp.runs.refusals import AUTO, CLIP
from privsgp.runs.resolve import make_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privsgp.data.schema import Schema
    from privsgp.runs.problem import Problem
    from privsgp.transport.world import World

    Say = Callable[[str], None]

REHEARSED = 1024  # samples in a rehearsal, fewer for models beyond WEIGHTS weights
WEIGHTS = 60_000
LARGEST = 2_000_000  # weights of a model that can still be rehearsed in seconds


def make(config: Config, problem: Problem, data_dir: Path | None = None, *, say: Say = lambda _words: None) -> Plan:
    """Plan a run: what is "auto" in the configuration is chosen, the rest is taken as it is.

    `say` gets a line for each stage.

    Guarantee: nothing here depends on the nodes' samples.
    Assumes: the sizes J_i and the model at x⁰ are public, and test inputs where `data.test` says so.
    """
    network = network_of(config, problem)
    source, runs = rehearsed_on(config, problem, data_dir)
    rehearsal = Rehearsal(problem.model, problem.loss, runs, config.algorithm)
    asked = {key: "auto" if key in config.algorithm.auto else getattr(config.algorithm, key) for key in AUTO}
    asked["clip"] = "auto" if CLIP in config.auto else config.privacy.clip
    batch = best_batch(network) if "batch" in config.algorithm.auto else config.algorithm.batch
    if CLIP in config.auto:
        say("choosing the clip")
        chosen_clip = best_clip(network, rehearsal, protection.settings(config), batch)
        config = config.with_section("privacy", clip=chosen_clip)
    settings, a = protection.settings(config), config.algorithm
    say("estimating the smoothness of the loss")
    p = planner(network, rehearsal, settings.clip)
    own, clip = Method(a.name, settings), protection.difference_clip(config)
    if own.scaled:
        own = own.changed(difference_scale=1.0) if network.nominal else own.changed(difference_clip=clip)
    say(f"rehearsing {own.algorithm}")
    chosen = _choice(config, p, own, batch)
    return Plan(p, make_graph(config), source, chosen, asked, config.data.schema, config.transport.bits)


def _choice(config: Config, p: Planner, method: Method, batch: float) -> Choice:
    """Choose K and γ, as far as they are open."""
    a = config.algorithm
    steps, step_size = (None if key in a.auto else getattr(a, key) for key in ("steps", "step_size"))
    return p.choose(method, batch, steps, step_size)


def network_of(config: Config, problem: Problem) -> Network:
    """Return who takes part and what each may spend."""
    p, samples = config.privacy, problem.samples
    n = len(samples)
    if p.epsilon is None:
        raise Refused("run.toml has no privacy.epsilon", "give a budget (privacy.epsilon = 3.0) to plan for")
    budgets = list(zip(protection.per_node(p.epsilon, n), protection.per_node(p.delta, n), strict=True))
    sharing = Sharing(n, config.honest) if config.pairwise else None
    return Network(
        samples, budgets, p.relation, p.spare, p.accountant, config.algorithm.weights, sharing, config.pair_ratio,
        config.data.sites or (), config.data.rows_per_person, p.sites_per_person,
    )  # fmt: skip


def source_of(config: Config, name: str, data_dir: Path | None = None, problem: Problem | None = None) -> Source:
    """Return what a name of data to look at means, synthetic or public; refuse the nodes' own data.

    Guarantee: no file of a node passes for public, by whatever path, link or copy it is named, nor one of the records
    of those that this process knows (`same_records.in_common`); of a problem that is given, nor do its records.
    """
    if name == "synthetic":
        return Source("synthetic", name)
    d, own = config.data, config.data.path or config.data.name
    looked_at = file_path(name, data_dir, config.base)
    if d.path is None:
        files = [file_path(own, data_dir, config.base)]
    else:
        files = site_paths(own, range(d.nodes), config.base, d.sites)
    private = name in ("private", own) or holds_records_of(looked_at, files, d.form)
    if not private and problem is not None and looked_at.exists():
        known = problem.hashes if len(problem.parts[0]) else np.empty(0, np.uint64)
        private = in_common(hashes_in(looked_at, d.form), [known[rows] for rows in problem.parts])
    if private:
        raise Refused(
            f"{name} is the nodes' own data",
            "take 'synthetic' or public data: no ε covers a choice by private data",
        )
    return Source("public", name)


def rehearsed_on(config: Config, problem: Problem, data_dir: Path | None) -> tuple[Source, list[Samples]]:
    """Return samples in the shape of the nodes' for each run of a rehearsal, and where they come from.

    Made-up samples have the scale of public test inputs, and no to a very strong signal. Public data are divided at
    random, each time anew. If public rows of a table are few, made-up rows get signals that are plausible for them.
    """
    dim = Layout.of(problem.model).dim
    if dim > LARGEST:
        raise Refused(
            f"'auto' for a model with {dim:,} weights: the planner rehearses models with up to {LARGEST:,}",
            "give numbers for steps, step_size and batch, or train a small model on [features]",
        )
    count = max(64, min(REHEARSED, REHEARSED * WEIGHTS // dim))
    source = source_of(config, config.plan.data, data_dir, problem)
    if source.kind == "synthetic":
        return source, _made_up(config, problem, count)
    x, y = _public(config, source, problem, data_dir, count)
    learnt, schema = min(count, len(x) // 2), config.data.schema
    if schema is None or enough(learnt, problem.samples):
        return source, [_divided(x, y, learnt, run) for run in range(len(stand_in.SIGNALS))]
    if schema.times is not None:  # how hard few rows of survival are to predict is not measured
        return source_of(config, "synthetic"), _tables(schema, stand_in.SIGNALS, problem, count)
    found = public_rows.signals(schema, x.astype(np.float64), y)
    return Source("synthetic", source.name), _tables(schema, found, problem, count)


def _tables(schema: Schema, signals: Sequence[Signal], problem: Problem, count: int) -> list[Samples]:
    rows = max(64, min(count, sum(problem.samples)))
    return [stand_in.table(schema, signal, samples=rows, seed=run) for run, signal in enumerate(signals)]


def _made_up(config: Config, problem: Problem, count: int) -> list[Samples]:
    """Return made-up samples with no to a very strong signal, on the scale of public test inputs."""
    d = problem.dataset
    if d.vocabulary is not None:
        remedy = "give numbers, name public texts as plan.data, or take [features] of texts"
        raise Refused("'auto' for tokens without public texts: privsgp makes no texts up", remedy)
    if config.data.schema is not None:
        return _tables(config.data.schema, stand_in.SIGNALS, problem, count)
    public = d.x_test if config.test_is_public else None
    scale = 1.0 if public is None else float(np.sqrt(np.square(public).mean()))
    return [
        stand_in.make(
            d.x.shape[1:], d.classes, d.y.shape[1:], samples=count, scale=scale or 1.0, between=between
        )._replace(name=f"{between:.0%} of the spread between classes" if d.classes else "made-up numbers")
        for between in stand_in.BETWEEN
    ]


def _public(
    config: Config, source: Source, problem: Problem, data_dir: Path | None, count: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return public samples and their targets, or refuse those of another shape."""
    task: data.Task = "regression" if problem.dataset.classes is None else "classification"
    name = str(file_path(source.name, data_dir, config.base))
    d = data.load(name, data_dir=data_dir, task=task, form=replace(config.data.form, persons=None))
    x, y = d.x, d.y
    if problem.encoder is not None:
        few = np.random.default_rng(1).permutation(len(x))[: 5 * count]
        x, y = features.encode_once(problem.encoder, x[few], torch.device("cpu"), None), y[few]
    if x.shape[1:] != problem.dataset.x.shape[1:]:
        raise Refused(
            f"plan.data = {source.name!r}: a sample has shape {x.shape[1:]}, the nodes' have "
            f"{problem.dataset.x.shape[1:]}",
            "take public data of the same shape, or 'synthetic'",
        )
    return x, y


def _divided(x: NDArray[Any], y: NDArray[Any], count: int, seed: int) -> Samples:
    order = np.random.default_rng(seed).permutation(len(x))
    learn, test = order[:count], order[count : 5 * count]
    parts = [torch.from_numpy(values[rows]) for rows in (learn, test) for values in (x, y)]
    return Samples(parts[0], parts[1], parts[2], parts[3], f"division {seed + 1}")


def with_choices(
    config: Config,
    problem: Problem,
    folder: Path,
    *,
    resume: bool,
    world: World | None = None,
    data_dir: Path | None = None,
    say: Say = lambda _words: None,
) -> tuple[Config, dict[str, Any] | None]:
    """Return the configuration without "auto", and the plan that settled it (None if there was none).

    A resumed run keeps the numbers it was started with.
    """
    if not config.auto:
        return config, None
    if world is not None and not world.alone:
        what = f"{config.auto[0]} = 'auto' in {world.size} processes"
        raise Refused(what, "let privsgp write the numbers first: privsgp plan run.toml --write")
    if resume and Folder(folder).config.exists():
        old = flat(configs.started(Folder(folder).config).model_dump())  # the numbers that the run began with
        return config.with_planned({key: old[key] for key in config.auto}), None
    plan = make(config, problem, data_dir, say=say)
    return apply(config, plan), plan.as_json()


def apply(config: Config, plan: Plan) -> Config:
    """Put the plan's choices where the configuration says "auto"."""
    return config.with_planned(_values(config.auto, plan))


def _values(keys: Sequence[str], plan: Plan) -> dict[str, Any]:
    c = plan.chosen
    values = {"algorithm.batch": float(c.batch), "algorithm.steps": int(c.steps)}
    values |= {"algorithm.step_size": float(c.step_size), CLIP: c.method.settings.clip}
    return {key: values[key] for key in keys}


def described(plan: dict[str, Any]) -> str:
    """Say in a line what was chosen."""
    words = {
        "steps": f"{plan['steps']:,} steps",
        "step_size": f"step size {plan['step_size']:.3g}",
        "batch": f"batch {plan['batch']:g}",
        "clip": f"clip {plan.get('clip', 1.0):g}",
    }
    chosen = ", ".join(words[key] for key in (*AUTO, "clip") if plan["asked"].get(key) == "auto")
    return f"{chosen}; estimated on {plan['estimated_on']['words']}"


def plan(config: Config, data_dir: Path | None = None, *, say: Say = lambda _words: None) -> Plan:
    """Plan a configuration as if its steps and step size were open, which is what one asks a planner about."""
    if config.algorithm.name not in PLANNED:
        raise Refused(f"the planner does not know {config.algorithm.name!r}", f"take one of {', '.join(PLANNED)}")
    return make(opened(config), problem_of(config, data_dir), data_dir, say=say)


def opened(config: Config) -> Config:
    """Return the configuration with its steps and step size open, besides those keys that are "auto"."""
    return config.with_section("algorithm", **dict.fromkeys(("steps", "step_size", *config.algorithm.auto), "auto"))


def written(config: Config, plan: Plan) -> dict[str, Any]:
    """Return the plan's values by their keys in run.toml."""
    return _values(opened(config).auto, plan)


def problem_of(config: Config, data_dir: Path | None) -> Problem:
    """Return what a plan needs: of a table with public sizes it reads the schema alone, and no site's file."""
    d = config.data
    if d.schema is None or d.sizes is None:
        return problems.load_problem(config, data_dir)
    return problems.assembled(config, like(d.schema), [np.arange(0)], range(1), d.sizes)
