"""Formats of the JSON files of a run folder: the keys that readers use, with their types.

Keys beyond these are left as they are: releases may add some, and nobody relies on them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from privsgp import metrics

_Whole = Annotated[int, Field(ge=0, le=2**53)]
_Number = float | None
_Numbers = list[float | None] | None


class Kept(BaseModel):
    """Checks the keys that it names, and keeps all others."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class Calibrated(Kept):
    """calibration.json: what `evaluate` found on public data, or in a private evaluation."""

    version: Literal[1] = 1
    slope: Annotated[float, Field(ge=-100, le=100)] = 1.0
    shift: Annotated[float, Field(ge=-100, le=100)] = 0.0
    threshold: Annotated[float, Field(ge=0, le=2)] | None = None


class _Pairwise(Kept):
    honest: _Whole
    curve: list[Annotated[list[_Number], Field(min_length=2, max_length=2)]]

    @model_validator(mode="after")
    def _by_honest_nodes(self) -> _Pairwise:
        if not all(h is not None and h >= 1 and h == int(h) for h, _ in self.curve):
            raise ValueError("the trust curve does not begin with numbers of nodes")
        return self


class _Person(Kept):
    unit: str
    curve: list[Annotated[list[_Number], Field(min_length=2, max_length=2)]]


_Part = Annotated[float, Field(ge=0, le=1)]
_Point = Annotated[list[_Part], Field(min_length=2, max_length=2)]
_Bin = Annotated[list[float], Field(min_length=3, max_length=3)]


class _Histogram(Kept):
    edges: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=3)]
    counts: Annotated[list[list[float]], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _a_count_for_each_bin(self) -> _Histogram:
        if any(len(one) != len(self.edges) - 1 for one in self.counts) or sorted(self.edges) != self.edges:
            raise ValueError("the histogram does not have a count for each bin")
        return self


class Evaluated(Kept):
    """evaluation.json: a private evaluation on held-out records."""

    version: Literal[1] = 1
    simulation: bool
    epsilon: float
    delta: float
    held_out: list[_Whole]
    records: list[_Whole]
    trained: dict[str, Any]
    metrics: list[dict[str, Any]]
    curves: dict[str, list[dict[str, Any]]]
    model: str
    histogram: _Histogram | None = None


class Described(Kept):
    """description.json: a private description of columns."""

    version: Literal[1] = 1
    name: str
    simulation: bool
    epsilon: Annotated[float, Field(ge=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    records: Annotated[list[_Whole], Field(min_length=1)]
    columns: dict[str, dict[str, Any]]


_TESTED = ("test_accuracy", "mean_node_accuracy", "worst_node_accuracy", "test_loss", "train_loss", "consensus_error")


def _numbers(*names: str) -> type[Kept]:
    """Return a format with a number, or nothing, under each of these names."""
    fields: Any = dict.fromkeys(names, (_Number, None))
    return create_model("Numbers", __base__=Kept, **fields)


_Evaluated: Any = _numbers(*_TESTED)
_Measured: Any = _numbers(*_TESTED, *metrics.NAMES)


class Summary(_Measured):  # type: ignore[misc]
    """summary.json."""

    version: Literal[1] = 1
    name: str
    simulation: bool
    algorithm: str
    trust: str
    graph: str
    nodes: Annotated[int, Field(ge=1, le=2**20)]
    sites: list[str] | None = None
    steps: _Whole
    dim: _Whole
    gradients: str | None = None
    survival: dict[str, Any] | None = None
    baseline: dict[str, _Number] | None = None
    own_metrics: dict[str, _Number] | None = None
    dull: list[str] | None = None
    confusion: Annotated[list[list[_Whole]], Field(max_length=100)] | None = None
    roc: Annotated[list[_Point], Field(min_length=2, max_length=100)] | None = None
    calibration: Annotated[list[_Bin], Field(max_length=64)] | None = None
    epsilon_spent: _Numbers = None
    epsilon_nominal: _Numbers = None
    delta: _Numbers = None
    sigma: Annotated[list[float], Field(min_length=1)]
    person: _Person | None = None
    pairwise: _Pairwise | None = None
    relation: str
    weight_noise: _Number = None
    pretraining: str | None = None
    virtual_seconds: float
    bytes_sent: _Whole
    seconds: float


class Evaluation(_Evaluated):  # type: ignore[misc]
    """A line of metrics.jsonl; its first has no step."""

    version: Literal[1] = 1
    step: _Whole | None = None
    virtual_seconds: _Number = None


class _Source(Kept):
    kind: str
    words: str


class Plan(Kept):
    """plan.json."""

    algorithm: str
    steps: _Whole
    step_size: float
    batch: float
    estimated_on: _Source
    accountant: str
    warnings: list[str]
