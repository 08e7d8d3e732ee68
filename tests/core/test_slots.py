"""Slots of phrases in n-grams that were trained on text with them, on every way in."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rescorer import (
    Hypothesis,
    InvalidList,
    LimitExceeded,
    NBestList,
    Phrase,
    Rescorer,
    Utterance,
    Weights,
)
from rescorer.client import Client
from rescorer.errors import BundleError
from rescorer.formats.jsonlines import read_lists
from rescorer.models.bundle import read_bundle
from rescorer.phrases import MAX_PART_WORDS
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.trie import SENTENCE_END
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.recipe.bundles import BundleParts, make_bundle, publish_tables
from tests.support.reference_scorer import reference_log_probs
from tests.support.servers import run_server
from tests.support.session_cache_twin import log_probs_with_cache
from tests.support.tiny_models import write_bundle

TEXT = """\
call $name now
please call $name
please call $name at home
tell $name that i am late
tell me the time
what is the time now
i am late for work
drive to $city now
how far is $city
a lady is at work
"""
NORMALISER = Normaliser(NormaliserSettings(keep=(r"\$\w+",)))
PEOPLE = tuple(Phrase(name, slot="$NAME") for name in ("Ada Lovelace", "Charles Babbage"))
TEXTS = ("please call a lady at home", "please call ada lovelace at home", "please call the time at home")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle with one n-gram, which the project's own estimator has trained."""
    folder = tmp_path_factory.mktemp("slots")
    text, arpa = folder / "text.txt", folder / "model.arpa.gz"
    text.write_text(TEXT)
    train_ngram([text], NORMALISER, arpa, NGramOptions(3))
    weights = Weights("default", {"acoustic": 1.0}, {"mixture": 1.0}, phrases=1e-9)
    parts = BundleParts("slots", 1, {"ngram": arpa}, {}, NORMALISER, weights, text, {})
    make_bundle(parts, folder / "slots" / "1")
    return folder / "slots" / "1"


@pytest.fixture(scope="module")
def rescorer(bundle):
    return Rescorer.load(bundle)


def make_list(*phrases: Phrase, texts=TEXTS) -> NBestList:
    scores = {"acoustic": tuple(-4.0 * i for i in range(len(texts)))}
    return NBestList("u", tuple(map(Hypothesis, texts)), scores, phrases=phrases)


def by_text(answer):
    return {hypothesis.text: hypothesis for hypothesis in answer.hypotheses}


def test_a_name_in_its_slot_wins(rescorer):
    without_slots = [replace(phrase, slot="") for phrase in PEOPLE]
    plain, expected = rescorer.rescore([make_list(*PEOPLE), make_list(*without_slots)])
    assert (expected.best.text, plain.best.text) == (TEXTS[0], TEXTS[1])
    found, other = by_text(plain), by_text(expected)
    for text in (TEXTS[0], TEXTS[2]):
        assert found[text].components == other[text].components
    (slot,) = rescorer.score_text(["please call $name at home"])
    as_slot = math.fsum(slot.log_probs["ngram"]) + math.log(1 / 2)
    both = np.logaddexp(as_slot, other[TEXTS[1]].components["ngram"])
    assert found[TEXTS[1]].components["ngram"] == pytest.approx(both, abs=1e-4)


def test_unknown_words_beside_a_slot_stay_unknown(rescorer):
    texts = ("please xyzzy ada lovelace at plugh", "please xyzzy a lady at plugh")
    for phrase in (PEOPLE[0], replace(PEOPLE[0], slot="")):
        (answer,) = rescorer.rescore([make_list(phrase, texts=texts)])
        assert [by_text(answer)[text].components["oov"] for text in texts] == [2.0, 2.0]


def test_a_name_that_is_a_city_too_is_read_as_both(rescorer):
    text = "how far is charles babbage"
    phrases = [replace(PEOPLE[1], slot=slot) for slot in ("$name", "$city")]
    answers = rescorer.rescore([make_list(*part, texts=(text,)) for part in ([], phrases[:1], phrases[1:])])
    plain, name, city = (math.exp(answer.best.components["ngram"]) for answer in answers)
    words = rescorer.rescore([make_list(replace(PEOPLE[1], slot=""), texts=(text,))])[0]
    as_words = math.exp(words.best.components["ngram"])
    own = make_list(phrases[0], Phrase("Charles Babbage"), texts=(text,))
    for (both,) in (
        rescorer.rescore([make_list(*phrases, texts=(text,))]),
        rescorer.rescore([own], phrases=phrases[1:]),
    ):
        found = math.exp(both.best.components["ngram"])
        assert found - as_words == pytest.approx((name - as_words) + (city - as_words), rel=1e-4)
    assert plain < as_words < name < city


