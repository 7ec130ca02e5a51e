"""Training from Python, with your own `torch.nn.Module`, arrays and per-sample loss."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import data as torch_data

from privsgp import data as data_room
from privsgp import graph as network
from privsgp import models
from privsgp.data import survival
from privsgp.data.dataset import from_arrays, pool, with_classes, with_tests
from privsgp.data.loading import LoadedData, by_person, read_file, read_frame
from privsgp.data.persons import named
from privsgp.data.samples import are_sites, pair
from privsgp.data.tables import Frame, is_frame
from privsgp.errors import Refused, called_from_python
from privsgp.features import frozen
from privsgp.features.maps import make_encoder
from privsgp.gradients.stacked import refuse_mixing_layers
from privsgp.metrics import Calibration, Kind, Measure
from privsgp.options import Options
from privsgp.planner import planning
from privsgp.report import page
from privsgp.report.terminal import watching
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training
from privsgp.runs.result import MARK, Result
from privsgp.runs.sections import (
    Algorithm,
    Clock,
    Engine,
    Features,
    Graph,
    Images,
    Plan,
    Privacy,
    Text,
    Transport,
    plain,
)
from privsgp.transport.rendezvous import join

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.data.schema import Schema
    from privsgp.engine.trainer import Watcher

    PerSampleFunction = Callable[[Tensor, Tensor], Tensor]

_LOG = logging.getLogger(__name__)

Arrays = Sequence[Any]  # (x, y) or (x, y, x_test, y_test)
Records = Arrays | torch_data.Dataset[Any] | torch_data.DataLoader[Any] | Frame | str | Path
Sites = Mapping[int, Records] | Mapping[str, Records]
Persons = str | Sequence[object] | Mapping[int, Sequence[object]] | Mapping[str, Sequence[object]]
Keys = Mapping[str, Any]  # of a section, as run.toml has them
Network = Any  # a networkx graph, or a matrix


@called_from_python()
def train(
    model: nn.Module,
    data: data_room.Dataset | Records | Sites,
    *,
    out: str | Path,
    loss: str | PerSampleFunction = "cross-entropy",
    correct: PerSampleFunction | None = None,
    test: object = None,
    test_is_public: bool = False,
    classes: int | None = None,
    vocabulary: int | None = None,
    persons: Persons | None = None,
    rows_per_person: int | None = None,
    task: data_room.Task | None = None,
    schema: Schema | Keys | str | Path | None = None,
    images: Images | Keys | None = None,
    text: Text | Keys | None = None,
    features: nn.Module | Features | Keys | None = None,
    resume: bool = False,
    moved: bool = False,
    progress: bool | None = None,
    on_step: Callable[[int, dict[str, Any] | None], object] | None = None,
    name: str = "run",
    seed: int | None = None,
    nodes: int | None = None,
    partition: str | Keys | None = None,
    graph: str | Graph | Keys | Network | Sequence[Network] | None = None,
    privacy: Privacy | Keys | None = None,
    algorithm: str | Algorithm | Keys | None = None,
    transport: Transport | Keys | None = None,
    clock: Clock | Keys | None = None,
    plan: Plan | Keys | None = None,
    engine: Engine | Keys | None = None,
) -> Result:
    """Train `model` on data of several nodes, each with its own privacy budget.

    Arguments from `name` to `engine` are sections and keys of run.toml. A section is an object, such as
    `privacy=privsgp.Privacy(epsilon=1.0)`, or a dictionary, such as `privacy={"epsilon": 1.0}`.

    Args:
        model: The module to train, from the weights that it has. Its samples must not influence each other.
        data: The records: a `privsgp.Dataset`, arrays `(x, y)` or `(x, y, x_test, y_test)`, a torch `Dataset` of pairs,
            a data frame, an Arrow table, or the path of a .npz, .csv or .parquet file, of texts or of a
            folder of images. One of these is divided among `nodes`. A list or a mapping `{node: …}` of them gives each
            node its own; keys are numbers, or names of sites.
        out: The run folder. It must not hold another run.
        loss: A name ("cross-entropy", "binary", "mse", "survival"), a torch loss with `reduction="none"`, or a function
            of (outputs, targets) that returns one number per sample.
        correct: A function of (outputs, targets) that returns 1 for each right sample and 0 for others. Without it,
            the accuracy of a loss of your own is unknown.
        test: Test data, in any form of `data`.
        test_is_public: Whether anyone may see metrics on test data. Without it and without a seed, they stay in
            `private/`.
        classes: The public number of classes. Without a seed it is needed unless a schema, names of classes or public
            test labels show it.
        vocabulary: The number of tokens, if the model looks whole numbers up in an embedding.
        persons: The person of each row: a column or array by name, or one identifier for each row of arrays, by node as
            `data`. The unit of ε is then a person.
        rows_per_person: The most rows of a person that are used.
        task: "classification" or "regression", for a loss of your own.
        schema: The public `privsgp.Schema` of tables, its keys, or the path of a schema.toml.
        images: How to read folders of images, for example `{"labels": ["cat", "dog"], "size": 64}`.
        text: How to read files of texts, for example `{"column": "text", "label": "stars"}`.
        features: The section of this name, or a frozen module whose outputs `model` is trained on.
        resume: Continue the run in `out` from its last checkpoint.
        moved: With `resume`: the run folder comes from another disk or machine, and is no copy.
        progress: Whether to show a progress bar; by default on a terminal and in a notebook.
        on_step: A function that privsgp calls after each step with the number of steps and the last evaluation. An
            exception in it ends the run; `resume=True` continues it.
        name: The name of the run.
        seed: Makes a simulation that anyone can repeat, and that protects nobody. Without it, noise is secret.
        nodes: The number of nodes among which `data` is divided.
        partition: How `data` is divided among `nodes`, in a simulation: "sorted", "dirichlet", or
            `{"partition": "dirichlet", "alpha": 0.3}`.
        graph: The network: a name, a `privsgp.Graph`, a matrix of shares (columns sum to 1), a networkx graph (edges
            may have a `share`), or a list of these, one for each step of a period.
        privacy: Budgets and noise: a `privsgp.Privacy`.
        algorithm: The method and its settings: a name, or a `privsgp.Algorithm`.
        transport: The bits of a message: a `privsgp.Transport`.
        clock: The virtual clock: a `privsgp.Clock`.
        plan: The data of the planner: a `privsgp.Plan`.
        engine: Device, precision and checkpoints: a `privsgp.Engine`.

    Returns:
        The finished run, with its model, summary and metrics. `out` has the files of the run.

    Raises:
        Refused: If an argument, the data or a budget does not fit. Nothing has been sent by then.
        Stopped: If a signal or a lost process ended the run. `resume=True` continues it.
        Diverged: If weights or gradients are not finite.

    Guarantee: as from the command line: each node's certified (ε_i, δ_i) is in `summary["epsilon_spent"]`.
    Assumes: the weights that `model` starts from are public, and those of an encoder not learnt from the nodes' data.

    Example:
        >>> import numpy as np, torch, privsgp
        >>> _ = torch.manual_seed(0)
        >>> x = np.random.default_rng(0).standard_normal((500, 4), dtype=np.float32)
        >>> y = (x[:, 0] > 0).astype(np.int64)
        >>> result = privsgp.train(
        ...     torch.nn.Linear(4, 2), (x[:400], y[:400], x[400:], y[400:]), out="runs/example", nodes=2, seed=0,
        ...     privacy={"epsilon": 3.0}, algorithm={"name": "privsgp", "batch": 50, "steps": 20, "step_size": 1.0},
        ... )
        >>> print(f"accuracy {result.summary['test_accuracy']:.0%}")
        accuracy 99%

    """
    if not isinstance(model, nn.Module):
        remedy = "give a torch.nn.Module, an instance, not its class; privsgp.models.make('mlp', …) makes one"
        raise Refused(f"model={model!r}", remedy)
    refuse_mixing_layers(model)
    folder = Path(out)
    if seed is None:  # a simulation protects nobody, whatever it starts from
        _refuse_trained(model, features)
    sections = {
        "name": name, "seed": seed, "nodes": nodes, "graph": graph, "privacy": privacy, "algorithm": algorithm,
        "transport": transport, "clock": clock, "plan": plan, "engine": engine,
        "features": {"name": "module"} if isinstance(features, nn.Module) else features or {},
    }  # fmt: skip
    own = {
        "classes": classes, "test": "public" if test_is_public else None, "vocabulary": vocabulary,
        "schema": schema, "images": images, "text": text, "rows_per_person": rows_per_person,
        "person": persons if persons is None or isinstance(persons, str) else "persons",
    } | ({"partition": partition} if isinstance(partition, str | None) else dict(partition))  # fmt: skip
    kind = _kind_of(loss, correct, task)
    given, config = _configured(data, sections, kind, own)
    targets: data_room.Task = task or (models.task(kind) if kind else "classification")

    learner = None if features is not None else model  # an encoder stands between samples and model

    def loaded() -> tuple[data_room.Dataset, list[NDArray[np.int64]] | None]:
        if config.test_is_public and isinstance(test, str | Path):
            all_of_it = given.values() if isinstance(given, Mapping) else (given,)
            files = [Path(one) for one in all_of_it if isinstance(one, str | Path)]
            problems.refuse_own_file(Path(test), files, f"test={str(test)!r}")
        dataset, parts = _loaded(given, test, config, targets, learner, persons, several=not isinstance(loss, str))
        for y in (dataset.y, dataset.y_test) if kind == "survival" else ():
            if y is not None:
                survival.decoded(y)
        problems.refuse_counted(config, dataset)
        problems.refuse_own_records(config, "test data that are public", dataset, parts)
        return dataset, parts

    world = join()
    dataset, parts = world.all_or_none(loaded)

    if dataset.y.ndim > 1 and dataset.classes is not None:
        kind = None  # a sample has several labels: metrics are for one
    unit = (0.0, 1.0) if config.data.schema is None else config.data.schema.unit
    weighed = models.class_weights(loss)
    measure = Measure(kind, dataset.classes, None if kind else correct, unit, Calibration(weighed))
    alone = problems.Problem(
        dataset=dataset,
        parts=problems.split(config, dataset) if parts is None else parts,
        model=model,
        loss=models.per_sample(loss) if isinstance(loss, str) else models.in_any_precision(loss, dataset.y.ndim - 1),
        correct=correct if kind is None else models.correct(kind),
        encoder=_encoder(features, config, dataset),
        measure=measure,
        loss_name=measure.kind,
        class_weights=weighed,
    )
    problem = problems.local_features(config, alone, world)
    _refuse_unfit(problem, measure)
    config, planned = planning.with_choices(config, problem, folder, resume=resume, world=world)
    _say(problems.test_notes(config, problem))
    if kind is None and correct is None and targets != "regression":
        _say(["accuracy is unknown: the loss is your own, and no correct=… says which outputs are right"])
    with watching(config.algorithm.steps, False if world.rank else progress) as shown:
        result = training.run(
            config, problem, folder, resume=resume, moved=moved, plan=planned, world=world,
            watch=_each(shown, on_step),
        )  # fmt: skip
    if not world.rank:
        page.leave(result.folder, result.summary)
    return result


def _each(*watchers: Callable[[int, dict[str, Any] | None], object] | None) -> Watcher:
    def watch(step: int, row: dict[str, Any] | None) -> None:
        for one in watchers:
            if one is not None:
                one(step, row)

    return watch


def _configured(
    data: Any,  # noqa: ANN401 - whatever was brought
    sections: dict[str, Any],
    kind: Kind | None,
    own: dict[str, Any],
) -> tuple[Any, configs.Config]:
    """Number the nodes that bring their own data, and put the sections of run.toml together."""
    if isinstance(data, Mapping) and hasattr(data, "column_names"):  # of Hugging Face: its splits are no sites
        raise Refused(f"data is a {type(data).__name__}", "give one split, data['train'], and test=data['test']")
    given = dict(enumerate(data)) if are_sites(data) else data
    nodes = len(given) if isinstance(given, Mapping) else None
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        own["sites"], given = list(map(str, given)), dict(enumerate(given.values()))
    if not isinstance(sections["graph"], str | Options | Mapping | None):
        size, sections["graph"] = network.described(sections["graph"], own.get("sites"))
        if size != (sections["nodes"] or nodes or size):
            remedy = "give a graph with one node for each site"
            raise Refused(f"graph has {size} nodes, and nodes = {sections['nodes'] or nodes}", remedy)
        sections["nodes"] = size
    values = _plain(sections)
    for key in ("graph", "algorithm"):
        if isinstance(name := values.get(key), str):  # a section that has nothing but a name
            values[key] = {"name": name}
    count = values.pop("nodes", nodes)
    if nodes is not None and count != nodes:
        raise Refused(f"nodes = {count}, and there are data for {nodes} nodes", "leave nodes out: privsgp counts them")
    values["data"] = {"name": "arrays" if nodes is None else configs.SITES} | _plain(own)
    values["data"] |= {} if count is None else {"nodes": count}
    return given, configs.parse(values | {"model": {"name": "module"} | ({} if kind is None else {"loss": kind})})


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given, as run.toml has it."""
    found = {key: value for key, value in given.items() if value is not None}
    for key, value in found.items():
        if isinstance(value, Options | Mapping | Path):
            found[key] = str(value) if isinstance(value, Path) else plain(value)
    return found


