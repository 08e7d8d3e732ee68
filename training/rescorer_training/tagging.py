"""Tag every word of a sentence, for instance with its part of speech: sequences of equal length.

Tagged text comes in, a tagger comes out, and tags for other text. A tagger is a ``Classifier`` that predicts
a label at every word, with networks in one or two directions, and is trained by the loop of language models.
It is compared with the most frequent tag of each word in its training text, which is hard to beat for words
that have one tag.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rescorer.errors import BundleError, ConfigError, FormatError
from rescorer.formats.io.text_io import write_text
from rescorer.models.network_files import Vocabulary
from rescorer.safe_input import Folder, parse_json
from rescorer.text import Normaliser
from rescorer_training import corpus, pipes
from rescorer_training.batches import LONGEST, TaggedSentences, cut_into_batches, tag
from rescorer_training.classification import (
    BATCH_WORDS,
    MAX_LABELS,
    MIN_COUNT,
    Accuracy,
    Classifier,
    ClassifierOptions,
    ClassifierTraining,
    load_classifier,
    make_config,
    share_option,
    start_trainer,
)
from rescorer_training.neural.build import load_embeddings, name_activation
from rescorer_training.neural.checkpoint import STATE_FILE, ProcessGroup
from rescorer_training.neural.options import RunOptions
from rescorer_training.neural.prepare import choose_vocabulary, print_status
from rescorer_training.neural.train import Trainer, compute_fingerprint
from rescorer_training.tagged_text import TaggedSentence, read_tagged, read_word

LEXICON_FILE = "lexicon.json"
"""File of a run with the most frequent tag of each word; that of the empty word is for words it lacks."""
MAX_LEXICON_BYTES = 1 << 28
MAX_WORDS = LONGEST - 1
"""Longer sentences are tagged in parts of so many words, each without knowledge of the others."""


@dataclass(frozen=True, slots=True)
class TaggerOptions:
    """Options of a tagger's networks: those of classifiers, without what makes one vector of a sentence."""

    kind: str | None = share_option(ClassifierOptions, "kind")
    embedding_size: int | None = share_option(ClassifierOptions, "embedding_size")
    hidden_size: int | None = share_option(ClassifierOptions, "hidden_size")
    layers: int | None = share_option(ClassifierOptions, "layers")
    bidirectional: bool = share_option(ClassifierOptions, "bidirectional")
    activation: str | None = share_option(ClassifierOptions, "activation")
    gru_reset: str | None = share_option(ClassifierOptions, "gru_reset")
    window: int | None = share_option(ClassifierOptions, "window")
    heads: int | None = share_option(ClassifierOptions, "heads")
    residual: bool | None = share_option(ClassifierOptions, "residual")
    embeddings: str | None = share_option(ClassifierOptions, "embeddings")
    freeze_embeddings: bool | None = share_option(ClassifierOptions, "freeze_embeddings")
    unknown_rows: str | None = share_option(ClassifierOptions, "unknown_rows")
    rescale_embeddings: bool | None = share_option(ClassifierOptions, "rescale_embeddings")
    dropout: float = share_option(ClassifierOptions, "dropout")
    locked_dropout: bool | None = share_option(ClassifierOptions, "locked_dropout")
    weight_dropout: float | None = share_option(ClassifierOptions, "weight_dropout")
    embedding_dropout: float | None = share_option(ClassifierOptions, "embedding_dropout")

    def complete(self) -> ClassifierOptions:
        """Return the options of a classifier of words."""
        return ClassifierOptions(**asdict(self), pooling="none")


@dataclass(frozen=True, slots=True)
class TagInputs:
    """Inputs of a training run and the folder of its results."""

    folder: Path
    texts: Sequence[Path]
    """Tagged training texts."""
    validation: Sequence[Path]
    """Tagged texts for early stopping; empty if the end of each training text is held out instead."""
    normaliser: Normaliser
    layout: str | None = None
    """Layout of all texts; None to detect it for each."""
    vocabulary_size: int = 50_000
    validation_share: float = 0.1

    def identity(self) -> dict[str, Any]:
        """Return, as plain data, the inputs that must stay the same when the run is resumed."""
        return {
            "texts": [[path.name, pipes.find_size(path)] for path in self.texts],
            "validation_texts": [[path.name, pipes.find_size(path)] for path in self.validation],
            "normaliser": json.loads(self.normaliser.settings.to_json()),
        }


