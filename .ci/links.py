"""Checks every link of the built site, anchors included, and those of the pages beside it, without a network.

`mkdocs build --strict` looks at what pages write; this looks at what browsers get: generated pages, pictures, scripts.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


class Page(HTMLParser):
    """The ids of a page, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note an element's id, and where it points."""
        of = dict(attributes)
        self.ids |= {value for key in ("id", "name") if (value := of.get(key))}
        self.links += [value for key in ("href", "src") if (value := of.get(key)) and tag != "base"]


def site(folder: Path) -> list[str]:
    """Return the broken links of a built site."""
    pages = {path.resolve(): Page(path.read_text()) for path in folder.rglob("*.html")}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # served from anywhere: its links begin at the site's root
            continue
        for link in page.links:
            url = urlsplit(link)
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not (url.scheme or url.netloc) and not _there(target, unquote(url.fragment), pages):
                found.append(f"{path.relative_to(folder.resolve())}: {link}")
    return found


def _there(target: Path, fragment: str, pages: dict[Path, Page]) -> bool:
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return False
    return not fragment or target not in pages or fragment in pages[target].ids


def beside(root: Path) -> list[str]:
    """Return the broken links of the Markdown pages that are not part of the site."""
    found = []
    for name in BESIDE:
        for link in LINK.findall((root / name).read_text()):
            url = urlsplit(link)
            target = root / unquote(url.path) if url.path else root / name
            if not url.scheme and not _has(target, url.fragment):
                found.append(f"{name}: {link}")
    return found


def _has(target: Path, fragment: str) -> bool:
    if not target.exists() or not fragment:
        return target.exists()
    return fragment in {_slug(heading) for heading in HEADING.findall(target.read_text())}


def _slug(heading: str) -> str:
    """Return the anchor that forges and mkdocs alike give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


if __name__ == "__main__":
    broken = [*site(Path(sys.argv[1])), *beside(ROOT)]
    sys.exit("\n".join(["broken links:", *broken]) if broken else 0)
