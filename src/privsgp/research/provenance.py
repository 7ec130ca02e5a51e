"""Where a number comes from: the commit of the code, the versions beneath it, and the device.

`PRIVSGP_COMMIT` names the commit on a machine that has the files alone.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from privsgp.devices import device_name
from privsgp.runs import train as training

_DECIDES = (":/src", ":/experiments", ":/examples", ":/benchmarks")  # what is in them


def provenance(device: str) -> dict[str, Any]:
    """Return what stands beside a result; `device` is a configuration's word for it."""
    return {"commit": commit(), "versions": training.versions(), "device": described(device)}


@cache
def commit() -> str | None:
    """Return the commit of this checkout, with a + where what decides numbers differs; None where none is known."""
    if "PRIVSGP_COMMIT" in os.environ:
        return os.environ["PRIVSGP_COMMIT"]
    head, changed = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain", "--", *_DECIDES)
    return None if head is None else head + ("+" if changed else "")


def described(device: str) -> str:
    """Return a device in words: the name of the GPU, or the processor's kind and how many cores there are."""
    name = device_name(device)
    if name != "cpu":
        return torch.cuda.get_device_name(name)
    return f"{os.cpu_count()} cores, {_model() or platform.machine()}"


def _model() -> str | None:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def _git(*arguments: str) -> str | None:
    here = Path(__file__).parent
    ask = ["git", "-C", str(here), *arguments]
    try:
        ran = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603  # words of ours
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()
