"""Owns the way from text files to an n-gram model file: vocabulary, engine, and what to tell about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rescorer.errors import ConfigError, FormatError
from rescorer.text import Normaliser
from rescorer.vocabulary import END, START, UNKNOWN
from rescorer_training.data.corpus import count_words, encode, read_lines, sentences
from rescorer_training.ngram import lmplz
from rescorer_training.ngram.arpa import write_arpa
from rescorer_training.ngram.counts import count_ngrams
from rescorer_training.ngram.kneser_ney import check_cutoffs, estimate

MARKS = (UNKNOWN, START, END)
BINARY_SUFFIXES = (".bin", ".binary", ".klm")


@dataclass(frozen=True, slots=True)
class NGramOptions:
    """What model to estimate."""

    order: int = 4
    cutoffs: tuple[int, ...] = (0,)
    """N-grams of order n with raw counts up to the n-th of these are dropped; the last one also holds for
    the orders above."""
    vocabulary: Path | None = None
    """File of words, one a line: no other word is predicted, and one that never occurs is left out too."""
    vocabulary_size: int | None = None
    """Predict the most frequent words only."""
    count_unknown: bool = False
    """``<unk>``, in the text or in place of a word outside the vocabulary, counts like any word. Otherwise
    it may not stand in the text; n-grams with a word outside the vocabulary are counted and then dropped,
    as lmplz does under ``--limit_vocab_file``, and ``<unk>`` gets what a word that never occurs gets."""

    def __post_init__(self) -> None:
        if not 2 <= self.order <= 6:
            raise ConfigError(f"order is {self.order}; expected 2 to 6")
        if self.vocabulary is not None and self.vocabulary_size is not None:
            raise ConfigError("a vocabulary and a vocabulary size are both given; expected one of them")
        if self.vocabulary_size is not None and self.vocabulary_size < 1:
            raise ConfigError(f"vocabulary size is {self.vocabulary_size}; expected at least 1")
        if not self.cutoffs:
            raise ConfigError("no cut-offs; expected at least one, 0 to keep every n-gram")
        missing = self.order - len(self.cutoffs)
        object.__setattr__(self, "cutoffs", self.cutoffs + self.cutoffs[-1:] * missing)
        check_cutoffs(self.cutoffs, self.order)


@dataclass(frozen=True, slots=True)
class OrderSummary:
    """One order of a model."""

    n_counted: int
    """Distinct n-grams in the text."""
    n_kept: int
    """N-grams in the model."""
    discounts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NGramSummary:
    """What was made of what."""

    output: str
    output_bytes: int
    engine: str
    orders: tuple[OrderSummary, ...]
    n_words: int
    """Words of the text, ``</s>`` left out."""
    n_sentences: int
    n_unknown: int
    """Words of the text that are outside the vocabulary, or ``<unk>``."""
    vocabulary_size: int
    """Words the model has, the three marks ``<unk>``, ``<s>`` and ``</s>`` among them."""
    seconds: float


def train_ngram(
    texts: Sequence[Path],
    normaliser: Normaliser,
    output: Path,
    options: NGramOptions,
    *,
    engine: str = "ours",
    memory: str = "80%",
) -> NGramSummary:
    """Estimates an interpolated modified Kneser-Ney model and writes it, whole or not at all.

    Args:
        texts: one sentence a line, gzip or plain; read twice.
        output: ARPA; gzip where the name ends in ``.gz``; a KenLM binary where it ends in one of
            ``BINARY_SUFFIXES``, for which KenLM's ``build_binary`` must be on the PATH. A binary cannot
            list its words: they are written beside it, ``model.words.txt`` for ``model.bin``.
        engine: ``ours``, in memory; ``lmplz``, KenLM's own tool, on disk.
        memory: what lmplz may sort in, as its ``-S`` says it.

    Raises:
        ConfigError: options contradict the text, or a tool is not installed.
        FormatError: a file cannot be read or written.
    """
    started = time.perf_counter()
    if engine not in ("ours", "lmplz"):
        raise ConfigError(f"engine is {engine!r}; expected ours or lmplz")
    if engine == "lmplz":
        lmplz.tool("lmplz")  # better said before hours of work than after
        if options.count_unknown:
            raise ConfigError("lmplz cannot count <unk> as a word; use our own engine")
    with whole_file(output) as arpa:
        counts = count_words(texts, normaliser)
        listed, others = choose_words(counts, options)
        if engine == "ours":
            orders, n_sentences = _estimate(texts, normaliser, listed, others, arpa, options)
        else:
            limit = listed if others else None
            orders, n_sentences = _run_lmplz(texts, normaliser, limit, arpa, options, memory)
    list_words(output, listed)
    return NGramSummary(
        output=str(output),
        output_bytes=output.stat().st_size,
        engine=engine,
        orders=orders,
        n_words=counts.total(),
        n_sentences=n_sentences,
        n_unknown=counts[UNKNOWN] + sum(counts[word] for word in others),
        vocabulary_size=len(listed) + len(MARKS),
        seconds=round(time.perf_counter() - started, 2),
    )


def choose_words(counts: Mapping[str, int], options: NGramOptions) -> tuple[list[str], list[str]]:
    """The text's words that a model has, and its other words, both by falling count and without marks.

    Raises:
        ConfigError: the text has a mark where a word should be, or none of the vocabulary's words.
    """
    for mark in (START, END) if options.count_unknown else MARKS:
        if mark in counts:
            remedy = "count it (--count-unk), or " if mark == UNKNOWN else ""
            raise ConfigError(
                f"{mark} stands {counts[mark]:,} times in the text; {remedy}let the normaliser replace it"
            )
    words = sorted(set(counts) - {UNKNOWN}, key=lambda word: (-counts[word], word))
    if options.vocabulary is None:
        size = options.vocabulary_size or len(words)
        return words[:size], words[size:]
    vocabulary = {line.strip() for line in read_lines(options.vocabulary)}
    listed = [word for word in words if word in vocabulary]
    if not listed:
        raise ConfigError(f"{options.vocabulary}: none of its {len(vocabulary):,} words is in the text")
    return listed, [word for word in words if word not in vocabulary]


def _estimate(
    texts: Sequence[Path],
    normaliser: Normaliser,
    listed: list[str],
    others: list[str],
    arpa: Path,
    options: NGramOptions,
) -> tuple[tuple[OrderSummary, ...], int]:
    """Writes the model that our own engine estimates; returns its orders and the number of sentences."""
    unknown, begin, end = range(len(MARKS))
    words = [*MARKS, *listed]
    n_listed = len(words)
    if not options.count_unknown:
        words += others  # each by itself, for the discounts
    ids = {word: i for i, word in enumerate(words)}
    encoded = encode(texts, normaliser, ids, unknown=unknown, end=end)
    counts = count_ngrams(encoded, options.order, n_words=len(words), begin=begin, end=end)
    model = estimate(counts, options.cutoffs, begin=begin, n_listed=n_listed)
    write_arpa(arpa, model, words)
    orders = (
        OrderSummary(len(table), len(each), each.discounts) for table, each in zip(counts, model, strict=True)
    )
    return tuple(orders), int(counts[0].count[end])


def _run_lmplz(
    texts: Sequence[Path],
    normaliser: Normaliser,
    limit: Sequence[str] | None,
    arpa: Path,
    options: NGramOptions,
    memory: str,
) -> tuple[tuple[OrderSummary, ...], int]:
    """The same by KenLM's own tool; ``limit`` has the words to predict where they are not all."""
    sizes, n_sentences = lmplz.estimate(
        sentences(texts, normaliser, "lmplz"), arpa, options.cutoffs, limit=limit, memory=memory
    )
    return tuple(OrderSummary(*each) for each in sizes), n_sentences


def list_words(output: Path, words: Iterable[str]) -> None:
    """Writes a model's words beside it where it is a binary, which cannot list them; marks are left out."""
    if output.suffix in BINARY_SUFFIXES:
        text = "".join(f"{word}\n" for word in words if word not in MARKS)
        output.with_suffix(".words.txt").write_text(text, encoding="utf-8")


@contextmanager
def whole_file(output: Path) -> Iterator[Path]:
    """Where to write the ARPA file that becomes ``output``, in its place only once it is complete."""
    binary = output.suffix in BINARY_SUFFIXES
    if binary:
        lmplz.tool("build_binary")
    arpa = output.with_name(f".partial-{output.name}{'.arpa' if binary else ''}")
    made = arpa.with_suffix("") if binary else arpa
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        arpa.touch()  # a place that cannot be written is found out before the work
        try:
            yield arpa
            if binary:
                lmplz.build_binary(arpa, made)
            made.replace(output)
        finally:
            arpa.unlink(missing_ok=True)
            made.unlink(missing_ok=True)
    except OSError as fault:
        raise FormatError(f"cannot be written: {fault.strerror or fault}", file=str(output)) from None
