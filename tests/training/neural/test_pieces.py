"""Networks over pieces of words: their tokenizers, what is trained, and the models that come out."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.models.bundle import find_vector_size, read_bundle
from rescorer.models.neural import load_model
from rescorer.safe_input import Folder
from rescorer.text import Normaliser
from rescorer.trie import build_trie
from rescorer.units.files import UnitConfig, load_unit_model
from rescorer.units.importing import read_huggingface, score_alone
from rescorer_training.cli import app
from rescorer_training.neural import export, train
from rescorer_training.neural.checkpoint import STATE_FILE
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.pieces import UnitKind, encode_pieces, read_tokenizer, train_tokenizer
from rescorer_training.neural.prepare import RunInputs, load_prepared, perplexity
from rescorer_training.state_files import read_options
from tests.support.toy_training import write_text

pytest.importorskip("tokenizers")
WORDS = {"the": 90, "cat": 40, "cats": 30, "sat": 30, "on": 20, "mat": 20, "naïve": 5, "</s>": 4, "日本": 2}
KINDS = ("bpe:300", "unigram:300")
NETWORKS = {
    "lstm": NetworkOptions("lstm", 8, 12),
    "gru": NetworkOptions("gru", 8, 8, layers=2),
    "elman": NetworkOptions("elman", 8, 12, tied=False, activation="relu"),
    "transformer": NetworkOptions("transformer", 8, 8, layers=2, heads=2, window=6),
    "projected transformer": NetworkOptions("transformer", 8, 12, heads=2, tied=False),
}
OPTIONS = TrainingOptions(epochs=2, batch_words=800, warmup_steps=2, learning_rate=0.02)


def make_inputs(folder: Path, name: str = "run", **settings) -> RunInputs:
    folder.mkdir(exist_ok=True)
    texts, validation = write_text(folder)
    return RunInputs([texts], validation, folder / name, Normaliser(), **{"units": "bpe:300", **settings})


def run(inputs: RunInputs, network: NetworkOptions, options: TrainingOptions = OPTIONS, *, resume=False):
    """Train like the command; return the facts about the run."""
    if not resume:
        train.prepare_run(inputs, None, 100, network)
    text = load_prepared(inputs.folder, inputs.longest)
    return train.train(inputs, text, network, options, RunOptions(1, resume=resume))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One short run of each network."""
    folder = tmp_path_factory.mktemp("pieces")
    found = {}
    for number, (name, network) in enumerate(NETWORKS.items()):
        inputs = make_inputs(folder, f"run{number}")
        run(inputs, network)
        found[name] = inputs.folder
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_words_always_have_the_same_known_pieces(kind, tmp_path):
    data = train_tokenizer(UnitKind.parse(kind), WORDS)
    assert data == train_tokenizer(UnitKind.parse(kind), dict(reversed(WORDS.items())))
    (tmp_path / "tokenizer.json").write_bytes(data)
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.size <= 300
    assert [tokenizer.name(unit) for unit in (0, 1)] == ["</s>", "<unk>"]
    words = [*WORDS, "Zürich", "<unk>", "\U0010fffd"]
    alone = tokenizer.encode(words)
    assert tokenizer.encode([" ".join(words)])[0] == [unit for units in alone for unit in units]
    assert not {0, 1}.intersection(*alone)
    assert [len(units) for units in alone[:2]] == [1, 1]  # frequent words are not divided


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([*WORDS, "x" * 30]), min_size=1, max_size=5), min_size=1, max_size=5)
)
def test_encoding_by_words_is_that_of_each_sentence(tmp_path_factory, sentences):
    folder = tmp_path_factory.mktemp("encode")
    (folder / "tokenizer.json").write_bytes(train_tokenizer(UnitKind.parse("bpe:300"), WORDS))
    tokenizer = read_tokenizer(folder)
    words = sorted({word for sentence in sentences for word in sentence})
    numbers = [1 + words.index(word) if word else 0 for s in sentences for word in (*s, "")]
    np.array(numbers, dtype=np.int32).tofile(folder / "text")
    per_word = encode_pieces(folder / "text", words, tokenizer, 0)
    expected = [unit for s in sentences for unit in (*tokenizer.encode([" ".join(s)])[0], 0)]
    assert np.fromfile(folder / "text", dtype=np.int32).tolist() == expected
    assert per_word == pytest.approx(len(expected) / len(numbers))


