"""Backward models from text to bundle: every command that makes or measures them, and those that refuse."""

from __future__ import annotations

import json
import math
import tomllib

import numpy as np
import pytest

from rescorer import Rescorer
from rescorer.errors import BundleError, ConfigError
from rescorer.models.neural import load_model, save_model
from rescorer_training.cli import main as train_main
from rescorer_training.corpus import is_backward, record_direction
from rescorer_training.evaluation.perplexity import load_models, open_ngram
from rescorer_training.recipe.bundles import check_shares, choose_shares, divide_weight
from rescorer_training.recipe.config import make_recipe
from rescorer_training.recipe.run import run_recipe
from tests.support.reference_scorer import reference_log_probs
from tests.support.tiny_models import random_network
from tests.support.toy_training import write_text

SMALL = ("--embedding", 8, "--hidden", 8, "--epochs", 2, "--batch-words", 256, "--warmup-steps", 5)


@pytest.fixture
def train(run):
    def call(*arguments):
        return run(*arguments, command=train_main)

    return call


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_perplexities(out, text="valid.txt"):
    return {name: figures["shared"] for name, figures in json.loads(out)["texts"][text]["models"].items()}


def test_backward_ngram_is_that_of_reversed_text(train, folder):
    lines = (folder / "train.txt").read_text().splitlines()
    (folder / "reversed.txt").write_text("".join(" ".join(line.split()[::-1]) + "\n" for line in lines))
    assert train("ngram", "train.txt", "-o", "back.arpa", "--order", 3, "--backward")[0] == 0
    assert train("ngram", "reversed.txt", "-o", "reversed.arpa", "--order", 3)[0] == 0
    assert (folder / "back.arpa").read_bytes() == (folder / "reversed.arpa").read_bytes()
    assert open_ngram(folder / "back.arpa").backward
    assert not open_ngram(folder / "reversed.arpa").backward
    assert train("ngram", "train.txt", "-o", "back.arpa", "--order", 3)[0] == 0  # replaced by a forward one
    assert not is_backward(folder / "back.arpa")


@pytest.mark.parametrize("record", ["[]", "{}", '{"backward": 1}', '{"backward": true, "x": 1}', "{"])
def test_rejects_a_damaged_record_of_the_direction(folder, record):
    model = folder / "model.arpa"
    record_direction(model, backward=True)
    assert is_backward(model)
    (folder / "model.arpa.direction.json").write_text(record)
    with pytest.raises(BundleError, match=r"direction\.json"):
        is_backward(model)


def test_pruned_and_interpolated_ngrams_keep_the_direction(train, folder):
    for name, text in (("a", "train.txt"), ("b", "valid.txt")):
        train("ngram", text, "-o", f"{name}.arpa", "--order", 2, "--backward")
    code, _, err = train("prune", "a.arpa", "-o", "small.arpa", "--keep", 20, "--text", "train.txt")
    assert code == 0, err
    assert open_ngram(folder / "small.arpa").backward
    both = ("--ngram", "a.arpa", "--ngram", "b.arpa")
    code, _, err = train("interpolate", "valid.txt", *both, "--write", "mixed.arpa")
    assert code == 0, err
    assert open_ngram(folder / "mixed.arpa").backward
    train("ngram", "train.txt", "-o", "forward.arpa", "--order", 2)
    code, _, err = train("interpolate", "valid.txt", "--ngram", "a.arpa", "--ngram", "forward.arpa")
    assert code == 2
    assert "cannot be mixed word by word" in err


def test_trains_measures_and_bundles_both_directions(train, run, folder):
    for name in ("forward", "backward"):
        text = ("neural", "train.txt", "--validation", "valid.txt", "-o", name, f"--{name}")
        code, _, err = train(*text, *SMALL)
        assert code == 0, err
        train("ngram", "train.txt", "-o", f"{name}.arpa", "--order", 3, f"--{name}")
    assert load_model(folder / "backward" / "best")[0].config.backward
    pair = ("--neural", "forward", "--neural", "backward")
    measured = read_perplexities(train("perplexity", "valid.txt", *pair, "--json")[1])
    assert measured["both directions"] == pytest.approx(math.sqrt(measured["neural"] * measured["neural2"]))
    assert "mixture" not in measured
    best = json.loads((folder / "backward" / "best" / "training.json").read_text())["validation_perplexity"]
    assert measured["neural2"] == pytest.approx(best, rel=1e-4)  # trained and measured in one direction

    code, _, err = train("perplexity", "valid.txt", *pair, "--share", "neural=0.5", "--share", "neural2=0.5")
    assert code == 2
    assert "forward model 'neural' and the backward model 'neural2'" in err

    models = ("--ngram", "forward.arpa", "--ngram", "back=backward.arpa", *pair)
    code, out, err = train("bundle", "toy/1", *models, "--validation", "valid.txt", "--tables", "--json")
    assert code == 0, err
    assert [name for name, entry in json.loads(out)["models"].items() if entry.get("backward")] == [
        "back",
        "neural2",
    ]
    rescorer = Rescorer.load(folder / "toy" / "1")
    weights = rescorer.bundle.weights["default"]
    assert weights.lm == {"mixture": 0.5, "back": 0.25, "neural2": 0.25}
    assert set(weights.mixture) == {"ngram", "neural"}
    (score,) = rescorer.score_text(["the cat sat here"])
    for name in ("back", "neural2"):
        expected = reference_log_probs(rescorer.models[name], score.words)
        np.testing.assert_allclose(score.log_probs[name], expected, atol=1e-4)

    code, out, _ = train("complete", write_questions(folder), "--bundle", "toy/1", "--json")
    assert code == 0
    assert "both directions" in out
    adapt = ("adapt", "toy/1", "--text", "train.txt", "--output", "adapted/1")
    for command in (("sample", "--bundle", "toy/1"), adapt):
        code, _, err = train(*command)
        assert code == 2
        assert "the backward model" in err


