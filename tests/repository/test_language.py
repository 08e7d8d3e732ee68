"""The project's text is plain English: phrases that had crept in everywhere do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

FOLDERS = ("rescorer", "training", "tools", "tests", "demo", "examples", "docs", "deploy", "proto/rescorer")
SUFFIXES = {".py", ".md", ".proto", ".toml", ".yaml", ".yml"}
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")
FILES = [
    *(REPOSITORY / page for page in PAGES),
    *(
        path
        for folder in FOLDERS
        for path in sorted((REPOSITORY / folder).rglob("*"))
        if path.suffix in SUFFIXES and "_pb2" not in path.name
    ),
]
PHRASES = re.compile(
    r"\bas of\b|\banew\b|\bby and by\b|\bwhoever\b|\b(?:is|are) told\b|\bthe like\b|\bamid\b"
    r"|\btells? of\b|\bcomes? by\b|\bthat there (?:is|are) not\b|\bmakes? of it\b|\bbut for (?!example)",
    re.IGNORECASE,
)
FIRST_WORDS = re.compile(r"(?:Owns|Of|As|That|Whoever|Who|Whose)\b")
"""How a docstring does not begin: with a verb of possession, a genitive or a subordinate clause."""
THIS_FILE = Path(__file__)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes, functions and attributes, with their first lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.lineno, statement.value.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_text_is_plain_english(path):
    if path == THIS_FILE:
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [f"{number}: {line.strip()}" for number, line in enumerate(lines, 1) if PHRASES.search(line)]
    if path.suffix == ".py":
        found += [
            f"{number}: {text.splitlines()[0]}"
            for number, text in docstrings(path)
            if FIRST_WORDS.match(text)
        ]
    assert not found, "\n".join(found)
