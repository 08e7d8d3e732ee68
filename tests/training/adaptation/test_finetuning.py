"""Further training of models in pieces of words, and bundles that have them."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.list_checks import join_history
from rescorer.models.bundle import read_bundle
from rescorer.progress import ProgressTask
from rescorer.safe_input import Folder
from rescorer.signals import HeldStop
from rescorer.text import Normaliser
from rescorer.trie import build_trie
from rescorer.types import Weights
from rescorer.units.automodel import AutoModelConfig
from rescorer.units.files import UnitConfig, load_unit_model, make_model, read_unit_config
from rescorer.units.importing import score_alone
from rescorer.units.prompts import Prompt
from rescorer.units.recurrent import RecurrentConfig
from rescorer_training import finetuning
from rescorer_training.cli import main
from rescorer_training.finetuning import (
    Finetuner,
    FinetuningOptions,
    FinetuningTexts,
    UnitWriter,
    add_gradients,
    choose_rank,
    make_trainable,
    sum_losses,
)
from rescorer_training.recipe.bundles import BundleParts, make_bundle
from tests.support.domain_text import write_domain_text
from tests.support.tiny_models import write_arpa
from tests.support.unit_models import LetterTokenizer, unit_model, write_letter_bundle

words = st.sampled_from(["a", "ab", "abc", "b", "on", "abcdefg", "é"])
sentences = st.lists(st.lists(words, min_size=1, max_size=4).map(tuple), min_size=1, max_size=6)
LOW_RANK = FinetuningOptions(rank=3, words=400, learning_rate=0.01)


def recurrent_model(kind="lstm", end=2):
    """A random recurrent network over the units of ``LetterTokenizer``, and its configuration."""
    decoder = RecurrentConfig(kind, LetterTokenizer.size, 4, 5, 2, blocks=(6,))
    random = torch.Generator().manual_seed(1)
    shapes = decoder.tensor_shapes()[0]
    tensors = {name: torch.randn(shape, generator=random) / 2 for name, shape in shapes.items()}
    config = UnitConfig(decoder, (1,), end)
    return make_model(config, tensors, LetterTokenizer(), context_cache_bytes=0), config


def loss_of(trainable, writer, batch):
    part = writer.pad([writer.write(words) for words in batch], torch.device("cpu"))
    return sum_losses(trainable.network, *part).sum()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "lstm", "gru", "elman"])
@settings(max_examples=4, deadline=None)
@given(batch=sentences, end=st.sampled_from([None, 2]), shape=st.sampled_from(["start", "opening", "none"]))
def test_the_loss_is_what_scoring_adds_up(kind, batch, end, shape):
    if kind in ("llama", "gpt2"):
        opening = (5, 6) if shape == "opening" else ()
        model, config = unit_model(kind, end=end, opening=opening, has_start=shape != "none")
    else:
        model, config = recurrent_model(kind, end)
    trainable = make_trainable(model, FinetuningOptions(), 0)
    expected = -sum(score_alone(model, config, words) for words in batch)
    assert loss_of(trainable, UnitWriter(model, config), batch) == pytest.approx(expected, abs=3e-4)


@pytest.mark.parametrize(("name", "rank"), [("llama", 0), ("llama", 3), ("opt-norm-after", 3), ("lstm", 0)])
def test_gradients_are_those_of_the_loss(name, rank, monkeypatch):
    monkeypatch.setattr(finetuning, "SCORES_AT_ONCE", 150)  # a few rows at a time
    model, config = recurrent_model() if name == "lstm" else unit_model(name)
    trainable, writer = make_trainable(model, FinetuningOptions(), rank), UnitWriter(model, config)
    random, parameters = torch.Generator().manual_seed(2), [*trainable.parameters.values()]
    with torch.no_grad():
        for parameter in parameters:  # B, too, is not 0
            parameter += 0.05 * torch.randn(parameter.shape, generator=random)
    batch = [("ab", "on"), ("abcdefg",), ("b", "a", "é")]
    part = writer.pad([writer.write(words) for words in batch], torch.device("cpu"))
    total = add_gradients(trainable.network, *part, 0.5)
    assert total == pytest.approx(loss_of(trainable, writer, batch), rel=1e-4)
    gradients = [parameter.grad.clone() for parameter in parameters]
    squared = float(sum((gradient.double() ** 2).sum() for gradient in gradients))
    step, around = 0.01 / squared**0.5, []
    for sign in (1, -2):
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter += sign * step * gradient
        around.append(loss_of(trainable, writer, batch))
    assert (around[0] - around[1]) / (2 * step) == pytest.approx(2 * squared, rel=0.02)


@settings(max_examples=5, deadline=None)
@given(sentences, st.integers(0, 3))
def test_merged_weights_score_as_the_products_of_low_rank_do(batch, seed):
    model, config = unit_model()
    base = {name: tensor.clone() for name, tensor in model.scorer.decoder.tensors.items()}
    trainable = make_trainable(model, FinetuningOptions(seed=seed), 2)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainable.parameters.values():
            parameter += 0.1 * torch.randn(parameter.shape, generator=random)
    merged = make_model(config, trainable.merge(base), LetterTokenizer(), context_cache_bytes=0)
    trie = build_trie(batch)
    found = -merged.score(trie).sum_paths(trie).sum()
    assert found == pytest.approx(loss_of(trainable, UnitWriter(model, config), batch), abs=1e-3)
    for name, tensor in model.scorer.decoder.tensors.items():
        assert torch.equal(tensor, base[name])


def finetune_letters(options=LOW_RANK, state=None, **texts):
    model, config = unit_model()
    train = [("on", "ab"), ("a", "on", "ab"), ("on", "on", "ab", "b")] * 20
    trainable = make_trainable(model, options, choose_rank(model, options))
    texts = FinetuningTexts(**{"train": train, "fitting": [("on", "ab"), ("a", "on", "ab")], **texts})
    return Finetuner(trainable, UnitWriter(model, config), texts, options, state)


@pytest.mark.parametrize("options", [LOW_RANK, FinetuningOptions(words=400, learning_rate=0.01)])
def test_learns_and_leaves_the_best_weights(options):
    run = finetune_letters(options)
    progress = run.run("letters")
    before, *after = progress.figures
    assert min(after) < 0.8 * before
    run._validate(HeldStop(), ProgressTask())
    assert progress.figures[-1] == pytest.approx(min(after))


def test_training_stops_when_held_out_text_gets_worse():
    run = finetune_letters(FinetuningOptions(rank=3, words=4000, learning_rate=0.1), fitting=[("é",) * 3])
    progress = run.run("letters")
    assert progress.without_gain == 2
    assert progress.n_read < 4000


def test_a_stopped_run_continues_exactly(tmp_path, monkeypatch):
    whole = finetune_letters()
    whole.run("letters")
    state, take_step = tmp_path / "state.safetensors", Finetuner._take_step

    def stop_after_two(run, *arguments):
        take_step(run, *arguments)
        if run.progress.step == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Finetuner, "_take_step", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        finetune_letters(state=state).run("letters")
    monkeypatch.undo()
    again = finetune_letters(state=state)
    assert again.progress.step == 2
    assert again.run("letters").figures == whole.progress.figures
    for one, other in zip(again.parameters, whole.parameters, strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ConfigError, match="rank was 3, is 2"):
        finetune_letters(FinetuningOptions(rank=2, words=400, learning_rate=0.01), state)
    with pytest.raises(ConfigError, match="texts was"):
        finetune_letters(state=state, replay=[("b",)])


def test_a_fourth_of_the_sentences_is_replayed():
    run = finetune_letters(replay=[("é", "é")])
    pool = next(run._make_pools(np.random.default_rng(1)))
    replayed = run.writer.write(("é", "é"))
    assert 0.1 < sum(sentence == replayed for sentence in pool) / len(pool) < 0.4


def test_sentences_are_learnt_after_those_before_them():
    model, config = unit_model()
    model.prompt = Prompt(after_utterance="|")
    config = replace(config, prompt=model.prompt)
    text, options = [("on", "ab"), ("a",), ("b", "b"), ("abc",)], replace(LOW_RANK, before=2)
    trainable, writer = make_trainable(model, options, 0), UnitWriter(model, config)
    run = Finetuner(trainable, writer, FinetuningTexts(text, text), options)
    pool = next(run._make_pools(np.random.default_rng(1)))
    histories = [join_history(text[max(index - 2, 0) : index], ()) for index in range(4)]
    assert sorted(pool) == sorted(map(writer.write, text, histories)) == sorted(run.fitting)
    trie = build_trie(text, histories)
    expected = math.exp(-model.score(trie).sum_paths(trie).sum() / sum(map(len, text)))
    assert run.validate(lambda: None) == pytest.approx(expected, rel=1e-4)


def test_small_decoders_are_trained_as_a_whole(monkeypatch):
    model, _ = unit_model()
    assert choose_rank(model, FinetuningOptions()) == 0
    monkeypatch.setattr(finetuning, "FULL_PARAMETERS", 10)
    assert choose_rank(model, FinetuningOptions()) == finetuning.DEFAULT_RANK
    assert choose_rank(model, FinetuningOptions(rank=0)) == 0
    assert choose_rank(recurrent_model()[0], FinetuningOptions()) == 0
    with pytest.raises(ConfigError, match="'units' is a recurrent network; expected 0"):
        choose_rank(recurrent_model()[0], FinetuningOptions(rank=2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rank": 2000}, "rank is 2000; expected 0 to 1,024"),
        ({"epochs": 0}, "epochs is 0; expected at least 1"),
        ({"before": -1}, "before is -1; expected at least 0"),
        ({"alpha": 0.0}, "alpha is 0.0; expected a finite number above 0"),
        ({"learning_rate": 1e30}, "learning_rate is 1e\\+30; expected a number above 0, at most 1"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
    ],
)
def test_refuses_options_out_of_range(values, message):
    with pytest.raises(ConfigError, match=message):
        FinetuningOptions(**values)


def test_refuses_texts_of_which_nothing_is_scored():
    with pytest.raises(ConfigError, match="the held-out text has no sentence that the model can read"):
        finetune_letters(fitting=[("on",) * 600])
    with pytest.raises(ConfigError, match="the text has no sentence"):
        finetune_letters(train=[])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle of a model of letters."""
    pytest.importorskip("tokenizers")
    weights = Weights("default", {"acoustic": 1.0}, {"mixture": 0.1})
    return write_letter_bundle(tmp_path_factory.mktemp("source"), weights)


