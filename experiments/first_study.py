"""Three sites from `init` to their models, each in a network namespace, without editing a file; the page shows it.

Without namespaces (no root, no `ip`) the sites are on loopback. The table is scikit-learn's breast cancer table.

    python experiments/first_study.py                                     # run, and write the page
    python experiments/first_study.py --page docs/howto/first-study.md    # write the page from the last transcript
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pages
from first_model import SITES as PARTS
from first_model import TABLES, divide

from privsgp.files import write_json
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "first_study.json", ROOT / "docs" / "howto" / "first-study.md"
SITES = ("aachen", "basel", "cork")
PORT = 7443


def machines(stack: contextlib.ExitStack) -> tuple[list[list[str]], list[str]]:
    """Return for each site what its commands begin with, and its address: a namespace on a bridge, or loopback."""
    spaces = [f"study-{os.getpid()}-{name}" for name in ("hub", *SITES)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)  # noqa: S603, S607 - our own words

    try:
        for space in spaces:
            ip("netns", "add", space)
            stack.callback(ip, "netns", "delete", space)
        ip("-n", spaces[0], "link", "add", "hub", "type", "bridge")
        ip("-n", spaces[0], "link", "set", "hub", "up")
        for i, space in enumerate(spaces[1:], 1):
            ip("link", "add", "wire", "netns", space, "type", "veth", "peer", "name", f"to{i}", "netns", spaces[0])
            ip("-n", spaces[0], "link", "set", f"to{i}", "master", "hub", "up")
            ip("-n", space, "address", "add", f"10.79.0.{i}/24", "dev", "wire")
            ip("-n", space, "link", "set", "wire", "up")
            ip("-n", space, "link", "set", "lo", "up")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return [[] for _ in SITES], [f"127.0.0.1:{PORT + i}" for i in range(len(SITES))]
    return [["ip", "netns", "exec", space] for space in spaces[1:]], [f"10.79.0.{i}:{PORT}" for i in (1, 2, 3)]


class Study:
    """The sites' folders, and what was typed and shown."""

    def __init__(self, folder: Path, inside: Sequence[list[str]]) -> None:
        self.homes = {name: folder / name for name in SITES}
        self.inside = dict(zip(SITES, inside, strict=True))
        self.said: list[str] = []

    def start(self, site: str, *words: str) -> subprocess.Popen[str]:
        """Start a command at a site."""
        home = self.homes[site]
        own = {"PRIVSGP_SITE": str(home / "keys"), "PRIVSGP_STATE": str(home / "state"), "COLUMNS": "150"}
        command = [*self.inside[site], sys.executable, "-m", "privsgp", *words]
        environment = os.environ | own
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=home, env=environment, stdout=pipe, stderr=pipe, text=True)  # noqa: S603

    def end(self, site: str, process: subprocess.Popen[str], words: Sequence[str], rows: Sequence[str]) -> None:
        """Wait for a command, and write down what it shows: of a table the rows with these labels."""
        out, err = process.communicate()
        if process.returncode:
            raise SystemExit(f"{site}: privsgp {' '.join(words)}: {err}{out}")
        shown = [line.rstrip() for line in out.splitlines()]
        if rows:
            shown = [line for line in shown if any(line.startswith(f"│ {row} ") for row in rows)]
        shown = [re.sub(" +│", " │", line.replace(f"{self.homes[site]}/", "")) for line in shown]
        self.said += [f"{site}$ privsgp {' '.join(words)}", *shown, ""]

    def run(self, site: str, *words: str, rows: Sequence[str] = ()) -> None:
        """Run a command at a site to its end."""
        self.end(site, self.start(site, *words), words, rows)

    def give(self, name: str, site: str = SITES[0]) -> None:
        """Send a site's file to all others."""
        for other in self.homes.values():
            (other / name).write_bytes((self.homes[site] / name).read_bytes())


def transcript(folder: Path, inside: Sequence[list[str]], addresses: Sequence[str]) -> list[str]:
    """Go from tables to models; return what was typed and shown."""
    study, first = Study(folder, inside), SITES[0]
    for home in study.homes.values():
        home.mkdir()
    sizes = divide(TABLES["breast cancer: malignant"](), folder, 0)
    for name, part in zip(SITES, PARTS, strict=False):
        (study.homes[name] / "own.csv").write_bytes((folder / f"{part}.csv").read_bytes())
    for name in ("public.csv", "test.csv"):
        for home in study.homes.values():
            (home / name).write_bytes((folder / name).read_bytes())
    words = ("--target", "outcome", "--sites", ",".join(SITES), "--sizes", ",".join(map(str, sizes[:3])))
    study.run(first, "init", "--public", "public.csv", *words, "--epsilon", "3")
    for name in ("run.toml", "schema.toml"):
        study.give(name)
    for name in SITES:
        study.run(name, "data", "check", "schema.toml", "own.csv", rows=("rows", "classes"))
    study.run(first, "plan", "run.toml", "--write", rows=("steps", "batch", "clip", "planned", "sent", *SITES))
    for name, address in zip(SITES, addresses, strict=True):
        study.run(name, "site", "init", "--name", name, "--address", address)
        study.give(f"{name}.card", name)
    cards = [word for name in SITES for word in ("--site", f"{name}.card")]
    study.run(first, "agree", "propose", "run.toml", *cards, "-o", "first.study", rows=("learns", "by", "limits"))
    study.give("first.study")
    join = ("join", "first.study", "--data", "own.csv", "--test", "test.csv", "--out", "run")
    started = {name: study.start(name, *join) for name in SITES}
    for name, process in started.items():
        study.end(name, process, join, ("AUC", "log loss", "clip", "sites", "messages", "time"))
    study.run(first, "ledger", "run", rows=("0", "1", "2"))
    return study.said


def part(told: dict[str, Any]) -> str:
    """Return the transcript as the page has it."""
    text = "\n".join(told["said"]).strip()
    where = "in network namespaces" if told["namespaces"] else "on loopback"
    ran = f"`experiments/first_study.py` ran it, with three sites {where}, in {told['seconds']:.0f} s."
    note = f"<!-- Not run in CI: {ran} -->"
    return f"```console\n{text}\n```\n\n{note}\n\n{pages.commits([told])}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            inside, addresses = machines(stack)
            began = time.perf_counter()
            said = transcript(folder, inside, addresses)
        told = {"said": said, "namespaces": bool(inside[0]), "seconds": time.perf_counter() - began}
        write_json(RESULTS, {"simulation": False} | told | provenance("cpu"))
    pages.put(page or PAGE, "first study", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
