"""The experiment on what variance reduction buys: how step sizes are chosen, what is counted, what is kept."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from privsgp_research.bench import Run, Several

EXPERIMENT = "what_it_buys"
SUMMARY = {"sigma": [0.1], "epsilon_spent": [0.9], "difference_scale": 0.3, "seconds": 1.0, "test_loss": 1.0}


class Bench:
    """Runs nothing: accuracy falls with the distance of the step size from `best`, and by the seed."""

    def __init__(self, best):
        self.best, self.asked = best, []

    def several(self, configs, seeds, _words):
        self.asked += [(key, list(seeds)) for key in configs]
        return {key: Several([self.run(config, seed) for seed in seeds]) for key, config in configs.items()}

    def run(self, config, seed):
        accuracy = 0.9 - abs(config.algorithm.step_size - self.best) - 0.01 * seed
        return Run(config.model_copy(update={"seed": seed}), SUMMARY | {"test_accuracy": accuracy}, [])


def tuned(experiment, best, **options):
    part, bench = experiment.PARTS["mnist-logistic-small"], Bench(best)
    bare = {m: part.config(m, 4.0, 300, "cpu", []) for m in ("privsgp", "scaled")}
    found = experiment.tuned(bare, 600, [0.1, 0.2, 0.4], bench, **{"seeds": 3, "wider": 1} | options)
    return found, bench.asked


def test_step_sizes_are_chosen_on_one_seed_and_reported_on_others(experiment):
    found, asked = tuned(experiment, 0.2)
    assert found["scaled"]["step_size"] == 0.2
    assert found["scaled"]["seeds"] == [1, 2, 3]
    assert found["scaled"]["accuracy"]["mean"] == pytest.approx(0.88)
    assert len(asked) == 2 * 3 + 2
    alone, _ = tuned(experiment, 0.2, seeds=1)
    assert alone["scaled"]["seeds"] == [0]


def test_one_beyond_an_edge_is_tried_where_that_is_the_best(experiment):
    found, asked = tuned(experiment, 2.0)
    assert found["privsgp"]["step_size"] == pytest.approx(0.8)
    assert [one["step_size"] for one in found["privsgp"]["tried"]] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert len(asked) == 2 * 4 + 2
    narrow, _ = tuned(experiment, 2.0, wider=0)
    assert narrow["privsgp"]["step_size"] == 0.4


def test_a_table_costs_a_gradient_of_every_sample(experiment):
    found, _ = tuned(experiment, 0.2)
    assert (found["privsgp"]["evaluations"], found["scaled"]["evaluations"]) == (1200, 1800)
    part = experiment.PARTS["mnist-logistic-small"]
    zeros = part.config("sag", 4.0, 300, "cpu", ["algorithm.table_init=zeros"])
    assert experiment.evaluations(zeros, 600) == 1200


def test_every_part_has_a_configuration_for_all_its_methods(experiment):
    for part in experiment.PARTS.values():
        for method in part.methods:
            config = part.config(method, part.batches[0], part.steps[0], "cpu", [])
            assert getattr(config.algorithm, "difference_scale", 1.0) == ("auto" if method == "scaled" else 1.0)


def test_rows_of_other_batches_stay(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "draw", lambda *_: None)
    name = "mnist-logistic-small"
    path = tmp_path / f"{name}.json"
    found, _ = tuned(experiment, 0.2)
    rows = [row | {"method": method, "commit": "abc"} for method, row in found.items()]
    experiment.keep(path, name, rows, [])
    experiment.keep(path, name, [rows[0] | {"batch": 1.0}, rows[1] | {"sigma": 7.0}], [])
    kept = json.loads(path.read_text())["rows"]
    assert [(row["batch"], row["method"]) for row in kept] == [(1, "privsgp"), (4, "privsgp"), (4, "scaled")]
    assert kept[2]["sigma"] == 7
    section = experiment.section(json.loads(path.read_text()), tmp_path)
    assert "| 300 | 4 | 1,200 or 1,800 | 88.00 ± 1.00 | 88.00 ± 1.00 | 0.3 |" in section


def test_shared_noise_has_a_file_of_its_own(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "draw", lambda *_: None)
    found, _ = tuned(experiment, 0.2)
    path = tmp_path / "mnist-logistic-small-pairwise.json"
    row = found["scaled"] | {"method": "scaled", "commit": "abc"}
    experiment.keep(path, "mnist-logistic-small", [row], ["privacy.noise=pairwise"])
    assert "each, pairwise noise**, ε = 1" in experiment.written(tmp_path)


def test_a_part_may_be_another(experiment):
    part = replace(experiment.PARTS["mnist-logistic"], clip=4.0)
    assert part.config("clipped", 4.0, 10, "cpu", []).algorithm.difference_clip == 2
