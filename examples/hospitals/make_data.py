"""Make up the records of three hospitals, and public ones to test on: synthetic, from a fixed seed, and nobody's.

    python examples/hospitals/make_data.py            # writes aachen.csv, basel.csv, cork.csv and test.csv beside this

Whether a patient comes back within a month (one in ten does) hangs on age, blood values, earlier stays and wards. The
hospitals differ in size and patients, and each has its own gaps: cork measures HbA1c in every second patient.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

RECORDS = {"aachen": 4000, "basel": 1500, "cork": 800, "test": 6000}
OLDER = {"aachen": 0, "basel": 6, "cork": -4}  # years
GAPS = {"aachen": 0.08, "basel": 0.15, "cork": 0.5}  # share of patients without an HbA1c
WARDS = ["cardiology", "surgery", "internal", "neurology", "geriatrics"]
RISK = {"cardiology": 0.5, "surgery": -0.4, "internal": 0.2, "neurology": 0.0, "geriatrics": 0.5, "dental": -0.8}


def patients(site: str, count: int, rng: np.random.Generator) -> list[dict[str, object]]:
    """Make up patients, with the columns of a hospital's table."""
    age = np.clip(rng.normal(62 + OLDER.get(site, 0), 16, count), 18, 101).round()
    ward = rng.choice([*WARDS, "dental"], count, p=[0.24, 0.26, 0.24, 0.12, 0.12, 0.02])
    diabetes = rng.random(count) < 0.12 + 0.0015 * age
    smoker = rng.random(count) < 0.22
    pressure = rng.normal(118 + 0.25 * age, 17).round()
    creatinine = np.exp(rng.normal(-0.08 + 0.003 * age, 0.32)).round(2)
    hba1c = np.where(diabetes, rng.normal(7.3, 1.2, count), rng.normal(5.5, 0.4, count)).round(1)
    stays = rng.poisson(0.35 + 0.006 * age)
    days = np.ceil(rng.gamma(2.0, 2.4, count))
    risk = (
        -3.4 + 0.03 * (age - 62) + 1.1 * np.log(creatinine) + 0.6 * stays + 0.045 * days + 0.3 * smoker
        + 0.28 * (hba1c - 5.8) + 0.008 * (pressure - 133) + np.array([RISK[w] for w in ward])
    )  # fmt: skip
    back = rng.random(count) < 1 / (1 + np.exp(-risk))
    no_hba1c = rng.random(count) < GAPS.get(site, 0.2)
    no_pressure, unknown = rng.random(count) < 0.03, rng.random(count) < 0.1
    return [
        {
            "patient": f"{site}-{i:05}", "age": int(age[i]), "sex": rng.choice(["f", "m"]), "ward": ward[i],
            "systolic": "" if no_pressure[i] else int(pressure[i]), "creatinine": creatinine[i],
            "hba1c": "NA" if no_hba1c[i] else hba1c[i], "diabetes": "yes" if diabetes[i] else "no",
            "smoker": "" if unknown[i] else "yes" if smoker[i] else "no", "stays": int(stays[i]),
            "days": int(days[i]), "readmitted": "yes" if back[i] else "no",
        }
        for i in range(count)
    ]  # fmt: skip


def write(folder: Path) -> None:
    """Write every table."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (site, count) in enumerate(RECORDS.items()):
        rows = patients(site, count, np.random.default_rng([2026, number]))
        with (folder / f"{site}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    write(parser.parse_args().out)
