"""Previous utterances: which are read, and that every way to send them gives the scores of the slow twin."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rescorer import Hypothesis, InvalidList, NBestList, Rescorer, Utterance, Weights
from rescorer.formats.jsonlines import read_lists
from rescorer.list_checks import (
    CUT_STEP,
    MAX_PREVIOUS_CHARS,
    MAX_PREVIOUS_WORDS,
    join_history,
    join_words,
    normalise_previous,
)
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.ngram_files import read_ngram
from rescorer.runtime import ContextWords
from rescorer.trie import SENTENCE_END, build_trie
from tests.support.reference_scorer import last_sentence, reference_log_probs
from tests.support.tiny_models import NETWORK_WORDS, stable_network, write_arpa, write_bundle

CONFIGS = [
    {"kind": "lstm", "carried": True},
    {"kind": "gru"},
    {"kind": "transformer", "window": 4, "layers": 2, "heads": 2, "carried": True},
    {"kind": "transformer", "window": 40},
    {"kind": "feedforward", "window": 3},
    {"kind": "lbl", "window": 2, "activation": "linear", "carried": True},
]
sentences = st.lists(st.sampled_from([*NETWORK_WORDS, "nobody"]), max_size=4).map(tuple)
histories = st.builds(join_history, st.lists(sentences, max_size=3), sentences)
lengths = st.lists(st.integers(0, 400), max_size=60)


def utterances(lengths) -> list[Utterance]:
    return [Utterance(" ".join(f"w{i}" for _ in range(length))) for i, length in enumerate(lengths)]


def normalise(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@example([3, MAX_PREVIOUS_WORDS + 1, 0])  # a filler after a long utterance
@example([*[400] * 17, 5, 0])  # and where a long past may be cut
@given(lengths)
def test_reads_the_newest_utterances_up_to_the_limit(lengths):
    found = normalise_previous(utterances(lengths), normalise)
    words = [word for part in found for word in part.words]
    everything = [f"w{i}" for i, length in enumerate(lengths) for _ in range(length)]
    assert words == everything[len(everything) - len(words) :]
    assert len(words) <= MAX_PREVIOUS_WORDS
    if len(everything) <= MAX_PREVIOUS_WORDS:
        assert words == everything
    else:
        assert words


def test_growing_past_is_cut_at_steps():
    """Most requests of a session continue the past of the request before."""
    all_of_them = utterances([30] * 200)
    read = [normalise_previous(all_of_them[:n], normalise) for n in range(201)]
    pasts = [join_history([spoken.words for spoken in past], ()) for past in read]
    pairs = itertools.pairwise(pasts)
    continued = sum(after[: len(before)] == before for before, after in pairs)
    assert continued >= 200 - 200 / CUT_STEP
    assert min(map(len, pasts[100:])) > MAX_PREVIOUS_WORDS - (CUT_STEP + 1) * 31


def test_one_utterance_that_is_too_long_keeps_its_last_words():
    long = Utterance("a " * MAX_PREVIOUS_WORDS + "z", confidence=0.5)
    ((words, confidence),) = normalise_previous([Utterance("early"), long], normalise)
    assert words == ("a",) * (MAX_PREVIOUS_WORDS - 1) + ("z",)
    assert confidence == 0.5


def normalise_whole(previous: Sequence[Utterance]) -> list[tuple[str, ...]]:
    """The slow twin for one or two utterances: the words of all, as long as they fit."""
    read = [words for one in previous if (words := tuple(word for word in one.text.split() if word != "."))]
    if len(read) == 2 and len(read[0]) + len(read[1]) > MAX_PREVIOUS_WORDS:
        read = read[1:]
    return [words[-MAX_PREVIOUS_WORDS:] for words in read]


@given(st.lists(st.tuples(st.integers(0, 1200), st.integers(1, 900), st.integers(0, 300)), max_size=2))
def test_only_the_end_of_a_long_utterance_is_normalised(sizes):
    def count_words(text: str) -> tuple[str, ...]:
        counted.append(len(text.split()))
        return tuple(word for word in text.split() if word != ".")

    counted: list[int] = []
    said = [Utterance("a " * a + "b " * b + ". " * marks) for a, b, marks in sizes]
    found = [one.words for one in normalise_previous(said, count_words)]
    assert found == normalise_whole(said)
    counted.clear()
    normalise_previous([Utterance("a " * 100_000)], count_words)
    assert sum(counted) <= 2 * MAX_PREVIOUS_WORDS + 1


def test_no_more_is_normalised_of_endless_tokens_than_the_newest_characters():
    """A token of megabytes took half a minute."""
    counted: list[int] = []

    def normalise(text: str) -> tuple[str, ...]:
        counted.append(len(text))
        return tuple(word.lower() for word in text.split())

    assert normalise_previous([Utterance("A" * 4_000_000), Utterance("b c")], normalise)[1].words == (
        "b",
        "c",
    )
    normalise_previous([Utterance(f"{i} " + "A" * 60_000) for i in range(60)], normalise)
    assert sum(counted) <= 2 * MAX_PREVIOUS_CHARS + 3
    half = "A" * (MAX_PREVIOUS_CHARS // 2)
    ((words, _),) = normalise_previous([Utterance(f"x {half} {half} b")], normalise)
    assert words == (half.lower(), "b")


@given(st.lists(sentences, max_size=4), sentences)
def test_last_sentence_and_words_of_a_history(previous, context):
    assert last_sentence(join_history(previous, context)) == context
    assert join_words(previous, context) == tuple(
        word for word in join_history(previous, context) if word != SENTENCE_END
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    networks = [NeuralLanguageModel(*stable_network(**config)) for config in CONFIGS]
    return [read_ngram(write_arpa(tmp_path_factory.mktemp("arpa"))), *networks]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, len(CONFIGS)),
    st.lists(st.tuples(sentences, histories), min_size=1, max_size=6),
)
# To a transformer without carried state, the first and the last context are equal, but not adjacent.
@example(4, [(("the",), (SENTENCE_END,)), (("the",), ("the",)), (("the",), ())])
def test_trie_scores_agree_with_the_reference(models, number, batch):
    model, trie = models[number], build_trie(*zip(*batch, strict=True))
    scores = model.score(trie)
    for i, (words, history) in enumerate(batch):
        np.testing.assert_allclose(
            scores.log_probs[trie.path_edges(i)], reference_log_probs(model, words, history), atol=1e-4
        )


def test_growing_session_costs_only_its_new_words():
    model = NeuralLanguageModel(*stable_network(kind="lstm", carried=True))
    session = [("the", "cat", "sat"), ("on", "the", "mat"), ("the", "dog")]
    needed = recalled = 0
    for n in range(1, 4):
        counts = ContextWords()
        with counts.counting():
            model.score(build_trie([("the", "cat")], [join_history(session[:n], ())]))
        needed, recalled = needed + counts.needed, recalled + counts.recalled
    assert needed - recalled == sum(len(words) + 1 for words in session)


@pytest.fixture(scope="module")
def carried(tmp_path_factory):
    return Rescorer.load(write_bundle(tmp_path_factory.mktemp("carried"), carried=True))


def nbest(*previous: Utterance, context: str = "") -> NBestList:
    hypotheses = (Hypothesis("the cat sat"), Hypothesis("the dog ran"), Hypothesis(""))
    return NBestList("u", hypotheses, {"acoustic": (-1.0, -2.0, -3.0)}, context, previous=previous)


def test_rescoring_reads_previous_utterances(carried):
    weights = Weights("w", lm={"neural": 1.0, "ngram": 1.0})
    sent = nbest(Utterance("The DOG,", "a"), Utterance("<sil>"), Utterance("on the mat"), context="on")
    (answer,) = carried.rescore([sent], weights)
    history = ("the", "dog", SENTENCE_END, "on", "the", "mat", SENTENCE_END, "on")
    for hypothesis in answer.hypotheses:
        words = tuple(sent.hypotheses[hypothesis.original_rank].text.split())
        for name in ("neural", "ngram"):
            expected = reference_log_probs(carried.models[name], words, history).sum()
            assert hypothesis.components[name] == pytest.approx(expected, abs=1e-4)
    assert answer.previous == sent.previous
    (without,) = carried.rescore([nbest(context="on")], weights)
    differences = {
        name: answer.best.components[name] - without.best.components[name] for name in ("neural", "ngram")
    }
    assert differences["ngram"] == 0
    assert differences["neural"] != 0


def test_bundle_without_carried_state_ignores_them(tmp_path):
    rescorer = Rescorer.load(write_bundle(tmp_path))
    assert not rescorer.bundle.reads_previous
    with_past, without = rescorer.rescore([nbest(Utterance("the dog ran")), nbest()])
    assert [h.total for h in with_past.hypotheses] == [h.total for h in without.hypotheses]


def test_file_keeps_them(tmp_path, carried):
    line = {
        "id": "u",
        "hypotheses": [{"text": "the cat", "scores": {"acoustic": -1.0}}],
        "previous": ["the dog", {"text": "on the mat", "speaker": "b", "confidence": 0.25}],
    }
    (tmp_path / "lists.jsonl").write_text(json.dumps(line) + "\n")
    (found,) = read_lists(tmp_path / "lists.jsonl")
    assert found.previous == (Utterance("the dog"), Utterance("on the mat", "b", 0.25))
    (answer,) = carried.rescore([found])
    assert answer.previous == found.previous


@pytest.mark.parametrize(
    ("previous", "field", "message"),
    [
        ("the dog", "previous", "expected an array of texts"),
        ([1], "previous[0]", "expected a text"),
        (["a", {"speaker": "b"}], "previous[1].text", "expected a string"),
        ([{"text": "a", "speaker": 3}], "previous[0].speaker", "expected a string"),
        ([{"text": "a", "role": "b"}], "previous[0]", "unknown key 'role'"),
        ([{"text": "a", "confidence": "high"}], "previous[0].confidence", "expected a number"),
        ([{"text": "a", "confidence": True}], "previous[0].confidence", "expected a number"),
    ],
)
def test_wrong_utterances_are_named(tmp_path, previous, field, message):
    lines = [{"id": "bad", "hypotheses": ["a"], "previous": previous}, {"id": "good", "hypotheses": ["a"]}]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    error, good = read_lists(tmp_path / "lists.jsonl")
    assert isinstance(error, InvalidList)
    assert (error.list_id, error.field) == ("bad", field)
    assert message in str(error)
    assert good.id == "good"
