"""The names of feature maps in a config, and the keys of each; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from privsgp.errors import Refused
from privsgp.options import Count, Options, option

WORDLLAMA = "wordllama"


@dataclass(frozen=True)
class Size:
    """One network of the family: its scale, the side of the images it was trained on, and its weights."""

    width: float
    depth: float
    side: int
    file: str
    sha256: str


SIZES = {
    "efficientnet-lite0": Size(
        1.0, 1.0, 224, "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": Size(
        1.0, 1.1, 240, "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": Size(
        1.1, 1.2, 260, "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}  # fmt: skip


class MapOptions(Options):
    """What all maps of images have in common."""

    like: Literal["strokes", "leaves"] | None = option(
        None, "made-up images that whitening is measured on; left out: no whitening"
    )
    components: Count | None = option(None, "directions that whitening keeps; left out: 512")
    power: Annotated[float, Field(ge=0, le=1)] | None = option(
        None, "how far whitening brings directions to one scale; left out: 1"
    )
    mirror: bool | None = option(None, "an image and its mirror image have the same features")
    views: Literal["mirror", "shifts"] | None = option(None, "views of a sample, averaged before its clip")

    @model_validator(mode="after")
    def _whitening_has_a_use(self) -> Self:
        for key in ("components", "power") if self.like is None else ():
            if (given := getattr(self, key)) is not None:
                raise Refused(f"features.{key} = {given!r} without features.like", "give it too, or leave both out")
        return self


class ScatteringOptions(MapOptions):
    """The scattering transform: wavelets, moduli, averages."""

    scales: Count | None = option(None, "octaves of wavelets; left out: 2")
    angles: Count | None = option(None, "directions of wavelets; left out: 8")
    order: Literal[1, 2] | None = option(None, "how often a modulus is taken; left out: 2")


class RandomConvOptions(MapOptions):
    """Convolutions with random filters."""

    filters: Count | None = option(None, "how many; left out: 256")
    patch: Count | None = option(None, "their width in pixels; left out: 6")
    grid: Count | None = option(None, "cells a side that responses are averaged over; left out: 4")


class EfficientNetOptions(MapOptions):
    """A frozen network with public ImageNet weights, for images whose pixels go from 0 to 1."""

    size: Count | None = option(
        None, "pixels a side that images are brought to; left out: what the network was trained on, 224, 240 or 260"
    )


FEATURES: dict[str, type[Options]] = {
    "none": Options,
    "scattering": ScatteringOptions,
    "random-conv": RandomConvOptions,
    WORDLLAMA: Options,
} | dict.fromkeys(SIZES, EfficientNetOptions)


def pretraining(name: str) -> str | None:
    """Say what a map was learnt from before it was frozen; this stands beside every number that rests on it."""
    if name == WORDLLAMA:
        return f"public pre-training on texts ({name})"
    return f"public pre-training on ImageNet ({name})" if name in SIZES else None
