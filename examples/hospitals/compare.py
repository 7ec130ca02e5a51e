"""Compare a run of the hospitals with what nobody could have: all records in one place, and no privacy at all.

    python examples/hospitals/compare.py runs/hospitals

Prints the area under the ROC curve on the public test records: of the run's model, as its report says, of
scikit-learn's logistic regression on all hospitals' records pooled, and on each hospital's alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import privsgp
from privsgp.accounting.shown import up
from privsgp.data import tables

SITES = ("aachen", "basel", "cork")


def auc_without_privacy(x: np.ndarray, y: np.ndarray, test: tables.Table) -> float:
    """Fit logistic regression as anybody would, and score it."""
    model = LogisticRegression(max_iter=1000).fit(x, y)
    return float(roc_auc_score(test.y, model.decision_function(test.x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    schema = privsgp.Schema.read(options.data / "schema.toml")
    own = {site: tables.read(options.data / f"{site}.csv", schema) for site in SITES}
    test = tables.read(options.data / "test.csv", schema)
    summary = json.loads((options.run / "summary.json").read_text())
    pooled = auc_without_privacy(
        np.concatenate([t.x for t in own.values()]), np.concatenate([t.y for t in own.values()]), test
    )
    print(f"AUC {summary['auc']:.4f}  together, ε = {up(max(summary['epsilon_spent']), 3)} at most")
    print(f"AUC {pooled:.4f}  all records in one place, not private: {pooled - summary['auc']:+.4f}")
    for site, table in own.items():
        print(f"AUC {auc_without_privacy(table.x, table.y, test):.4f}  {site} alone, not private")


if __name__ == "__main__":
    main()
