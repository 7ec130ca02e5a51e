"""Randomness that all may know: 256 bits for each public purpose."""

from __future__ import annotations

import hashlib


def public_seed(seed: int | None, shared_hash: str, purpose: str) -> int:
    """Return 256 bits for one public purpose (x⁰, partition, graph): from the seed, else from the shared config."""
    root = f"seed:{seed}" if seed is not None else f"config:{shared_hash}"
    return int.from_bytes(hashlib.sha256(f"privsgp/public/{purpose}/{root}".encode()).digest())
