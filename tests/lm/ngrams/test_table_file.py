"""Files of n-gram tables: the same model and the same bytes come back, and damaged files are refused."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rescorer.errors import BundleError
from rescorer.lm.ngrams import read_ngram
from rescorer.lm.ngrams.table_file import ALIGNMENT, MAGIC, ORDER, START, read_table_header, write_table
from rescorer.trie import build_trie
from tests.support.bounds import bounded
from tests.support.random_ngrams import WORDS, random_orders, write_random_arpa

MEMORY_BYTES, SECONDS = 64 << 20, 10
TRIE = build_trie([("a", "b", "c"), ("e", "d"), ("nobody", "a"), ()], [(), ("a",), (), ("b", "c", "d", "e")])


@pytest.fixture(scope="module")
def arpa(tmp_path_factory) -> Path:
    return write_random_arpa(tmp_path_factory.mktemp("table") / "m.arpa", random_orders(3, 4))


@pytest.fixture
def path(arpa, tmp_path) -> Path:
    path = tmp_path / "m.ngram"
    path.write_bytes(table_bytes(arpa))
    return path


def table_bytes(arpa: Path) -> bytes:
    model = read_ngram(arpa)
    stream = io.BytesIO()
    write_table(stream, model.words(), model.table)
    return stream.getvalue()


def test_a_file_gives_the_same_scores_and_the_same_bytes_again(arpa, path):
    before, after = read_ngram(arpa), read_ngram(path)
    assert after.order == before.order == 4
    assert after.vocabulary() == before.vocabulary() == set(WORDS)
    np.testing.assert_array_equal(after.score(TRIE).log_probs, before.score(TRIE).log_probs)
    assert table_bytes(path) == path.read_bytes()


def test_bytes_depend_neither_on_the_order_of_ngrams_nor_on_the_run(arpa, tmp_path):
    head, *sections, end = arpa.read_text().split("\n\n")
    shuffled = []
    for section in sections[1:]:
        heading, *ngrams = section.splitlines()
        random.Random(1).shuffle(ngrams)
        shuffled.append("\n".join([heading, *ngrams]))
    other = tmp_path / "other.arpa"
    other.write_text("\n\n".join([head, sections[0], *shuffled, end]))
    assert other.read_bytes() != arpa.read_bytes()
    assert table_bytes(other) == table_bytes(arpa)


def test_the_header_says_how_many_ngrams_there_are(arpa, path):
    counts = [int(line.split("=")[1]) for line in arpa.read_text().splitlines() if line.startswith("ngram ")]
    with path.open("rb") as stream:
        assert read_table_header(stream).counts == counts


def set_header(offset: int, form: str, value: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(form, data, offset, value)


def sections_of(data: bytes) -> list[int]:
    """Offsets of the words, unigrams, and pilots and records of order 2."""
    with io.BytesIO(data) as stream:
        _, _, order, n_words, word_bytes = START.unpack(stream.read(START.size))
        _, _, bits, _ = ORDER.unpack(stream.read(ORDER.size))
    offsets = [0]
    for size in (START.size + (order - 1) * ORDER.size, word_bytes, 8 * n_words, 2 << bits):
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets[1:]


def set_float(section: int, number: int, value: float) -> Callable[[bytearray], None]:
    """Replace a float32 of a section, counted in multiples of four bytes."""
    return lambda data: struct.pack_into("<f", data, sections_of(data)[section] + 4 * number, value)


def set_word_byte(value: bytes) -> Callable[[bytearray], None]:
    def apply(data: bytearray) -> None:
        at = data.index(b"\na\n") + 1
        data[at : at + 1] = value

    return apply


def cut(size: int) -> Callable[[bytearray], None]:
    return lambda data: data.__delitem__(slice(size if size > 0 else len(data) + size, None))


DAMAGE: dict[str, tuple[Callable[[bytearray], object], str]] = {
    "cut in the header": (cut(30), "does not start like"),
    "cut after the header": (cut(START.size + 3 * ORDER.size), "bytes; expected"),
    "cut by one byte": (cut(-1), "bytes; expected"),
    "longer by one byte": (lambda data: data.append(0), "bytes; expected"),
    "another version": (set_header(16, "<I", 2), "version 2"),
    "order 0": (set_header(20, "<I", 0), "order 0"),
    "order 11": (set_header(20, "<I", 11), "order 11"),
    "order that needs more header": (set_header(20, "<I", 5), "expected"),
    "no words": (set_header(24, "<Q", 0), "the number of words is 0"),
    "many words": (set_header(24, "<Q", 1 << 60), "the number of words"),
    "words of many bytes": (set_header(32, "<Q", 1 << 62), "bytes; expected"),
    "negative bytes of words": (set_header(32, "<q", -64), "bytes; expected"),
    "more n-grams than slots": (set_header(START.size, "<Q", 1 << 20), "the number of 2-grams"),
    "many slots": (set_header(START.size + 8, "<Q", (1 << 31) - 1), "bytes; expected"),
    "slots beyond any": (set_header(START.size + 8, "<q", -1), "the number of slots of order 2"),
    "no slots": (set_header(START.size + 8, "<Q", 0), "the number of slots of order 2 is 0"),
    "many pilots": (set_header(START.size + 16, "<I", 31), "bytes; expected"),
    "pilots beyond any": (set_header(START.size + 16, "<I", 4_000_000_000), "the logarithm of the number of"),
    "word that is not UTF-8": (set_word_byte(b"\xff"), "not in UTF-8"),
    "word with a line break": (set_word_byte(b"\n"), "words; expected"),
    "word that occurs twice": (set_word_byte(b"b"), "a word occurs twice"),
    "probability that is NaN": (set_float(1, 6, float("nan")), "order 1 has a log-probability"),
    "back-off weight that is infinite": (set_float(1, 7, float("inf")), "order 1 has a log-probability"),
    "probability above 1": (set_float(1, 6, 0.5), "log-probability above 0"),
    "probability above 1 in order 2": (set_float(3, 2, 0.5), "order 2 has a log-probability"),
    "back-off weight that is NaN in order 2": (
        set_float(3, 3, float("nan")),
        "order 2 has a log-probability",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_refuses_damaged_files_within_bounds(path, name):
    damage, reason = DAMAGE[name]
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    with bounded(MEMORY_BYTES, SECONDS), pytest.raises(BundleError, match=reason) as caught:
        read_ngram(path)
    assert str(path) in str(caught.value)


def test_misplaced_keys_give_finite_scores(path):
    """They are not looked for when a file is opened, because they cannot lead outside of the table."""
    model = read_ngram(path)
    random_keys = np.random.default_rng(0).integers(-(1 << 63), 1 << 63, 10_000)
    for order in model.table.orders:
        keys = np.sort(order.records[:, 0])  # in other slots than their own
        records = order.records.copy()
        records[:, 0] = keys
        slots = order._replace(records=records).match(random_keys, random_keys, 8).places
        assert ((slots >= 0) & (slots < order.hash.n_slots)).all()


def test_arbitrary_bytes_are_refused_or_score_finitely(path):
    original, generator = path.read_bytes(), random.Random(0)
    for _ in range(300):
        data = bytearray(original)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        path.write_bytes(data)
        with bounded(MEMORY_BYTES, SECONDS):
            try:
                model = read_ngram(path)
            except BundleError:
                continue
            assert np.isfinite(model.score(TRIE).log_probs).all()


def test_recognises_its_files_by_content(path, tmp_path):
    renamed = tmp_path / "model.arpa"
    path.rename(renamed)
    assert renamed.read_bytes().startswith(MAGIC)
    assert read_ngram(renamed).order == 4
