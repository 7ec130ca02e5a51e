"""Methods, commands and published formulas that installed packages add to privsgp, found through entry points.

privsgp's own `research` package is found in the same way: nothing else imports it.
"""

from __future__ import annotations

import contextlib
import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from privsgp import later
from privsgp.errors import Refused

ALGORITHMS = "privsgp.algorithms"
COMMANDS = "privsgp.commands"
FORMULAS = "privsgp.formulas"


@functools.cache
def offered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; refuse a name that two packages offer."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        if (other := found.setdefault(entry.name, entry)).value != entry.value:
            raise Refused(
                f"two installed packages offer {entry.name!r} as {group}: {other.value} and {entry.value}",
                "uninstall one of them, or rename its entry point",
            )
    return found


def load(entry: EntryPoint) -> Any:  # noqa: ANN401 - whatever a package offers
    """Import what an entry point names; a module of privsgp's own uses torch inside functions only."""
    try:
        with later.package("torch") if entry.value.startswith("privsgp.") else contextlib.nullcontext():
            return entry.load()
    except (ImportError, AttributeError) as error:
        raise Refused(
            f"{entry.name!r} of an installed package, {entry.value}: {error}", "repair that package, or uninstall it"
        ) from error


def formula(name: str) -> Any:  # noqa: ANN401 - a module
    """Return the module of a paper's calibration, which guarantees nothing: its `sigma` is the noise for a budget."""
    if (entry := offered(FORMULAS).get(name)) is None:
        raise Refused(f"accountant = {name!r}: no installed package has this formula", "install privsgp again")
    return load(entry)
