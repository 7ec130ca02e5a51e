"""What a terminal shows while a command computes."""

from __future__ import annotations

import datetime as dt
import io
import json
import logging
import re
import types

import pytest
from rich.console import Console

import runs
from privsgp.errors import Diverged, Interrupted
from privsgp.report import terminal
from privsgp.transport.rendezvous import PeerLost


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_being_done_is_shown_on_stderr_unless_told_not_to(monkeypatch, capsys, quiet):
    monkeypatch.setattr(terminal, "err", Console(stderr=True, force_terminal=True))
    with terminal.doing("reading the data", quiet=quiet) as say:
        say("rehearsing privsgp (1 of 4)")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("rehearsing privsgp (1 of 4)" in shown.err) is not quiet
    assert bool(shown.err) is not quiet


HOSTILE = "a[/b]\x1b]0;owned\x07\x9b31m\u202egnp.\udcff\r:smile:[red]"
SHOWN = r"a[/b]\x1b]0;owned\x07\x9b31m\u202egnp.\udcff\r:smile:[red]"


def _unharmed(text):
    return not set(text) & set("\x1b\x07\x9b\u202e\r")


@pytest.mark.parametrize("stream", ["out", "err"])
def test_what_is_printed_is_neither_markup_nor_commands_for_the_terminal(capsys, stream):
    getattr(terminal, stream).print(HOSTILE, soft_wrap=True)
    said = getattr(capsys.readouterr(), stream)
    assert SHOWN in said
    assert _unharmed(said)


def test_neither_are_tables_bars_and_log_lines(capsys):
    terminal.show(HOSTILE, [(HOSTILE, HOSTILE)])
    terminal.show_log()
    logging.getLogger("privsgp.tests").info("%s", HOSTILE.replace("\udcff", ""))  # pytest cannot keep that
    said = capsys.readouterr()
    assert SHOWN in said.out
    assert SHOWN.replace(r"\udcff", "") in said.err.replace("\n", "")
    assert _unharmed(said.out + said.err)


@pytest.fixture
def log(monkeypatch):
    log = logging.getLogger("privsgp")
    monkeypatch.setattr(log, "handlers", [])
    return log


def test_lines_of_a_log_in_a_file_are_as_long_as_they_are(log, capsys):
    terminal.show_log()
    log.info("step %d waits: %s", 7, "nothing from basel " * 20)
    assert capsys.readouterr().err == f"step 7 waits: {'nothing from basel ' * 20}\n"


def test_a_log_can_be_one_json_object_a_line(log, capsys):
    terminal.show_log("json")
    log.getChild("sites").warning("%s left\nfor good", "basel", extra={"peer": "basel", "step": 7})
    log.info(HOSTILE.replace("\udcff", ""))
    log.error("a call failed", exc_info=ValueError("x"))
    terminal.show_end("the disk is full", "  → make room")
    said = capsys.readouterr().err
    assert _unharmed(said)
    first, second, third, fourth = map(json.loads, said.splitlines())
    assert dt.datetime.fromisoformat(first.pop("time")).tzinfo is dt.UTC
    assert first == {"level": "warning", "message": "basel left\nfor good", "peer": "basel", "step": 7}
    assert second["message"] == HOSTILE.replace("\udcff", "")
    assert third["traceback"].endswith("ValueError: x")
    assert (fourth["level"], fourth["message"], fourth["remedy"]) == ("error", "the disk is full", "make room")


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("arguments", [("join", "gone", "--data=gone"), ("relay", "gone")])
def test_a_path_that_is_refused_is_in_the_json_log_too(arguments):
    ran = runs.command(*arguments, "--log-format=json")
    assert ran.code == 2
    said = json.loads(ran.err)
    assert (said["message"], said["remedy"]) == ("gone does not exist", "name a file or folder that exists")


def test_what_is_being_done_is_no_markup(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "err", terminal.Plain(stderr=True, force_terminal=True, width=200))
    with terminal.doing(HOSTILE) as say, terminal.stage(HOSTILE, 3) as done:
        say(HOSTILE)
        done(1)
    said = capsys.readouterr().err
    assert SHOWN in said
    assert not {"\x07", "\x9b", "\u202e"} & set(said)


def test_the_budget_that_is_left_is_not_rounded_up(capsys):
    spent = types.SimpleNamespace(epsilon=4.000049, delta=1e-5)
    terminal.show_budget([types.SimpleNamespace(spent=spent, entries=[], records=3, relation="zero-out")], limit=10.0)
    assert re.search(r"4\.001 .* 5\.999 ", capsys.readouterr().out)


@pytest.mark.parametrize("command", ["train", "report", "ledger", "audit", "compare"])
def test_a_path_is_shown_as_it_is(tmp_path, command):
    more = ["--algorithms", "privsgp"] if command == "compare" else []
    ran = runs.command(command, f"{tmp_path}/{HOSTILE}", *more)
    assert ran.code == 2
    assert SHOWN in ran.err
    assert _unharmed(ran.err)


@pytest.mark.parametrize("raised", [OSError(HOSTILE), Diverged(3, HOSTILE), PeerLost(HOSTILE, 3), Interrupted(3)])
def test_what_ends_a_command_is_shown_as_it_is(monkeypatch, tmp_path, raised):
    def end(*_, **__):
        raise raised

    monkeypatch.setattr("privsgp.engine.folder.refuse_used", end)
    ran = runs.command("train", runs.small(tmp_path))
    assert ran.code in (4, 5, 6, 130)
    assert ("stopped after step 3" if isinstance(raised, Interrupted) else SHOWN) in ran.err
    assert _unharmed(ran.err)


def test_a_report_says_where_it_was_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, place = runs.small(tmp_path), "[/b]"
    runs.train(config, place, *runs.changes(algorithm__steps=2))
    shown = runs.command("train", config, "--out", place, "--resume", *runs.changes(algorithm__steps=2))
    assert shown.code == 0
    assert "[/b]" in shown.out.replace("\n", "")
    written = runs.command("report", place, "--out", tmp_path / "[red]r.html")
    assert (written.code, "[red]r.html" in written.err) == (0, True)


def test_before_the_first_step_it_is_said_what_takes_so_long(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(terminal, "err", terminal.Plain(file=written, force_terminal=True, width=160))
    with terminal.bar(5):
        pass
    assert "certifying the noise" in written.getvalue()
    written.truncate(0)
    with terminal.bar(5) as watch:
        watch(1, None)
    assert "certifying the noise" not in written.getvalue().rpartition("1/5")[2]