def test_list_without_a_match_is_answered_as_without_phrases(rescorer):
    answer, expected = rescorer.rescore([make_list(Phrase("Ada Byron", slot="$NAME")), make_list()])
    assert answer == expected


@pytest.mark.parametrize("slots_first", [False, True])
def test_slots_do_not_depend_on_batches(rescorer, bundle, slots_first):
    lists = [make_list(*PEOPLE), make_list(texts=("tell me the time",))][:: 1 if slots_first else -1]
    small = Rescorer.load(bundle, max_batch_words=8)
    assert small.rescore(lists) == rescorer.rescore(lists)


def test_readings_of_a_batch_are_scored_in_parts(rescorer, monkeypatch):
    """Hypotheses in later parts get the scores that they have alone."""
    names = " and ".join(["ada lovelace"] * 3)
    texts = [f"please call {names} at home {'the time ' * i}" for i in range(240)]
    n_words = sum(8 * len(text.split()) for text in texts)
    tries = []
    score = rescorer.scorer.score
    monkeypatch.setattr(
        rescorer.scorer,
        "score",
        lambda trie, *args, **options: tries.append(trie) or score(trie, *args, **options),
    )
    (answer,) = rescorer.rescore([make_list(*PEOPLE, texts=texts)])
    n_parts = len(tries) - 1
    assert 1 < n_words / MAX_PART_WORDS < n_parts < 10
    for text in (texts[0], texts[120], texts[-1]):
        (alone,) = rescorer.rescore([make_list(*PEOPLE, texts=[text])])
        assert by_text(answer)[text].components["ngram"] == pytest.approx(
            alone.best.components["ngram"], abs=1e-6
        )


def test_service_and_file_agree_with_the_library(run, bundle, rescorer, tmp_path):
    other = Phrase("charles babbage", slot="$city")
    lists = [make_list(*PEOPLE), make_list(), make_list(*PEOPLE, other, texts=("call charles babbage now",))]
    expected = rescorer.rescore(lists)
    with run_server(bundle) as server, Client(server.target) as client:
        for found, same in zip(client.rescore(lists), expected, strict=True):
            assert [h.text for h in found.hypotheses] == [h.text for h in same.hypotheses]
            for hypothesis, other in zip(found.hypotheses, same.hypotheses, strict=True):
                assert hypothesis.components == pytest.approx(dict(other.components), abs=1e-9)
        with pytest.raises(LimitExceeded, match=r"phrases\[0\]\.slot: '\$x' for 'Ada' is not a slot"):
            client.rescore(lists[:1], phrases=[Phrase("Ada", slot="$x")])
    source, output = tmp_path / "lists.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(line_of(lists[0])) + "\n")
    assert run("rescore", source, "-o", output, "--bundle", bundle)[0] == 0
    written = json.loads(output.read_text())
    assert written["phrases"] == line_of(lists[0])["phrases"]
    for hypothesis, same in zip(written["hypotheses"], expected[0].hypotheses, strict=True):
        assert (hypothesis["text"], hypothesis["components"]) == (
            same.text,
            pytest.approx(dict(same.components), abs=1e-4),
        )
    assert "1, before 2: ada lovelace ($name)" in run("explain", source, "u", "--bundle", bundle)[1]


def line_of(nbest: NBestList) -> dict:
    texts = zip(nbest.hypotheses, nbest.streams["acoustic"], strict=True)
    return {
        "id": nbest.id,
        "hypotheses": [{"text": h.text, "scores": {"acoustic": score}} for h, score in texts],
        "phrases": [{"text": p.text, "weight": 1.0, "spellings": [], "slot": p.slot} for p in nbest.phrases],
    }


