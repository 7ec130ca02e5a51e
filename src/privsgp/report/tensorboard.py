"""A run's metrics for TensorBoard while it goes: the same ones a report may show, and no others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from privsgp.errors import Refused
from privsgp.report.reading import shown

if TYPE_CHECKING:
    from pathlib import Path

    from privsgp.engine.trainer import Watcher

NAME = "tensorboard"


class Log:
    """Evaluations, each once, in `folder`/tensorboard; a folder is made with the first of them.

    Guarantee: without a seed nothing is logged that depends on records except through noised messages.
    Assumes: test data are public.
    """

    def __init__(self, folder: Path, *, simulation: bool) -> None:
        self.folder, self.simulation = folder / NAME, simulation
        self._open = _tensorboard()
        self._writer: Any = None
        self._last: dict[str, Any] | None = None

    def beside(self, watch: Watcher) -> Watcher:
        """Return a watcher that does what `watch` does, and logs."""

        def both(step: int, row: dict[str, Any] | None) -> None:
            watch(step, row)
            if row is not None:
                self._add(row)

        return both

    def finish(self, last: dict[str, Any]) -> None:
        """Log the last evaluation, which of several processes only the end of a run knows in full."""
        if self._writer is not None:  # else the run had been finished before
            self._add(last)
            self._writer.close()

    def _add(self, row: dict[str, Any]) -> None:
        if row == self._last:
            return
        # A resumed run hides what an earlier attempt logged beyond its checkpoint.
        self._writer = self._writer or self._open(str(self.folder), purge_step=row["step"])
        self._last = row
        now = time.time() if self.simulation else round(time.time(), 0)  # milliseconds would show how much was drawn
        for name, value in shown([row], simulation=self.simulation)[0].items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, row["step"], now)
        self._writer.flush()


def _tensorboard() -> Any:  # noqa: ANN401 - an optional package's class
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise Refused(
            "--tensorboard without the package tensorboard", "install it: pip install 'privsgp[tensorboard]'"
        ) from error
    return SummaryWriter
