"""ARPA files as arrays: what is read, and what is refused with a reason that quotes nothing."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from rescorer.errors import BundleError
from rescorer.models import arpa, compressed_text
from rescorer.models.arpa import ArpaModel, read_arpa
from tests.support.random_ngrams import format_arpa, random_orders
from tests.support.tiny_models import ARPA


def read(path: Path, text: str | bytes) -> ArpaModel:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with path.open("rb") as stream:
        return read_arpa(stream)


@pytest.mark.parametrize("without_zeros", [False, True])
@pytest.mark.parametrize("block_bytes", [1 << 16, 200])
def test_reads_every_ngram(tmp_path, monkeypatch, without_zeros, block_bytes):
    for module in (arpa, arpa, compressed_text):
        monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    orders = random_orders(5, 4)
    text = format_arpa(orders, without_zeros)
    for data in (text.encode(), gzip.compress(text.encode()), text.replace("\n", "\r\n").encode()):
        model = read(tmp_path / "m", data)
        for n, (found, expected) in enumerate(zip(model.orders, orders, strict=True), 1):
            ngrams = [tuple(model.words[i] for i in ids) for ids in found.ids.tolist()]
            values = map(tuple, found.values.tolist())
            assert dict(zip(ngrams, values, strict=True)) == expected, n


def test_special_words_come_first_and_unk_has_two_names(tmp_path):
    assert read(tmp_path / "m", ARPA).words[:4] == ("<unk>", "<s>", "</s>", "the")
    assert read(tmp_path / "m", ARPA.replace("<unk>", "<UNK>")).words[:4] == ("<unk>", "<s>", "</s>", "the")


def test_a_missing_unk_has_the_probability_that_kenlm_gives_it(tmp_path):
    text = ARPA.replace("ngram 1=9", "ngram 1=8").replace("-1.2\t<unk>\t0\n", "")
    assert read(tmp_path / "m", text).orders[0].values[0].tolist() == [-100.0, 0.0]


def test_log_of_zero_is_finite(tmp_path):
    unigrams = read(tmp_path / "m", ARPA.replace("0\t<s>\t-0.3", "-inf\t<s>\t-inf")).orders[0]
    assert unigrams.values[1].tolist() == [-99.0, -99.0]


def test_blank_lines_and_spaces_do_not_matter(tmp_path):
    text = ARPA.replace("\t", "  ").replace("\n-0.7", "\n\n \n-0.7")
    for found, expected in zip(
        read(tmp_path / "m", text).orders, read(tmp_path / "n", ARPA).orders, strict=True
    ):
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.values, expected.values)


BROKEN = {
    "more n-grams": (
        ARPA.replace("ngram 2=6", "ngram 2=5"),
        "has 6 2-grams; its header says 5: write 'ngram 2=6' there",
    ),
    "fewer n-grams": (ARPA.replace("ngram 3=2", "ngram 3=3"), "has 2 3-grams; its header says 3"),
    "no end": (ARPA.replace("\\end\\", ""), r"ends without the line \\end\\"),
    "order out of turn": (
        ARPA.replace("\\2-grams:", "\\3-grams:"),
        r"expected \\2-grams: or \\end\\ after the 1-g",
    ),
    "order beyond the header": (ARPA.replace("\\end\\", "\\4-grams:"), r"expected \\4-grams: or"),
    "word that is no unigram": (ARPA.replace("the mat\t0", "the dog\t0"), "2-gram 3: expected a log-prob"),
    "word missing": (ARPA.replace("<s> the cat\n", "<s> the\n"), "3-gram 1: expected a log-probability"),
    "positive": (ARPA.replace("-0.7\tthe", "0.7\tthe"), "2-gram 3: expected a log-probability of at most 0"),
    "NaN": (ARPA.replace("-0.7\tthe", "nan\tthe"), "2-gram 3: expected"),
    "infinite weight": (ARPA.replace("the mat\t0", "the mat\tinf"), "2-gram 3: expected"),
    "weight beyond float32": (ARPA.replace("the mat\t0", "the mat\t1e300"), "2-gram 3: expected"),
    "no number": (ARPA.replace("-0.9\tthe", "secret\tthe"), "1-gram 4: expected a log-probability"),
    "no <s>": (ARPA.replace("\t<s>\t-0.3", "\tdog\t-0.3").replace("<s>", "dog"), "has no unigram <s>"),
    "no </s>": (ARPA.replace("</s>", "dog"), "has no unigram </s>"),
    "unigram twice": (ARPA.replace("\tzebra", "\tthe"), "one of its unigrams occurs twice"),
    "not UTF-8": (ARPA.encode().replace(b"zebra", b"\xff"), "word 9 of its unigrams is not in UTF-8"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_refuses_broken_files(tmp_path, name):
    text, reason = BROKEN[name]
    with pytest.raises(BundleError, match=reason) as caught:
        read(tmp_path / "m.arpa", text)
    assert "m.arpa" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_refuses_more_ngrams_than_fit_into_memory(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(arpa, "_empty", refuse)
    with pytest.raises(BundleError, match="header says 17 n-grams, more than fit into memory"):
        read(tmp_path / "m.arpa", ARPA)