def _say(notes: Sequence[str]) -> None:
    for line in notes:
        _LOG.warning("%s", line)


def _kind_of(loss: object, correct: object, task: data_room.Task | None) -> Kind | None:
    """Tell what outputs mean; None where the caller's own loss or `correct` says it. Refuse a task of another loss."""
    kind = models.meaning(loss)
    if kind is not None and task is not None and models.task(kind) != task:
        if not isinstance(loss, nn.BCEWithLogitsLoss):  # which takes shares, and several, as well as classes
            raise Refused(f"task={task!r} does not fit loss={loss!r}", "leave task out: the loss decides it")
        return None
    return kind if correct is None or isinstance(loss, str) else None


def _loaded(
    given: Any,  # noqa: ANN401 - whatever was brought, or a mapping of that for each node
    test: object,
    config: configs.Config,
    task: data_room.Task,
    learner: nn.Module | None,
    persons: object,
    *,
    several: bool,
) -> tuple[data_room.Dataset, list[NDArray[np.int64]] | None]:
    """Return the data set, and each node's rows if the caller has divided them.

    The log says what happened to single values, for their owner.
    """
    d, by_site = config.data, isinstance(given, Mapping)
    if by_site and sorted(given) != list(range(len(given))):
        raise Refused(f"the keys of data, {sorted(given)}, are not the numbers of nodes", "number the nodes 0, 1, 2, …")
    sites = [given[i] for i in range(len(given))] if by_site else [given]
    names = [config.site(i) for i in range(len(sites))] if by_site else ["data"]
    whose = _by_node(persons, config, len(sites)) if by_site else [persons]
    form: dict[str, Any] = {"task": task, "config": config, "learner": learner, "several": several}
    found = [
        _one(one, name, own=by_site or config.seed is None, persons=ids, **form)
        for one, name, ids in zip(sites, names, whose, strict=True)
    ]
    first = found[0].dataset
    if by_site and (four := [name for name, one in zip(names, found, strict=True) if one.dataset.x_test is not None]):
        raise Refused(f"{four[0]} has test data", "give each node (x, y), and test data as `test`")
    count = d.classes or next((one.classes for one in found if one.classes is not None), None)
    if test is not None:
        if first.x_test is not None:
            raise Refused("test=… was given, and data have test data too", "leave test out, or give arrays (x, y)")
        public = _one(test, "test", own=False, **form)
        first, count = with_tests(first, public.dataset.x, public.dataset.y), count or public.classes
    if by_site:
        return pool([first, *(one.dataset for one in found[1:])], "arrays", count)
    if task == "classification":
        first = with_classes(first, count)
    made_by_hand = isinstance(given, data_room.Dataset) and not d.classes and given.classes is not None
    return replace(first, counted=given.counted) if made_by_hand else first, None


