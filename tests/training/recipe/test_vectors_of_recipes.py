"""Recipes that train word vectors for their networks, and that use only the first part of their texts."""

from __future__ import annotations

import tomllib

import pytest

from rescorer.errors import ConfigError
from rescorer_training.recipe.config import make_recipe
from rescorer_training.recipe.run import run_recipe
from rescorer_training.vectors.files import read_vectors
from tests.support.toy_training import write_text

TOML = """
[text]
train = ["train.txt"]
validation = "valid.txt"
first_share = 0.5

[vectors.own]
train = ["train.txt"]
dimensions = 8
min_count = 1
epochs = 1

[ngram]
order = 2

[networks.random]
embedding_size = 8
hidden_size = 8
tied = false
epochs = 1
batch_words = 256
seeds = [1, 2]

[networks.frozen]
extends = "random"
embeddings = "own"
freeze_embeddings = true

[comparisons]
frozen = "random"

[bundle]
network = "frozen-1"
"""


@pytest.fixture
def data(tmp_path):
    write_text(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_networks_start_from_vectors_of_the_recipe(data, capsys):
    recipe = make_recipe(tomllib.loads(TOML), data / "toy.toml")
    report = run_recipe(recipe, data, data / "out", threads=1)
    assert [model.name for model in report.models if model.members] == ["random", "frozen"]
    assert read_vectors(data / "out" / "vectors" / "own.txt.gz").dimensions == 8
    assert capsys.readouterr().err.count("words have a vector") == 2
    whole, first = (data / "train.txt").read_text(), (data / "out" / "text" / "1-first.txt").read_text()
    assert whole.startswith(first)
    assert len(first.splitlines()) == len(whole.splitlines()) // 2
    written = (data / "out" / "vectors" / "own.txt.gz").stat().st_mtime_ns
    run_recipe(recipe, data, data / "out", threads=1)
    assert (data / "out" / "vectors" / "own.txt.gz").stat().st_mtime_ns == written
    other = make_recipe(tomllib.loads(TOML.replace("min_count = 1", "min_count = 2")), data / "toy.toml")
    with pytest.raises(ConfigError, match=r"own.txt.gz was estimated .*min_count was 1, is 2"):
        run_recipe(other, data, data / "out", threads=1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dimensions = 8", "dimension = 8", r"\[vectors.own\] unknown dimension; did you mean 'dimensions'"),
        ("dimensions = 8", "dimensions = 0", r"\[vectors.own\] dimensions 0: expected 1 to 4096"),
        ('train = ["train.txt"]\ndim', "train = []\ndim", r"\[vectors.own\] train is \[\]; expected a list"),
        ("first_share = 0.5", "first_share = 0.0", "expected 0 < first_share ≤ 1"),
        ("first_share = 0.5", "first_share = nan", "expected 0 < first_share ≤ 1"),
        ("first_share = 0.5", "first_share = 1e-9", "first_share 1e-09 is not even one"),
        (
            "dimensions = 8",
            "dimensions = 9",
            r"\[networks.frozen-1\] vectors 'own' have 9 dimensions; expected",
        ),
        ('= "own"', '= "mine"', "'mine'; expected a file, or one of the recipe's vectors: own"),
        ('["train.txt"]\ndim', '["gone.txt"]\ndim', "has no gone.txt"),
    ],
)
def test_wrong_settings_are_reported_before_any_work(data, old, new, message):
    assert old in TOML
    with pytest.raises(ConfigError, match=message):
        run_recipe(make_recipe(tomllib.loads(TOML.replace(old, new)), data / "toy.toml"), data, data / "out")
    assert not (data / "out" / "vectors").exists()
