"""The loop and what surrounds it: mixing, evaluation, checkpoints, ledgers, the run folder."""
