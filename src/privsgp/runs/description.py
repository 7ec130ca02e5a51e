"""`privsgp describe`: the columns of all sites' tables, from one noised release, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.accounting.shown import up
from privsgp.accounting.statements import statements
from privsgp.data.draft import balance, rounded
from privsgp.data.schema import Category, Number, Schema, YesNo, parse
from privsgp.engine.formats import Described
from privsgp.errors import Refused
from privsgp.files import read_json, write_json
from privsgp.runs import sums, views
from privsgp.runs.problem import unencoded
from privsgp.statistics.columns import Column, Moments, Numbers, Values, described, norm
from privsgp.statistics.estimates import Groups
from privsgp.statistics.survival import Times
from privsgp.statistics.survival import codes as cells_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Dataset
    from privsgp.runs.config import Config
    from privsgp.runs.sums import Array, Total

NAME = "description.json"


def describe(
    config: Config, epsilon: float, delta: float, *, out: Path | None = None, data_dir: Path | None = None,
    say: Callable[[str], None] = lambda _line: None, **asked: Any,  # noqa: ANN401
) -> dict[str, Any]:  # fmt: skip
    """Describe columns of the sites' tables; all that one call asks for is one release of each site.

    `asked` are keys of [sum]. `say` gets what error to expect, before the release.
    """
    if config.data.path is None:
        raise Refused("run.toml has no data.path, and describe reads tables", "name the sites' tables in data.path")
    problem = unencoded(config.with_section("data", sizes=None), data_dir, range(config.data.nodes))
    config = study(config, problem.samples, epsilon, delta, **asked)
    folder = sums.next_folder(out or Path("descriptions"), config.name)
    total = sums.released(config, problem, rows(config, problem.dataset), folder, say=say)
    return written(config, total, folder)


def study(config: Config, sizes: Sequence[int], epsilon: float, delta: float, **asked: Any) -> Config:  # noqa: ANN401
    """Return the configuration of a description of tables with so many persons each."""
    config = config.with_section("evaluation", share=None)
    made = config.with_section("sum", kind="description", **asked)
    return sums.study(made, sizes, norm(columns(made)), epsilon, delta)


def columns(config: Config) -> list[Column]:
    """Return the blocks of a person's vector, from public values alone."""
    schema, asked = _schema(config), config.sum
    known = [*schema.encoded, schema.target.column]
    if unknown := [name for name in (*asked.columns, *asked.by) if name not in known]:
        raise Refused(f"the schema has no column {unknown[0]}, or ignores it", f"take one of {', '.join(known)}")
    made: list[Column] = [_column(schema, name, asked.bins) for name in known if name in (asked.columns or known)]
    for name in asked.by:
        target, groups = _column(schema, schema.target.column, asked.bins), _column(schema, name, asked.bins)
        if isinstance(target, Numbers) or not isinstance(groups, Values) or target == groups:
            raise Refused(
                f"no count of the target by {name}", "take a category or yes/no column, and classes as target"
            )
        if isinstance(target, Times):
            missing = () if schema.encoded[name].missing is None else ("missing",)
            values = (*groups.values, *missing)
            made.append(Times(f"{target.name} by {name}", target.edges, Groups((name,), (values,))))
            continue
        crossed = [f"{label}, {name} = {value}" for value in groups.values for label in target.values]
        made.append(Values(f"{target.name} by {name}", tuple(crossed)))
    if asked.moments is not None:
        if schema.times is not None:
            raise Refused("--moments does not go with a survival target: censored times have no mean", "leave it out")
        made.append(Moments((*schema.features, schema.target.column), asked.moments))
    return made


def rows(config: Config, dataset: Dataset) -> Array:
    """Return the vector of each row, decoded from the inputs and targets of a run."""
    schema, made = _schema(config), list[Any]()
    for column in columns(config):
        by = column.name.removeprefix(f"{schema.target.column} by ")
        crossed = column.name not in (*schema.encoded, schema.target.column)
        if isinstance(column, Moments):
            made.append(column.rows(np.column_stack([dataset.x, dataset.y]).astype(float)))
        elif isinstance(column, Times):
            group = np.zeros(len(dataset.y), np.int64)
            if crossed:
                group, missing = codes(schema, by, dataset)
                group[missing] = column.groups.count - 1
            made.append(column.rows(cells_of(dataset.y), group))
        elif isinstance(column, Numbers):
            made.append(column.rows(*_numbers(schema, column.name, dataset)))
        elif crossed:
            (labels, none), (groups, missing) = codes(schema, schema.target.column, dataset), codes(schema, by, dataset)
            made.append(column.rows(groups * len(schema.target.classes or ()) + labels, none | missing))
        else:
            made.append(column.rows(*codes(schema, column.name, dataset)))
    return np.concatenate(made, 1)


def written(config: Config, total: Total, folder: Path) -> dict[str, Any]:
    """Write what a noised sum says of each column."""
    values = described(columns(config), total.cells, total.count, total.sigma)
    found = total.facts | {"name": config.name, "schema": _schema(config).model_dump(mode="json"), "columns": values}
    write_json(folder / NAME, found)
    return found | {"folder": str(folder)}


def read(path: Path) -> dict[str, Any]:
    """Read description.json, or that of a folder; ε is computed again from the ledgers beside it, if there are any."""
    file = path / NAME if path.is_dir() else path
    found = read_json(file, Described)
    ledgers = statements(file.parent) if (file.parent / "ledger").exists() else []
    return found | {"epsilon": max([found["epsilon"], *(one.epsilon for one in ledgers)])}


