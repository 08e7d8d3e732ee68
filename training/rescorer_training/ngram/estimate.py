"""Train n-gram models: choose the vocabulary, run an estimator, and write the model and files next to it.

The n-grams of a model consist of units: words, or classes of words. The estimator is ours, or KenLM's lmplz
if it is on the PATH. lmplz sorts on disk, so it can estimate models from texts that do not fit into memory
(Heafield et al. 2013).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from rescorer.errors import ConfigError, FormatError, quote
from rescorer.formats.io import text_io
from rescorer.models.arpa import ArpaOrder
from rescorer.models.network_files import END, START, UNKNOWN
from rescorer.models.ngram_files import MAX_SKIP, SUFFIX, build_table, write_table
from rescorer.models.ngrams import ClassMembers, TableContent
from rescorer.text import Normaliser
from rescorer_training import corpus, pipes
from rescorer_training.classes.brown import find_brown_clusters
from rescorer_training.ngram.backoff_model import clamped_log10, open_output, write_arpa
from rescorer_training.ngram.smoothing import (
    FALLBACK_DISCOUNTS,
    NGramProbabilities,
    build_model,
    check_cutoffs,
    count_ngrams,
    keep_relative_frequencies,
    smooth_katz,
    smooth_kneser_ney,
    smooth_witten_bell,
)

STATISTICS_LINE = re.compile(r"^\d+ (\d+)(?:/(\d+))? D1=(\S+) D2=(\S+) D3\+=(\S+)$", re.MULTILINE)
"""Line that lmplz prints for each order: n-grams kept, n-grams counted if these are more, discounts."""


def find_tool(name: str) -> str:
    """Return the path of one of KenLM's tools; raises ConfigError if the tool is not installed."""
    path = shutil.which(name)
    if path is None:
        raise ConfigError(
            f"{name} is not on the PATH; install KenLM, which includes it: https://kheafield.com/code/kenlm"
        )
    return path


