"""Prepare the text of a training run, and compute the perplexity of a network on it."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from rescorer.errors import ConfigError, FormatError, quote
from rescorer.models.network_files import TOKENIZER_FILE, Vocabulary
from rescorer.models.networks import State
from rescorer.models.neural import SequenceModel
from rescorer.terminal.progress import progress_bar
from rescorer.text import Normaliser
from rescorer.units.tokens import JsonTokenizer, import_library
from rescorer_training.batches import Sentences, StreamBatches, cut_into_batches
from rescorer_training.classes.partition import order_vocabulary
from rescorer_training.corpus import count_ids, number_words, read_encoded, read_vocabulary, renumber
from rescorer_training.neural import pieces
from rescorer_training.neural.options import TeacherOptions
from rescorer_training.pipes import find_size

MAX_LOG_PERPLEXITY = 700.0
"""Largest mean loss in nats of which a perplexity is computed. With more, it may not fit into a float64."""


def print_status(message: str) -> None:
    """Print a line on stderr, above a progress bar if one is shown."""
    tqdm.write(message, file=sys.stderr)


class Monitor:
    """Shows the progress of one training run, and writes one line per validation to ``log.jsonl``.

    Args:
        folder: folder of the run.
        quiet: report nothing. All processes of a group except the first are quiet.
        tensorboard: also write scalars to ``folder/tensorboard``.
        unit: name, in the plural, for what the network predicts: ``words``.

    Raises:
        ConfigError: ``tensorboard`` is set and TensorBoard is not installed.
    """

    def __init__(
        self, folder: Path, *, quiet: bool = False, tensorboard: bool = False, unit: str = "words"
    ) -> None:
        self.folder, self.quiet, self.unit = folder, quiet, unit
        self.bar: tqdm | None = None
        self._validation = ""  # shown next to the perplexity of training
        self.scalars = make_summary_writer(folder / "tensorboard") if tensorboard and not quiet else None

    def start(self, n_words: int, n_done: int) -> None:
        """Show a bar with words per second and the remaining time.

        Args:
            n_words: number of training words in the whole run.
            n_done: number of these words already trained on.
        """
        if not self.quiet:
            style: dict[str, Any] = {"unit_scale": True, "smoothing": 0.05, "unit": f" {self.unit}"}
            self.bar = progress_bar("training", total=n_words, initial=n_done, **style)

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Show the number of the epoch, counted from 1."""
        if self.bar is not None:
            self.bar.set_description_str(f"epoch {epoch} of {n_epochs}", refresh=False)

    def advance(self, n_words: int) -> None:
        """Advance the bar by a number of words."""
        if self.bar is not None:
            self.bar.update(n_words)

    def report_loss(
        self, step: int, mean_loss: float, learning_rate: float, gradients: Mapping[str, float]
    ) -> None:
        """Show the perplexity on the last few steps next to that of the last validation, and write the mean
        loss, in nats per word, as a scalar.

        Args:
            gradients: means over these steps of the columns of ``GradientClipper``, written as scalars, too.
        """
        if self.bar is not None:
            perplexity = math.exp(min(mean_loss, MAX_LOG_PERPLEXITY))
            self.bar.set_postfix_str(f"training perplexity {perplexity:.1f}{self._validation}", refresh=False)
        if self.scalars is not None:
            self.scalars.add_scalar("training/loss", mean_loss, step)
            self.scalars.add_scalar("training/learning_rate", learning_rate, step)
            for name, value in gradients.items():
                self.scalars.add_scalar(f"gradients/{name.replace(', ', '_').replace(' ', '_')}", value, step)
            words_per_second = self.bar.format_dict["rate"] if self.bar is not None else None
            if words_per_second:
                self.scalars.add_scalar("training/words_per_second", words_per_second, step)

    def report_validation(self, entry: dict[str, Any]) -> None:
        """Print an entry of ``Progress.reports``, and append it to the log."""
        if self.quiet:
            return
        self._validation = f", validation {entry['validation_perplexity']:.1f}"
        labels = {"training_perplexity": "training perplexity", "training_loss": "training loss"}
        training = next(f"{label} {entry[name]:8.2f}" for name, label in labels.items() if name in entry)
        print_status(
            f"epoch {entry['epoch']:3d}  step {entry['step']:7,}  {training}  "
            f"validation {entry['validation_perplexity']:8.2f}  {entry['seconds'] / 60:6.1f} min"
        )
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        if self.scalars is not None:
            self.scalars.add_scalar("validation/perplexity", entry["validation_perplexity"], entry["step"])

    def rewind(self, reports: Sequence[dict[str, Any]]) -> None:
        """Remove from the log the validations after a checkpoint, because they will be repeated.

        Args:
            reports: validations before the checkpoint.
        """
        if not self.quiet:
            lines = "".join(json.dumps(entry) + "\n" for entry in reports)
            (self.folder / "log.jsonl").write_text(lines, encoding="utf-8")

    def close(self) -> None:
        """Close the bar and the scalar writer."""
        if self.bar is not None:
            self.bar.close()
        if self.scalars is not None:
            self.scalars.close()


