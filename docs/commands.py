"""Fills reference/commands.md from the command line itself, and reference/run-toml.md from the fields of components."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs hands in what it likes
    """Fill the place that is marked on the page."""
    if "<!-- run.toml -->" in markdown:
        from privsgp.runs.reference import markdown as keys

        return markdown.replace("<!-- run.toml -->", keys())
    if "<!-- commands -->" not in markdown:
        return markdown
    import typer
    from typer.cli import get_docs_for_click

    from privsgp.cli import command_line

    group = typer.main.get_command(command_line())
    words = get_docs_for_click(obj=group, ctx=typer.Context(group), name="privsgp")
    whole = words[words.index("## ") :].split("`")
    plain = [part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(whole)]  # <name> is no tag
    return markdown.replace("<!-- commands -->", "`".join(plain))
