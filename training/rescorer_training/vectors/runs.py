"""Training runs of word vectors: encoded texts, states and the training loop. Also, embeddings of networks.

The text of a run is encoded once. A run can continue exactly from its saved state, after its texts, its
options and all files in its folder have been checked.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, FormatError, quote
from rescorer.formats.io.text_io import make_folder
from rescorer.models.network_files import SPECIAL_TOKENS, Vocabulary
from rescorer.models.neural import SequenceModel, load_model
from rescorer.progress import track
from rescorer.safe_input import Folder
from rescorer.signals import hold_stops
from rescorer.text import Normaliser
from rescorer_training import corpus, pipes
from rescorer_training.state_files import check_options, read_state_file, write_state_file
from rescorer_training.vectors.files import WordVectors, read_vectors, report_full_disk

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


SOURCES_FILE = "sources.json"


@dataclass(frozen=True)
class SourceText:
    """Name, size and hash of a text when a run was started, to notice later whether it has changed.

    Size and hash of a pipe are None, because it can be read only once. A pipe counts as equal to every text.
    """

    name: str
    n_bytes: int | None
    sha256: str | None

    @classmethod
    def describe(cls, path: Path) -> SourceText:
        """Hash the content of a text; raises FormatError if the text cannot be read."""
        try:
            if pipes.is_pipe(path) or (path.exists() and not path.is_file()):
                return cls(str(path), None, None)
            with open(path, "rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                return cls(str(path), stream.tell(), digest)
        except OSError as error:
            raise FormatError(f"cannot be read: {error.strerror or error}", file=str(path)) from None

    def differs(self, other: SourceText) -> bool:
        return None not in (self.sha256, other.sha256) and self.sha256 != other.sha256

    def __str__(self) -> str:
        return self.name if self.n_bytes is None else f"{self.name} ({self.n_bytes:,} bytes)"


def record_sources(folder: Path, texts: Sequence[Path], normaliser: Normaliser) -> None:
    """Create the folder of a run, and record its normaliser and the names, sizes and hashes of its texts.

    Raises:
        FormatError: a text cannot be read.
        ScoringError: the disk is full.
    """
    sources = [asdict(SourceText.describe(path)) for path in texts]
    with report_full_disk(folder, "files of the run"):
        make_folder(folder)
        (folder / SOURCES_FILE).write_text(json.dumps(sources, indent=2) + "\n", encoding="utf-8")
        corpus.record_normaliser(folder, normaliser)


def start_text(texts: Sequence[Path], normaliser: Normaliser, folder: Path, min_count: int) -> EncodedText:
    """Record the sources of a new run, and prepare its text.

    Raises:
        ConfigError: the folder has a run, or fewer than two words occur ``min_count`` times.
        FormatError: a text cannot be read or has no words.
        ScoringError: the disk is full.
    """
    if (folder / VECTORS_STATE_FILE).exists():
        raise ConfigError(f"{folder} has a run already: continue it with --resume, or choose another folder")
    record_sources(folder, texts, normaliser)
    return prepare_text(texts, normaliser, folder, min_count)


def check_sources(folder: Path, texts: Sequence[Path], normaliser: Normaliser | None) -> None:
    """Check that a run was started with the same texts and the same normaliser.

    Args:
        normaliser: None to accept any recorded normaliser.

    Raises:
        FormatError: a text cannot be read.
        BundleError: a record is damaged.
        ConfigError: the folder has no run, or a text or the normaliser has changed. The error says which.
    """
    path = folder / SOURCES_FILE
    if not path.exists():
        raise ConfigError(f"{folder} has no run of word vectors to resume; start without --resume")
    try:
        before = [SourceText(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (TypeError, ValueError) as error:
        raise BundleError(f"{path} is damaged: {error}") from None
    recorded = corpus.recorded_normaliser(folder)
    if normaliser is not None and recorded is not None and normaliser.settings != recorded.settings:
        raise ConfigError(
            f"{folder}: the run was started with another normaliser; leave --normaliser out, or start again "
            "in another folder"
        )
    now = [SourceText.describe(text) for text in texts]
    if changes := _describe_changes(before, now):
        raise ConfigError(
            f"{folder}: the run was started with other texts: {changes}; start again in another folder"
        )


def _describe_changes(before: Sequence[SourceText], now: Sequence[SourceText]) -> str:
    """Describe the first difference between the texts before and now; empty if there is none."""
    if len(before) != len(now):
        return f"there were {len(before)} texts, now {len(now)}"
    for number, (old, new) in enumerate(zip(before, now, strict=True), start=1):
        if old.differs(new):
            return f"text {number} was {old}, is {new}" + (
                " with another content" if str(old) == str(new) else ""
            )
    return ""


VECTORS_STATE_FILE = "state.safetensors"
ADVICE = "restore a copy of it, or start the run again in another folder"

State = TypeVar("State")


class Run(NamedTuple):
    """A run of word vectors in a folder, with the options that it was started with."""

    folder: Path
    options: DataclassInstance

    @property
    def file(self) -> Path:
        return self.folder / VECTORS_STATE_FILE

    def save(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any], position: str) -> None:
        """Write a state; raises the errors of ``write_state_file``."""
        write_state_file(self.file, tensors, asdict(self.options), progress, position)

    def load(
        self,
        make: Callable[[Mapping[str, Tensor], Mapping[str, Any]], State],
        shapes: Mapping[str, tuple[int, ...]],
        described: str,
    ) -> State:
        """Restore a saved state, after checking it.

        Args:
            make: makes a state from tensors and progress; raises KeyError or TypeError if these do not fit.
            shapes: expected shape of each tensor.
            described: name for what the run trains, for errors.

        Raises:
            ConfigError: there is no saved state, or the run was started with other options. Only the number
                of epochs may change.
            BundleError: the state is damaged or belongs to another vocabulary.
        """
        if not self.file.exists():
            raise ConfigError(f"{self.folder} has no run of {described} to resume; start without --resume")
        metadata, tensors = read_state_file(self.file)
        try:
            saved, progress = json.loads(metadata["options"]), json.loads(metadata["progress"])
            state = make(tensors, progress)
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(f"{self.file} is not the state of a run of {described}: {error!r}") from None
        check_options(self.file, saved, asdict(self.options))
        for name, value in progress.items():
            values = value if isinstance(value, list) else [value]
            types = (int, float) if name == "seconds" or isinstance(value, list) else (int,)
            if not all(type(item) in types and 0 <= item < math.inf for item in values):
                raise BundleError(f"{self.file} is damaged: {name.replace('_', ' ')} is {value!r}; {ADVICE}")
        for name, shape in shapes.items():
            tensor, spelt = tensors[name], name.replace("_", " ")
            if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
                raise BundleError(
                    f"{self.file} is damaged: {spelt} of shape {tuple(tensor.shape)} and {tensor.dtype}; "
                    f"expected {shape} and {torch.float32}; {ADVICE}"
                )
            if not torch.isfinite(tensor).all():
                raise BundleError(
                    f"{self.file} is damaged: {spelt} with values that are not finite; {ADVICE}"
                )
        return state


IDS_FILE, VOCABULARY_FILE = "text.ids", "vocabulary.json"
MIN_WORDS = 2
"""Smallest number of words in a vocabulary. With a single word there is nothing to predict."""
MAX_COUNT = 1 << 48
"""Largest accepted count of a word. With this bound, sums of counts are exact."""


@dataclass(frozen=True)
class EncodedText:
    """A text as word ids.

    Words have the ids 0 … V-1, the most frequent one first. The id V marks the end of a sentence, and V + 1
    stands for any word that is too rare for the vocabulary.
    """

    words: tuple[str, ...]
    counts: np.ndarray
    """(V,) int64: occurrences of each word."""
    ids: np.ndarray
    """(n,) int32 ids, mapped from a file into memory."""

    @property
    def sentence_end(self) -> int:
        return len(self.words)

    @property
    def n_words(self) -> int:
        """Number of words in the text that are in the vocabulary."""
        return int(self.counts.sum())


def prepare_text(texts: Sequence[Path], normaliser: Normaliser, folder: Path, min_count: int) -> EncodedText:
    """Read texts, and write their words and ids to ``folder``.

    Raises:
        FormatError: a text cannot be read or has no words.
        ConfigError: fewer than two words occur ``min_count`` times.
        ScoringError: the disk is full.
    """
    with report_full_disk(folder, "words of the text"):
        make_folder(folder)
        vocabulary = folder / VOCABULARY_FILE
        vocabulary.unlink(missing_ok=True)  # written last, because it marks a complete text
        found, _ = corpus.number_words(texts, normaliser, folder / IDS_FILE, "reading text")
        entries = _choose_vocabulary(found, folder / IDS_FILE, min_count)
        vocabulary.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    return load_text(folder)


def _choose_vocabulary(found: Sequence[str], ids: Path, min_count: int) -> list[tuple[str, int]]:
    """Renumber the words of a text by falling frequency; return the words to keep, and their counts."""
    counts = corpus.count_ids(corpus.read_encoded(ids), len(found) + 1)[1:]
    by_count = np.argsort(-counts, kind="stable")
    kept = by_count[: int((counts >= min_count).sum())]
    if len(kept) < MIN_WORDS:
        raise ConfigError(
            f"{len(kept)} of the text's {len(found):,} distinct words occur {min_count} times or more; "
            f"expected at least {MIN_WORDS}: give more text, or a lower --min-count"
        )
    new_ids = np.full(len(found) + 1, len(kept) + 1, dtype=np.int32)
    new_ids[0] = len(kept)
    new_ids[kept + 1] = np.arange(len(kept), dtype=np.int32)
    corpus.renumber(ids, new_ids)
    return [(found[index], int(counts[index])) for index in kept]


def load_text(folder: Path) -> EncodedText:
    """Map the text of a folder, which ``prepare_text`` has written, into memory.

    Raises:
        ConfigError: the folder has no prepared text.
        BundleError: vocabulary or text is damaged or incomplete.
    """
    ids = folder / IDS_FILE
    if not ids.exists():
        raise ConfigError(f"{folder} has no run of word vectors; start one without --resume")
    words, counts = load_vocabulary(folder)
    if ids.stat().st_size % np.dtype(np.int32).itemsize:
        raise _damaged(ids, f"{ids.stat().st_size:,} bytes are not whole numbers of 4 bytes")
    text = EncodedText(words, counts, corpus.read_encoded(ids))
    _check_ids(text, ids)
    return text


def load_vocabulary(folder: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """Read the words of a prepared text, the most frequent first, and the count of each word, (V,) int64.

    Raises:
        ConfigError: the folder has no prepared text.
        BundleError: the vocabulary is damaged.
    """
    path = folder / VOCABULARY_FILE
    if not path.exists():
        raise ConfigError(f"{folder} has no run of word vectors; start one without --resume")
    try:
        entries = [(word, count) for word, count in json.loads(path.read_text(encoding="utf-8"))]
    except (TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    words = tuple(word for word, _ in entries)
    if len(words) < MIN_WORDS or not all(isinstance(word, str) and word for word in words):
        raise _damaged(path, f"expected at least {MIN_WORDS} words")
    if len(set(words)) < len(words):
        double = next(word for word, times in Counter(words).items() if times > 1)
        raise _damaged(path, f"{quote(double)} occurs twice")
    for word, count in entries:
        if type(count) is not int or not 0 < count < MAX_COUNT:
            raise _damaged(path, f"{quote(word)} has the count {count!r}, expected a whole number above 0")
    return words, np.array([count for _, count in entries], dtype=np.int64)


def _check_ids(text: EncodedText, path: Path) -> None:
    """Raise BundleError unless every word occurs in the text as often as the vocabulary says."""
    n_ids = len(text.words) + 2
    for block in corpus.iterate_blocks(text.ids):
        if block.min() < 0 or block.max() >= n_ids:
            raise _damaged(path, f"ids from {block.min()} to {block.max()}, expected 0 to {n_ids - 1}")
    found = corpus.count_ids(text.ids, n_ids)[: len(text.words)]
    if len(wrong := np.flatnonzero(found != text.counts)):
        word = wrong[0]
        message = f"{quote(text.words[word])} occurs {found[word]:,} times, expected {text.counts[word]:,}"
        raise _damaged(path, message)


def _damaged(path: Path, problem: str) -> BundleError:
    return BundleError(f"{path} is damaged: {problem}; start the run again in another folder")


@dataclass(frozen=True, slots=True)
class Coverage:
    """Number of words of a vocabulary that have a vector in a file."""

    n_covered: int
    """Number of words of the vocabulary that have a vector."""
    n_words: int
    """Number of words in the vocabulary."""

    def __str__(self) -> str:
        return f"{self.n_covered:,} of {self.n_words:,} words have a vector"


def read_known_vectors(
    path: Path, vocabulary: Vocabulary, dimensions: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read those vectors of a file that belong to words of a vocabulary; see ``read_vectors``.

    Returns:
        (K,) int64 ids of these words, and their (K, D) float32 vectors, in file order.

    Raises:
        FormatError: the file is invalid, has no vector of a word of the vocabulary, or has vectors with
            another number of dimensions.
    """
    vectors = read_vectors(path, keep=vocabulary.ids, dimensions=dimensions)
    return np.array([vocabulary.ids[word] for word in vectors.words]), vectors.matrix


