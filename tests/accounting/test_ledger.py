from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.accounting.chain import Mark
from privsgp.accounting.ledger import Header, Ledger, read, short, together
from privsgp.accounting.mechanisms import SampledMean
from privsgp.errors import Refused

MECHANISM = SampledMean(sigma=0.5, clip=1.0, batch=16, samples=100, kappa=1e-6)
HEADER = Header(
    node=3,
    run="a",
    mechanism=MECHANISM.describe(),
    budget={"epsilon": 1.0, "delta": 1e-5},
    relation="zero-out",
    steps=100,
    spare=2,
    simulation=False,
)
DIGEST = "d" * 64
SHORT = (2, 3, 4)  # the lines of messages in `a_run`


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger" / "node-3.jsonl"


def lines(path: Path) -> list[dict]:
    """Return all objects; a short line as the message it notes."""
    found = (json.loads(line) for line in path.read_text().splitlines())
    return [{"kind": "sent", "digest": line[:-6]} if isinstance(line, str) else line for line in found]


def a_run(path: Path) -> None:
    """Write open, reserve, three sent, return, close."""
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, 10)
        for step in range(3):
            ledger.sent(step, DIGEST)
        ledger.close()


def test_a_run_from_open_to_close(path):
    a_run(path)
    kinds = [line["kind"] for line in lines(path)]
    assert kinds == ["open", "reserve", "sent", "sent", "sent", "return", "close"]
    assert lines(path)[0]["mechanism"]["kappa"] == 1e-6
    [segment] = read(path)
    assert (segment.header, segment.charged, segment.closed) == (HEADER, 3, True)


def test_each_line_holds_the_hash_of_the_one_before(path):
    a_run(path)
    heads = ["0" * 64]
    for raw in path.read_bytes().splitlines():
        told = heads[-1].encode() + raw[1:-7] if raw.startswith(b'"') else raw
        heads.append(hashlib.sha256(told).hexdigest())
    prevs = [line.get("prev") for line in lines(path)]
    assert [prev or head for prev, head in zip(prevs, heads, strict=False)] == heads[:-1]
    assert prevs.count(None) == 3
    with Ledger.open(path, HEADER) as ledger:
        assert ledger._chain.head == heads[-1]


def test_what_was_reserved_counts_until_it_is_returned(path):
    with Ledger.open(path, HEADER) as ledger:
        assert ledger.reserve(0, 64) == 64
        ledger.sent(0, DIGEST)
        assert ledger.charged == 64
        assert ledger.give_back() == 63
        assert ledger.give_back() == 0
        assert ledger.charged == 1
        assert ledger.reserve(1, 5) == 5
    assert read(path)[0].charged == 6


def test_the_budget_ends_at_steps_plus_spare(path):
    with Ledger.open(path, HEADER) as ledger:
        assert [ledger.reserve(first, 1000) for first in (0, 64, 128)] == [64, 38, 0]
        assert ledger.charged == HEADER.steps + HEADER.spare == 102
    with Ledger.open(path, HEADER) as ledger:
        assert ledger.reserve(200, 1) == 0


def test_without_a_budget_nothing_ends(path):
    with Ledger.open(path, dataclasses.replace(HEADER, budget=None)) as ledger:
        assert [ledger.reserve(64 * k, 64) for k in range(4)] == [64] * 4


def test_a_message_that_is_not_paid_for_is_refused(path):
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, 2)
        ledger.sent(0, DIGEST)
        for step in (0, 2):
            with pytest.raises(Refused, match=f"step {step}, attempt 0 is not paid for"):
                ledger.sent(step, DIGEST)