@dataclass(frozen=True)
class TaggedText:
    """Training and validation sentences of a run, encoded."""

    vocabulary: Vocabulary
    labels: tuple[str, ...]
    train: TaggedSentences
    validation: TaggedSentences
    held_out: Sequence[TaggedSentence]
    """The validation sentences as they are written."""
    lexicon: Lexicon


@dataclass(frozen=True)
class Lexicon:
    """The most frequent tag of each word of a text."""

    tags: Mapping[str, str]
    """The tag of each word, as a tagger reads it; that of the empty word is for all others."""

    @classmethod
    def count(cls, sentences: Sequence[Sequence[tuple[str, str]]]) -> Lexicon:
        """Count tagged words. Other words get the most frequent tag of the words that occur once."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for word, name in chain.from_iterable(sentences):
            counts[word][name] += 1
        single = Counter(next(iter(part)) for part in counts.values() if part.total() == 1)
        every = Counter(name for _, name in chain.from_iterable(sentences))
        return cls(
            {word: _most_frequent(part) for word, part in counts.items()}
            | {"": _most_frequent(single or every)}
        )

    def predict(self, words: Sequence[str]) -> list[str]:
        """Return a tag for each word, as a tagger reads it."""
        return [self.tags.get(word, self.tags[""]) for word in words]


def _most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda name: (-counts[name], name))


def prepare_text(inputs: TagInputs) -> TaggedText:
    """Read and encode the texts of a run. The vocabulary has the words that occur at least twice.

    Raises:
        ConfigError: the share of held-out sentences, or the size of the vocabulary, is out of range.
        FormatError: a text is invalid, has one sentence where it would have to be divided, or one tag only;
            or the texts have too many tags.
    """
    if inputs.vocabulary_size < 1:
        raise ConfigError(f"vocabulary size is {inputs.vocabulary_size}; expected at least 1")
    if not 0 < inputs.validation_share < 1:
        raise ConfigError(f"validation share is {inputs.validation_share}; expected a number between 0 and 1")
    train: list[TaggedSentence] = []
    held_out = [sentence for path in inputs.validation for sentence in read_tagged(path, inputs.layout)]
    for path in inputs.texts:
        sentences = read_tagged(path, inputs.layout)
        n_held_out = 0 if inputs.validation else max(1, round(inputs.validation_share * len(sentences)))
        if n_held_out == len(sentences):
            message = "the text has a single sentence; expected at least two, one of them for validation"
            raise FormatError(message, file=str(path))
        train += sentences[: len(sentences) - n_held_out]
        held_out += sentences[len(sentences) - n_held_out :]
    labels = tuple(sorted({name for sentence in (*train, *held_out) for name in sentence.tags}))
    if not 2 <= len(labels) <= MAX_LABELS:
        found = f"the only tag is {labels[0]!r}" if len(labels) == 1 else f"{len(labels):,} different tags"
        message = f"{found}; expected 2 to {MAX_LABELS:,}"
        raise FormatError(message, file=", ".join(map(str, inputs.texts)))
    read, read_held_out = ([_read(one, inputs.normaliser) for one in part] for part in (train, held_out))
    counts = Counter(word for sentence in read for word, _ in sentence)
    known = {word: count for word, count in counts.items() if count >= MIN_COUNT}
    vocabulary = choose_vocabulary(known, None, inputs.vocabulary_size)
    return TaggedText(
        vocabulary, labels,
        tag(list(_divide(read)), labels, vocabulary), tag(list(_divide(read_held_out)), labels, vocabulary),
        held_out, Lexicon.count(read),
    )  # fmt: skip


def _read(sentence: TaggedSentence, normaliser: Normaliser) -> list[tuple[str, str]]:
    words = (read_word(word, normaliser) for word in sentence.words)
    return list(zip(words, sentence.tags, strict=True))


def _divide(sentences: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Divide sentences with more than ``MAX_WORDS`` words; leave out those without words."""
    for sentence in sentences:
        for begin in range(0, len(sentence), MAX_WORDS):
            yield sentence[begin : begin + MAX_WORDS]


