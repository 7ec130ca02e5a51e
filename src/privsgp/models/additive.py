"""Glass-box additive models: every column, and every chosen pair of columns, adds a score to that of a record.

Levels are public: bins of a number, values of a category, yes and no. A column of numbers is represented by whether the
value reaches each edge, ±1/√edges, so that neighbouring bins share what they learn, and the noise. A category
has an input for each value, a pair all products. So each column and pair has inputs of norm 1, whatever its levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.data.schema import Number, Schema

_MOST, _CELLS = 100_000, 1024  # inputs of all columns, and levels of a pair: more cannot be read
_REACH = 2.0  # scales around the centre that are divided into bins where a number has no range


@dataclass(frozen=True)
class Shape:
    """The part of a record's score that comes from one column, or from a pair of columns.

    Args:
        title: The column, or "first × second".
        labels: The levels.
        scores: The score of each level; their mean is 0.
        half_widths: Half the width of the 95 % band of the noise at each level; None if it is unknown.

    """

    title: str
    labels: Sequence[str]
    scores: Sequence[float]
    half_widths: Sequence[float] | None


@dataclass(frozen=True)
class _Term:
    """One column: its levels, and for each of its inputs the number of an encoded row that is compared with an edge.

    `values` [levels, inputs] are the inputs at each level; an input is the column's smallest or largest value.
    """

    labels: list[str]
    at: list[int]
    edges: list[float]
    values: NDArray[np.float64]


def additive(schema: Schema | None, outputs: int, bins: int, pairs: Sequence[Sequence[str]]) -> nn.Module:
    """Return the model at zero; refuse what has no columns, or several scores."""
    if schema is None:
        raise Refused("model.name = 'additive' without a schema", "name the public schema of the columns: data.schema")
    if outputs > 2:
        raise Refused(f"an additive model has one output, and the data need {outputs}", "use two classes or one number")
    layer = _Inputs(_terms(schema, bins), _pairs(schema, pairs, bins))
    linear = nn.Linear(layer.count, outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(layer, linear)


def shapes(
    schema: Schema, bins: int, pairs: Sequence[Sequence[str]], weight: Tensor, noise: float | None
) -> list[Shape]:
    """Return what each column and pair adds to the score: of two outputs their difference, of a number its unit.

    `noise` is the standard deviation that noise gives to each weight.
    """
    terms = _terms(schema, bins)
    drawn = [(name, term.labels, term.values) for name, term in terms.items()]
    for first, second in _pairs(schema, pairs, bins):
        a, b = terms[first], terms[second]
        cells = [f"{one}, {other}" for one in a.labels for other in b.labels]
        drawn.append((f"{first} × {second}", cells, np.kron(a.values, b.values).astype(np.float64)))
    unit = schema.unit[1]
    score = (weight[-1] - weight[0] if len(weight) == 2 else weight[0]).double().numpy() * unit
    found, start = [], 0
    for title, labels, values in drawn:
        centred = values - values.mean(0)
        own, start = score[start : start + values.shape[1]], start + values.shape[1]
        reach = 1.96 * math.sqrt(len(weight)) * unit * np.linalg.norm(centred, axis=1)
        half_widths = None if noise is None else (noise * reach).tolist()
        found.append(Shape(title, labels, (centred @ own).tolist(), half_widths))
    return found


def _terms(schema: Schema, bins: int) -> dict[str, _Term]:
    """Return the columns in the order of the inputs of an encoded row; a mark of missing values is one more."""
    if len(schema.encoded) * bins > _MOST:
        raise Refused(f"{len(schema.encoded):,} columns are too many", f"take at most {_MOST // bins:,}")
    found: dict[str, _Term] = {}
    at = 0
    for name, column in schema.encoded.items():
        if column.type == "category":
            count = len(column.known)
            found[name] = _Term(column.known, [*range(at, at + count)], [0.5] * count, np.eye(count))
            at += count
        else:
            labels, edges = (["no", "yes"], [0.0]) if column.type == "yes/no" else _bins(column, bins)
            reached = np.arange(len(labels))[:, None] > np.arange(len(edges))
            found[name] = _Term(labels, [at] * len(edges), edges, np.where(reached, 1, -1) / math.sqrt(len(edges)))
            at += 1
        if column.missing is not None:
            found[f"{name} is missing"] = _Term(["no", "yes"], [at], [0.5], np.array([[0.0], [1.0]]))
            at += 1
    return found


def _bins(column: Number, bins: int) -> tuple[list[str], list[float]]:
    """Return labels and encoded edges: as the schema has them, else those of equal parts of the public range."""
    (low, high), (centre, scale) = column.limits, column.affine
    if column.range is None:
        low, high = centre - _REACH * scale, centre + _REACH * scale
    edges = column.bins or np.linspace(low, high, bins + 1)[1:-1].tolist()
    names = [f"{edge:.4g}" for edge in edges]
    labels = [f"below {names[0]}", *(f"{a} to {b}" for a, b in pairwise(names)), f"from {names[-1]}"]
    return labels, [(edge - centre) / scale for edge in edges]


def _pairs(schema: Schema, pairs: Sequence[Sequence[str]], bins: int) -> list[tuple[str, str]]:
    """Return the pairs; refuse columns that are not there, pairs that are there twice, and those with many levels."""
    terms, found = _terms(schema, bins), list[tuple[str, str]]()
    for first, second in pairs:
        if unknown := [name for name in (first, second) if name not in schema.encoded]:
            raise Refused(f"model.pairs names {unknown[0]!r}, which is no column", f"take {', '.join(schema.encoded)}")
        if first == second or (first, second) in found or (second, first) in found:
            raise Refused(f"model.pairs has {[first, second]} twice, or one column twice", "name each pair once")
        if (cells := len(terms[first].labels) * len(terms[second].labels)) > _CELLS:
            raise Refused(f"model.pairs: {[first, second]} has {cells:,} levels: too many", f"take at most {_CELLS:,}")
        found.append((first, second))
    return found


class _Inputs(nn.Module):
    """Turns encoded rows into the inputs of every column and pair."""

    def __init__(self, terms: dict[str, _Term], pairs: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        every, sizes = list(terms.values()), [len(term.at) for term in terms.values()]
        columns = dict(zip(terms, torch.split(torch.arange(sum(sizes), device="cpu"), sizes), strict=True))
        both = [torch.cartesian_prod(columns[first], columns[second]) for first, second in pairs]
        # In float32, as rows are encoded: a value at an edge reaches it.
        numbers = {
            "at": torch.tensor([i for term in every for i in term.at]),
            "edges": torch.tensor([edge for term in every for edge in term.edges], dtype=torch.float32),
            "low": torch.tensor([low for term in every for low in term.values.min(0)], dtype=torch.float32),
            "high": torch.tensor([high for term in every for high in term.values.max(0)], dtype=torch.float32),
            "first": torch.cat([pair[:, 0] for pair in both]) if both else columns[next(iter(columns))][:0],
            "second": torch.cat([pair[:, 1] for pair in both]) if both else columns[next(iter(columns))][:0],
        }
        for name, values in numbers.items():
            self.register_buffer(name, values, persistent=False)
        self.count = sum(sizes) + sum(map(len, both))

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs of rows [B, width]."""
        at, edges, low, high, first, second = (buffer for _, buffer in self.named_buffers())
        own = torch.where(x[:, at] >= edges, high, low)
        return torch.cat([own, own[:, first] * own[:, second]], 1)
