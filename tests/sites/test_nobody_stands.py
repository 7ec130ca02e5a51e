"""Whatever dies, is lost or comes late: when nothing goes wrong any more, every site comes to its last round."""

from __future__ import annotations

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