def test_after_a_crash_what_was_reserved_is_spent_and_redone_as_another_attempt(path):
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, 8)
        ledger.sent(0, DIGEST)
    with Ledger.open(path, HEADER) as ledger:
        assert ledger.charged == 8
        assert ledger.give_back() == 0
        assert not any(map(ledger.holds, range(10)))
        ledger.reserve(1, 4)
        ledger.sent(1, "e" * 64)
        assert (ledger.charged, ledger.attempt) == (12, 1)
        assert ledger.give_back() == 3
    with Ledger.open(path, HEADER) as ledger:
        assert (ledger.charged, ledger.attempt, ledger.segment.digest) == (9, 2, short("e" * 64))


def test_a_simulation_uses_what_its_killed_process_paid_for(path):
    header = dataclasses.replace(HEADER, simulation=True)
    with Ledger.open(path, header) as ledger:
        ledger.reserve(0, 4)
        ledger.sent(0, DIGEST)
    with Ledger.open(path, header) as ledger:
        assert [ledger.holds(step) for step in range(5)] == [False, True, True, True, False]
        ledger.sent(1, DIGEST)
        assert ledger.give_back() == 2
        assert ledger.charged == 2


@pytest.mark.parametrize("simulation", [True, False])
def test_messages_without_a_hash_share_a_line_at_a_clean_stop(path, simulation):
    with Ledger.open(path, dataclasses.replace(HEADER, simulation=simulation)) as ledger:
        ledger.reserve(0, 10)
        for step in (0, 1, 2, 3):
            ledger.sent(step, "")
            assert not ledger.holds(step)
        for step in (3, 1, 10):  # twice, and never reserved
            with pytest.raises(Refused, match=f"step {step}, attempt 0 is not paid for"):
                ledger.sent(step, "")
        assert ledger.give_back() == 6
        assert ledger.give_back() == 0
    told = [(line["first"], line["count"]) for line in lines(path) if line["kind"] == "sent"]
    assert told == [(0, 4)]
    [segment] = read(path)
    assert (segment.charged, segment.sent, segment.next, segment.stop) == (4, 4, 4, 4)


def test_a_simulation_that_stops_before_its_first_step_returns_none_that_was_sent(path):
    """Messages without a hash have no line after a kill; the checkpoint says that they were sent."""
    header = dataclasses.replace(HEADER, simulation=True)
    with Ledger.open(path, header) as ledger:
        ledger.reserve(0, 10)
        for step in range(6):
            ledger.sent(step, "")
    with Ledger.open(path, header, since=5) as ledger:
        assert ledger.give_back() == 5
    assert read(path)[0].charged == 5


@pytest.mark.parametrize("simulation", [True, False])
def test_a_message_that_no_line_notes_is_paid_for(path, simulation):
    with Ledger.open(path, dataclasses.replace(HEADER, simulation=simulation)) as ledger:
        ledger.reserve(0, 10)
        ledger.sent(0, "")
    [segment] = read(path)
    assert (segment.charged, segment.sent) == (10, 0)


def test_a_resumed_secret_run_returns_nothing_that_a_killed_process_may_have_sent_unnoted(path):
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, 10)
        ledger.sent(0, "")
    with Ledger.open(path, HEADER) as ledger:
        assert not ledger.holds(0)
        assert ledger.give_back() == 0
        assert ledger.charged == 10


def test_where_steps_are_committed_first_a_message_without_a_hash_is_noted_at_once(path):
    with Ledger.open(path, HEADER, commits=True) as ledger:
        ledger.reserve(0, 10)
        ledger.sent(0, "")
        assert lines(path)[-1]["kind"] == "sent"


def test_another_run_is_refused_and_nothing_is_written(path):
    a_run(path)
    before = path.read_bytes()
    with pytest.raises(Refused, match="holds a, and this is run b"):
        Ledger.open(path, dataclasses.replace(HEADER, run="b"))
    assert path.read_bytes() == before


def test_a_closed_run_grants_nothing(path):
    a_run(path)
    before = path.read_bytes()
    with Ledger.open(path, HEADER) as ledger:
        ledger.close()
        with pytest.raises(Refused, match="follows the segment's close"):
            ledger.reserve(50, 1)
    assert path.read_bytes() == before


