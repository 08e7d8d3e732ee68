"""Build the network and the objective of a training run from its options, with the features that it reads."""

from __future__ import annotations

import json
from dataclasses import Field, asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError, FormatError
from rescorer.models.contexts import TagFilter, TopicReader
from rescorer.models.network_files import KINDS, MAXIMA, WINDOWED_KINDS, NetworkConfig, Vocabulary
from rescorer.models.neural import NeuralModel, SequenceModel, load_model
from rescorer.models.outputs import FullSoftmax
from rescorer.models.tree_softmax import TreeSoftmax
from rescorer.text import Normaliser
from rescorer_training.classes.brown import find_nested_classes
from rescorer_training.classes.partition import (
    bin_by_frequency,
    choose_class_count,
    make_brown_classes,
    make_embedding_classes,
)
from rescorer_training.features import (
    add_class_inputs,
    count_known_tags,
    fit_tags,
    fit_word_topics,
    write_sentence_topics,
)
from rescorer_training.neural import checkpoint, optimisation
from rescorer_training.neural.options import NetworkOptions, TrainingOptions
from rescorer_training.neural.prepare import (
    TRAIN_TOPICS_FILE,
    VALIDATION_TOPICS_FILE,
    PreparedText,
    print_status,
    reorder,
)
from rescorer_training.neural.trees import get_word_vectors, load_or_make_tree
from rescorer_training.tagged_text import normalise_tagged, read_tagged
from rescorer_training.vectors.runs import initialise_embedding

CLASS_INPUTS_FILE = "class_inputs.npy"
"""File of the classes of each word, (V, depths) int64."""
TAGS_FILE = "pos_tags.npz"
"""File of the hidden Markov model of parts of speech."""
WORD_TOPICS_FILE = "word_topics.npy"
"""File of P(topic | word), (V, K) float32."""
DEFAULT_TOPIC_DECAY = 0.98
MAX_CLUSTERS = 128
"""Number of Brown clusters that are joined to a tree for class inputs; small vocabularies have fewer."""
MAX_DEPTH = 64


def parse_depths(depths: str | None) -> list[int]:
    """Parse the depths in the tree of clusters at which words get classes: ``4,8,16``. None: no depths.

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
    """Find the classes of each word of a prepared run, and write them, if the options ask for class inputs.

    ``<s>`` is not in Brown clusters, so it gets the classes of ``</s>``.
    """
    (folder / CLASS_INPUTS_FILE).unlink(missing_ok=True)
    if not (depths := parse_depths(options.class_inputs)):
        return
    n_words = len(text.vocabulary) - 1
    n_clusters = min(MAX_CLUSTERS, n_words)
    classes = find_nested_classes(text.train.ids, n_words, n_clusters, depths)
    np.save(folder / CLASS_INPUTS_FILE, np.concatenate([classes, classes[:1]]))


def prepare_tags(folder: Path, text: PreparedText, options: NetworkOptions, normaliser: Normaliser) -> None:
    """Write the tags that the network reads, if any: counted in a tagged text, or induced from the run's
    text.

    Args:
        normaliser: that of the run, for the words of the tagged text.

    Raises:
        FormatError: the tagged text is invalid, or has none of the words of the vocabulary.
    """
    (folder / TAGS_FILE).unlink(missing_ok=True)
    if options.tags:
        sentences = list(normalise_tagged(read_tagged(Path(options.tags)), normaliser))
        names = sorted({tag for sentence in sentences for _, tag in sentence})
        words = [word for sentence in sentences for word, _ in sentence]
        n_known = sum(map(text.vocabulary.is_known, words))
        if not n_known or len(names) > MAXIMA["pos_tags"]:
            raise FormatError(
                f"{len(names):,} tags, and {n_known:,} of {len(words):,} words are in the vocabulary; "
                f"expected 1 to {MAXIMA['pos_tags']:,} tags, and words of the vocabulary",
                file=options.tags,
            )
        print_status(f"{options.tags}: {len(names)} tags; {n_known / len(words):.1%} of its words are known")
        model = count_known_tags(sentences, names, text.vocabulary)
    elif options.pos_tags:
        model = fit_tags(text.train, len(text.vocabulary), options.pos_tags)
    else:
        return
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
    """Infer the topics of the text before each sentence, and write them, if the network reads topics.

    Args:
        inherited: topics of the network from which training starts. None to fit as many topics to the text as
            the options ask for.
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


