"""`privsgp describe`: the columns of all sites' tables, from one noised release, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.accounting.shown import up
from privsgp.data.schema import Category, Number, Target, YesNo
from privsgp.errors import Refused
from privsgp.files import write_json
from privsgp.runs import booked
from privsgp.runs.problem import unencoded
from privsgp.runs.released import next_folder, planned, total
from privsgp.statistics.columns import Numbers, Values, described, vectors
from privsgp.statistics.release import added

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.data.dataset import Dataset
    from privsgp.data.schema import Schema
    from privsgp.runs.config import Config
    from privsgp.statistics.columns import Column
    from privsgp.statistics.release import Array

NAME = "description.json"


def describe(
    config: Config, epsilon: float, delta: float, *, columns: Sequence[str] = (), bins: int = 20,
    out: Path | None = None, data_dir: Path | None = None, say: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:  # fmt: skip
    """Describe columns of the sites' tables; all that one call asks for is one release of each site.

    `say` gets what error to expect, before the release.
    """
    schema = config.data.schema
    if schema is None or config.data.path is None:
        raise Refused("no data.schema and data.path", "describe is for tables of the sites: ranges are the schema's")
    known = [*schema.encoded, *([schema.target.column] if isinstance(schema.target, Target) else [])]
    if unknown := [name for name in columns if name not in known]:
        raise Refused(f"--columns {unknown[0]}", f"take columns of the schema that are used: {', '.join(known)}")
    problem = unencoded(config, data_dir, range(config.data.nodes))
    pairs = [_block(schema, name, problem.dataset, bins) for name in known if name in (columns or known)]
    asked = [column for column, _ in pairs]
    release = planned(config, vectors(asked), problem.samples, epsilon, delta)
    persons = sum(problem.samples)
    say(
        f"{len(asked)} columns of {persons:,} records: the noise moves a share by {196 * release.sigma / persons:.2g} "
        "percentage points or less, 19 times of 20"
    )
    rows = np.concatenate([block for _, block in pairs], 1)
    records = booked.records_of(problem.hashes, problem.dataset, problem.parts)
    place = next_folder(out or Path("descriptions"), config.name)
    sums = [added(release.vectors, rows[part]) for part in problem.parts]
    cells = total(release, sums, config, epsilon, place, "describe", records)
    found = {
        "version": 1, "simulation": config.seed is not None, "epsilon": max(release.epsilon), "delta": delta,
        "relation": release.relation, "records": problem.samples, "noise": release.noise.name,
        "honest": config.honest if release.noise.shared else None, "sigma": release.sigma,
        "columns": described(asked, cells, persons, release.sigma),
    }  # fmt: skip
    write_json(place / NAME, found)
    return found | {"folder": str(place)}


def _block(schema: Schema, name: str, dataset: Dataset, bins: int) -> tuple[Column, Array]:
    """Return a column, and the block of each row: decoded from the inputs and targets of the run."""
    x, y, none = dataset.x, dataset.y, np.zeros(len(dataset.x), bool)
    if isinstance(schema.target, Target) and name == schema.target.column:
        if schema.target.classes is not None:
            classes = Values(name, tuple(schema.target.classes))
            return classes, classes.rows(y.astype(np.int64), none)
        target = Numbers(name, *schema.target.limits, bins)
        return target, target.rows(schema.target.affine[0] + schema.target.affine[1] * y.astype(float), none)
    column, at = schema.encoded[name], schema.features.index
    missing = none if column.missing is None else x[:, at(f"{name} is missing")] > 0
    if isinstance(column, Number):
        numbers = Numbers(name, *column.limits, bins)
        return numbers, numbers.rows(column.affine[0] + column.affine[1] * x[:, at(name)].astype(float), missing)
    if isinstance(column, Category):
        values = Values(name, tuple(column.known))
        return values, values.rows(x[:, [at(f"{name} = {one}") for one in column.known]].argmax(1), missing)
    assert isinstance(column, YesNo)  # noqa: S101
    values = Values(name, ("yes", "no"))
    return values, values.rows((x[:, at(name)] < 0).astype(np.int64), missing)


def rows_of(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return column, statistic and value with its interval."""
    said = []
    for name, one in found["columns"].items():
        known = one.get("estimates") or [share | {"metric": share["group"]} for share in one["shares"]]
        said += [(name, each["metric"], _shown(each)) for each in known]
        said.append((name, "missing", _shown(one["missing"])))
    return said


def _shown(one: dict[str, Any]) -> str:
    if one["value"] is not None:
        return f"{one['value']:.4g} ({one['low']:.4g} to {one['high']:.4g})"
    needed = one["persons_needed"]
    return "not shown" if needed is None else f"not shown: needs about {needed:,} records"


def statement(found: dict[str, Any]) -> list[str]:
    """Say what the description spent."""
    would = "without a seed it would be " if found["simulation"] else ""
    lines = [f"{would}ε = {up(found['epsilon'])}, δ = {up(found['delta'])} for each record ({found['relation']})"]
    if found["honest"] is not None:
        lines.append(f"only if {found['honest']} of {len(found['records'])} sites are honest, the site itself included")
    return [*lines, "training on these records comes on top: the budget book adds both up"]
