"""Ledgers that somebody made up: well chained, and refused by the number of the line, at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
from test_ledger import DIGEST, HEADER, lines

import runs
from privsgp.accounting.ledger import Ledger, read
from privsgp.accounting.mechanisms import SampledMean
from privsgp.accounting.statements import statements
from privsgp.errors import Refused

OPEN = {"kind": "open", "format": 3} | dataclasses.asdict(HEADER)
RESERVE = {"kind": "reserve", "first": 0, "count": 4, "attempt": 0}
DEEP = '{"kind":' + "[" * 30_000 + "]" * 30_000 + "}"


def _chained(*texts: str) -> bytes:
    """Chain lines as neatly as the program does."""
    head, raw = "0" * 64, b""
    for text in texts:
        content = (text[:-1] + f',"prev":"{head}"}}').encode()
        check = hashlib.sha256(content).hexdigest()[:16]
        line = content[:-1] + f',"check":"{check}"}}'.encode()
        head, raw = hashlib.sha256(line).hexdigest(), raw + line + b"\n"
    return raw


def _forge(path, *objects: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(_chained(*(o if isinstance(o, str) else json.dumps(o) for o in objects)))


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "sent", "first": 0, "count": 10**12, "attempt": 0},
        {"kind": "sent", "first": -(10**12), "count": 10**12, "attempt": 0},
        {"kind": "sent", "first": 0, "count": -1, "attempt": 0},
        {"kind": "sent", "step": 0, "attempt": -1, "digest": DIGEST},
        {"kind": "sent", "step": 0, "attempt": 0, "digest": "\x1b[2J"},
        {"kind": "sent", "step": 0, "attempt": 0, "digest": "d" * 60_000},
        {"kind": "sent", "step": False, "attempt": False, "digest": DIGEST},
        {"kind": "return", "first": 0, "count": 10**12, "attempt": 0},
        {"kind": "return", "first": 0, "count": -(10**12), "attempt": 0},
        {"kind": "return", "first": True, "count": True, "attempt": False},
        {"kind": "reserve", "first": 10**30, "count": 1, "attempt": 0},
        {"kind": "reserve", "first": 5, "count": True, "attempt": 0},
        {"kind": "reserve", "first": 5, "count": 1, "attempt": -1},
        {"kind": "reserve", "first": 5, "count": 1, "attempt": 10**400},
        {"kind": ["reserve"]},
        {"kind": "\x1b[31m"},
        DEEP,
    ],
    ids=lambda line: str(line)[:60],
)
def test_a_forged_line_is_refused_by_its_number(tmp_path, line):
    path = tmp_path / "node-3.jsonl"
    _forge(path, OPEN, RESERVE, line)
    for look in (read, lambda p: Ledger.open(p, HEADER)):
        with pytest.raises(Refused, match=r"node-3\.jsonl, line 3: ") as refused:
            look(path)
        assert "\x1b" not in str(refused.value)
        assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "changed",
    [
        {"mechanism": ["SampledMean"]},
        {"mechanism": {}},
        {"mechanism": {"mechanism": "Unheard"}},
        {"mechanism": OPEN["mechanism"] | {"sigma": "0.5"}},
        {"mechanism": OPEN["mechanism"] | {"samples": True}},
        {"mechanism": OPEN["mechanism"] | {"sigma": [0.5]}},
        {"mechanism": OPEN["mechanism"] | {"more": 1}},
        {"mechanism": OPEN["mechanism"] | {"sampling": "\x1b[2J"}},
        {"budget": {"epsilon": float("nan"), "delta": 1e-5}},
        {"budget": {"epsilon": 1e999, "delta": 1e-5}},
        {"budget": {"epsilon": "1", "delta": 1e-5}},
        {"budget": {"epsilon": 1.0}},
        {"budget": {"epsilon": 1.0, "delta": 2.0}},
        {"budget": [1.0, 1e-5]},
        {"node": -1},
        {"node": True},
        {"node": "3"},
        {"run": "../../etc"},
        {"run": "\x1b[2J"},
        {"run": 3},
        {"relation": "none"},
        {"relation": ["zero-out"]},
        {"steps": 10**30},
        {"steps": -1},
        {"spare": 0.5},
        {"simulation": 1},
        {"layout": "\x1b[2J"},
        {"layout": None},
        {"format": 4},
    ],
    ids=str,
)
def test_a_forged_header_is_refused(tmp_path, changed):
    path = tmp_path / "node-3.jsonl"
    _forge(path, json.dumps(OPEN | changed), RESERVE)
    ran = runs.command("ledger", path)
    assert (ran.code, ran.out) == (2, "")
    assert "node-3.jsonl, line 1: " in ran.err.replace("\n", "")
    assert "\x1b" not in ran.err


@pytest.mark.parametrize("line", ["[]", "7", '"x"', "null", '""', '"' + "A" * 28 + '"', "{}"])
def test_what_is_no_line_is_refused(tmp_path, line):
    path = tmp_path / "node-3.jsonl"
    _forge(path, OPEN, RESERVE)
    path.write_bytes(path.read_bytes() + line.encode() + b"\n")
    with pytest.raises(Refused, match=r"node-3\.jsonl, line 3: "):
        read(path)


def test_a_line_without_end_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "node-3.jsonl"
    _forge(path, OPEN)
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + 2**40)  # a hole: a terabyte that takes no room
    with pytest.raises(Refused, match=r"node-3\.jsonl, line 2: it is longer than any line"):
        read(path)


def test_many_pieces_take_no_memory(tmp_path):
    path = tmp_path / "node-3.jsonl"
    many = [RESERVE | {"first": 2 * k, "count": 1} for k in reversed(range(20_000))]
    _forge(path, OPEN | {"budget": None}, *many)
    assert read(path)[0].charged == 20_000


def test_a_ledger_above_its_budget_ends_with_a_status_and_names_the_node(tmp_path):
    loud = SampledMean(sigma=1e-9, clip=1.0, batch=16, samples=100).describe()
    for node, mechanism in ((2, loud), (3, HEADER.mechanism)):
        header = dataclasses.replace(HEADER, node=node, mechanism=mechanism, budget={"epsilon": 50.0, "delta": 1e-5})
        with Ledger.open(tmp_path / "ledger" / f"node-{node}.jsonl", header) as ledger:
            ledger.reserve(0, 4)
    spent = {s.node: s.epsilon for s in statements(tmp_path)}
    assert spent[3] < 50.0 < spent[2]
    for options in ([], ["--json"]):
        ran = runs.command("ledger", tmp_path, *options)
        assert ran.code == 3
        assert ran.out
        assert "above its budget: node 2" in ran.err
        assert "node 3" not in ran.err
    (tmp_path / "ledger" / "node-2.jsonl").unlink()
    assert runs.command("ledger", tmp_path).code == 0


def test_forged_lines_are_like_those_of_the_program(tmp_path):
    """What the tests above forge is refused for what it says alone."""
    path = tmp_path / "node-3.jsonl"
    _forge(path, OPEN, RESERVE)
    assert read(path)[0].charged == 4
    assert lines(path)[1]["count"] == 4
