"""A site's part in a noised sum, and in a run that holds a share out: whom it counts, and what the sum says.

A study of a sum is a run of one step on the complete graph. Each site waits until the messages of all are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.data.dataset import Dataset, nobody
from privsgp.data.hashes import hashes_of
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.runs import booked, description, evaluation, sums
from privsgp.runs.problem import side
from privsgp.runs.result import Result, digest, of_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from privsgp.accounting.book import Records
    from privsgp.engine.spec import RunSpec
    from privsgp.engine.trainer import Outcome
    from privsgp.runs.config import Config
    from privsgp.sites.agreement import Agreement

    Also = list[tuple[str, bool, list[Records]]]

_WHOLE = 1e-9  # by which a site's weight may differ from 1 when the messages of all sites are there


def like(config: Config, run: Path | None, sizes: Sequence[int], epsilon: float) -> tuple[Config, Dataset]:
    """Return the configuration of a study of a sum, and a vector of nobody: of an evaluation of `run`, or columns."""
    delta = config.privacy.delta
    if isinstance(delta, list):
        raise Refused("privacy.delta is a list, and a sum is one release", "give one δ for all sites")
    if run is None:
        made = description.study(config, sizes, epsilon, delta)
        length = sum(column.length for column in description.columns(made))
    else:
        model = evaluation.agreed_model(run)
        made = evaluation.study(config, sizes, of_model(model), model, Folder(run).run)
        length = evaluation.layout(made, of_model(model)).length
    return made, nobody((length,), (), None)


def counted(
    config: Config, node: int, dataset: Dataset, model: Path, say: Callable[[str], None]
) -> tuple[Dataset, Records, Also]:
    """Return whom a site's run counts, hashes of their records, and the records of the other side.

    Guarantee: an evaluation never counts persons that the run of its model trained on at this site.
    """
    asked, evaluates, every = config.evaluation, config.sum.kind == "evaluation", np.arange(len(dataset.y))
    hashes, parts = hashes_of(dataset), [every]
    also: Also = []
    if asked.share is not None:
        parts = [side(dataset, every, asked, held_out=which) for which in (evaluates, not evaluates)]
    records, *others = booked.records_of(hashes, dataset, parts)
    run = config.sum.run or ""
    if evaluates and others:
        evaluation.refuse_other_side(config, run, {node: records})
    elif evaluates:
        evaluation.refuse_trained(config, run, [records], say)
    elif others:
        also = [(booked.HELD_OUT, False, others)]
    if evaluates:
        also = evaluation.charged_too(config, [node])
    dataset = dataset.taken(parts[0])
    if config.sum.kind == "description":
        dataset = sums.vectors(dataset, description.rows(config, dataset))
    elif evaluates:
        dataset = sums.vectors(dataset, evaluation.rows(config, _model(config, model), dataset))
    return dataset, records, also


def _model(config: Config, path: Path) -> Result:
    if not path.exists() or digest(path) != config.sum.model:
        raise Refused(
            f"{path} is not the model of the agreement",
            "put the file that came with the study into the study's folder, under its name",
        )
    result = of_model(path)
    evaluation.refuse_other_terms(config, result)
    evaluation.refuse_other_run(config, result)
    return result


def result(agreement: Agreement, spec: RunSpec, outcome: Outcome, folder: Path, model: Path) -> dict[str, Any]:
    """Write what the sum says, and return it.

    Guarantee: refuses a sum without the messages of all sites, in which pairwise noise would not have cancelled.
    """
    config, w = agreement.config, float(outcome.state.w[0])
    if abs(w - 1) > _WHOLE:
        raise Refused(
            f"messages of sites are missing: this site's weight is {w:g}",
            "join again when all sites are there",
        )
    total = sums.total(spec, outcome.state.z[0].double().numpy(), agreement.samples)
    if config.sum.kind == "description":
        return description.written(config, total, folder)
    return evaluation.written(config, _model(config, model), model, total, folder)
