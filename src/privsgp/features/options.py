"""The names of feature maps in a config, and the keys of each; without torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from privsgp.errors import Refused
from privsgp.options import Count, Options, option

SCATTERING, MINILM, SYNTHETIC = "scattering", "minilm", "synthetic-encoder"
COMPONENTS = 1024  # of the synthetic encoder
SCALES = 2  # octaves of scattering


class ScatteringOptions(Options):
    """The scattering transform of images: wavelets, moduli, averages; then whitening, if `like` is given."""

    like: Literal["strokes", "leaves"] | None = option(
        None, "made-up images that whitening is measured on; default: no whitening"
    )
    components: Count | None = option(None, "directions that whitening keeps; default: 512")
    power: Annotated[float, Field(ge=0, le=1)] | None = option(
        None, "how far whitening equalises the scales of directions; default: 1"
    )
    mirror: bool | None = option(None, "an image and its mirror image have the same features")

    @model_validator(mode="after")
    def _whitening_has_a_use(self) -> Self:
        for key in ("components", "power") if self.like is None else ():
            if (given := getattr(self, key)) is not None:
                raise Refused(f"features.{key} = {given!r} needs features.like", "give it too, or leave both out")
        return self


class _SyntheticOptions(Options):
    """A network that was trained on made-up images only, then whitening."""

    components: Count | None = option(None, f"directions that whitening keeps; default: {COMPONENTS}")
    power: Annotated[float, Field(ge=0, le=1)] | None = option(
        None, "how far whitening equalises the scales of directions; default: 1"
    )


FEATURES: dict[str, type[Options]] = {
    "none": Options, SCATTERING: ScatteringOptions, MINILM: Options, SYNTHETIC: _SyntheticOptions,
}  # fmt: skip


def pretraining(name: str) -> str | None:
    """Say what a map was learnt from before it was frozen; this stands beside every number that rests on it."""
    return f"public pre-training on texts ({name})" if name == MINILM else None
