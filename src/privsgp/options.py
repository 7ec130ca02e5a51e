"""The keys of a component: one frozen class beside the component, every field with a line that says what it means.

`run.toml` is checked against these fields, and its reference page, `privsgp options`, and the schema for editors are
made of them: a new option is one line in the file of the component that has a use for it.
"""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class Options(BaseModel):
    """The keys of a component; the base has none. Help shows the meaning of each key as an argument."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:  # noqa: ANN401 - pydantic's own
        told = [f"    {name}: {field.description}" for name, field in cls.model_fields.items() if field.description]
        if told and "Args:" not in (doc := inspect.cleandoc(cls.__doc__ or "")):
            cls.__doc__ = "\n".join([doc, "", "Args:", *told])


def option(default: Any, meaning: str) -> Any:  # noqa: ANN401 - a field of any type
    """Declare an option: its default, and what it means in one line."""
    return Field(default, description=meaning)


class Key(NamedTuple):
    """One key as a reader of a reference page sees it."""

    name: str
    values: str
    default: str
    meaning: str


def keys(kind: type[Options]) -> list[Key]:
    """Return the keys of a class: its own, then those it inherits."""
    schema, own = kind.model_json_schema().get("properties", {}), kind.__annotations__
    fields = sorted(kind.model_fields.items(), key=lambda item: item[0] not in own)
    return [Key(name, _values(schema[name]), _shown(f), f.description or "") for name, f in fields]


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
