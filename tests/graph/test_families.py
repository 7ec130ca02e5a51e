from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp import graph as room
from privsgp.errors import Refused
from privsgp.graph import NAMES, make


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_node_keeps_everything(name):
    assert make(name, 1).matrix(3).tolist() == [[1.0]]


@given(rounds=st.integers(0, 6), seed=st.integers(0, 100))
def test_exponential_averages_a_power_of_two_in_one_period(rounds, seed):
    graph = make("exponential", 2**rounds)
    assert graph.period == max(rounds, 1)
    x = np.random.default_rng(seed).integers(0, 1000, 2**rounds).astype(float)
    mixed = x
    for k in range(graph.period):
        mixed = graph.matrix(k) @ mixed
    assert (mixed == x.mean()).all()


@given(nodes=st.integers(2, 100), k=st.integers(0, 50))
def test_exponential_has_one_peer_at_the_papers_hop(nodes, k):
    graph = make("exponential", nodes)
    hop = 2 ** (k % (int(np.floor(np.log2(nodes - 1))) + 1))
    for i in range(nodes):
        assert graph.out_neighbours(k, i) == ((i + hop) % nodes,)
    assert set(graph.edges(k).share) == {0.5}


def test_fifty_nodes_use_the_hops_of_the_paper():
    assert [make("exponential", 50).out_neighbours(k, 0)[0] for k in range(7)] == [1, 2, 4, 8, 16, 32, 1]


@pytest.mark.parametrize(
    ("name", "nodes", "neighbours", "share"),
    [
        ("exponential-static", 16, (1, 2, 4, 8), 1 / 5),
        ("exponential-static", 5, (1, 2, 4), 1 / 4),
        ("ring-directed", 6, (1,), 1 / 2),
        ("ring", 6, (1, 5), 1 / 3),
        ("ring", 2, (1,), 1 / 2),
        ("complete", 4, (1, 2, 3), 1 / 4),
        ("torus", 12, (1, 3, 4, 8), 1 / 5),  # 3 rows of 4
        ("torus", 6, (1, 2, 3), 1 / 4),  # 2 rows: up and down are the same node
        ("torus", 4, (1, 2), 1 / 3),
    ],
)
def test_static_graphs(name, nodes, neighbours, share):
    graph = make(name, nodes)
    assert graph.period == 1
    assert graph.out_neighbours(0, 0) == neighbours
    np.testing.assert_allclose(graph.edges(0).share, share, rtol=1e-15)
    np.testing.assert_allclose(graph.matrix(0).sum(1), 1, rtol=1e-15)


@given(nodes=st.integers(2, 20), seed=st.integers(0, 2**256 - 1), k=st.integers(0, 10**6), data=st.data())
def test_random_gives_every_node_its_number_of_receivers(nodes, seed, k, data):
    degree = data.draw(st.integers(1, nodes - 1))
    edges = make("random", nodes, seed=seed, degree=degree).edges(k)
    assert (np.bincount(edges.source) == degree + 1).all()


def test_random_picks_evenly():
    hits = sum(make("random", 5, degree=2).matrix(k) > 0 for k in range(2000))
    off_diagonal = hits[~np.eye(5, dtype=bool)]
    assert (np.abs(off_diagonal - 1000) < 5 * np.sqrt(500)).all()


def test_random_is_keyed_by_seed_and_step_alone():
    script = (
        "from privsgp.graph import make; print(make('random', 9, seed=2**200 + 1, degree=2).edges(77).target.tolist())"
    )
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    here = make("random", 9, seed=2**200 + 1, degree=2)
    assert elsewhere.strip() == str(here.edges(77).target.tolist())
    assert here.edges(77).target.tolist() != here.edges(78).target.tolist()
    assert here.edges(77).target.tolist() != make("random", 9, seed=1, degree=2).edges(77).target.tolist()


def test_random_never_changes_between_versions():
    graph = make("random", 6, seed=7)
    assert [graph.out_neighbours(3, i) for i in range(6)] == [(5,), (0,), (0,), (0,), (2,), (3,)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "star", "nodes": 4}, "'star'.*\n.*exponential, exponential-static, ring-directed, ring, complete"),
        ({"name": "ring", "nodes": 0}, "nodes = 0"),
        ({"name": "torus", "nodes": 7}, "nodes = 7 is prime.*\n.*use 6 or 8"),
        ({"name": "torus", "nodes": 3}, "nodes = 3 is prime.*\n.*use 4$"),
        ({"name": "random", "nodes": 4, "degree": 4}, "graph.degree = 4 with nodes = 4\n.*use 1 … 3"),
        ({"name": "random", "nodes": 4, "degree": 0}, "graph.degree = 0"),
        ({"name": "random", "nodes": 4, "seed": -1}, "seed = -1"),
        ({"name": "random", "nodes": 4, "seed": 2**256}, "seed = 1157"),
    ],
)
def test_what_cannot_be_is_refused(arguments, says):
    with pytest.raises(Refused, match=says):
        make(**arguments)


def test_the_room_itself_needs_numpy_only():
    script = (
        "import sys, types; package = types.ModuleType('privsgp'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['privsgp'] = package; import privsgp.graph\n"
        "print({'networkx', 'matplotlib', 'scipy', 'torch'} & set(sys.modules))"
    )
    package = str(Path(room.__file__).parents[1])
    out = subprocess.run([sys.executable, "-c", script, package], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"
