"""The methods and calibrations that others published: on top of everything else.

Nothing in privsgp imports this package. The list of methods finds it through entry points
(`[project.entry-points]` in pyproject.toml), as it finds packages of others.
"""
