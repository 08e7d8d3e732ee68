"""The cache of a session on texts: each line after the lines before it, a control, and the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.list_checks import MAX_PREVIOUS_WORDS
from rescorer.models.ngram_files import read_ngram
from rescorer.text import Normaliser
from rescorer.trie import SENTENCE_END
from rescorer.units.prompts import Prompt
from rescorer_training.cli import app
from rescorer_training.cli.evaluation import measure_text_sessions
from rescorer_training.evaluation.past_text import fit_share, measure_sessions, read_text_sessions
from rescorer_training.evaluation.perplexity import ModelSet, perplexity, score_tokens
from tests.support.session_cache_twin import cache_prob, log_probs_with_cache
from tests.support.tiny_models import write_arpa
from tests.support.unit_models import unit_model

FIRST, SECOND = [("the", "cat", "sat"), ("zebra", "cat")] * 40, [("on", "the", "mat"), ("mat",)] * 40
SENTENCES = FIRST + SECOND


@pytest.fixture(scope="module")
def log_probs(tmp_path_factory):
    model = read_ngram(write_arpa(tmp_path_factory.mktemp("arpa")))
    return score_tokens({"ngram": model}, SENTENCES).log_probs["ngram"]


def history(index: int) -> tuple[str, ...]:
    return tuple(word for words in SENTENCES[:index] for word in (*words, SENTENCE_END))


def test_each_line_is_read_after_the_lines_before_it(log_probs):
    found = read_text_sessions(SENTENCES)
    ends = np.cumsum([len(words) + 1 for words in SENTENCES])
    for index in (0, 1, 70, 159):  # in several batches
        words, tokens = SENTENCES[index], slice(ends[index] - len(SENTENCES[index]) - 1, ends[index])
        expected = [
            cache_prob(word, words[:i], history(index)) for i, word in enumerate((*words, SENTENCE_END))
        ]
        np.testing.assert_allclose(found.probs[tokens], expected)
    mixed = [
        log_probs_with_cache(log_probs[end - len(words) - 1 : end], words, history(index), (), 0.2)
        for index, (words, end) in enumerate(zip(SENTENCES, ends, strict=True))
    ]
    measured = measure_sessions(SENTENCES, log_probs, 0.2)
    assert measured.with_session == pytest.approx(perplexity(np.concatenate(mixed)))


def test_own_session_gains_and_a_wrong_one_does_not(log_probs):
    share = fit_share(read_text_sessions(SENTENCES), log_probs)
    measured = measure_sessions(SENTENCES, log_probs, share)
    assert measured.with_session < 0.8 * measured.without
    assert measured.wrong_session > measured.with_session


def test_sessions_are_bounded():
    long = [("the",) * MAX_PREVIOUS_WORDS, ("cat",) * (MAX_PREVIOUS_WORDS - 1), ("mat",), ("cat", "the")]
    found = read_text_sessions(long)
    assert found.probs[-3] > 0  # said within the last 1,000 words
    assert found.probs[-2] == 0  # said before


def test_models_that_read_earlier_lines_themselves_are_refused(tmp_path):
    model, _ = unit_model()
    model.prompt = Prompt()
    scores = {tmp_path: score_tokens({"llm": model}, SENTENCES[:2])}
    models = ModelSet({"llm": model}, Normaliser(), {})
    with pytest.raises(ConfigError, match="the model 'llm' reads the lines before a line itself"):
        measure_text_sessions(models, scores, tmp_path, {}, [tmp_path])


def test_command_reports_it(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(" ".join(words) + "\n" for words in SENTENCES))
    arguments = ["perplexity", str(text), "--ngram", str(write_arpa(tmp_path)), "--session"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    arguments += ["--validation", str(text)]
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    facts = json.loads(result.stdout)
    found = facts["session"]["texts"][str(text)]
    assert found["without"] == pytest.approx(facts["texts"][str(text)]["models"]["ngram"]["shared"])
    assert found["with_session"] < min(found["without"], found["wrong_session"])
    assert 0 < facts["session"]["share"] <= 0.5
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert f"{found['with_session']:.2f}" in result.stdout
