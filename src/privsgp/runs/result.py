"""A finished run for its users: the model, predictions and metrics.

Only the files of a finished run are read, and every model in them is released: its use is post-processing, and costs no
privacy. Nothing is unpickled. The one exception is training: without a seed, `privsgp.train` refuses to start from such
a model.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from privsgp import curves, devices, models
from privsgp import features as maps
from privsgp import metrics as measures
from privsgp.data.samples import is_dataset, pair, plain
from privsgp.data.tables import as_number
from privsgp.engine.folder import Folder, read_metrics
from privsgp.engine.formats import Calibrated, Evaluated, Summary
from privsgp.errors import Refused
from privsgp.features.maps import make_encoder
from privsgp.files import read_json, write_json
from privsgp.gradients import Layout
from privsgp.runs import card as cards
from privsgp.runs import charts, views
from privsgp.runs.rows import checked, encoded_rows, labelled_rows, labels, refuse_records, schema_of, times_of, unit_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from privsgp.models import Shape
    from privsgp.runs.views import RunView

    Samples = Any  # arrays, tensors, a data frame, a torch Dataset, or the path of a file

_CHUNK = 256
CALIBRATION = "calibration.json"
EVALUATION = "evaluation.json"  # of a private evaluation
MARK = "privsgp_run"  # the attribute of a module that names the run which it comes from


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run: its model, numbers and folder. `privsgp.train` and `privsgp.load` return it.

    Args:
        summary: The content of summary.json.
        metrics: One dictionary for each evaluation during the run.
        model: The average model, in evaluation mode. It includes the feature map, if there is one.
        nodes: The weights of each node's own model, a row per node.
        folder: The run folder.
        card: Shapes, classes, loss and privacy, as in the metadata of the model's file.

    Example:
        After the example of `privsgp.train`:

        >>> import numpy as np, torch, privsgp
        >>> result = privsgp.load("runs/example", model=torch.nn.Linear(4, 2))
        >>> result.predict(np.array([[2, 0, 0, 0], [-2, 0, 0, 0]], dtype=np.float32))
        array([1, 0])
        >>> max(result.summary["epsilon_spent"]) <= 3.0
        True

    """

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    model: nn.Module
    nodes: Tensor
    folder: Path
    card: dict[str, Any] = field(default_factory=dict)

    def outputs(self, x: Samples) -> Tensor:
        """Return the outputs of the model.

        Args:
            x: Samples [N, …] in any form that `privsgp.train` accepts, or the path of a file in the form of the run.

        Returns:
            The outputs [N, …], before any probability or class.

        Raises:
            Refused: If the samples do not have the form of the run's.

        """
        named = isinstance(x, str | Path)
        rows = torch.from_numpy(encoded_rows(Path(x), self.card) if named else checked(x, self.card))
        first = next(self.model.parameters())
        kind = first.dtype if rows.is_floating_point() else rows.dtype  # tokens stay whole
        still = self.model.eval()
        with torch.no_grad():
            return torch.cat([still(part.to(first.device, kind)).cpu() for part in torch.split(rows, _CHUNK)])

    def predict(self, x: Samples) -> NDArray[Any]:
        """Return the class of each sample, its values in the unit of the table, or its survival curve.

        Args:
            x: Samples, as for `outputs`.

        Returns:
            Classes [N], values, or probabilities to survive each bin [N, bins]. For a loss of your own it returns
            the outputs.

        Raises:
            Refused: If the samples do not have the form of the run's.

        """
        outputs, loss = self.outputs(x), self.card["loss"]
        if loss == "mse":
            values = measures.in_unit(outputs, unit_of(self.card))
            return (values if self.card["target_shape"] else values[:, 0]).numpy()
        if loss == "survival":
            return curves.predicted(outputs.numpy())
        if loss is None:
            return outputs.numpy()
        return self.calibration.classes(self._probabilities(outputs))

    def predict_proba(self, x: Samples) -> NDArray[np.float64]:
        """Return the probability of each class.

        Args:
            x: Samples, as for `outputs`.

        Returns:
            Probabilities [N, k], calibrated if `calibrate` was called for this run.

        Raises:
            Refused: If the outputs are not classes, or the samples do not have the form of the run's.

        """
        if self.card["loss"] not in ("cross-entropy", "binary"):
            raise Refused(f"no probabilities: the loss is {self.card['loss']!r}", "take predict(x) or outputs(x)")
        return self._probabilities(self.outputs(x))

    def _probabilities(self, outputs: Tensor) -> NDArray[np.float64]:
        return self.calibration.probabilities(outputs.double().numpy(), self.card["loss"])

    @functools.cached_property
    def calibration(self) -> measures.Calibration:
        """How outputs become probabilities and classes: by the weights of classes, and by calibration.json."""
        path, weights = self.folder / CALIBRATION, self.card.get("class_weights")
        found = read_json(path, Calibrated) if path.exists() else Calibrated().model_dump()
        known = {key: found[key] for key in ("slope", "shift", "threshold")}
        return measures.Calibration(None if weights is None else tuple(weights), **known)

    def calibrate(
        self, data: tuple[Samples, ArrayLike] | Samples, threshold_for: str = "", *, fit: bool = True
    ) -> None:
        """Fit probabilities, or choose a threshold; calibration.json of the run's folder keeps them.

        The probabilities of two classes get a shift and a slope (Platt).

        Args:
            data: Public samples with targets, as for `evaluate`; or the path of the evaluation.json of a private
                evaluation. Its noised counts are released, so using them again costs no privacy.
            threshold_for: "sensitivity=0.9" or "specificity=0.9", for two classes; "" for none. From an
                evaluation.json, the threshold is an edge of its bins.
            fit: Whether to fit probabilities; else only the threshold is chosen.

        Raises:
            Refused: If the samples are records of a private run that the budget book knows, or cannot be fitted.

        """
        if self.card["classes"] != 2:
            raise Refused(
                f"calibration needs 2 classes, and the model has {self.card['classes'] or 'no'}",
                "use a model of two classes",
            )
        aim, least = _aim(threshold_for)
        if isinstance(data, str | Path) and Path(data).name == EVALUATION:
            made, count, threshold = self._by_counts(Path(data), aim, least, fit=fit)
        else:
            made, count, threshold = self._by_samples(data, aim, least, fit=fit)
        written = {"version": 1, "samples": count, "slope": made.slope, "shift": made.shift}
        write_json(
            self.folder / CALIBRATION, written | {"threshold": threshold, "threshold_for": threshold_for or None}
        )
        self.__dict__.pop("calibration", None)

    def _by_samples(
        self, data: Samples, aim: str, least: float, *, fit: bool
    ) -> tuple[measures.Calibration, int, float | None]:
        """Return slope and shift by public samples, their number, and a threshold."""
        x, given = self._measured(data, every=True)
        outputs, y = self.outputs(x).double().numpy(), labels(given, self.card)
        made = dataclasses.replace(self.calibration, threshold=None)
        if fit:
            made = made.then(*_fitted(made.probabilities(outputs, self.card["loss"])[:, 1], y))
        if not aim:
            return made, len(y), None
        if not (y == (aim == "sensitivity")).any():
            raise Refused(f"no sample decides the {aim}", "take public samples of both classes")
        p = made.probabilities(outputs, self.card["loss"])[:, 1]
        return made, len(y), measures.threshold_for(p, y, aim, least)

    def _by_counts(
        self, path: Path, aim: str, least: float, *, fit: bool
    ) -> tuple[measures.Calibration, int, float | None]:
        """Return the same by the noised counts of a private evaluation of this model."""
        found = read_json(path, Evaluated)
        own = best_model(Folder(self.folder), self.summary)
        if found["model"] != digest(own) or (histogram := found.get("histogram")) is None:
            remedy = "evaluate this run first: privsgp evaluate RUN run.toml --private"
            raise Refused(f"{path} is no private evaluation of {own}", remedy)
        edges, counts = np.array(histogram["edges"]), np.array(histogram["counts"])
        made = measures.Calibration(self.calibration.weights)
        shift, slope = 0.0, 1.0
        if fit and (counts.sum(1) > 0).all():
            middle, known = np.tile((edges[:-1] + edges[1:]) / 2, 2), np.repeat([0, 1], len(edges) - 1)
            shift, slope = _fitted(middle, known, counts.ravel())
        if slope <= 0 or (counts.sum(1) <= 0).any():
            raise Refused(f"{path}: the noise hides the classes", "evaluate on more records, or with a larger ε")
        threshold = measures.edge_for(edges, counts, aim, least) if aim else None
        if threshold is not None and 0 < threshold < 1:
            threshold = 1 / (1 + math.exp(-shift) * (1 / threshold - 1) ** slope)
        return made.then(shift, slope), sum(found["held_out"]), threshold

    def evaluate(self, data: tuple[Samples, ArrayLike] | Samples) -> dict[str, Any]:
        """Return metrics on samples and their targets. It writes nothing.

        Args:
            data: `(x, y)`, a torch `Dataset` of such pairs, or the path of a file in the form of the run. Targets that
                are numbers have the unit of `predict(x)`.

        Returns:
            Metrics by their names in summary.json.

        Raises:
            Refused: If the samples are records of this private run and its private/ is here, or do not fit the model.

        Guarantee: none. No ε covers a metric: show it only to people who may see the records. A choice of settings by
        metrics on training records would spend privacy that nothing counts.
        Assumes: (x, y) are public, or stay with their owner.

        """
        x, y = self._measured(data)
        outputs, targets = self.outputs(x), torch.from_numpy(labels(y, self.card))
        if len(outputs) != len(targets):
            raise Refused(f"{len(outputs)} samples and {len(targets)} targets", "give one target to each sample")
        if self.card["loss"] == "mse":
            outputs = measures.in_unit(outputs, unit_of(self.card))
        measure = measures.Measure(
            self.card["loss"], self.card["classes"], calibration=self.calibration, times=times_of(self.card)
        )
        return measure(outputs, targets)

    def export(self, path: str | Path) -> None:
        """Write the model, with its feature map, as an ONNX file that takes any number of samples.

        Args:
            path: The file, for example "model.onnx". Its input is called `x`, its output `outputs`.

        Raises:
            Refused: If the packages onnx and onnxscript are not installed, or torch cannot export the model.

        """
        sample = torch.zeros(2, *self.card["input_shape"])
        kind = next(self.model.parameters()).dtype if self.card.get("vocabulary") is None else torch.int64
        dynamic = ({0: torch.export.Dim("samples")},)
        try:
            torch.onnx.export(
                self.model.eval().cpu(), (sample.to(kind),), str(path), input_names=["x"], output_names=["outputs"],
                dynamic_shapes=dynamic, dynamo=True, external_data=False, verbose=False,
            )  # fmt: skip
        except ImportError as error:  # 43 MB with what they need: too much for all users
            raise Refused(f"export needs a package: {error}", "pip install onnx onnxscript") from error
        except torch.onnx.OnnxExporterError as error:
            what = f"torch cannot export {type(self.model).__name__}: {str(error).strip()[:200]}"
            raise Refused(what, "use predict, or the safetensors file") from error

    def _measured(self, data: Any, *, every: bool = False) -> tuple[Any, Any]:  # noqa: ANN401 - any
        """Return samples and targets; refuse records of this private run, or of `every` one."""
        if isinstance(data, str | Path):
            what, (x, y) = str(data), labelled_rows(Path(data), self.card)
            y = measures.in_unit(torch.from_numpy(y), unit_of(self.card)).numpy()
        elif is_dataset(data):
            what, (x, y) = "data", pair(data)[:2]
        elif isinstance(data, tuple | list) and len(data) == 2:
            what, x, y = "data", data[0], plain(data[1], "y")
        else:
            raise Refused(f"data is a {type(data).__name__}", "give (x, y), a torch Dataset, or the path of a file")
        refuse_records(self.folder, what, self.card, checked(x, self.card), every=every)
        return x, y

    def shapes(self) -> list[Shape]:
        """Return what each column adds to the score of an additive model, and how far noise may have moved it.

        Returns:
            A `privsgp.models.Shape` for each column, then for each pair of columns. Scores are log odds of the second
            class, or have the unit of the table.

        Raises:
            Refused: If the model is not additive.

        """
        kind = self.card["model"]
        if kind["name"] != "additive":
            raise Refused(f"model.name = {kind['name']!r} has no shapes", 'train [model] name = "additive"')
        weight, noise = self.model[1].weight.detach().cpu(), self.summary.get("weight_noise")  # type: ignore[index]
        return models.shapes(schema_of(self.card), kind["bins"], kind["pairs"], weight, noise)

    @property
    def view(self) -> RunView:
        """The run as a terminal, a notebook or the model card shows it."""
        return views.of(self.summary, self.folder, self.metrics)

    def __repr__(self) -> str:
        """Return the rows that a terminal shows."""
        return "\n".join([self.summary["name"], *(f"  {label}: {value}" for label, value in self.view.facts)])

    def _repr_html_(self) -> str:
        """Return the table and the charts that a notebook shows."""
        shapes = self.shapes() if self.card["model"]["name"] == "additive" else []
        drawn, view = [*charts.figures(self.view), *map(charts.forest, shapes)], self.view
        page = charts.TEMPLATES.get_template("notebook.html")
        return page.render(name=view.summary["name"], facts=view.facts, charts=drawn)