@pytest.mark.parametrize(
    ("phrase", "message"),
    [
        ({"text": "a", "slot": 3}, r"phrases[0].slot: expected a string, got a number"),
        (
            {"text": "a", "slot": "$nam"},
            "phrases[0].slot: '$nam' for 'a' is not a slot; the bundle has: $city, ",
        ),
    ],
)
def test_wrong_slots_are_named_and_other_lists_rescored(rescorer, tmp_path, phrase, message):
    lines = [line_of(make_list()) | {"phrases": [phrase]}, line_of(make_list(*PEOPLE))]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    items = list(read_lists(tmp_path / "lists.jsonl"))
    error, good = items if isinstance(items[0], InvalidList) else rescorer.rescore_each(items)
    assert isinstance(error, InvalidList)
    assert message in str(error)
    assert isinstance(good, NBestList) or good.best.text == TEXTS[1]


def test_bundle_lists_its_slots_and_keeps_them(bundle, tmp_path):
    assert json.loads((bundle / "manifest.json").read_text())["models"]["ngram"]["slots"] == [
        "$city",
        "$name",
    ]
    assert publish_tables(bundle, tmp_path / "tables" / "1") == ["ngram"]
    assert read_bundle(tmp_path / "tables" / "1").slots == {"ngram": {"$city", "$name"}}


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ("$name", "model 'ngram': 'slots' is not a list of strings; expected words of the model"),
        (["$name"] * 10_001, "10,001 slots; expected at most 10,000"),
        (["$nobody"], "model 'ngram': the slot '$nobody' is not a word of the model"),
    ],
)
def test_wrong_slots_of_a_bundle_are_refused(bundle, tmp_path, slots, message):
    copy = edit_ngram(bundle, tmp_path / "1", slots=slots)
    with pytest.raises(BundleError, match=re.escape(message)):
        Rescorer.load(copy)


def test_backward_ngrams_have_no_slots(bundle, tmp_path):
    with pytest.raises(BundleError, match="has slots; expected them only of forward n-grams"):
        Rescorer.load(edit_ngram(bundle, tmp_path / "1", backward=True))


def edit_ngram(bundle: Path, folder: Path, **entry) -> Path:
    """Copy a bundle with another manifest entry of its n-gram."""
    shutil.copytree(bundle, folder)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["models"]["ngram"] |= entry
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema": 3}))
    return folder


def test_networks_keep_reading_words(tmp_path):
    """A mixture of an n-gram that has seen slots and a network that has not, with a cache and without."""
    weights = Weights(
        "default", {}, {"mixture": 1.0}, mixture={"ngram": 0.5, "neural": 0.5}, cache=0.3, phrases=1.0
    )
    folder = edit_ngram(write_bundle(tmp_path, weights), tmp_path / "2", slots=["zebra"])
    rescorer = Rescorer.load(folder)
    phrases = (Phrase("cat sat", slot="zebra"), Phrase("mat", 2.0, slot="zebra"))
    hypotheses = (Hypothesis("the cat sat on"), Hypothesis("the cat sat on", partial=True), Hypothesis("the"))
    for previous in ((), (Utterance("the cat"),)):
        nbest = NBestList("u", hypotheses, {}, phrases=phrases, previous=previous)
        plain = NBestList("u", hypotheses, {}, previous=previous)
        found, without = (rescorer.rescore([one])[0] for one in (nbest, plain))
        by_rank = {h.original_rank: h.components for h in found.hypotheses}
        plain_by_rank = {h.original_rank: h.components for h in without.hypotheses}
        assert by_rank[2] == plain_by_rank[2] | {"phrases": 0.0}
        words = ("the", "cat", "sat", "on")
        as_words = reference_log_probs(rescorer.models["ngram"], words)
        as_slot = reference_log_probs(rescorer.models["ngram"], ("the", "zebra", "on"))
        in_slot = np.array([as_slot[0], as_slot[1] + math.log(1 / 3), 0.0, *as_slot[2:]])
        beginnings = np.logaddexp(np.cumsum(as_words), [-np.inf, *np.cumsum(in_slot)[1:]])
        ngram = np.diff(beginnings, prepend=0.0)
        network = reference_log_probs(rescorer.models["neural"], words)
        mixed = np.log(0.5 * np.exp(ngram) + 0.5 * np.exp(network))
        if previous:
            mixed = log_probs_with_cache(mixed, words, ("the", "cat", SENTENCE_END), (), 0.3)
        for rank, last in ((0, 5), (1, 4)):
            assert by_rank[rank]["ngram"] == pytest.approx(sum(ngram[:last]), abs=1e-4)
            assert by_rank[rank]["neural"] == pytest.approx(sum(network[:last]), abs=1e-4)
            assert by_rank[rank]["mixture"] == pytest.approx(sum(mixed[:last]), abs=1e-4)
