"""Hypothesis without deadlines: a busy machine is no reason for a law to fail; and an end for what might have none."""

from __future__ import annotations

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
