"""Train n-gram models: choose vocabulary and units, run an estimator, write the model file with a summary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rescorer.errors import ConfigError
from rescorer.lm.ngrams.table_file import MAX_SKIP, SUFFIX
from rescorer.text import Normaliser
from rescorer.vocabulary import END, START, UNKNOWN
from rescorer_training.data.corpus import count_words_and_marks, encode_text, read_lines, read_sentences
from rescorer_training.data.direction import record_direction
from rescorer_training.data.normalisation import record_normaliser
from rescorer_training.data.pipes import keep_pipes
from rescorer_training.ngram import lmplz
from rescorer_training.ngram.counts import count_ngrams
from rescorer_training.ngram.output import SPECIAL_WORDS, atomic_output, write_model, write_word_list
from rescorer_training.ngram.smoothing.building import build_model, check_cutoffs
from rescorer_training.ngram.smoothing.katz import smooth_katz
from rescorer_training.ngram.smoothing.kneser_ney import smooth_kneser_ney
from rescorer_training.ngram.smoothing.witten_bell import smooth_witten_bell
from rescorer_training.ngram.word_classes import UnitText, divide_into_classes, learn_classes, read_class_file

MAX_DROPPED_SHOWN = 5
"""Number of kinds of dropped marks that a summary names."""
SMOOTHINGS = {"kneser-ney": smooth_kneser_ney, "katz": smooth_katz, "witten-bell": smooth_witten_bell}
"""Smoothing methods by name."""
UNKNOWN_ID, START_ID, END_ID = range(len(SPECIAL_WORDS))


@dataclass(frozen=True, slots=True)
class NGramOptions:
    """Order, cut-offs, vocabulary, smoothing and units of the model to estimate."""

    order: int = 4
    cutoffs: tuple[int, ...] = (0,)
    """For orders 1, 2, …: prune n-grams with at most this raw count; the last repeats for higher orders."""
    vocabulary: Path | None = None
    """File of the words to predict, one per line; words that do not occur in the text are ignored."""
    vocabulary_size: int | None = None
    """Number of words to predict, the most frequent ones; None for all."""
    count_unknown: bool = False
    """Count ``<unk>``, in the text or in place of an out-of-vocabulary word, like any other word.

    Otherwise ``<unk>`` must not occur in the text. N-grams with an out-of-vocabulary word are counted and
    then pruned, as by lmplz with ``--limit_vocab_file``, and ``<unk>`` gets the probability of a word that
    never occurs.
    """
    smoothing: Literal["kneser-ney", "katz", "witten-bell"] = "kneser-ney"
    classes: int = 0
    """Number of classes to learn, whose n-grams the model has; 0 for n-grams of words."""
    class_file: Path | None = None
    """File of lines ``WORD CLASS``, instead of classes that are learnt."""
    skip: int = 0
    """Number of words between a context and the word that it predicts."""
    backward: bool = False
    """Count the n-grams of reversed sentences: the model then predicts a word from those after it."""

    @property
    def needs_table(self) -> bool:
        """Whether only an n-gram table can hold the model."""
        return bool(self.classes or self.class_file or self.skip)

    def __post_init__(self) -> None:
        if self.smoothing not in SMOOTHINGS:
            raise ConfigError(f"smoothing is {self.smoothing!r}; expected one of {', '.join(SMOOTHINGS)}")
        if self.classes < 0 or not 0 <= self.skip <= MAX_SKIP:
            raise ConfigError(
                f"got {self.classes} classes and a gap of {self.skip} words; expected at least 0, and a gap "
                f"of at most {MAX_SKIP}"
            )
        if self.classes and self.class_file:
            raise ConfigError("got both a number of classes and a file of classes; expected one of them")
        if not 2 <= self.order <= 6:
            raise ConfigError(f"order is {self.order}; expected 2 to 6")
        if self.vocabulary is not None and self.vocabulary_size is not None:
            raise ConfigError("got both a vocabulary and a vocabulary size; expected one of them")
        if self.vocabulary_size is not None and self.vocabulary_size < 1:
            raise ConfigError(f"vocabulary size is {self.vocabulary_size}; expected at least 1")
        if not self.cutoffs:
            raise ConfigError("no cut-offs given; give at least one (a cut-off of 0 keeps every n-gram)")
        missing = self.order - len(self.cutoffs)
        object.__setattr__(self, "cutoffs", self.cutoffs + self.cutoffs[-1:] * missing)
        check_cutoffs(self.cutoffs, self.order)


@dataclass(frozen=True, slots=True)
class OrderSummary:
    """Size and discounts of one order of a model."""

    n_counted: int
    """Number of distinct n-grams in the text."""
    n_kept: int
    """Number of n-grams in the model."""
    discounts: tuple[float, ...]
    """Kneser-Ney subtracts them from adjusted counts 1, 2 and 3 or more; Katz's method multiplies counts 1,
    2, … by them; Witten-Bell has none."""


@dataclass(frozen=True, slots=True)
class NGramSummary:
    """Statistics of an estimated model and its training text."""

    output: str
    output_bytes: int
    engine: str
    orders: tuple[OrderSummary, ...]
    n_words: int
    """Number of words in the text, excluding ``</s>``."""
    n_sentences: int
    n_unknown: int
    """Number of words in the text that are ``<unk>`` or out of the vocabulary."""
    vocabulary_size: int
    """Number of words in the model, including ``<unk>``, ``<s>`` and ``</s>``."""
    seconds: float
    n_dropped: int = 0
    """Number of marks in the text, such as ``|`` or ``[NOISE]``, of which the normaliser left nothing."""
    dropped: tuple[str, ...] = ()
    """The most frequent of them."""


def train_ngram(
    texts: Sequence[Path],
    normaliser: Normaliser,
    output: Path,
    options: NGramOptions,
    *,
    engine: str = "ours",
    memory: str = "80%",
) -> NGramSummary:
    """Estimate a model and write it atomically.

    Args:
        texts: files with one sentence per line, gzip or plain; each is read twice, also a pipe.
        output: ARPA file, gzip if the name ends in ``.gz``; an n-gram table if it ends in ``.ngram``, which
            models of classes or with a gap need; or a KenLM binary if it ends in one of ``BINARY_SUFFIXES``,
            for which KenLM's ``build_binary`` must be on the PATH. A binary cannot list its words, so they
            are written to a file next to it: ``model.words.txt`` for ``model.bin``. The normaliser is always
            recorded next to the model, ``model.bin.text.json``, and the direction of a backward model:
            ``model.bin.direction.json``.
        engine: ``ours`` estimates in memory; ``lmplz`` runs KenLM's own tool, which works on disk.
        memory: memory for lmplz to sort in, in the format of its option ``-S``.

    Raises:
        ConfigError: options contradict one another or the text, or a tool is not installed.
        FormatError: a file cannot be read or written.
    """
    started = time.perf_counter()
    if engine not in ("ours", "lmplz"):
        raise ConfigError(f"engine is {engine!r}; expected ours or lmplz")
    if options.needs_table and output.suffix != SUFFIX:
        raise ConfigError(
            f"{output} cannot hold a model of classes or with a gap; give a name that ends in {SUFFIX}"
        )
    if engine == "lmplz":
        lmplz.find_tool("lmplz")  # fail now rather than after hours of work
        if options.count_unknown:
            raise ConfigError("lmplz cannot count <unk> as a word; use --engine ours")
        if options.smoothing != "kneser-ney" or output.suffix == SUFFIX:
            raise ConfigError("lmplz writes only ARPA files, with Kneser-Ney smoothing; use --engine ours")
    with keep_pipes(), atomic_output(output) as arpa:
        counts, dropped = count_words_and_marks(texts, normaliser)
        words, oov_words = choose_words(counts, options)
        if engine == "ours":
            orders, n_sentences = _estimate_in_memory(texts, normaliser, words, oov_words, arpa, options)
        else:
            vocabulary = words if oov_words else None
            sentences = read_sentences(texts, normaliser, "lmplz", backward=options.backward)
            sizes, n_sentences = lmplz.run_lmplz(
                sentences, arpa, options.cutoffs, vocabulary=vocabulary, memory=memory
            )
            orders = tuple(OrderSummary(*size) for size in sizes)
    write_word_list(output, words)
    record_normaliser(output, normaliser)
    record_direction(output, backward=options.backward)
    return NGramSummary(
        output=str(output),
        output_bytes=output.stat().st_size,
        engine=engine,
        orders=orders,
        n_words=counts.total(),
        n_sentences=n_sentences,
        n_unknown=counts[UNKNOWN] + sum(counts[word] for word in oov_words),
        vocabulary_size=len(words) + len(SPECIAL_WORDS),
        seconds=round(time.perf_counter() - started, 2),
        n_dropped=dropped.total(),
        dropped=tuple(mark for mark, _ in dropped.most_common(MAX_DROPPED_SHOWN)),
    )


def choose_words(counts: Mapping[str, int], options: NGramOptions) -> tuple[list[str], list[str]]:
    """Divide the words of a text into those that the model will have and all others.

    Returns:
        Two lists without special words, by falling count.

    Raises:
        ConfigError: a special word occurs in the text, or none of the vocabulary's words occurs in it.
    """
    for special in (START, END) if options.count_unknown else SPECIAL_WORDS:
        if special in counts:
            remedy = "count it as a word (--count-unk), or " if special == UNKNOWN else ""
            raise ConfigError(
                f"{special} occurs {counts[special]:,} times in the text; "
                f"{remedy}let the normaliser replace it"
            )
    words = sorted(set(counts) - {UNKNOWN}, key=lambda word: (-counts[word], word))
    if options.vocabulary is None:
        size = options.vocabulary_size or len(words)
        return words[:size], words[size:]
    vocabulary = {line.strip() for line in read_lines(options.vocabulary)}
    known = [word for word in words if word in vocabulary]
    if not known:
        raise ConfigError(f"{options.vocabulary}: none of its {len(vocabulary):,} words is in the text")
    return known, [word for word in words if word not in vocabulary]


def _estimate_in_memory(
    texts: Sequence[Path],
    normaliser: Normaliser,
    known_words: list[str],
    oov_words: list[str],
    arpa: Path,
    options: NGramOptions,
) -> tuple[tuple[OrderSummary, ...], int]:
    """Estimate and write a model with numpy; return its orders and the number of sentences."""
    text = choose_units(texts, normaliser, known_words, oov_words, options)
    counts = count_ngrams(
        text.ids, options.order, n_words=len(text.names), start_id=START_ID, end_id=END_ID, skip=options.skip
    )
    smoothing = SMOOTHINGS[options.smoothing](counts, START_ID)
    model = build_model(counts, options.cutoffs, smoothing, start_id=START_ID, vocabulary_size=text.n_kept)
    write_model(arpa, model, text.names, skip=options.skip, members=text.members)
    orders = (
        OrderSummary(int((counted.count > 0).sum()), len(kept), kept.discounts)
        for counted, kept in zip(counts, model, strict=True)
    )
    return tuple(orders), int(counts[0].count[END_ID])


def choose_units(
    texts: Sequence[Path],
    normaliser: Normaliser,
    known_words: list[str],
    oov_words: list[str],
    options: NGramOptions,
) -> UnitText:
    """Encode texts as the words or the classes whose n-grams the model will have."""
    words = [*SPECIAL_WORDS, *known_words]
    n_kept, n_special = len(words), len(SPECIAL_WORDS)
    if not options.count_unknown:
        words += oov_words  # counted one by one, for the discounts
    ids = {word: i for i, word in enumerate(words)}
    encoded = encode_text(
        texts, normaliser, ids, unknown_id=UNKNOWN_ID, end_id=END_ID, backward=options.backward
    )
    if options.classes:
        class_of = learn_classes(
            encoded, n_kept, n_special, unknown_id=UNKNOWN_ID, end_id=END_ID, n_classes=options.classes
        )
    elif options.class_file:
        class_of = read_class_file(options.class_file, known_words)
    else:
        return UnitText(encoded, tuple(words), n_kept)
    return divide_into_classes(encoded, words, n_kept, n_special, class_of)
