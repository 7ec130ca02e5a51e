"""What a model is given instead of the raw sample: fixed maps of each sample alone, which cost no privacy."""

from privsgp.features.encode import Encoded, digest, encode_once, frozen, output_shape
from privsgp.features.maps import Choice, FeatureMap, make
from privsgp.features.views import Views

__all__ = ["Choice", "Encoded", "FeatureMap", "Views", "digest", "encode_once", "frozen", "make", "output_shape"]
