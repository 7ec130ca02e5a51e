"""Progress in a notebook: one bar that is drawn anew in its place. Needs nothing but what a notebook has."""

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


class Bar:
    """A bar as a notebook shows it."""

    def __init__(self, steps: int) -> None:
        self.steps, self.step, self.told = steps, 0, ""
        self.began = time.monotonic()

    def _repr_html_(self) -> str:
        gone = time.monotonic() - self.began
        left = gone / self.step * (self.steps - self.step) if self.step else 0.0
        meter = Markup('<progress max="%d" value="%d" style="width:20em"></progress>') % (self.steps, self.step)
        return meter + Markup(" step %d of %d · %s %.0f s, %.0f s left") % (
            self.step, self.steps, f"{self.told} · " if self.told else "", gone, left,
        )  # fmt: skip


def _drawn(steps: int) -> Watcher:
    from IPython.display import display

    shown = Bar(steps)
    handle, drawn = display(shown, display_id=True), [0.0]

    def watch(step: int, row: dict[str, Any] | None) -> None:
        shown.step, shown.told = step, figures(row or {})
        if step == steps or time.monotonic() - drawn[0] > _PAUSE:
            handle.update(shown)
            drawn[0] = time.monotonic()

    return watch
