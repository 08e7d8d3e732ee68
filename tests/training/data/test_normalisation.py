"""Record the normaliser of training text with a model, and use it wherever the model is used."""

from __future__ import annotations

import json

import pytest

from rescorer.errors import ConfigError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.cli import main
from rescorer_training.corpus import choose_normaliser, record_normaliser, recorded_normaliser

RAW = NormaliserSettings.raw()
TEXT = "The Sea was calm .\nThe ship lay at Anchor .\nThe calm sea , the Ship .\n" * 20
SHORT = ("--epochs", "1", "--threads", "1")
NETWORK = ("--embedding", "8", "--hidden", "8", "--layers", "1", *SHORT)


@pytest.fixture
def train(run, tmp_path):
    """Run ``rescorer-train`` with arguments, expecting success; return its output and messages."""

    def call(*arguments: object) -> tuple[str, str]:
        code, out, err = run(*arguments, command=main)
        assert code == 0, err
        return out, err

    return call


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def read_perplexity(output: str) -> float:
    (facts,) = json.loads(output)["texts"].values()
    return next(iter(facts["models"].values()))["shared"]


def test_ngram_remembers_its_normaliser(train, text, tmp_path):
    model, pruned = tmp_path / "raw.arpa.gz", tmp_path / "small.arpa"
    train("ngram", text, "-o", model, "--order", 2, "--normaliser", "raw")
    assert recorded_normaliser(model).settings == RAW
    train("prune", model, "-o", pruned, "--keep", 20)
    assert recorded_normaliser(pruned).settings == RAW
    silent, _ = train("perplexity", text, "--ngram", model, "--json")
    explicit, note = train("perplexity", text, "--ngram", model, "--json", "--normaliser", "raw")
    assert silent == explicit
    assert note == ""


def test_another_normaliser_is_used_but_not_in_silence(train, text, tmp_path):
    model, settings = tmp_path / "raw.arpa", tmp_path / "default.json"
    settings.write_text(NormaliserSettings().to_json())
    train("ngram", text, "-o", model, "--order", 2, "--normaliser", "raw")
    right, _ = train("perplexity", text, "--ngram", model, "--json")
    wrong, note = train("perplexity", text, "--ngram", model, "--json", "--normaliser", settings)
    assert read_perplexity(wrong) != read_perplexity(right)
    assert f"{model} was trained with another normaliser" in note


def test_network_and_bundle_remember_the_normaliser(train, text, tmp_path):
    run_folder, ngram = tmp_path / "run", tmp_path / "raw.arpa"
    train("ngram", text, "-o", ngram, "--order", 2, "--normaliser", "raw")
    arguments = ("neural", text, "--validation", text, "-o", run_folder, *NETWORK)
    train(*arguments, "--normaliser", "raw")
    best = run_folder / "best"
    assert recorded_normaliser(run_folder).settings == recorded_normaliser(best).settings == RAW
    (best / "text.json").unlink()  # as while the training runs
    assert recorded_normaliser(best).settings == RAW
    for command, *models in (("quantise", run_folder), ("average", run_folder, run_folder)):
        train(command, *models, "-o", tmp_path / command)
        assert recorded_normaliser(tmp_path / command).settings == RAW
    bundle = tmp_path / "mine" / "1"
    train("bundle", bundle, "--ngram", ngram, "--neural", best, "--validation", text)
    assert json.loads((bundle / "text.json").read_text())["case"] == "keep"
    adapted = tmp_path / "adapted"
    train("neural", text, "--validation", text, "-o", adapted, "--start-from", run_folder, *SHORT)
    assert recorded_normaliser(adapted).settings == RAW


def test_models_with_different_normalisers_need_a_choice(tmp_path):
    first, second, foreign = (tmp_path / name for name in ("a.arpa", "b.arpa", "other-tool.arpa"))
    record_normaliser(first, Normaliser(RAW))
    record_normaliser(second, Normaliser())
    with pytest.raises(ConfigError, match=r"a\.arpa and .*b\.arpa .*--normaliser"):
        choose_normaliser(None, [foreign, first, second])
    assert choose_normaliser("raw", [first, second]).settings == RAW
    assert choose_normaliser(None, [foreign, first]).settings == RAW
    assert choose_normaliser(None, [foreign]).settings == NormaliserSettings()