def _one(
    given: Any,  # noqa: ANN401 - whatever was brought
    where: str, *, task: data_room.Task, config: configs.Config, learner: nn.Module | None, own: bool,
    several: bool, persons: object = None,
) -> LoadedData:  # fmt: skip
    """Return what a node brings, all of them together, or the test data, checked except for the range of labels."""
    d, trained = config.data, where != "test"
    if is_frame(given) or isinstance(given, str | Path):
        form = d.form if trained else replace(d.form, persons=None)
        made = (
            read_frame(given, where, task, form, own=own) if is_frame(given) else
            read_file(Path(given), task, form, own=own)
        )  # fmt: skip
        _vocabulary(made.dataset.x, d.tokens, learner)
        _say(made.notes)
        return made
    for key in ("schema", "images", "text"):  # of files and frames: arrays are taken as they are
        if getattr(d, key) is not None:
            raise Refused(f"{where} is a {type(given).__name__}, and {key}=… is for files or frames", f"drop {key}")
    if isinstance(given, data_room.Dataset):
        tests = () if given.x_test is None else (given.x_test, given.y_test)
        arrays, vocabulary, classes = (given.x, given.y, *tests), given.vocabulary, given.classes
    else:
        arrays, classes = pair(given), None
        vocabulary = _vocabulary(arrays[0], d.tokens, learner)
    dataset, notes = (
        from_arrays(*arrays, name=where, task=task, vocabulary=vocabulary, classes_known=False, several=several),
        list[str](),
    )
    if (rows := getattr(given, "rows", None)) is not None and len(rows) == len(dataset.x):
        dataset = replace(dataset, rows=rows)
    if trained and d.persons is not None:
        if persons is None or isinstance(persons, str):
            remedy = "give one identifier for each row: persons=ids, or persons=[ids of node 0, ids of node 1, …]"
            raise Refused(f"persons={persons!r} names a column, and the data are arrays", remedy)
        dataset, notes = by_person(dataset, named({"persons": persons}, d.persons, where), d.persons)
    _say(notes)
    return LoadedData(dataset, classes, notes)


