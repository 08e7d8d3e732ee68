"""Training of models in pieces of words on lists, and ``rescorer-train finetune``."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.evaluation.scored_lists import score_lists
from rescorer.models.bundle import read_bundle
from rescorer.pipeline import Rescorer
from rescorer.safe_input import Folder
from rescorer.types import Hypothesis, NBestList, Utterance, Weights
from rescorer.units.files import read_unit_config
from rescorer.units.prompts import Prompt
from rescorer_training import finetuning
from rescorer_training.cli import main
from rescorer_training.finetuning import SourceModel, UnitSentence, UnitWriter, make_trainable
from rescorer_training.list_finetuning import (
    ErrorLoss,
    ListFinetuning,
    ListOptions,
    ListPreparer,
    ListRun,
    TrainingList,
)
from tests.support.list_lines import write
from tests.support.unit_models import unit_model, write_letter_bundle

WEIGHTS = Weights("default", {"acoustic": 1.0}, {"mixture": 0.2})
FAST = ListOptions(epochs=2, learning_rate=0.02)
scores = st.floats(-20, 20)
hypotheses = st.lists(st.tuples(st.integers(0, 9), scores, scores), min_size=2, max_size=6)


def make_list(rows, sentences=None):
    errors, rest, log_probs = np.array(rows, dtype=np.float64).T
    return TrainingList(sentences or [UnitSentence([1, 5, 6, 2], 1, 1)] * len(rows), errors, rest, log_probs)


def enumerate_loss(loss, item, log_probs):
    """The slow twin: the loss as it is written, of a tensor of ln P of the texts."""
    beliefs = ((torch.tensor(item.rest) + loss.weight * log_probs) / loss.temperature).softmax(dim=0)
    mean = sum(item.errors) / len(item.errors)
    best = min(range(len(item.errors)), key=lambda index: item.errors[index])
    n_units = len(item.sentences[best].units) - item.sentences[best].first_scored or 1
    expected = sum(belief * (error - mean) for belief, error in zip(beliefs, item.errors, strict=True))
    return expected - loss.likelihood * log_probs[best] / n_units


@given(hypotheses, st.floats(-2, 2), st.floats(0.2, 50), st.floats(0, 1))
def test_derivatives_are_those_of_the_enumerated_loss(rows, weight, temperature, likelihood):
    item, loss = make_list(rows), ErrorLoss(weight, temperature, likelihood)
    log_probs = torch.tensor(item.log_probs, requires_grad=True)
    expected = enumerate_loss(loss, item, log_probs)
    expected.backward()
    value, derivatives = loss.differentiate(item, item.log_probs)
    assert value == pytest.approx(float(expected.detach()), abs=1e-9)
    assert derivatives == pytest.approx(log_probs.grad.numpy(), abs=1e-9)


def test_temperatures_stay_within_the_spread_of_totals():
    rows = [[(place % 2, 4.0, 0.0), (1 - place % 2, 0.0, 0.0)] for place in range(4)]
    assert ErrorLoss.fit([make_list(pair) for pair in rows], 1.0, 0.0).temperature == pytest.approx(2.0)
    surely = [make_list([(0, 4.0, 0.0), (1, 0.0, 0.0)])] * 2  # the better one always has the higher total
    assert ErrorLoss.fit(surely, 1.0, 0.0).temperature == pytest.approx(0.02)
    assert ErrorLoss.fit([make_list([(0, 1.0, 0.0), (1, 1.0, 0.0)])], 1.0, 0.0).temperature > 0


texts = st.sampled_from(["a", "ab", "abc a", "on", "é on on"])


@pytest.mark.parametrize("rank", [0, 2])
@settings(max_examples=3, deadline=None)
@given(
    st.lists(st.lists(st.tuples(texts, st.integers(0, 4)), min_size=2, max_size=3), min_size=1, max_size=3)
)
def test_a_step_adds_the_gradients_of_the_enumerated_loss(rank, lists):
    model, config = unit_model(end=None)
    writer = UnitWriter(model, config)
    items = []
    for rows in lists:
        rows = [*rows, ("", 1)]  # of which nothing is scored
        sentences = [writer.write(tuple(text.split())) for text, _ in rows]
        items.append(
            make_list([(errors, 0.1 * place, 0.0) for place, (_, errors) in enumerate(rows)], sentences)
        )
    loss, trainable = ErrorLoss(0.5, 2.0, 0.1), make_trainable(model, ListOptions(), rank)
    run = ListRun(trainable, writer, (items, items), loss, ListOptions())
    with torch.no_grad():
        for parameter in run.parameters:  # B of LoRA, too, is not 0
            parameter += 0.05
    run.add_step(items)
    found = [parameter.grad for parameter in run.parameters]
    run.optimiser.zero_grad()
    for item in items:
        log_probs = torch.stack([log_prob_alone(run.network, one) for one in item.sentences])
        (enumerate_loss(loss, item, log_probs.double()) / len(items)).backward()
    for parameter, gradient in zip(run.parameters, found, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-5)


def log_prob_alone(network, sentence):
    """ln P of one sentence, without padding, with gradients."""
    if not sentence.is_scored:
        return torch.zeros(())
    units = torch.tensor(sentence.units)
    rows = network.scores(network.batch_vectors(units[None, :-1])[0]).log_softmax(dim=1)
    return rows[torch.arange(len(units) - 1), units[1:]][sentence.first_scored - 1 :].sum()


GOOD, WRONG = ("man", "dog", "hat", "red"), ("ox", "zzz")
"""Words that are said, and words that only the recogniser writes."""


def nbest(number, texts, acoustic, reference, **fields):
    streams = {"acoustic": tuple(acoustic)}
    return NBestList(str(number), tuple(map(Hypothesis, texts)), streams, reference=reference, **fields)


def make_lists(n_lists=30, *, are_predictable=True):
    """Lists of two hypotheses, the first of which has the higher score. One is right; its words tell which,
    or nothing does."""
    draw, lists = random.Random(1), []
    for number, said in enumerate(list(permutations(GOOD, 3))[:n_lists] + list(permutations(GOOD, 2))):
        heard = list(said)
        heard[draw.randrange(len(said))] = draw.choice(WRONG if are_predictable else GOOD)
        pair = [" ".join(said), " ".join(heard)]
        draw.shuffle(pair)
        reference = " ".join(said) if are_predictable else draw.choice(pair)
        lists.append(nbest(number, pair, (-1.0, -1.5), reference, group=f"s{number % 12}"))
    return lists[:n_lists]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle of a model of letters, which has a weight."""
    pytest.importorskip("tokenizers")
    return write_letter_bundle(tmp_path_factory.mktemp("source"), WEIGHTS)


