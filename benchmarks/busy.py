"""Whether the machine did something else meanwhile: load before, and whose the processors' time was."""

from __future__ import annotations

import os
import resource
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = 0.05  # of the processors' time that others may have before a figure in milliseconds is doubtful
_LEAST = 1.0  # seconds of all processors that say something: the kernel counts in hundredths


class Watch:
    """The processors' time since the last look; nothing is known where there is no /proc/stat."""

    def __init__(self) -> None:
        self.load = os.getloadavg()[0]
        self._before = _look()

    def lap(self) -> dict[str, float]:
        """Return which share of all processors' time other processes had, and which the host kept (`steal`)."""
        (used, stolen, total, own), now = self._before, _look()
        if (passed := now[2] - total) < _LEAST:  # the next one counts it too
            return {}
        self._before = now
        others = now[0] - used - (now[3] - own)
        return {"others": max(0.0, others / passed), "steal": (now[1] - stolen) / passed}


def words(load: float, laps: list[dict[str, float]]) -> str:
    """Say whether the machine was busy: its load before, and the worst row."""
    others, steal = (max((lap.get(key, 0.0) for lap in laps), default=0.0) for key in ("others", "steal"))
    said = f"{os.cpu_count()} processors, load {load:.2f} before; during a row others had up to {others:.0%} of them"
    said += f", the host kept up to {steal:.0%}"
    if max(others, steal) < BUSY and load < 0.5 * (os.cpu_count() or 1):
        return f"{said}: idle."
    return f"{said}: BUSY. Ratios of one row survive that, milliseconds do not."


def _look() -> tuple[float, float, float, float]:
    """Return seconds of all processors in use, those the host kept, all of them, and those of this process."""
    if not STAT.exists():
        return 0.0, 0.0, 0.0, 0.0
    ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in STAT.read_text().splitlines()[0].split()[1:9]]
    user, nice, system, idle, waiting, hard, soft, steal = ticks
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    used = user + nice + system + hard + soft
    return used, steal, used + idle + waiting + steal, own
