"""The names of models in a config, and the keys of each; without torch."""

from __future__ import annotations

from typing import Literal

from privsgp.options import Count, Options, option


class _MLPOptions(Options):
    """A fully connected network."""

    hidden: Count | list[Count] = option(64, "width of the hidden layer, or a list with one width per layer")
    activation: Literal["relu", "sigmoid", "tanh"] = option("relu", "after each hidden layer")


class _EmbeddingOptions(Options):
    """A linear model of the mean embedding of a sequence of tokens."""

    width: Count = option(32, "numbers that stand for a token")


MODELS: dict[str, type[Options]] = {
    "logistic": Options,
    "linear": Options,
    "hazard": Options,
    "mlp": _MLPOptions,
    "cnn": Options,
    "resnet18": Options,
    "embedding": _EmbeddingOptions,
}
