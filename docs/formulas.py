"""Turns the TeX formulas of a page into MathML when the site is built: browsers draw it without a script or a font."""

from __future__ import annotations

import html
import re
from typing import Any

# Bars and slashes would have the space of an operator, and bars would grow.
_TIGHT = re.compile(r"<mo[^>]*>(?=&#x0(?:007C|002F|2016);)")
# What pymdownx.arithmatex makes of $…$ (inline) and $$…$$ (on lines of its own).
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs hands in what it likes
    """Replace each formula; an unknown command of TeX ends the build."""
    return _FORMULA.sub(_drawn, content)


def _drawn(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    tag, tex = found[1], html.unescape(found[2])
    drawn = convert(tex, display="block" if tag == "div" else "inline")
    if "\\" in drawn:
        raise ValueError(f"latex2mathml does not know a command in {tex!r}. Write the formula with other commands.")
    drawn = _TIGHT.sub('<mo stretchy="false" lspace="0" rspace="0">', drawn)
    return f'<{tag} class="formula">{drawn}</{tag}>'
