"""`make test-pythons`: run the tests on every Python from 3.11 to 3.14 that is here, each in build/pythons/VERSION.

At the end there is a line for each: what pytest counted, or why it was not run. The status is 1 where a test failed, or
none was run. A torch that brings gigabytes of GPU libraries is not installed unless TORCH says, in pip's words, what to
install: TORCH=torch is whatever pip finds, TORCH='torch --extra-index-url ADDRESS' is one from there.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


class NotRun(Exception):
    """Why the tests were not run on a Python."""


def main(tests: list[str], place: pathlib.Path = ROOT / "build" / "pythons") -> int:
    """Try every version; return the status."""
    lines, statuses = [], []
    for version in VERSIONS:
        try:
            status, counted = run(environment(version, place / version), tests)
        except NotRun as reason:
            lines.append(f"{version}  not run: {reason}")
        else:
            lines.append(f"{version}  {'failed' if status else 'ran'}: {counted}")
            statuses.append(status)
    print("", *lines, sep="\n")
    return int(any(statuses) or not statuses)


def environment(version: str, place: pathlib.Path) -> str:
    """Make an environment with everything the tests need; return its interpreter."""
    python, own = find(version), str(place / "bin" / "python")
    print(f"Python {version}: {python}", flush=True)
    made = subprocess.run([python, "-m", "venv", place], capture_output=True, text=True, check=False)
    if made.returncode:
        raise NotRun(f"no environment for it ({last(made.stdout + made.stderr)})")
    if "TORCH" not in os.environ and brings_gpu_libraries(own, place / "torch.json"):
        raise NotRun("the torch that pip finds brings gigabytes of GPU libraries; TORCH=torch takes it all the same")
    install(own, "no torch for it", *shlex.split(os.environ.get("TORCH", "torch")))
    install(
        own, "not everything it needs is to be had", "--editable", ".[dev]", "--editable", "packages/privsgp-encoders"
    )
    return own


def find(version: str) -> str:
    """Return an interpreter that runs: a shim of pyenv may stand for a version that is not chosen."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    here = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python")))]
    for python in filter(None, here):
        if subprocess.run([python, "-c", "import sys"], capture_output=True, check=False).returncode == 0:
            return python
    raise NotRun("no interpreter found")


def brings_gpu_libraries(python: str, report: pathlib.Path) -> bool:
    """Ask pip which torch it would install, and that one what it needs; a torch that is here already brings nothing."""
    install(python, "no torch for it", "--dry-run", "--no-deps", "--report", str(report), "torch")
    chosen = json.loads(report.read_text())["install"]
    needs = [line for one in chosen for line in one["metadata"].get("requires_dist", ())]
    ours = [line for line in needs if "platform_system" not in line or platform.system() in line]
    return any(re.match(r"(nvidia|cuda)-", line) for line in ours)


def install(python: str, failing: str, *what: str) -> None:
    """Install what constraints.txt pins."""
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", *what]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise NotRun(f"{failing} ({last(ran.stderr, 'ERROR: ')})")


def run(python: str, tests: list[str]) -> tuple[int, str]:
    """Run pytest under everybody's eyes; return its status and its last line, which counts."""
    line = "nothing was said"
    with subprocess.Popen([python, "-m", "pytest", *tests], cwd=ROOT, stdout=subprocess.PIPE, text=True) as ran:
        for said in ran.stdout or ():
            print(said, end="", flush=True)
            line = said.strip("= \n") or line
    return ran.returncode, line


def last(said: str, mark: str = "") -> str:
    """Return the last line that begins with a mark, without it."""
    lines = [line.removeprefix(mark) for line in said.strip().splitlines() if line.startswith(mark)]
    return lines[-1] if lines else said.strip()[-200:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
