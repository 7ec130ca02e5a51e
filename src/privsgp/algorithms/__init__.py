"""One file per family of algorithms; each reads like its pseudo-code and declares what one of its messages reveals."""

import functools
import inspect
import re
from importlib.metadata import entry_points

from privsgp.algorithms.algorithm import Algorithm
from privsgp.algorithms.anchors import DPSRM, LDPSPIDER, LDPSVRG
from privsgp.algorithms.async_gossip import ADP2SGD, ADPSGD
from privsgp.algorithms.block import Block, Drawn, Execution, Randomness, Settings, State
from privsgp.algorithms.events import Event, Exchange, Meet, Pushed, Release, Step, ToServer
from privsgp.algorithms.gossip import DP2SGD, DPSGD
from privsgp.algorithms.push_sum import SGP, PrivSGP, PushSum
from privsgp.algorithms.saga import PrivSGPSAG, PrivSGPVR
from privsgp.algorithms.single import CentralDPSGD, Local
from privsgp.algorithms.soteriafl import SoteriaFLSAGA, SoteriaFLSGD, SoteriaFLSVRG
from privsgp.algorithms.update_rule import UpdateRule
from privsgp.errors import Refused

_BUILT_IN: tuple[type[Algorithm], ...] = (
    *(SGP, PrivSGP, PrivSGPVR, PrivSGPSAG),
    *(DPSGD, DP2SGD, ADPSGD, ADP2SGD),
    *(DPSRM, LDPSVRG, LDPSPIDER, SoteriaFLSGD, SoteriaFLSVRG, SoteriaFLSAGA),
    *(CentralDPSGD, Local),
)
ALGORITHMS: dict[str, type[Algorithm]] = {a.name: a for a in _BUILT_IN}


def register(algorithm: type[Algorithm]) -> type[Algorithm]:
    """Let `algorithm.name = "…"` choose a method of your own; also as a decorator.

    Guarantee: it is held to what the built-in ones are: noise is calibrated for the mechanism that it declares, and a
    mechanism that the accountant does not know is refused.
    Assumes: the mechanism is true of what its messages reveal, as `Algorithm.mechanism` says.
    """
    name = getattr(algorithm, "name", "")
    if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm) and re.fullmatch(r"[a-z][\w-]*", name)):
        raise Refused(f"register({algorithm!r})", "hand in a subclass of Algorithm with a `name` in small letters")
    if ALGORITHMS.get(name, algorithm) is not algorithm and name in {a.name for a in _BUILT_IN}:
        raise Refused(f"an algorithm of your own called {name!r}", "take a name that no built-in algorithm has")
    if not inspect.isgeneratorfunction(algorithm.step):
        raise Refused(f"{name!r}: its `step` is no generator", "yield Release and Exchange (docs/howto/algorithm.md)")
    if bare := [key for key, field in algorithm.Options.model_fields.items() if not field.description]:
        raise Refused(f"algorithm.{bare[0]} without a meaning", "declare it with option(default, meaning)")
    ALGORITHMS[name] = algorithm
    return algorithm


@functools.cache
def load_plugins() -> None:
    """Register what installed packages offer under the entry point `privsgp.algorithms`, once."""
    for entry in entry_points(group="privsgp.algorithms"):
        try:
            register(entry.load())
        except (ImportError, AttributeError) as error:
            raise Refused(
                f"the algorithm {entry.name!r} of an installed package, {entry.value}: {error}",
                "mend that package, or uninstall it",
            ) from error


__all__ = [
    "ALGORITHMS", "Algorithm", "Block", "Drawn", "Event", "Exchange", "Execution", "Meet", "PrivSGP", "PushSum",
    "Pushed", "Randomness", "Release", "Settings", "State", "Step", "ToServer", "UpdateRule", "load_plugins",
    "register",
]  # fmt: skip