@pytest.mark.parametrize("name", NETWORKS)
def test_perplexities_are_per_word_and_those_of_the_model_that_rescorer_loads(runs, name):
    folder = runs[name]
    model, _ = load_model(folder / "best")
    text = load_prepared(folder, 200)
    units = load_unit_model(folder / "units")
    sentences = [tuple(line.split()) for line in (folder.parent / "valid.txt").read_text().splitlines()]
    trie = build_trie(sentences)
    total = float(units.score(trie).sum_paths(trie).sum())
    expected = math.exp(-total / sum(len(words) + 1 for words in sentences))
    assert perplexity(model, text.validation) == pytest.approx(expected, rel=1e-4)
    facts = json.loads((folder / "best" / "training.json").read_text())
    assert facts["validation_perplexity"] == pytest.approx(expected, rel=1e-3)
    assert facts["unigram_perplexity"] < 100
    config = UnitConfig.from_dict(Folder(folder / "units").read_json("config.json"), "")
    assert units.vector_size == find_vector_size(config.decoder.to_dict())


words = st.sampled_from(["a", "the", "cat", "ship", "sank", "there", "zebra", "naïve"])
texts = st.lists(words, max_size=9).map(tuple)


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=5, deadline=None)
@given(batch=st.lists(st.tuples(texts, texts), min_size=1, max_size=6))
def test_scores_of_tries_are_those_of_one_text_at_a_time(runs, name, batch):
    folder = runs[name] / "units"
    model = load_unit_model(folder)
    config = UnitConfig.from_dict(Folder(folder).read_json("config.json"), "")
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    expected = [score_alone(model, config, *pair) for pair in batch]
    assert model.score(trie).sum_paths(trie) == pytest.approx(expected, abs=1e-4)


def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    network = NetworkOptions("transformer", 8, 8, heads=2, dropout=0.1)
    whole = run(make_inputs(tmp_path, "whole"), network)
    stopped, after = make_inputs(tmp_path, "stopped"), iter(range(3))
    check = train.Trainer._check_stop

    def stop(trainer):
        if next(after, None) is None:
            trainer._save()
            raise KeyboardInterrupt
        check(trainer)

    monkeypatch.setattr(train.Trainer, "_check_stop", stop)
    with pytest.raises(KeyboardInterrupt):
        run(stopped, network)
    assert not (stopped.folder / "units").exists()
    monkeypatch.setattr(train.Trainer, "_check_stop", check)
    resumed = run(stopped, network, resume=True)
    assert resumed["validation_perplexity"] == whole["validation_perplexity"]
    first, second = (load_unit_model(tmp_path / name / "units") for name in ("whole", "stopped"))
    trie = build_trie([("the", "cat")])
    assert (first.score(trie).log_probs == second.score(trie).log_probs).all()
    assert read_options(stopped.folder / STATE_FILE)["units"] == "bpe:300"


def test_a_run_starts_from_another_with_its_pieces(runs, tmp_path):
    inputs = make_inputs(tmp_path, start_from=runs["transformer"], units=None)
    before = json.loads((runs["transformer"] / "best" / "training.json").read_text())["validation_perplexity"]
    facts = run(inputs, NetworkOptions())
    assert facts["validation_perplexity"] <= before
    start, here = (folder / "tokenizer.json" for folder in (runs["transformer"], inputs.folder))
    assert start.read_bytes() == here.read_bytes()
    assert not load_model(inputs.folder / "best")[0].output.word_bias.any()


def test_a_run_is_imported_and_bundled_by_commands(runs, tmp_path):
    valid, folder = runs["gru"].parent / "valid.txt", tmp_path / "units"
    commands = (
        ["import", "rescorer", runs["gru"], "-o", folder, "--validation", valid],
        ["bundle", tmp_path / "toy" / "1", "--units", f"pieces={folder}", "--validation", valid],
    )
    for command in commands:
        done = CliRunner().invoke(app, list(map(str, command)))
        assert done.exit_code == 0, done.output
    assert read_bundle(tmp_path / "toy" / "1").model_kinds == {"pieces": "units"}
    first, second = ((place / "model.safetensors").read_bytes() for place in (folder, runs["gru"] / "units"))
    assert first == second


