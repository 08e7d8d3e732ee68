"""Prepare the features of a training run, and keep them in files of its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError
from rescorer.lm.features.tags import TagFilter
from rescorer.lm.features.topics import TopicReader
from rescorer_training.classes.class_tree import find_nested_classes
from rescorer_training.features.sentence_topics import write_sentence_topics
from rescorer_training.features.tag_model import fit_tags
from rescorer_training.features.topic_model import fit_word_topics
from rescorer_training.neural.options import NetworkOptions
from rescorer_training.neural.prepare import TRAIN_TOPICS_FILE, VALIDATION_TOPICS_FILE, PreparedText

CLASS_INPUTS_FILE = "class_inputs.npy"
"""File of the classes of each word, (V, depths) int64."""
TAGS_FILE = "pos_tags.npz"
"""File of the hidden Markov model of parts of speech."""
WORD_TOPICS_FILE = "word_topics.npy"
"""File of P(topic | word), (V, K) float32."""
DEFAULT_TOPIC_DECAY = 0.98
MAX_CLUSTERS = 128
"""Number of Brown clusters that are joined to a tree; fewer for small vocabularies."""
MAX_DEPTH = 64


def parse_depths(depths: str | None) -> list[int]:
    """Parse depths of the tree of classes, such as ``4,8,16``; none for None.

    Raises:
        ConfigError: a depth is not an integer from 1 to ``MAX_DEPTH``.
    """
    parsed = [int(part) if part.strip().isdecimal() else 0 for part in (depths or "").split(",") if depths]
    if not all(1 <= depth <= MAX_DEPTH for depth in parsed):
        raise ConfigError(
            f"class_inputs is {depths!r}; expected depths from 1 to {MAX_DEPTH}, separated by commas: 4,8,16"
        )
    return parsed


def prepare_class_inputs(folder: Path, text: PreparedText, options: NetworkOptions) -> None:
    """Find the classes of each word of a prepared run, if the options ask for them, and write their file.

    ``<s>``, which Brown clusters lack, has the classes of ``</s>``.
    """
    (folder / CLASS_INPUTS_FILE).unlink(missing_ok=True)
    if not (depths := parse_depths(options.class_inputs)):
        return
    n_words = len(text.vocabulary) - 1
    n_clusters = min(MAX_CLUSTERS, n_words)
    classes = find_nested_classes(text.train.ids, n_words, n_clusters, depths)
    np.save(folder / CLASS_INPUTS_FILE, np.concatenate([classes, classes[:1]]))


def prepare_tags(folder: Path, text: PreparedText, options: NetworkOptions) -> None:
    """Induce the parts of speech of a prepared run, if the options ask for them, and write their file."""
    (folder / TAGS_FILE).unlink(missing_ok=True)
    if options.pos_tags:
        model = fit_tags(text.train, len(text.vocabulary), options.pos_tags)
        np.savez(
            folder / TAGS_FILE, start=model.start, transitions=model.transitions, words=model.tags_of_words()
        )


def load_tags(folder: Path, tags: TagFilter) -> None:
    """Set the tags of a network to those that ``prepare_tags`` wrote.

    Raises:
        ConfigError: the file is missing, or was made for another number of tags.
    """
    path = folder / TAGS_FILE
    if not path.exists():
        raise ConfigError(f"{path} is missing, so the run cannot be continued; start a new one")
    with np.load(path, allow_pickle=False) as file:
        tensors = {name: torch.from_numpy(file[name]).float() for name in ("start", "transitions", "words")}
    if (found := len(tensors["start"])) != tags.n_tags:
        raise ConfigError(
            f"{path} has {found} tags, but --pos-tags is {tags.n_tags}; continue with --pos-tags {found}, or "
            "start a new run"
        )
    tags.load_state_dict(tensors)


def prepare_topics(
    folder: Path, text: PreparedText, options: NetworkOptions, inherited: TopicReader | None
) -> None:
    """Infer the topics of the text before each sentence of a prepared run, if its network reads them.

    Args:
        inherited: topics of the network from which training starts; None fits those that the options ask for.
    """
    for name in (WORD_TOPICS_FILE, TRAIN_TOPICS_FILE, VALIDATION_TOPICS_FILE):
        (folder / name).unlink(missing_ok=True)
    if inherited is None and not options.topics:
        return
    reader = inherited
    if reader is None:
        assert options.topics is not None
        word_topics = fit_word_topics(text.train.ids, len(text.vocabulary), options.topics)
        np.save(folder / WORD_TOPICS_FILE, word_topics)
        reader = TopicReader(torch.from_numpy(word_topics), options.topic_decay or DEFAULT_TOPIC_DECAY)
    for name, part in ((TRAIN_TOPICS_FILE, text.train), (VALIDATION_TOPICS_FILE, text.validation)):
        write_sentence_topics(folder / name, reader, part, f"inferring topics for {name}")
        if options.shuffle_topics:
            topics = np.load(folder / name)
            np.save(folder / name, topics[np.random.default_rng(1).permutation(len(topics))])


def load_class_inputs(folder: Path) -> Tensor:
    """Load what ``prepare_class_inputs`` wrote, (V, depths); raises ConfigError if the file is missing."""
    return _load(folder / CLASS_INPUTS_FILE)


def load_word_topics(folder: Path, n_topics: int) -> Tensor:
    """Load the P(topic | word) of a run, (V, K).

    Raises:
        ConfigError: the file is missing, or was made for another number of topics.
    """
    word_topics = _load(folder / WORD_TOPICS_FILE)
    if word_topics.shape[1] != n_topics:
        raise ConfigError(
            f"{folder / WORD_TOPICS_FILE} has {word_topics.shape[1]} topics, but --topics is {n_topics}; "
            f"continue with --topics {word_topics.shape[1]}, or start a new run"
        )
    return word_topics


def _load(path: Path) -> Tensor:
    if not path.exists():
        raise ConfigError(f"{path} is missing, so the run cannot be continued; start a new one")
    return torch.from_numpy(np.load(path, allow_pickle=False))
