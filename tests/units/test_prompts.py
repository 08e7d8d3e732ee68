"""Previous utterances before a sentence: which are read, and in which form."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import BundleError, ConfigError
from rescorer.trie import SENTENCE_END, build_trie
from rescorer.units.importing import score_alone
from rescorer.units.prompts import Prompt, check_units, find_first, list_forms, read_before
from rescorer.units.tokens import UnitCounter, WordDivider, build_unit_trie, build_whole_trie
from tests.support.unit_models import LetterTokenizer, unit_model

words = st.sampled_from(["a", "ab", "abc", "b", "on"])
texts = st.lists(words, max_size=3).map(tuple)
prompts = st.builds(
    Prompt,
    before=st.sampled_from(["", "a", "on "]),
    before_utterance=st.sampled_from(["", "b", "b "]),
    after_utterance=st.sampled_from(["", "n", "a "]),
    before_sentence=st.sampled_from(["", "ab", "o "]),
    max_units=st.sampled_from([0, 4, 12]),
)


def join(utterances, context=()):
    return tuple(word for words in utterances for word in (*words, SENTENCE_END)) + tuple(context)


histories = st.builds(join, st.lists(texts.filter(bool), max_size=3), texts)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["llama", "gpt2", "mistral-window"]),
    prompts,
    st.lists(st.tuples(texts, histories), min_size=1, max_size=4),
    st.booleans(),
)
def test_scores_after_a_history_are_those_of_one_text_at_a_time(name, prompt, batch, whole):
    model, config = unit_model(name, end=2, cache_bytes=1 << 16, whole=whole)
    model.prompt, config = prompt, replace(config, prompt=prompt)
    hypotheses, before = zip(*batch, strict=True)
    trie = build_trie(hypotheses, before)
    for _ in range(2):  # the second time, what was read before is cached
        found = model.score(trie).sum_paths(trie)
        expected = [score_alone(model, config, *pair) for pair in batch]
        np.testing.assert_allclose(found, expected, atol=3e-4)


@settings(max_examples=40, deadline=None)
@given(prompts, st.lists(texts, min_size=1, max_size=6), histories, st.booleans())
def test_counts_at_least_the_pieces_of_histories_and_texts(prompt, hypotheses, history, whole):
    divider = WordDivider(LetterTokenizer(), whole=whole)
    counted = UnitCounter(divider, 3, prompt).count(hypotheses, history)
    build = build_whole_trie if whole else build_unit_trie
    units = build(build_trie(hypotheses, [history] * len(hypotheses)), divider, (5, 6), prompt).trie
    n_before = 1 + max(map(len, units.contexts))
    assert counted.total >= n_before + units.n_nodes - units.n_roots
    assert min(counted.lengths.values()) >= n_before - len(divider.divide_text(hypotheses[0]))


def test_a_conversation_that_grows_computes_only_its_new_utterances(monkeypatch):
    model, _ = unit_model("llama", cache_bytes=1 << 20)
    model.prompt = Prompt(after_utterance="n", max_units=30)
    computed = []
    inputs = model.scorer.decoder.inputs
    monkeypatch.setattr(model.scorer.decoder, "inputs", lambda x: (computed.append(len(x)), inputs(x))[1])
    said = []
    for word in ("a", "b", "on", "ab"):
        said.append((word,))
        computed.clear()
        model.score(build_trie([("a", "b"), ("b",)], [join(said)] * 2))
        assert 0 < sum(computed) <= 4 + 3  # of the new utterance, and of the hypotheses


@given(st.lists(st.integers(1, 20), max_size=40), st.integers(2, 60))
def test_the_oldest_utterances_go_until_half_of_the_units_remain(lengths, max_units):
    firsts = [find_first(lengths[:n], max_units) for n in range(len(lengths) + 1)]
    assert firsts == sorted(firsts)
    for n, first in enumerate(firsts):
        assert sum(lengths[first:n]) <= max_units
        assert n == 0 or first < n or lengths[n - 1] > max_units  # the newest is read if it can be
    for before, after, n in zip(firsts, firsts[1:], range(1, len(firsts)), strict=False):
        if after != before:
            assert sum(lengths[before:n]) > max_units
            assert sum(lengths[after - 1 : n]) > max_units // 2


@settings(max_examples=6, deadline=None)
@given(
    st.lists(texts.filter(bool), min_size=8, max_size=12),
    st.sampled_from([0, 1 << 12, 1 << 20]),
    st.booleans(),
)
def test_warm_and_cold_answers_are_equal_while_a_conversation_grows(utterances, cache_bytes, whole):
    prompt = Prompt(after_utterance="n ", max_units=14)
    warm, config = unit_model("llama", end=2, cache_bytes=cache_bytes, whole=whole)
    warm.prompt, config = prompt, replace(config, prompt=prompt)
    hypotheses = [("a", "b"), ("ab",), ()]
    for n in range(len(utterances)):
        history = join(utterances[:n], utterances[n][:1])
        trie = build_trie(hypotheses, [history] * 3)
        found = warm.score(trie).sum_paths(trie)
        alone = [score_alone(warm, config, words, history) for words in hypotheses]
        np.testing.assert_allclose(found / [3, 2, 1], np.divide(alone, [3, 2, 1]), atol=1e-4)


def test_what_is_read_follows_from_the_form():
    divider = WordDivider(LetterTokenizer())
    history = join([("ab",), ("on", "a")], ("b",))

    def read(prompt):
        return read_before(divider, history, prompt).units

    def units(*parts):
        return [unit for text, after in parts for unit in divider.divide([text], after_space=after)[0]]

    lines = units(("ab", False), ("\n", False), ("on", False), ("a", True), ("\n", False), ("b", False))
    assert read(Prompt()) == lines
    spaced = units(("ab", False), (".", False), ("on", True), ("a", True), (".", False), ("b", True))
    assert read(Prompt(after_utterance=". ")) == spaced
    assert read(None) == read(Prompt(max_units=0)) == units(("b", False))
    assert read_before(divider, join([("ab",)]), Prompt(after_utterance=". ")).begins is False


def test_shipped_forms_can_be_read():
    assert list_forms() == ["dialogue", "lines", "sentences"]
    assert Prompt.read("lines") == Prompt()
    for name in list_forms():
        assert Prompt.from_dict(Prompt.read(name).to_dict()) == Prompt.read(name)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"after": "x"}, "unknown 'after'.*after_utterance"),
        ({"before": 3}, "before is not a text"),
        ({"max_units": True}, "max_units is True"),
        ({"max_units": 10**9}, "expected 0 to 100,000"),
        ({"before": "x" * 10_001}, "before is not a text of at most 10,000"),
        ([], "cannot be read|object"),
    ],
)
def test_a_prompt_that_is_not_valid_is_refused(tmp_path, written, message):
    path = tmp_path / "form.json"
    path.write_text(json.dumps(written))
    with pytest.raises(BundleError, match=message):
        Prompt.read(str(path))


def test_a_file_that_is_not_text_is_named_once(tmp_path):
    path = tmp_path / "form.json"
    path.write_bytes(b'{"before": "caf\xe9"}')
    with pytest.raises(BundleError) as refused:
        Prompt.read(str(path))
    assert str(refused.value) == f"{path}: cannot be read as JSON: not UTF-8 at byte 15"


def test_a_prompt_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="no prompt 'line'; expected dialogue, lines, sentences or a JSON"):
        Prompt.read("line")


def test_a_prompt_leaves_half_of_the_positions_to_sentences():
    divider = WordDivider(LetterTokenizer())
    check_units(divider, Prompt(max_units=20), 40)
    with pytest.raises(ConfigError, match=r"may have 21 units, and the model reads 40.*\(--previous\) to 19"):
        check_units(divider, Prompt(before="a", max_units=20), 40)
    with pytest.raises(ConfigError, match="at most half of them: shorten its texts"):
        check_units(divider, Prompt(before="abcd" * 11), 40)
