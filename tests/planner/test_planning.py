from __future__ import annotations

import json
import shutil
import types

import numpy as np
import pytest

from privsgp.errors import Refused
from privsgp.planner import planning
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training
from privsgp.runs.resolve import resolve

VALUES = {
    "seed": 0,
    "data": {"name": "digits", "nodes": 4},
    "model": {"name": "logistic"},
    "privacy": {"epsilon": 3.0},
    "algorithm": {"name": "privsgp-sag", "batch": 64, "steps": 20, "step_size": 0.1},
}


def parsed(plan=None, privacy=None, data=None, **algorithm):
    values = VALUES | {"algorithm": VALUES["algorithm"] | algorithm, "plan": plan or {}}
    values |= {"data": data or VALUES["data"]}
    return configs.parse(values | {"privacy": VALUES["privacy"] | (privacy or {})})


def test_auto_is_listed_and_gone_once_settled():
    config = parsed(steps="auto", step_size="auto")
    assert config.algorithm.auto == ("steps", "step_size")
    settled = config.with_section("algorithm", steps=7, step_size=0.5)
    assert settled.algorithm.auto == ()
    assert settled.algorithm.steps == 7
    assert parsed().algorithm.auto == ()


def test_auto_needs_a_budget():
    with pytest.raises(Refused, match="auto"):
        configs.parse(VALUES | {"privacy": {"sigma": 0.1}, "algorithm": {"steps": "auto"}})
    for key in ("name", "weights"):
        with pytest.raises(Refused, match=f"algorithm.{key} = 'auto'"):
            parsed(**{key: "auto"}, steps="auto")


def test_several_processes_need_numbers(tmp_path):
    config = parsed(steps="auto")
    with pytest.raises(Refused, match="in 2 processes") as refused:
        planning.with_choices(config, None, tmp_path, resume=False, world=types.SimpleNamespace(alone=False, size=2))
    assert "plan run.toml --write" in refused.value.remedy


def test_what_was_not_planned_is_not_run():
    config = parsed(steps="auto")
    with pytest.raises(Refused, match="privsgp plan"):
        build.build_run(resolve(config, problems.load_problem(config)))


def test_the_nodes_data_are_not_looked_at():
    for name in ("private", "digits"):
        config = parsed(plan={"data": name}, steps="auto")
        with pytest.raises(Refused, match="the nodes' own data"):
            planning.make(config, problems.load_problem(config))


def _sites(folder):
    """Two sites' files, and every other way to name one of them."""
    rng = np.random.default_rng(0)
    for node in range(2):
        np.savez(folder / f"site-{node}.npz", x=rng.normal(size=(160, 64)), y=rng.integers(0, 10, 160), classes=10)
    (folder / "link.npz").symlink_to(folder / "site-1.npz")
    (folder / "hard.npz").hardlink_to(folder / "site-1.npz")
    shutil.copy(folder / "site-1.npz", folder / "copy.npz")
    (folder / "below").mkdir()
    return "site-{node}.npz"


OTHER_NAMES = (
    "site-1.npz", "./site-1.npz", "below/../site-0.npz", "link.npz", "hard.npz", "copy.npz", "site-{node}.npz",
    "{here}/site-1.npz",
)  # fmt: skip


@pytest.mark.parametrize("name", OTHER_NAMES)
@pytest.mark.parametrize("own", ["path", "name"])
def test_a_file_of_a_site_is_private_whatever_it_is_called(tmp_path, monkeypatch, name, own):
    monkeypatch.chdir(tmp_path)
    template, name = _sites(tmp_path), name.replace("{here}", str(tmp_path))
    if own == "name" and ("{node}" in name or "site-0" in name):
        return
    where = {"path": template, "nodes": 2} if own == "path" else {"name": "site-1.npz", "nodes": 2}
    config = parsed(plan={"data": name}, data=where, steps="auto")
    with pytest.raises(Refused, match="the nodes' own data"):
        planning.make(config, problems.load_problem(config))


def test_so_is_one_that_was_found_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    _sites(tmp_path / "data")
    config = parsed(plan={"data": "./data/site-1.npz"}, data={"name": "site-1.npz", "nodes": 2}, steps="auto")
    with pytest.raises(Refused, match="the nodes' own data"):
        planning.make(config, problems.load_problem(config, tmp_path / "data"), tmp_path / "data")


