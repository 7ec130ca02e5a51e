"""The rows of a benchmark as tables to read, in Markdown."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
_BELOW = """In brackets: theirs over ours with a seed. The loops take the n nodes one after the other, without mixing,
table or ledger; the floor is one model on all nodes' samples at once."""
_KEY = ("device", "n", "batch", "samples", "dim")


def page(rows: list[Row]) -> str:
    """Return all tables that there are rows for."""
    return "\n\n".join(table for table in (_main(rows), _scale(rows), _rest(rows)) if table)


def _main(rows: list[Row]) -> str:
    """Return ours, seeded and secret, beside the loops and the floor: one line for each workload."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        one = found.setdefault(tuple(row.get(key) for key in _KEY), {})
        if "opacus_ratio" in row:
            one |= {"name": row["workload"], "seeded": row["ours_ms"]}
            one |= {loop: row[f"{loop}_ratio"] * row["ours_ms"] for loop in ("opacus", "sgd", "floor")}
        elif "seeded_ms" in row:
            one |= {"name": row["workload"].removeprefix("secret, "), "secret": row["ours_ms"]}
            one |= {"seeded": one.get("seeded", row["seeded_ms"]), "times": row["ours_ms"] / row["seeded_ms"]}
    head = ("ms a step", "nodes × batch", "samples", "weights", "ours, seeded", "ours, secret", "secret ÷ seeded")
    head += ("Opacus loop", "non-private loop", "floor")
    lines = [_line(dict(zip(_KEY, key, strict=True)) | one) for key, one in found.items() if one]
    return f"{_table(head, lines)}\n\n{_BELOW}" if lines else ""


def _line(row: Row) -> tuple[str, ...]:
    size = f"{row['n']} × {row['batch']}", f"{row['samples']:,}", f"{row['dim']:,}"
    times = f"{row['times']:.2f}" if "times" in row else "–"
    ours = _ms(row.get("seeded")), _ms(row.get("secret")), times
    return f"{row['name']}, {row['device']}", *size, *ours, *(_rival(row, loop) for loop in ("opacus", "sgd", "floor"))


def _rival(row: Row, loop: str) -> str:
    return f"{_ms(row[loop])} ({row[loop] / row['seeded']:.3g})" if loop in row else "–"


def _scale(rows: list[Row]) -> str:
    """Return the time of a node's step by n; flat where the last column stays near 1."""
    found = [row for row in rows if "node_step_us" in row]
    least = min((row["node_step_us"] for row in found), default=1.0)
    head = ("nodes", "ms a step", "µs a node", "of the least")
    lines = [
        (str(row["n"]), _ms(row["ours_ms"]), _ms(row["node_step_us"]), f"{row['node_step_us'] / least:.2f}")
        for row in found
    ]
    return _table(head, lines) if lines else ""


def _rest(rows: list[Row]) -> str:
    """Return what has no table of its own, a line each."""
    shown = ("opacus_ratio", "seeded_ms", "node_step_us")
    left = [row for row in rows if not any(key in row for key in shown)]
    extra = {key for row in left for key in row} - {"workload", "ours_ms", "memory_mb", "others", "steal", *_KEY}
    lines = [
        (row["workload"], str(row.get("n", "")), _ms(row.get("ours_ms")),
         ", ".join(f"{key} {_short(row[key])}" for key in row if key in extra))
        for row in left
    ]  # fmt: skip
    return _table(("also", "nodes", "ms", "beside"), lines) if lines else ""


def _table(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(head, *lines, strict=True)]
    rule = tuple("-" * width for width in widths)
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in (head, rule, *lines))


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
