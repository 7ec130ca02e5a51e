"""The keys of run.toml, from the fields of sections and of components."""

from __future__ import annotations

from privsgp.data.images import ImageOptions
from privsgp.data.text import TextOptions
from privsgp.options import Key, Options, keys
from privsgp.runs.config import SECTIONS, Config

TABLES: dict[tuple[str, str], type[Options]] = {  # within a section
    ("data", "images = { … }"): ImageOptions,
    ("data", "text = { … }"): TextOptions,
}


def sections() -> dict[str, type[Options]]:
    """Return the class of every section's own keys, by the section's name."""
    kinds = {name: field.annotation for name, field in Config.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Options)}


def reference() -> list[tuple[str, str, list[tuple[str, list[Key]]]]]:
    """Return (section, what it is about, [(whose keys, the keys)]); the first keys are the section's own."""
    top = [key for key in keys(Config) if key.name not in sections()]
    told = [("", "Of the whole run.", [("", top)])]
    for name, base in sections().items():
        groups = [("", [_named(name, key) for key in keys(base)])]
        if name in SECTIONS:
            groups += _of_components(name)
        groups += [(where, keys(kind)) for (section, where), kind in TABLES.items() if section == name]
        told.append((name, base.__doc__ or "", groups))
    return told


def _named(section: str, key: Key) -> Key:
    """Say which components there are, of the key that chooses one."""
    if section not in SECTIONS or key.name != SECTIONS[section].key:
        return key
    return key._replace(values=", ".join(f'"{name}"' for name in SECTIONS[section].components))


def _of_components(section: str) -> list[tuple[str, list[Key]]]:
    """Return the keys that components bring, those with the same ones together."""
    chosen = SECTIONS[section]
    alike: dict[type[Options], list[str]] = {}
    for name in chosen.components:
        if (own := chosen.options(name)).model_fields:
            alike.setdefault(own, []).append(f'"{name}"')
    return [(f"{chosen.key} = {' or '.join(names)}", keys(own)) for own, names in alike.items()]


def markdown() -> str:
    """Return the reference as a page's tables."""
    lines: list[str] = []
    for section, about, groups in reference():
        lines += ["", f"## `[{section}]`" if section else "## At the top", "", about.split("\n")[0]]
        for whose, found in groups:
            lines += ["", f"With `{whose}`:" if " = " in whose else f"As {whose}:"] if whose else []
            lines += ["", *table(found)]
    return "\n".join(lines)


def table(found: list[Key]) -> list[str]:
    """Return keys as the lines of a page's table."""
    rows = [f"| `{k.name}` | {_cell(k.values)} | {_cell(k.default)} | {k.meaning} |" for k in found]
    return ["| key | values | default | meaning |", "|---|---|---|---|", *rows]


def _cell(text: str) -> str:
    return "" if not text else f"`{text}`".replace("|", "\\|")
