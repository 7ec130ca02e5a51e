from __future__ import annotations

import math
from dataclasses import replace

import pytest

from privsgp.planner.comparison import ROWS, Setting

HERE = Setting(nodes=16, samples=3125, dim=10_000, epsilon=3.0, delta=1e-5)
LOG = math.log(1e5)
LOCAL = math.sqrt(10_000 * LOG) / (3125 * 3)
BY_NAME = {row.name: row for row in ROWS}


@pytest.mark.parametrize(
    ("name", "utility", "rounds"),
    [
        ("DP-SGD", LOCAL, None),
        ("Distributed DP-SRM", LOCAL / 16, 16**2 * 3125 * 3 * 100 / math.sqrt(LOG)),
        ("LDP SVRG/SPIDER", LOCAL / 4, 64 * 3125 * 3 * 100 / math.sqrt(LOG)),
        ("SoteriaFL-SAGA/SVRG", LOCAL / 4, 4 * 3125 * 3 / math.sqrt(10_000 * LOG)),
        ("A(DP)²SGD", LOCAL, (3125 * 3) ** 2 / (10_000 * LOG)),
        ("PrivSGP-VR", LOCAL / 4, (3125 * 3) ** 2 / (10_000 * LOG)),
    ],
)
def test_table_1(name, utility, rounds):
    row = BY_NAME[name]
    assert row.utility(HERE) == pytest.approx(utility)
    assert row.rounds(HERE) == (None if rounds is None else pytest.approx(rounds))


def test_all_rows_are_there():
    assert len(ROWS) == 6


def test_compression_costs_utility_and_saves_rounds():
    soteria, squeezed = BY_NAME["SoteriaFL-SAGA/SVRG"], replace(HERE, compression=19.0)
    assert soteria.utility(squeezed) == pytest.approx(math.sqrt(20) * soteria.utility(HERE))
    assert soteria.rounds(squeezed) == pytest.approx(soteria.rounds(HERE) / math.sqrt(20))


def test_alone_privsgp_vr_is_dp_sgd():
    alone = replace(HERE, nodes=1)
    assert BY_NAME["PrivSGP-VR"].utility(alone) == BY_NAME["DP-SGD"].utility(alone)
