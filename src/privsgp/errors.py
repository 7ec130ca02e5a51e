"""The one exception a user is meant to read: what was wrong, with its value, and what to do about it."""

from __future__ import annotations

import errno


class Refused(ValueError):
    """A request that cannot be carried out as it stands.

    `what` names the key or argument and its value; `remedy` says what would work. The command line prints both and
    exits with status 2; nothing has been written by then.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}\n  → {remedy}")
        self.what = what
        self.remedy = remedy


def refuse_below_one(**counts: int | None) -> None:
    """Refuse an option that counts something and asks for none of it; None: it was not given."""
    for option, count in counts.items():
        if count is not None and count < 1:
            raise Refused(f"--{option.replace('_', '-')} {count}", "take at least 1")


def mending(error: OSError, otherwise: str) -> str:
    """Say what helps against an error of the operating system: it is not always the disk."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open at once: raise the limit (ulimit -n), or spread the nodes over more processes"
    return otherwise
