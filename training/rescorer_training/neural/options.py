"""Owns what a neural run can be told: how it trains and which network it makes; plain data, checked."""

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
    """How a run trains; stored with it, and compared when it is resumed."""

    epochs: int = option(10, OPTIMISER, "Passes over the text.")
    batch_words: int = option(4096, TEXT, "Sentence by sentence: words a batch, padding included.")
    learning_rate: float = option(2e-3, OPTIMISER, "Peak of the schedule.")
    warmup_steps: int = option(200, OPTIMISER, "Steps up to the peak.")
    gradient_clip: float = option(1.0, OPTIMISER, "Largest norm of the gradient of the mean loss.")
    weight_decay: float = option(0.0, REGULARISATION, "AdamW's, or the L2 penalty of sgd.")
    validations_an_epoch: int = option(1, RUN, "How often to measure.")
    patience: int = option(4, RUN, "Validations in a row without a new best before stopping.")
    bfloat16: bool = option(False, RUN, "Multiply the network's matrices in bfloat16.")
    seed: int = option(1, RUN, "Of weights, batches and dropout.")
    batch_rows: int = option(20, TEXT, "Carried state: places of the text read in parallel.")
    bptt: int = option(35, TEXT, "Carried state: words after which the gradient is cut (truncated BPTT).")
    accumulate: int = option(1, RUN, "Parts a batch is computed in, one after another, to need less memory.")
    optimiser: str = option("adamw", OPTIMISER, "AdamW, or plain stochastic gradient.", metavar="adamw|sgd")
    momentum: float = option(0.0, OPTIMISER, "Of sgd.")
    schedule: str = option(
        "cosine",
        OPTIMISER,
        "After the warm-up: to zero over all epochs, down when validation stops gaining, or unchanged.",
        metavar="cosine|plateau|constant",
    )
    plateau_gain: float = option(0.003, OPTIMISER, "plateau: lower the rate below this relative gain.")
    plateau_factor: float = option(0.5, OPTIMISER, "plateau: what the rate is multiplied by.")
    average: str = option(
        "none",
        REGULARISATION,
        "Weights to validate and keep: the last, their moving average, or the mean since --average-from.",
        metavar="none|ema|uniform",
    )
    average_decay: float = option(0.999, REGULARISATION, "ema: share of the average kept at a step.")
    average_from: int = option(
        0, REGULARISATION, "uniform: epoch it starts after; 0: once 5 validations bring no new best."
    )

    objective: str = option(
        "ml",
        OPTIMISER,
        "Maximum likelihood; with a full softmax also noise contrast, negative sampling, sampled softmax.",
        metavar="ml|nce|negative|sampled",
    )
    noise_samples: int = option(512, OPTIMISER, "Sampled objectives: words drawn for a batch or a word.")
    noise_power: float = option(1.0, OPTIMISER, "Sampled objectives: words are drawn by count to this power.")
    noise_per: str = option("batch", OPTIMISER, "Sampled objectives: draw for.", metavar="batch|word")

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
            raise ConfigError(f"momentum is {self.momentum} for {self.optimiser}; only sgd has one")


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """The network to make. One that is inherited has its own: all but dropout must be None."""

    kind: str | None = option(
        None, NETWORK, "The network; default lstm.", "--network", metavar="lstm|gru|elman|feedforward|lbl"
    )
    embedding_size: int | None = option(
        None, NETWORK, "Size of the word vectors; default 200.", "--embedding"
    )
    hidden_size: int | None = option(None, NETWORK, "Size of the hidden state; default 200.", "--hidden")
    layers: int | None = option(None, NETWORK, "Layers, stacked; default 1.")
    activation: str | None = option(
        None, NETWORK, "Of elman, feedforward and lbl; default tanh.", metavar="tanh|sigmoid|relu|linear"
    )
    window: int | None = option(None, NETWORK, "Words that feedforward and lbl see; default 4.")
    residual: bool | None = option(
        None, NETWORK, "Layers above the first add to what they were given.", "--residual/--plain"
    )
    tied: bool | None = option(
        None, NETWORK, "One matrix for input embedding and output words (default).", "--tied/--untied"
    )
    carried: bool | None = option(
        None, TEXT, "State goes on over sentence ends, or starts anew (default).", "--carried/--reset"
    )
    output: str | None = option(
        None,
        NETWORK,
        "Softmax by classes (default), full, or a tree.",
        "--output-layer",
        metavar="classes|full|tree",
    )
    n_classes: int | None = option(None, NETWORK, "Output classes; default √V.", "--classes")
    class_by: str | None = option(
        None,
        NETWORK,
        "Classes of equal mass of √count (default) or count, of words with like neighbours, or by --vectors.",
        metavar="sqrt|mass|brown|kmeans",
    )
    tree: str | None = option(
        None, NETWORK, "Of tree: by word counts (default), or by --vectors.", metavar="huffman|learned"
    )
    vectors: str | None = option(
        None,
        NETWORK,
        "kmeans and learned: a run or a text file whose word vectors to go by; default: words beside.",
    )
    embeddings: str | None = option(
        None, NETWORK, "Text file of word vectors that the embedding starts from: word2vec's or GloVe's."
    )
    freeze_embeddings: bool | None = option(
        None, NETWORK, "Leave these vectors as they are.", "--freeze-embeddings/--tune-embeddings"
    )
    dropout: float = option(0.0, REGULARISATION, "Share of values dropped in training.")
    locked_dropout: bool | None = option(
        None, REGULARISATION, "One dropout mask for a whole sequence.", "--locked-dropout/--free-dropout"
    )
    weight_dropout: float | None = option(None, REGULARISATION, "Share of recurrent weights dropped a batch.")
