"""What `difference_scale = "auto"` stands for: a clip and a weight, from public numbers alone."""

from __future__ import annotations

import pytest

from privsgp.runs import config as configs
from privsgp.runs.budgets import settings, with_scale

SAMPLES = [1200] * 4


def parsed(**sections):
    given = {name: sections.pop(name, {}) for name in ("data", "privacy", "algorithm")}
    return configs.parse({
        "seed": 0,
        "data": {"name": "mnist", "nodes": 4} | given["data"],
        "privacy": {"epsilon": 1.0, "clip": 3.0} | given["privacy"],
        "algorithm": {"name": "privsgp-vr", "batch": 4, "steps": 300, "step_size": 0.1} | given["algorithm"],
    } | sections)  # fmt: skip


def settled(config, **named):
    found = settings(with_scale(config, SAMPLES, **named))
    return found.difference_clip, found.difference_scale


@pytest.mark.parametrize(
    ("sections", "clip"),
    [
        ({}, 3.0),
        ({"model": {"name": "logistic"}}, 3.0),
        ({"algorithm": {"difference_clip": 0.5}}, 0.5),
        ({"model": {"name": "cnn"}}, None),
        ({"algorithm": {"table_dtype": "bfloat16"}}, None),
    ],
)
def test_differences_are_clipped_to_g_where_a_table_is_no_larger_for_it(sections, clip):
    found, scale = settled(parsed(**sections))
    assert found == clip
    assert 4 / 1200 < scale < 1


def test_a_clip_leaves_room_for_a_larger_weight():
    weights = [settled(parsed(algorithm={"difference_clip": C}))[1] for C in (6.0, 3.0, 1.5)]
    assert weights[0] == settled(parsed(model={"name": "cnn"}))[1]
    assert weights == sorted(set(weights))


@pytest.mark.parametrize("privacy", [{"accountant": "published"}, {"epsilon": None, "sigma": 0.0}])
def test_without_a_certified_budget_it_is_the_papers_estimator(privacy):
    assert settled(parsed(privacy=privacy)) == (None, 1.0)


@pytest.mark.parametrize(
    "privacy", [{}, {"epsilon": [1.0, 0.95, 0.9, 0.9]}, {"epsilon": None, "sigma": 0.3}], ids=["alike", "own", "sigma"]
)
def test_where_nodes_share_noise_the_weight_is_larger(privacy):
    """The more of them are honest the less noise is left in the average."""
    alone = settled(parsed(privacy=privacy))[1]
    shared = [settled(parsed(privacy=privacy | {"noise": "pairwise", "honest": h}))[1] for h in (2, 4)]
    assert alone <= shared[0] < shared[1] < 1


def test_a_weight_that_is_given_brings_no_clip():
    assert settled(parsed(algorithm={"difference_scale": 0.3})) == (None, 0.3)


def test_a_run_that_goes_on_keeps_both():
    config = parsed()
    before = config.with_section("algorithm", difference_scale=0.07)  # begun before differences were clipped too
    assert settled(config, started=before) == (None, 0.07)
    begun = with_scale(config, SAMPLES)
    assert settled(config, started=begun) == settled(begun)


def test_what_is_shared_does_not_change_when_both_are_settled():
    config = parsed()
    assert with_scale(config, SAMPLES).shared_hash() == config.shared_hash()
    assert parsed(algorithm={"difference_clip": 0.5}).shared_hash() != config.shared_hash()


def test_a_run_does_not_go_on_under_another_clip_of_differences():
    config = parsed()
    begun, other = with_scale(config, SAMPLES), config.with_section("algorithm", difference_clip=0.5)
    assert not configs.differences(begun, with_scale(config, SAMPLES, started=begun))
    changed = configs.differences(begun, with_scale(other, SAMPLES, started=begun))
    assert [one.split(":")[0] for one in changed] == ["algorithm.difference_clip"]
