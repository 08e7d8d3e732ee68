"""Classify sentences, or the words of a sentence, with the networks and the training loop of language models.

One text per class comes in, with one sentence per line. A classifier and its predictions come out, with their
accuracy compared with naive Bayes. A classifier consists of context networks in one or two directions,
pooling, and a softmax over the classes. Bidirectional recurrent networks are those of Schuster & Paliwal
(1997). As in ELMo (Peters et al. 2018), the two directions are separate networks that share the word
embedding, and their vectors are concatenated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, FormatError
from rescorer.evaluation.statistics import wilson_interval
from rescorer.formats.io.text_io import write_text
from rescorer.models.network_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    NetworkConfig,
    Shapes,
    Vocabulary,
    check_tensors,
    parameter_shapes,
    read_vocabulary,
)
from rescorer.models.networks import ContextNetwork, State
from rescorer.models.neural import NETWORKS, SequenceModel, load_weights
from rescorer.models.outputs import FullSoftmax
from rescorer.safe_input import Folder
from rescorer.text import Normaliser
from rescorer_training import corpus, pipes
from rescorer_training.batches import LONGEST, LabelledSentences, Sentences, cut_into_batches, label
from rescorer_training.neural.build import load_embeddings, name_activation, set_defaults_of_kind
from rescorer_training.neural.checkpoint import STATE_FILE, ProcessGroup
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.prepare import Monitor, choose_vocabulary, encode_numbered, print_status
from rescorer_training.neural.train import Trainer, TrainingRun, compute_fingerprint
from rescorer_training.progress import option

POOLINGS = ("mean", "last", "none")
MAX_LABELS = 10_000
MAX_LABEL_LENGTH = 200
MAX_LONGEST = 100_000
NETWORK_PREFIX, REVERSE_PREFIX = "network.", "reverse."


def share_option(group: type, name: str) -> Any:
    """Define a field with the default and the help that ``name`` has in another group of options."""
    original = next(found for found in fields(group) if found.name == name)
    assert original.default is not MISSING
    return field(default=original.default, metadata=original.metadata)


@dataclass(frozen=True, slots=True)
class ClassifierOptions:
    """Options of a classifier's networks. Most are options of language models."""

    kind: str | None = share_option(NetworkOptions, "kind")
    embedding_size: int | None = share_option(NetworkOptions, "embedding_size")
    hidden_size: int | None = share_option(NetworkOptions, "hidden_size")
    layers: int | None = share_option(NetworkOptions, "layers")
    bidirectional: bool = option(
        True,
        "Read sentences in both directions with a network each, or only forward.",
        "--bidirectional/--forward",
    )
    pooling: str = option(
        "mean",
        "Vector of a sentence: the mean of the vectors of its words and its end, or the last vector of each "
        "direction.",
        metavar="mean|last",
    )
    activation: str | None = share_option(NetworkOptions, "activation")
    gru_reset: str | None = share_option(NetworkOptions, "gru_reset")
    window: int | None = share_option(NetworkOptions, "window")
    heads: int | None = share_option(NetworkOptions, "heads")
    residual: bool | None = share_option(NetworkOptions, "residual")
    embeddings: str | None = share_option(NetworkOptions, "embeddings")
    freeze_embeddings: bool | None = share_option(NetworkOptions, "freeze_embeddings")
    unknown_rows: str | None = share_option(NetworkOptions, "unknown_rows")
    rescale_embeddings: bool | None = share_option(NetworkOptions, "rescale_embeddings")
    longest: int | None = option(
        None,
        f"Number of words per text, with its end; longer ones are cut, with a warning; default {LONGEST}.",
        min=1,
    )
    dropout: float = share_option(NetworkOptions, "dropout")
    locked_dropout: bool | None = share_option(NetworkOptions, "locked_dropout")
    weight_dropout: float | None = share_option(NetworkOptions, "weight_dropout")
    embedding_dropout: float | None = share_option(NetworkOptions, "embedding_dropout")


