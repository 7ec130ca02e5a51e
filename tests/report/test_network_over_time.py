"""The network as the page shows it: the links, losses and weights of the run itself."""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from privsgp.report import sections
from privsgp.report.reading import read
from privsgp.runs import build
from privsgp.runs import config as configs


def _pairs(links):
    return set(zip(links[::2], links[1::2], strict=True))


def test_a_graph_that_repeats_is_told_once(made):
    told = sections.moving(read(made()))
    assert told["steps"] == list(range(30))
    assert [len(links) for links in told["links"]] == [8, 8]
    assert told["phase"][:4] == [0, 1, 0, 1]
    assert _pairs(told["links"][1]) == {(i, (i + 2) % 4) for i in range(4)}
    assert told["weights"] is None


def test_weights_are_products_of_the_mixing_matrices(made):
    run = read(made("pushed", graph__name="random"))
    told, graph = sections.moving(run), build.make_graph(run.config)
    w = np.ones(4)
    for k in range(30):
        assert np.allclose(told["weights"][k], w, atol=1e-4)
        edges = graph.edges(k)
        assert _pairs(told["links"][told["phase"][k]]) == {
            (int(i), int(j)) for i, j in zip(edges.source, edges.target, strict=True) if i != j
        }
        w = graph.matrix(k) @ w


def test_faults_are_those_of_the_run(made):
    run = read(made("faulty", "--drop=0.2", "--crash=1@3+4", "--leave=2@20", graph__name="exponential-static"))
    told = sections.moving(run)
    assert sum(map(len, told["lost"])) == run.summary["faults"]["lost"] > 0
    assert sum(map(len, told["links"])) // 2 == run.summary["faults"]["sent"]
    assert told["absent"][4] == [1]
    assert told["absent"][25] == [2]
    assert told["weights"][25][2] == 0


def test_a_long_run_is_thinned_to_what_a_page_can_hold(made):
    told = sections.moving(read(made("pushed", graph__name="random")), room=100)
    assert 2 <= len(told["steps"]) < 10
    assert (told["steps"][0], told["steps"][-1]) == (0, 29)
    assert len(told["links"]) == len(told["weights"]) == len(told["steps"])


def test_fifty_nodes_that_talk_a_lot_fit_on_a_page(made):
    run = read(made())
    values = run.config.model_dump() | {"data": {"nodes": 50}, "graph": {"name": "random", "degree": 10}}
    large = dataclasses.replace(run, config=configs.parse(values), summary=run.summary | {"steps": 400})
    told = sections.moving(large)
    assert len(told["steps"]) > 50
    assert told["steps"][-1] == 399
    assert len(json.dumps(told)) < 1_000_000


def test_a_circle_of_too_many_nodes_is_not_drawn(made, monkeypatch):
    monkeypatch.setattr(sections, "NODES", 3)
    assert sections.moving(read(made())) is None
