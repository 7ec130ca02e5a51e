"""What run.toml may hold, for people and for editors: made of the fields of sections and of components."""

from __future__ import annotations

from typing import Any

from privsgp.data.images import ImageOptions
from privsgp.data.text import TextOptions
from privsgp.options import Key, Options, keys
from privsgp.runs.config import AUTO, SECTIONS, Config, Schedule

TABLES: dict[tuple[str, str], type[Options]] = {  # within a section
    ("data", "images = { … }"): ImageOptions,
    ("data", "text = { … }"): TextOptions,
    ("algorithm", "step_size = { … }"): Schedule,
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
    return key._replace(values=", ".join(f'"{name}"' for name in SECTIONS[section].components()))


def _of_components(section: str) -> list[tuple[str, list[Key]]]:
    """Return the keys that components bring, those with the same ones together."""
    chosen = SECTIONS[section]
    alike: dict[type[Options], list[str]] = {}
    for name, own in chosen.components().items():
        if own.model_fields:
            alike.setdefault(own, []).append(f'"{name}"')
    return [(f"{chosen.key} = {' or '.join(names)}", keys(own)) for own, names in alike.items()]


def markdown() -> str:
    """Return the reference as a page's tables."""
    lines: list[str] = []
    for section, about, groups in reference():
        lines += ["", f"## `[{section}]`" if section else "## At the top", "", about.split("\n")[0]]
        for whose, found in groups:
            lines += ["", f"With `{whose}`:" if " = " in whose else f"As {whose}:"] if whose else []
            lines += ["", "| key | values | default | meaning |", "|---|---|---|---|"]
            lines += [f"| `{k.name}` | {_cell(k.values)} | {_cell(k.default)} | {k.meaning} |" for k in found]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return "" if not text else f"`{text}`".replace("|", "\\|")


def schema() -> dict[str, Any]:
    """Return a JSON schema of run.toml: each section with the keys of every component that it may choose."""
    whole = Config.model_json_schema()
    for name, section in SECTIONS.items():
        place = whole["$defs"][section.base.__name__]
        for component, own in section.components().items():
            made = own.model_json_schema()
            for key, value in made.get("properties", {}).items():
                _offer(place["properties"], key, value, component)
        place["properties"][section.key] |= {"enum": _names(name)}
    for key in AUTO[1:]:
        field = whole["$defs"]["AlgorithmSection"]["properties"][key]
        given = field.pop("anyOf", None) or [{k: field.pop(k) for k in list(field) if k in _TYPED}]
        field["anyOf"] = [*given, {"const": "auto"}]
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "run.toml of privsgp"} | whole


_TYPED = ("type", "exclusiveMinimum", "minimum", "exclusiveMaximum", "maximum", "enum")


def _offer(properties: dict[str, Any], key: str, value: dict[str, Any], component: str) -> None:
    """Add a component's key to its section; where several have one of that name, all their values are allowed."""
    known = properties.get(key)
    if known is None:
        properties[key] = value | {"description": f"{value.get('description', '')} ({component})"}
    elif component not in known["description"]:
        known["description"] = f"{known['description'].removesuffix(')')}, {component})"
        if "enum" in known and "enum" in value:
            known["enum"] = [*dict.fromkeys([*known["enum"], *value["enum"]])]


def _names(section: str) -> list[str]:
    return [*SECTIONS[section].components(), *(["auto"] if section == "algorithm" else [])]
