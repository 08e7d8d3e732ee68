"""Kneser-Ney estimation, compared with a reference implementation and with lmplz."""

from __future__ import annotations

import logging
import math
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.ngram.backoff_model import write_arpa
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.ngram.smoothing import (
    FALLBACK_DISCOUNTS,
    build_model,
    check_cutoffs,
    count_ngrams,
    estimate_discounts,
    smooth_kneser_ney,
)
from tests.support.arpa_dicts import read_arpa

GOLDEN = Path(__file__).parents[2] / "golden" / "kneser-ney"  # its .arpa files were made by KenLM's lmplz

NGram = tuple[str, ...]
Model = dict[NGram, tuple[float, float]]
Corpus = list[list[str]]


class ReferenceKneserNey:
    """A slow reference: the papers' formulas over dictionaries, one n-gram at a time."""

    def __init__(self, corpus: Corpus, cutoffs: Sequence[int], listed: set[str]) -> None:
        self.cutoffs, self.order = cutoffs, len(cutoffs)
        self.vocabulary = {"<unk>", "</s>", *listed}
        padded = [["<s>", *words, "</s>"] for words in corpus]
        self.raw: Counter[NGram] = Counter(
            tuple(words[i : i + n])
            for words in padded
            for n in range(1, self.order + 1)
            for i in range(len(words) - n + 1)
        )
        left: defaultdict[NGram, set[str]] = defaultdict(set)
        self.extensions: defaultdict[NGram, list[NGram]] = defaultdict(list)
        for ngram in self.raw:
            left[ngram[1:]].add(ngram[0])
            self.extensions[ngram[:-1]].append(ngram)
        self.extensions[()].remove(("<s>",))
        self.adjusted = {
            ngram: count if len(ngram) == self.order or ngram[0] == "<s>" else len(left[ngram])
            for ngram, count in self.raw.items()
        }
        self.adjusted["<s>",] = 0
        self.discounts = [self.estimate_discounts(n) for n in range(1, self.order + 1)]

    def estimate_discounts(self, n: int) -> tuple[float, ...]:
        counts = [count for ngram, count in self.adjusted.items() if len(ngram) == n]
        t1, t2, t3, t4 = (counts.count(j) for j in (1, 2, 3, 4))
        if not (t1 and t2 and t3):
            return FALLBACK_DISCOUNTS
        y = t1 / (t1 + 2 * t2)
        found = (1 - 2 * y * t2 / t1, 2 - 3 * y * t3 / t2, 3 - 4 * y * t4 / t3)
        return found if all(0 <= d <= j for j, d in enumerate(found, start=1)) else FALLBACK_DISCOUNTS

    def discount(self, ngram: NGram) -> float:
        return self.discounts[len(ngram) - 1][min(self.adjusted[ngram], 3) - 1]

    def keeps(self, ngram: NGram) -> bool:
        known = all(word in self.vocabulary or word == "<s>" for word in ngram)
        return known and self.raw[ngram] > self.cutoffs[len(ngram) - 1]

    def backoff(self, context: NGram) -> float:
        extensions = self.extensions[context]
        if not extensions:
            return 1.0
        left_over = sum(self.discount(e) if self.keeps(e) else self.adjusted[e] for e in extensions)
        return left_over / sum(self.adjusted[e] for e in extensions)

    def prob(self, ngram: NGram) -> float:
        """Compute the interpolated P(last word | the words before it)."""
        if not ngram:
            return 1 / len(self.vocabulary)
        context = ngram[:-1]
        share = 0.0
        if ngram in self.raw and self.keeps(ngram):
            total = sum(self.adjusted[e] for e in self.extensions[context])
            share = (self.adjusted[ngram] - self.discount(ngram)) / total
        return share + self.backoff(context) * self.prob(ngram[1:])

    def model(self) -> Model:
        kept = {ngram for ngram in self.raw if self.keeps(ngram)} | {("<unk>",)}
        return {
            ngram: (
                0.0 if ngram == ("<s>",) else to_log10(self.prob(ngram)),
                to_log10(self.backoff(ngram)) if len(ngram) < self.order else 0.0,
            )
            for ngram in kept
        }


def to_log10(prob: float) -> float:
    return math.log10(prob) if prob else -99.0


def estimate_model(corpus: Corpus, cutoffs: Sequence[int], listed: set[str]) -> Model:
    """Estimate a model with numpy, write it to an ARPA file and read it back."""
    others = sorted({word for words in corpus for word in words} - listed)
    vocabulary = ["<unk>", "<s>", "</s>", *sorted(listed), *others]
    ids = {word: i for i, word in enumerate(vocabulary)}
    encoded = np.array([ids[word] for words in corpus for word in [*words, "</s>"]], dtype=np.int32)
    counts = count_ngrams(encoded, len(cutoffs), n_words=len(vocabulary), start_id=1, end_id=2)
    smoothing = smooth_kneser_ney(counts, start_id=1)
    model = build_model(counts, cutoffs, smoothing, start_id=1, vocabulary_size=len(listed) + 3)
    with tempfile.TemporaryDirectory() as folder:
        write_arpa(Path(folder) / "model.arpa", model, vocabulary)
        return merge_orders(read_arpa(Path(folder) / "model.arpa"))


def merge_orders(orders: list[Model]) -> Model:
    return {ngram: values for order in orders for ngram, values in order.items()}


