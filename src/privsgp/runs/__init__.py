"""From run.toml to a finished run folder."""