@pytest.fixture
def adapt(run, bundle, tmp_path):
    """Run the command; returns exit code, JSON data or None, and stderr."""
    text = write_domain_text(tmp_path / "domain.txt")

    def call(*arguments, output=tmp_path / "new" / "1", source=bundle):
        fixed = ("--text", text, "-o", output, "--json", "--units-words", 600, "--units-rate", 0.01)
        code, out, err = run("adapt", source, *fixed, *arguments, command=main)
        return code, json.loads(out) if code == 0 else None, err

    return call


def test_refuses_a_text_to_replay_that_has_no_words(adapt, tmp_path):
    (tmp_path / "empty.txt").write_text("\n ... \n")
    code, _, err = adapt("--replay", tmp_path / "empty.txt")
    assert code == 2
    assert "empty.txt has no words; expected one sentence per line" in " ".join(err.split())


@pytest.mark.parametrize("rank", [0, 4])
def test_adapts_a_model_in_pieces_of_words(adapt, bundle, tmp_path, rank):
    before = {file: file.read_bytes() for file in bundle.rglob("*") if file.is_file()}
    general = tmp_path / "general.txt"
    general.write_text("what he had in his pocket was quite another question\n" * 20)
    code, facts, err = adapt("--rank", rank, "--general", general, "--replay", general)
    assert code == 0, err
    found = facts["units"]["llm"]
    assert found["improved"]
    assert found["rank"] == rank
    domain, other = (found["perplexity_per_word"][name] for name in ("domain", "general"))
    assert domain[1] < domain[0]
    assert other[0] != other[1]
    adapted = read_bundle(facts["bundle"])
    assert adapted.model_kinds == {"llm": "units"}
    assert adapted.weights.keys() == {"default"}
    config = read_unit_config(Folder(adapted.folder / "llm"))
    assert config.source["adaptation"]["text"] == "domain.txt"
    assert config.source["adaptation"]["replay"] == "general.txt"
    assert config.source["toolkit"] == "transformers"
    assert config.source["sha256"] != read_unit_config(Folder(bundle / "llm")).source["sha256"]
    assert config.check["max_difference_per_word"] < 1e-4
    assert (adapted.folder / "llm" / "LICENSE").read_text() == "Do with it what you like.\n"
    assert before == {file: file.read_bytes() for file in bundle.rglob("*") if file.is_file()}
    assert not [*adapted.folder.parent.glob(".*")]
    assert load_unit_model(adapted.folder / "llm").score(build_trie([("the", "cat")])).log_probs.sum() < 0


