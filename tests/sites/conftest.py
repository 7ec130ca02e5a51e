"""Make the helpers beside these tests importable, and consortia that are stopped whatever happens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def consortium(tmp_path):
    from consortium import Consortium

    made = []

    def make(**options):
        made.append(Consortium.make(tmp_path / f"c{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    """A consortium whose agreement is only looked at."""
    from consortium import Consortium

    return Consortium.make(tmp_path_factory.mktemp("three") / "c")
