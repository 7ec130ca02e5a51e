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


def _drawing():
    values = tomllib.loads(runs.SMALL)
    values["data"]["sizes"], values["algorithm"]["batch"] = SIZES, 40
    config = configs.parse(values)
    return NodeRandomness.of_run(build.build_run(resolve(config, problems.load_problem(config))))


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
    assert drawing._passes([np.array([299]), np.array([39, 300]), none, none])
    for wrong in (np.array([300, 301]), np.array([-1])):
        with pytest.raises(RuntimeError, match="not its node's"):
            drawing._passes([wrong, none, none, none])
    with pytest.raises(RuntimeError, match="not its node's"):
        drawing._passes([none, none, np.array([7]), none])


def test_sizes_that_are_not_the_datas_are_refused():
    values = tomllib.loads(runs.SMALL)
    config = configs.parse(values)
    spec = build.build_run(resolve(config, problems.load_problem(config)))
    told = [dataclasses.replace(m, samples=J) for m, J in zip(spec.mechanisms, [450, 150, 300, 300], strict=True)]
    with pytest.raises(Refused, match=r"hold \[300, .*\] samples and are counted as if they held \[450, 150"):
        dataclasses.replace(spec, protection=dataclasses.replace(spec.protection, mechanisms=told))