def assert_same(found: Model, expected: Model, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    ngrams = list(expected)
    difference = np.abs(np.array([found[n] for n in ngrams]) - np.array([expected[n] for n in ngrams]))
    worst = int(difference.max(axis=1).argmax())
    assert difference.max() <= tolerance, (ngrams[worst], found[ngrams[worst]], expected[ngrams[worst]])


words_of_text = st.lists(st.sampled_from("abcde"), min_size=1, max_size=8)
corpora = st.lists(words_of_text, min_size=1, max_size=12)
cutoff_lists = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(lambda ks: [0, *sorted(ks)])


def select_seen_words(corpus: Corpus, listed: str) -> set[str]:
    return {word for words in corpus for word in words} & set(listed)


@given(corpora, cutoff_lists, st.sampled_from(["abcde", "abcd", "ac"]))
def test_agrees_with_reference(corpus: Corpus, cutoffs: list[int], listed: str) -> None:
    words = select_seen_words(corpus, listed)
    assert_same(
        estimate_model(corpus, cutoffs, words), ReferenceKneserNey(corpus, cutoffs, words).model(), 1e-6
    )


def random_corpus(seed: int) -> Corpus:
    """Draw enough sentences for every discount to be estimated."""
    draw = random.Random(seed)
    return [
        [f"w{int(draw.paretovariate(0.7)) % 50}" for _ in range(draw.randint(1, 9))]
        for _ in range(draw.randint(60, 90))
    ]


@pytest.mark.parametrize("cutoffs", [(0, 0), (0, 0, 1), (0, 1, 1, 2)])
@pytest.mark.parametrize("seed", [1, 2])
def test_agrees_with_reference_if_discounts_are_estimated(seed: int, cutoffs: tuple[int, ...]) -> None:
    corpus = random_corpus(seed)
    words = {word for sentence in corpus for word in sentence if len(word) < 3}
    reference = ReferenceKneserNey(corpus, cutoffs, words)
    assert any(discounts != FALLBACK_DISCOUNTS for discounts in reference.discounts)
    assert_same(estimate_model(corpus, cutoffs, words), reference.model(), 1e-6)


def backoff_log10_prob(model: Model, history: NGram, word: str, order: int) -> float:
    """Compute log10 P(word | history) by backing off, as readers of ARPA files do."""
    history = history[-(order - 1) :]
    total = 0.0
    while (*history, word) not in model:
        total += model.get(history, (0.0, 0.0))[1]
        history = history[1:]
    return total + model[(*history, word)][0]


@given(
    corpora, cutoff_lists, st.sampled_from(["abcde", "ac"]), st.lists(st.sampled_from("abcde"), max_size=6)
)
def test_every_distribution_sums_to_one(
    corpus: Corpus, cutoffs: list[int], listed: str, history: list[str]
) -> None:
    model = estimate_model(corpus, cutoffs, select_seen_words(corpus, listed))
    words = [ngram[0] for ngram in model if len(ngram) == 1 and ngram != ("<s>",)]
    context = tuple(word if word in words else "<unk>" for word in history)
    for start in (("<s>",), ()):
        total = sum(10 ** backoff_log10_prob(model, (*start, *context), word, len(cutoffs)) for word in words)
        assert total == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cutoffs", NGramOptions(order=3, cutoffs=(0, 0, 1))),
        ("listed", NGramOptions(order=4, vocabulary=GOLDEN / "listed.txt")),
    ],
)
def test_agrees_with_lmplz(name: str, options: NGramOptions, tmp_path: Path) -> None:
    train_ngram([GOLDEN / "text.txt"], Normaliser(), tmp_path / "model.arpa", options)
    expected = merge_orders(read_arpa(GOLDEN / f"{name}.arpa"))
    assert_same(merge_orders(read_arpa(tmp_path / "model.arpa")), expected, 1e-5)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "order", "cutoffs"),
    [("order3", 3, (0,)), ("order5", 5, (0,)), ("order3-prune012", 3, (0, 1, 2))],
)
def test_agrees_with_lmplz_on_penn_treebank_sentences(
    name: str, order: int, cutoffs: tuple[int, ...], data_dir: Path, tmp_path: Path
) -> None:
    folder = data_dir / "kneser-ney"
    raw = Normaliser(NormaliserSettings.raw())
    train_ngram([folder / "small.txt"], raw, tmp_path / "model.arpa", NGramOptions(order, cutoffs))
    expected = merge_orders(read_arpa(folder / f"small-{name}.arpa.gz"))
    assert_same(merge_orders(read_arpa(tmp_path / "model.arpa")), expected, 1e-4)


def test_estimates_a_model_from_one_word() -> None:
    assert_same(
        estimate_model([["a"]], [0] * 5, {"a"}), ReferenceKneserNey([["a"]], [0] * 5, {"a"}).model(), 1e-6
    )


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ([], "adjusted count 1"),
        ([1, 1, 2, 5], "adjusted count 3"),
        ([1, 2, *[3] * 9], "out of range"),
    ],
)
def test_falls_back_to_standard_discounts_with_a_warning(
    counts: list[int], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert estimate_discounts(np.array(counts, dtype=np.int64), 3) == FALLBACK_DISCOUNTS
    assert "order 3" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("cutoffs", "message"), [((0, 1), "one per order"), ((1, 1, 1), "expected 0"), ((0, 2, 1), "decrease")]
)
def test_rejects_invalid_cutoffs(cutoffs: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_cutoffs(cutoffs, 3)
