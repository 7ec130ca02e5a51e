"""Values from other processes and sites: pydantic checks each one before anything uses it.

Peers are adversaries (privacy.md). A value of another type, length or range is refused by name. Checks are strict:
a number in quotes is no number, and 1 is not true.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError, create_model

from privsgp.options import Options

MOST = 2**53  # whole numbers up to this one are exact in JSON
_LONGEST = 200

Whole = Annotated[int, Field(ge=0, le=MOST)]
Number = Annotated[float, Field(allow_inf_nan=False)]
From1 = Annotated[int, Field(ge=1, le=MOST)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Signature = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


def between(least: float, most: float, kind: Any = int) -> Any:  # noqa: ANN401 - a type
    """Return the type of a number between two others, both included."""
    return Annotated[Number if kind is float else kind, Field(ge=least, le=most)]


def exactly(count: int, kind: Any) -> Any:  # noqa: ANN401 - a type
    """Return the type of a list of `count` values."""
    return Annotated[list[kind], Field(min_length=count, max_length=count)]


def keys(**kinds: object) -> type[Options]:
    """Return the type of an object with these keys and no other."""
    fields: Any = {key: (kind, ...) for key, kind in kinds.items()}
    return create_model("Keys", __base__=Options, **fields)


def parse(kind: Any, text: str | bytes) -> Any:  # noqa: ANN401 - a type, and a value of that type
    """Return the JSON value in a text as plain data; raise ValidationError unless it is of the given type."""
    adapter = TypeAdapter(kind)
    return adapter.dump_python(adapter.validate_json(text, strict=True))


def fault(error: ValidationError) -> str:
    """Return what is wrong with a value, without the value."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return shown(f"{where}: {first['msg']}" if where else first["msg"])[1:-1]


def shown(value: object) -> str:
    """Return a peer's value as it may be printed: no control characters, and not at any length."""
    word = json.dumps(value)
    return word if len(word) <= _LONGEST else word[:_LONGEST] + " …"
