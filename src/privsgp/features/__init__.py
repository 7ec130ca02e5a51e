"""Fixed maps of each single sample before the model; they cost no privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privsgp import later

if TYPE_CHECKING:
    from privsgp.features.encode import Encoded, digest, encode_once, frozen, output_shape
    from privsgp.features.maps import FeatureMap, make

__all__ = ["Encoded", "FeatureMap", "digest", "encode_once", "frozen", "make", "output_shape"]
_MAPS = dict.fromkeys(("FeatureMap", "make"), "maps")
__getattr__ = later.names(__name__, dict.fromkeys(__all__, "encode") | _MAPS)