def drafted(found: dict[str, Any]) -> tuple[Schema, str]:
    """Return a description's schema with centres, scales, class shares and time bins that follow it, and its cost."""
    if found["simulation"]:
        raise Refused("the description has a seed, so its noise hides nothing", "describe the tables without a seed")
    values, columns = found["schema"], found["columns"]
    schema = parse(values, NAME)
    for name, one in {**values["columns"], schema.target.column: values["target"]}.items():
        estimates = {each["metric"]: each["value"] for each in columns.get(name, {}).get("estimates", ())}
        if estimates.get("mean") is not None and estimates.get("sd"):
            centre, scale = rounded(estimates["mean"], estimates["sd"])
            limits = schema.target.limits if one is values["target"] else _limits(schema, name)
            one |= {"centre": centre, "scale": scale, "range": list(limits)}
        shares = [each["value"] for each in columns.get(name, {}).get("shares", ())]
        if name == schema.target.column and schema.classes is not None and shares and None not in shares:
            one["balance"] = balance(shares)
        if name == schema.target.column and schema.times is not None and estimates and None not in estimates.values():
            one["bins"] = _even(schema.times, list(estimates.values()))
    many = f"{sum(found['records']):,} {found['unit']}s of {len(found['records'])} sites"
    cost = f"ε = {up(found['epsilon'])}, δ = {up(found['delta'])} for each {found['unit']}"
    return parse(values, NAME), f"a noised description of {many}: {cost}, beside what training costs"


def _limits(schema: Schema, name: str) -> tuple[float, float]:
    column = schema.encoded[name]
    assert isinstance(column, Number)  # noqa: S101
    return column.limits


def _even(times: list[float], survival: list[float]) -> list[float]:
    """Return round times between which survival falls by about as much each."""
    levels = np.linspace(1, survival[-1], len(times) + 1)[1:]
    falling = np.minimum.accumulate([1.0, *survival])
    ends = np.interp(-levels, -falling, [0.0, *times])
    return sorted({float(f"{end:.2g}") for end in ends[:-1]} | {times[-1]})


def _schema(config: Config) -> Schema:
    if config.data.schema is None:
        raise Refused("run.toml has no data.schema, and describe uses its public ranges", "name one in data.schema")
    return config.data.schema


def _column(schema: Schema, name: str, bins: int) -> Values | Numbers | Times:
    if name == schema.target.column and schema.times is not None:
        return Times(name, tuple(schema.times))
    if name == schema.target.column:
        classes = schema.target.classes
        return Numbers(name, *schema.target.limits, bins) if classes is None else Values(name, tuple(classes))
    column = schema.encoded[name]
    if isinstance(column, Number):
        return Numbers(name, *column.limits, bins)
    return Values(name, tuple(column.known) if isinstance(column, Category) else ("yes", "no"))


def _missing(schema: Schema, name: str, x: NDArray[Any]) -> NDArray[np.bool_]:
    none = np.zeros(len(x), bool)
    if name == schema.target.column or schema.encoded[name].missing is None:
        return none
    return np.asarray(x[:, schema.features.index(f"{name} is missing")] > 0)


def _numbers(schema: Schema, name: str, dataset: Dataset) -> tuple[Array, NDArray[np.bool_]]:
    """Return a column in the unit of the table, and where it is missing."""
    if name == schema.target.column:
        (centre, scale), values = schema.target.affine, dataset.y
    else:
        column = schema.encoded[name]
        assert isinstance(column, Number)  # noqa: S101
        (centre, scale), values = column.affine, dataset.x[:, schema.features.index(name)]
    return centre + scale * values.astype(float), _missing(schema, name, dataset.x)


def codes(schema: Schema, name: str, dataset: Dataset) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the number of each row's value, and where it is missing."""
    x, missing = dataset.x, _missing(schema, name, dataset.x)
    if name == schema.target.column:
        return dataset.y.astype(np.int64), missing
    column = schema.encoded[name]
    if isinstance(column, YesNo):
        return (x[:, schema.features.index(name)] < 0).astype(np.int64), missing
    assert isinstance(column, Category)  # noqa: S101
    return x[:, [schema.features.index(f"{name} = {one}") for one in column.known]].argmax(1), missing


def values_of(schema: Schema, name: str) -> tuple[str, ...]:
    """Return the values of a column; refuse a column of numbers."""
    column = None if name not in schema.encoded else _column(schema, name, 2)
    if not isinstance(column, Values):
        raise Refused(f"evaluation.subgroups: {name!r} is no category or yes/no column", "name one of the schema")
    return column.values


def rows_of(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return column, statistic and value with its interval."""
    lines = []
    for name, one in found["columns"].items():
        for each in one.get("estimates") or [share | {"metric": share["group"]} for share in one["shares"]]:
            what = each["metric"] if each["group"] == name or "shares" in one else f"{each['metric']}, {each['group']}"
            lines.append((name, what, shown(each)))
        if "missing" in one:
            lines.append((name, "missing", shown(one["missing"])))
    return lines


def shown(one: dict[str, Any], form: str = ".4g", why: str = "", which: str = "") -> str:
    """Return a value with its interval, or how many records it would need; `why` it is not shown if nobody knows."""
    if one["value"] is not None:
        return f"{one['value']:{form}} ({one['low']:{form}} to {one['high']:{form}})"
    needed = one["persons_needed"]
    return f"not shown{why}" if needed is None else f"not shown: needs about {needed:,} {which}records"


def statement(found: dict[str, Any]) -> list[str]:
    """Say what the description spent."""
    return views.written("description.txt", found=found)
