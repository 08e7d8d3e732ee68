"""Cached scores equal computed ones, and files that cannot be used are computed again."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from rescorer.evaluation import scored_lists
from rescorer.evaluation.scored_lists import delete_oldest, load_cached_rescorer
from rescorer.pipeline import Rescorer
from rescorer.trie import WordEncoder
from rescorer.types import Hypothesis, NBestList, Weights

TEXTS = ("the cat sat", "the mat", "", "a zebra sat on the mat")
LISTS = [
    NBestList(f"u{i}", tuple(map(Hypothesis, TEXTS[i:])), {"acoustic": (-1.0,) * (4 - i)}) for i in (0, 1)
]


@pytest.fixture
def load(bundle, tmp_path):
    """Load the bundle with a cache; returns the rescorer and the notes about the cache."""

    def call(folder=bundle, dtype="float32"):
        notes: list[str] = []
        return load_cached_rescorer(folder, "cpu", tmp_path / "cache", notes.append, dtype), notes

    return call


def forbid_models(monkeypatch):
    monkeypatch.setattr(scored_lists, "load_bundle_models", lambda *_: pytest.fail("a model was loaded"))


def test_cached_scores_are_those_of_the_models(load, library, tmp_path, monkeypatch):
    expected = library.rescore(LISTS)
    rescorer, notes = load()
    assert rescorer.rescore(LISTS) == expected
    assert len(list((tmp_path / "cache").iterdir())) == 1
    forbid_models(monkeypatch)
    rescorer, notes = load()
    assert rescorer.rescore(LISTS) == expected
    mixtures = [{"ngram": share, "neural": 1.0 - share} for share in (0.0, 0.3, 1.0)]
    log_probs = rescorer.mixture_log_probs(LISTS, mixtures)
    for row, mixture in zip(log_probs, mixtures, strict=True):
        answers = library.rescore(LISTS, Weights(mixture=mixture))
        hypotheses = [sorted(answer.hypotheses, key=lambda h: h.original_rank) for answer in answers]
        one_by_one = [h.components["mixture"] for ranked in hypotheses for h in ranked]
        assert row == pytest.approx(np.array(one_by_one), abs=1e-9)
    assert notes == []


def test_cached_encodings_are_those_of_the_models(transformer_bundle, load, tmp_path, monkeypatch):
    library = Rescorer.load(transformer_bundle)
    weights = library.bundle.weights["transformer"]
    encoder = WordEncoder("neural", np.eye(6))
    expected = library.rescore(LISTS, weights), library.encode(LISTS, encoder)
    assert [values.shape for values in expected[1]] == [(4, 6), (3, 6)]
    for is_cached in (False, True):
        if is_cached:
            forbid_models(monkeypatch)
        rescorer, notes = load(transformer_bundle)
        assert rescorer.rescore(LISTS, weights) == expected[0]
        for found, values in zip(rescorer.encode(LISTS, encoder), expected[1], strict=True):
            np.testing.assert_array_equal(found, values)
        assert notes == []
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_other_words_models_and_contexts_have_other_files(load, ngram_bundle, tmp_path):
    rescorer, _ = load()
    rescorer.rescore(LISTS)
    rescorer.rescore([NBestList("u0", (Hypothesis("the cat"),))], Weights())
    rescorer.rescore([NBestList("u0", (Hypothesis("the cat"),), context="on")], Weights())
    other, _ = load(ngram_bundle)
    other.rescore(LISTS)
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_scores_in_another_precision_are_others(load, bundle, tmp_path, monkeypatch):
    exact, _ = load()
    rough, _ = load(dtype="int8")
    answers = exact.rescore(LISTS), rough.rescore(LISTS)
    assert answers == (
        Rescorer.load(bundle).rescore(LISTS),
        Rescorer.load(bundle, dtype="int8").rescore(LISTS),
    )
    assert answers[0] != answers[1]
    assert len(list((tmp_path / "cache").iterdir())) == 2
    forbid_models(monkeypatch)
    assert (load()[0].rescore(LISTS), load(dtype="int8")[0].rescore(LISTS)) == answers


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "long", "fifo", "other"])
def test_damaged_files_are_computed_again_with_a_note(load, library, tmp_path, damage):
    rescorer, _ = load()
    rescorer.rescore(LISTS)
    (file,) = (tmp_path / "cache").iterdir()
    content = file.read_bytes()
    file.unlink()
    if damage == "fifo":
        os.mkfifo(file)
    else:
        damaged = {
            "cut": content[:-1],
            "flip": b"\xff" * 16 + content[16:],
            "empty": b"",
            "long": content + b"x" * 100_000,
            "other": content.replace(b"log_probs/ngram", b"log_probs/ngrax"),
        }
        file.write_bytes(damaged[damage])
    rescorer, notes = load()
    assert rescorer.rescore(LISTS) == library.rescore(LISTS)
    assert [note.split(": ")[:2] for note in notes] == [[str(file), "cannot be used and is computed again"]]
    assert file.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_mentioned_once(bundle, library, tmp_path):
    (tmp_path / "file").write_text("")
    notes: list[str] = []
    rescorer = load_cached_rescorer(bundle, "cpu", tmp_path / "file" / "cache", notes.append)
    for _ in range(2):
        assert rescorer.rescore(LISTS) == library.rescore(LISTS)
    assert len([note for note in notes if "scores cannot be cached" in note]) == 1


def test_a_read_only_cache_is_read(load, library, monkeypatch):
    """Another user may own it, or the file system is read-only: even the time of a file is fixed."""

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    load()[0].rescore(LISTS)
    forbid_models(monkeypatch)
    monkeypatch.setattr(os, "utime", refuse)
    rescorer, notes = load()
    assert rescorer.rescore(LISTS) == library.rescore(LISTS)
    assert notes == []


def test_the_oldest_files_are_deleted(tmp_path):
    for age, name in enumerate(("new", "middle", "old")):
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(b"x" * 10)
        os.utime(file, (1000 - age, 1000 - age))
    delete_oldest(tmp_path, max_bytes=25)
    assert sorted(file.stem for file in tmp_path.iterdir()) == ["middle", "new"]


def test_the_default_folder_follows_the_xdg_specification(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert scored_lists.find_cache_folder() == tmp_path / "rescorer" / "scores"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert scored_lists.find_cache_folder().is_absolute()


def test_models_are_loaded_when_they_are_needed(load, monkeypatch):
    rescorer, _ = load()
    assert list(rescorer.models) == ["ngram", "neural"]
    assert len(rescorer.models) == 2
    assert isinstance(rescorer, Rescorer)
    assert rescorer.models["ngram"].name == "ngram"
