"""The sections of run.toml as dictionaries with types, for editors and mypy. Made by `make typed`.

Every key of every component is in its section; which of them go together is checked when they are used.
"""
# ruff: noqa: E501, PYI030, PYI051
# fmt: off

from __future__ import annotations

from typing import Literal, TypedDict


class Schedule(TypedDict, total=False):
    """A step size that falls from `start` to `end` over the run, or over what is left after a share `hold` of it."""

    schedule: Literal['cosine', 'linear']  # how it falls
    start: float  # γ at the first step
    end: float  # γ at the last step
    hold: float  # share of the steps before it begins to fall


class ImagesSection(TypedDict, total=False):
    """Folders of class folders with PNG and JPEG images."""

    labels: list[str]  # names of the class folders, in the order of their numbers, public
    size: int | None  # pixels a side that images are brought to; left out: all have one size already
    grey: bool  # one channel instead of three


class TextSection(TypedDict, total=False):
    """Texts with a class each: .jsonl, .csv or .tsv."""

    column: str  # the key or column that holds the text
    label: str  # the one that holds the class: a number, or one of labels
    labels: list[str] | None  # names of the classes, in the order of their numbers, public
    tokens: Literal['hashed', 'wordllama']  # words by their hashes, or the sub-words of the wordllama package, for features of that name
    vocabulary: int  # hashed tokens there are, 0 for nothing among them
    length: int  # tokens of a text; longer ones are cut, shorter ones filled up


class FeaturesSection(TypedDict, total=False):
    """What the model sees of a sample: the sample, or a fixed map of it."""

    name: str  # the map
    like: Literal['strokes', 'leaves'] | None  # made-up images that whitening is measured on; left out: no whitening
    components: int | None  # directions that whitening keeps; left out: 512
    power: float | None  # how far whitening brings directions to one scale; left out: 1
    mirror: bool | None  # an image and its mirror image have the same features
    views: Literal['mirror', 'shifts'] | None  # views of a sample, averaged before its clip
    scales: int | None  # octaves of wavelets; left out: 2
    angles: int | None  # directions of wavelets; left out: 8
    order: Literal[1, 2] | None  # how often a modulus is taken; left out: 2
    filters: int | None  # how many; left out: 256
    patch: int | None  # their width in pixels; left out: 6
    grid: int | None  # cells a side that responses are averaged over; left out: 4
    size: int | None  # pixels a side that images are brought to; left out: what the network was trained on, 224, 240 or 260


class GraphSection(TypedDict, total=False):
    """Who talks to whom."""

    name: str  # the network
    degree: int  # how many receivers a node picks at each step


class PrivacySection(TypedDict, total=False):
    """Budgets, or fixed noise; one value, or a list with one per node."""

    epsilon: float | list[float] | None  # ε_i: the budget that noise is calibrated for
    delta: float | list[float]  # δ_i; below 1/J_i
    sigma: float | list[float] | None  # σ_i instead of a budget: ε is then reported
    clip: float  # G: the largest norm of one sample's gradient
    accountant: Literal['certified', 'published']  # who turns ε into σ; ε is always certified
    relation: Literal['zero-out', 'replace-one']  # which data sets count as neighbours
    c2: float  # c₂ of the published formula
    spare: float  # share of K that may be made again after crashes
    noise: str  # each node's own; pairwise: shared by pairs of nodes, it cancels in the average
    honest: int | None  # h: of all nodes so many are honest, oneself included; left out: three quarters of them, rounded up
    pair_ratio: float  # ρ: more noise in each message for less in the average; D + h s² = ρσ²
    pair_degree: int | None  # with how many others a node shares noise, on a public graph; left out: with all


class AlgorithmSection(TypedDict, total=False):
    """How it is learnt; name, batch, steps, step_size and weights may be "auto", which leaves them to the planner."""

    average: Literal['none', 'tail', 'exponential']  # of iterates: the model that is released
    average_share: float | None  # share of the steps, from the end, of a tail average; left out: 0.5
    average_decay: float | None  # d of an exponential average, d^age; left out: 0.99
    final_mixing: int  # rounds of mixing without gradients at the end
    weights: Literal['equal', 'samples', 'noise'] | list[float] | Literal['auto']  # how much a node counts: all alike, by J_i, by 1/σ_i² (pairwise: 1/σ_i), or a list with one number per node
    momentum: float  # β of v ← β v + (1 − β) g
    unit_steps: bool  # noised directions are brought to length 1
    name: str | Literal['auto']  # the method
    batch: float | Literal['auto']  # b: expected samples a step, at the mean size; node i draws with q = b/J̄
    steps: int | Literal['auto']  # K
    step_size: float | Literal['theory'] | Schedule | Literal['auto']  # γ; theory: √(n/K)
    sampling: Literal['poisson', 'fixed']  # a coin a sample, or batches of one size
    trust: Literal['per-node', 'secure aggregation', 'curator', 'honest sites'] | None  # what an adversary sees; left out: the method's own
    table: Literal['factored', 'dense']  # what is kept of a gradient: its factors, or all of it
    table_init: Literal['gradients', 'zeros']  # the entries at the start: gradients at x⁰, or 0
    table_dtype: Literal['float32', 'bfloat16'] | None  # precision of entries; left out: engine.dtype
    difference_clip: float | None  # C: clips each g_j − t_j; left out: G beside auto where a table is no larger for it, else 2G, no clip
    difference_scale: float | Literal['auto']  # θ: the weight of differences; 1 is the paper's; auto: the largest that costs hardly any noise
    anchor_batch: float | None  # expected samples of an anchor, at the mean size; left out: all
    anchor_noise: float  # an anchor's noise, in units of σ
    alpha: float  # α: the share of the plain gradient; 1 is DP-SGD
    period: int  # steps from one anchor to the next
    compressor: Literal['none', 'random-k', 'quantisation']  # how a message is made shorter
    kept: float | None  # share of the coordinates that random-k sends; left out: 0.05
    levels: int | None  # levels of quantisation on either side of 0; left out: 16
    shift_rate: float | None  # γ_s; left out: as in SoteriaFL's code
    anchor_probability: float | None  # how likely a step renews the anchor; left out: b/J


class ClockSection(TypedDict, total=False):
    """The virtual clock: seconds that a gradient and a message take. It changes models of asynchronous methods only."""

    compute: Literal['constant', 'exponential', 'lognormal']  # how a gradient's time is distributed
    mean: float  # seconds that a gradient takes
    spread: float | None  # standard deviation / mean of lognormal times
    latency: float  # seconds that a message takes, however short
    bandwidth: float | None  # bytes a second; left out: no limit
    stragglers: float | list[int]  # slow nodes: a fraction of them, or a list of their numbers
    slowdown: float  # how much slower they are


class PlanSection(TypedDict, total=False):
    """What a plan may look at."""

    data: str  # synthetic stand-ins, or public data (a name or a file)


class EngineSection(TypedDict, total=False):
    """Where and how it runs; only `dtype` changes the numbers."""

    device: str  # cpu, cuda, cuda:1, …; auto: a GPU where there is one
    dtype: Literal['float32', 'float64']  # the precision of models and gradients
    evaluate_every: int | None  # steps between evaluations; left out: ten in a run
    checkpoint_every: int | None  # steps between checkpoints; 0: never, in simulations; left out: as the spare allows
