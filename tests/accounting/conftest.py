"""Every test of this room computes its own numbers: none comes from, or goes to, the user's cache."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVSGP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