def initialise_embedding(
    model: SequenceModel,
    vocabulary: Vocabulary,
    path: Path,
    frozen: bool = False,
    *,
    rescale: bool = True,
    zero_others: bool = False,
) -> Coverage:
    """Set the embeddings of words that have a vector in a file.

    Args:
        frozen: exclude the whole embedding from training, also words without a vector.
        rescale: multiply all vectors by the same factor, so that their root mean square equals that of the
            existing embedding. Directions and relative lengths do not change.
        zero_others: set the embeddings of all other words, ``<s>``, ``</s>`` and ``<unk>`` included, to zero.
            By default, they do not change.

    Raises:
        FormatError: the file is invalid, has no known word, or its vectors do not have the size of the
            embedding.
        ConfigError: ``frozen`` is set and the embedding is tied to the output layer's weights.
    """
    if frozen and model.config.tied:
        raise ConfigError(
            "a frozen embedding cannot be tied, because the output layer's word weights would be frozen too; "
            "untie them, or do not freeze the embedding"
        )
    weight = model.network.embedding.weight
    ids, vectors = read_known_vectors(path, vocabulary, weight.shape[1])
    size = math.sqrt(np.mean(np.square(vectors, dtype=np.float64)))
    with torch.no_grad():
        scale = float(weight.square().mean().sqrt()) / size if size and rescale else 1.0
        if zero_others:
            weight.zero_()
        rows = torch.from_numpy(ids).to(weight.device)
        weight[rows] = torch.from_numpy(vectors * np.float32(scale)).to(weight)
    weight.requires_grad_(not frozen)
    return Coverage(len(ids), len(vocabulary))