@pytest.fixture
def few_validations(monkeypatch):
    monkeypatch.setattr(finetuning, "VALIDATIONS", 3)


def prepare(bundle, lists, options=FAST):
    """A trainer on lists, and the weights that rank."""
    rescorer = Rescorer.load(bundle)
    weights = rescorer.ranker.effective_weights(None)
    source = SourceModel.load(bundle / "llm", "llm", "cpu")
    preparer = ListPreparer(rescorer, source.writer, "llm", weights, options)
    prepared = preparer.prepare(score_lists(rescorer, lists, weights)[0])
    return ListFinetuning(rescorer, source, prepared, weights, options)


def test_training_reads_lists_as_ranking_does(tmp_path):
    pytest.importorskip("tokenizers")
    bundle = write_letter_bundle(tmp_path, WEIGHTS, Prompt(before="the man. ", max_units=60))
    lists = [
        replace(one, context="a",
                  previous=(Utterance("red hat"),) * (number % 3))
        for number, one in enumerate(make_lists(20))
    ]  # fmt: skip
    training = prepare(bundle, lists)
    items = [one for one in training.prepared.usable if one]
    trainable = make_trainable(training.source.model, FAST, 0)
    run = ListRun(trainable, training.source.writer, (items, items), ErrorLoss(1.0, 1.0), FAST)
    for item, found in zip(items, run.score(items), strict=True):
        assert found == pytest.approx(item.log_probs, abs=1e-3)


def write_lines(path, lists):
    """Write lists to a file."""
    records = [
        {
            "id": one.id, "group": one.group, "reference": one.reference,
            "hypotheses": [
                {"text": hypothesis.text, "scores": {"acoustic": score}}
                for hypothesis, score in zip(one.hypotheses, one.streams["acoustic"], strict=True)
            ],
        }
        for one in lists
    ]  # fmt: skip
    return write(path, *map(json.dumps, records))


@pytest.fixture
def finetune(run, bundle, tmp_path, few_validations):
    """Run the command; returns exit code, standard output, and standard error."""

    def call(lists, *arguments, source=bundle, version=2):
        file = write_lines(tmp_path / "lists.jsonl", lists)
        fixed = ("-b", source, "-o", tmp_path / "new" / str(version), "--no-cache", "--epochs", 2)
        return run("finetune", file, *fixed, "--learning-rate", 0.02, *arguments, command=main)

    return call


