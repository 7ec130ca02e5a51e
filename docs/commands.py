"""Fills pages from their sources: the command line, the fields of components, and the results of runs."""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
_NOT_RUN = re.compile(r"<!-- Not run in CI(?:, here and below)?: ([^>]+) -->")
sys.path.insert(0, str(Path(__file__).parent))
import keys  # noqa: E402 - beside this file


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs hands in what it likes
    """Fill the place that is marked on the page."""
    if "<!-- run.toml -->" in markdown:
        return markdown.replace("<!-- run.toml -->", keys.markdown())
    if "<!-- policy.toml -->" in markdown:
        from privsgp.accounting.policy import Policy

        return markdown.replace("<!-- policy.toml -->", "\n".join(keys.table(keys.keys(Policy))))
    if "<!-- sections -->" in markdown:
        return markdown.replace("<!-- sections -->", sections())
    if "<!-- provenance -->" in markdown:
        return markdown.replace("<!-- provenance -->", provenance()).replace("<!-- not run -->", not_run())
    if "<!-- commands -->" not in markdown:
        return markdown
    return markdown.replace("<!-- commands -->", commands())


def commands() -> str:
    """Return the help of all commands, in the groups that `privsgp --help` shows."""
    import typer
    from typer.cli import get_docs_for_click

    from privsgp.cli import command_line

    group = typer.main.get_command(command_line())
    words = get_docs_for_click(obj=group, ctx=typer.Context(group), name="privsgp")
    lines, shown = list[str](), ""
    for line in words[words.index("## ") :].splitlines():
        name = re.match(r"## `privsgp ([\w-]+)`", line)
        if name and (panel := str(group.commands[name[1]].rich_help_panel)) != shown:
            lines += [f"## {panel}", ""]
            shown = panel
        lines += [re.sub(r"^Example: (.*)", r"Example: `\1`", f"#{line}" if line.startswith("#") else line)]
    whole = "\n".join(lines).split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(whole))  # <name> is no tag


def sections() -> str:
    """Return the sections of run.toml as users type them: summary, example, and a table of keys."""
    from privsgp.runs import sections

    lines = []
    for name in sections.__all__:
        kind = getattr(sections, name)
        told, _, example = inspect.cleandoc(kind.__doc__).partition("Args:")[0].partition("Example:")
        shown = ["```pycon", textwrap.dedent(example).strip(), "```", ""]
        lines += [f"### `privsgp.{name}`", "", told.strip(), "", *shown, *keys.table(keys.keys(kind)), ""]
    return "\n".join(lines)


def provenance() -> str:
    """Return for each step of `make results` its pages, the commits and devices of its results, and its commands."""
    steps = []
    for step in tomllib.loads((ROOT / "experiments" / "results.toml").read_text())["step"]:
        pages = [page.removeprefix("docs/") for page in step["pages"] if page.startswith("docs/")]
        made = [path for made in step["makes"] for path in sorted((ROOT / "docs" / "results").glob(made))]
        origins = sorted({origin for path in made for origin in _origins(json.loads(path.read_text()))})
        links = ", ".join(f"[{Path(page).stem}]({page})" for page in pages)
        commands = (
            textwrap.fill(
                command.replace("{python} -m privsgp", "privsgp").replace("{python}", "python"),
                100, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False,
            ).replace("\n", " \\\n")
            for command in step["commands"]
        )  # fmt: skip
        steps += [f"**{step['name']}**: {step['words']} ({links}).", "; ".join(origins) + ".", "\n".join(commands)]
    return "\n\n".join(steps)


def not_run() -> str:
    """Return for each page why the tests do not run some of its commands, from the comments below these commands."""
    pages = {page: _NOT_RUN.findall(page.read_text()) for page in sorted((ROOT / "docs").rglob("*.md"))}
    lines = []
    for page, why in pages.items():
        name = page.relative_to(ROOT / "docs")
        reasons = dict.fromkeys(why)
        lines += [f"- [{name}]({name}): {' '.join(text[0].upper() + text[1:] for text in reasons)}"] if why else []
    return "\n".join(lines)


def _origins(told: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Yield commit and device of everything in a file of results that names a commit."""
    if isinstance(told, dict):
        if isinstance(commit := told.get("commit"), str) and commit:
            yield f"`{commit[:12]}`" + (f" on {told['device']}" if told.get("device") else "")
        told = list(told.values())
    for one in told if isinstance(told, list) else ():
        yield from _origins(one)
