"""Generate the pages of commands, docs/reference/rescorer.md and rescorer-train.md, from the typer apps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

HEAD = """# {program}

{summary} This page is generated from the commands' help by `make docs`.

"""
SETTINGS = "All [settings](settings.md) are options of this command, as well as:\n\n"
EXTRAS = re.compile(r"\s*\[([^\[\]]*)\]$")
"""The end of an option's help: its default, its range and whether it is required."""
HIDDEN = {"--help", "--install-completion", "--show-completion"}
PREFORMATTED = "\b\n"
"""Marks a paragraph of help whose line breaks are kept."""


def rescorer_page() -> str:
    """Return the page of ``rescorer``."""
    from rescorer.cli import app

    return commands_page("rescorer", app)


def training_page() -> str:
    """Return the page of ``rescorer-train``."""
    from rescorer_training.cli import app

    return commands_page("rescorer-train", app)


def commands_page(program: str, app: typer.Typer) -> str:
    """Return one section per command: what it does, an example, its arguments and its options."""
    group: Any = typer.main.get_command(app)
    parts = [HEAD.format(program=program, summary=paragraphs(group.help)[0])]
    parts += [section(program, name, command) for name, command in leaf_commands(group)]
    if group.epilog:
        parts.append(
            f"## Exit codes\n\n[Exit and status codes](codes.md) lists them.\n\n{as_text(group.epilog)}\n"
        )
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def leaf_commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group with their full names, and those of groups in it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaf_commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def section(program: str, name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    records = [(option.param_type_name, option.get_help_record(context)) for option in command.params]
    shown = [(kind, record) for kind, record in records if record and record[0].split(",")[0] not in HIDDEN]
    arguments = [row(*record) for kind, record in shown if kind == "argument"]
    options = [row(*record) for kind, record in shown if kind == "option"]
    text = f"## {program} {name}\n\n" + "\n\n".join(map(as_markdown, paragraphs(command.help))) + "\n\n"
    if type(command).__name__ == "SettingsCommand":
        text += SETTINGS
    if arguments:
        text += table("argument", arguments)
    if options:
        text += table("option", options)
    return text


def paragraphs(text: str | None) -> list[str]:
    """Split help into paragraphs, each on one line unless it is preformatted."""
    parts = re.split(r"\n\s*\n", (text or "").replace("\f", "").strip("\n"))
    return [
        part if part.startswith(PREFORMATTED) else " ".join(part.split()) for part in parts if part.strip()
    ]


def as_markdown(paragraph: str) -> str:
    """Return a paragraph of help as Markdown; examples and preformatted paragraphs become blocks."""
    if paragraph.startswith(PREFORMATTED):
        return f"```text\n{paragraph.removeprefix(PREFORMATTED)}\n```"
    if paragraph.startswith("Example: "):
        return f"```text\n{paragraph.removeprefix('Example: ')}\n```"
    return as_text(paragraph)


def row(names: str, text: str) -> tuple[str, str, str]:
    """Return the cells of an option: its names, its meaning, and its default and range."""
    extras = EXTRAS.search(text)
    meaning = text[: extras.start()] if extras else text
    return f"`{names}`", as_text(meaning), as_text(extras.group(1)) if extras else ""


def as_text(text: str) -> str:
    """Return text with the characters escaped that Markdown would take for markup."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([|<>*_\[\]])", r"\\\1", part) for part in parts
    )


def table(kind: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| {kind} | meaning | default, range |", "|---|---|---|"]
    lines += [f"| {escape_pipes(names)} | {meaning} | {extras} |" for names, meaning, extras in rows]
    return "\n".join(lines) + "\n\n"


def escape_pipes(names: str) -> str:
    return names.replace("|", "\\|")