def load_word_topics(folder: Path, n_topics: int) -> Tensor:
    """Load P(topic | word) of a run, (V, K).

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


CLASSES_FILE = "classes.json"
"""File of class sizes. It exists only if words are ordered by learned classes instead of by frequency."""
CLASS_POWERS = {"sqrt": 0.5, "mass": 1.0}
CLASS_METHODS = (*CLASS_POWERS, "brown", "kmeans")
TREES = ("huffman", "learned")
DEFAULT_ACTIVATIONS = {"lbl": "linear", "nlbl": "tanh"}
"""Default activations of log-bilinear models. In files, both are of the kind ``lbl``."""
DEFAULT_WINDOW = 4
"""Default number of context words of networks without recurrence, the same as in a 5-gram model."""
DEFAULT_ATTENTION_WINDOW = 128
"""Default number of words to which each layer of a transformer attends."""
DEFAULT_HEADS = 4
CHANGEABLE = frozenset({"carried", "locked_dropout", "weight_dropout", "embedding_dropout"})
"""Options that, like dropout, may change when training starts from another run: none of them has weights."""
MAX_CLASS_RATIO = 3
"""Maximum size of a learned class, as a multiple of the mean size.

The limit saves time and does not increase perplexity."""


def order_by_classes(folder: Path, text: PreparedText, options: NetworkOptions) -> None:
    """Order the vocabulary and the encoded text of a prepared run by class, if word classes are learned.

    Raises:
        ConfigError: options contradict each other, or the classes cannot be formed.
    """
    (folder / CLASSES_FILE).unlink(missing_ok=True)
    _check_options(options)
    if options.class_by in (None, *CLASS_POWERS):
        return  # the vocabulary is already ordered by frequency
    n_words = len(text.vocabulary) - 1
    n_classes = options.n_classes or choose_class_count(n_words)
    max_class_size = max(2, MAX_CLASS_RATIO * n_words // n_classes)
    if options.class_by == "brown":
        classes = make_brown_classes(text.train.ids, n_words, n_classes, max_class_size=max_class_size)
    else:
        vectors = get_word_vectors(text, options)
        classes = make_embedding_classes(vectors, text.counts(), n_classes, max_class_size=max_class_size)
    reorder(folder, text.vocabulary, classes.order)
    (folder / CLASSES_FILE).write_text(json.dumps(classes.class_sizes), encoding="utf-8")


def _check_options(options: NetworkOptions) -> None:
    """Raise ConfigError if network options are unknown or contradict each other."""
    choices = (
        ("kind", options.kind, (*KINDS, "nlbl")),
        ("class_by", options.class_by, CLASS_METHODS),
        ("tree", options.tree, TREES),
    )
    for name, value, known in choices:
        if value not in (None, *known):
            raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    if options.vectors and options.class_by != "kmeans" and options.tree != "learned":
        raise ConfigError("--vectors is used only by --class-by kmeans and --tree learned; add one of them")
    if options.tree and options.output != "tree":
        raise ConfigError("--tree needs --output-layer tree; give both")
    if options.overlap is not None:
        if options.tree != "learned":
            raise ConfigError("--overlap needs --tree learned; give both")
        if not 0 <= options.overlap < 0.5:
            raise ConfigError(f"overlap is {options.overlap}; expected 0 ≤ overlap < 0.5")
    if options.tags and options.pos_tags:
        raise ConfigError("--pos-tags induces tags and --tags reads those of a text; give one of them")
    _check_embedding_options(options)
    parse_depths(options.class_inputs)
    if options.shuffle_topics and not options.topics:
        raise ConfigError("--shuffle-topics needs the topics of --topics; give both")


class EmbeddingOptions(Protocol):
    """What ``NetworkOptions`` and ``ClassifierOptions`` say about given embeddings."""

    @property
    def embeddings(self) -> str | None: ...
    @property
    def freeze_embeddings(self) -> bool | None: ...
    @property
    def unknown_rows(self) -> str | None: ...
    @property
    def rescale_embeddings(self) -> bool | None: ...


def _check_embedding_options(options: EmbeddingOptions) -> None:
    """Raise ConfigError if options for given embeddings are unknown, or if there are no such embeddings."""
    if options.unknown_rows not in (None, "random", "zero"):
        raise ConfigError(f"unknown_rows is {options.unknown_rows!r}; expected random or zero")
    given = {
        "--freeze-embeddings": options.freeze_embeddings,
        "--unknown-rows": options.unknown_rows,
        "--keep-embeddings": options.rescale_embeddings is False,
    }
    for name, value in given.items():
        if value and not options.embeddings:
            raise ConfigError(f"{name} needs the vectors of --embeddings; give both")


def load_embeddings(model: SequenceModel, vocabulary: Vocabulary, options: EmbeddingOptions) -> None:
    """Start the embeddings of a network from a file of word vectors, if the options name one.

    Raises:
        ConfigError: options contradict each other.
        FormatError: the file is invalid or has no known word.
    """
    _check_embedding_options(options)
    if not options.embeddings:
        return
    coverage = initialise_embedding(
        model,
        vocabulary,
        Path(options.embeddings),
        bool(options.freeze_embeddings),
        rescale=options.rescale_embeddings is not False,
        zero_others=options.unknown_rows == "zero",
    )
    print_status(f"{options.embeddings}: {coverage}")


def make_network(
    folder: Path,
    start_from: Path | None,
    text: PreparedText,
    options: NetworkOptions,
    objective: str = "ml",
    *,
    resumed: bool = False,
) -> NeuralModel:
    """Make a network that initially predicts the unigram distribution, or load the best model of a run.

    Args:
        folder: folder of the run. It has a file of class sizes if the word classes are learned.
        start_from: folder of the run to load the network from; None to make a new network.
        objective: objective of the training. With any other than ``ml``, the default output layer is a
            full softmax.
        resumed: whether a saved state will replace the weights. Then the saved tree is loaded, not built.

    Raises:
        ConfigError: network options are given for a loaded network, or options contradict each other.
    """
    if start_from:
        _check_none_given(options)
        loaded, _ = load_model(start_from / "best")
        given = {name: value for name, value in _given(options).items() if name in CHANGEABLE}
        model = NeuralModel(replace(loaded.config, dropout=options.dropout, **given))
        model.load_state_dict(loaded.state_dict())
        return leave_out_bias(model, text).train()
    if text.has_pieces:  # whose models have no classes and trees
        options = replace(options, output="full")
    counts = text.counts()
    config = _make_config(folder, len(text.vocabulary), counts, options, objective)
    if config.output == "tree":
        children, places = load_or_make_tree(folder, text, counts, options, load=resumed)
        config = replace(config, leaves=len(children) + 1 if places.max() > 1 else 0)
    model = NeuralModel(config)
    if isinstance(model.output, TreeSoftmax):
        model.output.set_tree(children, places)
    model.output.start_from_unigrams(torch.from_numpy(counts))
    load_embeddings(model, text.vocabulary, options)
    if options.class_inputs:
        add_class_inputs(model, _load(folder / CLASS_INPUTS_FILE))
    if config.topics:
        model.topic_words.copy_(load_word_topics(folder, config.topics))
    if model.tags is not None:
        load_tags(folder, model.tags)
    return leave_out_bias(model, text)


def leave_out_bias(model: NeuralModel, text: PreparedText) -> NeuralModel:
    """Fix the bias of the output layer of a transformer over pieces of words at 0: LLaMA's has none."""
    if text.has_pieces and model.config.kind == "transformer":
        assert isinstance(model.output, FullSoftmax)
        model.output.word_bias.requires_grad_(False).zero_()
    return model


