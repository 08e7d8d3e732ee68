"""Tries looked up by torch where models are placed on a device: the scores of the CPU.

Without a GPU the same code runs with torch on the CPU, which is otherwise left to NumPy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rescorer.errors import ConfigError
from rescorer.models import ngram_files, ngrams
from rescorer.models.ngram_files import place_ngram, read_ngram, write_table
from rescorer.models.ngrams import NUMPY, NgramModel, NgramTable, TableNgram
from rescorer.pipeline import Rescorer
from rescorer.trie import Words, build_trie
from rescorer.types import Hypothesis, NBestList
from tests.models.test_units import draw_members
from tests.support.kenlm_twin import needs_kenlm, open_twin
from tests.support.random_ngrams import WORDS, random_orders, write_random_arpa
from tests.support.tiny_models import NETWORK_WORDS, write_arpa

TEXT_WORDS = (*WORDS, "w0", "w1", "nobody", "<unk>")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch) -> str:
    monkeypatch.setattr(ngram_files, "TORCH_DEVICES", frozenset({"cpu", "cuda"}))
    monkeypatch.setattr(ngrams, "MIN_DEVICE_EDGES", 0)
    return request.param


def draw_texts(n: int) -> list[Words]:
    random = np.random.default_rng(5)
    return [tuple(random.choice(TEXT_WORDS, random.integers(0, 12)).tolist()) for _ in range(n)]


def open_mapped(folder: Path, order: int, skip: int, has_classes: bool) -> TableNgram:
    """Write a random table to a file and map it, as servers do."""
    content = read_ngram(write_random_arpa(folder / "m.arpa", random_orders(order, order))).content
    members = draw_members(order, content.unit_names)[0] if has_classes else None
    with (folder / "m.ngram").open("wb") as stream:
        write_table(stream, content._replace(skip=skip, members=members))
    model = read_ngram(folder / "m.ngram")
    assert isinstance(model, TableNgram)
    return model


def is_placed(model: NgramModel) -> bool:
    assert isinstance(model, TableNgram)
    return model.trie_table.library is not NUMPY


@pytest.mark.parametrize(("order", "skip", "has_classes"), [
    (1, 0, False), (2, 0, False), (4, 0, False), (6, 0, False), (3, 1, False), (4, 0, True), (3, 1, True),
])  # fmt: skip
def test_scores_equal_those_of_the_cpu_in_any_batch(device, tmp_path, order, skip, has_classes):
    model, texts = open_mapped(tmp_path, order, skip, has_classes), draw_texts(200)
    contexts = [texts[i % 7] for i in range(len(texts))]
    trie = build_trie(texts, contexts)
    expected = model.score(trie)
    place_ngram(model, device)
    assert is_placed(model)
    found = model.score(trie)
    np.testing.assert_array_equal(found.log_probs, expected.log_probs)
    np.testing.assert_array_equal(found.unknown, expected.unknown)
    for i in range(0, len(texts), 9):  # alone, a hypothesis has the same scores to the last bit
        alone = build_trie([texts[i]], [contexts[i]])
        log_probs = model.score(alone).log_probs[alone.path_edges(0)]
        np.testing.assert_array_equal(log_probs, found.log_probs[trie.path_edges(i)])


def test_small_tries_are_looked_up_on_the_cpu(device, monkeypatch, tmp_path):
    model, trie = open_mapped(tmp_path, 4, 0, False), build_trie(draw_texts(20))
    place_ngram(model, device)
    looked_up = []

    def score_trie(table, *args):
        looked_up.append(table)
        return original(table, *args)

    def copy(table, library):
        copies.append(copy_table(table, library))
        return copies[-1]

    original, copy_table, copies = NgramTable.score_trie, NgramTable.to, []
    monkeypatch.setattr(NgramTable, "score_trie", score_trie)
    monkeypatch.setattr(NgramTable, "to", copy)
    for least in (trie.n_edges + 1, trie.n_edges, trie.n_edges, trie.n_edges + 1):
        monkeypatch.setattr(ngrams, "MIN_DEVICE_EDGES", least)
        model.score(trie)
        assert len(copies) == (len(looked_up) > 1)  # made for the first large trie
    assert looked_up == [model.table, copies[0], copies[0], model.table]


def test_words_and_contexts_are_looked_up_on_the_cpu(device, tmp_path):
    model = open_mapped(tmp_path, 4, 0, False)
    words, context = [*WORDS, "nobody", "</s>"], WORDS[:3]
    expected = model.unigram_log_probs(words), model.next_log_probs(context, words)
    place_ngram(model, device)
    np.testing.assert_array_equal(model.unigram_log_probs(words), expected[0])
    np.testing.assert_array_equal(model.next_log_probs(context, words), expected[1])


def test_bundles_place_their_ngrams(device, bundle):
    texts = [" ".join(NETWORK_WORDS[: n + 1]) for n in range(8)]
    nbest = NBestList("u1", tuple(Hypothesis(text) for text in texts), {"acoustic": tuple(range(-8, 0))})
    rescorer = Rescorer.load(bundle, device)
    assert is_placed(rescorer.models["ngram"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_files, "TORCH_DEVICES", frozenset())
        expected = Rescorer.load(bundle, device)
    assert not is_placed(expected.models["ngram"])
    (found,), (answer,) = rescorer.rescore([nbest]), expected.rescore([nbest])
    assert [hypothesis.text for hypothesis in found.hypotheses] == [
        hypothesis.text for hypothesis in answer.hypotheses
    ]
    for on_device, on_cpu in zip(found.hypotheses, answer.hypotheses, strict=True):
        assert on_device.total == pytest.approx(on_cpu.total, abs=1e-3)


def test_a_cpu_is_left_to_numpy(tmp_path):
    model = open_mapped(tmp_path, 2, 0, False)
    place_ngram(model, "cpu")
    assert not is_placed(model)


@pytest.mark.parametrize(("free_share", "placed"), [(4, True), (3.9, False)])
def test_a_table_without_room_stays_on_the_cpu(monkeypatch, tmp_path, free_share, placed):
    model = open_mapped(tmp_path, 3, 0, False)
    free = int(free_share * model.table.n_bytes)
    monkeypatch.setattr("rescorer.models.kernels.memory_bytes", lambda name: {"total": 7 + free, "used": 7})
    monkeypatch.setattr(ngram_files, "TORCH_DEVICES", frozenset({"cpu"}))
    place_ngram(model, "cpu")
    assert is_placed(model) == placed


def test_a_device_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match="'cuda:99' is not available"):
        place_ngram(open_mapped(tmp_path, 2, 0, False), "cuda:99")


@needs_kenlm
def test_models_in_kenlm_stay_on_the_cpu(device, tmp_path):
    twin = open_twin(write_arpa(tmp_path), frozenset(["the"]))
    place_ngram(twin, device)
    assert np.isfinite(twin.score(build_trie([("the",)])).log_probs).all()