def test_a_resumed_run_with_another_header_is_refused(path):
    a_run(path)
    other = MECHANISM.with_sigma(0.4).describe()
    with pytest.raises(Refused, match=r"mechanism of run a was .*0\.5.* and is now .*0\.4"):
        Ledger.open(path, dataclasses.replace(HEADER, mechanism=other))
    with Ledger.open(path, HEADER):
        pass


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("damage", ["remove", "change", "swap", "empty", "double", "forge"])
def test_damage_is_found_and_named(path, damage, number):
    a_run(path)
    raw = path.read_bytes().splitlines(keepends=True)
    match damage:
        case "remove":
            del raw[number]
        case "change":
            raw[number] = raw[number].replace(b"e", b"f", 1) if number not in SHORT else b'"A' + raw[number][2:]
        case "swap":
            raw[number - 1], raw[number] = raw[number], raw[number - 1]
        case "empty":
            raw[number] = b"\n"
        case "double":
            raw.insert(number, raw[number])
        case "forge":
            forged = b'"AAAAAA"\n'  # six letters that might be a check
            raw[number] = forged if number in SHORT else raw[number].replace(b'"prev":"', b'"prev":"0', 1)
    if (damage, number) == ("remove", 6):
        # Nothing in a chain shows that its last line is gone: what it counts must then not be less.
        path.write_bytes(b"".join(raw))
        assert read(path)[0].charged == 3
        return
    path.write_bytes(b"".join(raw))
    damaged = path.read_bytes()
    for look in (read, lambda p: Ledger.open(p, HEADER)):
        with pytest.raises(Refused, match=r"node-3\.jsonl, line \d: "):
            look(path)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"kind": "return", "first": 1, "count": 9, "attempt": 0}, "step 1, attempt 0 is not a reserved step"),
        ({"kind": "return", "first": 1, "count": 3, "attempt": 1}, "step 1, attempt 1 is not a reserved step"),
        ({"kind": "return", "first": 0, "count": 1, "attempt": 0}, "step 0, attempt 0 is not a reserved step"),
        ({"kind": "sent", "step": 9, "attempt": 0, "digest": DIGEST}, "step 9, attempt 0 was never reserved"),
        ({"kind": "reserve", "first": 9, "count": 65, "attempt": 0}, "65 steps from step 9"),
        ({"kind": "reserve", "first": 3}, "no line of format 3 is a 'reserve' with these keys"),
        ({"kind": "open", "format": 4}, "not of format 3"),
        ({"kind": "open", "format": 3, "node": 3}, "run: Field required"),
    ],
)
def test_a_well_chained_line_that_cannot_be_is_refused(path, line, reason):
    """A program that writes nonsense chains it as neatly as sense."""
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, 4)
        ledger.sent(0, DIGEST)
        ledger._chain.write(line)
    with pytest.raises(Refused, match=f"line 4: .*{reason}"):
        read(path)


@given(cut=st.integers(0, 2000))
def test_a_torn_last_line_is_cut_off(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "node.jsonl"
    a_run(path)
    whole = path.read_bytes()
    torn = whole[: cut % (len(whole) + 1)]
    path.write_bytes(torn)
    complete = torn[: torn.rfind(b"\n") + 1]
    assert len(read(path)) == (1 if complete else 0)
    with Ledger.open(path, HEADER) as ledger:
        assert path.read_bytes()[: len(complete)] == complete
        assert path.read_bytes().endswith(b"\n")
        if not ledger.segment.closed:
            ledger.reserve(50, 1)
    assert read(path)[0].charged == ledger.charged


@pytest.mark.parametrize("broken", ["write", "fsync"])
def test_a_full_disk_grants_nothing(path, monkeypatch, broken):
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, 4)

        def fail(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, broken, fail)
            with pytest.raises(Refused, match="No space left"):
                ledger.reserve(4, 4)
        assert not ledger.holds(4)
        for later in (lambda: ledger.reserve(8, 4), lambda: ledger.sent(0, DIGEST), ledger.give_back):
            with pytest.raises(Refused, match="failed write"):
                later()
    assert read(path)[0].charged >= 4