def check_network(
    options: NetworkOptions, objective: str, vocabulary_size: int, *, starts_from_other: bool
) -> None:
    """Check options before any text is read. ``make_network`` makes the same checks later.

    Args:
        vocabulary_size: number of words of the network, with ``</s>``, ``<unk>`` and ``<s>``.
        starts_from_other: whether the network is loaded from another run.

    Raises:
        ConfigError: options contradict each other, or there are more classes than words.
        BundleError: options do not fit the kind of network.
    """
    _check_options(options)
    if starts_from_other:
        return _check_none_given(options)
    counts = np.ones(vocabulary_size - 1, dtype=np.int64)
    _make_config(None, vocabulary_size, counts, replace(options, class_by=None), objective)


def _given(options: NetworkOptions) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if value is not None and name != "dropout"}


def _check_none_given(options: NetworkOptions) -> None:
    if given := _given(options).keys() - CHANGEABLE:
        names = ", ".join(sorted(given))
        raise ConfigError(f"--start-from loads an existing network; {names} cannot be given too")


def _make_config(
    folder: Path | None, vocabulary_size: int, counts: np.ndarray, options: NetworkOptions, objective: str
) -> NetworkConfig:
    """Complete the given options with defaults that depend on other options.

    Args:
        folder: folder of the run; None before there is one.
    """
    known = {item.name for item in fields(NetworkConfig)}  # the other options only say how it is built
    settings = {name: value for name, value in _given(options).items() if name in known}
    settings.setdefault("output", "classes" if objective == "ml" else "full")
    set_defaults_of_kind(settings)
    if options.tags:
        settings["pos_tags"] = 1 if folder is None else _count_tags(folder)
    if settings.get("topics"):
        settings.setdefault("topic_decay", DEFAULT_TOPIC_DECAY)
    return NetworkConfig(
        vocabulary_size=vocabulary_size,
        class_sizes=_get_class_sizes(folder, counts, options) if settings["output"] == "classes" else (),
        dropout=options.dropout,
        **settings,
    )


