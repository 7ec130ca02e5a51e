"""The origin of a number: commit, versions and device.

`PRIVSGP_COMMIT` names the commit on a machine that has the files alone.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from privsgp.devices import device_name
from privsgp.runs import train as training

_DECIDES = (":/src", ":/experiments", ":/examples", ":/benchmarks")  # what is in them


def provenance(device: str) -> dict[str, Any]:
    """Return what stands beside a result; `device` is a configuration's word for it."""
    name, model = device_name(device), platform.machine()
    with suppress(OSError, TypeError):
        cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = re.search(r"^model name\s*:\s*(.+)$", cpus, re.MULTILINE)[1]  # type: ignore[index]
    words = f"{os.cpu_count()} cores, {model}" if name == "cpu" else torch.cuda.get_device_name(name)
    return {"commit": commit(), "versions": training.versions(), "device": words}


@cache
def commit() -> str | None:
    """Return the commit of this checkout, with a + where what decides numbers differs; None where none is known."""
    if "PRIVSGP_COMMIT" in os.environ:
        return os.environ["PRIVSGP_COMMIT"]
    with suppress(OSError, subprocess.SubprocessError):
        changed = _git("status", "--porcelain", "--", *_DECIDES)
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    return None


def _git(*arguments: str) -> str:
    ask = ["git", "-C", str(Path(__file__).parent), *arguments]
    ran = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603  # words of ours
    return ran.stdout.strip()
