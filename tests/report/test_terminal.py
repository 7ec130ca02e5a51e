"""What a terminal shows while a command computes."""

from __future__ import annotations

import pytest
from rich.console import Console

from privsgp.report import terminal


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_being_done_is_shown_on_stderr_unless_told_not_to(monkeypatch, capsys, quiet):
    monkeypatch.setattr(terminal, "err", Console(stderr=True, force_terminal=True))
    with terminal.doing("reading the data", quiet=quiet) as say:
        say("rehearsing privsgp (1 of 4)")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("rehearsing privsgp (1 of 4)" in shown.err) is not quiet
    assert bool(shown.err) is not quiet
