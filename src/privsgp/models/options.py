"""The names of models in a config, and the keys of each; without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from privsgp.options import Count, Options, option


class _MLPOptions(Options):
    """A fully connected network."""

    hidden: Count | list[Count] = option(64, "width of the hidden layer, or a list with one width per layer")
    activation: Literal["relu", "sigmoid", "tanh"] = option("relu", "after each hidden layer")


class _EmbeddingOptions(Options):
    """A linear model of the mean embedding of a sequence of tokens."""

    width: Count = option(32, "numbers for each token")


class _AdditiveOptions(Options):
    """A score for each level of a column, and of chosen pairs of columns; it needs a schema."""

    bins: Annotated[int, Field(ge=2, le=32)] = option(
        8, "bins of each number, equal parts of its public range; `bins` of a column in the schema overrides this"
    )
    pairs: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = option(
        [], 'pairs of columns that also get a score together: [["age", "sex"]]'
    )


MODELS: dict[str, type[Options]] = {
    "logistic": Options,
    "linear": Options,
    "hazard": Options,
    "additive": _AdditiveOptions,
    "mlp": _MLPOptions,
    "cnn": Options,
    "resnet18": Options,
    "embedding": _EmbeddingOptions,
}
