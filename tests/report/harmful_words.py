"""A plan, and runs in which every word that came from outside is one that would do harm as markup."""

from __future__ import annotations

import dataclasses
import pathlib

ASKED = {"name": "privsgp", "steps": "auto", "step_size": 0.5, "batch": 16.0, "weights": "equal"}
METHOD = {"method": "privsgp", "steps": 30, "step_size": 0.5, "sigma": 1.0, "noise_in_average": 0.1, "score": 0.9,
          "bound_curve": [1.0, 2.0], "noise_curve": [0.2, 0.1]}  # fmt: skip
PLAN = {"algorithm": "privsgp", "steps": 30, "step_size": 0.5, "batch": 16, "weights": None, "methods": [METHOD],
        "asked": ASKED, "accountant": "certified", "bound_steps": 9, "curve_steps": [20, 40],
        "warnings": [], "why": "", "estimated_on": {"kind": "private", "words": "own samples"}}  # fmt: skip
HOSTILE = "</script></pre></svg><b a='1\" onload=\"x'>&amp;{{ 7 * 7 }}{# n #}{% raw %}\u2028<script>pwned = 1</script>"


def saying(run, word):
    """Return the run with this word wherever one came from outside; its name keeps its beginning."""
    methods = [METHOD | {"method": word}, METHOD | {"method": word + word}]
    return dataclasses.replace(
        run,
        path=pathlib.Path(word.replace("/", "")),
        config=run.config.model_copy(update={"name": run.config.name + word}),
        identity={"run": word, "started": word, "command": [word, word], "versions": {"privsgp": word, "torch": word}},
        summary=run.summary | {"ended": word},
        plan=PLAN | {"methods": methods, "warnings": [word], "estimated_on": {"kind": "public", "words": word}},
    )
