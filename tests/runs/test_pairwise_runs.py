"""Runs with noise that nodes share: what a configuration may ask for, what a run leaves, and what does not mix."""

from __future__ import annotations

import json
import math

import pytest

import runs
from privsgp.accounting.mechanisms import SampledMean
from privsgp.errors import Refused
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve
from privsgp.transport.world import World
from privsgp_research import compare

PAIRWISE = ["--set=privacy.noise=pairwise", "--set=privacy.honest=3"]


def parsed(algorithm="privsgp", privacy=None, nodes=8, **more):
    values = {
        "seed": 1,
        "data": {"nodes": nodes},
        "model": {"name": "logistic"},
        "privacy": {"sigma": 0.5, "noise": "pairwise"} | (privacy or {}),
        "algorithm": {"name": algorithm, "steps": 5} | more,
    }
    return configs.parse(values)


def spec_of(config):
    return build.build_run(resolve(config, problems.load_problem(config)))


@pytest.mark.parametrize(("nodes", "honest"), [(2, 2), (3, 3), (8, 6), (9, 7), (16, 12), (50, 38)])
def test_three_quarters_are_honest_where_nothing_is_said(nodes, honest):
    config = parsed(nodes=nodes)
    assert config.honest == honest
    assert config.trust == "honest sites"


@pytest.mark.parametrize("algorithm", ["privsgp", "privsgp-vr", "privsgp-sag", "dp2-sgd"])
def test_methods_that_move_and_mix_linearly_may_share_noise(algorithm):
    config = parsed(algorithm)
    assert config.pairwise
    assert spec_of(config.with_section("graph", name="ring")).noise.name == "pairwise"


@pytest.mark.parametrize(
    ("algorithm", "privacy", "more", "said"),
    [
        ("adp2-sgd", {}, {}, "independent"),
        ("soteriafl-sgd", {}, {}, "independent"),
        ("dp-srm", {}, {}, "independent"),
        ("dp-sgd", {}, {}, "independent"),
        ("local", {}, {}, "independent"),
        ("sgp", {}, {}, "independent"),
        ("privsgp", {"sigma": 0.0}, {}, "noise above 0"),
        ("privsgp", {"honest": 1}, {}, "independent"),
        ("privsgp", {"honest": 9}, {}, "take 2 to 8"),
        ("privsgp", {"pair_ratio": 1.0}, {}, "greater than 1"),
        ("privsgp", {"noise": "independent", "honest": 3}, {}, "'pairwise'"),
        ("privsgp", {"noise": "shared"}, {}, "use one of"),
        ("privsgp", {"pair_degree": 4}, {}, "all pairs of nodes share noise"),
    ],
)
def test_where_noise_cannot_cancel_or_hide_it_is_refused_with_the_reason(algorithm, privacy, more, said):
    with pytest.raises(Refused) as refused:
        parsed(algorithm, privacy, **more)
    assert said in str(refused.value)


def test_auto_shares_noise_where_it_can_and_says_so():
    shared, alone = (parsed(name, {"noise": "auto"}) for name in ("privsgp", "local"))
    assert (shared.pairwise, alone.pairwise) == (True, False)
    assert alone.trust == "per-node"
    notes = " ".join(problems.notes(shared, problems.load_problem(shared), World()))
    assert "6 of 8 sites are honest" in notes
    assert "cannot be shared" in " ".join(problems.notes(alone, problems.load_problem(alone), World()))


def test_where_all_are_taken_to_be_honest_it_is_said_that_each_learns_more_than_outsiders():
    for honest, said in ((8, True), (7, False)):
        config = parsed(privacy={"honest": honest})
        notes = " ".join(problems.notes(config, problems.load_problem(config), World()))
        assert ("against those outside" in notes) is said


def test_each_node_is_counted_with_at_least_the_noise_it_needs():
    config = configs.parse({
        "seed": 1, "data": {"nodes": 6, "sizes": [50, 100, 200, 60, 70, 80]}, "model": {"name": "logistic"},
        "privacy": {"epsilon": [1.0, 2.0, 3.0, 1.0, 2.0, 4.0], "noise": "pairwise", "honest": 4},
        "algorithm": {"name": "privsgp", "steps": 6, "weights": "noise"},
    })  # fmt: skip
    spec, alone = spec_of(config), spec_of(config.with_section("privacy", noise="independent"))
    p = spec.protection
    p.refuse_overspending(range(6))
    needed = [m.sigma for m in alone.protection.mechanisms]
    assert all(m.sigma >= s * 0.995 for m, s in zip(p.mechanisms, needed, strict=True))
    assert all(isinstance(m.shared.base, SampledMean) and m.shared.honest == 4 for m in p.mechanisms)
    assert all(m.shared.least_own > 0 for m in p.mechanisms)
    inverse = [1 / s for s in needed]
    assert spec.weights == pytest.approx([s / math.fsum(inverse) for s in inverse], rel=1e-2)
    apart = math.sqrt(math.fsum((w * s) ** 2 for w, s in zip(alone.weights, needed, strict=True)))
    assert p.covariance.average_sigma < 0.9 * apart


def test_a_run_says_whom_it_trusts_and_what_is_left_otherwise(tmp_path):
    config = runs.small(tmp_path)
    summary = runs.train(config, tmp_path / "run", *PAIRWISE)
    told = summary["pairwise"]
    assert (summary["noise"], summary["trust"], told["honest"]) == ("pairwise", "honest sites", 3)
    assert [h for h, _ in told["curve"]] == [1, 2, 3, 4]
    assert [e for _, e in told["curve"]] == sorted((e for _, e in told["curve"]), reverse=True)
    assert summary["sigma"] == pytest.approx([0.05] * 4)
    assert told["average_sigma"] < 0.05 / 2
    ledgers = json.loads(runs.command("ledger", tmp_path / "run", "--json").out)
    assert {s["honest"] for s in ledgers} == {3}
    shown = runs.command("ledger", tmp_path / "run").out
    assert "if 3 nodes are honest" in " ".join(shown.replace("│", " ").split())  # however it is wrapped
    page = (tmp_path / "run" / "report.html").read_text()
    assert "if this number of sites is honest: 1: " in page
    assert "only if 3 of 4 sites are honest" in page
    assert "passed on the public keys" not in page  # no process but this one


def test_a_secret_run_that_crashed_shares_other_secrets_and_pays_again(tmp_path):
    config, out = runs.small(tmp_path), tmp_path / "out"
    secret = [*PAIRWISE, "--set=seed=", "--set=data.sizes="]
    assert runs.killed("train", config, "--out", out, *secret, steps=20)
    summary = runs.train(config, out, "--resume", *secret)
    assert summary["steps"] == 30
    assert min(summary["releases"]) > 30
    for node in range(4):
        sent = [(step, attempt) for step, attempt, _ in runs.sent(out, node)]
        assert len(set(sent)) == len(sent)


def test_in_a_comparison_those_that_can_share_noise_do():
    config = parsed("privsgp", {"honest": 5})
    kinds = {name: compare.method(config, name) for name in ("privsgp", "dp-sgd", "local")}
    assert {name: one.pairwise for name, one in kinds.items()} == {"privsgp": True, "dp-sgd": False, "local": False}
    assert kinds["privsgp"].honest == 5
