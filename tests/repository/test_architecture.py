"""Check that imports follow the layers, and that modules are documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("rescorer", "training", "tools", "demo", "examples")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
HANDWRITTEN_SOURCES = [path for path in SOURCES if "_pb2" not in path.name]
MAX_FUNCTION_LINES = 80
MIN_LINES = 40
"""Least lines of a module that only one other imports."""
MIN_MODULES = 3
"""Least modules of a folder, its ``__init__`` not counted, unless it holds generated code."""
PROGRAMS = ("__init__.py", "__main__.py")


def test_imports_follow_the_layers():
    # A separate process, because import-linter configures logging for the whole process.
    lint_imports = Path(sys.executable).parent / "lint-imports"
    process = subprocess.run(
        [lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout


@pytest.mark.parametrize("path", HANDWRITTEN_SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_documented_and_functions_short(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert path.name == "__main__.py" or not text.strip() or ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, node.name


def find_importers() -> dict[Path, set[Path]]:
    """The modules that import each module of the packages and tools."""
    names = {}
    for path in HANDWRITTEN_SOURCES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[1:] if parts[0] == "training" else parts).removesuffix(".__init__")] = path
    importers: dict[Path, set[Path]] = {path: set() for path in HANDWRITTEN_SOURCES}
    for path in HANDWRITTEN_SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if names.get(name, path) != path:
                        importers[names[name]].add(path)
    return importers


def test_no_module_is_a_corridor():
    small = [
        f"{path.relative_to(ROOT)} has {n_lines} lines, and only {next(iter(found)).name} imports it"
        for path, found in find_importers().items()
        if len(found) == 1 and path.name not in PROGRAMS
        if (n_lines := path.read_text(encoding="utf-8").count("\n")) < MIN_LINES
    ]
    assert not small, "\n".join(small)


def test_no_folder_is_for_one_or_two_modules():
    for folder in {path.parent for path in HANDWRITTEN_SOURCES if path.name == "__init__.py"}:
        modules = [path for path in folder.glob("*.py") if path.name not in PROGRAMS and path in SOURCES]
        rooms = [path for path in folder.iterdir() if (path / "__init__.py").is_file()]
        is_for_generated = any(folder.glob("*/*_pb2.py"))
        assert is_for_generated or len(modules) + len(rooms) >= MIN_MODULES, folder


def test_the_wheel_claims_only_names_of_our_own():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert [Path(package).name for package in packages] == ["rescorer", "rescorer_training"]


@pytest.mark.parametrize(
    "folder", [path.parent for path in HANDWRITTEN_SOURCES if path.name == "__init__.py"]
)
def test_packages_say_what_they_are_for(folder):
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "expected a docstring that says what the package does"


ROOM = re.compile(r"`(\w+/?)`")


@pytest.mark.parametrize("package", ["rescorer", "training/rescorer_training"])
def test_the_map_names_every_room(package):
    page = (ROOT / "docs" / "architecture" / "packages.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {Path(package).name}\n")[1].split("\n## ")[0]
    rows = [line for line in section.split("\n### ")[0].splitlines() if line.startswith("| `")]
    named = {room for row in rows for room in ROOM.findall(row.split("|")[1])}
    entries = list((ROOT / package).iterdir())
    folders = {
        f"{path.name}/" for path in entries if path.is_dir() and {*path.iterdir()} - {path / "__pycache__"}
    }
    modules = {path.stem for path in entries if path.suffix == ".py"}
    assert named == (folders - {"__pycache__/"}) | (modules - {"__init__", "__main__", "former_names"})
