"""Options of a training run and of its network, validated on construction."""

from __future__ import annotations

from dataclasses import dataclass

from rescorer.errors import ConfigError
from rescorer_training.neural.dataclass_options import option

OPTIMISERS = ("adamw", "sgd")
SCHEDULES = ("cosine", "plateau", "constant")
AVERAGES = ("none", "ema", "uniform")

OBJECTIVES = ("ml", "nce", "negative", "sampled")
NOISE_PER = ("batch", "word")

TEXT, NETWORK, OPTIMISER, REGULARISATION, RUN = "Text", "Network", "Optimiser", "Regularisation", "Run"


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Training options; saved with the run and compared when it is resumed.

    Raises:
        ConfigError: a value is out of range or unknown.
    """

    epochs: int = option(10, OPTIMISER, "Number of passes over the training text.")
    batch_words: int = option(4096, TEXT, "Words per batch of sentences, padding included.")
    learning_rate: float = option(2e-3, OPTIMISER, "Peak learning rate.")
    warmup_steps: int = option(200, OPTIMISER, "Steps of linear warm-up to the peak learning rate.")
    gradient_clip: float = option(1.0, OPTIMISER, "Largest norm of the gradient of the mean loss.")
    weight_decay: float = option(0.0, REGULARISATION, "Weight decay of AdamW, or L2 penalty of SGD.")
    validations_an_epoch: int = option(1, RUN, "Validations per epoch.")
    patience: int = option(4, RUN, "Consecutive validations without improvement before training stops.")
    bfloat16: bool = option(False, RUN, "Multiply the network's matrices in bfloat16.")
    seed: int = option(1, RUN, "Random seed.")
    batch_rows: int = option(20, TEXT, "Carried state: text positions read in parallel.")
    bptt: int = option(35, TEXT, "Carried state: words per truncated back-propagation through time.")
    accumulate: int = option(1, RUN, "Parts per batch, computed one after another to save memory.")
    optimiser: str = option("adamw", OPTIMISER, "AdamW or stochastic gradient descent.", metavar="adamw|sgd")
    momentum: float = option(0.0, OPTIMISER, "Momentum of SGD.")
    schedule: str = option(
        "cosine",
        OPTIMISER,
        "Learning rate after the warm-up: cosine decay to zero, reduced when validation stalls, or constant.",
        metavar="cosine|plateau|constant",
    )
    plateau_gain: float = option(
        0.003, OPTIMISER, "Plateau schedule: smallest relative improvement that keeps the learning rate."
    )
    plateau_factor: float = option(
        0.5, OPTIMISER, "Plateau schedule: factor of each learning rate reduction."
    )
    average: str = option(
        "none",
        REGULARISATION,
        "Weights to validate and save: the last, their moving average, or their mean since --average-from.",
        metavar="none|ema|uniform",
    )
    average_decay: float = option(0.999, REGULARISATION, "Moving average: decay per step.")
    average_from: int = option(
        0, REGULARISATION, "Mean: epoch after which it starts; 0: after 5 validations without improvement."
    )

    objective: str = option(
        "ml",
        OPTIMISER,
        "Maximum likelihood; with a full softmax also noise-contrastive estimation, negative sampling or "
        "sampled softmax.",
        metavar="ml|nce|negative|sampled",
    )
    noise_samples: int = option(512, OPTIMISER, "Sampled objectives: noise words per batch or per word.")
    noise_power: float = option(
        1.0, OPTIMISER, "Sampled objectives: power of the word counts in the noise distribution."
    )
    noise_per: str = option(
        "batch",
        OPTIMISER,
        "Sampled objectives: draw noise once per batch or once per word.",
        metavar="batch|word",
    )

    def __post_init__(self) -> None:
        for name in (
            "epochs",
            "batch_words",
            "validations_an_epoch",
            "patience",
            "batch_rows",
            "bptt",
            "accumulate",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a positive number")
        for name in ("momentum", "average_decay", "plateau_factor"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 0 ≤ {name} < 1")
        for name, known in (
            ("optimiser", OPTIMISERS), ("schedule", SCHEDULES), ("average", AVERAGES),
            ("objective", OBJECTIVES), ("noise_per", NOISE_PER),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}")
        if self.momentum and self.optimiser != "sgd":
            raise ConfigError(
                f"momentum is {self.momentum}, but {self.optimiser} has none; choose optimiser sgd"
            )


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Network options; all except dropout must be None if the run starts from an existing network."""

    kind: str | None = option(
        None, NETWORK, "Type of network; default lstm.", "--network", metavar="lstm|gru|elman|feedforward|lbl"
    )
    embedding_size: int | None = option(
        None, NETWORK, "Size of the word embeddings; default 200.", "--embedding"
    )
    hidden_size: int | None = option(None, NETWORK, "Size of the hidden state; default 200.", "--hidden")
    layers: int | None = option(None, NETWORK, "Number of layers; default 1.")
    activation: str | None = option(
        None,
        NETWORK,
        "Activation of elman, feedforward and lbl networks; default tanh.",
        metavar="tanh|sigmoid|relu|linear",
    )
    window: int | None = option(None, NETWORK, "Context words of feedforward and lbl networks; default 4.")
    residual: bool | None = option(
        None, NETWORK, "Residual connections around the layers above the first.", "--residual/--plain"
    )
    tied: bool | None = option(
        None, NETWORK, "Use the input embedding as output weights too (default).", "--tied/--untied"
    )
    carried: bool | None = option(
        None, TEXT, "Carry the state across sentence boundaries, or reset it (default).", "--carried/--reset"
    )
    output: str | None = option(
        None,
        NETWORK,
        "Output layer: class-factored softmax (default), full softmax or tree softmax.",
        "--output-layer",
        metavar="classes|full|tree",
    )
    n_classes: int | None = option(None, NETWORK, "Number of output classes; default √V.", "--classes")
    class_by: str | None = option(
        None,
        NETWORK,
        "Word classes: equal mass of √count (default) or count, Brown clusters, or k-means of --vectors.",
        metavar="sqrt|mass|brown|kmeans",
    )
    tree: str | None = option(
        None,
        NETWORK,
        "Tree of the tree softmax: Huffman tree (default), or learned from --vectors.",
        metavar="huffman|learned",
    )
    vectors: str | None = option(
        None,
        NETWORK,
        "Word vectors for kmeans and learned: a training run or a text file; default: computed from "
        "neighbouring words.",
    )
    embeddings: str | None = option(
        None, NETWORK, "Text file of word2vec or GloVe vectors that initialise the embedding."
    )
    freeze_embeddings: bool | None = option(
        None, NETWORK, "Keep the embedding fixed during training.", "--freeze-embeddings/--tune-embeddings"
    )
    dropout: float = option(0.0, REGULARISATION, "Dropout probability.")
    locked_dropout: bool | None = option(
        None, REGULARISATION, "Use one dropout mask for a whole sequence.", "--locked-dropout/--free-dropout"
    )
    weight_dropout: float | None = option(
        None, REGULARISATION, "Dropout probability of the recurrent weights."
    )
