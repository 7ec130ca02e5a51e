"""Ledgers that are lost, put back or copied: what was spent is never begun anew."""

from __future__ import annotations

import os
import re
import shutil
import stat

import pytest

import runs
from privsgp.accounting.book import Book
from privsgp.engine.budget_guard import BudgetGuard
from privsgp.engine.trainer import Trainer
from privsgp.errors import Interrupted, Refused

SECRET = runs.SMALL.replace("seed = 7\n", "").replace("sigma = 0.05", "epsilon = 2.0\nspare = 1.0")


@pytest.fixture
def config(tmp_path):
    return runs.small(tmp_path, SECRET)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Let later commands know nothing of what is kept outside the run folder."""
    return lambda: monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "nothing"))


def _stop(monkeypatch, config, out, *options, at=20):
    """Stop a run cleanly after so many steps."""
    keep = Trainer._keep

    def kept(self, k, seconds):
        if k == at:
            self._checkpoint(k, seconds)
            raise Interrupted(k)
        return keep(self, k, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_keep", kept)
        assert runs.command("train", config, "--out", out, *options).code == 130


def _refused(*arguments):
    ran = runs.command(*arguments)
    assert ran.code == 2, ran.err
    return " ".join(ran.err.split())


def _shortened(path):
    """Leave the lines before the last that reserves something."""
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rfind(b'{"kind":"reserve"')])


def _begun(path):
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


ATTACKS = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "shortened": _shortened,
    "begun": _begun,
}


@pytest.mark.parametrize("text", [SECRET, runs.SMALL], ids=["secret", "seeded"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_ledger_that_lost_what_its_checkpoint_knows_is_refused(tmp_path, monkeypatch, elsewhere, attack, text):
    config, out = runs.small(tmp_path, text), tmp_path / "out"
    _stop(monkeypatch, config, out)
    whole = (out / "ledger" / "node-2.jsonl").read_bytes()
    ATTACKS[attack](out / "ledger" / "node-2.jsonl")
    elsewhere()
    for _ in range(2):  # a refusal leaves nothing behind that a second try would take for granted
        said = _refused("train", config, "--out", out, "--resume", "--moved")
        assert "node-2.jsonl" in said
        assert re.search(r"the checkpoint knows \d+ releases", said)
    (out / "ledger" / "node-2.jsonl").write_bytes(whole)
    assert runs.train(config, out, "--resume")["releases"] == [30] * 4


def test_a_ledger_that_is_lost_before_the_first_checkpoint_is_refused(tmp_path, config):
    out = tmp_path / "out"
    assert runs.killed("train", config, "--out", out, steps=5)
    assert not (out / "private" / "checkpoint.safetensors").exists()
    shutil.rmtree(out / "ledger")
    assert "node-0.jsonl" in _refused("train", config, "--out", out, "--resume")


def test_resume_where_there_is_no_run_is_refused_without_a_seed(tmp_path, config, monkeypatch):
    out = tmp_path / "mistyped"
    said = _refused("train", config, "--out", out, "--resume")
    assert f"--resume with --out {out}" in said
    assert "without --resume" in said
    assert not out.exists()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # torchrun tries again what was refused
    assert "without --resume" in _refused("train", config, "--out", out, "--resume")
    assert not out.exists()
    assert runs.train(config, out)["steps"] == 30  # a restart by itself: before there is a folder nothing was spent


@pytest.mark.parametrize("left", [["config.toml"], ["config.toml", "run.json"], ["config.toml", "run.json", "ledger"]])
def test_a_folder_that_has_lost_what_it_knew_is_no_run_to_resume(tmp_path, config, monkeypatch, elsewhere, left):
    out, lost = tmp_path / "out", tmp_path / "lost"
    _stop(monkeypatch, config, out)
    lost.mkdir()
    for name in left:
        (shutil.copytree if (out / name).is_dir() else shutil.copy)(out / name, lost / name)
    (lost / "ledger" / "node-2.jsonl").unlink(missing_ok=True)
    said = _refused("train", config, "--out", lost, "--resume", "--moved")
    assert ("another folder or a copy" if "run.json" in left else "has lost run.json") in said
    elsewhere()
    assert _refused("train", config, "--out", lost, "--resume")


def test_a_copied_run_folder_is_refused_and_the_original_goes_on(tmp_path, config, monkeypatch):
    out, copy = tmp_path / "out", tmp_path / "copy"
    _stop(monkeypatch, config, out)
    shutil.copytree(out, copy)
    for options in ([], ["--moved"]):
        said = _refused("train", config, "--out", copy, "--resume", *options)
        assert "or a copy" in said
        assert str(out) in said
    assert runs.train(config, out, "--resume")["releases"] == [30] * 4


def test_a_run_that_the_budget_book_does_not_know_is_refused(tmp_path, config, monkeypatch, elsewhere):
    out = tmp_path / "out"
    _stop(monkeypatch, config, out)
    elsewhere()
    said = _refused("train", config, "--out", out, "--resume")
    assert "does not know the run" in said
    assert "--moved" in said
    assert runs.train(config, out, "--resume", "--moved")["releases"] == [30] * 4


def test_a_run_folder_that_was_moved_goes_on(tmp_path, config, monkeypatch):
    _stop(monkeypatch, config, tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "renamed")
    _stop(monkeypatch, config, tmp_path / "renamed", "--resume", at=24)
    shutil.copytree(tmp_path / "renamed", tmp_path / "other-disk")
    shutil.rmtree(tmp_path / "renamed")
    assert "--moved" in _refused("train", config, "--out", tmp_path / "other-disk", "--resume")
    _stop(monkeypatch, config, tmp_path / "other-disk", "--resume", "--moved", at=27)
    assert runs.train(config, tmp_path / "other-disk", "--resume")["releases"] == [30] * 4


def test_a_run_folder_that_was_put_back_is_refused(tmp_path, config, monkeypatch):
    out, kept = tmp_path / "out", tmp_path / "kept"
    _stop(monkeypatch, config, out)
    shutil.copytree(out, kept)
    assert runs.train(config, out, "--resume")["steps"] == 30
    shutil.rmtree(out)
    shutil.copytree(kept, out)
    said = _refused("train", config, "--out", out, "--resume")
    assert "node-0.jsonl" in said
    assert "30 releases" in said


def test_the_budget_book_is_for_its_owner_alone(tmp_path, config):
    runs.train(config, tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (tmp_path / "state").iterdir())


@pytest.mark.parametrize("when", ["at the start", "in mid-run"])
def test_a_private_run_ends_before_its_next_release_without_a_budget_book(tmp_path, config, monkeypatch, when):
    sent, record = [], BudgetGuard.record
    monkeypatch.setattr(BudgetGuard, "record", lambda self, k, x: (sent.append(k), record(self, k, x)))
    if when == "at the start":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "file"))
        said = _refused("train", config, "--out", tmp_path / "out")
        assert sent == []
    else:
        remember, calls = Book.remember, []

        def full(self, run, heads):
            calls.append(run)
            if len(calls) > 2:
                raise Refused("the budget book x cannot be used: disk full", "make its folder writable")
            remember(self, run, heads)

        monkeypatch.setattr(Book, "remember", full)
        said = _refused("train", config, "--out", tmp_path / "out", "--set=engine.checkpoint_every=5")
        assert len(calls) >= 3
        assert max(sent, default=0) < 29
    assert "the budget book" in said


@pytest.mark.parametrize("damage", [b"{", b"x" * 5000, "cut"])
def test_a_damaged_budget_book_is_refused(tmp_path, config, monkeypatch, damage):
    _stop(monkeypatch, config, tmp_path / "out")
    book = tmp_path / "state" / "budget.sqlite"
    kept = book.read_bytes()
    book.write_bytes(kept[: len(kept) // 2] if damage == "cut" else damage)
    said = _refused("train", config, "--out", tmp_path / "out", "--resume")
    assert "budget.sqlite cannot be used" in said
    book.write_bytes(kept)
    assert runs.train(config, tmp_path / "out", "--resume")["steps"] == 30


def _many(arguments, limit, said):
    import resource
    import sys

    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    ran = runs.command(*arguments)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    said.write_text(ran.err)
    sys.exit(ran.code)


MANY = runs.SMALL.replace("nodes = 4\nsizes = [300, 300, 300, 300]", "nodes = 120").replace("steps = 30", "steps = 2")


@pytest.mark.parametrize(("hard", "code"), [(1024, 0), (100, 2)])
def test_many_ledgers_raise_the_limit_of_open_files_or_say_what_is_wrong(tmp_path, hard, code):
    arguments = ["train", str(runs.small(tmp_path, MANY)), "--out", str(tmp_path / "out"), "--set=algorithm.batch=2"]
    process = runs.FORKS.Process(target=_many, args=(arguments, (100, hard), tmp_path / "said"))
    process.start()
    process.join()
    said = (tmp_path / "said").read_text()
    assert process.exitcode == code, said
    if code:
        assert "ulimit -n" in said
        assert "full disk" not in said


@pytest.mark.parametrize("attack", ["deleted", "shortened", "begun"])
def test_a_ledger_that_lost_lines_is_not_read_as_if_less_was_spent(tmp_path, config, elsewhere, attack):
    out = tmp_path / "out"
    runs.train(config, out)
    ATTACKS[attack](out / "ledger" / "node-2.jsonl")
    for command in ("ledger", "report"):
        said = _refused(command, out)
        assert "node-2.jsonl" in said
        assert "the budget book knows 30 releases" in said
    elsewhere()
    assert runs.command("ledger", out).code == 0  # what is known nowhere cannot be missed


@pytest.mark.parametrize(
    "name",
    ["ledger/node-0.jsonl", "private/checkpoint.safetensors", ".lock", "../state/budget.sqlite"],
)
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path, config, monkeypatch, hurried, name):
    out = tmp_path / "out"
    _stop(monkeypatch, config, out)
    path = out / name
    path.unlink()
    os.mkfifo(path)
    assert path.name in _refused("train", config, "--out", out, "--resume")


def test_a_budget_book_that_vanishes_in_mid_run_ends_the_run(tmp_path, config, monkeypatch):
    """It was replaced by an empty one, which let the same records spend their budget again."""
    state, record = tmp_path / "state", BudgetGuard.record

    def gone(self, k, message):
        if k == 10:
            state.rename(tmp_path / "gone")
        record(self, k, message)

    monkeypatch.setattr(BudgetGuard, "record", gone)
    said = _refused("train", config, "--out", tmp_path / "out", "--set=engine.checkpoint_every=5")
    assert "the budget book" in said
    assert not state.exists()
