"""Schemas as TOML, for files and for advice, and the words for what is wrong with one."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import ValidationError

    from privsgp.data.schema import Schema
    from privsgp.options import Options


def column_line(schema: Schema, name: str, **changes: object) -> str:
    """Write the line of one column, with changes."""
    return f"{toml_key(name)} = {toml_value(_given(schema.columns[name], 'type') | changes)}"


def written(schema: Schema, prefix: str = "", why: Mapping[str, str] | None = None) -> str:
    """Write it out; `prefix` is the section it stands in, `why` has a comment for some columns."""
    own = [f"{key} = {toml_value(value)}" for key, value in _given(schema).items() if key in ("missing", "drafted")]
    lines = [*([f"[{prefix[:-1]}]"] if prefix and own else []), *own, *([""] if own else []), f"[{prefix}target]"]
    lines += [f"{key} = {toml_value(value)}" for key, value in _given(schema.target, "column").items()]
    lines += ["", f"[{prefix}columns]"]
    for name in schema.columns:
        comment = (why or {}).get(name)
        lines.append(column_line(schema, name) + (f"  # {comment}" if comment else ""))
    return "\n".join(lines) + "\n"


def _given(section: Options, first: str = "") -> dict[str, Any]:
    """Return what a section says beyond its defaults, one key first."""
    values = section.model_dump(exclude_defaults=True)
    return {first: values.pop(first)} | values if first in values else values


def toml_key(name: str) -> str:
    """Write a name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: object) -> str:
    """Write a value as TOML has it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(v)}" for key, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML does not take as it is


def refusal(error: ValidationError, where: str) -> Refused:
    """Return the refusal of a schema or a dialect: the first key that is wrong."""
    first = error.errors(include_url=False)[0]
    of_target = first["loc"][:1] == ("target",)
    tags = ["survival"] if of_target else ["number", "category", "yes/no", "ignored"]
    tagged = 1 if of_target else 2  # pydantic names the type it took
    at = [str(part) for i, part in enumerate(first["loc"]) if not (i == tagged and part in ("value", *tags))]
    cause = first.get("ctx", {}).get("error")
    key = ".".join(at) or "it"
    if isinstance(cause, Refused):
        return Refused(f"{where}: {key}: {cause.what}", cause.remedy)
    if first["type"].startswith("union_tag"):
        return Refused(f"{where}: {key} has an unknown type", f"take type = {' or '.join(map(repr, tags))}")
    message = first["msg"].replace("Input should", "it should").replace("Extra inputs are not permitted", "unknown key")
    return Refused(f"{where}: {key} = {first['input']!r:.80}: {message}", "see docs/howto/tables.md")
