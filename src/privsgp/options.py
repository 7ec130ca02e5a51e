"""The keys of a component: one frozen class beside the component, every field with a line that says what it means.

`run.toml` is checked against these fields, and its reference page is made of them: a new option
is one line in the file of the component that has a use for it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        lines = [f"    {name}: {field.description}" for name, field in cls.model_fields.items() if field.description]
        if lines and "Args:" not in (doc := inspect.cleandoc(cls.__doc__ or "")):
            cls.__doc__ = "\n".join([doc, "", "Args:", *lines])


def option(default: Any, meaning: str) -> Any:  # noqa: ANN401 - a field of any type
    """Declare an option: its default, and what it means in one line."""
    return Field(default, description=meaning)


class Section(NamedTuple):
    """A section of run.toml whose further keys are those of the component that one of its keys names.

    A component is the class of its keys, or has that class as its `Options`.
    """

    base: type[Options]
    key: str
    components: Mapping[str, Any]

    def options(self, name: object) -> type[Options]:
        """Return the keys that a component brings: none if nobody knows it."""
        found = self.components.get(str(name), Options)
        own: type[Options] = getattr(found, "Options", found)
        return own

    def chosen(self, given: object) -> object:
        """Return the name of the component that the keys of a section give, or the default."""
        default = self.base.model_fields[self.key].default
        return given.get(self.key, default) if isinstance(given, dict) else default
