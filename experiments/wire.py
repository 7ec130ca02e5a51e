"""What a step between sites takes with 11 million weights at 32, 8 and 4 bits: on one machine, and over slow wires.

Two sites mix on this machine's loopback, beside gloo, and through a proxy of 100 Mbit/s and 20 ms. Three sites mix,
each behind a line of 20 Mbit/s. `benchmarks/sites.py` measures; rows that the JSON file has are not measured again.

    python experiments/wire.py [--only three] [--bits 4]
    python experiments/wire.py --page docs/performance.md      # measure nothing: write the table
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pages

from privsgp.files import write_json
from privsgp.transport.rounding import width
from privsgp_research.provenance import provenance

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import sites  # noqa: E402

RESULTS, PAGE = ROOT / "docs" / "results" / "wire.json", ROOT / "docs" / "performance.md"
SIZE, TURNS = sites.SIZES[-1], 2
KINDS = {
    "loopback": lambda bits: sites.loopback(SIZE, TURNS, bits), "slow": lambda bits: sites.slow(SIZE, TURNS, bits),
    "three": lambda bits: sites.three(SIZE, bits),
}  # fmt: skip
HEAD = (
    "| bits | bytes of a message | loopback, a step | without commit | gloo, 32 bits | CPU of both ends "
    "| 100 Mbit/s, a message | share of the wire | three sites at 20 Mbit/s, a step | the wire alone |"
)


def exact(bits: int) -> int:
    """Return the bytes of a message without its header."""
    return 8 * (SIZE.dim + 1) if bits == 32 else width(bits, SIZE.dim)


def part(told: dict[str, Any]) -> str:
    """Return the table, a row for each width."""
    lines = [HEAD, "|---:" * 10 + "|"]
    for bits in sites.WIDTHS:
        found = {row["kind"]: row for row in told["rows"] if row["bits"] == bits}
        near, slow, three = (found.get(kind) for kind in KINDS)
        cells = [str(bits), *[""] * 9]
        if near:
            cpu = near["committed_cpu_s_per_gb"] * near["message_bytes"] / exact(bits)  # the last may be on its way
            cells[1:6] = [
                f"{exact(bits) / 1e6:.1f} MB", f"{near['ours_ms']:.0f} ms", f"{near['uncommitted_ms']:.0f} ms",
                f"{near['gloo_ms']:.0f} ms", f"{cpu:.0f} s/GB",
            ]  # fmt: skip
        if slow:
            cells[6:8] = [f"{slow['message_ms'] / 1e3:.1f} s", f"{slow['of_the_wire']:.0%}"]
        if three:
            cells[8:] = [f"{three['step_s']:.1f} s", f"{three['wire_s']:.1f} s"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", pages.commits(told["rows"])])


def keep(told: dict[str, Any], kind: str, row: dict[str, Any]) -> None:
    """Put a row into the JSON file."""
    told["rows"].append({"kind": kind} | row | provenance("cpu"))
    write_json(RESULTS, told)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--bits", type=int, nargs="+", default=list(sites.WIDTHS))
    parser.add_argument("--page", type=Path, help="measure nothing: write what the JSON file has into this page")
    return parser.parse_args()


def main() -> None:
    """Measure what is missing, and write the table."""
    asked = arguments()
    told = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"weights": SIZE.dim, "rows": []}
    for kind in () if asked.page else asked.only:
        for bits in asked.bits:
            if not any((row["kind"], row["bits"]) == (kind, bits) for row in told["rows"]):
                keep(told, kind, KINDS[kind](bits))
    pages.put(asked.page or PAGE, "wire", part(told))


if __name__ == "__main__":
    main()
