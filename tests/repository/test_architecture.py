"""The shape of the project: arrows point one way, modules stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("rescorer", "training", "tools", "demo", "examples")
SOURCES = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]
WRITTEN = [p for p in SOURCES if "_pb2" not in p.name]
LONGEST_MODULE, LONGEST_FUNCTION = 320, 80


def test_arrows_point_one_way():
    # A process of its own: it configures logging for the whole process it runs in.
    tool = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_say_what_they_own_and_stay_small(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_MODULE
    tree = ast.parse(text)
    assert path.name == "__main__.py" or not text.strip() or ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name
