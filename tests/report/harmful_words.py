"""A plan, and runs in which every word that came from outside is one that would do harm as markup."""

from __future__ import annotations

import dataclasses

ASKED = {"name": "privsgp", "steps": "auto", "step_size": 0.5, "batch": 16.0, "weights": "equal"}
METHOD = {"method": "privsgp", "steps": 30, "step_size": 0.5, "sigma": 1.0, "noise_in_average": 0.1, "score": 0.9}
PLAN = {"algorithm": "privsgp", "steps": 30, "step_size": 0.5, "batch": 16, "weights": None, "methods": [METHOD],
        "asked": ASKED, "accountant": "certified",
        "warnings": [], "why": "", "estimated_on": {"kind": "private", "words": "own samples"}}  # fmt: skip
HOSTILE = "</script></pre></svg><b a='1\" onload=\"x'>&amp;{{ 7 * 7 }}{# n #}{% raw %}\u2028<script>pwned = 1</script>"


def saying(view, word):
    """Return the view with this word in every place whose words came from outside."""
    peer = {"peer": word, "what": word, "refused": True, "at": word}
    return dataclasses.replace(
        view,
        sites=[dataclasses.replace(site, name=word) for site in view.sites],
        config=view.config.model_copy(update={"name": view.config.name + word}),
        identity={"run": word, "started": word, "command": [word, word], "versions": {"privsgp": word, "torch": word}},
        summary=view.summary
        | {"name": word, "ended": word, "steps_planned": 99, "dull": [word], "own_metrics": {word: 1.0}}
        | {"faults": {"sent": word}, "site": {"name": word, "node": 0, "warnings": [peer], "roster": []}},
        plan=PLAN | {
            "methods": [METHOD | {"method": word}], "warnings": [word],
            "estimated_on": {"kind": "public", "words": word},
        },
    )  # fmt: skip
