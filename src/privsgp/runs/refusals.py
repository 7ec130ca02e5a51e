"""The words of a refused run.toml: the key, its value, and what would be right. Keys that are gone are here too."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, get_args

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

    from privsgp.options import Section

AUTO = ("steps", "step_size", "batch")  # of [algorithm]: what can be left to the planner
CLIP = "privacy.clip"  # which can be left to it too
MAY_BE_AUTO = (*(f"algorithm.{key}" for key in AUTO), CLIP)


def close(value: str, known: Collection[str]) -> str:
    """Return a question about the known name that is close to this value; nothing if none is."""
    found = difflib.get_close_matches(value, list(known), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def refusal(
    error: ValidationError, kind: type[BaseModel], values: dict[str, Any], sections: Mapping[str, Section]
) -> Refused:
    """Put pydantic's findings into our words: key, value, what would be right."""
    found: dict[str, list[str]] = {}
    errors = error.errors(include_url=False)
    unknown = [e for e in errors if e["loc"] in [(name, s.key) for name, s in sections.items()]]
    errors_here = unknown or errors  # of a component that nobody knows, nobody knows the keys
    for e in [e for e in errors_here if not _off_the_point(e)] or errors_here:
        what, remedy = _what_and_remedy(e, kind, values, sections)
        found.setdefault(what, []).append(remedy)
    for what in found.keys() & {f"{key} = {e['input']!r}" for e in errors for key in MAY_BE_AUTO}:
        found[what].append("'auto', which leaves it to the planner")
    return Refused("\n".join(found), "\n  → ".join(" or ".join(remedies) for remedies in found.values()))


def _off_the_point(e: ErrorDetails) -> bool:
    """If a key allows a number or a list, pydantic complains about both: keep the error for the given kind."""
    compound = e["type"] in ("list_type", "model_type")
    optional = len(e["loc"]) > 2 and (compound or e["type"] in ("float_type", "int_type", "literal_error"))
    return optional and isinstance(e["input"], list | dict) != compound


def _what_and_remedy(
    e: ErrorDetails, kind: type[BaseModel], values: dict[str, Any], sections: Mapping[str, Section]
) -> tuple[str, str]:
    """Return the key with its value, and the remedy, of one finding."""
    cause = e.get("ctx", {}).get("error")
    if isinstance(cause, Refused):
        return cause.what, cause.remedy
    *path, last = e["loc"]
    if e["type"] == "extra_forbidden":
        return _unknown([*_named(path), str(last)], e["input"], kind, values, sections)
    if e["type"] == "missing":
        return f"{'.'.join(_named(path))} without {last}", f"give {last}"
    message = e["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    message = re.sub("a valid dictionary or instance of .*", "a section with keys of its own", message)
    return f"{'.'.join(_named(e['loc']))} = {e['input']!r}", message


def _named(location: Sequence[int | str]) -> list[str]:
    """Leave out pydantic's names of the types it tried: int, list[constrained-float], …"""
    tried = ("float", "int")
    return [str(p) for p in location if isinstance(p, int) or (p.isidentifier() and p not in tried)]


def _unknown(
    path: list[str], value: object, kind: type[BaseModel], values: dict[str, Any], sections: Mapping[str, Section]
) -> tuple[str, str]:
    """Say of a key that has no use here which component has one, what to do without it, or which keys there are."""
    *parents, last = path
    key, what = ".".join(path), f"{'.'.join(path)} = {value!r}"
    if key in GONE:
        return what, GONE[key][0]
    section = sections.get(".".join(parents))
    users = [] if section is None else [n for n in section.components if last in section.options(n).model_fields]
    if section is not None and users:
        where = f"{parents[0]}.{section.key} = {section.chosen(values.get(parents[0]))!r}"
        return f"{what} with {where}", f"leave it out, or take {' or '.join(map(repr, users))}"
    found: Any = kind
    for name in parents:
        kinds = found.model_fields[name].annotation  # a section, or a union with one and None
        found = next(one for one in (kinds, *get_args(kinds)) if hasattr(one, "model_fields"))
    known = list(found.model_fields)
    return f"unknown key {what}", f"known keys here: {', '.join(known)}{close(last, known)}"


# Keys that are gone: what to do, and the value that each had without an effect, which older run folders hold.
GONE: dict[str, tuple[str, Any]] = {
    "privacy.clip_what": ("leave it out: each record's gradient is clipped, always", None),
    "privacy.c2": ("leave it out: it is 0.3724, which gives the paper's own K*", 0.3724),
    "privacy.noise_schedule": ("leave it out: all steps have the same noise", "constant"),
    "privacy.noise_curvature": ("leave it out: all steps have the same noise", 0.0),
    "privacy.pair_degree": ("leave it out: all pairs of nodes share noise", None),
    "features.angles": ("leave it out: scattering has 8 directions", None),
    "features.order": ("leave it out: scattering is of order 2", None),
    "features.scales": ("leave it out: scattering has 2 octaves", 2),
    "features.views": ("leave it out: a model sees each sample once; features.mirror makes mirror images alike", None),
    "algorithm.levels": ("leave it out: algorithm.kept = 0.05 makes messages shorter", None),
    "algorithm.anchor_batch": ("leave it out: an anchor is the mean of all records", None),
    "algorithm.anchor_noise": ("leave it out: an anchor has the noise of every message", 1.0),
    "algorithm.shift_rate": ("leave it out: it is that of SoteriaFL's code", None),
    "algorithm.anchor_probability": ("leave it out: it is b/J", None),
    "algorithm.compressor": ("leave it out: algorithm.kept = 0.05 makes messages shorter", "none"),
    "algorithm.block": ("leave it out: each sample has its own entry; 'privsgp' keeps no table", None),
    "algorithm.sampling": ("leave it out: each sample is drawn by its own coin", "poisson"),
    "algorithm.unit_steps": ("leave it out: algorithm.step_size and privacy.clip set the length of a step", False),
    "algorithm.average_decay": ("leave it out: algorithm.average = 'tail' averages the last steps", None),
    "algorithm.table_place": (
        "leave it out: privsgp puts a table on the device, or in memory if it has no room",
        "auto",
    ),
    "clock.compute": ("leave it out: clock.spread above 0 makes times log-normal, and 0 constant", "constant"),
    "clock.mean": ("leave it out: a gradient takes 1 on average; give clock.latency in that unit", 1.0),
    "clock.bandwidth": ("leave it out: clock.latency is what a message takes", None),
    "plan.may_spend": ("leave it out: a plan never looks at the nodes' own data", False),
    "plan.evaluations": ("leave it out: a node evaluates algorithm.batch × algorithm.steps gradients", None),
}