def test_the_same_seed_gives_the_same_model(adapt, tmp_path):
    files = []
    for version, seed in ((1, 1), (2, 1), (3, 2)):
        _, facts, _ = adapt("--rank", 2, "--seed", seed, output=tmp_path / "new" / str(version))
        files.append((Path(facts["bundle"]) / "llm" / "model.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_a_stopped_command_is_resumed(adapt, run, tmp_path, monkeypatch):
    _, expected, _ = adapt("--rank", 2)
    take_step = Finetuner._take_step

    def stop(self, *arguments):
        take_step(self, *arguments)
        self._save()
        raise SystemExit(130)

    output = tmp_path / "new" / "2"
    monkeypatch.setattr(Finetuner, "_take_step", stop)
    code, _, err = adapt("--rank", 2, output=output)
    monkeypatch.undo()
    assert code == 130
    assert "is saved: repeat the command with --resume" in err
    assert not output.exists()
    code, facts, err = adapt("--rank", 2, "--resume", output=output)
    assert code == 0, err
    weights = [Path(one["bundle"]) / "llm" / "model.safetensors" for one in (expected, facts)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    code, _, err = adapt("--rank", 2, "--resume", output=tmp_path / "new" / "3")
    assert code == 2
    assert "has no training run; start one without --resume" in err


def test_a_member_of_the_mixture_stays_one(adapt, bundle, tmp_path):
    (tmp_path / "valid.txt").write_text("the cat sat\nthe dog ran\n")
    parts = BundleParts(
        name="mixed", version=1, ngrams={"ngram": write_arpa(tmp_path)}, networks={}, tests={},
        units={"llm": bundle / "llm"}, normaliser=Normaliser(), validation=tmp_path / "valid.txt",
        weights=Weights("default", {"acoustic": 1.0}, {"mixture": 1.0}, mixture={"ngram": 0.9, "llm": 0.1}),
    )  # fmt: skip
    make_bundle(parts, tmp_path / "mixed" / "1")
    code, facts, err = adapt("--rank", 2, source=tmp_path / "mixed" / "1")
    assert code == 0, err
    assert set(facts["mixture"]) == {"ngram", "llm"}
    shares = read_bundle(facts["bundle"]).weights["default"].mixture
    assert sum(shares.values()) == pytest.approx(1)
    before, after = facts["texts"]["domain"]["perplexity"]["mixture"]
    assert after < before


def test_a_model_that_does_not_improve_stays_as_it_was(adapt, bundle):
    code, facts, err = adapt("--units-rate", 1e-30)
    assert code == 0, err
    assert not facts["units"]["llm"]["improved"]
    assert len(set(facts["units"]["llm"]["perplexity_per_word"]["domain"])) == 1
    weights = [folder / "llm" / "model.safetensors" for folder in (bundle, Path(facts["bundle"]))]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_models_without_a_prompt_cannot_learn_from_what_was_said_before(adapt):
    code, _, err = adapt("--units-before", 2)
    assert code == 2
    assert "'llm' is to read 2 sentences before each one" in err
    assert "import it with --prompt" in err


def test_adapts_a_model_that_reads_what_was_said_before(adapt, tmp_path):
    pytest.importorskip("tokenizers")
    weights = Weights("default", {"acoustic": 1.0}, {"mixture": 0.1})
    source = write_letter_bundle(tmp_path / "talk", weights, Prompt("", " ", max_units=60))
    code, facts, err = adapt("--units-before", 1, "--rank", 2, source=source)
    assert code == 0, err
    before, after = facts["units"]["llm"]["perplexity_per_word"]["domain"]
    assert after < before
    config = read_unit_config(Folder(Path(facts["bundle"]) / "llm"))
    assert config.source["adaptation"]["before"] == 1
    assert config.prompt.max_units == 60


def test_refuses_a_model_that_transformers_runs(bundle):
    model = load_unit_model(bundle / "llm")
    config = read_unit_config(Folder(bundle / "llm"))
    object.__setattr__(config, "decoder", object.__new__(AutoModelConfig))
    with pytest.raises(ConfigError, match="'units' is run by transformers"):
        UnitWriter(model, config)