def make_summary_writer(folder: Path) -> Any:
    """Return TensorBoard's writer; raises ConfigError if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("--tensorboard needs TensorBoard: pip install 'rescorer[training]'") from None
    return SummaryWriter(str(folder))


NO_LIMIT = 1 << 30
"""Maximum length of validation sentences. No sentence is so long, so that none is truncated."""
VOCABULARY_FILE, TRAIN_FILE, VALIDATION_FILE = "vocabulary.txt", "train.ids", "validation.ids"
TRAIN_TOPICS_FILE, VALIDATION_TOPICS_FILE = "train.topics.npy", "validation.topics.npy"
"""Files of topic features, one row per sentence. They exist if the network of the run reads topics."""
UNITS_FILE = "units.json"
"""File with the mean number of units per word of each text. It exists if the run has pieces of words."""
CORPORA_FILE = "corpora.json"
"""File with the sentence count and weight of each training text. It exists unless all weights are 1."""


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Inputs of a training run and the folder of its results.

    Raises:
        ConfigError: the units are invalid, their library is not installed, or another run has units already.
    """

    texts: list[Path]
    validation: Path
    folder: Path
    normaliser: Normaliser
    longest: int = 200
    """Maximum number of words per training sentence; longer sentences are truncated."""
    start_from: Path | None = None
    """Folder of another run; training starts from its best model and its vocabulary."""
    weights: tuple[float, ...] = ()
    """For each text, the mean number of times per epoch that a sentence is drawn. Empty: once each."""
    teacher: TeacherOptions = field(default_factory=TeacherOptions)
    units: str | None = None
    """Pieces of words to train in, such as ``bpe:8000``; None: words, or the units of ``start_from``."""

    @property
    def has_pieces(self) -> bool:
        """Whether the network of the run predicts pieces of words."""
        start = self.start_from
        return self.units is not None or (start is not None and (start / TOKENIZER_FILE).exists())

    def __post_init__(self) -> None:
        if self.units is not None:
            pieces.UnitKind.parse(self.units)
            import_library("tokenizers")
            if self.start_from is not None:
                raise ConfigError("--start-from takes the units of the run it starts from; leave out --units")
        if self.has_pieces and self.teacher.teacher is not None:
            raise ConfigError("--teacher teaches words, and this network predicts pieces of words")

    def identity(self) -> dict[str, Any]:
        """Return, as plain data, the inputs that must stay the same when the run is resumed."""
        return {
            "texts": [[path.name, find_size(path)] for path in self.texts],
            "text_weights": list(self.weights),
            "validation_text": [self.validation.name, find_size(self.validation)],
            "normaliser": json.loads(self.normaliser.settings.to_json()),
            "longest": self.longest,
            "start_from": str(self.start_from) if self.start_from else None,
            **self.teacher.identity(),
            "units": self.units,
        }


