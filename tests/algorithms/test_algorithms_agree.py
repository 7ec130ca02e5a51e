"""Every algorithm against the plain reference, on a network where nodes differ in everything and w ≠ 1."""

from __future__ import annotations

import math

import pytest
import torch
from small_network import Setting, assert_agree, cross_entropy, expected, trained
from torch import nn

from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.graph import make

VARIANTS = [
    ("sgp", {}),
    ("privsgp", {}),
    *[
        (name, {"table": table, "table_init": init} | clip)
        for name, clip in [
            ("privsgp-vr", {}),
            ("privsgp-vr", {"difference_clip": 0.2}),
            ("privsgp-sag", {}),
            ("privsgp-vr", {"difference_scale": 0.4}),
            ("privsgp-vr", {"difference_scale": 0.7, "difference_clip": 0.2}),
        ]
        for table in ("factored", "dense")
        for init in ("gradients", "zeros")
    ],
]
EVERY = pytest.mark.parametrize(("name", "options"), VARIANTS)
FEW = pytest.mark.parametrize(("name", "options"), [*VARIANTS[:3], VARIANTS[6], VARIANTS[10], VARIANTS[14]])


def agree(setting, name, options, *, rules=True):
    run, state = trained(setting, name, rules=rules, **options)
    assert_agree(run, state, expected(setting, name, **options))
    return state


def test_the_setting_has_what_makes_runs_differ():
    """Empty draws, draws of several passes, and a network that push-sum is needed for."""
    setting = Setting()
    mechanisms = setting.mechanisms(ALGORITHMS["privsgp"], Settings(clip=0.5))
    sizes = [len(samples) for step in setting.draws(mechanisms) for samples in step]
    assert min(sizes) == 0
    assert max(sizes) > 2 * setting.room
    assert len({m.batch for m in mechanisms}) == 4
    _, state = trained(setting, "privsgp")
    assert (state.w - 1).abs().min() > 0.01


@EVERY
@pytest.mark.parametrize("rules", [True, False])
def test_it_agrees_with_the_reference(name, options, rules):
    agree(Setting(), name, options, rules=rules)


@FEW
def test_it_agrees_where_every_step_has_another_random_graph(name, options):
    agree(Setting(graph=make("random", 4, seed=5, degree=2)), name, options)


@FEW
def test_it_agrees_when_everything_is_drawn(name, options):
    agree(Setting(rate=1.0, steps=3, room=4), name, options)


@FEW
@pytest.mark.parametrize("clip", [1e-3, 1e6])
def test_it_agrees_for_clips_that_always_and_never_bite(name, options, clip):
    agree(Setting(clip=clip, steps=3), name, options)


@FEW
def test_it_agrees_for_a_model_without_a_rule(name, options):
    model = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(6, 3))
    agree(Setting(model=model, steps=3), name, options)


@FEW
def test_it_agrees_for_a_layer_that_is_the_whole_model(name, options):
    agree(Setting(model=nn.Linear(5, 3), steps=4), name, options)


def poison(outputs, targets):
    """A loss that is not a number for samples of class 2."""
    return cross_entropy(outputs, targets) * torch.where(targets == 2, math.nan, 1.0)


@EVERY
def test_a_sample_without_a_finite_gradient_counts_as_zero_everywhere(name, options):
    setting = Setting(loss=poison)
    assert (setting.targets == 2).any(1).all()
    state = agree(setting, name, options)
    assert state.x.isfinite().all()
