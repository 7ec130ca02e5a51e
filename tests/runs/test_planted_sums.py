"""Planted bugs of noised sums: each check passes on the shipped code, and fails with the bug that it is for."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import pytest

from planted import no_clip
from privsgp.data.dataset import Dataset
from privsgp.gradients.per_sample import PerSample
from privsgp.randomness import noise as noises
from privsgp.runs import config as configs
from privsgp.runs import sums
from privsgp.runs.problem import assembled
from privsgp.statistics.estimates import Scores

SITES, PERSONS, CELLS = 3, 40, 1500
_add = noises.add_noise_


def released(place, rows, *, epsilon=1.0, norm=1.0, seed=None):
    values = {"data": {"nodes": SITES}, "privacy": {"epsilon": epsilon, "delta": 1e-4}, "sum": {"kind": "evaluation"}}
    config = configs.parse(values | {"algorithm": {"name": "privsgp"}, "seed": seed})
    config = sums.study(config, [PERSONS] * SITES, norm, epsilon, 1e-4)
    dataset = sums.vectors(Dataset("made up", rows, np.zeros(len(rows)), None, None, None), rows)
    problem = assembled(config, dataset, np.array_split(np.arange(len(rows)), SITES))
    return sums.released(config, problem, rows, sums.next_folder(place, "sum"))


def check_the_noise_is_all_there(place):
    """1,500 cells of nobody: their deviation is known to 2 %."""
    total = released(place, np.zeros((SITES * PERSONS, CELLS)))
    assert np.std(total.cells) == pytest.approx(total.sigma, rel=0.1)


def check_two_releases_have_noise_of_their_own(place):
    first, second = (released(place, np.zeros((SITES * PERSONS, CELLS))).cells for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15


def check_a_person_moves_the_sum_by_the_norm_at_most(place):
    """With one seed, two releases have the same noise: the difference is what one person adds."""
    layout, rows = Scores.of(10), np.zeros((SITES * PERSONS, Scores.of(10).length))
    before = released(place, rows, norm=layout.norm, seed=1).cells
    rows[7] = layout.rows(np.array([0.93]), np.array([1]), np.array([0]))
    after = released(place, rows, norm=layout.norm, seed=1).cells
    assert 0.9 < np.linalg.norm(after - before) <= layout.norm * (1 + 1e-5)


def without_node_0(g, source, nodes, step, *, sigma):
    _add(g, source, nodes, step, sigma=[0.0 if node == 0 else one for node, one in zip(nodes, sigma, strict=True)])


def same_key(g, source, nodes, step, *, sigma):
    _add(g, noises.Keyed(1), nodes, step, sigma=sigma)


def in_two_cells(self, p, y, group):
    made = _rows(self, p, y, group)
    return 2 * (made + np.roll(made, 1, 1))


_rows = Scores.rows
NO_NODE_0 = lambda: patch.object(noises, "add_noise_", without_node_0)  # noqa: E731
ONE_KEY = lambda: patch.object(noises, "add_noise_", same_key)  # noqa: E731
TWO_CELLS = lambda: patch.object(Scores, "rows", in_two_cells)  # noqa: E731


@pytest.mark.parametrize(
    ("check", "bug", "harmless"),
    [
        (check_the_noise_is_all_there, NO_NODE_0, nullcontext),
        (check_two_releases_have_noise_of_their_own, ONE_KEY, nullcontext),
        (
            check_a_person_moves_the_sum_by_the_norm_at_most,
            lambda: patch.object(PerSample, "clip_", no_clip),
            TWO_CELLS,
        ),
    ],
)
def test_a_planted_bug_is_found_and_the_shipped_code_is_not_blamed(tmp_path, check, bug, harmless):
    """A person in two cells of weight 2 is clipped: that is harmless alone, and found if the clip is left out."""
    check(tmp_path / "shipped")
    with harmless():
        check(tmp_path / "harmless")
        with bug(), pytest.raises(AssertionError):
            check(tmp_path / "bug")
