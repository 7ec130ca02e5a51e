"""Mechanisms, accounting, calibration and ledgers, without torch.

`mechanism` says what one release is; `accountant` and `calibration` turn it into ε and σ. Import
them as modules: a mechanism costs nothing to import, the accountant brings scipy and dp-accounting.
"""

from __future__ import annotations
