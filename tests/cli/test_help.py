"""Help: options in groups, examples that run, and the pages of ``rescorer help``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from rescorer.cli.help import find_topics
from rescorer.cli.program import app
from rescorer.terminal.help import GENERAL, GROUPS
from rescorer_training.cli.help import TRAINING_GROUPS, TrainingCommand
from rescorer_training.cli.program import app as training_app
from tests.conftest import REPOSITORY

MAX_GENERAL = 20
"""A longer first group hides the options that most people need."""


def leaf_commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands of a program, with their full names."""
    for part, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaf_commands(command, f"{name} {part}")
        else:
            yield f"{name} {part}", command


def all_commands() -> dict[str, Any]:
    return {
        name: command
        for program, program_app in (("rescorer", app), ("rescorer-train", training_app))
        for name, command in leaf_commands(typer.main.get_command(program_app), program)
    }


def test_help_shows_every_option_in_one_group():
    seen: set[str] = set()
    for name, command in all_commands().items():
        context = typer.Context(command, info_name=name)
        groups = command.grouped_options(context)
        shown = [option.name for options in groups.values() for option in options]
        options = [item for item in command.get_params(context) if item.param_type_name == "option"]
        assert sorted(shown) == sorted(option.name for option in options if not option.hidden), name
        assert len(groups[GENERAL]) <= MAX_GENERAL, f"{name}: put options into groups"
        seen |= {flag for option in options for flag in option.opts}
    tables = (GROUPS, TRAINING_GROUPS, TrainingCommand.groups)
    assert not {name for table in tables for names in table.values() for name in names} - seen


def test_help_has_the_groups_in_order(run):
    _, out, _ = run("rescore", "--help")
    headings = re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE)
    assert headings == [
        "Arguments", "Options", "Input", "Models and weights", "Deciding", "Shards", "Forecast", "Output",
        "Resources",
    ]  # fmt: skip
    first = out.partition("Input:")[0]
    assert "--bundle" in first
    assert "--output" in first


def test_help_prints_pages_and_commands(run):
    code, out, _ = run("help")
    assert code == 0
    topics = find_topics()
    assert set(re.findall(r"^  (\S+)  ", out, re.MULTILINE)) == topics.keys()
    pages = {path.relative_to(REPOSITORY / "docs") for path in topics.values()}
    assert pages == {
        path.relative_to(REPOSITORY / "docs")
        for path in (REPOSITORY / "docs").rglob("*.md")
        if path.name != "index.md"
    }
    for topic in ("lists", "how-to/lists", "docs/how-to/lists.md"):
        code, out, _ = run("help", topic)
        assert (code, out.splitlines()[0]) == (0, "# Bring lists from other toolkits")
        assert "`rescorer help formats`" in out
    code, out, _ = run("help", "seal")
    assert (code, "Usage: " in out) == (0, True)
    code, _, err = run("help", "lsts")
    assert (code, err) == (2, "rescorer: no page or command 'lsts'; did you mean 'lists'?\n")


def test_every_page_that_a_message_names_is_there():
    sources = [*(REPOSITORY / "rescorer").rglob("*.py"), *(REPOSITORY / "training").rglob("*.py")]
    named = {
        name: path
        for path in sources
        for name in re.findall(r"`rescorer help ([a-z/-]+)`", path.read_text(encoding="utf-8"))
    }
    assert {"formats", "lists"} <= named.keys() <= find_topics().keys()