def test_a_new_ledger_is_durable_with_its_folders(path, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), sync(fd)))
    with Ledger.open(path, HEADER):
        pass
    assert synced[0] == path.stat().st_ino
    assert {path.parent.stat().st_ino, path.parent.parent.stat().st_ino} <= set(synced[1:])


def test_a_short_write_is_completed(path, monkeypatch):
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:7]))
    a_run(path)
    assert read(path)[0].charged == 3


def test_a_second_process_is_refused(path):
    with Ledger.open(path, HEADER):
        code = "import pathlib, sys; from privsgp.accounting.chain import _lock; _lock(pathlib.Path(sys.argv[1]), [])"
        other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
        assert "in use by another process" in other.stderr
    Ledger.open(path, HEADER).unlock()


def test_a_missing_ledger_is_refused(path):
    with pytest.raises(Refused, match=r"node-3\.jsonl: No such file"):
        read(path)


def test_a_block_of_ledgers_at_once(tmp_path):
    with contextlib.ExitStack() as stack:
        headers = [dataclasses.replace(HEADER, node=i, steps=10 * i) for i in range(5)]
        ledgers = [stack.enter_context(Ledger.open(tmp_path / f"{h.node}.jsonl", h)) for h in headers]
        assert together(ledgers, lambda ledger: ledger.reserve(0, 30)) == [2, 12, 22, 30, 30]
        together(ledgers, Ledger.close)
    assert [read(ledger.path)[0].charged for ledger in ledgers] == [0] * 5


@given(st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_what_is_given_back_is_what_was_never_sent(tmp_path_factory, sent, reserved):
    """A step that was passed over counts as sent."""
    path = tmp_path_factory.mktemp("back") / "node.jsonl"
    sent = {step for step in sent if step < reserved}
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, reserved)
        for step in sorted(sent):
            ledger.sent(step, DIGEST)
        after = max(sent, default=-1) + 1
        assert ledger.give_back() == reserved - after
    [segment] = read(path)
    assert (segment.charged, segment.sent) == (after, len(sent))


def test_a_ledger_grows_by_34_bytes_a_release_and_its_memory_does_not(path):
    header, steps = dataclasses.replace(HEADER, steps=3200), 3200
    with Ledger.open(path, header) as ledger:
        for step in range(steps):
            if step % 64 == 0:
                ledger.reserve(step, 64)
            ledger.sent(step, DIGEST)
    assert path.stat().st_size < 34 * steps + 1000
    tracemalloc.start()
    assert read(path)[0].charged == steps
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()


def test_ledgers_in_which_attempts_were_counted_by_step_are_read(path):
    """Up to 1.0.0rc1 an attempt was that of a step: it went back to 0 after the steps that a crash had undone."""
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, 10)
        for line in (
            {"kind": "sent", "first": 0, "count": 7, "attempt": 0},
            {"kind": "reserve", "first": 5, "count": 10, "attempt": 1},
            {"kind": "sent", "step": 5, "attempt": 1, "digest": DIGEST},
            *[short(DIGEST)] * 9,
            {"kind": "reserve", "first": 15, "count": 5, "attempt": 0},
            {"kind": "sent", "step": 15, "attempt": 0, "digest": DIGEST},
            {"kind": "return", "first": 16, "count": 4, "attempt": 0},
        ):
            ledger._chain.write(line)
    [segment] = read(path)
    assert (segment.charged, segment.sent) == (10 + 10 + 1, 7 + 10 + 1)
    with Ledger.open(path, HEADER) as ledger:
        assert ledger.reserve(16, 4) == 4
        ledger.sent(16, DIGEST)


