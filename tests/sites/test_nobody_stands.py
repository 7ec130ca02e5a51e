"""Whatever dies, is lost or comes late: when nothing goes wrong any more, every site comes to its last round."""

from __future__ import annotations

import os
import signal
import time

import pytest
from consortium import Consortium
from one_thread import World

from privsgp.sites.agreement import Limits

KINDS = {"open": {}, "closed": {"closed": (2,)}, "relay": {"closed": (1, 2), "relay": 0}}


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    limits = Limits(deadline=1.0, staleness=2)
    small = {"sizes": (20, 20, 20), "algorithm": {"steps": 8, "final_mixing": 4}}
    folder = tmp_path_factory.mktemp("studies")
    return {kind: Consortium.make(folder / kind, limits=limits, **small, **KINDS[kind]) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_nobody_stands_for_good(studies, tmp_path, kind, seed):
    world = World(
        studies[kind], tmp_path / "disks", seed, until=20.0,
        shares={"kill": 0.004, "lost": 0.05, "frozen": 0.01, "orphan": 0.5},
    )  # fmt: skip
    world.run(seconds=200.0)
    assert not world.audited()


@pytest.mark.slow
def test_two_sites_that_each_thought_the_other_away_go_on(consortium):
    """Basel comes back while aachen is not given the processor: it makes steps of which aachen is sent nothing."""
    c = consortium(limits=Limits(deadline=0.5, staleness=4), algorithm={"steps": 16, "final_mixing": 4})
    c.start()
    c.until_step(1, 3)
    c.kill(1)
    until(lambda: "waits: nothing from basel" in c.log(0))
    os.kill(c.processes[0].pid, signal.SIGSTOP)
    time.sleep(5.0)  # now nobody counts it as there
    c.start(1)
    until(lambda: "waits: nothing from aachen" in c.log(1))
    os.kill(c.processes[0].pid, signal.SIGCONT)
    for i, summary in enumerate(c.end()):
        assert summary["releases"][i] == 16 == c.ledger(i).charged == c.sent(i)
        assert not c.audited(i)


def until(happens, seconds=40.0):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)