def _by_node(persons: object, config: configs.Config, count: int) -> list[object]:
    """Return the identifiers of each node's rows, or the column's name for each."""
    if persons is None or isinstance(persons, str):
        return [persons] * count
    if isinstance(persons, Mapping):
        sites = config.data.sites
        return [persons.get(node, ()) for node in (sites if sites and sites[0] in persons else range(count))]
    if not isinstance(persons, Sequence) or len(persons) != count:
        raise Refused(f"persons={type(persons).__name__} is no list for each of {count} nodes", "give one by node")
    return list(persons)


def _refuse_trained(*given: object) -> None:
    """Refuse modules with layers from an earlier run: on its records a private run would spend more than it counts."""
    for module in given:
        for layer in module.modules() if isinstance(module, nn.Module) else ():
            if (run := getattr(layer, MARK, None)) is not None:
                raise Refused(
                    f"{type(module).__name__} has weights that the run in {run} learnt",
                    "give a new module; load_state_dict puts weights into it that come from public records alone",
                )


def _encoder(given: object, config: configs.Config, dataset: data_room.Dataset) -> nn.Module | None:
    shape, rng = dataset.x.shape[1:], np.random.default_rng(0)
    if not isinstance(given, nn.Module):
        return make_encoder(config.features.name, config.features.options, shape)[0]
    if dataset.vocabulary is not None:
        return frozen(given, torch.from_numpy(rng.integers(0, dataset.vocabulary, (4, *shape))))
    return frozen(given, torch.from_numpy(rng.standard_normal((4, *shape), np.float32)))


