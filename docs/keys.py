"""The tables of keys on reference pages, from the fields of sections and of components."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from privsgp.data.images import ImageOptions
from privsgp.data.text import TextOptions
from privsgp.options import Options
from privsgp.runs.config import SECTIONS, Config

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


TABLES: dict[tuple[str, str], type[Options]] = {  # within a section
    ("data", "images = { … }"): ImageOptions,
    ("data", "text = { … }"): TextOptions,
}


class _Key(NamedTuple):
    """One key as a reader of a reference page sees it."""

    name: str
    values: str
    default: str
    meaning: str


def keys(kind: type[Options]) -> list[_Key]:
    """Return the keys of a class: its own, then those it inherits."""
    schema, own = kind.model_json_schema().get("properties", {}), kind.__annotations__
    fields = sorted(kind.model_fields.items(), key=lambda item: item[0] not in own)
    return [_Key(name, _values(schema[name]), _shown(f), f.description or "") for name, f in fields]


def _shown(field: FieldInfo) -> str:
    """Write a default as TOML has it; none where a key may be left out."""
    if field.is_required():
        return "needed"
    return "" if field.default is None or isinstance(field.default, Options) else json.dumps(field.default)


def _values(schema: dict[str, Any]) -> str:
    """Say which values a key takes, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(_values(part) for part in schema["anyOf"] if part.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return "a table"
    if schema.get("type") == "array":
        return f"a list of {_values(schema['items'])}"
    limits = [f"{sign} {schema[key]:g}" for key, sign in _LIMITS if key in schema]
    return " ".join([_KINDS.get(schema.get("type", ""), "a value"), *limits])


_KINDS = {
    "object": "a table",
    "number": "a number", "integer": "a whole number", "string": "text", "boolean": "true or false",
}  # fmt: skip
_LIMITS = (("exclusiveMinimum", ">"), ("minimum", "≥"), ("exclusiveMaximum", "<"), ("maximum", "≤"))


def sections() -> dict[str, type[Options]]:
    """Return the class of every section's own keys, by the section's name."""
    kinds = {name: field.annotation for name, field in Config.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Options)}


def reference() -> list[tuple[str, str, list[tuple[str, list[_Key]]]]]:
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


def _named(section: str, key: _Key) -> _Key:
    """Say which components there are, of the key that chooses one."""
    if section not in SECTIONS or key.name != SECTIONS[section].key:
        return key
    return key._replace(values=", ".join(f'"{name}"' for name in SECTIONS[section].components))


def _of_components(section: str) -> list[tuple[str, list[_Key]]]:
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


def table(found: list[_Key]) -> list[str]:
    """Return keys as the lines of a page's table."""
    rows = [f"| `{k.name}` | {_cell(k.values)} | {_cell(k.default)} | {k.meaning} |" for k in found]
    return ["| key | values | default | meaning |", "|---|---|---|---|", *rows]


def _cell(text: str) -> str:
    return "" if not text else f"`{text}`".replace("|", "\\|")
