"""Schemas of tables: a public file, equal at every site, that alone decides how records become numbers.

`schema.toml` names the target and the type of each column, with public ranges, lists and what a missing value becomes.
Nothing is ever learnt from private rows: no mean, no list of values, no width. Columns are encoded in the order of
their names, so that two schemas that say the same give the same numbers, in whatever order they say it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator

from privsgp.data.schema_text import refusal
from privsgp.errors import Refused
from privsgp.files import read_toml
from privsgp.options import Options, Positive, Probability, option
from privsgp.outside import Number as Finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.data.dataset import Task

OTHER = "other"
REACH = 10.0  # scales around the centre within which numbers are taken where no range is given
_LONGEST = 2**22
_MOST = 100_000  # encoded features
_FARTHEST = 1e9  # scales from the centre that the ends of a range may be: float32 can still square it


def _as_text(value: object) -> object:
    """Take 1 for "1" and true for "true": a list of codes is often written without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def doubles(names: Sequence[str]) -> list[str]:
    """Return what is there more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _once_each(values: list[str]) -> list[str]:
    if twice := doubles(values):
        raise Refused(f"{twice[0]!r} is listed twice", "give each value once")
    return values


Text = Annotated[str, BeforeValidator(_as_text), Field(min_length=1, max_length=1000)]
Listed = Annotated[list[Text], AfterValidator(_once_each)]
_Range = Annotated[list[Finite], Field(min_length=2, max_length=2)]
_Edges = Annotated[list[Finite], Field(min_length=1, max_length=100)]
_Digest = Annotated[str, Field(pattern="^([0-9a-f]{16})?(-([0-9a-f]{16})?){0,15}$")]


class Scaled(Options):
    """A number on a public scale: `range` becomes −1 … 1, or `centre` 0 and `centre + scale` 1."""

    range: _Range | None = option(None, "[smallest, largest]: what lies outside is clipped")
    centre: Finite | None = option(None, "what becomes 0; needs scale")
    scale: Positive | None = option(None, "how far from the centre becomes 1; needs centre")

    @model_validator(mode="after")
    def _is_a_scale(self) -> Self:
        if (self.centre is None) != (self.scale is None):
            raise Refused("only one of centre and scale is given", "give both, or a range")
        if self.range is not None and not self.range[0] < self.range[1]:
            raise Refused(f"range = {self.range} does not rise", "write [smallest, largest]")
        (low, high), (centre, scale) = self.limits, self.affine
        far = max(abs(low - centre), abs(high - centre))
        if not (0 < scale < math.inf and far < math.inf and far <= _FARTHEST * scale):
            what = f"the scale turns {low:g} … {high:g} into numbers that are not finite, or too large"
            raise Refused(what, "give a scale of the range's order")
        return self

    @property
    def limits(self) -> tuple[float, float]:
        """The bounds to which values are clipped."""
        if self.range is not None:
            return self.range[0], self.range[1]
        centre, scale = self.centre or 0.0, self.scale or 1.0
        return centre - REACH * scale, centre + REACH * scale

    @property
    def affine(self) -> tuple[float, float]:
        """(c, s) of v ↦ (v − c) / s."""
        if self.centre is not None and self.scale is not None:
            return self.centre, self.scale
        low, high = self.limits
        return (low + high) / 2, (high - low) / 2


class Number(Scaled):
    """A column of numbers."""

    type: Literal["number"]
    bins: _Edges | None = option(None, "rising public edges between the bins of model.name = 'additive'")
    missing: Finite | None = option(None, "what a missing value becomes, with an indicator; default: it is refused")

    @model_validator(mode="after")
    def _has_a_scale(self) -> Self:
        if self.range is None and self.centre is None:
            raise Refused("a column of numbers has no range", "give range = [smallest, largest], or centre and scale")
        low, high = self.limits
        if self.bins is not None and not all(a < b for a, b in pairwise([low, *self.bins, high])):
            raise Refused(f"bins = {self.bins} do not rise in the range", f"give rising edges from {low:g} to {high:g}")
        if self.missing is not None and not low <= self.missing <= high:
            raise Refused(f"missing = {self.missing:g} is outside the range", f"take a number from {low:g} to {high:g}")
        return self


class Category(Options):
    """A column with a public list of values; whatever else is there is "other"."""

    type: Literal["category"]
    values: Annotated[Listed, Field(min_length=1)] = option(..., "the public list")
    missing: Text | None = option(None, "the value that a missing one becomes, with an indicator")

    @model_validator(mode="after")
    def _missing_is_known(self) -> Self:
        if self.missing is not None and self.missing not in self.known:
            raise Refused(f"missing = {self.missing!r} is not one of the values", f"take one of them, or {OTHER!r}")
        return self

    @property
    def known(self) -> list[str]:
        """The values that can be told apart, the last or its own place for all others."""
        return self.values if OTHER in self.values else [*self.values, OTHER]


class YesNo(Options):
    """A column that says yes or no; any other word in it is refused."""

    type: Literal["yes/no"]
    yes: list[Text] = option(["yes", "y", "true", "t", "1"], "words for yes, in small or capital letters")
    no: list[Text] = option(["no", "n", "false", "f", "0"], "words for no")
    missing: bool | None = option(None, "what a missing value becomes, with an indicator")

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        both = {word.lower() for word in self.yes} & {word.lower() for word in self.no}
        if both or not self.yes or not self.no:
            raise Refused(f"yes = {self.yes}, no = {self.no}: one is empty, or they overlap", "give words for both")
        return self


WORDS = YesNo(type="yes/no")  # for an event


class Ignored(Options):
    """A column that is not looked at; it may also not be there."""

    type: Literal["ignored"]


class Target(Scaled):
    """What is to be predicted: one of the public classes, or a number on a public scale."""

    column: str = option(..., "its name")
    classes: Annotated[Listed, Field(min_length=2)] | None = option(None, "the public list: the first is class 0")
    balance: list[Probability] | None = option(None, "the public share of each class, about; the planner uses it")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        numbers = self.range is not None or self.centre is not None
        if numbers == (self.classes is not None):
            what = f"the target {self.column!r} has {'both' if numbers else 'neither'} classes and a scale"
            raise Refused(what, 'give classes = ["no", "yes"], or for numbers range = [smallest, largest]')
        if self.balance is not None and len(self.balance) != len(self.classes or ()):
            raise Refused(f"balance = {self.balance} does not fit the classes", "give one share for each of them")
        return self

    @property
    def columns(self) -> list[str]:
        """The columns that it is read from."""
        return [self.column]


class Survival(Options):
    """A time until an event, in public bins: some persons are last seen without it (censored)."""

    type: Literal["survival"]
    time: str = option(..., "the column of the time since a person's start, of the event or when last seen")
    event: str = option(..., "the column that says yes if the event happened at that time")
    bins: Annotated[list[Positive], Field(min_length=2)] = option(..., "upper edges of the bins; the first begins at 0")

    classes: ClassVar[None] = None
    balance: ClassVar[None] = None

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if any(a >= b for a, b in pairwise(self.bins)):
            raise Refused(f"bins = {self.bins} do not rise", "give rising upper edges, for example [30, 90, 180, 365]")
        return self

    @property
    def column(self) -> str:
        """The column of times."""
        return self.time

    @property
    def columns(self) -> list[str]:
        """The columns that it is read from."""
        return [self.time, self.event]

    @property
    def limits(self) -> tuple[float, float]:
        """The times that are seen."""
        return 0.0, self.bins[-1]

    @property
    def affine(self) -> tuple[float, float]:
        """(c, s) of v ↦ (v − c) / s: times are in their own unit."""
        return 0.0, 1.0


Column = Annotated[Number | Category | YesNo | Ignored, Field(discriminator="type")]
Encoded = Number | Category | YesNo
MISSING = ["", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None"]


def _kind_of_target(given: Any) -> str:  # noqa: ANN401 - what a file says, or a section
    kind = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
    return "value" if kind is None else str(kind)


class Schema(Options):
    """The public description of a table, as in schema.toml.

    Guarantee: `features` and their scales depend on the schema alone, never on a row.

    Example:
        >>> import privsgp
        >>> schema = privsgp.Schema.model_validate({
        ...     "target": {"column": "readmitted", "classes": ["no", "yes"]},
        ...     "columns": {"age": {"type": "number", "range": [18, 110]}, "smoker": {"type": "yes/no"}},
        ... })
        >>> schema.features, schema.classes
        (['age', 'smoker'], 2)

    """

    target: Annotated[
        Annotated[Target, Tag("value")] | Annotated[Survival, Tag("survival")], Discriminator(_kind_of_target)
    ]
    columns: Annotated[dict[str, Column], Field(min_length=1)]
    missing: list[str] = option(MISSING, "texts that stand for a missing value, unless a category lists them")
    drafted: list[_Digest] | None = option(None, "digests of the public table, which no site's table may have")

    @model_validator(mode="after")
    def _can_be_encoded(self) -> Self:
        if both := [name for name in self.target.columns if name in self.columns]:
            raise Refused(f"{both[0]!r} is the target and one of [columns]", "leave it out of [columns]")
        if not self.encoded:
            raise Refused("all of [columns] are ignored", "give at least one of them another type")
        if self.width > _MOST:
            raise Refused(f"the columns become {self.width:,} features: above {_MOST:,}", "shorten lists of values")
        return self

    @classmethod
    def read(cls, path: Path | str) -> Schema:
        """Read a schema.toml.

        Args:
            path: The file.

        Returns:
            The checked schema.

        Raises:
            Refused: If the file is not TOML, or describes no table.

        """
        return read(Path(path))

    @property
    def encoded(self) -> dict[str, Encoded]:
        """The columns that are used, ordered by name."""
        return {name: c for name, c in sorted(self.columns.items()) if not isinstance(c, Ignored)}

    @property
    def features(self) -> list[str]:
        """The names of the numbers of an encoded record."""
        names: list[str] = []
        for name, column in self.encoded.items():
            names += [f"{name} = {value}" for value in column.known] if isinstance(column, Category) else [name]
            names += [f"{name} is missing"] if column.missing is not None else []
        return names

    @property
    def width(self) -> int:
        """The number of inputs of an encoded record."""
        return len(self.features)

    @property
    def task(self) -> Task:
        """`classification` or `regression`."""
        return "regression" if self.target.classes is None else "classification"

    @property
    def classes(self) -> int | None:
        """The number of classes; None for numbers."""
        return None if self.target.classes is None else len(self.target.classes)

    @property
    def unit(self) -> tuple[float, float]:
        """(centre, scale) of a target that is a number: centre + scale · value is in the unit of the table."""
        return (0.0, 1.0) if self.target.classes is not None else self.target.affine

    @property
    def times(self) -> list[float] | None:
        """The edges at which survival is predicted; None for another target."""
        return self.target.bins if isinstance(self.target, Survival) else None

    @property
    def digest(self) -> str:
        """The SHA-256 of the schema, without comments and the order of columns."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path) -> Schema:
    """Read schema.toml."""
    see = "`privsgp data schema public.csv --target COLUMN` drafts one"
    return parse(read_toml(path, "schema", see, _LONGEST), str(path))


def parse(values: object, where: str = "schema") -> Schema:
    """Check plain values; the first that is wrong is named."""
    try:
        return Schema.model_validate(values)
    except ValidationError as error:
        raise refusal(error, where) from error