def _count_tags(folder: Path) -> int:
    """Return the number of tags that ``prepare_tags`` wrote; 1 if there are none yet, so that it writes "
    "them."""
    if not (folder / TAGS_FILE).exists():
        return 1
    with np.load(folder / TAGS_FILE, allow_pickle=False) as file:
        return len(file["start"])


def set_defaults_of_kind(settings: dict[str, Any]) -> None:
    """Name the kind as files do, and add the default activation, window and number of heads that it has."""
    kind = settings.get("kind")
    if kind in DEFAULT_ACTIVATIONS:
        settings |= {"kind": "lbl", "activation": _choose_activation(kind, settings.get("activation"))}
    if settings.get("kind") in WINDOWED_KINDS:
        settings.setdefault("window", DEFAULT_WINDOW)
    if kind == "transformer":
        settings.setdefault("window", DEFAULT_ATTENTION_WINDOW)
        settings.setdefault("heads", DEFAULT_HEADS)


def _choose_activation(kind: str, activation: str | None) -> str:
    if kind == "nlbl" and activation == "linear":
        raise ConfigError("activation is linear for nlbl, the nonlinear model; choose the network lbl")
    return activation or DEFAULT_ACTIVATIONS[kind]


class ActivationOptions(Protocol):
    """Options with the kind of a network and its activation."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def kind(self) -> str | None: ...
    @property
    def activation(self) -> str | None: ...


AnyOptions = TypeVar("AnyOptions", bound=ActivationOptions)


def name_activation(options: AnyOptions, state: Path | None = None) -> AnyOptions:
    """Return options in which a log-bilinear network has the kind and activation that its files will have.

    Args:
        options: ``NetworkOptions`` or ``ClassifierOptions``.
        state: state of a run to be resumed, which keeps its activation unless the options name another one;
            None for a new run.

    Raises:
        ConfigError: the network is a nonlinear log-bilinear model, but its activation is linear.
    """
    kind, activation = options.kind, options.activation
    if kind is None or kind not in DEFAULT_ACTIVATIONS:
        return options
    if activation is None and kind == "lbl" and state is not None and state.exists():
        saved = checkpoint.read_run_options(state)["network"]
        activation = saved["activation"] if saved["kind"] == "lbl" else None
    return replace(options, kind="lbl", activation=_choose_activation(kind, activation))


def _get_class_sizes(folder: Path | None, counts: np.ndarray, options: NetworkOptions) -> tuple[int, ...]:
    if folder and (folder / CLASSES_FILE).exists():
        return tuple(json.loads((folder / CLASSES_FILE).read_text(encoding="utf-8")))
    n_classes = options.n_classes or choose_class_count(len(counts))
    return bin_by_frequency(counts, n_classes, CLASS_POWERS[options.class_by or "sqrt"])


def make_objective(
    options: TrainingOptions, counts: np.ndarray, device: torch.device
) -> optimisation.Objective:
    """Make the objective of a run.

    Args:
        counts: (V - 1,) counts of the words that can be predicted, for the noise distribution.
    """
    if options.objective == "ml":
        return optimisation.MaximumLikelihood(options.bfloat16)
    kind = {
        "nce": optimisation.NoiseContrastive,
        "negative": optimisation.NegativeSampling,
        "sampled": optimisation.SampledSoftmax,
    }[options.objective]
    noise = optimisation.Noise(torch.from_numpy(counts), options.noise_power, device)
    return kind(noise, options.noise_samples, options.noise_per == "word")