@dataclass(frozen=True, slots=True)
class ClassifierTraining:
    """Those options of ``TrainingOptions`` that make sense for classifiers."""

    epochs: int = option(5, "Number of passes over the training text.")
    batch_words: int = share_option(TrainingOptions, "batch_words")
    learning_rate: float = share_option(TrainingOptions, "learning_rate")
    warmup_steps: int = share_option(TrainingOptions, "warmup_steps")
    gradient_clip: float = share_option(TrainingOptions, "gradient_clip")
    weight_decay: float = share_option(TrainingOptions, "weight_decay")
    validations_an_epoch: int = share_option(TrainingOptions, "validations_an_epoch")
    patience: int = share_option(TrainingOptions, "patience")
    bfloat16: bool = share_option(TrainingOptions, "bfloat16")
    seed: int = share_option(TrainingOptions, "seed")
    schedule: str = share_option(TrainingOptions, "schedule")
    average: str = share_option(TrainingOptions, "average")

    def complete(self) -> TrainingOptions:
        """Return all options of the training loop; raises ConfigError if a value is out of range."""
        return TrainingOptions(**asdict(self))


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    """Configuration of a classifier, stored as ``config.json``.

    ``NetworkConfig.from_dict`` refuses such a file, so that a classifier cannot be loaded as a language
    model.

    Raises:
        BundleError: a value is out of range, or the network is that of a language model.
    """

    network: NetworkConfig
    """The network of each direction. Its output layer is not used."""
    labels: tuple[str, ...]
    """Names of the classes, in the order of their numbers."""
    bidirectional: bool = False
    pooling: str = "mean"
    """``mean`` or ``last``, a vector and a label per sentence; or ``none``, a label per word."""
    longest: int = LONGEST
    """Number of words, with the end of the text, to which longer texts are cut."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise BundleError(f"pooling is {self.pooling!r:.100}; expected one of {', '.join(POOLINGS)}")
        if type(self.bidirectional) is not bool:
            raise BundleError(f"bidirectional is {self.bidirectional!r:.100}; expected true or false")
        if type(self.longest) is not int or not 1 <= self.longest <= MAX_LONGEST:
            raise BundleError(f"longest is {self.longest!r:.100}; expected 1 to {MAX_LONGEST:,} words")
        network = self.network
        is_language_model = network.tied or network.carried or network.backward or network.n_features
        if network.output != "full" or is_language_model:
            raise BundleError(
                "the network has the output layer, the state or the topics of a language model; expected "
                "output 'full', no topics or tags, and false for tied, carried and backward"
            )
        if not 2 <= len(self.labels) <= MAX_LABELS:
            raise BundleError(f"{len(self.labels)} labels; expected 2 to {MAX_LABELS:,}")
        for name in self.labels:
            if type(name) is not str or not 0 < len(name) <= MAX_LABEL_LENGTH or not name.isprintable():
                raise BundleError(
                    f"label {ascii(name)[:100]}; expected 1 to {MAX_LABEL_LENGTH} printable characters"
                )
        if len(set(self.labels)) < len(self.labels):
            twice = next(label for label in self.labels if self.labels.count(label) > 1)
            raise BundleError(f"label {twice!r} occurs twice; expected distinct labels")

    @property
    def carried(self) -> bool:
        return self.network.carried

    @property
    def tied(self) -> bool:
        return self.network.tied

    @property
    def dropout(self) -> float:
        return self.network.dropout

    @property
    def locked_dropout(self) -> bool:
        return self.network.locked_dropout

    @property
    def tied_copy(self) -> str | None:
        """Name of the reverse network's embedding, which is the same as the forward network's."""
        return f"{REVERSE_PREFIX}embedding.weight" if self.bidirectional else None

    def parameter_shapes(self) -> Shapes:
        """Return the shape of every tensor in a checkpoint of this classifier, by name."""
        shapes = {
            name: shape
            for name, shape in parameter_shapes(self.network).items()
            if name.startswith(NETWORK_PREFIX)
        }
        if self.bidirectional:
            reverse = {
                name.replace(NETWORK_PREFIX, REVERSE_PREFIX, 1): shape for name, shape in shapes.items()
            }
            shapes |= {name: shape for name, shape in reverse.items() if name != self.tied_copy}
        size = self.network.embedding_size * (1 + self.bidirectional)
        return shapes | {
            "output.word_weight": (len(self.labels), size),
            "output.word_bias": (len(self.labels),),
        }

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data that ``from_dict`` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ClassifierConfig:
        """Build a config from plain data.

        Raises:
            BundleError: a setting is unknown, missing or out of range.
        """
        expected = [known.name for known in fields(cls)]
        if {*values, "longest"} != set(expected):  # files of earlier versions lack "longest"
            raise BundleError(
                f"not the configuration of a classifier: the settings are {str(sorted(values))[:200]}; "
                f"expected {', '.join(expected)}"
            )
        if not isinstance(values["network"], dict) or not isinstance(values["labels"], list):
            raise BundleError("network must be a JSON object and labels a list")
        network = NetworkConfig.from_dict(values["network"])
        return cls(**(values | {"network": network, "labels": tuple(values["labels"])}))


def make_config(
    options: ClassifierOptions, vocabulary_size: int, labels: tuple[str, ...]
) -> ClassifierConfig:
    """Complete the given options with defaults.

    Raises:
        BundleError: options are out of range or do not fit the kind of network.
    """
    known = {item.name for item in fields(NetworkConfig)}
    settings = {name: value for name, value in asdict(options).items() if value is not None and name in known}
    set_defaults_of_kind(settings)
    network = NetworkConfig(vocabulary_size=vocabulary_size, output="full", tied=False, **settings)
    longest = LONGEST if options.longest is None else options.longest
    return ClassifierConfig(network, labels, options.bidirectional, options.pooling, longest)


class Classifier(SequenceModel):
    """Predict the label of each sentence (many-to-one), or of each of its words (many-to-many).

    A classifier is not a ``NeuralModel`` and cannot score words, so nothing can use it as a language model.
    """

    config: ClassifierConfig

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.network = NETWORKS[config.network.kind](config.network)
        self.reverse: ContextNetwork | None = None
        size = self.network.output_size
        if config.bidirectional:
            self.reverse = NETWORKS[config.network.kind](config.network)
            self.reverse.embedding = self.network.embedding
            size += self.reverse.output_size
        self.output = FullSoftmax(size, len(config.labels))

    def context_vectors(
        self,
        inputs: Tensor,
        state: State | None = None,
        topics: Tensor | None = None,
        *,
        bfloat16: bool = False,
    ) -> tuple[Tensor, State]:
        """Compute the vectors of sentences or of their words; topics are not read.

        Args:
            inputs: (B, T) words, padded at the end with ``<s>``.

        Returns:
            (B, 1, D) float32 for labels of sentences, or (B, T, D) for labels of words; and an empty state.
        """
        lengths = (inputs != self.config.network.vocabulary_size - 1).sum(1)  # (B,)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bfloat16):
            directions = [self._pool(self.network(inputs)[0], lengths)]
            if self.reverse is not None:
                order = reversed_positions(lengths, inputs.shape[1])
                vectors, _ = self.reverse(inputs.gather(1, order))
                pooled = self._pool(vectors, lengths)
                if self.config.pooling == "none":
                    pooled = pooled.gather(1, order.unsqueeze(2).expand_as(pooled))
                directions.append(pooled)
        return torch.cat(directions, dim=2).float(), ()

    def _pool(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Reduce the vectors of one direction, (B, T, D) in reading order, to (B, 1, D)."""
        if self.config.pooling == "none":
            return vectors
        positions = torch.arange(vectors.shape[1], device=vectors.device)
        if self.config.pooling == "last":
            chosen = positions == lengths.unsqueeze(1) - 1  # (B, T)
            return vectors[chosen].unsqueeze(1)
        is_word = (positions < lengths.unsqueeze(1)).unsqueeze(2)  # (B, T, 1)
        return (vectors * is_word).sum(1, keepdim=True) / lengths.view(-1, 1, 1)


