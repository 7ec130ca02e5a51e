"""Progress in a notebook: one bar that is drawn again in its place. It needs nothing but IPython."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from privsgp.report.terminal import bar, figures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privsgp.engine.trainer import Watcher

_PAUSE = 0.2  # seconds between two drawings
_BAR = Markup('<progress max="%d" value="%d" style="width:20em"></progress> step %d of %d · %s')


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return "ipykernel" in sys.modules and "IPython" in sys.modules


@contextmanager
def watching(steps: int, progress: bool | None) -> Iterator[Watcher | None]:  # noqa: FBT001 - as `train` has it
    """Show how far a run is, in a notebook or a terminal; None asks whether there is either."""
    if progress is False or (progress is None and not in_notebook() and not sys.stderr.isatty()):
        yield None
    elif in_notebook():
        yield _drawn(steps)
    else:
        with bar(steps) as watch:
            yield watch


def _drawn(steps: int) -> Watcher:
    from IPython.display import HTML, display

    handle, drawn = display(HTML(_BAR % (steps, 0, 0, steps, "")), display_id=True), [0.0]

    def watch(step: int, row: dict[str, Any] | None) -> None:
        if step == steps or time.monotonic() - drawn[0] > _PAUSE:
            handle.update(HTML(_BAR % (steps, step, step, steps, figures(row or {}))))
            drawn[0] = time.monotonic()

    return watch
