"""From a configuration and its problem to a job: everything decided, what is impossible refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from privsgp import data
from privsgp.algorithms import ALGORITHMS
from privsgp.algorithms.update_rule import node_weights
from privsgp.clock import Events, Hears, Times, Waiting, schedule
from privsgp.devices import chosen_device, device_of, use_tensor_cores
from privsgp.engine.spec import Learning, NodeBudgets, RunSpec, refuse_vast
from privsgp.errors import Refused
from privsgp.features.options import pretraining
from privsgp.gradients import Layout
from privsgp.gradients.rounding import kappa, least_difference_clip
from privsgp.randomness import REGISTERED
from privsgp.randomness.noise import IndependentNoise
from privsgp.randomness.pairwise import PairwiseNoise
from privsgp.runs.budgets import alone, calibrate_nodes, settings, spare
from privsgp.runs.card import card
from privsgp.runs.problem import Problem, layout
from privsgp.seeds import public_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.graph import Graph
    from privsgp.runs.budgets import Earlier
    from privsgp.runs.config import Config
    from privsgp.runs.resolve import Resolved


def build_run(resolved: Resolved, agreed: dict[str, Any] | None = None, earlier: Earlier = alone) -> RunSpec:
    """Decide everything: σ_i from budgets, the clock, the device. What is impossible is refused here.

    `agreed` are the σ_i and the shared noise that sites have agreed on; `earlier` counts a node's
    mechanism together with the runs that it continues.
    """
    config, problem, network = resolved.counted, resolved.problem, resolved.graph
    device, dtype, a = chosen_device(config.engine.device), getattr(torch, config.engine.dtype), config.algorithm
    use_tensor_cores(device)
    steps, dim, step_size = a.steps, Layout.of(problem.model).dim, config.algorithm.step_size
    clock = make_clock(config, network)
    releases = [clock.released(i, steps) for i in range(network.nodes)] if isinstance(clock, Events) else ()
    learning = _learning(problem, device, dtype)
    _refuse_unbuilt(learning, device)
    _refuse_other_unit(config, problem)
    places = learning.places
    slack = kappa(dtype, device, positions=places)
    protection = calibrate_nodes(config, problem.samples, slack, releases, dim, agreed, earlier)
    weighted, least = protection.mechanisms[0].weighted, least_difference_clip(config.privacy.clip, dtype, places)
    clip = None if weighted is None else weighted.difference_clip
    if clip is not None and clip < least:
        what = f"algorithm.difference_clip = {clip:g} with entries that are rounded to float32"
        raise Refused(what, f"take at least {least:g}: rounding moves an entry too")
    c, noise = protection.covariance, REGISTERED.get(config.privacy.noise, IndependentNoise)()
    spec = RunSpec(
        name=config.name,
        seed=config.seed,
        shared_hash=config.shared_hash(),
        learning=learning,
        protection=protection,
        algorithm=ALGORITHMS[a.name],
        settings=settings(config),
        graph=network,
        clock=clock,
        steps=steps,
        bits=config.transport.bits,
        step_size=lambda _k: step_size,
        device=device,
        dtype=dtype,
        evaluate_every=config.engine.evaluate_every or max(1, steps // 10),
        checkpoint_every=_checkpoint_every(config, protection),
        block=problem.block,
        layout=layout(config),
        momentum=a.momentum,
        weights=_weights(config, problem.samples, protection),
        final_model=a,
        noise=noise if c is None else PairwiseNoise(c, config.honest),
        sites=config.data.sites or (),
        share_metrics=config.test_is_public,
        pretraining=pretraining(config.features.name),
        card=card(config, problem),
    )
    refuse_vast(spec, places)
    return spec


def _weights(config: Config, samples: Sequence[int], protection: NodeBudgets) -> list[float] | None:
    """Return p_i; where noise is shared they are those it was made for, else it would not cancel."""
    c = protection.covariance
    if c is not None:
        return None if c.weights is None else list(c.weights)
    return node_weights(config.algorithm.weights, samples, [m.sigma for m in protection.mechanisms])


def make_clock(config: Config, network: Graph) -> Waiting | Events:
    """Return the time of each step, or the order of events. All of it is public."""
    c, algorithm = config.clock, ALGORITHMS[config.algorithm.name]
    times = Times(
        network.nodes, c.spread,
        tuple(c.stragglers) if isinstance(c.stragglers, list) else c.stragglers, c.slowdown,
        public_seed(config.seed, config.shared_hash(), "clock"),
    )  # fmt: skip
    if algorithm.asynchronous:
        return schedule(times, network, config.algorithm.steps, c.latency)
    hears: dict[str, Hears] = {"server": "server", "alone": "nobody"}
    return Waiting(times, network, c.latency, hears.get(algorithm.network, "neighbours"))


def _learning(problem: Problem, device: torch.device, dtype: torch.dtype) -> Learning:
    def to_device(t: Tensor) -> Tensor:
        return t.to(device, dtype) if t.is_floating_point() else t.to(device)

    stacked, d = data.stack(problem.dataset, problem.parts), problem.dataset
    test = None
    if d.x_test is not None and d.y_test is not None:
        test = to_device(torch.from_numpy(d.x_test)), to_device(torch.from_numpy(d.y_test))
    inputs, targets = to_device(stacked.inputs), to_device(stacked.targets)
    return Learning(
        problem.model, problem.loss, problem.correct, inputs, targets, test, stacked.samples, d.vocabulary,
        problem.measure, rows=1 if d.persons is None else d.persons.most,
        weights=None if stacked.weights is None else to_device(stacked.weights),
    )  # fmt: skip


def _refuse_other_unit(config: Config, problem: Problem) -> None:
    """Refuse samples that are persons where records are counted, or the reverse."""
    persons, counted = problem.dataset.persons, config.data.rows_per_person
    if (None if persons is None else persons.most) != counted:
        what = f"samples that are {'rows' if persons is None else 'persons'} with data.rows_per_person = {counted}"
        raise Refused(what, "nothing was sent; name whose rows they are: data.person, from Python persons=…")


def _refuse_unbuilt(learning: Learning, device: torch.device) -> None:
    """Refuse persons with several rows where their gradients are not tested."""
    if learning.rows > 1 and not device_of(device).in_host_memory:
        raise Refused(f"data.person on {device}", "take engine.device = 'cpu': no test has seen persons on a GPU")


def _checkpoint_every(config: Config, protection: NodeBudgets) -> int:
    """Choose so that without a seed, where recomputed steps cost privacy, one crash is covered by half the spare."""
    if config.engine.checkpoint_every is not None:
        return config.engine.checkpoint_every
    any_number = protection.allowance is None and protection.mechanisms[0].redo_limit is None
    if config.seed is not None or any_number:
        return 64
    return max(1, min(64, spare(config) // 2))
