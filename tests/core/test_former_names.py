"""Former names of modules: accepted with a warning, or refused by an error that names the new place."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from rescorer.former_names import MODULES, ROOMS

CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def forget():
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("former", MODULES)
def test_a_former_name_is_the_new_module_with_a_warning(former):
    new = import_module(MODULES[former])
    spec = new.__spec__
    with pytest.warns(DeprecationWarning, match=f"{former} is {MODULES[former]} now"):
        assert import_module(former) is new
    assert new.__spec__ is spec
    assert new.__name__ == MODULES[former]


@pytest.mark.parametrize("room", ROOMS)
def test_what_was_divided_is_refused_with_the_new_place(room):
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"look in {ROOMS[room]}")):
        import_module(f"{room}.whatever")
    assert find_spec(ROOMS[room]) is not None


def test_other_missing_modules_are_missing_as_ever():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'rescorer\.whatever'$"):
        import_module("rescorer.whatever")


def test_the_warning_names_the_line_of_the_user(tmp_path):
    script = tmp_path / "user.py"
    script.write_text("from rescorer.bundle import read_bundle\nimport rescorer.options\n")
    result = subprocess.run(
        [sys.executable, "-W", "always", script], capture_output=True, text=True, check=True
    )
    assert f"{script}:1: DeprecationWarning: rescorer.bundle is" in result.stderr


def test_the_changelog_has_them_all():
    for former, new in {**MODULES, **ROOMS}.items():
        rows = [line for line in CHANGELOG.splitlines() if line.startswith("|") and f"`{former}" in line]
        assert any(new in row for row in rows), former
