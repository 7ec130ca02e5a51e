"""Every method by its name: privsgp's own, those of installed packages, and those that you register.

A package offers a method by an entry point of the group `privsgp.algorithms` with the method's name. privsgp imports
it when a run asks for it: a run of `privsgp-vr` imports no other method.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from privsgp import plugins
from privsgp.algorithms.algorithm import Algorithm
from privsgp.algorithms.push_sum import SGP, PrivSGP
from privsgp.algorithms.saga import PrivSGPSAG, PrivSGPVR
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN: dict[str, type[Algorithm]] = {a.name: a for a in (SGP, PrivSGP, PrivSGPVR, PrivSGPSAG)}


class _Methods(Mapping[str, type[Algorithm]]):
    """Names in the order in which they are shown; a lookup may import."""

    def __init__(self) -> None:
        self._registered: dict[str, type[Algorithm]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*_OWN, *plugins.offered(plugins.ALGORITHMS), *self._registered)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> type[Algorithm]:
        if name in _OWN:
            return _OWN[name]
        if name not in self._registered:
            offered = register(plugins.load(plugins.offered(plugins.ALGORITHMS)[name]))
            if offered.name != name:
                what = f"the entry point {name!r} of {offered.__module__} offers a method called {offered.name!r}"
                raise Refused(what, "give the entry point the method's name")
        return self._registered[name]

    def add(self, algorithm: type[Algorithm]) -> None:
        """Add a method that `register` has checked, or replace one of the same name."""
        self._registered[algorithm.name] = algorithm


ALGORITHMS = _Methods()


def register(algorithm: type[Algorithm]) -> type[Algorithm]:
    """Register a method of your own, so that `algorithm.name = "…"` can choose it. Also a decorator.

    Args:
        algorithm: A subclass of `privsgp.algorithms.algorithm.Algorithm` with a `name` in small letters.

    Returns:
        The class itself.

    Raises:
        Refused: If it is no such class, its name is taken, or one of its options has no meaning.

    Guarantee: as for the built-in methods: noise is calibrated for the declared mechanism, and a mechanism that the
    accountant does not know is refused.
    Assumes: the mechanism is true for the method's messages, as `Algorithm.mechanism` says.

    Example:
        >>> import privsgp
        >>> from privsgp.algorithms import PrivSGP
        >>> @privsgp.register
        ... class Half(PrivSGP):
        ...     name = "half"
        ...     def direction(self, z, batch):
        ...         return super().direction(z, batch) / 2
        >>> privsgp.Algorithm(name="half", steps=10).name
        'half'

    """
    name = getattr(algorithm, "name", "")
    if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm) and re.fullmatch(r"[a-z][\w-]*", name)):
        raise Refused(f"register({algorithm!r}): no subclass of Algorithm", "pass one whose `name` is in small letters")
    if _taken(name, algorithm):
        raise Refused(f"the name {name!r} belongs to an installed algorithm", "give your class another `name`")
    if not inspect.isgeneratorfunction(algorithm.step):
        raise Refused(f"{name!r}: its `step` is no generator", "yield Release and Exchange (docs/howto/algorithm.md)")
    if bare := [key for key, field in algorithm.Options.model_fields.items() if not field.description]:
        raise Refused(f"algorithm.{bare[0]} has no description", "declare it with option(default, meaning)")
    ALGORITHMS.add(algorithm)
    return algorithm


def _taken(name: str, algorithm: type[Algorithm]) -> bool:
    """Whether the name is that of another method, of privsgp's own or of an installed package."""
    if name in _OWN:
        return algorithm is not _OWN[name]
    entry = plugins.offered(plugins.ALGORITHMS).get(name)
    return entry is not None and entry.value.split(".")[0].split(":")[0] != algorithm.__module__.split(".")[0]
