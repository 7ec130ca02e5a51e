"""Words for an end that cannot be caught: a C++ library that meets what it did not expect in a thread of its own.

Gloo reads messages there, and one that is longer than the memory it was given ends the process (its memory is safe).
What was paid for is in the ledgers by then; here the process only learns to say why, and to leave as a refusal does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_HANDLER = ctypes.CFUNCTYPE(None)
_kept: list[object] = []  # what C++ calls must not be collected


def ending_with_words(library: str, what: str) -> None:
    """Let an exception of a library that nobody catches end this process with status 2 and say what was met."""
    with contextlib.suppress(OSError, AttributeError):  # another C++ runtime: it ends without words, as it did
        runtime = ctypes.CDLL("libstdc++.so.6")
        kind = runtime["__cxa_current_exception_type"]
        kind.restype = ctypes.c_void_p
        install = runtime["_ZSt13set_terminatePFvvE"]  # std::set_terminate
        install.argtypes, install.restype = [_HANDLER], ctypes.c_void_p

        def end() -> None:
            if library in _name(kind()):
                remedy = "ask the other sites which program runs there, and start again"
                os.write(2, f"privsgp: {what}\n  → {remedy}\n".encode())
                os._exit(2)
            before()

        handler = _HANDLER(end)
        before = ctypes.cast(install(handler), _HANDLER)
        _kept.extend([handler, before])


def _name(kind: int | None) -> str:
    """Return the name of a C++ type: a std::type_info holds a pointer to it after that to its own methods."""
    if not kind:
        return ""
    return (ctypes.c_char_p.from_address(kind + ctypes.sizeof(ctypes.c_void_p)).value or b"").decode()
