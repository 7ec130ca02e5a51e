"""The table of rooms in CONTRIBUTING.md is true: nothing imports what it says it may not."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "privsgp"
ROW = re.compile(r"^\| (?P<rooms>[^|]+) \| [^|]+ \| (?P<may>[^|]+) \|$", re.MULTILINE)


def table():
    """{room: the rooms it may import}, from the page; a row lets its rooms import each other only where it says so."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    begin, end = text.index("|---|---|---|"), text.index("<!-- end of the rooms -->")
    rows = [(names(m["rooms"]), m["may"]) for m in ROW.finditer(text[begin:end]) if "`" in m["rooms"]]
    allowed, above = {}, set()
    for rooms, may in rows:
        known = set(above) if "everything above" in may else set(names(may))
        assert known <= above | set(rooms), f"{rooms} may import {known - above}, which come later"
        for room in rooms:
            allowed[room] = known | ({"errors", "options"} - {room} if above else set())
        above |= set(rooms)
    return allowed


def names(cell):
    return [name.strip("/").removesuffix(".py") for name in re.findall(r"`([\w./]+)`", cell)]


def imports(path):
    """The rooms that a file imports, each with its line; imports for types alone count too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            modules = [node.module] if node.module != "privsgp" else [f"privsgp.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        yield from ((node.lineno, m.split(".")[1]) for m in modules if m and m.startswith("privsgp."))


FILES = sorted(PACKAGE.rglob("*.py"))


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_room_is_in_the_table():
    assert {room(path) for path in FILES} - {"__init__", "__main__"} == set(table())


def test_rooms_import_downwards_only():
    allowed = table() | {"__init__": set(table()), "__main__": {"cli"}}
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {other}"
        for path in FILES
        for line, other in imports(path)
        if other not in (room(path), "__version__") and other not in allowed[room(path)]
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_research():
    """Entry points find it: what the guarantee rests on does without it."""
    assert not [path for path in FILES if room(path) != "research" for _, other in imports(path) if other == "research"]


OUTSIDE = [path for path in FILES if room(path) != "accounting" and path.name != "published.py"]
MECHANISMS = re.compile(r"isinstance\([^)]*\b(Saga|Sag|Anchored|SampledMean|Unprotected)\b|[=!]= .published.")
DEVICES = re.compile(r"\.is_cuda|device\.type [=!]=|\.type [=!]= .c(uda|pu)\b")


@pytest.mark.parametrize(
    ("asks", "files"),
    [(MECHANISMS, OUTSIDE), (DEVICES, [path for path in OUTSIDE if room(path) not in ("devices", "kernels")])],
    ids=["for a mechanism's kind", "where a tensor lies"],
)
def test_nobody_asks_what_a_thing_answers_itself(asks, files):
    lines = ((p, line) for p in files for line in p.read_text().splitlines() if asks.search(line))
    assert not [f"{path.relative_to(PACKAGE)}: {line.strip()}" for path, line in lines]


@pytest.mark.parametrize(
    "module", ["accounting.accountant", "accounting.calibration", "accounting.ledger", "accounting.statements"]
)
def test_accounting_does_without_torch(module):
    code = f"import sys, privsgp.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_two_test_modules_have_one_name():
    """Pytest imports them by their name alone: of two, the whole suite would not start."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


def test_every_module_says_what_it_is_for():
    left = [path for path in (ROOT / "src").rglob("*.py") if '"""TODO' in path.read_text()]
    assert left == []


PRIVACY = re.compile(r"epsilon|(?<!time)delta|\bspent\b|\bbudget\b|guarantee")


def printed_otherwise(tree):
    """Yield the line and the text of each ε or δ that something else than `accounting/shown.py` rounds for people."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            shown = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("number", "span", "_plain"):
            shown = node
        else:
            continue
        if PRIVACY.search(text := ast.unparse(shown)):
            yield node.lineno, text


@pytest.mark.parametrize("planted", ['f"{s.epsilon:.4g}"', 'f"δ = {max(deltas):g}"', 'span(s["epsilon_spent"])'])
def test_an_epsilon_that_is_rounded_to_the_nearest_is_seen(planted):
    assert list(printed_otherwise(ast.parse(planted)))


def test_every_printed_epsilon_and_delta_is_rounded_up():
    found = [
        (str(path.relative_to(PACKAGE)), *where)
        for path in FILES
        for where in printed_otherwise(ast.parse(path.read_text()))
    ]
    assert not found, "write it with `up` of accounting/shown.py"
