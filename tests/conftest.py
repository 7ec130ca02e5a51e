"""Hypothesis without deadlines: a busy machine is no reason for a law to fail. No test touches the user's home.

And an end for what might have none.
"""

from __future__ import annotations

import importlib
import pathlib
import signal

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture
def hurried():
    """End a test that hangs, in a pipe that nobody writes to, say."""

    def late(*_):
        pytest.fail("it never ends")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True, scope="session")
def shared_state(tmp_path_factory):
    """Let no fixture write down in the user's home what its ledgers have spent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVSGP_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """Let no test know of another's runs."""
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "state"))


@pytest.fixture
def experiment(request, monkeypatch):
    """Return the script of experiments/ that a test module is about: its EXPERIMENT."""
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "experiments")
    return importlib.import_module(request.module.EXPERIMENT)
