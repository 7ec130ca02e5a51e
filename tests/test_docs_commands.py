"""Every command on a page is run by a test, or says below it that it is not; and all of them exist.

A block with commands or Python has one of three marks: `<!-- run -->` before it (test_docs_run.py runs it),
`<!-- run by tests/… -->` before it where another test does, or a comment below it, which says why no test runs it and
what does the same, or where and at which commit it was run: `<!-- Not run in CI: … -->`; with `here and below` up to
the next heading. The provenance page lists these comments.
"""

from __future__ import annotations

import pathlib
import re
import shlex
from unittest import mock

import pytest
import typer

from privsgp.cli import command_line

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [*(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))), "README.md"]
FENCED = re.compile(r"^(?P<in> *)```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^(?P=in)```\n", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)(?P<text>(?: {4}\S[^\n]*\n(?: {5,}[^\n]*\n)*)+)")
COMMAND = re.compile(
    r"^ *(?:\w*\$ +)?(?:privsgp|torchrun|python|make|pip|git|podman|docker|export|for) [^=\n]", re.MULTILINE
)
BEFORE = re.compile(r"<!-- (?:run|output)(?: by (?P<test>tests/\S+)|: \S+)? -->\n*\Z")
BELOW = re.compile(r"\n* *<!-- Not run in CI: [^>]+ -->\n")
THE_REST = re.compile(r"^<!-- Not run in CI, here and below: [^>]+ -->\n(?!.*^#)", re.DOTALL | re.MULTILINE)


def blocks(page):
    """Yield (commands or Python, the text before, the text after) of every block that has any."""
    text = (ROOT / page).read_text()
    found = list(FENCED.finditer(text))
    hidden = FENCED.sub(lambda block: re.sub(r"[^\n]", "x", block[0]), text)
    for block in [*found, *INDENTED.finditer(hidden)]:
        if block.groupdict().get("kind") == "python" or COMMAND.search(block["text"]):
            yield block["text"], text[: block.start()], text[block.end() :]


def marked(before, after):
    return BEFORE.search(before) or BELOW.match(after) or THE_REST.search(before)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_tells_to_do_is_run_or_says_that_it_is_not(page):
    unmarked = [text for text, before, after in blocks(page) if not marked(before, after)]
    assert not unmarked, "\n---\n".join(unmarked)
    for _, before, _ in blocks(page):
        if (mark := BEFORE.search(before)) and mark["test"]:
            assert pathlib.Path(page).name in (ROOT / mark["test"]).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_says_where_it_was_or_what_does_the_same(page):
    said = re.findall(r"<!-- (Not run in CI[^>]+) -->", (ROOT / page).read_text())
    for words in said:
        named = re.findall(r"`([^`]+)`", words)
        assert named or "](" in words, words
        for name in named:
            assert "/" not in name or (ROOT / name).exists(), name


def lines(text):
    """Yield the words of each command, one list a command, without prompt, comment and what the shell does."""
    for line in text.replace("\\\n", " ").splitlines():
        bare = re.sub(r"^ *(?:\w*\$ +)?", "", line).replace("[--", "--").replace("] ", " ").removesuffix("]")
        for command in re.split(r"&&|; do|[|>] ", bare):
            if COMMAND.match(command.strip() + " ."):
                yield shlex.split(command, comments=True)


def parse(words):
    """Parse a command as the command line would, and run nothing."""
    assert "--install-completion" not in words, "to parse it is to install it"
    command, name = typer.main.get_command(command_line()), "privsgp"
    while True:
        with mock.patch.object(pathlib.Path, "exists", return_value=True):  # files of examples need not be there
            context = command.make_context(name, list(words), ignore_unknown_options=False)
        if not hasattr(command, "commands"):
            return
        rest = [*context._protected_args, *context.args]  # where a group leaves its command
        name, command, words = command.resolve_command(context, rest)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_exists(page):
    makefile = (ROOT / "Makefile").read_text()
    for text, _, _ in blocks(page):
        for words in lines(text):
            if "privsgp" in words[:1] or words[:1] == ["torchrun"]:
                parse(words[words.index("privsgp") + 1 :])
            elif words[0] == "make":
                targets = [word.strip(",") for word in words[1:] if "=" not in word and word != "make"]
                assert all(f"\n{target}:" in makefile for target in targets), words
            elif words[0] == "python":
                assert (ROOT / words[1]).exists(), words


def commands(group, *before):
    """Yield (name, command) of every command, those of groups with the group's name."""
    for name in group.list_commands(typer.Context(group)):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands(command, *before, name)
        else:
            yield " ".join([*before, name]), command


def test_train_is_first_and_every_command_has_a_panel_and_an_example():
    group = typer.main.get_command(command_line())
    found = dict(commands(group))
    assert next(iter(found)) == "train"
    assert all(group.commands[name.split()[0]].rich_help_panel for name in found)
    for name, command in found.items():
        example = command.epilog.removeprefix("Example: ")
        assert example.startswith(f"privsgp {name}")
        parse(shlex.split(example.partition(" > ")[0])[1:])
