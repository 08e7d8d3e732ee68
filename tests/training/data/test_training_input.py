"""Unusable training texts and contradictory options of ``rescorer-train neural``, and what it reports."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rescorer.errors import BundleError, ConfigError, FormatError, RescorerError
from rescorer.models.neural import load_model
from rescorer.text import Normaliser
from rescorer_training.cli import app
from rescorer_training.cli.networks import parse_weighted_text
from rescorer_training.corpus import read_encoded
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.prepare import RunInputs, load_prepared, prepare_text
from rescorer_training.neural.train import prepare_run, train
from tests.support.toy_training import make_text, make_trainer, write_text

TINY = NetworkOptions(embedding_size=8, hidden_size=8)
OPTIONS = TrainingOptions(epochs=1, batch_words=64, batch_rows=4, bptt=8)
ONE_THREAD, RESUMED = RunOptions(1), RunOptions(1, resume=True)


def make_inputs(folder, name="run", line="", weights=()):
    """Write the toy text with one more line, and return the inputs of a run called ``name``."""
    texts = write_text(folder)
    for path in texts:
        path.write_text(path.read_text() + line)
    return RunInputs([texts[0]], texts[1], folder / name, Normaliser(), 50, None, weights)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", r"t\.txt: no words in the text"),
        (b"...\n[NOISE]\n", r"t\.txt: no words in the text"),
        (b"word\n", r"t\.txt: the only word is 'word'; expected at least two"),
        (b"word word\nword\n", "the only word is 'word'"),
        (b"a" * 100_000, "the only word is 'a{40,200}…'; expected"),
        (b"fine here\nbad \xff here\n", r"t\.txt:2: not UTF-8"),
    ],
)
def test_rejects_text_without_two_words(tmp_path, text, message):
    (tmp_path / "t.txt").write_bytes(text)
    (tmp_path / "v.txt").write_text("some words\n")
    with pytest.raises(FormatError, match=message):
        prepare_text(RunInputs([tmp_path / "t.txt"], tmp_path / "v.txt", tmp_path, Normaliser()))


@pytest.mark.parametrize("name", ["t.txt", "v.txt"])
def test_rejects_a_vocabulary_without_words_of_the_text(tmp_path, name):
    (tmp_path / "t.txt").write_text("the cat sat\n")
    (tmp_path / "v.txt").write_text("the dog sat\n")
    (tmp_path / name).write_text("un chien dort\n")
    (tmp_path / "words.txt").write_text("the\ncat\ndog\n")
    inputs = RunInputs([tmp_path / "t.txt"], tmp_path / "v.txt", tmp_path, Normaliser())
    with pytest.raises(
        FormatError, match=rf"{name}: the vocabulary has none of the text's 3 distinct words, such as 'un'"
    ):
        prepare_text(inputs, tmp_path / "words.txt")


@pytest.mark.slow
@pytest.mark.parametrize("carried", [None, True])
def test_truncates_a_line_of_a_hundred_thousand_words(tmp_path, carried):
    run = make_inputs(tmp_path, line="the cat sat here " * 25_000 + "\n")
    text = prepare_run(run, None, 100)
    assert text.train.n_truncated == 1
    network = NetworkOptions(embedding_size=8, hidden_size=8, carried=carried)
    facts = train(run, text, network, TrainingOptions(epochs=1), ONE_THREAD)
    assert np.isfinite(facts["validation_perplexity"])
    words = len(text.train.ids) if carried else text.train.n_words
    assert facts["words"] == words


def test_rejects_more_classes_than_words(tmp_path):
    run = make_inputs(tmp_path)
    text = prepare_run(run, None, 100)
    network = NetworkOptions(n_classes=1000)
    with pytest.raises(ConfigError, match=r"1000 classes for \d+ words"):
        train(run, text, network, OPTIONS, ONE_THREAD)
    with pytest.raises(ConfigError, match=r"1000 classes for \d+ words"):
        prepare_run(run, None, 100, NetworkOptions(n_classes=1000, class_by="brown"))


def test_rejects_a_checkpoint_of_another_vocabulary(tmp_path):
    run = make_inputs(tmp_path)
    train(run, prepare_run(run, None, 100), TINY, OPTIONS, ONE_THREAD)
    words = (tmp_path / "run" / "vocabulary.txt").read_text().split("\n")
    words[2:4] = words[3:1:-1]  # the same number of words, in another order
    (tmp_path / "run" / "vocabulary.txt").write_text("\n".join(words))
    with pytest.raises(ConfigError, match="other options: vocabulary was"):
        train(run, load_prepared(tmp_path / "run", 50), TINY, OPTIONS, RESUMED)
    other = make_text(tmp_path)
    make_trainer(tmp_path / "small", other, OPTIONS).train(other.train, other.validation)
    with pytest.raises(BundleError, match="does not fit the network"):
        make_trainer(tmp_path / "small", other, OPTIONS, hidden_size=5).resume()


def test_rejects_carried_state_with_weights_or_short_texts(tmp_path):
    carried = NetworkOptions(embedding_size=8, hidden_size=8, carried=True)
    run = make_inputs(tmp_path, weights=(0.5,))
    with pytest.raises(ConfigError, match="texts cannot have weights"):
        train(run, prepare_run(run, None, 100), carried, OPTIONS, ONE_THREAD)
    run = make_inputs(tmp_path, "rows")
    many = TrainingOptions(epochs=1, batch_rows=5000)
    with pytest.raises(ConfigError, match="too few for 5000 rows"):
        train(run, prepare_run(run, None, 100), carried, many, ONE_THREAD)


@pytest.mark.parametrize(
    ("tree", "vectors", "overlap"),
    [
        (None, None, None),
        ("learned", None, None),
        ("learned", "words.vec", 0.49),
        ("learned", "first", None),
    ],
)
@pytest.mark.parametrize("tied", [None, False])
def test_resumed_run_keeps_the_tree(tmp_path, tree, vectors, overlap, tied):
    (tmp_path / "words.vec").write_text("cat 1 0 .5\nking .9 0 .4\nsat 0 1 0\nslept 0 1 .1\n")
    if vectors == "first":
        first = make_inputs(tmp_path, "first")
        train(first, prepare_run(first, None, 100), TINY, OPTIONS, ONE_THREAD)
    network = replace(
        TINY,
        output="tree",
        tree=tree,
        vectors=vectors and str(tmp_path / vectors),
        overlap=overlap,
        tied=tied,
    )
    run = make_inputs(tmp_path)
    facts = train(run, prepare_run(run, None, 100, network), network, OPTIONS, ONE_THREAD)
    assert facts["network"]["tied"] == (tied is None)
    assert (facts["network"]["leaves"] > 0) == (overlap is not None)
    before = load_model(tmp_path / "run" / "best")[0].output
    longer = replace(OPTIONS, epochs=2)
    train(run, load_prepared(tmp_path / "run", 50), network, longer, RESUMED)
    after = load_model(tmp_path / "run" / "best")[0].output
    assert torch.equal(after.tree, before.tree)
    assert torch.equal(after.places, before.places)


@pytest.mark.parametrize("frozen", [True, False])
def test_resumed_run_keeps_the_embedding_frozen_or_tuned(tmp_path, frozen):
    (tmp_path / "words.vec").write_text("cat " + "1 " * 8 + "\nking " + "-1 " * 8 + "\n")
    network = replace(
        TINY, embeddings=str(tmp_path / "words.vec"), freeze_embeddings=frozen, tied=False, embedding_size=8
    )
    run = make_inputs(tmp_path)
    train(run, prepare_run(run, None, 100, network), network, OPTIONS, ONE_THREAD)
    text = load_prepared(tmp_path / "run", 50)
    train(run, text, network, replace(OPTIONS, epochs=2), RESUMED)
    weight = load_model(tmp_path / "run" / "best")[0].network.embedding.weight
    cat, king = (weight[text.vocabulary.ids[word]] for word in ("cat", "king"))
    assert torch.equal(cat, -king) == frozen


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_by": "sound"}, "expected one of sqrt, mass, brown, kmeans"),
        ({"vectors": "a.vec"}, "only by --class-by kmeans and --tree learned"),
        ({"tree": "huffman"}, "--output-layer tree"),
        ({"output": "tree", "overlap": 0.1}, "--overlap needs --tree learned"),
        (
            {"output": "tree", "tree": "learned", "overlap": 0.5},
            r"overlap is 0.5; expected 0 ≤ overlap < 0.5",
        ),
        ({"freeze_embeddings": True}, "of --embeddings"),
        ({"class_by": "kmeans", "vectors": "none.vec"}, "there is no such file"),
    ],
)
def test_rejects_contradictory_network_options(tmp_path, settings, message):
    with pytest.raises(RescorerError, match=message):
        prepare_run(make_inputs(tmp_path), None, 100, NetworkOptions(**settings))


@pytest.mark.parametrize("class_by", ["brown", "kmeans"])
def test_learned_class_order_keeps_the_text(tmp_path, class_by):
    plain = prepare_run(make_inputs(tmp_path, "plain"), None, 100)
    vectors = None
    if class_by == "kmeans":
        train(make_inputs(tmp_path, "plain"), plain, TINY, OPTIONS, ONE_THREAD)
        vectors = str(tmp_path / "plain")
    run = make_inputs(tmp_path)
    network = NetworkOptions(embedding_size=8, hidden_size=8, n_classes=4, class_by=class_by, vectors=vectors)
    ordered = prepare_run(run, None, 100, network)
    assert set(ordered.vocabulary.words) == set(plain.vocabulary.words)
    for name in ("train.ids", "validation.ids"):
        before, after = (
            [text.vocabulary.words[i] for i in read_encoded(tmp_path / folder / name)]
            for text, folder in ((plain, "plain"), (ordered, "run"))
        )
        assert before == after
    facts = train(run, ordered, network, OPTIONS, ONE_THREAD)
    assert facts["network"]["class_sizes"] == 4
    assert np.isfinite(facts["validation_perplexity"])
    train(run, load_prepared(tmp_path / "run", 50), network, OPTIONS, RESUMED)


def test_parses_the_weight_after_a_text_name(tmp_path):
    odd = tmp_path / "odd:2"
    odd.write_text("")
    assert parse_weighted_text(str(odd)) == (odd, 1.0)
    assert parse_weighted_text("texts/a.txt:0.5")[1] == 0.5
    for invalid in ("a.txt:0", "a.txt:many"):
        with pytest.raises(ConfigError):
            parse_weighted_text(invalid)


def test_neural_command_writes_scalars_and_starts_from_another_run(tmp_path):
    train_file, validation = write_text(tmp_path)
    common = f"--validation {validation} --threads 1 --epochs 1 --batch-words 64 --json".split()
    sizes = ["--hidden", "8", "--embedding", "8", "--noise-samples", "5"]
    network = ["--network", "elman", "--objective", "nce", *sizes]
    first = CliRunner().invoke(
        app, ["neural", f"{train_file}:2", *common, *network, "-o", str(tmp_path / "a"), "--tensorboard"]
    )
    assert first.exit_code == 0, first.output
    facts = json.loads(first.stdout)
    assert facts["words"] == 2 * 1999
    assert facts["network"]["output"] == "full"
    assert 0 < facts["normaliser_error"]["deviation"] < 2
    assert list((tmp_path / "a" / "tensorboard").glob("events*"))
    second = ["neural", str(train_file), *common, "--start-from", str(tmp_path / "a")]
    done = CliRunner().invoke(app, [*second, "-o", str(tmp_path / "b")])
    assert json.loads(done.stdout)["validation_perplexity"] < facts["validation_perplexity"]
    rejected = CliRunner().invoke(app, [*second, "-o", str(tmp_path / "c"), "--hidden", "9"])
    assert isinstance(rejected.exception, ConfigError)
    assert "hidden_size cannot be given too" in str(rejected.exception)
    changed = CliRunner().invoke(
        app, [*second, "-o", str(tmp_path / "d"), "--carried", "--weight-dropout", "0.1"]
    )
    facts = json.loads(changed.stdout)
    assert (facts["state"], facts["network"]["carried"]) == ("carried over sentence ends", True)
