"""Comparisons: one rule for all, fresh seeds in the report, and a table that says what it is."""

from __future__ import annotations

import json
import math
import pathlib

import pytest

import runs
from privsgp.algorithms import ALGORITHMS
from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp_research import compare as comparing
from privsgp_research.bench import Bench, Run, Several, Spread

CONFIG = runs.SMALL.replace("sigma = 0.05", "epsilon = 8.0")


def made(config, score):
    """Return runs that were never run: their accuracy is `score`."""
    summary = {"test_accuracy": score, "mean_node_accuracy": score, "test_loss": 1 - score, "epsilon_spent": None}
    return Several([Run(config, summary, [])])


class Pretended(Bench):
    """A bench on which accuracy is a parabola in log γ with its top at `top`; it notes what was asked."""

    top = 1.0

    def several(self, configs, seeds, words):
        asked.append((list(configs), list(seeds), words))
        return {
            key: made(c, 0.9 - 0.01 * math.log(c.algorithm.step_size / self.top) ** 2) for key, c in configs.items()
        }


asked: list = []


@pytest.fixture(autouse=True)
def _nothing_asked():
    asked.clear()


def settings(tmp_path, *changes):
    return configs.read(runs.small(tmp_path, CONFIG), changes)


def test_the_command_compares_at_one_budget_and_goes_on(tmp_path):
    config, out = runs.small(tmp_path, CONFIG), tmp_path / "out"
    arguments = ("compare", config, "--algorithms=privsgp,privsgp-sag", "--seeds=2", "--step-sizes=0.2,0.4,0.8")
    ran = runs.command(*arguments, "--out", out, "--json", "--set=algorithm.steps=8")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told == json.loads((out / "comparison.json").read_text())
    assert [row["algorithm"] for row in told["rows"]][:2] == ["privsgp", "privsgp-sag"]
    for row in told["rows"]:
        assert 7 < row["epsilon"] <= 8
        assert row["seeds"] == [8, 9]
        assert row["trust"] in ("per-node", "secure aggregation")
        assert len(row["accuracy"]["each"]) == 2
    assert (out / "comparison.png").stat().st_size > 5000
    before = runs.contents(out / "runs")
    shown = runs.command(*arguments, "--out", out, "--set=algorithm.steps=8")
    assert shown.code == 0, shown.err
    assert runs.contents(out / "runs") == before


def test_step_sizes_are_tuned_on_other_seeds_than_are_reported(tmp_path):
    bench = Pretended(tmp_path)
    (row, *_) = comparing.compare(settings(tmp_path), ["privsgp"], bench, seeds=3, tuning_seeds=2)["rows"]
    (_, tuning, _), *_, (_, fresh, _) = asked
    assert (tuning, fresh) == ([7, 8], [9, 10, 11])
    assert row["step_size"] == 1.0


@pytest.mark.parametrize(("top", "found"), [(0.01, 0.5 / 4 / 8), (30.0, 0.5 * 4 * 8), (0.1, 0.125), (5.0, 4.0)])
def test_the_grid_grows_beyond_an_edge_by_its_own_ratio_up_to_a_limit(tmp_path, top, found, monkeypatch):
    monkeypatch.setattr(Pretended, "top", top)
    (row, *_) = comparing.compare(settings(tmp_path), ["privsgp"], Pretended(tmp_path))["rows"]
    assert row["step_size"] == pytest.approx(found)
    assert len(row["tried"]) <= len(comparing.FACTORS) + comparing.WIDER


def test_every_method_gets_the_same_data_start_and_budget(tmp_path):
    config = settings(tmp_path, "algorithm.name=privsgp-vr", "algorithm.difference_clip=0.5")
    for name in ALGORITHMS:
        other = comparing.method(config, name)
        assert other.algorithm.name == name
        for section in ("seed", "data", "model", "privacy"):
            assert getattr(other, section) == getattr(config, section)
    assert comparing.method(config, "privsgp-vr").algorithm.difference_clip == 0.5


