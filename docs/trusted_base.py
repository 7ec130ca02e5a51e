"""Writes docs/trusted-base.md: the files that must be right for ε to be true, with their lines of code.

A file is in the trusted base if a mistake in it could make the true ε of a private run larger than the ε that privsgp
prints. Every other file of the package is named too, with the reason why a mistake there cannot do that.

    python docs/trusted_base.py            # write the page
"""

from __future__ import annotations

import ast
import io
import tokenize
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parent.parent
PACKAGE, PAGE = ROOT / "src" / "privsgp", ROOT / "docs" / "trusted-base.md"

PLAIN = "A plain run"
PAIRWISE, PERSONS = "Pairwise noise", "A person with several rows"
DIALECT, SURVIVAL = "A dialect file beside a table", "A survival target"
LAYERS = "A convolution, a norm layer or a layer at many positions"
RULELESS = "A layer without a rule, or a `forward` of your own"
COMPOUND = "Shared noise, persons, sums, anchors or an earlier run"
IMAGES, TEXTS, FEATURES, SUMS = "Images", "Texts", "A feature map", "`describe` or `evaluate --private`"
GPU, TORCHRUN, SITES = "A GPU", "torchrun", "Sites"
CHOICES = (COMPOUND, PAIRWISE, PERSONS, DIALECT, SURVIVAL, LAYERS, RULELESS, IMAGES, TEXTS, FEATURES, SUMS)
TRUSTED: dict[str, dict[str, str]] = {
    PLAIN: {
        "accounting/accountant.py": "Counts each mechanism by two computations, and refuses an unknown one.",
        "accounting/book.py": "Charges every release on a record to that record, over all runs, and never forgets one.",
        "accounting/chain.py": "Detects every line of a log that was changed, removed or moved.",
        "accounting/curve.py": "Turns a δ(ε) curve into that of a group without making it smaller.",
        "accounting/ledger.py": "Never counts fewer releases than were sent.",
        "accounting/mechanisms.py": "Describes a message: this object sets sampler, clip and noise, and is counted.",
        "accounting/pld.py": "Rounds privacy losses up when it discretises and composes them.",
        "accounting/saga.py": "Covers every table entry and difference that a sample can have, and takes the worst.",
        "accounting/sampler_cost.py": "Adds what noise in floating point costs beyond ideal noise.",
        "accounting/shown.py": "Rounds every printed ε and δ up.",
        "accounting/statements.py": "Computes ε again from the ledger, and refuses a ledger that does not fit.",
        "algorithms/algorithm.py": "Clips before it sums, and divides by public constants.",
        "algorithms/block.py": "Adds the mechanism's noise to the direction before anything else sees it.",
        "algorithms/events.py": "Names what leaves a node: a message leaves only by an event.",
        "algorithms/methods.py": "Runs a method only with the mechanism that it declares.",
        "algorithms/push_sum.py": "Yields a release for all that is exchanged, and the exchange after it.",
        "algorithms/saga.py": "Computes the estimator that the accountant counts, table included.",
        "data/dataset.py": "Takes nothing public (number of classes, shapes) from private records.",
        "data/files.py": "Makes one sample of one record.",
        "data/hashes.py": "Gives a record of a table the same hash in every file, format and schema.",
        "data/loading.py": "Keeps private files and public files apart.",
        "data/partitions.py": "Puts each record on one node, without looking at labels in a private run.",
        "data/samples.py": "Makes one sample of one record that comes from Python.",
        "data/schema.py": "Takes column types and ranges from the public schema alone.",
        "data/tables.py": "Makes one sample of one row, by the public schema alone.",
        "devices.py": "Chooses sizes and precision from public facts. Waits for every thread and raises its error.",
        "engine/budget_guard.py": "Makes a payment durable before the message that it pays for leaves.",
        "engine/checkpoint.py": "Restores the state together with the ledger's head, or refuses.",
        "engine/drive.py": "Records a release before it mixes or sends it.",
        "engine/folder.py": "Keeps private files in `private/` with mode 0600, and never half-writes a file.",
        "engine/groups.py": "Gives each group of nodes its own nodes, and joins their releases in order.",
        "engine/node_randomness.py": "Draws each sample with the counted probability, and each noise once.",
        "engine/spec.py": "Holds the mechanisms that were counted, and nothing else is used.",
        "engine/trainer.py": "Wires sampler, clip, noise and ledger to one mechanism per node.",
        "errors.py": "Ends a run without printing a private value.",
        "files.py": "Writes durably, whole or not at all.",
        "gradients/layout.py": "Puts every parameter in one place of the row.",
        "gradients/per_sample.py": "Clips each sample's whole gradient to the norm G. One that is not finite is 0.",
        "gradients/product.py": "Multiplies stacked matrices.",
        "gradients/rounding.py": "States κ, a bound on what the arithmetic of clipping can be off by.",
        "gradients/rules/layer.py": "Refuses a parameter of two layers, and a layer that is called twice.",
        "gradients/rules/ruled.py": "Assembles one sample's gradient of the whole model.",
        "gradients/stacked.py": "Probes before training that a sample's gradient does not depend on other samples.",
        "gradients/table.py": "Keeps every entry in the ball of radius G, and its mean equal to the entries'.",
        "options.py": "Refuses a key or a value that a component does not know.",
        "outside.py": "Refuses a value from outside that is not of its type and range.",
        "randomness/coins.py": "Draws one independent coin per sample and step.",
        "randomness/noise.py": "Draws secret noise from ChaCha20, and never the same numbers twice.",
        "randomness/normals.py": "Turns words into normals, and rounds to the cell that float64 gives.",
        "runs/booked.py": "Registers a run in the budget book before its first release.",
        "runs/budgets.py": "Calibrates each node's noise for its own J, b and (ε, δ).",
        "runs/build.py": "Hands the counted mechanisms to the engine.",
        "runs/config.py": "Refuses a configuration that means two things.",
        "runs/problem.py": "Loads each node's own records, and takes the model from public facts.",
        "runs/resolve.py": "Settles open values before they are counted.",
        "runs/summary.py": "Publishes no number of private records.",
        "runs/train.py": "Opens ledgers and book before training, and continues a run only as it was.",
        "seeds.py": "Keys public randomness only.",
        "transport/world.py": "Gives a process that is alone its own values back.",
    },
    COMPOUND: {
        "accounting/compound.py": "Changes in what is counted exactly what differs from the release that it is around.",
    },
    PAIRWISE: {
        "accounting/mixture.py": "Bounds both hockey sticks of a person whom several sites with shared noise draw.",
        "accounting/pairwise.py": "Computes each node's effective noise against the worst coalition of the others.",
        "randomness/pairwise.py": "Adds a pair's noise with opposite signs, and each node's own noise.",
        "runs/shared_noise.py": "Refuses shared noise that is worth less to a node than it needs.",
        "randomness/snapshot.py": "Notices that a machine was put back to a snapshot of its memory.",
    },
    PERSONS: {
        "data/persons.py": "Makes one sample of one person's rows, and reads no other row for it.",
        "gradients/persons.py": "Averages a person's row gradients before the clip.",
    },
    LAYERS: {
        "gradients/positions.py": "Computes norms and sums of layers that use one weight at many positions.",
        "gradients/rules/conv.py": "Computes one sample's gradient of a convolution.",
        "gradients/rules/norm.py": "Computes one sample's gradient of GroupNorm and LayerNorm.",
    },
    RULELESS: {
        "gradients/rules/mixed.py": "Runs the user's own code, and layers without a rule, on each sample by itself.",
    },
    IMAGES: {
        "data/images.py": "Makes one sample of one image.",
    },
    TEXTS: {
        "data/text.py": "Makes one sample of one text.",
        "gradients/rules/embedding.py": "Computes one sample's gradient of an embedding.",
    },
    FEATURES: {
        "features/encode.py": "Maps each sample by itself, and keeps features of private samples private.",
        "features/maps.py": "Builds the map from public facts.",
    },
    SURVIVAL: {
        "data/survival.py": "Makes one target of one person's time and event, in public bins.",
    },
    DIALECT: {
        "data/dialect.py": "Reads one site's table by that site's own words; row hashes stay those of the file.",
    },
    SUMS: {
        "runs/description.py": "Makes one vector of each row, from that row alone.",
        "runs/evaluation.py": "Evaluates who was not trained on, and charges both sides where they may meet.",
        "runs/sums.py": "Turns a sum of vectors into a run of one step, in which every sample is drawn.",
        "statistics/columns.py": "Makes one bounded block of each row and column; all results come from noised sums.",
        "statistics/estimates.py": "Makes one bounded vector of each person; its metrics come from noised sums alone.",
        "statistics/survival.py": "Makes one bounded vector of each person; curves come from noised sums alone.",
    },
    GPU: {
        "randomness/on_device.py": "Draws each noise once, and rounds to the grid that is counted.",
        "engine/step.py": "Pays for a step before the kernel computes its messages.",
        "kernels/chacha.py": "Draws the same secret noise as the CPU.",
        "kernels/group_norm.py": "Computes the same gradients as the rule for GroupNorm.",
        "kernels/positions.py": "Computes the same sums as the rule for convolutions.",
        "kernels/push.py": "Adds noise before it mixes.",
        "kernels/rows.py": "Computes the norms and clip factors of samples.",
    },
    TORCHRUN: {
        "transport/rendezvous.py": "Checks what other processes say, and takes nothing about its own nodes from them.",
        "transport/torch_distributed.py": "Sends released messages only.",
    },
    SITES: {
        "randomness/pair_streams.py": "Draws the same numbers at both ends of a pair, and each for one message.",
        "sites/agreement.py": "Turns the signed agreement into the run that is counted. Asks the site's policy.",
        "sites/amend.py": "Stops the old run for good, and counts all that it reserved.",
        "sites/canonical.py": "Writes one value as one sequence of bytes.",
        "sites/continuing.py": "Checks that an old run was closed by its ledgers, and takes its noise from them.",
        "sites/identity.py": "Keeps the site's keys private.",
        "sites/net/client.py": "Sends committed messages only.",
        "sites/net/server.py": "Serves committed messages only, to members only.",
        "sites/net/tls.py": "Requires TLS 1.3 and the member's certificate.",
        "sites/protocol/frames.py": "Checks every message from outside before it is used.",
        "sites/protocol/mailbox.py": "Holds committed messages only.",
        "sites/protocol/gossip.py": "Stops the site when a message with its own signature is not in its own log.",
        "sites/protocol/peers.py": "Lets no peer change what this site sends or counts.",
        "sites/protocol/pairs.py": "Derives a pair's secret that nobody else can compute, and deletes it in time.",
        "sites/run.py": "Commits, records, posts and waits in this order, and stops when a rule is broken.",
        "sites/store.py": "Keeps what the site has signed, durably.",
        "sites/study.py": "Reads the signed study, and refuses one in another form or after its expiry.",
        "sites/trainer.py": "Commits a step before it is sent, and repeats none with new noise.",
        "sites/sums.py": "Counts nobody whom the evaluated model's run trained on, and shows no sum that is not whole.",
        "sites/transport.py": "Sends sums of released messages only.",
        "transport/link.py": "Adds up released messages only.",
    },
}
OUTSIDE = {
    "*__init__.py": "Imports and names.",
    "__main__.py": "Calls the command line.",
    "api.py": "Passes arguments to `runs`, which checks them.",
    "sklearn.py": "Passes arguments to `api.py`. Its folder for each fit is new.",
    "cli*.py": "Passes arguments to `runs` and `sites`, which check them.",
    "accounting/assumptions.py": "Writes words.",
    "accounting/calibration.py": "Searches for noise. `engine/spec.py` refuses noise that is counted above a budget.",
    "accounting/lower_bound.py": "Refuses an ε that is below what an observer learns. It changes none.",
    "accounting/renyi_bound.py": "Refuses an ε that is above its own bound. It changes none.",
    "accounting/policy.py": "Refuses runs. The ε of a run that it lets pass is printed as it is.",
    "accounting/sharing.py": "Searches for shared noise. `runs/budgets.py` counts what it is worth.",
    "sites/policy.py": "Refuses runs. The ε of a run that it lets pass is printed as it is.",
    "algorithms/update_rule.py": "Is given noised directions alone.",
    "engine/averaging.py": "Is given released states alone.",
    "engine/evaluate.py": "Is given released models and test data alone, but in a simulation. No ε covers metrics.",
    "engine/stopping.py": "Asks a run to stop after a step.",
    "engine/formats.py": "Refuses a damaged file of a finished run. It changes no number.",
    "gradients/unrolled.py": "Is a part of the model. `gradients/stacked.py` maps it over samples one by one.",
    "plugins.py": "Finds packages. Each method of a package declares a mechanism, which is counted.",
    "audit/*": "Attacks runs on made-up data. It can miss a mistake, and it makes none.",
    "research/*": "Imported by nothing. Its methods declare a mechanism, which is counted.",
    "planner/*": "Chooses public numbers from public or made-up data. The accountant counts the numbers that it chose.",
    "report/*": "Reads published files of a run folder.",
    "runs/card.py": "Reads published numbers.",
    "runs/benefit.py": "Compares two models for one site; writes only to private/.",
    "runs/charts.py": "Reads published numbers.",
    "runs/first.py": "Writes a first configuration from public facts.",
    "runs/refusals.py": "Writes the words of a refusal.",
    "runs/result.py": "Reads a finished model.",
    "runs/rows.py": "Prepares new rows for a finished model.",
    "runs/sections.py": "Names the sections of run.toml for Python.",
    "runs/views.py": "Reads published numbers, and prints ε by `accounting/shown.py`.",
    "clock.py": "Simulates time.",
    "graph/*": "Chooses who hears a message. Every message is counted as if everybody heard it.",
    "curves.py": "Compares predicted survival with public targets.",
    "metrics.py": "Compares predictions with public labels.",
    "models/loss.py": "Is probed with the model by `gradients/stacked.py`: a sample's loss alone and in a batch.",
    "later.py": "Imports and names.",
    "models/additive.py": "Builds a public model from a public schema. `gradients/stacked.py` probes it.",
    "models/networks.py": "Builds a public model. `gradients/stacked.py` probes it.",
    "models/options.py": "Names models.",
    "data/published.py": "Reads data sets whose records are published.",
    "data/same_records.py": "Refuses private data that somebody called public by mistake.",
    "data/schema_text.py": "Writes public schemas, and the words of refusals.",
    "data/tokens.py": "Fixed maps of one text. `data/text.py` gives it one text at a time.",
    "data/check.py": "Lists what is wrong with one site's table, for that site alone.",
    "data/draft.py": "Drafts a schema from public tables.",
    "features/*": "Fixed maps of one sample, with public weights.",
    "transport/*": "Carries messages that were already released and counted.",
    "sites/audit.py": "Writes down refused messages of others.",
    "sites/doctor.py": "Tests connections before a run.",
    "sites/net/*": "Carries sealed messages, or explains why a link fails.",
    "sites/protocol/increments.py": "Encodes sums that were released, committed and signed, and reads those of others.",
    "sites/protocol/outliers.py": "Judges messages of others.",
    "sites/signed.py": "Checks signatures of a finished run.",
    "sites/status.py": "Shows public counts.",
    "sites/web.py": "Serves what `sites/status.py` shows.",
}
_SKIPPED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip
_HEAD = """# Trusted base

These files must be right for ε to be true. A file is in this list if a mistake in it could make the true ε of a private
run larger than the ε that privsgp computes, and that `privsgp ledger` computes again. The files that show it are not
in the list: compare their number with that of `privsgp ledger`. Lines are lines of code, without blank lines, comments
and docstrings.

A plain run is `privsgp train` with `privsgp-vr` (or another method of push-sum) in one process on a CPU. Its data are
tables or arrays, one record per row, its model is a `Sequential` of linear layers, and each node has noise of its own.
If your run is a plain run, read the first list only: a mistake in any other file cannot make its ε false. A test traces
a plain run and finds no file of another list. Each choice adds the files of its own list.

privsgp also trusts Python, numpy, scipy, PyTorch, dp-accounting, cryptography, SQLite, the operating system and the
hardware. Between sites it trusts gRPC to carry bytes, and nothing else. It takes data that a configuration calls public
as public: it compares them with private records, but this comparison cannot find everything.

{totals}

`python docs/trusted_base.py` writes this page. A test compares it with the code.
"""


