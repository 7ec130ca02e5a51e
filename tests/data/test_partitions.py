from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.data.partitions import KINDS, check, even_sizes, partition
from privsgp.errors import Refused

labels_and_nodes = st.lists(st.integers(0, 4), min_size=1, max_size=60).flatmap(
    lambda labels: st.tuples(st.just(np.array(labels)), st.integers(1, len(labels)))
)
alphas = st.floats(1e-300, 1e9)
seeds = st.integers(0, 2**32)


def split(kind, labels, nodes, seed, **options):
    return partition(kind, labels, nodes, rng=np.random.default_rng(seed), **options)


def is_disjoint(parts, N):
    rows = np.concatenate(parts)
    return len(np.unique(rows)) == len(rows) and rows.min() >= 0 and rows.max() < N


@settings(deadline=None)
@given(st.sampled_from(KINDS), labels_and_nodes, alphas, seeds)
def test_every_sample_has_one_node_and_every_node_a_sample(kind, case, alpha, seed):
    labels, nodes = case
    parts = split(kind, labels, nodes, seed, alpha=alpha)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert len(parts) == nodes
    assert min(map(len, parts)) >= 1
    if kind != "dirichlet":
        assert [len(part) for part in parts] == even_sizes(len(labels), nodes)


@settings(deadline=None)
@given(
    st.sampled_from(["even", "sorted"]), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 9), seeds
)
def test_given_sizes_are_kept(kind, sizes, spare, seed):
    labels = np.random.default_rng(seed).integers(0, 4, sum(sizes) + spare)
    parts = split(kind, labels, len(sizes), seed, sizes=sizes)
    assert [len(part) for part in parts] == sizes
    assert is_disjoint(parts, len(labels))


@settings(deadline=None)
@given(st.sampled_from(KINDS), labels_and_nodes, seeds)
def test_the_same_key_gives_the_same_partition(kind, case, seed):
    labels, nodes = case
    first, second = (split(kind, labels, nodes, seed) for _ in range(2))
    assert all(map(np.array_equal, first, second))


@settings(deadline=None)
@given(st.integers(1, 1000), st.integers(1, 1000))
def test_even_sizes(N, nodes):
    sizes = even_sizes(N, nodes)
    assert sum(sizes) == N
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def skew(parts, labels):
    """The mean share of a node's most frequent class."""
    return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])


def test_a_smaller_alpha_is_more_skewed():
    labels = np.repeat(np.arange(10), 200)
    skews = [skew(split("dirichlet", labels, 10, 0, alpha=alpha), labels) for alpha in (0.05, 0.5, 1e6)]
    assert skews[0] > skews[1] > skews[2]
    assert skews[0] > 0.5
    assert skews[2] < 0.2


def test_another_key_gives_another_partition():
    labels = np.repeat(np.arange(10), 20)
    for kind in KINDS:
        assert not np.array_equal(split(kind, labels, 10, 0)[0], split(kind, labels, 10, 1)[0])


def test_sorted_gives_few_classes_to_each():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 20))
    parts = split("sorted", labels, 10, 0)
    assert [set(labels[part]) for part in parts] == [{label} for label in range(10)]


def test_even_needs_no_classes():
    parts = split("even", np.zeros((10, 2), np.float32), 3, 0)
    assert [len(part) for part in parts] == [4, 3, 3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": 11}, "data.nodes = 11, but there are only 10"),
        ({"sizes": [5, 6]}, "data.sizes sum to 11"),
        ({"kind": "dirichlet", "sizes": [5, 5]}, "data.sizes with data.partition = 'dirichlet'"),
        ({"kind": "dirichlet", "labels": np.zeros(10, np.float32)}, "'dirichlet' needs class labels"),
    ],
)
def test_refuses_what_the_data_cannot_give(options, said):
    arguments = {"kind": "even", "labels": np.zeros(10, np.int64), "nodes": 2, "seed": 0} | options
    with pytest.raises(Refused, match=said):
        split(**arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "fair"}, "data.partition = 'fair' is unknown"),
        ({"sizes": [5]}, "data.sizes has 1 entries for data.nodes = 2"),
        ({"sizes": [5, 0]}, "data.sizes has the entry 0"),
    ],
)
def test_refuses_what_no_data_could_give(options, said):
    with pytest.raises(Refused, match=said):
        check(**{"kind": "even", "nodes": 2, "sizes": None} | options)