def test_who_runs_on_another_network_is_said_before_anything_runs(tmp_path):
    config = settings(tmp_path)
    assert comparing.moved(config, ["privsgp", "dp2-sgd", "adam"]) == ["dp2-sgd"]
    assert comparing.moved(settings(tmp_path, "graph.name=torus"), ["dp2-sgd"]) == []
    ran = runs.command(
        "compare", runs.small(tmp_path, CONFIG), "--algorithms=dp2-sgd", "--step-sizes=0.1", "--out", tmp_path / "x"
    )
    assert ran.code == 2
    assert "note: on a ring, not on graph.name = 'exponential': dp2-sgd" in ran.err


@pytest.mark.parametrize(
    ("change", "options", "word"),
    [
        ("algorithm.steps=auto", {}, "algorithm.steps = 'auto'"),
        ("privacy.accountant=published", {}, "published"),
        ("engine.device=tpu", {}, "engine.device = 'tpu'"),
        ("name=x", {"step_sizes": [0.1]}, "--step-sizes 0.1"),
        ("name=x", {"step_sizes": [0.1, -0.1]}, "step_size = -0.1"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, change, options, word):
    with pytest.raises(Refused) as refused:
        comparing.compare(settings(tmp_path, change), ["privsgp"], Pretended(tmp_path), **options)
    assert word in refused.value.what
    assert not asked


def test_unknown_methods_and_fixed_noise_are_refused(tmp_path):
    with pytest.raises(Refused, match="adam"):
        comparing.compare(settings(tmp_path), ["privsgp", "adam"], Pretended(tmp_path))
    with pytest.raises(Refused, match="sigma"):
        comparing.compare(configs.read(runs.small(tmp_path)), ["privsgp"], Pretended(tmp_path))


def test_a_run_that_diverged_counts_as_nothing_right(tmp_path):
    config = settings(tmp_path)
    good = made(config, 0.8).runs[0]
    both = Several([good, Run(config, None, [])])
    assert both.accuracy == Spread((0.8, 0.0))
    assert both.diverged == 1
    assert both.of("test_loss") is None
    assert both.score < Several([good]).score


def test_curves_have_means_and_bands():
    config = configs.parse({"algorithm": {"name": "sgp"}})
    rows = [[{"step": k, "test_accuracy": a + k / 10} for k in (1, 2)] for a in (0.1, 0.3)]
    points = Several([Run(config, {}, r) for r in rows]).curve("test_accuracy")
    assert [p["x"] for p in points] == [1, 2]
    assert [p["mean"] for p in points] == pytest.approx([0.3, 0.4])
    assert [p["sd"] for p in points] == pytest.approx([math.sqrt(0.02)] * 2)
    assert Several([Run(config, {}, rows[0])]).curve("test_accuracy", "virtual_seconds") == []


def test_the_papers_comparison_is_a_configuration():
    path = pathlib.Path(__file__).parents[2] / "experiments" / "methods_mnist.toml"
    config = configs.read(path)
    assert config.algorithm.step_size == pytest.approx(math.sqrt(50 / 575))


@pytest.mark.parametrize("count", [0, -3])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("reproduce", "mnist-best-k"), "--jobs"),
        (("reproduce", "mnist-best-k"), "--seeds"),
        (("reproduce", "mnist-best-k"), "--max-steps"),
        (("compare", "run.toml", "--algorithms=privsgp"), "--jobs"),
        (("compare", "run.toml", "--algorithms=privsgp"), "--seeds"),
        (("compare", "run.toml", "--algorithms=privsgp"), "--tuning-seeds"),
    ],
)
def test_a_count_below_one_is_refused_before_anything_is_made(tmp_path, monkeypatch, command, option, count):
    monkeypatch.chdir(tmp_path)
    runs.small(tmp_path, CONFIG)
    ran = runs.command(*command, option, count)
    assert (ran.code, ran.out) == (2, "")
    assert f"{option} {count} is below 1\n" in ran.err
    assert "take at least 1" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