def reversed_positions(lengths: Tensor, n_columns: int) -> Tensor:
    """Return positions, (B, T) int64, that reverse the words of each row but not its padding.

    >>> reversed_positions(torch.tensor([2, 3]), 3).tolist()
    [[1, 0, 2], [2, 1, 0]]
    """
    positions = torch.arange(n_columns, device=lengths.device)
    ends = lengths.unsqueeze(1)
    return torch.where(positions < ends, ends - 1 - positions, positions)


def load_classifier(folder: Path) -> tuple[Classifier, Vocabulary]:
    """Load a classifier in float32 and evaluation mode.

    The sizes in the three files are compared before anything is built.

    Raises:
        BundleError: a file is missing or damaged, the files do not fit together, or they are files of a
            language model.
    """
    files = Folder(folder)
    values = files.read_json(CONFIG_FILE)
    try:
        config = ClassifierConfig.from_dict(values)
    except BundleError as error:
        raise BundleError(f"{folder / CONFIG_FILE}: {error}") from None
    with files.open(WEIGHTS_FILE) as stream:
        check_tensors(stream, config.parameter_shapes())
    vocabulary = read_vocabulary(files, config.network)
    model = Classifier(config)
    load_weights(model, files)
    return model, vocabulary


LENGTH_BOUNDS = (1, 2, 4, 7, 11, 16, 26)
"""Groups of sentences by length, for reports: the smallest number of words of each group."""


