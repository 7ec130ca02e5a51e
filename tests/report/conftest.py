"""Runs to report on: small ones, made once."""

from __future__ import annotations

import pytest

import runs


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return a function that trains the small run with changes, and returns its folder."""
    place = tmp_path_factory.mktemp("reported")
    config = runs.small(place)
    kept = {}

    def make(name="small", *options, **values):
        if name not in kept:
            kept[name] = place / name
            runs.train(config, kept[name], *options, *runs.changes(name=name, **values))
        return kept[name]

    return make


@pytest.fixture(scope="session")
def secret(made):
    """Return the folder of a run without a seed."""
    return made("secret", "--set=seed=", "--set=privacy.sigma=", privacy__epsilon=[1.0, 2.0, 3.0, 8.0])