def run_lmplz(
    sentences: Iterable[Sequence[str]],
    arpa: Path,
    cutoffs: Sequence[int],
    *,
    vocabulary: Sequence[str] | None = None,
    memory: str = "80%",
) -> tuple[list[tuple[int, int, tuple[float, ...]]], int]:
    """Estimate a model with lmplz.

    Args:
        arpa: file to write, gzip if its name ends in ``.gz``.
        cutoffs: for each order, the largest raw count with which n-grams are pruned.
        vocabulary: words to predict; None for all words.
        memory: memory for sorting, in the format of lmplz's option ``-S``.

    Returns:
        The number of n-grams counted, the number kept and the discounts, for each order; and the number of
        sentences in the text.

    Raises:
        ConfigError: lmplz is not installed or fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [find_tool("lmplz"), "-o", str(len(cutoffs)), "-S", memory, "-T", f"{folder}/"]
        command += ["--discount_fallback", *map(str, FALLBACK_DISCOUNTS)]
        command += ["--prune", *map(str, cutoffs)]
        if vocabulary is not None:
            words = Path(folder) / "vocabulary.txt"
            words.write_text("".join(f"{word}\n" for word in vocabulary), encoding="utf-8")
            command += ["--limit_vocab_file", str(words)]
        messages, n_sentences = _pipe_sentences(command, sentences, arpa, Path(folder) / "stderr")
    orders = [
        (int(counted or kept), int(kept), tuple(map(float, discounts)))
        for kept, counted, *discounts in STATISTICS_LINE.findall(messages)
    ]
    return orders, n_sentences


def _pipe_sentences(
    command: Sequence[str], sentences: Iterable[Sequence[str]], arpa: Path, stderr: Path
) -> tuple[str, int]:
    """Feed sentences to lmplz, and write its model to ``arpa``; return messages, and number of sentences."""
    n_sentences = 0
    with (
        open(stderr, "wb") as error_stream,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error_stream
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin as stdin:
                for words in sentences:
                    stdin.write(f"{' '.join(words)}\n".encode())
                    n_sentences += 1
        except BrokenPipeError:
            pass  # lmplz stopped early; its exit status and messages say why
        with open_output(arpa) as stream:  # lmplz writes nothing before it has read everything
            shutil.copyfileobj(process.stdout, stream)
    messages = stderr.read_text(encoding="utf-8", errors="replace")
    _check_exit_status("lmplz", process.returncode, messages)
    return messages, n_sentences


def build_binary(arpa: Path, output: Path) -> None:
    """Convert an ARPA file to a KenLM binary, which loads faster.

    Raises:
        ConfigError: build_binary is not installed or fails.
    """
    done = subprocess.run([find_tool("build_binary"), str(arpa), str(output)], capture_output=True, text=True)
    _check_exit_status("build_binary", done.returncode, done.stderr)


def _check_exit_status(name: str, status: int, messages: str) -> None:
    if status != 0:
        last = messages.strip().splitlines()[-1:] or ["no message"]
        raise ConfigError(f"{name} failed with exit status {status}: {last[0]}")


SPECIAL_WORDS = (UNKNOWN, START, END)
BINARY_SUFFIXES = (".bin", ".binary", ".klm")
"""File name suffixes for which a KenLM binary is written instead of an ARPA file."""


def write_model(
    path: Path,
    model: Sequence[NGramProbabilities],
    names: Sequence[str],
    *,
    skip: int = 0,
    members: ClassMembers | None = None,
) -> None:
    """Write an n-gram table if the name ends in ``.ngram``, and an ARPA file otherwise.

    Args:
        names: name of each unit, the word or the name of the class; ``SPECIAL_WORDS`` come first.
        skip: number of words between a context and the word that it predicts. Only tables can have such a
            gap.
        members: words of the classes, which only tables can have; None if units are words.

    Raises:
        OSError: the file cannot be written.
    """
    if path.suffix != SUFFIX:
        return write_arpa(path, model, names)
    ids, orders = np.empty((1, 0), np.int32), []
    for order in model:
        ids = np.concatenate([ids[order.prefix], order.word[:, None]], axis=1)
        values = np.stack([np.minimum(clamped_log10(order.prob), 0.0), clamped_log10(order.backoff)], axis=1)
        orders.append(ArpaOrder(ids, values.astype(np.float32)))
    content = TableContent(tuple(names[: len(model[0])]), build_table(orders, str(path)), skip, members)
    with path.open("wb") as stream:
        write_table(stream, content)


def word_list_file(output: Path) -> Path:
    """Return the file next to a KenLM binary that lists its words."""
    return output.with_suffix(".words.txt")


def write_records(output: Path, words: Iterable[str], normaliser: Normaliser, *, backward: bool) -> None:
    """Write the files next to a model: the words of a KenLM binary, the normaliser and the direction."""
    if output.suffix in BINARY_SUFFIXES:
        text = "".join(f"{word}\n" for word in words if word not in SPECIAL_WORDS)
        text_io.write_text(word_list_file(output), text)
    corpus.record_normaliser(output, normaliser)
    corpus.record_direction(output, backward=backward)


@contextmanager
def staged_output(output: Path) -> Iterator[Path]:
    """Yield the path to write a model to, with the files next to it. Usually this is ``output`` itself.

    If ``output`` is a stream (a device, a pipe or standard output), the path is in a temporary folder. At the
    end, the model is copied to the stream, without the files next to it.

    Raises:
        FormatError: the stream cannot be written.
    """
    if not text_io.is_stream(output):
        yield output
        return
    text_io.check_target(output)
    with tempfile.TemporaryDirectory(prefix="rescorer-") as folder:
        path = Path(folder) / output.name
        yield path
        text_io.copy_to_stream(path, output)


@contextmanager
def atomic_output(output: Path) -> Iterator[Path]:
    """Yield the path of a temporary ARPA file to write. On success, it replaces ``output``.

    If ``output`` has one of ``BINARY_SUFFIXES``, the ARPA file is converted to a KenLM binary first.
    Otherwise the temporary file has the same suffix as ``output``.

    Raises:
        ConfigError: KenLM's ``build_binary`` is needed but is not installed, or it fails.
        FormatError: the file cannot be written.
    """
    is_binary = output.suffix in BINARY_SUFFIXES
    if is_binary:
        find_tool("build_binary")
    with text_io.explain_write_errors(output):
        text_io.make_folder(output.parent)
        with text_io.replace_file(output) as complete:
            arpa = complete.with_name(f"{complete.name}.arpa") if is_binary else complete
            arpa.touch()  # fail now, rather than after the work, if the folder is not writable
            try:
                yield arpa
                if is_binary:
                    build_binary(arpa, complete)
            finally:
                if is_binary:
                    arpa.unlink(missing_ok=True)


class UnitText(NamedTuple):
    """A text in the units of a model."""

    ids: np.ndarray
    """(T,) int32 ids of units. A unit whose id is ``n_kept`` or more is not in the model."""
    names: tuple[str, ...]
    """Name of each unit, the word or the name of the class."""
    n_kept: int
    members: ClassMembers | None = None


def divide_into_classes(
    ids: np.ndarray, words: Sequence[str], n_kept: int, n_special: int, class_of: np.ndarray
) -> UnitText:
    """Replace the words of a text by their classes.

    Special words, and words that are not in the model, each remain a unit. P(word | class) is the
    word's share of the occurrences of its class.

    Args:
        ids: (T,) word ids. Words with ids below ``n_special`` or from ``n_kept`` on get no class.
        words: the word of each id.
        class_of: (n_kept - n_special,) class of each other word, any whole number.
    """
    counts = np.bincount(ids, minlength=len(words))[n_special:n_kept]
    numbers, classes = np.unique(class_of, return_inverse=True)
    totals = np.bincount(classes, weights=counts)
    n_units = n_special + len(numbers)
    unit_of = np.concatenate([
        np.arange(n_special), n_special + classes, np.arange(len(words) - n_kept) + n_units
    ]).astype(np.int32)  # fmt: skip
    members = ClassMembers(
        tuple(words[n_special:n_kept]),
        unit_of[n_special:n_kept],
        np.log10(counts / totals[classes]).astype(np.float32),
    )
    names = (*words[:n_special], *(f"class {number}" for number in numbers), *words[n_kept:])
    return UnitText(unit_of[ids], names, n_units, members)


def learn_classes(
    ids: np.ndarray, n_kept: int, n_special: int, *, unknown_id: int, end_id: int, n_classes: int
) -> np.ndarray:
    """Learn Brown classes from a text; see ``find_brown_clusters``.

    Args:
        ids: (T,) word ids, special words first and the others by falling count. Words with ids from
            ``n_kept`` on are not in the model and count as unknown.
        n_classes: number of classes, not counting those of special words.

    Returns:
        (n_kept - n_special,) class of each word that is in the model and not special.

    Raises:
        ConfigError: there are fewer words than classes.
    """
    n_words = n_kept - n_special
    if not 2 <= n_classes <= n_words:
        raise ConfigError(f"{n_classes} classes for {n_words:,} words; expected 2 to {n_words:,}")
    order = np.full(n_kept, 1)  # </s> first, then unknown words, as the clustering has it
    order[end_id] = 0
    order[n_special:] = 2 + np.arange(n_words)
    clusters = find_brown_clusters(order[np.where(ids < n_kept, ids, unknown_id)], 2 + n_words, 1 + n_classes)
    return clusters[2:]


def read_class_file(path: Path, words: Sequence[str]) -> np.ndarray:
    """Read the class of each given word from a file of lines ``WORD CLASS``, as mkcls writes: (n,) int64.

    Raises:
        FormatError: the file cannot be read, or a line is not a word and the name of a class.
        ConfigError: a word has no class.
    """
    class_of: dict[str, str] = {}
    for number, line in enumerate(corpus.read_lines(path), 1):
        match line.split():
            case []:
                continue
            case [word, name]:
                class_of[word] = name
            case _:
                raise FormatError("expected a word and its class", file=str(path), line=number)
    if missing := [word for word in words if word not in class_of]:
        raise ConfigError(
            f"{path}: {len(missing):,} words of the text have no class, such as {quote(missing[0])}; add "
            "them, or limit the vocabulary to the words of the file"
        )
    numbers: Mapping[str, int] = {name: i for i, name in enumerate(dict.fromkeys(class_of.values()))}
    return np.array([numbers[class_of[word]] for word in words])


MAX_DROPPED_SHOWN = 5
"""Number of kinds of dropped marks that a summary names."""
SMOOTHINGS = {
    "kneser-ney": smooth_kneser_ney,
    "katz": smooth_katz,
    "witten-bell": smooth_witten_bell,
    "none": keep_relative_frequencies,
}
"""Smoothing methods by name."""
UNKNOWN_ID, START_ID, END_ID = range(len(SPECIAL_WORDS))


@dataclass(frozen=True, slots=True)
class NGramOptions:
    """Order, cut-offs, vocabulary, smoothing and units of the model to estimate."""

    order: int = 4
    cutoffs: tuple[int, ...] = (0,)
    """For orders 1, 2, …: largest raw count that is pruned. The last number holds for all higher orders."""
    vocabulary: Path | None = None
    """File of the words to predict, one per line. Words that do not occur in the text are ignored."""
    vocabulary_size: int | None = None
    """Number of words to predict, the most frequent ones; None for all words."""
    count_unknown: bool = False
    """Count ``<unk>`` like any other word, whether it is in the text or replaces out-of-vocabulary words.

    Otherwise ``<unk>`` must not occur in the text. N-grams with an out-of-vocabulary word are counted and
    then pruned, as by lmplz with ``--limit_vocab_file``, and ``<unk>`` gets the probability of a word that
    never occurs.
    """
    smoothing: Literal["kneser-ney", "katz", "witten-bell", "none"] = "kneser-ney"
    classes: int = 0
    """Number of classes to learn for a model of n-grams of classes; 0 for n-grams of words."""
    class_file: Path | None = None
    """File of given classes, with lines ``WORD CLASS``."""
    skip: int = 0
    """Number of words between a context and the word that it predicts."""
    backward: bool = False
    """Count the n-grams of reversed sentences, so that the model predicts a word from those after it."""

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
    """Discounts, depending on the smoothing method.

    Kneser-Ney subtracts them from adjusted counts 1, 2 and 3 or more; Katz's method multiplies counts 1, 2, …
    by them; the others have none."""


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
    """Number of words in the text that are ``<unk>`` or that the vocabulary lacks."""
    vocabulary_size: int
    """Number of words in the model, including ``<unk>``, ``<s>`` and ``</s>``."""
    seconds: float
    n_dropped: int = 0
    """Number of marks in the text, such as ``|`` or ``[NOISE]``, that the normaliser dropped."""
    dropped: tuple[str, ...] = ()
    """The most frequent of these marks."""


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
        texts: files with one sentence per line, gzip or plain. Each is read twice, even a pipe.
        output: file to write. It is an ARPA file, gzip if the name ends in ``.gz``; an n-gram table if it
            ends in ``.ngram``, which models of classes or with a gap need; or a KenLM binary if it ends in
            one of ``BINARY_SUFFIXES``, for which KenLM's ``build_binary`` must be on the PATH. A binary
            cannot list its words, so these are written to a file next to it, ``model.words.txt`` for
            ``model.bin``. The normaliser is recorded in ``model.bin.text.json``, and the direction of a
            backward model in ``model.bin.direction.json``.
        engine: ``ours`` estimates in memory; ``lmplz`` runs KenLM's own tool, which works on disk.
        memory: memory for lmplz to sort in, in the format of its option ``-S``.

    Raises:
        ConfigError: options contradict one another or the text, or a tool is not installed.
        FormatError: a file cannot be read or written.
    """
    started = time.perf_counter()
    if engine not in ("ours", "lmplz"):
        raise ConfigError(f"engine is {engine!r}; expected ours or lmplz")
    if (options.classes or options.class_file or options.skip) and output.suffix != SUFFIX:
        raise ConfigError(
            f"{output} cannot hold a model of classes or with a gap; give a name that ends in {SUFFIX}"
        )
    if engine == "lmplz":
        find_tool("lmplz")  # fail now rather than after hours of work
        if options.count_unknown:
            raise ConfigError("lmplz cannot count <unk> as a word; use --engine ours")
        if options.smoothing != "kneser-ney" or output.suffix == SUFFIX:
            raise ConfigError("lmplz writes only ARPA files, with Kneser-Ney smoothing; use --engine ours")
    with pipes.keep_pipes(), atomic_output(output) as arpa:
        counts, dropped = corpus.count_words_and_marks(texts, normaliser)
        words, oov_words = choose_words(counts, options)
        if engine == "ours":
            orders, n_sentences = _estimate_in_memory(texts, normaliser, words, oov_words, arpa, options)
        else:
            vocabulary = words if oov_words else None
            sentences = corpus.read_sentences(texts, normaliser, "lmplz", backward=options.backward)
            sizes, n_sentences = run_lmplz(
                sentences, arpa, options.cutoffs, vocabulary=vocabulary, memory=memory
            )
            orders = tuple(OrderSummary(*size) for size in sizes)
    write_records(output, words, normaliser, backward=options.backward)
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
    """Divide the words of a text into those that will be in the model and all others.

    Returns:
        Two lists without special words, by falling count.

    Raises:
        ConfigError: a special word occurs in the text, or none of the vocabulary's words occurs in it.
        FormatError: the vocabulary cannot be read, or is not a word per line.
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
    vocabulary = {*corpus.read_vocabulary(options.vocabulary)}
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
    encoded = corpus.encode_text(
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
