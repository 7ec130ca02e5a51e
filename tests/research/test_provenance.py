"""What stands beside a result."""

from __future__ import annotations

import re
import subprocess

import pytest
import torch

from privsgp.errors import Refused
from privsgp_research import provenance


@pytest.fixture(autouse=True)
def forget():
    provenance.commit.cache_clear()
    yield
    provenance.commit.cache_clear()


def test_a_result_names_commit_versions_and_device(monkeypatch):
    monkeypatch.setenv("PRIVSGP_COMMIT", "abc123")
    told = provenance.provenance("cpu")
    assert told["commit"] == "abc123"
    assert told["versions"]["torch"] == torch.__version__
    assert re.match(r"\d+ cores, \S", told["device"])


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(Refused, match="cuda:99"):
        provenance.provenance("cuda:99")


def test_without_git_no_commit_is_made_up(monkeypatch):
    monkeypatch.delenv("PRIVSGP_COMMIT", raising=False)

    def absent(*_arguments, **_options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", absent)
    assert provenance.commit() is None


def test_a_checkout_that_was_changed_says_so(monkeypatch):
    monkeypatch.delenv("PRIVSGP_COMMIT", raising=False)
    told = {"rev-parse": "0123456789ab", "status": " M src/privsgp/api.py"}
    monkeypatch.setattr(provenance, "_git", lambda verb, *_: told[verb])
    assert provenance.commit() == "0123456789ab+"