def test_other_data_beside_the_sites_files_are_public(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = {"path": _sites(tmp_path), "nodes": 2}
    assert planning.source_of(parsed(data=where), "digits").kind == "public"
    assert planning.source_of(parsed(data=where), "other.npz").kind == "public"


def test_public_data_must_fit(tmp_path):
    rng = np.random.default_rng(0)
    for width in (64, 32):
        np.savez(tmp_path / f"{width}.npz", x=rng.normal(size=(600, width)), y=rng.integers(0, 10, 600))
    config = parsed(plan={"data": str(tmp_path / "64.npz")}, step_size="auto")
    assert planning.make(config, problems.load_problem(config)).source.kind == "public"
    config = parsed(plan={"data": str(tmp_path / "32.npz")}, step_size="auto")
    with pytest.raises(Refused, match="shape"):
        planning.make(config, problems.load_problem(config))


def test_a_planned_run_and_its_resumption(tmp_path):
    config, out = parsed(batch="auto", step_size="auto"), tmp_path / "run"
    words = []
    problem = problems.load_problem(config)
    settled, plan = planning.with_choices(config, problem, out, resume=False, say=words.append)
    assert [said.split()[0] for said in words] == ["estimating", "rehearsing"]
    assert settled.algorithm.auto == ()
    training.run(settled, problem, out, plan=plan)
    kept = json.loads((out / "plan.json").read_text())
    assert kept["step_size"] == settled.algorithm.step_size
    assert kept["batch"] == settled.algorithm.batch
    planned = planning.described(kept).split("; ")[0]
    assert planned == f"step size {kept['step_size']:.3g}, batch {kept['batch']:g}"
    again, none = planning.with_choices(config, problem, out, resume=True)
    assert none is None
    assert again == settled


def test_a_model_too_large_to_rehearse_needs_numbers():
    config = configs.parse(VALUES | {"model": {"name": "mlp", "hidden": 30_000}, "algorithm": {"steps": "auto"}})
    with pytest.raises(Refused, match="'auto' for a model with 2,") as refused:
        planning.make(config, problems.load_problem(config))
    assert "give numbers" in refused.value.remedy


@pytest.mark.parametrize("epsilon", [[3.0, 3.0, 3.0, 0.2], 3.0])
def test_weights_by_noise_leave_less_of_it_in_the_average(epsilon):
    config = parsed(privacy={"epsilon": epsilon}, weights="noise")
    plan = planning.make(config, problems.load_problem(config))
    equal = planning.make(parsed(privacy={"epsilon": epsilon}), problems.load_problem(config))
    assert equal.as_json()["weights"] is None
    in_average = [one.chosen.noise.in_average(1024) for one in (plan, equal)]
    assert in_average[0] <= in_average[1] * (1 + 1e-9)


def test_public_images_go_through_the_features(tmp_path):
    images = np.random.default_rng(0).random((300, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(300) % 3, x_test=images[:30], y_test=np.arange(30) % 3)
    np.savez(tmp_path / "public.npz", x=1 - images, y=np.arange(300) % 3)
    values = VALUES | {
        "data": {"name": str(tmp_path / "images.npz"), "nodes": 4},
        "features": {"name": "scattering"},
        "plan": {"data": str(tmp_path / "public.npz")},
    }
    config = configs.parse(values)
    plan = planning.make(config, problems.load_problem(config))
    assert plan.planner.rehearsal.runs[0].x.shape[1:] == (81 * 4,)


def made(config):
    return planning.make(config, problems.load_problem(config))


@pytest.mark.parametrize("noise", ["independent", "pairwise"])
def test_a_plan_knows_the_weight_that_training_takes(noise):
    config = parsed(name="privsgp-vr", batch=4, steps=60, step_size="auto").with_section("privacy", noise=noise)
    plan = made(config)
    assert plan.chosen.method.scaled
    settled = planning.apply(config, plan)
    spec = build.build_run(resolve(settled, problems.load_problem(settled)))
    (taken,) = {mechanism.weighted.difference_scale for mechanism in spec.protection.mechanisms}
    assert taken == pytest.approx(plan.chosen.scale, rel=0.1)
    assert spec.protection.mechanisms[0].sigma == pytest.approx(plan.sigmas[0], rel=0.025)