def code_lines(path: Path) -> int:
    """Count lines of code: no blank lines, comments or docstrings."""
    text = path.read_text()
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docs.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def reason(name: str) -> str | None:
    """Return why a file is not in the trusted base; None if no pattern names it."""
    return next((why for pattern, why in OUTSIDE.items() if fnmatch(name, pattern)), None)


def page() -> str:
    """Return the page."""
    counts = {str(p.relative_to(PACKAGE)): code_lines(p) for p in sorted(PACKAGE.rglob("*.py"))}
    sums = {layer: sum(counts[name] for name in files) for layer, files in TRUSTED.items()}

    def row(words: str, layers: Iterable[str]) -> str:
        chosen = list(layers)
        return f"| {words} | {sum(len(TRUSTED[one]) for one in chosen)} | {sum(sums[one] for one in chosen):,} |"

    rows = ["| | files | lines of code |", "|---|---:|---:|"]
    rows += [row(f"**{PLAIN}** on a CPU", [PLAIN]), *(row(f"{one} adds", [one]) for one in CHOICES)]
    rows += [row("One process on a CPU, with all of these", [PLAIN, *CHOICES])]
    rows += [row(f"{one} adds" if one != SITES else "Sites add", [one]) for one in (GPU, TORCHRUN, SITES)]
    rows += [row("A plain run between sites, with GPUs and torchrun", [PLAIN, GPU, TORCHRUN, SITES])]
    rows += [row("All together", TRUSTED), f"| The whole package | {len(counts)} | {sum(counts.values()):,} |"]
    parts = [_HEAD.format(totals="\n".join(rows))]
    for layer, files in TRUSTED.items():
        parts += [f"## {layer}\n\n{len(files)} files, {sums[layer]:,} lines.\n"]
        parts += ["| file | lines | what it must get right |", "|---|---:|---|"]
        parts += [f"| `{name}` | {counts[name]} | {right} |" for name, right in sorted(files.items())] + [""]
    trusted = {name for files in TRUSTED.values() for name in files}
    others: dict[str, list[str]] = {}
    for name in counts:
        if name not in trusted:
            others.setdefault(reason(name) or "", []).append(name)
    parts += [
        "## Not in the trusted base\n",
        "| files | lines | why a mistake cannot make ε larger |",
        "|---|---:|---|",
    ]
    for why, names in others.items():
        parts += [f"| {', '.join(f'`{name}`' for name in names)} | {sum(counts[n] for n in names)} | {why} |"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
