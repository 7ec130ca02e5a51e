from __future__ import annotations

from privsgp import graph as graphs
from privsgp.algorithms import Settings
from privsgp.planner import estimates
from privsgp.planner.choose import Method
from settings import settings_of


def test_bytes_of_one_peer_and_of_all():
    assert estimates.bytes_sent_per_node(graphs.make("exponential", 16), 100, 10) == 10 * 408
    assert estimates.bytes_sent_per_node(graphs.make("complete", 16), 100, 10) == 15 * 10 * 408


def test_table_memory(small_planner):
    rehearsal = small_planner.rehearsal  # one linear layer whose input is the data: δ alone, 4 numbers a sample
    assert estimates.table_bytes(rehearsal, Method("privsgp", Settings()), [10]) == 0
    assert estimates.table_bytes(rehearsal, Method("privsgp-vr", Settings()), [10, 30]) == 4 * 4 * 40
    assert (
        estimates.table_bytes(rehearsal, Method("privsgp-vr", settings_of("privsgp-vr", table="dense")), [10])
        == 4 * 68 * 10
    )


def test_a_step_takes_time(small_planner):
    assert 0 < estimates.seconds_per_step(small_planner.rehearsal, Method("privsgp-sag", Settings()), 3, 2000.0) < 10


def test_memory():
    assert estimates.memory_bytes() > 2**27