def export_embeddings(folder: Path | Folder, *, output: bool = False) -> WordVectors:
    """Return the vectors of the words of a network, without ``<s>``, ``</s>`` and ``<unk>``.

    Words are in the order of the network's vocabulary, that is, by word class.

    Args:
        folder: folder of a trained network of any kind.
        output: return the word weights of the output layer instead of the input embedding. If these are tied,
            both are the same.

    Raises:
        BundleError: the network cannot be read.
        ConfigError: the output layer has no vector per word, or the vocabulary has only special tokens.
    """
    path = folder.path if isinstance(folder, Folder) else folder
    model, vocabulary = load_model(folder)
    if output and model.config.output == "tree":
        raise ConfigError(
            f"{path}: a tree softmax has vectors of decisions, not of words; export the input embedding"
        )
    weight = model.output.word_weight if output else model.network.embedding.weight
    rows = [row for row, word in enumerate(vocabulary.words) if word not in SPECIAL_TOKENS]
    if not rows:
        raise ConfigError(f"{path}: the vocabulary has no words apart from special tokens")
    matrix = np.ascontiguousarray(weight.detach().float().numpy()[rows])
    return WordVectors(tuple(vocabulary.words[row] for row in rows), matrix)


SECONDS_BETWEEN_SAVES = 60.0