@dataclass(frozen=True)
class PreparedText:
    """Training and validation text as word ids."""

    vocabulary: Vocabulary
    train: Sentences
    validation: Sentences
    has_pieces: bool = False
    """Whether the ids are pieces of words."""

    def counts(self) -> np.ndarray:
        """Count how often each word that can be predicted occurs in the training text: (V - 1,)."""
        return count_ids(self.train.ids, len(self.vocabulary))[:-1]

    def unigram_perplexity(self) -> float:
        """Return the perplexity of the validation text under the word frequencies of the training text.

        Every network should do much better, because these frequencies, with add-one smoothing, use no
        context. It is a perplexity per word also if the network predicts pieces of words.
        """
        smoothed = self.counts() + 1
        occurrences = count_ids(self.validation.ids, len(self.vocabulary))[:-1]
        log_probs = np.log(smoothed / smoothed.sum())  # (V - 1,)
        mean = -(occurrences @ log_probs) / occurrences.sum()
        return math.exp(min(mean * self.validation.units_per_word, MAX_LOG_PERPLEXITY))


def choose_vocabulary(counts: Mapping[str, int], file: Path | None, size: int) -> Vocabulary:
    """Return the words of ``file`` (one per line); without a file, the ``size`` most frequent words."""
    if file is None:
        return order_vocabulary(counts, sorted(counts, key=counts.__getitem__, reverse=True)[:size])
    return order_vocabulary(counts, read_vocabulary(file))


def prepare_text(
    inputs: RunInputs,
    vocabulary: Vocabulary | Path | None = None,
    *,
    size: int = 50_000,
    backward: bool = False,
) -> PreparedText:
    """Encode the texts of a run into its folder, reading and normalising each one once.

    Args:
        vocabulary: vocabulary of another model, or a file of words. None for the ``size`` most frequent
            words.
        backward: reverse the words of each sentence, for a backward network.

    Raises:
        FormatError: a text cannot be read, has fewer than two distinct words, or has none of the
            vocabulary's words.
    """
    folder, texts = inputs.folder, ", ".join(map(str, inputs.texts))
    for name in (TOKENIZER_FILE, UNITS_FILE):
        (folder / name).unlink(missing_ok=True)
    read = partial(number_words, normaliser=inputs.normaliser, backward=backward)
    words, n_sentences = read(inputs.texts, output=folder / TRAIN_FILE, progress="reading training text")
    if len(words) < 2:
        only = quote(words[0])
        raise FormatError(f"the only word is {only}; expected at least two distinct words", file=texts)
    numbers = count_ids(read_encoded(folder / TRAIN_FILE), len(words) + 1)[1:].tolist()
    counts, tokenizer = dict(zip(words, numbers, strict=True)), None
    if inputs.has_pieces:
        tokenizer = _prepare_tokenizer(inputs, counts)
        vocabulary = pieces.make_vocabulary(tokenizer)
    elif not isinstance(vocabulary, Vocabulary):
        vocabulary = choose_vocabulary(counts, vocabulary, size)
    vocabulary.save(folder / VOCABULARY_FILE)
    ratios = {TRAIN_FILE: _encode(folder / TRAIN_FILE, words, vocabulary, tokenizer, texts)}
    (folder / CORPORA_FILE).unlink(missing_ok=True)
    if set(inputs.weights) - {1.0}:
        corpora = list(zip(n_sentences, inputs.weights, strict=True))
        (folder / CORPORA_FILE).write_text(json.dumps(corpora))
    words, _ = read([inputs.validation], output=folder / VALIDATION_FILE, progress="reading validation text")
    ratios[VALIDATION_FILE] = _encode(
        folder / VALIDATION_FILE, words, vocabulary, tokenizer, str(inputs.validation)
    )
    if tokenizer is not None:
        (folder / UNITS_FILE).write_text(json.dumps(ratios))
    return load_prepared(folder, inputs.longest)


def _prepare_tokenizer(inputs: RunInputs, counts: Mapping[str, int]) -> JsonTokenizer:
    """Train the tokenizer of a run on the words of its text, or copy that of the run it starts from."""
    file = inputs.folder / TOKENIZER_FILE
    if inputs.units is not None:
        print_status(f"training the tokenizer {inputs.units}")
        file.write_bytes(pieces.train_tokenizer(pieces.UnitKind.parse(inputs.units), counts))
    else:
        assert inputs.start_from is not None
        shutil.copyfile(inputs.start_from / TOKENIZER_FILE, file)
    return pieces.read_tokenizer(inputs.folder)