def test_what_somebody_has_seen_must_be_there(path):
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, 10)
        mark = Mark(*ledger.mark(), "a checkpoint")
        ledger.sent(0, DIGEST)
        assert ledger.mark() == mark[:2]  # a message's line may not outlive a power cut
    assert read(path, [mark])[0].charged == 10
    with Ledger.open(path, HEADER, marks=[mark]):
        pass
    other = Mark(12, "f" * 64, "a checkpoint")
    for look in (lambda: read(path, [other]), lambda: Ledger.open(path, HEADER, marks=[mark, other])):
        with pytest.raises(Refused, match=r"lost lines.* a checkpoint knows 12 releases"):
            look()
    path.unlink()
    with pytest.raises(Refused, match=r"lost lines.*10 releases"):
        Ledger.open(path, HEADER, marks=[mark])
    assert not path.exists()


@pytest.mark.parametrize("seed", range(3))
def test_any_damaged_byte_but_the_last_is_refused(path, seed):
    """The last newline is not seen to be gone: it looks as if the last line had never been completed."""
    a_run(path)
    whole, draw = path.read_bytes(), random.Random(seed)
    for _ in range(100):
        place = draw.randrange(len(whole) - 1)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << draw.randrange(8))]) + whole[place + 1 :])
        with pytest.raises(Refused, match=r"node-3\.jsonl, line \d: "):
            read(path)


SENDER = """
import dataclasses, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_ledger import HEADER, DIGEST
from privsgp.accounting.ledger import Ledger
folder = Path(sys.argv[2])
wire = os.open(folder / "wire", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
ledger = Ledger.open(folder / "node.jsonl", dataclasses.replace(HEADER, steps=10**6))
step = os.fstat(wire).st_size
while True:
    for k in range(step, step + ledger.reserve(step, 5)):
        ledger.sent(k, DIGEST)
        os.write(wire, b"m")
        step += 1
"""


def test_killed_at_any_moment_the_ledger_shows_all_that_was_sent(tmp_path):
    wire, moments = tmp_path / "wire", random.Random(0)
    sent = 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", SENDER, Path(__file__).parent, tmp_path])
        while not (wire.exists() and wire.stat().st_size > sent):
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.wait()
        sent = wire.stat().st_size
        [segment] = read(tmp_path / "node.jsonl")
        assert segment.charged >= sent
        with Ledger.open(tmp_path / "node.jsonl", segment.header) as ledger:
            assert ledger.charged == segment.charged
            assert (ledger.segment.digest, ledger.segment.next) >= (short(DIGEST), sent)


@pytest.mark.parametrize("committed", [1, 2])
def test_steps_after_the_last_commit_were_not_sent_and_stay_paid_for(path, committed):
    """A crash came after the commit of step 1 and its line, or between the commit of step 2 and its line."""
    with Ledger.open(path, HEADER, commits=True) as ledger:
        ledger.reserve(0, 10)
        ledger.sent(0, DIGEST)
        ledger.sent(1, DIGEST)
    with Ledger.open(path, HEADER, since=committed, commits=True) as ledger:
        assert [step for step in range(12) if ledger.holds(step)] == list(range(2, 10))
        ledger.sent(2, DIGEST)
        assert ledger.give_back() == 7
    [segment] = read(path)
    assert segment.charged == 3


def test_lines_that_a_power_cut_took_are_not_given_back(path):
    with Ledger.open(path, HEADER, commits=True) as ledger:
        ledger.reserve(0, 10)  # steps 0 … 4 left; their lines were not on the disk yet
    with Ledger.open(path, HEADER, since=4, commits=True) as ledger:
        assert not any(ledger.holds(step) for step in range(4))
        ledger.sent(4, DIGEST)
        assert ledger.give_back() == 5
    [segment] = read(path)
    assert segment.charged == 5


def test_without_commits_what_was_held_at_a_crash_is_spent(path):
    with Ledger.open(path, HEADER) as ledger:
        ledger.reserve(0, 10)
    with Ledger.open(path, HEADER) as ledger:
        assert ledger.give_back() == 0
    assert read(path)[0].charged == 10