def write_questions(folder):
    path = folder / "questions.csv"
    path.write_text("id,question,a,b,c,d,e,answer\n1,the _____ sat,cat,dog,ship,king,a,a\n")
    return path


def test_network_that_starts_from_a_backward_one_reads_backwards(train, folder):
    common = ("neural", "train.txt", "--validation", "valid.txt")
    train(*common, "-o", "first", "--backward", *SMALL)
    code, _, err = train(*common, "-o", "second", "--start-from", "first", *SMALL[4:])
    assert code == 0, err
    names = ("train.ids", "validation.ids", "vocabulary.txt")
    assert all((folder / "first" / n).read_bytes() == (folder / "second" / n).read_bytes() for n in names)
    assert load_model(folder / "second" / "best")[0].config.backward


def test_backward_network_cannot_carry_its_state(train, folder):
    code, _, err = train(
        "neural", "train.txt", "--validation", "valid.txt", "-o", "run", "--backward", "--carried", *SMALL
    )
    assert code == 2
    assert "carried is true for a backward network" in err


def test_recipe_measures_each_network_with_the_ngram_of_its_direction(folder):
    network = "embedding_size = 8\nhidden_size = 8\nn_classes = 3\nepochs = 1\nbatch_words = 256\n"
    toml = (
        '[text]\ntrain = ["train.txt"]\nvalidation = "valid.txt"\n[ngram]\norder = 2\n'
        f"[networks.forward]\n{network}[networks.back]\nbackward = true\n{network}"
        '[networks.more]\nstart_from = "back"\nepochs = 1\nbatch_words = 256\n[bundle]\nnetwork = "back"\n'
    )
    recipe = make_recipe(tomllib.loads(toml), folder / "toy.toml")
    assert [recipe.is_backward(name) for name in recipe.networks] == [False, True, True]
    report = run_recipe(recipe, folder, folder / "out", threads=1)
    notes = [model.note for model in report.models if model.name == "n-gram"]
    assert notes == ["Kneser-Ney, order 2", "Kneser-Ney, order 2, backward"]
    models = load_models(None, [folder / "out" / "ngram-backward.arpa.gz"], [folder / "out/networks/more"])
    assert models.shares  # of one direction
    weights = Rescorer.load(folder / "out" / "bundle" / "toy" / "1").bundle.weights["default"]
    assert weights.lm == {"mixture": 0.5, "neural": 0.5}
    assert weights.mixture == {"ngram": 1.0}


def test_shares_are_of_one_direction():
    log_probs = {name: np.log(np.full(3, 0.1)) for name in ("a", "b", "c")}
    assert choose_shares({}, log_probs, ["c"]) == pytest.approx({"a": 0.5, "b": 0.5})
    assert choose_shares({"a": 0, "b": 0}, log_probs, ["c"]) == {"c": 1}
    assert choose_shares({"c": 0}, log_probs, ["c"]) == pytest.approx({"a": 0.5, "b": 0.5})
    assert choose_shares({"b": 0.3, "c": 0.7}, log_probs, ["b", "c"]) == {"b": 0.3, "c": 0.7}
    with pytest.raises(ConfigError, match="the backward model 'c'"):
        check_shares({"a": 0.5, "c": 0.5}, ["a", "b", "c"], ["c"])
    assert divide_weight(2.0, ["a"], ["b", "c"]) == {"mixture": 1.0, "b": 0.5, "c": 0.5}
    assert divide_weight(2.0, ["b", "c"], ["b", "c"]) == {"mixture": 2.0}


def test_direction_of_a_network_outlives_its_copies(folder):
    save_model(*random_network(backward=True), folder / "copy")
    models = load_models(None, (), [folder / "copy"])
    assert models.models["neural"].backward
