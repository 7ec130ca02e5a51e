"""The exceptions that a user reads: what is wrong, with its value, and what to do."""

from __future__ import annotations

import contextlib
import errno
import re
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Characters that a terminal obeys or hides: C0 (except tab and newline), C1, marks that change the direction of text,
# other ends of a line, and halves of characters.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """Write out whatever a terminal would act on: words may come from peers, paths, ledgers and run folders."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


class InWords(BaseException):
    """An exception whose words are made from its arguments: it comes out of another process as it went in."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(kind: type[BaseException], args: tuple[Any, ...], rest: dict[str, Any]) -> BaseException:
    made = kind.__new__(kind, *args)
    made.__dict__.update(rest)
    return made


class Refused(InWords, ValueError):
    """A request that privsgp cannot carry out. The command line prints it and exits with status 2.

    Args:
        what: The fault: the key or argument with its value.
        remedy: The action that helps.
        options: Values of `{out}`, `{ledger}` and other arguments of `privsgp.train` in both texts. The command line
            writes them as options, `from_python` as arguments.

    Example:
        >>> import privsgp
        >>> try:
        ...     privsgp.load("runs/nothing")
        ... except privsgp.Refused as refused:
        ...     print(refused.what)
        runs/nothing is no run folder

    """

    def __init__(self, what: str, remedy: str, **options: object) -> None:
        self.templates, self.options = (visible(what), visible(remedy)), options
        self.what, self.remedy = (_filled(text, options, _option) for text in self.templates)
        super().__init__(f"{self.what}\n  → {self.remedy}")

    def from_python(self) -> Refused:
        """Return the same refusal for somebody who called a function."""
        return Refused(*(_filled(text, self.options, _argument) for text in self.templates))


_OPTIONS = {"test_is_public": "data.test = 'public'"}


def _filled(text: str, options: dict[str, object], write: Callable[[str, object], str]) -> str:
    for name, value in options.items():
        text = text.replace(f"{{{name}}}", visible(write(name, value)))
    return text


def _option(name: str, value: object) -> str:
    option = _OPTIONS.get(name, f"--{name}")
    return option if value is None or value is True else f"{option} {value}"


def _argument(name: str, value: object) -> str:
    return f"{name}={'…' if value is None else value}"


@contextlib.contextmanager
def called_from_python() -> Iterator[None]:
    """Let refusals and stops name arguments of Python."""
    try:
        yield
    except Refused as refused:
        raise refused.from_python().with_traceback(refused.__traceback__) from refused.__cause__
    except Stopped as stopped:
        stopped.add_note("call again with resume=True to continue" if stopped.kept else "there is no checkpoint")
        raise


def refuse_below_one(**counts: int | None) -> None:
    """Refuse a count below one. None means that the option was not given."""
    for option, count in counts.items():
        if count is not None and count < 1:
            raise Refused(f"--{option.replace('_', '-')} {count} is below 1", "take at least 1")


_REMEDIES = {
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n), or spread the nodes over more processes",
    errno.ENFILE: "too many files are open on this machine: close some programs",
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "this user's share of the disk is full: free some space",
    errno.EACCES: "this user may not read or write there: change the permissions, or the user",
    errno.EPERM: "this user may not read or write there: change the permissions, or the user",
    errno.EROFS: "the disk is mounted read-only: make it writable",
    errno.ENOENT: "name a file or folder that exists",
}


def mending(error: OSError, otherwise: str) -> str:
    """Return what to do about an error of the operating system, `otherwise` if its cause has no known remedy."""
    return _REMEDIES.get(error.errno or 0, otherwise)


class Stopped(InWords):
    """A run that ended early, after `step`. `kept` is true if a checkpoint holds it; `status` is the command's."""

    status: ClassVar[int]

    def __init__(self, words: str, step: int) -> None:
        super().__init__(words)
        self.step, self.kept = step, False

    def with_checkpoint(self, *, kept: bool) -> Self:
        """Return this stop for people who may continue the run."""
        self.kept = kept
        return self


class Interrupted(Stopped, KeyboardInterrupt):
    """A signal stopped the run. `except Exception`, around one run of many, lets it through like any Ctrl-C."""

    status = 130

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}", step)


class Diverged(InWords, Exception):
    """A message is no model, or without noise the test loss no number. Messages are noised: a look reveals nothing."""

    def __init__(self, step: int, what: str, remedy: str = "") -> None:
        remedy = remedy or "lower algorithm.step_size or privacy.clip, and choose another folder for the run"
        super().__init__(f"{what} after step {step}: the run has diverged\n  → {remedy}")