def _refuse_unfit(problem: problems.Problem, measure: Measure) -> None:
    """Refuse a model that does not take these samples, or has fewer outputs than classes.

    Else a record of the class without an output would end the run. Tried on made-up samples and public ones alone.
    """
    d, still = problem.dataset, copy.deepcopy(problem.model).cpu().eval()
    first = (p.dtype for p in still.parameters() if p.is_floating_point())
    samples = torch.zeros(2, *d.x.shape[1:], dtype=torch.int64 if d.x.dtype == np.int64 else next(first, torch.float32))
    outputs = _tried(
        lambda: still(samples), f"the model does not take samples of shape {tuple(d.x.shape[1:])}",
        "give its first layer the width of a sample, or samples the shape that it takes",
    )  # fmt: skip
    if not isinstance(outputs, torch.Tensor):
        what = f"the model returns a {type(outputs).__name__}"
        raise Refused(
            what, "let forward return one tensor [B, …]: of an LSTM, say, out[:, -1], of Hugging Face, out.logits"
        )
    count, classes = outputs.shape[-1], d.classes or 0
    if measure.kind == "cross-entropy" and count < classes:
        or_binary = ", or take loss='binary' for two classes" if (count, classes) == (1, 2) else ""
        what = f"a model with {count} output{'s' * (count > 1)} for {classes} classes"
        raise Refused(what, f"give it one for each class{or_binary}")
    targets = torch.zeros(2, *d.y.shape[1:], dtype=torch.int64 if d.y.dtype == np.int64 else outputs.dtype)
    _tried(
        lambda: problem.loss(outputs, targets),
        f"the loss fails on outputs {list(outputs.shape)} and targets {list(targets.shape)}",
        "let it return one number per sample; nn.CrossEntropyLoss takes outputs [N, classes, …]; "
        "for targets that are numbers say task='regression'",
    )