def test_learns_words_that_are_errors_and_writes_the_bundle(finetune, bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = finetune(make_lists(), "--likelihood", 0)
    assert code == 0, err
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 80
    assert "held out, the trained model gains" in out
    new = read_bundle(tmp_path / "new" / "2")
    facts = new.manifest["training"]["list_finetuning"]
    first, before, after = (system["wer"] for system in facts["systems"])
    assert after < before - 5
    assert first > after
    assert facts["expected_errors"][1] < facts["expected_errors"][0]
    assert facts["better"]
    assert facts["after_over_before"]["p_value"] < 0.05
    recorded = read_unit_config(Folder(new.folder / "llm")).source["adaptation"]
    assert recorded | {"source": "toy/1"} == facts
    assert len(new.weights["default"].tuned_on) == 30
    assert (new.folder / "llm" / "LICENSE").read_bytes() == (bundle / "llm" / "LICENSE").read_bytes()
    assert not [*new.folder.parent.glob(".*")]


def test_a_stopped_command_is_resumed_and_writes_the_same(finetune, tmp_path, monkeypatch):
    lists, add_step, counted = make_lists(20), ListRun.add_step, []
    assert finetune(lists, "--force")[0] == 0

    def stop(self, step):
        counted.append(step)
        if len(counted) == 5:  # in the second fold
            self._save()
            raise SystemExit(130)
        return add_step(self, step)

    monkeypatch.setattr(ListRun, "add_step", stop)
    code, _, err = finetune(lists, "--force", version=3)
    assert code == 130
    assert "is saved: repeat the command with --resume" in err
    assert not (tmp_path / "new" / "3").exists()
    counted.clear()
    counted.extend([[]] * 9)  # not stopped again
    code, _, err = finetune(lists, "--force", "--resume", version=3)
    assert code == 0, err
    whole, resumed = (read_bundle(tmp_path / "new" / version).manifest["files"] for version in "23")
    assert whole == resumed


def test_writes_nothing_where_errors_are_random(finetune, tmp_path):
    code, out, err = finetune(make_lists(are_predictable=False), "--json", "--likelihood", 0)
    assert code == 0, err
    facts = json.loads(out)
    assert not facts["better"]
    assert not facts["written"]
    assert not (tmp_path / "new").exists()


def test_lists_from_which_nothing_can_be_learnt_are_counted(bundle):
    lists = make_lists(25)
    lists[0] = nbest("one", ["man"], [-1.0], "man")
    lists[1] = nbest("equal", ["a", "b"], [-1.0, -2.0], "man")
    lists[2] = nbest("long", ["man", "a" * 300], [-1.0, -2.0], "man")
    lists[3] = replace(lists[3], hypotheses=tuple(replace(one, partial=True) for one in lists[3].hypotheses))
    skipped = prepare(bundle, lists).prepared.skipped
    reasons = ("one hypothesis", "equal numbers of errors", "too long for the model", "unfinished hypotheses")
    assert skipped == dict.fromkeys(reasons, 1)
    with pytest.raises(
        ConfigError, match=r"nothing can be learnt from any of the lists \(one hypothesis: 20\)"
    ):
        prepare(bundle, [nbest(number, ["a"], [1.0], "a") for number in range(20)])


def test_reads_the_best_hypotheses_and_the_one_with_the_fewest_errors(bundle):
    texts, acoustic = ("ox", "zzz", "red hat", "man man"), (0.0, -9.0, -90.0, -900.0)
    lists = [nbest(number, texts, acoustic, "man man") for number in range(20)]
    item = prepare(bundle, lists, ListOptions(hypotheses=2)).prepared.usable[0]
    assert item.errors.tolist() == [2, 2, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-w", "lm:llm=0"), "'llm' has no weight under the weights"),
        (("--model", "lm"), "expected one in pieces of words: llm; did you mean"),
        (("--likelihood", "inf"), "likelihood is inf; expected 0 to"),
        (("--resume",), "has no training run; start one without --resume"),
    ],
)
def test_refuses_options(finetune, arguments, message):
    code, _, err = finetune(make_lists(20), *arguments)
    assert code == 2
    assert message in " ".join(err.split())


def test_refuses_too_few_lists_and_lists_without_references(finetune):
    code, _, err = finetune(make_lists(5))
    assert code == 2
    assert "5 lists with references; a model is trained and judged on at least 20" in err
    code, _, err = finetune([replace(one, group="a") for one in make_lists(20)])
    assert code == 2
    assert "1 group with references" in err
    code, _, err = finetune([replace(one, reference=None) for one in make_lists(20)])
    assert code == 2
    assert "no list could be used for training" in err


def test_refuses_bundles_without_a_model_whose_sentences_have_a_weight(
    finetune, ngram_bundle, bundle, tmp_path
):
    code, _, err = finetune(make_lists(20), source=ngram_bundle)
    assert code == 2
    assert "has no model in pieces of words to train" in err
    mixed = write_letter_bundle(
        tmp_path, Weights("default", {"acoustic": 1.0}, {"mixture": 1.0}, mixture={"llm": 1.0})
    )
    code, _, err = finetune(make_lists(20), source=mixed)
    assert code == 2
    assert "'llm' is mixed word by word with other models" in err
