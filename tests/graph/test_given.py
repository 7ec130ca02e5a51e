"""Networks from Python: matrices and networkx graphs become the section `given`, and that the same edges."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import privsgp
from networkx_graphs import from_networkx
from privsgp.errors import Refused
from privsgp.graph import described, make


def built(network, names=None):
    nodes, section = described(network, names)
    return make(nodes=nodes, **section)


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32))
def test_matrices_come_back(nodes, period, seed):
    P = np.random.default_rng(seed).random((period, nodes, nodes)) + 0.01
    P /= P.sum(1, keepdims=True)
    for network in (P, list(P), P.tolist()) if period > 1 else (P, P[0], P[0].tolist()):
        found = built(network)
        assert found.period == period
        for k in range(period):
            np.testing.assert_allclose(found.matrix(k), P[k], atol=1e-12)


@pytest.mark.parametrize("graphs", [
    [nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])], [nx.cycle_graph(4), nx.star_graph(3)],
    [nx.DiGraph([(0, 1, {"share": 0.3}), (1, 0, {"share": 0.2})])],
])  # fmt: skip
def test_networkx_graphs_are_those_of_the_tests(graphs):
    plain, found = from_networkx(graphs), built(graphs)
    for k in range(len(graphs)):
        np.testing.assert_allclose(found.matrix(k), plain.matrix(k), atol=1e-15)
    np.testing.assert_array_equal(built(graphs[0]).matrix(0), found.matrix(0))


def test_nodes_may_be_named_as_sites_are():
    graph = nx.DiGraph([("b", "a"), ("a", "b")])
    assert described(graph, ["a", "b"])[1]["shares"] == [[[1, 0, 0.5], [0, 1, 0.5]]]
    with pytest.raises(Refused, match="not the sites"):
        described(graph, ["a", "c"])


@pytest.mark.parametrize(("network", "what"), [
    (object(), "object"), (np.ones((2, 3)), "ndarray"), (np.ones((2, 2)), "sum to 1"), ([], "list"),
    ([np.eye(2), np.eye(3)], "2, 3"), (nx.DiGraph([(0, 1, {"share": 0.3}), (1, 0)]), "share"),
])  # fmt: skip
def test_refusals(network, what):
    with pytest.raises(Refused, match=what):
        described(network)


@pytest.mark.parametrize("shares", [[], [[[0, 0, 0.5]]], [[[0, 2, 0.5]]], [[[0.5, 1, 0.5]]], [[[0, 1, 0.2]] * 2]])
def test_refuses_shares_that_are_no_graph(shares):
    with pytest.raises(Refused, match=r"graph\.shares"):
        make("given", 2, shares=shares)


def trained(tmp_path, **more):
    x = np.random.default_rng(0).standard_normal((60, 4), dtype=np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return privsgp.train(
        torch.nn.Linear(4, 2), (x, y, x, y), out=tmp_path / "run", seed=0, privacy={"sigma": 0.1},
        algorithm={"name": "privsgp", "batch": 5, "steps": 4}, **more,
    )  # fmt: skip


def test_train_takes_a_graph_a_partition_and_a_callback(tmp_path):
    steps = []
    ring = nx.DiGraph([(0, 1), (1, 2), (2, 0)])
    result = trained(
        tmp_path, graph=ring, partition={"partition": "dirichlet", "alpha": 0.2},
        on_step=lambda step, row: steps.append((step, row["step"])),
    )  # fmt: skip
    assert steps == [(k, k) for k in range(1, 5)]
    assert result.summary["nodes"] == 3
    assert len(set(result.summary["samples"])) > 1
    with pytest.raises(Refused, match="3 nodes, and nodes = 2"):
        trained(tmp_path / "other", graph=ring, nodes=2)


def test_export_names_the_package_that_it_needs(tmp_path):
    result = trained(tmp_path, nodes=2)
    try:
        import onnxscript
    except ImportError:
        with pytest.raises(Refused, match="pip install onnx"):
            result.export(tmp_path / "m.onnx")
    else:
        assert onnxscript
        result.export(tmp_path / "m.onnx")
        assert (tmp_path / "m.onnx").exists()
