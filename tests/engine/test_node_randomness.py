"""What a run draws: each node from its own rows, and what was drawn ahead is what would be drawn anyway."""

from __future__ import annotations

import dataclasses
import tomllib

import numpy as np
import pytest
import torch

import runs
from privsgp.engine.node_randomness import NodeRandomness
from privsgp.errors import Refused
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve

SIZES = [300, 40, 7, 1]


def _drawing(*, alone=True):
    values = tomllib.loads(runs.SMALL)
    values["data"]["sizes"], values["algorithm"]["batch"] = SIZES, 40
    config = configs.parse(values)
    return NodeRandomness(
        build.build_run(resolve(config, problems.load_problem(config))), torch.zeros(4, 650), alone=alone
    )


def _step(drawing, k):
    passes, g = drawing.sample(k), torch.zeros(4, 650)
    drawing.noise(k, g)
    return [drawn.rows for drawn in passes], g


def test_unequal_nodes_draw_from_their_own_rows_only():
    drawing = _drawing()
    for k in range(20):
        for rows, mask, *_ in drawing.sample(k):
            assert ((rows < torch.tensor(SIZES)[:, None]) | ~mask).all()
            assert (rows[~mask] == 300).all()


def test_a_row_that_is_not_the_nodes_own_is_never_gathered():
    """Whatever J_i somebody says: the rows after a node's own are another node's."""
    drawing = _drawing()
    none = np.empty(0, np.int64)
    assert drawing._passes([np.array([299]), np.array([39, 300]), none, none], [0] * 4)
    for wrong in (np.array([300, 301]), np.array([-1])):
        with pytest.raises(RuntimeError, match="not its node's"):
            drawing._passes([wrong, none, none, none], [0] * 4)
    with pytest.raises(RuntimeError, match="not its node's"):
        drawing._passes([none, none, np.array([7]), none], [0] * 4)


def test_sizes_that_are_not_the_datas_are_refused():
    values = tomllib.loads(runs.SMALL)
    config = configs.parse(values)
    spec = build.build_run(resolve(config, problems.load_problem(config)))
    told = [dataclasses.replace(m, samples=J) for m, J in zip(spec.mechanisms, [450, 150, 300, 300], strict=True)]
    with pytest.raises(Refused, match=r"hold \[300, .*\] samples and are counted as if they held \[450, 150"):
        dataclasses.replace(spec, protection=dataclasses.replace(spec.protection, mechanisms=told))


@pytest.mark.parametrize("attempt", [0, 1])
def test_what_was_drawn_meanwhile_is_of_its_step_and_attempt_alone(attempt):
    ahead, plain = _drawing(alone=False), _drawing()
    ahead.meanwhile(2)  # at attempt 0
    ahead.attempt = plain.attempt = attempt
    for k in (3, 3, 4):
        rows, g = _step(ahead, k)
        wanted, noise = _step(plain, k)
        assert all(torch.equal(a, b) for a, b in zip(rows, wanted, strict=True))
        assert torch.equal(g, noise)


def _secret():
    values = tomllib.loads(runs.SMALL.replace("seed = 7\n", ""))
    values["algorithm"]["batch"] = 40
    config = configs.parse(values)
    return NodeRandomness(
        build.build_run(resolve(config, problems.load_problem(config))), torch.zeros(4, 650), alone=False
    )


@pytest.mark.parametrize(("moved", "kept"), [(0.0, True), (5.0, False), (-5.0, False)])
def test_coins_that_lay_in_memory_when_the_clocks_parted_are_drawn_again(moved, kept):
    """A machine that was put back to a snapshot would use them in both of its lives."""
    drawing = _secret()
    drawing.meanwhile(2)
    assert drawing._drawn is not None
    ahead = [one.rows for one in drawing._drawn[2]]
    drawing._offset += moved
    rows, _ = _step(drawing, 3)
    assert [a.tolist() for a in ahead] == [b.tolist() for b in rows] if kept else ahead[0].tolist() != rows[0].tolist()
    with pytest.raises(Refused, match="already used"):
        drawing._draw(3)
