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
from rescorer.models.ngram_files import (
    ALIGNMENT,
    MAGIC,
    ORDER,
    START,
    UNITS,
    map_table,
    read_ngram,
    read_table_header,
    write_table,
)
from rescorer.models.ngrams import ClassMembers
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
    write_table(stream, model.content)
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


def set_header(offset: int, form: str, *values: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(form, data, offset, *values)


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


def replace(old: bytes, new: bytes) -> Callable[[bytearray], None]:
    """Replace a part of a file near its end by another of the same length."""

    def apply(data: bytearray) -> None:
        at = data.rindex(old)
        data[at : at + len(old)] = new

    return apply


def cut(size: int) -> Callable[[bytearray], None]:
    return lambda data: data.__delitem__(slice(size if size > 0 else len(data) + size, None))


DAMAGE: dict[str, tuple[Callable[[bytearray], object], str]] = {
    "cut in the header": (cut(30), "does not start like"),
    "cut after the header": (cut(START.size + 3 * ORDER.size), "bytes; expected"),
    "cut by one byte": (cut(-1), "bytes; expected"),
    "longer by one byte": (lambda data: data.append(0), "bytes; expected"),
    "another version": (set_header(16, "<I", 3), "version 3"),
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


CLASSES = ClassMembers(
    ("run", "walk", "sit"), np.array([3, 3, 7], np.int32), np.log10(np.array([0.25, 0.75, 1.0], np.float32))
)


@pytest.fixture
def class_path(arpa, tmp_path) -> Path:
    """A file of version 2 whose words are names of classes."""
    path = tmp_path / "classes.ngram"
    with path.open("wb") as stream:
        write_table(stream, read_ngram(arpa).content._replace(skip=1, members=CLASSES))
    return path


def test_a_file_has_gap_and_classes(class_path, arpa):
    model = read_ngram(class_path)
    assert model.content.skip == 1
    assert model.vocabulary() == set(CLASSES.words)
    np.testing.assert_array_equal(model.units.encode(["sit", "a", "run", "</s>"]), [7, 0, 3, 0])
    np.testing.assert_allclose(
        model.units.log10_within(["sit", "a", "run"]), [0, 0, np.log10(0.25)], rtol=1e-6
    )
    stream = io.BytesIO()
    write_table(stream, model.content)
    assert stream.getvalue() == class_path.read_bytes()
    with class_path.open("rb") as file:
        assert read_table_header(file).n_words == 3
    with arpa.open("rb"):
        assert table_bytes(arpa)[16] == 1  # models of words keep the first version


UNITS_AT = START.size + 3 * ORDER.size
CLASS_BYTES, PROB_BYTES = struct.pack("<3i", 3, 3, 7), CLASSES.log10_probs.tobytes()
CLASS_DAMAGE: dict[str, tuple[Callable[[bytearray], object], str]] = {
    "cut in the header": (cut(UNITS_AT + UNITS.size - 1), "order 4"),
    "cut by one byte": (cut(-1), "bytes; expected"),
    "large gap": (set_header(UNITS_AT, "<I", 11), "the gap is 11"),
    "strange mark": (set_header(UNITS_AT + 4, "<I", 2), "the mark of classes is 2"),
    "words without classes": (set_header(UNITS_AT + 4, "<I", 0), "the number of words in classes is 3"),
    "many words": (set_header(UNITS_AT + 8, "<Q", 1 << 60), "the number of words in classes"),
    "more words": (set_header(UNITS_AT + 8, "<Q", 1 << 30), "bytes; expected"),
    "words of many bytes": (set_header(UNITS_AT + 16, "<Q", 1 << 62), "bytes; expected"),
    "neither gap nor classes": (set_header(UNITS_AT, "<IIQQ", 0, 0, 0, 0), "neither a gap nor classes"),
    "class that is special": (replace(CLASS_BYTES, struct.pack("<3i", 3, 2, 7)), "not one of the 8"),
    "class that is negative": (replace(CLASS_BYTES, struct.pack("<3i", 3, -3, 7)), "not one of the 8"),
    "class beyond the last": (replace(CLASS_BYTES, struct.pack("<3i", 3, 3, 8)), "not one of the 8"),
    "probability above 1": (replace(PROB_BYTES, struct.pack("<3f", 0.1, -1, 0)), "in its class"),
    "probability that is NaN": (replace(PROB_BYTES, struct.pack("<3f", float("nan"), -1, 0)), "in its class"),
    "word that occurs twice": (replace(b"run\nwalk\nsit", b"sit\nwalk\nsit"), "occurs twice"),
    "word that is special": (replace(b"run\nwalk\nsit", b"run\n<s>\nsiit"), "is in a class; expected none"),
    "fewer words": (replace(b"run\nwalk\nsit", b"run walk\nsit"), "has 2 words; expected 3"),
}


@pytest.mark.parametrize("name", CLASS_DAMAGE)
def test_refuses_damaged_classes_within_bounds(class_path, name):
    damage, reason = CLASS_DAMAGE[name]
    data = bytearray(class_path.read_bytes())
    damage(data)
    class_path.write_bytes(data)
    with bounded(MEMORY_BYTES, SECONDS), pytest.raises(BundleError, match=reason):
        read_ngram(class_path)


def test_classes_of_no_words_are_mapped(arpa, tmp_path):
    empty = ClassMembers((), np.empty(0, np.int32), np.empty(0, np.float32))
    with (tmp_path / "empty.ngram").open("w+b") as stream:
        write_table(stream, read_ngram(arpa).content._replace(members=empty))
        stream.flush()
        assert map_table(stream).members.words == ()


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


@pytest.mark.parametrize("kind", ["path", "class_path"])
def test_arbitrary_bytes_are_refused_or_score_finitely(kind, request):
    path = request.getfixturevalue(kind)
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
