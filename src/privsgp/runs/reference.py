"""What run.toml may hold, for people and for editors: made of the fields of sections and of components."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from privsgp.options import Key, Options, keys
from privsgp.runs.config import AUTO, SECTIONS, Config, Schedule
from privsgp.runs.schedules import Clips

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic.fields import FieldInfo


# Keys that take a number or a table, by their section.
TABLES: dict[str, tuple[str, type[Options]]] = {"privacy": ("clip", Clips), "algorithm": ("step_size", Schedule)}


def sections() -> dict[str, type[Options]]:
    """Return the class of every section's own keys, by the section's name."""
    kinds = {name: field.annotation for name, field in Config.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Options)}


def reference() -> list[tuple[str, str, list[tuple[str, list[Key]]]]]:
    """Return (section, what it is about, [(whose keys, the keys)]); the first keys are the section's own."""
    top = [key for key in keys(Config) if key.name not in sections()]
    told = [("", "Of the whole run.", [("", top)])]
    for name, base in sections().items():
        groups = [("", keys(base))]
        if name in SECTIONS:
            groups += _of_components(name)
        if name in TABLES:
            key, kind = TABLES[name]
            groups.append((f"a table in place of {key}", keys(kind)))
        told.append((name, base.__doc__ or "", groups))
    return told


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


HEAD = '''"""The sections of run.toml as dictionaries with types, for editors and mypy. Made by `make typed`.

Every key of every component is in its section; which of them go together is checked when they are used.
"""
# ruff: noqa: E501, PYI030, PYI051
# fmt: off

from __future__ import annotations

from typing import Any, Literal, TypedDict
'''


def typed() -> str:
    """Return the source of typed.py: a TypedDict for each section, with what each key means."""
    parts = [_dictionary(kind.__name__, kind, {}) for _, kind in TABLES.values()]
    for name, base in sections().items():
        components = SECTIONS[name].components().values() if name in SECTIONS else ()
        parts.append(_dictionary(f"{name.capitalize()}Section", base, _merged(components)))
    return HEAD + "".join(parts)


def _merged(components: Iterable[type[Options]]) -> dict[str, list[FieldInfo]]:
    found: dict[str, list[FieldInfo]] = {}
    for own in components:
        for key, field in own.model_fields.items():
            found.setdefault(key, []).append(field)
    return found


def _dictionary(name: str, base: type[Options], more: dict[str, list[FieldInfo]]) -> str:
    fields = {key: [field] for key, field in base.model_fields.items()} | more
    lines = ["", "", f"class {name}(TypedDict, total=False):", f'    """{(base.__doc__ or "").splitlines()[0]}"""', ""]
    for key, each in fields.items():
        auto = ["Literal['auto']"] if name == "AlgorithmSection" and key in AUTO else []
        kinds = [part for field in each for part in _kinds(field.annotation)]
        lines.append(f"    {key}: {' | '.join(dict.fromkeys([*kinds, *auto]))}  # {each[0].description or ''}")
    return "\n".join(lines) + "\n"


def _kinds(kind: object) -> list[str]:
    """Write a field's type as the types that a caller may give; limits are checked when it is used."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kinds(inside[0])
    if origin in (Union, UnionType):
        return [part for one in inside for part in _kinds(one)]
    if origin is Literal:
        return [f"Literal[{', '.join(map(repr, inside))}]"]
    if origin is list:
        return [f"list[{' | '.join(dict.fromkeys(_kinds(inside[0])))}]"]
    if kind in (Schedule, Clips, str, int, float, bool):
        return [getattr(kind, "__name__", "Any")]
    return ["None" if kind is NoneType else "Any"]


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
