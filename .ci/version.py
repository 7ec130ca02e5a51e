"""Give a release its version, in every file that has one: python .ci/version.py 1.0.0, then commit.

The section "Unreleased" of CHANGELOG.md becomes that of the release.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PLACES = {
    "src/privsgp/__init__.py": (r'(?m)^__version__ = ".+"$', '__version__ = "{}"'),
    "packages/research/pyproject.toml": (r'(?m)^version = ".+"$', 'version = "{}"'),
    "CITATION.cff": (r"(?m)^version: .+$", "version: {}"),
    "CHANGELOG.md": (r"(?m)^## Unreleased$", "## {}"),
}


def main(version: str, root: Path) -> None:
    """Write the version, or nothing if a file has no place for it."""
    if re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version) is None:
        raise SystemExit(f"{version} is no version: write one like 1.0.0")
    texts = {}
    for name, (pattern, value) in PLACES.items():
        texts[name], count = re.subn(pattern, value.format(version), (root / name).read_text())
        if count != 1:
            raise SystemExit(f"{name} has {count} lines like {pattern}: it must have one")
    for name, text in texts.items():
        (root / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1], Path(__file__).parent.parent)
