"""Configuration of a classifier, and the options from which it is made."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from rescorer.errors import BundleError
from rescorer.lm.files.network_config import NetworkConfig
from rescorer.lm.files.parameter_shapes import Shapes, parameter_shapes
from rescorer_training.neural.build import set_window_defaults
from rescorer_training.neural.options import NetworkOptions, TrainingOptions, option

POOLINGS = ("mean", "last", "none")
MAX_LABELS = 10_000
MAX_LABEL_LENGTH = 200
NETWORK_PREFIX, REVERSE_PREFIX = "network.", "reverse."


def share_option(group: type, name: str) -> Any:
    """Define a field with the default and the help of one of another group of options."""
    original = next(found for found in fields(group) if found.name == name)
    assert original.default is not MISSING
    return field(default=original.default, metadata=original.metadata)


@dataclass(frozen=True, slots=True)
class ClassifierOptions:
    """Options of a classifier's networks, most of which are those of language models."""

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
    window: int | None = share_option(NetworkOptions, "window")
    heads: int | None = share_option(NetworkOptions, "heads")
    residual: bool | None = share_option(NetworkOptions, "residual")
    embeddings: str | None = share_option(NetworkOptions, "embeddings")
    freeze_embeddings: bool | None = share_option(NetworkOptions, "freeze_embeddings")
    dropout: float = share_option(NetworkOptions, "dropout")
    locked_dropout: bool | None = share_option(NetworkOptions, "locked_dropout")
    weight_dropout: float | None = share_option(NetworkOptions, "weight_dropout")
    embedding_dropout: float | None = share_option(NetworkOptions, "embedding_dropout")


@dataclass(frozen=True, slots=True)
class ClassifierTraining:
    """The training options that classifiers have, a part of ``TrainingOptions``."""

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
        """All options of the training loop; raises ConfigError if a value is out of range."""
        return TrainingOptions(**asdict(self))


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    """Configuration of a classifier, stored as ``config.json``.

    ``NetworkConfig.from_dict`` refuses it, so that a classifier cannot be loaded as a language model.

    Raises:
        BundleError: a value is out of range, or the network is that of a language model.
    """

    network: NetworkConfig
    """The network of each direction. Its output layer is not used."""
    labels: tuple[str, ...]
    """Names of the classes, in the order of their numbers."""
    bidirectional: bool = False
    pooling: str = "mean"
    """``mean`` or ``last``: one label per sentence. ``none``: one per word."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise BundleError(f"pooling is {self.pooling!r:.100}; expected one of {', '.join(POOLINGS)}")
        if type(self.bidirectional) is not bool:
            raise BundleError(f"bidirectional is {self.bidirectional!r:.100}; expected true or false")
        network = self.network
        is_language_model = network.tied or network.carried or network.backward or network.n_features
        if network.output != "full" or is_language_model:
            raise BundleError(
                "the network has the output layer, the state or the topics of a language model; expected "
                "output 'full', no topics or tags, and false for tied, carried and backward"
            )
        self._check_labels()

    def _check_labels(self) -> None:
        if not 2 <= len(self.labels) <= MAX_LABELS:
            raise BundleError(f"{len(self.labels)} labels; expected 2 to {MAX_LABELS:,}")
        for label in self.labels:
            if type(label) is not str or not 0 < len(label) <= MAX_LABEL_LENGTH or not label.isprintable():
                raise BundleError(
                    f"label {ascii(label)[:100]}; expected 1 to {MAX_LABEL_LENGTH} printable characters"
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
        """The embedding of the reverse network, which is that of the forward one."""
        return f"{REVERSE_PREFIX}embedding.weight" if self.bidirectional else None

    def parameter_shapes(self) -> Shapes:
        """Return the shape of every tensor that a checkpoint of this classifier contains, by name."""
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
        if set(values) != set(expected):
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
    other = ("bidirectional", "pooling", "embeddings", "freeze_embeddings")
    settings = {
        name: value for name, value in asdict(options).items() if value is not None and name not in other
    }
    set_window_defaults(settings)
    network = NetworkConfig(vocabulary_size=vocabulary_size, output="full", tied=False, **settings)
    return ClassifierConfig(network, labels, options.bidirectional, options.pooling)