def test_perplexity_measures_a_run_per_word_and_other_commands_refuse_it(runs, tmp_path):
    folder, valid = runs["lstm"], runs["lstm"].parent / "valid.txt"
    measured = CliRunner().invoke(app, ["perplexity", str(valid), "--neural", str(folder), "--json"])
    assert measured.exit_code == 0, measured.output
    (text,) = json.loads(measured.stdout)["texts"].values()
    facts = json.loads((folder / "best" / "training.json").read_text())
    assert text["models"]["neural"]["shared"] == pytest.approx(facts["validation_perplexity"], rel=1e-3)
    for place in (folder / "best", folder / "units"):
        again = CliRunner().invoke(app, ["perplexity", str(valid), "--neural", str(place), "--json"])
        assert list(json.loads(again.stdout)["texts"].values()) == [text]
    refused = CliRunner().invoke(app, ["sample", "--neural", str(folder)])
    assert "was trained in pieces of words, which this command does not read" in str(refused.exception)
    refused = CliRunner().invoke(
        app, ["bundle", str(tmp_path / "1"), "--neural", str(folder), "--validation", str(valid)]
    )
    assert f"give --units {folder / 'units'} instead" in str(refused.exception)
    shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("units"))
    refused = CliRunner().invoke(app, ["perplexity", str(valid), "--neural", str(tmp_path / "run")])
    assert "continue it with --resume" in str(refused.exception)


def test_the_llama_has_equal_scores(runs, tmp_path):
    for number, name in enumerate(("transformer", "projected transformer")):
        folder = tmp_path / f"llama{number}"
        exported = CliRunner().invoke(app, ["export", str(runs[name]), "-o", str(folder)])
        assert exported.exit_code == 0, exported.output
        foreign = read_huggingface(folder)
        assert foreign.declared == {"bos": "</s>", "eos": "</s>"}
        ours = load_unit_model(runs[name] / "units")
        text = [0, *ours.divider.divide_text(("the",))[:4], 0]
        theirs = type(ours.scorer.decoder)(foreign.decoder, foreign.tensors)
        expected = ours.scorer.decoder.sequence_log_probs(text)
        torch.testing.assert_close(theirs.sequence_log_probs(text), expected, atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformers_loads_the_llama_with_equal_scores(runs, tmp_path):
    peer = pytest.importorskip("transformers", reason="transformers is not installed")
    values = export.write_llama(runs["transformer"], tmp_path / "llama")
    network = peer.AutoModelForCausalLM.from_pretrained(tmp_path / "llama", dtype=torch.float32).eval()
    tokenizer = peer.AutoTokenizer.from_pretrained(tmp_path / "llama")
    model = load_unit_model(runs["transformer"] / "units")
    for words in (("the",), ("a", "cat"), ("cats",)):
        ids = [*tokenizer(" ".join(words))["input_ids"], tokenizer.eos_token_id]
        assert len(ids) <= values["max_position_embeddings"] + 1
        with torch.no_grad():
            log_probs = network(torch.tensor([ids])).logits.double().log_softmax(-1)[0, :-1]
        found = float(log_probs.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).sum())
        trie = build_trie([words])
        assert float(model.score(trie).sum_paths(trie)[0]) == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize("units", ["bpe", "words:8000", "bpe:20", "unigram:9999999", "bpe:-1"])
def test_unknown_units_are_refused(units):
    with pytest.raises(ConfigError, match=r"expected bpe:N or unigram:N, with N from 300 to 100,000"):
        UnitKind.parse(units)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (NetworkOptions("feedforward"), "see a few units only"),
        (NetworkOptions("lbl"), "see a few units only"),
        (NetworkOptions("nlbl"), "see a few units only"),
        (NetworkOptions("gru", gru_reset="before"), "--gru-reset of a network over units is after"),
        (NetworkOptions(output="tree"), "full softmax"),
        (NetworkOptions(carried=True), "leave them out"),
        (NetworkOptions("elman", activation="sigmoid"), "tanh or relu"),
    ],
)
def test_networks_without_a_form_in_pieces_are_refused_before_reading(tmp_path, network, reason):
    inputs = make_inputs(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        train.prepare_run(inputs, None, 100, network)
    assert not inputs.folder.exists()


def test_what_contradicts_pieces_is_refused(runs, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="takes the units of the run it starts from"):
        make_inputs(tmp_path, start_from=runs["lstm"])
    with pytest.raises(ConfigError, match="recurrent networks have no form in the library transformers"):
        export.write_llama(runs["lstm"], tmp_path / "llama")
    with pytest.raises(ConfigError, match=r"expected the folder of rescorer-train neural --units"):
        export.read_run(tmp_path)
    with pytest.raises(ConfigError, match=r"no train\.ids; expected the folder of rescorer-train neural"):
        export.read_run(runs["lstm"] / "units")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install 'rescorer\[units\]'"):
        make_inputs(tmp_path)
