"""Networks of a recipe that extend others, have several seeds, are compared, or use the past of the text."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from rescorer.errors import ConfigError
from rescorer_training.recipe.config import list_shipped_recipes, make_recipe, read_recipe
from rescorer_training.recipe.report import MeasuredModel, Report, add_means, compare, render_markdown
from rescorer_training.recipe.run import run_recipe

TOML = """
[text]
train = ["train.txt"]
held_out_lines = 20
tests = ["test.txt"]

[networks.base]
note = "the base"
hidden_size = 8
embedding_size = 8
n_classes = 3
carried = true
epochs = 1
batch_rows = 4
seeds = [1, 2]

[networks.other]
extends = "base"
kind = "gru"
{other}

[networks.single]
extends = "base"
seeds = []

[comparisons]
other = "base"
single = "base"

[past_text]
networks = ["base-2"]
cache_words = 50
dynamic = false

[bundle]
network = "other-1"
"""


def toy_recipe(other="", **replaced):
    text = TOML.replace("{other}", other)
    for old, new in replaced.values():
        assert old in text
        text = text.replace(old, new)
    return make_recipe(tomllib.loads(text), Path("toy.toml"))


def test_every_shipped_recipe_can_be_read():
    for name in list_shipped_recipes():
        assert read_recipe(name).title


def test_networks_extend_others_and_have_one_run_per_seed():
    networks = toy_recipe('start_from = "base"').networks
    assert list(networks) == ["base-1", "base-2", "other-1", "other-2", "single"]
    other = networks["other-2"]
    assert (other.network.kind, other.network.hidden_size, other.training.seed) == ("gru", 8, 2)
    assert (other.group, other.run.note, other.run.start_from) == ("other", "", "base-2")
    assert networks["base-1"].run.note == "the base"
    assert networks["single"].group == ""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'extends = "base"\nkind',
            'extends = "basis"\nkind',
            "extends 'basis', which is not a network above it",
        ),
        ("seeds = [1, 2]", "seeds = [1, 1]", "seeds are 1, 1; expected two or more, each once"),
        ("seeds = [1, 2]", "seeds = [3]", "seeds are 3; expected two or more"),
        ("seeds = [1, 2]", "seeds = [1, -2]", r"\[networks.base\].*seeds are 1, -2; expected .* at least 0"),
        ('kind = "gru"', 'tree = "learned"\nvectors = "bas"', "vectors of 'bas', which is neither a network"),
        ('single = "base"', 'single = "bass"', r"\[comparisons\] has 'bass'; expected some of base-1"),
        ('["base-2"]', '["base-3"]', r"\[past_text\] has 'base-3'"),
        ("[networks.single]", "[networks.base-2]", "has the name of another network, 'base-2'"),
        ('network = "other-1"', 'network = "other"', "network is 'other'; expected one of base-1"),
    ],
)
def test_wrong_references_and_seeds_are_refused(old, new, message):
    with pytest.raises(ConfigError, match=message):
        toy_recipe(change=(old, new))


def row(name, perplexity):
    return MeasuredModel(name, {"t": perplexity}, {"t": perplexity - 1}, 0.5, 10, 2.0, 100.0)


def test_means_and_comparisons_are_by_seed():
    rows = [row("n-gram", 50), row("a-1", 10), row("a-2", 12), row("b-1", 11), row("b-2", 12), row("c", 11)]
    groups = {"a-1": "a", "a-2": "a", "b-1": "b", "b-2": "b", "c": ""}
    complete = add_means(rows, groups)
    assert [r.name for r in complete] == ["n-gram", "a-1", "a-2", "a", "b-1", "b-2", "b", "c"]
    mean = complete[3]
    assert (mean.perplexity, mean.with_ngram, mean.note) == ({"t": 11}, {"t": 10}, "mean of 2 seeds")
    assert mean.members == ("a-1", "a-2")
    by_seed, whole = compare(complete, {"b": "a", "c": "a"})
    assert by_seed.relative["t"] == pytest.approx((0.1, 0.0))
    assert whole.relative["t"] == pytest.approx((0.0,))
    page = render_markdown(Report("toy", ("t",), tuple(complete), {}, "cpu", "", (by_seed, whole)))
    assert "| a: mean of 2 seeds | 11.00 (10.00 … 12.00) |" in " ".join(page.split())
    assert "| b | a | +5.0% (+0.0 … +10.0) |" in " ".join(page.split())
    assert "| c | a | +0.0% |" in " ".join(page.split())


@pytest.mark.slow
def test_trains_each_seed_and_measures_the_past_of_the_text_once(tmp_path):
    lines = [f"the {noun} {verb}" for noun in ("cat", "dog", "king") for verb in ("sat", "ran", "fell")] * 20
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "test.txt").write_text("\n".join(lines[:30]) + "\n")
    report = run_recipe(toy_recipe(), tmp_path, tmp_path / "out", threads=1)
    names = [model.name for model in report.models]
    assert names == [
        "n-gram", "base-1", "base-2", "base", "other-1", "other-2", "other", "single", "base-2, cache of 50",
    ]  # fmt: skip
    first, second = (report.models[k].perplexity["test.txt"] for k in (1, 2))
    assert first != second
    assert [comparison.name for comparison in report.comparisons] == ["other", "single"]
    file = tmp_path / "out" / "networks" / "base-2" / "past-text.json"
    facts = json.loads(file.read_text())
    facts["ways"]["cache of 50"]["perplexity"]["test.txt"] = 1.25
    file.write_text(json.dumps(facts))
    again = run_recipe(toy_recipe(), tmp_path, tmp_path / "out", threads=1)
    assert again.models[-1].perplexity["test.txt"] == 1.25  # not measured again
    for old, new, message in (
        (
            "hidden_size = 8",
            "hidden_size = 16",
            r"base-1 was trained by another .*hidden_size was 8, is 16; ",
        ),
        (
            "[networks.base]",
            "[ngram]\norder = 3\n[networks.base]",
            r"ngram.arpa.gz was .*order was 4, is 3; ",
        ),
        ("held_out_lines = 20", 'validation = "test.txt"', r"ngram.arpa.gz was .*texts was .*train-kept.txt"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_recipe(toy_recipe(change=(old, new)), tmp_path, tmp_path / "out", threads=1)
