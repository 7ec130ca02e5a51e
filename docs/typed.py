"""Makes src/privsgp/runs/typed.py, the types of all settings, from the fields of sections and components."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Literal, Union, get_args, get_origin

from privsgp.data.images import ImageOptions
from privsgp.data.text import TextOptions
from privsgp.runs.config import AUTO, SECTIONS, Schedule
from privsgp.runs.reference import sections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic.fields import FieldInfo

    from privsgp.options import Options

TABLES: dict[type[Options], str] = {  # within sections
    Schedule: "Schedule",
    ImageOptions: "ImagesSection",
    TextOptions: "TextSection",
}
HEAD = '''"""The sections of run.toml as dictionaries with types, for editors and mypy. Made by `make typed`.

Every key of every component is in its section; which of them go together is checked when they are used.
"""
# ruff: noqa: E501, PYI030, PYI051
# fmt: off

from __future__ import annotations

from typing import Literal, TypedDict
'''


def typed() -> str:
    """Return the source of typed.py: a TypedDict for each section, with what each key means."""
    parts = [_dictionary(name, kind, {}) for kind, name in TABLES.items()]
    taken = {name: base for name, base in sections().items() if name not in ("data", "model")}  # those are brought
    for name, base in taken.items():
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
    plain = {NoneType: "None", str: "str", int: "int", float: "float", bool: "bool"} | TABLES
    return [plain.get(kind, "Any") if isinstance(kind, type) else "Any"]


if __name__ == "__main__":
    print(typed(), end="")
