"""The command ``rescorer help``: pages of the documentation, which are installed with the package."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.errors import ConfigError, did_you_mean

PAGES = Path(__file__).resolve().parents[1] / "pages"
"""The pages in an installed package, which are those of ``docs`` in the repository."""
SOURCES = Path(__file__).resolve().parents[2] / "docs"
FOLDERS = {
    ".": "Overviews",
    "how-to": "How to",
    "reference": "Reference",
    "results": "Results",
    "decisions": "Decisions",
    "architecture": "Architecture",
}
"""Heading of each folder of pages. Where pages of two folders have one name, the first folder's has it."""
MAX_WIDTH = 100
"""Longest line of a page on a terminal, in characters; longer lines are hard to read."""
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
IMAGE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]*\.md)?(#[^)\s]*)?\)")


def find_topics() -> dict[str, Path]:
    """Return the file of each page, by its topic: the name of the file, with its folder if need be.

    Raises:
        ConfigError: the package is installed without its pages.
    """
    root = PAGES if PAGES.is_dir() else SOURCES
    topics: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*.md")):
            if path.stem != "index":
                topics.setdefault(path.stem if path.stem not in topics else f"{folder}/{path.stem}", path)
    if not topics:
        raise ConfigError(f"{PAGES}: the pages are missing; install the package again")
    return topics


def list_topics(topics: dict[str, Path]) -> str:
    """Return a text with the topics and titles of all pages, by folder."""
    width = max(map(len, topics))
    lines = ["`rescorer help TOPIC` prints a page:"]
    for folder, heading in FOLDERS.items():
        lines += ["", f"{heading}:"]
        for topic, path in topics.items():
            if path.parent.name == folder or (folder == "." and path.parent.name not in FOLDERS):
                title = HEADING.search(path.read_text(encoding="utf-8"))
                lines.append(f"  {topic:{width}}  {title[1].replace('`', '') if title else ''}".rstrip())
    lines += ["", "`rescorer COMMAND --help` shows the options of a command."]
    return "\n".join(lines)


def read_page(path: Path, topics: dict[str, Path]) -> str:
    """Return the Markdown of a page. Links to other pages become the commands that print them."""
    by_file = {file.resolve(): topic for topic, file in topics.items()}

    def replace_link(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        topic = by_file.get((path.parent / target).resolve()) if target else None
        return f"{text} (`rescorer help {topic}`)" if topic and topic != by_file[path.resolve()] else text

    text = IMAGE.sub(r"\1", COMMENT.sub("", path.read_text(encoding="utf-8")))
    return LINK.sub(replace_link, text)


def help_command(
    ctx: typer.Context,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Page, or command. Default: list all pages.")
    ] = None,
) -> None:
    """Print a page of the documentation, or list the pages.

    Example: rescorer help lists

    The pages are installed with the package, in the version that is installed. A page is Markdown if the
    output is not a terminal.
    """
    topics = find_topics()
    if topic is None:
        typer.echo(list_topics(topics))
        return
    name = topic.removeprefix("docs/").removesuffix(".md")
    by_file = {f"{path.parent.name}/{path.stem}": path for path in topics.values()}
    path = topics.get(name) or by_file.get(name)
    if path is not None:
        print_page(read_page(path, topics))
    elif (command := _find_command(ctx, topic)) is not None:
        typer.echo(command)
    else:
        stem = name.rpartition("/")[2]
        advice = f"; did you mean {stem!r}?" if stem in topics else did_you_mean(topic, topics)
        advice = advice or "; `rescorer help` lists all pages"
        raise ConfigError(f"no page or command {topic!r}{advice}")


def _find_command(ctx: typer.Context, name: str) -> str | None:
    """Return the help of the command with this name; None if there is none."""
    program: Any = ctx.parent
    if program is None or name not in program.command.list_commands(program):
        return None
    command = program.command.get_command(program, name)
    return command.get_help(type(ctx)(command, info_name=name, parent=program))


def print_page(text: str) -> None:
    """Print Markdown: laid out for people on a terminal, and as it is to a file or pipe."""
    if not sys.stdout.isatty():
        typer.echo(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.theme import Theme

    console = Console(theme=Theme({"markdown.code": "bold cyan"}))  # the default has a black background
    page = Markdown(text, hyperlinks=False, code_theme="ansi_dark")
    console.print(page, width=min(console.width, MAX_WIDTH))
