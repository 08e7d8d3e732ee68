"""Sentence completion: reading questions, scoring whole sentences, and error messages."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from rescorer.errors import ConfigError, FormatError
from rescorer.models.neural import save_model
from rescorer.weights import MIXTURE
from rescorer_training.cli import app
from rescorer_training.completion import answer, read_questions, score_sentences
from rescorer_training.evaluation.perplexity import load_models, perplexity, score_tokens
from tests.support.reference_scorer import reference_log_probs, reference_mixture
from tests.support.tiny_models import random_network, write_arpa

HEADER = "id,question,a,b,c,d,e,answer\n"
QUESTIONS = HEADER + (
    '1,"the cat sat on _____ mat , he said",the,cat,sat,on,zebra,a\n'
    "2,the _____ sat,cat,mat,dog,unheard,on,C\n"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "questions.csv").write_text(QUESTIONS)
    write_arpa(tmp_path)
    save_model(*random_network(), tmp_path / "run" / "best")
    return tmp_path


def load(folder, **options):
    return load_models(None, [folder / "model.arpa"], [folder / "run"], **options)


def test_chooses_the_most_probable_sentence_of_the_reference_scorer(folder):
    models = load(folder, shares={"ngram": 0.3, "neural": 0.7})
    questions = read_questions(folder / "questions.csv")
    answers = answer(score_sentences(models, questions), questions)
    expected = dict.fromkeys([*models.models, MIXTURE], 0)
    for question in questions:
        words = [models.normaliser.normalise(text) for text in question.sentences()]
        for name, model in models.models.items():
            sums = [reference_log_probs(model, sentence).sum() for sentence in words]
            expected[name] += int(np.argmax(sums)) == question.answer
        sums = [reference_mixture(models.models, models.shares, sentence).sum() for sentence in words]
        expected[MIXTURE] += int(np.argmax(sums)) == question.answer
    assert {name: answer.n_correct for name, answer in answers.items()} == expected
    assert (
        answers["ngram"].n_unknown == 5 + 2
    )  # "he said" in all candidates of the first question; dog and unheard in the second
    assert answers[MIXTURE].n_unknown == 5 + 1  # the network knows dog


def test_token_scores_equal_the_reference_scorer(folder):
    models = load(folder)
    sentences = [("the", "cat"), (), ("a", "dog", "sat"), ("the", "cat")]
    scores = score_tokens(models.models, sentences)
    assert scores.lengths.tolist() == [3, 1, 4, 3]
    for name, model in models.models.items():
        expected = np.concatenate([reference_log_probs(model, words) for words in sentences])
        np.testing.assert_allclose(scores.log_probs[name], expected, atol=1e-4)
    assert scores.unknown["ngram"].tolist() == [False] * 4 + [True, True] + [False] * 5
    assert perplexity(np.log([0.5, 0.125])) == pytest.approx(4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,question,a\n1,x _____,y\n", r":1: missing column b, c, d, e, answer; expected question"),
        (HEADER, "no questions"),
        (HEADER + "1,no blank,a,b,c,d,e,a\n", r":2: question: expected one _____, got 0"),
        (HEADER + "1,_____ and _____,a,b,c,d,e,a\n", r":2: question: expected one _____, got 2"),
        (HEADER + "1,a _____,a,b,c,d,e,f\n", r":2: answer: expected one of a, b, c, d, e, got 'f'"),
        (HEADER + "1,a _____,a,b,,d,e,a\n", r":2: c: empty"),
        (HEADER + "1,a _____,a,b\n", r":2: c: empty"),
    ],
)
def test_format_errors_name_the_line_and_the_column(tmp_path, text, message):
    path = tmp_path / "questions.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_questions(path)


def test_command_reports_accuracy(folder):
    arguments = ["complete", str(folder / "questions.csv"), "--ngram", str(folder / "model.arpa"), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    facts = json.loads(result.stdout)
    assert facts["shares"] == {}
    assert facts["models"]["ngram"]["n_questions"] == 2
    correct = facts["models"]["ngram"]["n_correct"]
    assert math.isclose(facts["models"]["ngram"]["accuracy"], 50.0 * correct)


def test_rejects_missing_models_and_mismatched_shares(folder):
    with pytest.raises(ConfigError, match="no model given: add --bundle, --ngram or --neural"):
        load_models(None)
    with pytest.raises(ConfigError, match="sum to 1"):
        load(folder, shares={"ngram": 0.3, "neural": 0.3})
    with pytest.raises(ConfigError, match="mixture names the models"):
        load(folder, shares={"other": 1.0})
