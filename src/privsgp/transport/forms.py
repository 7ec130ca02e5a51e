"""What another process may say. Every value that comes from a peer has a form; what does not fit is refused by name.

Peers are adversaries (privacy.md): a value of another type, length or range is not used for anything.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 2**53  # what a float of JSON still counts one by one
_LONGEST = 200


@dataclass(frozen=True)
class Form:
    """What a value must be, in words, and whether one is."""

    text: str
    fits: Callable[[Any], bool]


NOTHING = Form("nothing", lambda said: said is None)
FLAG = Form("true or false", lambda said: isinstance(said, bool))
WORDS = Form("keys and their values", lambda said: isinstance(said, dict))


def whole(least: int = 0, most: int = MOST) -> Form:
    """Ask for a whole number."""
    return Form(f"a whole number from {least} to {most}", lambda said: type(said) is int and least <= said <= most)


def real(least: float = 0.0, most: float = math.inf, *, above: bool = False) -> Form:
    """Ask for a finite number of at least, or `above`, one value and at most another."""

    def fits(said: object) -> bool:
        return type(said) is float and math.isfinite(said) and least <= said <= most and not (above and said == least)

    bound = "" if math.isinf(most) else f", at most {most:g}"
    return Form(f"a finite number {'above' if above else 'from'} {least:g}{bound}", fits)


def text(pattern: str, words: str) -> Form:
    """Ask for a text that a pattern fits as a whole."""
    return Form(words, lambda said: isinstance(said, str) and re.fullmatch(pattern, said) is not None)


def perhaps(form: Form) -> Form:
    """Ask for what fits, or null."""
    return Form(f"{form.text}, or null", lambda said: said is None or form.fits(said))


def each(form: Form, *counts: int) -> Form:
    """Ask for a list of one of these lengths, of what fits."""

    def fits(said: object) -> bool:
        return isinstance(said, list) and len(said) in counts and all(map(form.fits, said))

    return Form(f"a list of {' or '.join(map(str, counts))}, each {form.text}", fits)


def row(*forms: Form) -> Form:
    """Ask for a list with a form for each place."""

    def fits(said: object) -> bool:
        if not isinstance(said, list) or len(said) != len(forms):
            return False
        return all(form.fits(one) for form, one in zip(forms, said, strict=True))

    return Form(f"a list: {', '.join(form.text for form in forms)}", fits)


def keys(forms: dict[str, Form]) -> Form:
    """Ask for these keys and no other, each with what fits."""

    def fits(said: object) -> bool:
        return isinstance(said, dict) and said.keys() == forms.keys() and all(f.fits(said[k]) for k, f in forms.items())

    return Form("; ".join(f"{key}: {form.text}" for key, form in forms.items()), fits)


def shown(said: object) -> str:
    """Return what a peer said as it may be printed: no control characters, and not at any length."""
    word = json.dumps(said)
    return word if len(word) <= _LONGEST else word[:_LONGEST] + " …"
