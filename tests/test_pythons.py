"""`make test-pythons` says of every Python what was counted on it, or why nothing was."""

from __future__ import annotations

import pathlib
import re
import runpy
import string

import pytest

TRY = runpy.run_path(str(pathlib.Path(__file__).parent.parent / ".ci" / "pythons.py"))["main"]
GPU = 'nvidia-nccl; platform_system == "Linux" or platform_system == "Darwin"'
# An interpreter that makes environments of itself; it has a pip with at most one torch, and a pytest.
FAKE = string.Template("""#!/bin/sh
while [ $$# -gt 0 ]; do
  case "$$1" in
    -c) exit $broken ;;
    venv) mkdir -p "$$2/bin" && cp "$$0" "$$2/bin/python" && exit ;;
    --report) echo '{"install": [{"metadata": {"requires_dist": ["jinja2", "$needs"]}}]}' >"$$2" ;;
    torch) echo "ERROR: no torch 9.9" >&2; echo "WARNING: an old pip" >&2; exit $torchless ;;
    pytest) echo "...[100%]"; echo "= $counted, asked for $$2 ="; exit $status ;;
  esac
  shift
done
""")
USUAL = {"broken": 0, "needs": "numpy", "torchless": 0, "counted": "3 passed", "status": 0}


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Put a Python where it is found: there are two versions, that no machine has."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("TORCH", raising=False)
    monkeypatch.setitem(TRY.__globals__, "VERSIONS", ("9.1", "9.2"))

    def put(name, **how):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(FAKE.substitute(USUAL | {key: str(value).replace('"', r"\"") for key, value in how.items()}))
        file.chmod(0o755)

    return put


@pytest.fixture
def tried(tmp_path, capsys):
    """Try them all; return the status and the line of each."""

    def tried(*tests):
        status = TRY(list(tests), tmp_path / "environments")
        return status, dict(re.findall(r"^(9\.\d)  (.*)$", capsys.readouterr().out, re.MULTILINE))

    return tried


def test_what_ran_is_counted_and_what_is_not_here_is_named(put, tried):
    put("python9.2")
    assert tried("tests/x") == (0, {"9.1": "not run: no interpreter found", "9.2": "ran: 3 passed, asked for tests/x"})


def test_a_failing_test_on_one_of_them_is_a_failure(put, tried):
    put("python9.1", counted="1 failed, 2 passed", status=1)
    put("python9.2")
    status, lines = tried("x")
    assert status == 1
    assert lines == {"9.1": "failed: 1 failed, 2 passed, asked for x", "9.2": "ran: 3 passed, asked for x"}


def test_nothing_run_is_no_success(put, tried):
    put("python9.1", torchless=1)
    status, lines = tried()
    assert status == 1
    assert lines["9.1"] == "not run: no torch for it (no torch 9.9)"


def test_a_shim_that_stands_for_nothing_is_passed_over(put, tried):
    put("python9.1", broken=127)
    put("pyenv/versions/9.1.4/bin/python")
    put("python9.2", broken=127)
    assert tried("x") == (0, {"9.1": "ran: 3 passed, asked for x", "9.2": "not run: no interpreter found"})


def test_gigabytes_of_gpu_libraries_are_not_fetched_unless_one_says_so(put, tried, monkeypatch):
    put("python9.1", needs=GPU)
    put("python9.2", needs='nvidia-nccl; platform_system == "Elsewhere"')
    status, lines = tried("x")
    assert status == 0
    assert lines["9.1"].startswith("not run: the torch that pip finds brings gigabytes of GPU libraries; TORCH=torch ")
    assert lines["9.2"] == "ran: 3 passed, asked for x"
    monkeypatch.setenv("TORCH", "torch --extra-index-url 'a b'")
    assert tried("x")[1]["9.1"] == "ran: 3 passed, asked for x"
