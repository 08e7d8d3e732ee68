"""Co-occurrences counted out of core, against a dictionary."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, ScoringError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.vectors import counts as counts_module
from rescorer_training.vectors.counts import count_block, count_cooccurrences, load_matrix
from rescorer_training.vectors.runs import EncodedText, prepare_text

N_WORDS = 5
TEXTS = st.lists(st.lists(st.integers(0, N_WORDS + 1).filter(lambda word: word != N_WORDS), max_size=9))


def encode(sentences: list[list[int]]) -> EncodedText:
    """A text in which word N_WORDS + 1 is rare."""
    ids = [word for sentence in sentences for word in [*sentence, N_WORDS]]
    words = tuple("abcde")
    return EncodedText(words, np.ones(N_WORDS, dtype=np.int64), np.array(ids, dtype=np.int32))


def count_plainly(sentences: list[list[int]], window: int, by_distance: bool) -> np.ndarray:
    """Count word by word, in both directions: the slow twin."""
    counts: defaultdict[tuple[int, int], float] = defaultdict(float)
    for sentence in sentences:
        known = [word for word in sentence if word < N_WORDS]
        for place, word in enumerate(known):
            for other_place, other in enumerate(known):
                distance = abs(place - other_place)
                if 0 < distance <= window:
                    counts[word, other] += 1 / distance if by_distance else 1
    matrix = np.zeros((N_WORDS, N_WORDS))
    for cell, count in counts.items():
        matrix[cell] = count
    return matrix


@given(TEXTS, st.integers(1, 4), st.booleans(), st.integers(1, 7), st.integers(16, 400))
def test_equals_a_dictionary_for_any_sizes_of_blocks(
    tmp_path_factory: pytest.TempPathFactory,
    sentences: list[list[int]],
    window: int,
    by_distance: bool,
    block_ids: int,
    merge_bytes: int,
) -> None:
    expected = count_plainly(sentences, window, by_distance)
    output = tmp_path_factory.mktemp("counts") / "cells"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_module, "MAX_BLOCK_IDS", block_ids)
        merge_runs = counts_module.merge_runs
        patch.setattr(counts_module, "merge_runs", lambda runs, _: merge_runs(runs, merge_bytes))
        if not expected.any():
            with pytest.raises(ConfigError, match="no two words"):
                count_cooccurrences(
                    encode(sentences), output, window=window, by_distance=by_distance, memory_mb=16
                )
            return
        n = count_cooccurrences(
            encode(sentences), output, window=window, by_distance=by_distance, memory_mb=16
        )
    found = load_matrix(output, N_WORDS).toarray()
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert n == np.count_nonzero(np.triu(expected))
    assert [path.name for path in output.parent.iterdir()] == ["cells"]


def test_weights_fall_with_distance() -> None:
    cells = count_block(np.array([0, 1, 2]), 0, 3, 2, by_distance=True)
    assert cells.tolist() == [(1, 1.0), (2, 0.5), (5, 1.0)]


def test_counts_within_the_memory_limit_what_does_not_fit(tmp_path: Path) -> None:
    n_words = 3000
    random = np.random.default_rng(0)
    ids = random.integers(0, n_words + 1, 200_000, dtype=np.int32)
    text = EncodedText(tuple(map(str, range(n_words))), np.bincount(ids)[:n_words], ids)
    tracemalloc.start()
    n_small = count_cooccurrences(text, tmp_path / "small", window=10, by_distance=True, memory_mb=16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    n_large = count_cooccurrences(text, tmp_path / "large", window=10, by_distance=True, memory_mb=1024)
    small, large = (np.fromfile(tmp_path / name, counts_module.CELL) for name in ("small", "large"))
    assert n_small == n_large == len(small)
    assert small.nbytes > peak  # not even the counts would have fitted
    assert peak < 16 << 20
    np.testing.assert_array_equal(small["key"], large["key"])
    np.testing.assert_allclose(small["weight"], large["weight"], rtol=1e-12)


@pytest.mark.parametrize(("window", "memory_mb", "message"), [(0, 64, "window"), (5, 1, "memory-mb")])
def test_rejects_options_out_of_range(tmp_path: Path, window: int, memory_mb: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        count_cooccurrences(
            encode([[0, 1]]), tmp_path / "cells", window=window, by_distance=True, memory_mb=memory_mb
        )


def test_says_what_to_do_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(counts_module, "merge_runs", fail)
    with pytest.raises(ScoringError, match=r"No space left on device\. Free disk space"):
        count_cooccurrences(encode([[0, 1]]), tmp_path / "cells", window=2, by_distance=True, memory_mb=16)
    assert not list(tmp_path.iterdir())


def test_numbers_words_by_frequency(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("b a b\nc b a\n")
    text = prepare_text([tmp_path / "text"], Normaliser(NormaliserSettings.raw()), tmp_path / "run", 2)
    assert text.words == ("b", "a")
    assert text.ids.tolist() == [0, 1, 0, 2, 3, 0, 1, 2]
    assert text.n_words == 5


def test_rejects_a_vocabulary_of_one_word(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a a a\n")
    with pytest.raises(ConfigError, match="expected at least 2"):
        prepare_text([tmp_path / "text"], Normaliser(NormaliserSettings.raw()), tmp_path / "run", 1)