class Progress(Protocol):
    """The fields of a state that say how far training is."""

    n_parts: int
    """Number of parts trained on, over all epochs."""
    seconds: float
    """Time spent in training."""


class PartTrainer(ABC):
    """Trains for some epochs on an input that is divided into parts, such as pieces of a text.

    Each thread takes one part after another. After each round of parts, all threads wait for each other, so
    that the state can be saved. With one thread, the result depends only on the input, the options and the
    seed, even if the run is interrupted. Several threads change the same vectors without locks (Hogwild, Niu
    et al. 2011), as the original programs do, so that results vary a little between runs.

    Args:
        state: state from which training starts. Training changes it.
        parts_per_epoch: number of parts of the input.
        epochs: number of passes over all parts.
    """

    unit: ClassVar[str]
    """Name, in the plural, of the units that ``count`` counts: ``words``."""
    parts_per_round: ClassVar[int]
    """Maximum number of parts per round."""
    ends_rounds_with_epochs: ClassVar[bool] = False
    """Whether each epoch ends a round, even if the round has fewer parts then."""

    def __init__(self, state: Progress, parts_per_epoch: int, epochs: int) -> None:
        self._progress = state
        self.parts_per_epoch, self.n_parts = parts_per_epoch, parts_per_epoch * epochs

    @abstractmethod
    def count(self, parts: range) -> int:
        """Count the units in the given parts."""

    @abstractmethod
    def train_part(self, part: int) -> float:
        """Train on one part; return the sum of its losses, or 0 if they are not computed."""

    def finish_part(self, part: int, loss: float) -> None:  # noqa: B027 (by default, losses are not used)
        """Handle the loss of a part, in the order of the parts; raise ScoringError if training diverges."""

    @abstractmethod
    def finish_round(self, parts: range) -> str:
        """Return a note to show with the progress after a round; raise ScoringError if training diverges."""

    def train(self, threads: int, save: Callable[[], None]) -> None:
        """Train until the last epoch ends. SIGTERM and Ctrl-C take effect between two rounds, after saving.

        Args:
            threads: number of threads that train.
            save: called about once per minute between rounds, and at the end.

        Raises:
            ScoringError: training diverges.
        """
        state, last_save = self._progress, time.monotonic()
        with (
            hold_stops() as stop,
            _use_one_thread_per_operation(),
            track("training", self.unit, self.count(range(state.n_parts, self.n_parts))) as task,
            ThreadPoolExecutor(threads) as pool,
        ):
            while state.n_parts < self.n_parts:
                begin = time.monotonic()
                end = min(state.n_parts + self.parts_per_round, self.n_parts)
                if self.ends_rounds_with_epochs:
                    end = min(end, (state.n_parts // self.parts_per_epoch + 1) * self.parts_per_epoch)
                parts = range(state.n_parts, end)
                for part, loss in zip(parts, pool.map(self.train_part, parts), strict=True):
                    task.advance(self.count(range(part, part + 1)))
                    self.finish_part(part, loss)
                if note := self.finish_round(parts):
                    task.set_note(note)
                state.n_parts, now = parts.stop, time.monotonic()
                state.seconds += now - begin
                if stop.number or now - last_save > SECONDS_BETWEEN_SAVES:
                    save()
                    last_save = now
                stop.check()
        save()


@contextmanager
def _use_one_thread_per_operation() -> Iterator[None]:
    """Let torch use one thread per operation within the context, in which several threads train."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