def train(
    inputs: TagInputs,
    text: TaggedText,
    options: TaggerOptions,
    training: ClassifierTraining,
    run: RunOptions = RunOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Train a tagger; return the metadata that is saved with the best model.

    Raises:
        ConfigError: the device is not available, or the run does not match the one to resume.
        ScoringError: training diverged, or a checkpoint cannot be written.
    """
    device = ProcessGroup().prepare(run, training.seed)
    network = name_activation(options.complete(), inputs.folder / STATE_FILE if run.resume else None)
    model = Classifier(make_config(network, len(text.vocabulary), text.labels))
    load_embeddings(model, text.vocabulary, network)
    identity = inputs.identity() | {
        "network": asdict(network),
        "vocabulary": compute_fingerprint(text.vocabulary),
        "tags": list(text.labels),
    }
    trainer = start_trainer(
        inputs.folder, identity, model.to(device), text.vocabulary, training, run, "words"
    )
    print_status(
        f"{model.config.network.kind}, {'both directions' if network.bidirectional else 'forward'}, "
        f"{len(text.vocabulary):,} words, {len(text.labels)} tags, {len(text.train.targets):,} words for "
        f"training and {len(text.validation.targets):,} for validation"
    )
    lexicon = json.dumps(text.lexicon.tags, ensure_ascii=False)
    write_text(inputs.folder / LEXICON_FILE, lexicon + "\n")
    trainer.train(text.train, text.validation)
    return _write_facts(trainer, inputs, text, network)


def _write_facts(
    trainer: Trainer, inputs: TagInputs, text: TaggedText, network: ClassifierOptions
) -> dict[str, Any]:
    """Write metadata of a run to ``training.json`` in the best model's folder; return the metadata."""
    best, progress = inputs.folder / "best", trainer.progress
    corpus.record_normaliser(best, inputs.normaliser)
    found = measure(load_tagger(best), text.held_out, text.lexicon)
    facts = {
        "tags": list(text.labels),
        "network": asdict(network),
        "options": asdict(trainer.options),
        "texts": [path.name for path in inputs.texts],
        "training_words": len(text.train.targets),
        "validation_words": len(text.validation.targets),
        "validation_perplexity": round(progress.best_perplexity, 4),
        "validation_accuracy": round(found[TAGGER].all.share, 4),
        "most_frequent_tag_validation_accuracy": round(found[MOST_FREQUENT].all.share, 4),
        "epochs": progress.epoch,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "torch": torch.__version__,
    }
    write_text(best / "training.json", json.dumps(facts, indent=2) + "\n")
    return facts


@dataclass(frozen=True)
class Tagger:
    """A trained tagger."""

    model: Classifier
    vocabulary: Vocabulary
    normaliser: Normaliser

    @torch.no_grad()
    def predict(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the most probable tag of each word of sentences, which are given as written words."""
        read = [[read_word(word, self.normaliser) for word in sentence] for sentence in sentences]
        parts = list(_divide(read))
        if not parts:
            return [[] for _ in sentences]
        labels = self.model.config.labels
        text = tag([[(word, labels[0]) for word in part] for part in parts], labels, self.vocabulary)
        found: list[list[str]] = [[] for _ in parts]
        self.model.eval()
        device = next(self.model.parameters()).device
        for numbers in cut_into_batches(np.argsort(text.lengths, kind="stable"), text.lengths, BATCH_WORDS):
            inputs, targets = text.pad_rows(numbers)
            vectors, _ = self.model.context_vectors(torch.from_numpy(inputs).to(device))
            best = self.model.output.distribution(vectors.flatten(0, 1)).argmax(dim=1).cpu().numpy()
            for number, row, exists in zip(numbers, best.reshape(inputs.shape), targets >= 0, strict=True):
                found[number] = [labels[index] for index in row[exists]]
        tags = chain.from_iterable(found)
        return [[next(tags) for _ in sentence] for sentence in read]


def load_tagger(folder: Path, normaliser: Normaliser | None = None) -> Tagger:
    """Load the tagger of a folder, with the normaliser that is recorded there unless another one is given.

    Raises:
        BundleError: a file is missing or damaged, or the model is no tagger.
    """
    model, vocabulary = load_classifier(folder)
    if model.config.pooling != "none":
        raise BundleError(f"{folder} classifies sentences; give it to rescorer-train classify")
    return Tagger(model, vocabulary, normaliser or corpus.choose_normaliser(None, [folder]))


def load_lexicon(run: Path) -> Lexicon | None:
    """Load the most frequent tags of the training text of a run; None if the folder has none.

    Raises:
        BundleError: the file is damaged.
    """
    if not (run / LEXICON_FILE).exists():
        return None
    place = str(run / LEXICON_FILE)
    tags = parse_json(Folder(run).read_bytes(LEXICON_FILE, MAX_LEXICON_BYTES), place)
    if "" not in tags or not all(isinstance(tag, str) for tag in tags.values()):
        raise BundleError(f"{place}: expected an object with the tag of each word, and that of other words")
    return Lexicon(tags)


TAGGER, MOST_FREQUENT = "tagger", "most frequent tag"


@dataclass(frozen=True)
class TagAccuracy:
    """How many words of a text have their right tags."""

    all: Accuracy
    unknown: Accuracy
    """The words that the tagger does not know."""

    def by_tag(self) -> dict[str, dict[str, float | None]]:
        """Return the number of words, recall, precision and F1 of each tag that occurs or was predicted."""
        found, n_tags = self.all, len(self.all.labels)
        n_words = np.bincount(found.truth, minlength=n_tags)
        n_predicted = np.bincount(found.predicted, minlength=n_tags)
        n_right = np.bincount(found.truth[found.is_correct], minlength=n_tags)
        rows: dict[str, dict[str, float | None]] = {}
        for number, name in enumerate(found.labels):
            if n_words[number] or n_predicted[number]:
                right = float(n_right[number])
                rows[name] = {
                    "words": float(n_words[number]),
                    "recall": right / n_words[number] if n_words[number] else None,
                    "precision": right / n_predicted[number] if n_predicted[number] else None,
                    "f1": 2 * right / (n_words[number] + n_predicted[number]),
                }
        return rows

    @property
    def macro_f1(self) -> float:
        """Mean of the F1 of all tags that occur or were predicted."""
        return float(np.mean([row["f1"] for row in self.by_tag().values()]))


def measure(
    tagger: Tagger, sentences: Sequence[TaggedSentence], lexicon: Lexicon | None = None
) -> dict[str, TagAccuracy]:
    """Compare predicted tags with those of a text. Tags that the tagger does not know count as errors.

    Args:
        lexicon: the most frequent tags of the training text, as a second system; None to leave it out.
    """
    words = [[read_word(word, tagger.normaliser) for word in one.words] for one in sentences]
    predicted = {TAGGER: tagger.predict([one.words for one in sentences])}
    if lexicon is not None:
        predicted[MOST_FREQUENT] = [lexicon.predict(sentence) for sentence in words]
    names = sorted({*tagger.model.config.labels, *(name for one in sentences for name in one.tags)})
    numbers = {name: number for number, name in enumerate(names)}
    truth = np.array([numbers[name] for one in sentences for name in one.tags])
    lengths = np.array([len(one.words) for one in sentences for _ in one.words])
    is_unknown = np.array([not tagger.vocabulary.is_known(word) for word in chain.from_iterable(words)])

    def compare(tags: Sequence[Sequence[str]], chosen: np.ndarray) -> Accuracy:
        found = np.array([numbers[name] for name in chain.from_iterable(tags)])
        return Accuracy(tuple(names), truth[chosen], found[chosen], lengths[chosen])

    everywhere = np.ones(len(truth), dtype=bool)
    return {
        name: TagAccuracy(compare(tags, everywhere), compare(tags, is_unknown))
        for name, tags in predicted.items()
    }