def _tried(call: Callable[[], Any], what: str, remedy: str) -> Any:  # noqa: ANN401 - whatever the user's code returns
    try:
        with torch.no_grad():
            return call()
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError) as error:
        raise Refused(f"{what}: {error}", remedy) from error


def _vocabulary(x: NDArray[Any], vocabulary: int | None, model: nn.Module | None) -> int | None:
    """Tell which vocabulary the tokens of samples have; None where they are no tokens."""
    embeds = model is not None and any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in model.modules())
    if model is None or not embeds or x.dtype.kind not in "iu":
        return vocabulary
    found = _looked_up(model, x.shape[1:])
    if vocabulary is not None:
        if found is not None and found < vocabulary:
            raise Refused(
                f"an embedding of {found} rows for a vocabulary of {vocabulary}",
                f"give it {vocabulary} rows, or texts and tokens a smaller vocabulary",
            )
        return vocabulary
    return found


def _looked_up(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Return the rows of the smallest embedding that is shown ones for such samples of ones; None: there is none."""
    still, rows = copy.deepcopy(model).cpu().eval(), list[int]()

    def look_up(layer: nn.Module, given: tuple[Any, ...], _out: object) -> None:
        if given and bool((given[0] == 1).all()):  # an embedding of positions is shown others
            rows.append(int(layer.num_embeddings))  # type: ignore[arg-type]

    for layer in still.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.register_forward_hook(look_up)
    with torch.no_grad(), contextlib.suppress(RuntimeError, TypeError, ValueError, IndexError):  # it takes real numbers
        still(torch.ones(2, *shape, dtype=torch.int64))
        return min(rows, default=None)
    return None
