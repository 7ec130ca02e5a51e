"""Imports that wait until something is used: a refusal need not wait for torch, which takes seconds."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def names(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package; `where` has the module of each name that it offers."""

    def find(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{where[name]}"), name)

    return find


class _Later(ModuleType):
    """Stands for a package and imports it when something in it is first used."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
        if name.startswith("__"):  # the import of a package inside this one must fail: it would run twice
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found


@contextlib.contextmanager
def package(name: str) -> Iterator[None]:
    """Let modules that are imported inside do without a package until they use something of it.

    It is in `sys.modules` no longer than that: SciPy looks there for torch, and would import it.
    """
    if name in sys.modules:
        yield
        return
    found = sys.modules[name] = _Later(name)
    try:
        yield
    finally:
        if sys.modules.get(name) is found:
            del sys.modules[name]
