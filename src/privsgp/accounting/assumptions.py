"""In words, what an ε rests on: `privsgp account` and `privsgp calibrate` show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privsgp.accounting import renyi_bound
from privsgp.accounting.compound import Anchored, Continued, PersonLevel, Shared, Summed
from privsgp.accounting.mechanisms import Gaussian, Release, Sag, Saga, Unprotected

if TYPE_CHECKING:
    from privsgp.accounting.mechanisms import Mechanism, Relation


def assumptions(mechanism: Mechanism, steps: int, relation: Relation) -> list[str]:
    """Return in words what the ε of a run of so many releases rests on."""
    neighbours = "is zeroed out" if relation == "zero-out" else "is replaced by any other"
    unit, many = "one sample", "samples"
    if (person := mechanism.person) is not None:
        unit, many = person.unit, "persons"
    words = [
        f"neighbours differ in {unit} of this node, which {neighbours}; the number of {many} is public",
        f"{steps} releases with fresh noise of standard deviation {mechanism.sigma:.10g} per coordinate, and no others",
        "clip, batch, noise and number of releases were fixed before the run",
        *_of(mechanism),
    ]
    pairs = renyi_bound.in_pairs(mechanism, relation)
    if pairs:
        words.append("replace-one follows from zero-out by group privacy: 2ε and (1 + e^ε) δ")
    if renyi_bound.in_a_row(mechanism, relation) > 1 + pairs:
        words.append("several sites that share noise follow from one by group privacy: s ε and (1 + e^ε + …) δ")
    return words


def _of(mechanism: Mechanism) -> list[str]:
    """Return what a mechanism rests on: a wrapper adds to its base's words."""
    match mechanism:
        case Unprotected():
            return ["nothing is clipped and no noise is added: there is no guarantee"]
        case Saga() if mechanism.difference_scale < 1:
            weight = f"differences from the table have the weight θ = {mechanism.difference_scale:.6g} in a message"
            return [*_release(mechanism), weight]
        case Anchored():
            return [*_release(mechanism), *_anchored(mechanism)]
        case Release():
            return _release(mechanism)
        case Shared():
            who = f"noise is shared with {mechanism.partners} nodes: ε holds as long as {mechanism.honest} nodes"
            what = "are honest and have no other use for what they share, whatever all others do together"
            more = [f"{who}, this one included, {what}; it is computational (X25519, ChaCha20)"]
        case Summed():
            summed = f"only the sum of {mechanism.nodes} nodes' messages is seen (secure aggregation)"
            more = [f"{summed}: each of them adds this noise, and none tells others what it added"]
        case Continued():
            earlier = ((count, _noise_of(one)) for one, count in mechanism.earlier)
            more = [f"{count} releases of an earlier run count as well: {noise}" for count, noise in earlier]
        case PersonLevel():
            more = [f"a sample is a person: the mean of the gradients of up to {mechanism.rows} rows is clipped as one"]
            if mechanism.sites > 1:
                more += [
                    f"a person has rows at up to {mechanism.sites} sites, and the noise of each is as counted here"
                ]
        case _:
            raise TypeError(f"no words are known for {type(mechanism).__name__}")
    return [*_of(mechanism.base), *more]


def _release(release: Release) -> list[str]:
    """Say how gradients are clipped, how samples are drawn, and how noise is computed."""
    slack = "; sums are taken as exact (κ = 0), where a run counts what its arithmetic may be off by"
    if release.kappa:
        slack = f", and counted as {release.radius:.10g}: arithmetic may be off by κ = {release.kappa:.3g}"
    noise = "noise is taken as ideal, where a run counts what its sampler in float64 costs"
    if release.coordinates:
        noise = f"noise of {release.coordinates:,} coordinates is computed in float64 and rounded to a grid: counted"
    return [f"each sample's gradient is clipped to norm {release.clip:.10g} as a whole{slack}", _drawn(release), noise]


def _drawn(release: Release) -> str:
    if isinstance(release, Gaussian):
        mean = "the mean of the updated table" if isinstance(release, Sag) else "a mean over all samples"
        return f"every release is {mean}: it does not matter how samples are drawn"
    if release.sampling == "fixed":
        return "batches of fixed size: counted without amplification, as if the sample were drawn every time"
    return (
        f"every sample is drawn by its own secret coin with probability {release.rate:.6g}; "
        f"sums are divided by the constant {release.batch:g}"
    )


def _anchored(release: Anchored) -> list[str]:
    """Say which releases are anchors, and how many may be made again."""
    turn = "the first release" if release.period is None else f"the first of every {release.period} releases"
    mean = f"is a mean over {release.anchor.batch:g} samples with noise {release.anchor.sigma:g}"
    again = f"up to {release.spare} steps made again after a crash, each counted as both kinds of release"
    return [f"{turn} {mean}; the others are differences", *([again] if release.spare else [])]


def _noise_of(earlier: Mechanism) -> str:
    """Return in words how much noise an earlier run had."""
    noise = f"noise of standard deviation {earlier.sigma:.10g}"
    return noise if earlier.shared is None else f"{noise}, if {earlier.shared.honest} of its nodes were honest"