@dataclass(frozen=True)
class Accuracy:
    """Predictions of a classifier for labelled sentences."""

    labels: tuple[str, ...]
    truth: np.ndarray
    """(S,) number of the label of each sentence."""
    predicted: np.ndarray
    """(S,) number of the predicted label."""
    n_words: np.ndarray
    """(S,) number of words of each sentence."""

    @property
    def is_correct(self) -> np.ndarray:
        """Whether each prediction is correct, (S,) bool."""
        return np.asarray(self.truth == self.predicted)

    @property
    def share(self) -> float:
        """Share of correct predictions."""
        return float(self.is_correct.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share; see ``wilson_interval``."""
        return wilson_interval(int(self.is_correct.sum()), len(self.truth))

    @property
    def confusions(self) -> np.ndarray:
        """Number of sentences of each class (row) that were predicted as each class (column), (C, C)."""
        n = len(self.labels)
        return np.bincount(self.truth * n + self.predicted, minlength=n * n).reshape(n, n)

    def recall(self) -> list[float | None]:
        """Share of the sentences of each class that are predicted correctly; None without sentences."""
        return _ratios(self.confusions.diagonal(), self.confusions.sum(axis=1))

    def precision(self) -> list[float | None]:
        """Share of the predictions of each class that are correct; None without predictions."""
        return _ratios(self.confusions.diagonal(), self.confusions.sum(axis=0))

    def by_length(self) -> dict[str, tuple[int, float]]:
        """Number of sentences and share of correct predictions, by group of lengths."""
        groups: dict[str, tuple[int, float]] = {}
        group = np.searchsorted(LENGTH_BOUNDS, self.n_words, side="right") - 1
        for number, least in enumerate(LENGTH_BOUNDS):
            chosen = self.is_correct[group == number]
            if len(chosen):
                groups[_name_lengths(number, least)] = (len(chosen), float(chosen.mean()))
        return groups


def _name_lengths(number: int, least: int) -> str:
    if number + 1 == len(LENGTH_BOUNDS):
        return f"{least} or more"
    most = LENGTH_BOUNDS[number + 1] - 1
    return f"{least}" if most == least else f"{least} to {most}"


def _ratios(parts: np.ndarray, wholes: np.ndarray) -> list[float | None]:
    return [float(part / whole) if whole else None for part, whole in zip(parts, wholes, strict=True)]


SMOOTHING = 1.0
"""Number that naive Bayes adds to the count of every word in every class (Laplace)."""


@dataclass(frozen=True)
class NaiveBayes:
    """A naive Bayes classifier, estimated from counts."""

    log_priors: np.ndarray
    """(C,) float64 ln P(class)."""
    log_probs: np.ndarray
    """(C, V) float64 ln P(word | class).

    ``</s>`` counts as a word, so that many sentence ends point to a class of short sentences."""

    @classmethod
    def fit(cls, text: LabelledSentences, n_labels: int, n_words: int) -> NaiveBayes:
        """Count the words of training sentences.

        Args:
            n_words: size of the vocabulary.
        """
        ids, sentence = _flatten(text)
        pairs = text.labels[sentence] * n_words + ids
        counts = np.bincount(pairs, minlength=n_labels * n_words).reshape(n_labels, n_words) + SMOOTHING
        priors = np.bincount(text.labels, minlength=n_labels) + SMOOTHING
        return cls(np.log(priors / priors.sum()), np.log(counts / counts.sum(axis=1, keepdims=True)))

    def predict(self, text: LabelledSentences) -> np.ndarray:
        """Return the class probabilities of each sentence, (S, C) float64."""
        ids, sentence = _flatten(text)
        scores = np.tile(self.log_priors, (len(text.starts), 1))
        np.add.at(scores, sentence, self.log_probs.T[ids])
        scores -= scores.max(axis=1, keepdims=True)
        probs = np.exp(scores)
        return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def _flatten(text: LabelledSentences) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all sentences as one array, and the number of the sentence of each id."""
    sentence = np.repeat(np.arange(len(text.starts)), text.lengths)
    first = np.repeat(np.cumsum(text.lengths) - text.lengths, text.lengths)
    positions = np.repeat(text.starts, text.lengths) + np.arange(len(sentence)) - first
    return np.asarray(text.ids[positions], dtype=np.int64), sentence


VOCABULARY_FILE, TEXT_FILE, SPLIT_FILE = "vocabulary.txt", "text.ids", "split.json"
MIN_COUNT = 2
"""Words that occur less often count as unknown, so that the network learns from unknown words."""


@dataclass(frozen=True)
class LabelledText:
    """Training and validation sentences with their labels."""

    vocabulary: Vocabulary
    labels: tuple[str, ...]
    train: LabelledSentences
    validation: LabelledSentences
    split: str
    """Description of where the validation sentences come from."""


def prepare_text(
    folder: Path,
    texts: Mapping[str, Path],
    validation: Mapping[str, Path],
    normaliser: Normaliser,
    *,
    vocabulary_size: int = 50_000,
    validation_share: float = 0.1,
    longest: int = LONGEST,
    paragraphs: bool = False,
) -> LabelledText:
    """Encode the texts of all classes into ``folder``.

    Args:
        texts: the training text of each class.
        validation: the validation text of each class. If empty, the last sentences of each training text are
            used for validation instead of training.
        vocabulary_size: number of words to know, the most frequent ones of the training sentences.
        validation_share: share of each training text for validation, if there are no validation texts.
        longest: number of words to which longer sentences are cut, with their end.
        paragraphs: see ``corpus.read_sentences``.

    Raises:
        ConfigError: the classes of training and validation texts differ, or the share is out of range.
        FormatError: a text cannot be read or has no words, or a text with only one sentence would have to be
            divided.
    """
    if validation and set(validation) != set(texts):
        different = ", ".join(sorted(set(validation) ^ set(texts)))
        raise ConfigError(f"training and validation texts have different classes: {different}")
    if not 0 < validation_share < 1:
        raise ConfigError(f"validation share is {validation_share}; expected a number between 0 and 1")
    paths = [*texts.values(), *(validation[name] for name in texts if validation)]
    words, n_sentences = corpus.number_words(
        paths, normaliser, folder / TEXT_FILE, "reading text", paragraphs=paragraphs
    )
    if validation:
        n_train, split = n_sentences[: len(texts)], "texts of their own"
    else:
        n_train = [n - max(1, round(validation_share * n)) for n in n_sentences]
        if 0 in n_train:
            raise FormatError(
                "the text has a single sentence; expected at least two, one of them for validation",
                file=str(paths[n_train.index(0)]),
            )
        split = f"the last {100 * validation_share:g} % of the sentences of each class"
    facts = {
        "labels": list(texts),
        "n_sentences": n_sentences,
        "n_train": n_train,
        "split": split,
        "longest": longest,
    }
    counts = _count_training_words(folder, n_sentences, n_train, len(words))
    known = {word: n for word, n in zip(words, counts.tolist(), strict=True) if n >= MIN_COUNT}
    vocabulary = choose_vocabulary(known, None, vocabulary_size)
    encode_numbered(folder / TEXT_FILE, words, vocabulary, ", ".join(map(str, texts.values())))
    vocabulary.save(folder / VOCABULARY_FILE)
    (folder / SPLIT_FILE).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return load_prepared(folder)


def _count_training_words(
    folder: Path, n_sentences: Sequence[int], n_train: Sequence[int], n_words: int
) -> np.ndarray:
    """Count the words 1 … ``n_words`` in the training sentences: (n_words,)."""
    ids = corpus.read_encoded(folder / TEXT_FILE)
    bounds = np.concatenate([[0], np.flatnonzero(ids == 0) + 1])
    counts = np.zeros(n_words + 1, dtype=np.int64)
    for first, n in zip(np.cumsum([0, *n_sentences]), n_train, strict=False):
        counts += corpus.count_ids(ids[bounds[first] : bounds[first + n]], n_words + 1)
    return counts[1:]


def load_prepared(folder: Path) -> LabelledText:
    """Map the texts of a folder, which ``prepare_text`` has written, into memory.

    Raises:
        ConfigError: the folder has no prepared text.
    """
    if not (folder / SPLIT_FILE).exists():
        raise ConfigError(f"{folder} has no training text of a classifier; start a run without --resume")
    facts = json.loads((folder / SPLIT_FILE).read_text(encoding="utf-8"))
    vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
    labels, n_sentences, n_train = tuple(facts["labels"]), facts["n_sentences"], facts["n_train"]
    text_labels = np.arange(len(n_sentences)) % len(labels)
    text = label(
        corpus.read_encoded(folder / TEXT_FILE), np.repeat(text_labels, n_sentences), vocabulary,
        facts.get("longest", LONGEST),
    )  # fmt: skip
    starts = np.cumsum([0, *n_sentences])
    train = [np.arange(first, first + n) for first, n in zip(starts, n_train, strict=False)]
    is_train = np.zeros(len(text.starts), dtype=bool)
    is_train[np.concatenate(train)] = True
    return LabelledText(
        vocabulary, labels, text.select(np.flatnonzero(is_train)), text.select(np.flatnonzero(~is_train)),
        facts["split"],
    )  # fmt: skip


def describe_cuts(n_cut: int, n_texts: int, longest: int) -> str:
    """Return a warning if texts were cut, or else an empty string."""
    if not n_cut:
        return ""
    return (
        f"WARNING: {n_cut:,} of {n_texts:,} texts have more than {longest} words, with their end, and are "
        "cut; a classifier reads more with classify train --longest"
    )


def encode_sentences(
    sentences: Sequence[Sequence[str]],
    labels: Sequence[int],
    vocabulary: Vocabulary,
    longest: int = LONGEST,
) -> LabelledSentences:
    """Encode sentences of normalised words with the vocabulary of a classifier. Sentences may be empty."""
    rows = [np.append(vocabulary.encode(words), vocabulary.end) for words in sentences]
    ids = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
    return label(ids, np.asarray(labels, dtype=np.int64), vocabulary, longest)


def read_labelled(
    texts: Mapping[str, Path],
    config: ClassifierConfig,
    normaliser: Normaliser,
    vocabulary: Vocabulary,
    *,
    paragraphs: bool = False,
) -> LabelledSentences:
    """Read test texts, one per class. Lines without words are skipped.

    Args:
        paragraphs: see ``corpus.read_sentences``.

    Raises:
        ConfigError: a class is unknown to the classifier.
        FormatError: a text cannot be read or has no words.
    """
    labels = config.labels
    unknown = [name for name in texts if name not in labels]
    if unknown:
        raise ConfigError(f"the classifier has no class {unknown[0]!r}; it has {', '.join(labels)}")
    sentences: list[tuple[str, ...]] = []
    numbers: list[int] = []
    for name, path in texts.items():
        found = list(corpus.read_sentences([path], normaliser, "reading text", paragraphs=paragraphs))
        if not found:
            raise FormatError(f"no words in the text of class {name!r}", file=str(path))
        sentences += found
        numbers += [labels.index(name)] * len(found)
    text = encode_sentences(sentences, numbers, vocabulary, config.longest)
    if cuts := describe_cuts(text.n_truncated, len(sentences), config.longest):
        print_status(cuts)
    return text


BATCH_WORDS = 8192
"""Number of words per batch, including padding."""
LINES_PER_BATCH = 1000
"""Number of lines that are read before their predictions are made."""


@torch.no_grad()
def predict(model: Classifier, text: Sentences) -> np.ndarray:
    """Return the class probabilities of each sentence, (S, C) float64, in the order of the text."""
    probs = np.empty((len(text.starts), len(model.config.labels)))
    device = next(model.parameters()).device
    model.eval()
    order = np.argsort(text.lengths, kind="stable")
    for numbers in cut_into_batches(order, text.lengths, BATCH_WORDS):
        inputs, _ = text.pad_rows(numbers)
        vectors, _ = model.context_vectors(torch.from_numpy(inputs).to(device))
        probs[numbers] = model.output.distribution(vectors[:, 0]).double().exp().cpu().numpy()
    return probs


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one line of text."""

    label: str
    """The most probable class."""
    probabilities: dict[str, float]
    n_words: int
    n_unknown: int
    """Number of words that the classifier does not know.

    If the classifier knows no word of a line, it can judge only by the number of words."""


def predict_lines(
    model: Classifier, vocabulary: Vocabulary, normaliser: Normaliser, lines: Iterable[str]
) -> Iterator[Prediction]:
    """Yield one prediction per line, also without words; at the end, warn of texts that were cut."""
    labels, longest, n_lines, n_cut = model.config.labels, model.config.longest, 0, 0
    remaining = iter(lines)
    while chunk := list(islice(remaining, LINES_PER_BATCH)):
        sentences = [normaliser.normalise(line) for line in chunk]
        text = encode_sentences(sentences, [0] * len(sentences), vocabulary, longest)
        probs = predict(model, text)
        n_lines, n_cut = n_lines + len(chunk), n_cut + text.n_truncated
        for words, row in zip(sentences, probs.tolist(), strict=True):
            n_unknown = sum(not vocabulary.is_known(word) for word in words)
            best = labels[int(np.argmax(row))]
            yield Prediction(best, dict(zip(labels, row, strict=True)), len(words), n_unknown)
    if cuts := describe_cuts(n_cut, n_lines, longest):
        print_status(cuts)


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Inputs of a training run and the folder of its results."""

    folder: Path
    texts: Mapping[str, Path]
    """The training text of each class."""
    validation: Mapping[str, Path]
    """The validation text of each class; empty if a part of each training text is held out instead."""
    normaliser: Normaliser

    def identity(self) -> dict[str, Any]:
        """Return, as plain data, the inputs that must stay the same when the run is resumed."""
        return {
            name: [[label, path.name, pipes.find_size(path)] for label, path in texts.items()]
            for name, texts in (("texts", self.texts), ("validation_texts", self.validation))
        } | {"normaliser": json.loads(self.normaliser.settings.to_json())}


def make_classifier(text: LabelledText, options: ClassifierOptions) -> Classifier:
    """Make a new classifier, with the embeddings of a file if one is given.

    Raises:
        ConfigError: options contradict each other.
        BundleError: options are out of range.
        FormatError: the file of embeddings is invalid or has no known word.
    """
    if options.pooling == "none":
        raise ConfigError("pooling is 'none', which is for labels of words; expected mean or last")
    model = Classifier(make_config(options, len(text.vocabulary), text.labels))
    load_embeddings(model, text.vocabulary, options)
    return model


def train(
    inputs: RunInputs,
    text: LabelledText,
    network: ClassifierOptions,
    options: ClassifierTraining,
    run: RunOptions = RunOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Train a classifier; return the metadata that is saved with the best model.

    Raises:
        ConfigError: the device is not available, or the run does not match the one to resume.
        ScoringError: training diverged, or a checkpoint cannot be written.
    """
    device = ProcessGroup().prepare(run, options.seed)
    network = name_activation(network, inputs.folder / STATE_FILE if run.resume else None)
    model = make_classifier(text, network).to(device)
    identity = inputs.identity() | {
        "network": asdict(network),
        "vocabulary": compute_fingerprint(text.vocabulary),
        "split": text.split,
    }
    trainer = start_trainer(inputs.folder, identity, model, text.vocabulary, options, run, "sentences")
    print_status(describe_run(model, text))
    n_texts = len(text.train.starts) + len(text.validation.starts)
    if cuts := describe_cuts(text.train.n_truncated, n_texts, model.config.longest):
        print_status(cuts)
    trainer.train(text.train, text.validation)
    return write_facts(trainer, inputs, text, network)


def start_trainer(
    folder: Path,
    identity: Mapping[str, Any],
    model: Classifier,
    vocabulary: Vocabulary,
    options: ClassifierTraining,
    run: RunOptions,
    unit: str,
) -> Trainer:
    """Make the trainer of a run, at its last checkpoint if the run is resumed.

    Args:
        identity: plain data that must not change when the run is resumed.
        unit: what is predicted, for reports: sentences or words.

    Raises:
        ConfigError: the run does not match the one to resume.
    """
    training_run = TrainingRun(folder, identity, monitor=Monitor(folder, unit=unit))
    trainer = Trainer(training_run, model, vocabulary, options.complete())
    if run.resume:
        trainer.resume()
    return trainer


def describe_run(model: Classifier, text: LabelledText) -> str:
    """Return a one-line summary of a run's network and text."""
    network = model.config.network
    parameters = sum(value.numel() for value in model.parameters())
    return (
        f"{network.kind} {network.embedding_size}/{network.hidden_size} × {network.layers}, "
        f"{'both directions' if model.config.bidirectional else 'forward'}, pooling {model.config.pooling}, "
        f"{parameters / 1e6:.1f} M parameters, {network.vocabulary_size:,} words, "
        f"{len(model.config.labels)} classes, {len(text.train.starts):,} sentences for training and "
        f"{len(text.validation.starts):,} for validation: {text.split}"
    )


def measure(text: LabelledSentences, labels: tuple[str, ...], probs: Any) -> Accuracy:
    """Compare the most probable classes, from (S, C) probabilities, with the labels of sentences."""
    n_words = text.lengths - 1  # without </s>; a truncated sentence counts one word less
    return Accuracy(labels, text.labels, probs.argmax(axis=1), n_words)


def fit_baseline(text: LabelledText) -> NaiveBayes:
    """Estimate naive Bayes from the training sentences of a run, with the vocabulary of the run."""
    return NaiveBayes.fit(text.train, len(text.labels), len(text.vocabulary))


def write_facts(
    trainer: Trainer, inputs: RunInputs, text: LabelledText, network: ClassifierOptions
) -> dict[str, Any]:
    """Write metadata of a run to ``training.json`` in the best model's folder; return the metadata."""
    best, progress = inputs.folder / "best", trainer.progress
    model, _ = load_classifier(best)
    accuracy = measure(text.validation, text.labels, predict(model, text.validation))
    baseline = measure(text.validation, text.labels, fit_baseline(text).predict(text.validation))
    facts = {
        "labels": list(text.labels),
        "network": asdict(network),
        "options": asdict(trainer.options),
        "texts": {name: path.name for name, path in inputs.texts.items()},
        "validation": text.split,
        "training_sentences": len(text.train.starts),
        "validation_sentences": len(text.validation.starts),
        "validation_perplexity": round(progress.best_perplexity, 4),
        "validation_accuracy": round(accuracy.share, 4),
        "naive_bayes_validation_accuracy": round(baseline.share, 4),
        "epochs": progress.epoch,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "torch": torch.__version__,
    }
    corpus.record_normaliser(best, inputs.normaliser)
    write_text(best / "training.json", json.dumps(facts, indent=2) + "\n")
    return facts
