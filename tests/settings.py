"""Settings of an algorithm from plain keywords: facts of the run and the algorithm's own options together."""

from __future__ import annotations

import dataclasses

from privsgp.algorithms import ALGORITHMS, Settings

_FACTS = {field.name for field in dataclasses.fields(Settings)}


def settings_of(algorithm, **values):
    facts = {key: value for key, value in values.items() if key in _FACTS}
    own = {key: value for key, value in values.items() if key not in _FACTS}
    return Settings(**facts, options=ALGORITHMS[algorithm].Options(**own))