def _encode(
    path: Path, words: Sequence[str], vocabulary: Vocabulary, tokenizer: JsonTokenizer | None, text: str
) -> float:
    """Encode numbered words as ids of the vocabulary; return the mean number of ids per word."""
    if tokenizer is not None:
        return pieces.encode_pieces(path, words, tokenizer, vocabulary.end)
    encode_numbered(path, words, vocabulary, text)
    return 1.0


def encode_numbered(path: Path, words: Sequence[str], vocabulary: Vocabulary, text: str) -> None:
    """Replace the numbers in a file that ``number_words`` wrote by the ids of a vocabulary.

    Args:
        words: the words in the order of their numbers.
        text: name of the text, for errors.

    Raises:
        FormatError: the vocabulary has none of the words.
    """
    if not any(map(vocabulary.is_known, words)):
        raise FormatError(
            f"the vocabulary has none of the text's {len(words):,} distinct words, such as {quote(words[0])}"
            "; check that letter case and normaliser match",
            file=text,
        )
    new_ids = np.append(vocabulary.end, vocabulary.encode(words)).astype(np.int32)
    renumber(path, new_ids)


def reorder(folder: Path, vocabulary: Vocabulary, order: np.ndarray) -> None:
    """Give the words of a prepared run new ids, in the vocabulary and in the encoded texts.

    Args:
        order: (V - 1,) old id of each new id.
    """
    words = [vocabulary.words[i] for i in order]
    Vocabulary((*words, *vocabulary.words[-1:])).save(folder / VOCABULARY_FILE)
    new_ids = np.empty(len(order), dtype=np.int32)
    new_ids[order] = np.arange(len(order), dtype=np.int32)
    for name in (TRAIN_FILE, VALIDATION_FILE):
        renumber(folder / name, new_ids)


def load_prepared(folder: Path, longest: int) -> PreparedText:
    """Map the text that ``prepare_text`` wrote to ``folder`` into memory.

    Args:
        longest: maximum number of words per training sentence; longer sentences are truncated.

    Raises:
        ConfigError: the folder has no prepared text.
    """
    if not (folder / VALIDATION_FILE).exists():
        raise ConfigError(f"{folder} has no training run; start one without --resume")
    vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
    corpora: tuple[tuple[int, float], ...] = ()
    if (folder / CORPORA_FILE).exists():
        corpora = tuple((n, weight) for n, weight in json.loads((folder / CORPORA_FILE).read_text()))
    has_pieces = (folder / UNITS_FILE).exists()
    ratios = json.loads((folder / UNITS_FILE).read_text()) if has_pieces else {}
    # in pieces one unit begins and ends texts, as in other toolkits, so that no row is for <s> only
    start_id, end_id = (vocabulary.end if has_pieces else vocabulary.start), vocabulary.end

    def load(name: str, topics: str, max_words: int, corpora: tuple[tuple[int, float], ...]) -> Sentences:
        file = folder / topics
        features = np.load(file, mmap_mode="r", allow_pickle=False) if file.exists() else None
        return Sentences.from_ids(
            read_encoded(folder / name), start_id=start_id, end_id=end_id, max_words=max_words,
            corpora=corpora, topics=features, units_per_word=ratios.get(name, 1.0),
        )  # fmt: skip

    train = load(TRAIN_FILE, TRAIN_TOPICS_FILE, longest, corpora)
    validation = load(VALIDATION_FILE, VALIDATION_TOPICS_FILE, NO_LIMIT, ())
    return PreparedText(vocabulary, train, validation, has_pieces)


MAX_COLUMNS = 64
"""Maximum number of columns to compute in one pass. It limits the memory for long sentences."""
BATCH_WORDS = 8192
"""Maximum number of words per batch of sentences, including padding."""
N_STREAMS = 16
"""Number of text positions that a network with carried state reads in parallel."""
WARM_UP_WORDS = 256
"""Number of words that a network reads before each stream, without scoring them.

So many suffice to approximate the state after all of the preceding text."""
MIN_STREAM_WORDS = 2048
"""Minimum number of words per stream. Short texts have fewer streams, so that the warm-up stays cheap."""