def _aim(text: str) -> tuple[str, float]:
    """Return what a threshold is for, and the least share: "sensitivity=0.9", for example; "" asks for none."""
    aim, _, least = text.partition("=")
    share = as_number(least)
    if text and (aim not in ("sensitivity", "specificity") or share is None or not 0 < share <= 1):
        raise Refused(f"--threshold-for {text!r} has an unknown aim", "take sensitivity=0.9 or specificity=0.9")
    return aim, share or 0.0


def _fitted(
    p: NDArray[np.float64], y: NDArray[np.int64], counts: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    if (best := measures.platt(p, y, counts)) is None:
        raise Refused("no finite calibration fits these samples", "take more samples, of both classes")
    return best


def digest(model: Path) -> str:
    """Return the SHA-256 of a model's file."""
    return hashlib.sha256(model.read_bytes()).hexdigest()


def load(run: str | Path, model: nn.Module | None = None, features: nn.Module | None = None) -> Result:
    """Read a finished run from its folder.

    Args:
        run: The run folder.
        model: Your own module, if the run trained one. Trained weights are replaced; frozen ones must be those of the
            run.
        features: Your own encoder, if the run had one, with the weights of the run.

    Returns:
        The finished run.

    Raises:
        Refused: If the run is not finished, a file is damaged, or `model` or `features` does not fit.

    Guarantee: post-processing of released models. Nothing is unpickled.

    Example:
        After the example of `privsgp.train`:

        >>> import torch, privsgp
        >>> result = privsgp.load("runs/example", model=torch.nn.Linear(4, 2))
        >>> result.summary["nodes"]
        2

    """
    folder = views.finished(Path(run))
    summary = read_json(folder.summary, Summary)
    path = best_model(folder, summary)
    card = cards.read(path)
    try:
        return load_result(folder, _bare(card, model, path), _encoder(card, features), card)
    except Refused:
        raise
    except (TypeError, ValueError, KeyError, RuntimeError, MemoryError, OverflowError) as error:
        raise _damaged_model(path, f"says of itself what cannot be: {str(error).strip()[:200]}") from error


def of_model(path: Path) -> Result:
    """Read a model's file by itself: of its run only what the file says is known."""
    card = cards.read(path)
    model, encoder, privacy = _bare(card, None, path), _encoder(card, None), card["privacy"]
    model.load_state_dict(read_model(path, Layout.of(model)), strict=False)
    summary = {"epsilon_spent": [privacy["epsilon"]], "delta": [privacy["delta"]], "pairwise": None}
    ready = model if encoder is None else maps.Encoded(encoder, model)
    return Result(summary, [], ready, torch.empty(0), path, card)  # no folder: no calibration is agreed on


def _nodes(folder: Folder, summary: dict[str, Any]) -> list[Path]:
    """Return the files of the nodes' models that are here."""
    return [path for i in range(summary["nodes"]) if (path := folder.node(i)).exists()]


def best_model(folder: Folder, summary: dict[str, Any]) -> Path:
    """Return the file of the average model; where that is on another machine, of the first node here."""
    found = next((path for path in (folder.model, *_nodes(folder, summary)) if path.exists()), None)
    if found is None:
        raise Refused(f"{folder.path} has no model", "put model.safetensors back")
    return found


def _bare(card: dict[str, Any], model: nn.Module | None, path: Path) -> nn.Module:
    """Return the network that weights are put into.

    Guarantee: nothing larger is made than the weights that the file has, whatever its card says.
    """
    name = card["model"].get("name")
    if name == "module":
        if not isinstance(model, nn.Module):
            raise Refused("the run trained a module of your own", "pass it: privsgp.load(run, model=MyModule())")
        if cards.frozen_digest(model) != card["frozen"]:
            raise Refused(
                f"the frozen parts of {type(model).__name__} differ from those of the run",
                "give the module with the same frozen weights and buffers, and the same layers frozen",
            )
        return model
    if model is not None:
        raise Refused(f"model={type(model).__name__} for a run of model.name = {name!r}", "leave it out")
    there, options = cards.shapes(path), {key: value for key, value in card["model"].items() if key != "name"}
    if isinstance(hidden := options.get("hidden"), list) and len(hidden) >= len(there):
        raise _damaged_model(path, f"says that it has {len(hidden)} hidden layers, and has {len(there)} arrays")
    _refuse_vast_map(card, path)
    _, shape = make_encoder(card["features"]["name"], _options(card), tuple(card["input_shape"]))
    made = functools.partial(
        models.make,
        str(name),
        input_shape=shape,
        outputs=models.outputs(card["loss"], classes=card["classes"], target_shape=tuple(card["target_shape"])),
        seed=0,
        vocabulary=card.get("vocabulary") if card["features"]["name"] == "none" else None,
        schema=schema_of(card) if name == "additive" else None,
    )
    layout = Layout.of(made(device="meta", **options))
    if there != {name: tuple(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}:
        raise _damaged_model(path, "does not hold this model's parameters")
    return made(device="cpu", **options)


def _refuse_vast_map(card: dict[str, Any], path: Path) -> None:
    """Refuse a feature map that would make more of a sample than there is memory for."""
    if card["features"]["name"] != "none" and 1024 * math.prod(card["input_shape"]) > devices.free_memory():
        raise _damaged_model(path, f"has features of a sample of {card['input_shape']}")


def _encoder(card: dict[str, Any], given: nn.Module | None) -> nn.Module | None:
    name = card["features"]["name"]
    if name != "module":
        if given is not None:
            raise Refused(f"features={type(given).__name__} for a run of features.name = {name!r}", "leave it out")
        return make_encoder(name, _options(card), tuple(card["input_shape"]))[0]
    if given is None:
        raise Refused("the run used a module for its features", "pass that module too: load(run, …, features=encoder)")
    kind = torch.float32 if card.get("vocabulary") is None else torch.int64
    still = maps.frozen(given, torch.zeros(2, *card["input_shape"], dtype=kind))
    if maps.digest(still) != card["encoder"]:
        raise Refused(f"{type(given).__name__} is not the encoder of the run", "give the module with the same weights")
    return still


def _options(card: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a card's features; of scattering one without `scales` is of an earlier version."""
    older = {"scales": None} if card["features"]["name"] == "scattering" else {}
    return older | {key: value for key, value in card["features"].items() if key not in ("name", "views")}


def load_result(folder: Folder, model: nn.Module, encoder: nn.Module | None, card: dict[str, Any]) -> Result:
    """Read a finished run back into a copy of `model`, which it was trained from."""
    summary = read_json(folder.summary, Summary)
    trained, layout = copy.deepcopy(model), Layout.of(model)
    trained.load_state_dict(read_model(best_model(folder, summary), layout), strict=False)  # it has nothing frozen
    nodes = [read_model(path, layout) for path in _nodes(folder, summary)]
    flat = [torch.cat([t[name].reshape(-1) for name in layout.names]) for t in nodes]
    z = torch.stack(flat) if flat else torch.empty(0, layout.dim)  # a comparison keeps the average model alone
    ready = trained if encoder is None else maps.Encoded(encoder, trained)
    for part in {ready, *trained.modules()}:  # a run that starts from it, or from a layer of it, must know
        setattr(part, MARK, str(folder.path.resolve()))
    return Result(summary, read_metrics(folder.metrics), ready, z, folder.path, card)


def read_model(path: Path, layout: Layout) -> dict[str, Tensor]:
    """Read the parameters that a model's file holds; refuse one that is damaged, or another model's."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise _damaged_model(path, f"cannot be read: {error}") from error
    if {name: t.shape for name, t in tensors.items()} != dict(zip(layout.names, layout.shapes, strict=True)):
        raise _damaged_model(path, "does not hold this model's parameters")
    return tensors


def _damaged_model(path: Path, how: str) -> Refused:
    return Refused(f"{path} {how}", "put a copy of it back, or begin again with another {out}", out=None)
