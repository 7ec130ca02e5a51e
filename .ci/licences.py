"""`make licences`: list the licence of everything that an installation brings along.

The status is 1 where one is unknown, or not permissive (MPL, which asks for its own files alone, passes). What is not
installed here is named, and not looked at; what NVIDIA's terms are for, which torch brings for GPUs, is named too.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

EXTRAS = ("sites", "tables", "encoders", "export")
PERMISSIVE = re.compile(
    r"\b(Apache|MIT|MIT-CMU|[0-3]?BSD|ISCL?|PSF|Python Software Foundation|HPND|Zlib|CC0|BSL|MPL|Mozilla Public"
    r"|Unlicense|CNRI)\b"
)
ALTERNATIVES, ALL = re.compile(r"\bOR\b", re.IGNORECASE), re.compile(r"\bAND\b|;|,", re.IGNORECASE)
NVIDIA = re.compile(r"NVIDIA|CUDA", re.IGNORECASE)


def main() -> int:
    """Print a table, and what has to be looked at by a person."""
    bad, gpu = [], []
    for name in sorted(needed("privsgp", EXTRAS), key=str.lower):
        licence = licence_of(name)
        print(f"{name:32} {metadata.version(name):16} {licence}")
        if name.lower().startswith(("nvidia-", "cuda-")) and NVIDIA.search(licence):
            gpu.append(name)
        elif not permissive(licence):
            bad.append(name)
    if absent := sorted(missing("privsgp", EXTRAS)):
        print(f"\nnot installed here, and so not looked at: {', '.join(absent)}", file=sys.stderr)
    if gpu:
        print(f"\nNVIDIA's own terms; torch's CPU wheels bring none of them: {', '.join(gpu)}", file=sys.stderr)
    if bad:
        print(f"\nnot known to be permissive: {', '.join(bad)}", file=sys.stderr)
    return bool(bad)


def permissive(licence: str) -> bool:
    """Tell whether one may do with it as one likes: by all parts of what is said, or by one of several to choose from.

    A part that allows and forbids at once, as "MIT, no commercial use" would, is for a person to read.
    """
    parts = [part.strip(" ()") for part in ALL.split(licence)]
    return all(any(PERMISSIVE.search(one) for one in ALTERNATIVES.split(part)) for part in parts if part)


def needed(name: str, extras: tuple[str, ...] = ()) -> set[str]:
    """Return the installed distributions that one needs, itself left out."""
    found: set[str] = set()
    waiting = [(name, extras)]
    while waiting:
        one, wanted = waiting.pop()
        for line in metadata.requires(one) or []:
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", line)
            other = re.match(r"[A-Za-z0-9._-]+", line)
            if (extra and extra[1] not in wanted) or other is None or not installed(other[0]):
                continue
            proper = metadata.metadata(other[0])["Name"]
            if proper not in found:
                found.add(proper)
                waiting.append((proper, ()))
    return found - {name}


def missing(name: str, extras: tuple[str, ...]) -> set[str]:
    """Return what one asks for itself, extras included, and is not here."""
    asked = [
        (re.match(r"[A-Za-z0-9._-]+", line), re.search(r"extra\s*==\s*['\"]([^'\"]+)", line))
        for line in metadata.requires(name) or []
    ]
    return {one[0] for one, extra in asked if one and (extra is None or extra[1] in extras) and not installed(one[0])}


def installed(name: str) -> bool:
    """Tell whether a distribution is here: one for another platform is not."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def licence_of(name: str) -> str:
    """Return what a distribution says of its licence, in a line."""
    told = metadata.metadata(name)
    lines = told.get_all("Classifier") or []
    classified = "; ".join(line.rpartition(":: ")[2] for line in lines if line.startswith("License ::"))
    written = (told.get("License") or "").strip().partition("\n")[0]
    whole = told.get("License-Expression") or classified or written
    if whole.lower() in ("", "unknown"):
        whole = ((metadata.distribution(name).read_text("LICENSE") or "").strip() or "unknown").partition("\n")[0]
    return whole


if __name__ == "__main__":
    sys.exit(main())
