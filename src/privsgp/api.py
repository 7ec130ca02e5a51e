"""The same from Python: your own `torch.nn.Module`, your own arrays, your own per-sample loss."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from privsgp import data as data_room
from privsgp import models
from privsgp.data.dataset import pool, settle, unsettled
from privsgp.data.loading import needed, of_table, read_file
from privsgp.data.schema import Schema
from privsgp.data.tables import is_frame, of_frame
from privsgp.errors import Refused
from privsgp.features import frozen
from privsgp.features.encode import make_encoder
from privsgp.planner import settle as planning
from privsgp.report import page
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training
from privsgp.transport.rendezvous import join

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from privsgp.runs.train import Result

    PerSampleFunction = Callable[[Tensor, Tensor], Tensor]

_LOG = logging.getLogger(__name__)

Arrays = Sequence[Any]  # (x, y) or (x, y, x_test, y_test)


def train(
    model: nn.Module,
    data: data_room.Dataset | Arrays | Mapping[int, Arrays],
    *,
    out: str | Path,
    loss: str | PerSampleFunction = "cross-entropy",
    correct: PerSampleFunction | None = None,
    test: object = None,
    test_is_public: bool = False,
    classes: int | None = None,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
    features: nn.Module | Mapping[str, Any] | None = None,
    resume: bool = False,
    ledger: str | Path | None = None,
    moved: bool = False,
    **settings: Any,  # noqa: ANN401 - the sections of run.toml
) -> Result:
    """Train `model` from the weights it has; the run folder `out` is as from the command line.

    `data` is a `Dataset`, arrays (x, y) or (x, y, x_test, y_test) to be partitioned over `nodes` nodes, or a mapping
    {node: (x, y)} where every node brings its own; its keys are numbers, or names of sites. In the place of arrays may
    stand data frames of pandas or polars, Arrow tables, or paths of .csv, .parquet and .feather files, with the public
    `schema` of their columns; `test` is then one too. Without a seed, metrics on test data stay in private/ unless
    `test_is_public`, and the number of `classes` is to be given unless a schema or public test labels show it. `ledger`
    is the ledger folder of an earlier run on this data: both spend from one budget. `settings` are the sections of
    run.toml: `seed=0`, `nodes=16`, `graph="ring"`, `privacy={"epsilon": 1.0}`, `algorithm={"name": "privsgp-vr"}`,
    `engine={…}`. `features` is the section of that name, or any encoder: a frozen module, each sample by itself, whose
    outputs `model` is trained on. A `loss` of your own maps (outputs, targets) to one number per sample; `correct`
    likewise to 0 or 1. `moved` goes with `resume`: the run folder comes from another disk, and is no copy.

    Guarantee: as from the command line: each node's certified (ε_i, δ_i) is in `summary["epsilon_spent"]`.
    Assumes: the weights that `model` starts from are public, and those of an encoder not learnt from the nodes' data.
    """
    given = {"name": "module"} if isinstance(features, nn.Module) else dict(features or {})
    sites = len(data) if isinstance(data, Mapping) else None
    own = {"classes": classes, "test": "public" if test_is_public else None} | _schema_of(schema)
    if isinstance(data, Mapping) and all(isinstance(name, str) for name in data):
        own["sites"], data = list(map(str, data)), dict(enumerate(data.values()))
    config = configs.parse(_sections(settings | {"features": given}, sites, loss, own))
    task = task_of(loss)

    def brought() -> tuple[data_room.Dataset, list[NDArray[np.int64]] | None]:
        arrays = data, test, config.data.classes
        if config.data.schema is not None or is_frame(data) or isinstance(data, str | Path):
            arrays = _encoded(data, test, needed(config.data.schema, "data"), task, config.site)
        dataset, parts = _dataset(*arrays, task)
        problems.refuse_counted(config, dataset)
        return dataset, parts

    dataset, parts = join().all_or_none(brought)
    for note in problems.unsaid(config):
        _LOG.warning("%s", note)

    def problem(config: configs.Config) -> problems.Problem:
        alone = problems.Problem(
            dataset=dataset,
            parts=problems.split(config, dataset) if parts is None else parts,
            model=model,
            loss=models.per_sample(loss) if isinstance(loss, str) else loss,
            correct=models.correct(loss) if isinstance(loss, str) else correct,
            encoder=_encoder(features, config, dataset.x.shape[1:]),
            views=config.views,
        )
        home = problems.brought_home(config, alone)
        if loss == "cross-entropy":
            _refuse_few_outputs(home)
        return home

    config, settled, plan = planning.settle(config, problem, Path(out), resume=resume)
    for note in problems.test_notes(config, settled):
        _LOG.warning("%s", note)
    ledgers = None if ledger is None else Path(ledger)
    result = training.run(config, settled, Path(out), resume=resume, moved=moved, ledgers=ledgers, plan=plan)
    if not join().rank:
        page.leave(result)
    return result


def task_of(loss: object) -> data_room.Task:
    """Tell what kind of targets a loss is for."""
    return "regression" if loss == "mse" else "classification"


def _schema_of(given: Schema | Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    if given is None:
        return {}
    return {
        "schema": str(given) if isinstance(given, Path) else given.model_dump() if isinstance(given, Schema) else given
    }


def _encoded(
    data: Any,  # noqa: ANN401 - a table, or one for each node
    test: Any,  # noqa: ANN401 - a table, or nothing
    schema: Schema,
    task: data_room.Task,
    site: Callable[[int], str],
) -> tuple[Any, Any, int | None]:
    """Put arrays in the place of tables; what happened to single values is logged, for who holds them."""

    def arrays(table: Any, where: str) -> tuple[Any, Any]:  # noqa: ANN401 - a frame, or a file's name
        if is_frame(table):
            made = of_table(of_frame(table, schema, where), schema, where, task)
        else:
            made = read_file(Path(table), schema=schema, task=task)
        for line in made.told:
            _LOG.warning("%s", line)
        return made.dataset.x, made.dataset.y

    public = None if test is None else arrays(test, "test")
    if isinstance(data, Mapping):
        return {node: arrays(table, site(node)) for node, table in data.items()}, public, schema.classes
    return arrays(data, "data"), public, schema.classes


def _encoder(given: object, config: configs.Config, shape: tuple[int, ...]) -> nn.Module | None:
    if not isinstance(given, nn.Module):
        return make_encoder(config.features.name, config.features.options, shape)[0]
    made_up = np.random.default_rng(0).standard_normal((4, *shape), np.float32)
    return frozen(given, torch.from_numpy(made_up))


def _refuse_few_outputs(problem: problems.Problem) -> None:
    """Refuse a model with fewer outputs than classes: else a record of the class without one would end the run."""
    classes, still = problem.dataset.classes or 0, copy.deepcopy(problem.model).cpu().eval()
    with torch.no_grad():
        outputs = still(torch.zeros(1, *problem.dataset.x.shape[1:])).shape[-1]
    if outputs < classes:
        raise Refused(f"a model with {outputs} outputs for {classes} classes", "give it one for each class")


def _sections(settings: dict[str, Any], nodes: int | None, loss: object, own: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a config: names stand for sections that have nothing but a name."""
    values = {k: {"name": v} if k in ("graph", "algorithm") and isinstance(v, str) else v for k, v in settings.items()}
    count = values.pop("nodes", nodes)
    where = {"name": "arrays" if nodes is None else configs.SITES} | own | ({} if count is None else {"nodes": count})
    if nodes is not None and where["nodes"] != nodes:
        raise Refused(f"nodes = {count} with data for {nodes} nodes", "leave nodes out")
    return values | {"data": where, "model": {"name": "module"} | ({"loss": loss} if isinstance(loss, str) else {})}


def _dataset(
    data: data_room.Dataset | Arrays | Mapping[int, Arrays],
    test: Any,  # noqa: ANN401 - a pair of arrays
    classes: int | None,
    task: data_room.Task,
) -> tuple[data_room.Dataset, list[NDArray[np.int64]] | None]:
    """Return the data set, and who holds which rows where the caller has decided that."""
    if isinstance(data, data_room.Dataset):
        return data if classes is None or data.classes is None else settle(data, classes), None
    if not isinstance(data, Mapping):
        arrays = [np.asarray(a) for a in (*data, *(test or ()))]
        return data_room.from_arrays(*arrays, task=task, classes=classes), None
    if sorted(data) != list(range(len(data))):
        raise Refused(f"data has the keys {sorted(data)}", "number the nodes 0, 1, 2, …")
    public = [None, None] if test is None else [np.asarray(a) for a in test]
    own = [[np.asarray(a) for a in data[i]] for i in range(len(data))]
    sites = [
        unsettled(x, y, *(public if i == 0 else (None, None)), name=f"node {i}", task=task)
        for i, (x, y) in enumerate(own)
    ]
    return pool(sites, "arrays", classes)
