"""Shipped recipes are valid, and can be copied."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer_training.cli import app
from rescorer_training.recipe.config import SHIPPED, list_shipped_recipes, read_recipe


def test_shows_a_shipped_recipe_to_copy(tmp_path):
    shown = CliRunner().invoke(app, ["run", "starter", "--show"])
    assert shown.stdout == (SHIPPED / "starter.toml").read_text()
    incomplete = CliRunner().invoke(app, ["run", "starter", "--data", str(tmp_path)])
    assert incomplete.exit_code
    assert "--output" in str(incomplete.exception) + incomplete.output


@pytest.mark.parametrize("name", list_shipped_recipes())
def test_copy_of_a_shipped_recipe_works_wherever_it_lies(tmp_path, name):
    copy = tmp_path / "copy.toml"
    copy.write_text(CliRunner().invoke(app, ["run", name, "--show"]).stdout)
    original, copied = read_recipe(name), read_recipe(str(copy))
    assert copied.list_weight_sets() == original.list_weight_sets()
    assert copied.load_normaliser().settings == original.load_normaliser().settings


def test_unknown_recipe_name_lists_shipped_recipes():
    with pytest.raises(ConfigError, match="shipped recipes are ablation, books, conversation, directions"):
        read_recipe("ptbb")


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(path):
    recipe = read_recipe(path.stem)
    assert recipe.name == path.stem
    recipe.load_normaliser()
    recipe.list_weight_sets()