@torch.no_grad()
def perplexity(
    model: SequenceModel,
    text: Sentences,
    streams: int = N_STREAMS,
    on_batch: Callable[[], object] = lambda: None,
) -> float:
    """Return exp of the mean −ln P per word, including ``</s>``. P is always exactly normalised.

    It is per word also for a network that predicts pieces of words, so that it can be compared with others.
    In n-best rescoring, a network with carried state has another perplexity: unless the request has the text
    before, a sentence starts there from the start state and ``</s>``.

    Args:
        on_batch: called after each batch. If it raises an exception, the computation ends.
    """
    total, n = 0.0, 0
    for hidden, words in iterate_contexts(model, text, streams):
        total += float(model.output.loss(hidden, words))
        n += len(words)
        on_batch()
    mean = total / n * text.units_per_word
    return math.inf if mean > MAX_LOG_PERPLEXITY else math.exp(mean)


@torch.no_grad()
def iterate_contexts(
    model: SequenceModel, text: Sentences, streams: int = N_STREAMS
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield context vectors, (N, D), and the words to predict from them, (N,), until all words are done.

    Dropout is off. A network that resets its state starts every sentence from the start state. A network that
    carries its state reads the text in order, starting from the start state and ``</s>``.

    Args:
        streams: number of positions of the text that a network with carried state reads in parallel.
    """
    was_training = model.training
    model.eval()
    try:
        if model.config.carried:
            n_streams = max(1, min(streams, len(text.ids) // MIN_STREAM_WORDS))
            yield from _iterate_streams(model, text, n_streams)
        else:
            order = np.argsort(text.lengths, kind="stable")
            for chosen in cut_into_batches(order, text.lengths, BATCH_WORDS):
                yield from _iterate_rows(model, *text.pad_rows(chosen), text.topics_of(chosen), None)
    finally:
        model.train(was_training)


def _iterate_streams(
    model: SequenceModel, text: Sentences, n_streams: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Read the text at several positions in parallel, after a warm-up at each of them."""
    state = model.network.initial_state(1)
    ids = text.ids
    streams = StreamBatches(ids, n_streams, -(-len(ids) // n_streams), sentences=text)
    if n_streams > 1:
        starts = np.arange(1, n_streams)[:, None] * streams.stream_length
        positions = starts + np.arange(-WARM_UP_WORDS, 0)  # (n_streams - 1, W)
        warm_up = torch.from_numpy(ids[positions - 1].astype(np.int64)).to(_device(model))
        before = model.network.initial_state(n_streams - 1)
        _, warm_state = model.context_vectors(warm_up, before, _to_device(model, text.topics_at(positions)))
        state = tuple(torch.cat(pair) for pair in zip(state, warm_state, strict=True))
    yield from _iterate_rows(model, *streams.make_rows(0), streams.make_topics(0), state)


def _iterate_rows(
    model: SequenceModel,
    inputs: np.ndarray,
    targets: np.ndarray,
    topics: np.ndarray | None,
    state: State | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield context vectors and targets of (B, T) inputs and targets, with (B, T or 1, K) topics.

    If the model is causal, chunks of columns are processed one after another.
    """
    device = _device(model)
    width = MAX_COLUMNS if model.is_causal else inputs.shape[1]
    for begin in range(0, inputs.shape[1], width):
        chunk = slice(begin, begin + width)
        chunk_inputs = torch.from_numpy(inputs[:, chunk]).to(device)
        chunk_targets = torch.from_numpy(targets[:, chunk]).to(device)
        is_constant = topics is None or topics.shape[1] == 1
        chunk_topics = _to_device(model, topics if is_constant or topics is None else topics[:, chunk])
        hidden, state = model.context_vectors(chunk_inputs, state, chunk_topics)
        is_word = chunk_targets >= 0  # padding has the target -1
        yield hidden[is_word], chunk_targets[is_word]


def _to_device(model: SequenceModel, topics: np.ndarray | None) -> Tensor | None:
    return None if topics is None else torch.from_numpy(topics).to(_device(model))


def _device(model: SequenceModel) -> torch.device:
    return next(model.parameters()).device
