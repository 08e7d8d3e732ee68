"""Options of a training run and of its network. They are validated when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rescorer.errors import ConfigError
from rescorer_training.progress import option

MAX_SEED = 2**63 - 1
MAX_TEACHER_WORDS = 1_000


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Training options, which are saved with the run. A resumed run must have the same options.

    Raises:
        ConfigError: a value is out of range or unknown.
    """

    epochs: int = option(10, "Number of passes over the training text.")
    batch_words: int = option(4096, "Maximum number of words per batch of sentences, including padding.")
    learning_rate: float = option(2e-3, "Peak learning rate.")
    warmup_steps: int = option(200, "Number of steps of linear warm-up to the peak learning rate.")
    gradient_clip: float = option(
        1.0, "Maximum norm of the gradient of the mean loss; larger gradients are scaled down."
    )
    weight_decay: float = option(0.0, "Weight decay of AdamW, or L2 penalty of SGD.")
    validations_an_epoch: int = option(1, "Number of validations per epoch.")
    patience: int = option(4, "Consecutive validations without improvement after which training stops.")
    bfloat16: bool = option(False, "Multiply the network's matrices in bfloat16.")
    seed: int = option(1, "Random seed.")
    batch_rows: int = option(20, "With carried state: number of text positions to read in parallel.")
    bptt: int = option(
        35, "With carried state: number of words after which back-propagation through time is truncated."
    )
    accumulate: int = option(
        1, "Number of parts per batch; the parts are computed one after another to save memory."
    )
    optimiser: str = option("adamw", "AdamW or stochastic gradient descent.", metavar="adamw|sgd")
    momentum: float = option(0.0, "Momentum of SGD.")
    schedule: str = option(
        "cosine",
        "Learning rate after the warm-up: cosine decay to zero, reduced when validation stalls, or constant.",
        metavar="cosine|plateau|constant",
    )
    plateau_gain: float = option(
        0.003, "Plateau schedule: reduce the learning rate if the relative improvement is smaller than this."
    )
    plateau_factor: float = option(
        0.5, "Plateau schedule: factor by which the learning rate is multiplied at each reduction."
    )
    average: str = option(
        "none",
        "Weights to validate and save: the latest weights, their moving average, or their mean over steps.",
        metavar="none|ema|uniform",
    )
    average_decay: float = option(0.999, "With --average ema: decay per step.")
    average_from: int = option(
        0,
        "With --average uniform: epoch after which averaging starts; 0: after 5 validations without "
        "improvement.",
    )

    activation_penalty: float = option(
        0.0, "Loss per word for the mean square of the context vectors, after dropout."
    )
    change_penalty: float = option(
        0.0,
        "Loss per word for the mean square of the change of the context vectors from word to word; with "
        "dropout it needs --locked-dropout.",
    )
    objective: str = option(
        "ml",
        "Maximum likelihood; with a full softmax also noise-contrastive estimation, negative sampling or "
        "sampled softmax.",
        metavar="ml|nce|negative|sampled",
    )
    noise_samples: int = option(512, "Sampled objectives: number of noise words per batch or per word.")
    noise_power: float = option(
        1.0, "Sampled objectives: power to which word counts are raised in the noise distribution."
    )
    noise_per: str = option(
        "batch", "Sampled objectives: draw noise once per batch or once per word.", metavar="batch|word"
    )

    def __post_init__(self) -> None:
        for name in (
            "epochs", "batch_words", "validations_an_epoch", "patience", "batch_rows", "bptt", "accumulate",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"seed is {self.seed}; expected 0 to {MAX_SEED:,}")
        for name in ("activation_penalty", "change_penalty", "weight_decay", "plateau_gain", "warmup_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a finite number, at least 0")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate is {self.learning_rate}; expected a finite, positive number")
        if not self.gradient_clip > 0:
            raise ConfigError(f"gradient_clip is {self.gradient_clip}; expected a positive number")
        for name in ("momentum", "average_decay", "plateau_factor"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 0 ≤ {name} < 1")
        for item in fields(self):  # a metavar lists the known values, such as adamw|sgd
            value, known = getattr(self, item.name), (item.metadata["metavar"] or "").split("|")
            if item.metadata["metavar"] and value not in known:
                raise ConfigError(f"{item.name} is {value!r}; expected one of {', '.join(known)}")
        if self.momentum and self.optimiser != "sgd":
            raise ConfigError(
                f"momentum is {self.momentum}, but {self.optimiser} has none; choose optimiser sgd"
            )


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Network options. If a run starts from an existing network, all options except dropout must be None."""

    kind: str | None = option(
        None,
        "Type of network: long short-term memory (default), gated recurrent unit, simple recurrent network "
        "(Elman), feed-forward network (Bengio's NNLM), log-bilinear model, nonlinear log-bilinear model, or "
        "transformer.",
        "--network",
        metavar="lstm|gru|elman|feedforward|lbl|nlbl|transformer",
    )
    embedding_size: int | None = option(None, "Size of the word embeddings; default 200.", "--embedding")
    hidden_size: int | None = option(None, "Size of the hidden state; default 200.", "--hidden")
    layers: int | None = option(None, "Number of layers; default 1.")
    activation: str | None = option(
        None,
        "Activation of elman, feedforward and nlbl networks, default tanh; and of lbl, default linear.",
        metavar="tanh|sigmoid|relu|linear",
    )
    gru_reset: str | None = option(
        None,
        "Reset gate of gru networks: after the product with the recurrent weights (default), as in cuDNN, or "
        "before it, as in the papers.",
        metavar="after|before",
    )
    window: int | None = option(
        None,
        "Number of context words of feedforward, lbl and nlbl networks, default 4; or of words to which each "
        "layer of a transformer attends, default 128.",
    )
    heads: int | None = option(
        None, "Number of attention heads of a transformer, each with an even share of --hidden; default 4."
    )
    residual: bool | None = option(
        None, "Residual connections around the layers above the first.", "--residual/--plain"
    )
    tied: bool | None = option(
        None, "Share the weights of the input embedding with the output layer (default).", "--tied/--untied"
    )
    carried: bool | None = option(
        None,
        "Carry the state across sentence boundaries, or reset it at each sentence (default).",
        "--carried/--reset",
    )
    backward: bool | None = option(
        None,
        "Train on reversed sentences: predict each word from the words after it, or before it (default).",
        "--backward/--forward",
    )
    output: str | None = option(
        None,
        "Output layer: class-factored softmax (default), full softmax or tree softmax.",
        "--output-layer",
        metavar="classes|full|tree",
    )
    softmaxes: int | None = option(
        None, "Number of class-factored softmaxes that are mixed per word; default 1."
    )
    n_classes: int | None = option(None, "Number of output classes; default √V.", "--classes")
    class_by: str | None = option(
        None,
        "Word classes: equal mass of √count (default) or count, Brown clusters, or k-means of --vectors.",
        metavar="sqrt|mass|brown|kmeans",
    )
    tree: str | None = option(
        None,
        "Tree of the tree softmax: Huffman tree (default), or learned from --vectors.",
        metavar="huffman|learned",
    )
    overlap: float | None = option(
        None,
        "Learned tree: words whose probability of belonging to a side of a decision differs from 1/2 by at "
        "most this go to both sides, so that they have several places; default 0, one place per word.",
    )
    vectors: str | None = option(
        None,
        "Word vectors for --class-by kmeans and --tree learned: a file, or the folder of a training run "
        "whose output weights (classes) or mean context vectors (tree) to take; default: computed from "
        "neighbouring words.",
    )
    embeddings: str | None = option(
        None, "File of word2vec or GloVe vectors, text or binary, that initialise the embedding."
    )
    freeze_embeddings: bool | None = option(
        None, "Keep the embedding fixed during training.", "--freeze-embeddings/--tune-embeddings"
    )
    unknown_rows: str | None = option(
        None,
        "With --embeddings: start the embeddings of words without a vector at random (default), or at zero.",
        metavar="random|zero",
    )
    rescale_embeddings: bool | None = option(
        None,
        "With --embeddings: multiply all vectors by one factor, so that they are as large as random ones "
        "(default), or take them as they are.",
        "--rescale-embeddings/--keep-embeddings",
    )
    class_inputs: str | None = option(
        None,
        "Depths of classes in the tree of Brown clusters, such as 4,8,16; a vector of each class is added to "
        "a word's embedding.",
        metavar="DEPTHS",
    )
    pos_tags: int | None = option(
        None,
        "Number of parts of speech, induced from the text, that the network reads beside the words: their "
        "probabilities after the words of the sentence so far; default none.",
    )
    tags: str | None = option(
        None,
        "Tagged text whose tags the network reads in place of induced ones: a sentence word/TAG … per "
        "line, or lines of a word and its tag with an empty line after each sentence.",
        metavar="FILE",
    )
    topics: int | None = option(
        None,
        "Number of topics (LDA) of the text before each sentence that the network reads beside the words; "
        "needs scikit-learn; default none.",
    )
    topic_decay: float | None = option(
        None,
        "With --topics: the n-th topical word before a sentence counts this to the power n; default 0.98.",
    )
    shuffle_topics: bool | None = option(
        None,
        "Control experiment: give each sentence the topics of another one.",
        "--shuffle-topics/--own-topics",
    )
    dropout: float = option(0.0, "Dropout probability.")
    locked_dropout: bool | None = option(
        None, "Use one dropout mask for a whole sequence.", "--locked-dropout/--free-dropout"
    )
    weight_dropout: float | None = option(None, "Dropout probability of the recurrent weights.")
    embedding_dropout: float | None = option(
        None, "Probability that a word's input embedding is set to zero wherever it occurs in a batch."
    )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Settings of how a training run is carried out. A resumed run may have other settings."""

    threads: int | None = option(None, "Number of CPU threads. Default: all.", min=1)
    device: str = option("cpu", "Device to compute on: cpu, cuda, cuda:1, …")
    resume: bool = option(False, "Continue an interrupted run where it stopped.")


@dataclass(frozen=True, slots=True)
class TeacherOptions:
    """A large model that helps to train a network; see ``neural.teacher``.

    Raises:
        ConfigError: a value is out of range.
    """

    teacher: Path | None = option(
        None,
        "Folder of an imported language model in pieces of words, from which the network learns, too: which "
        "words it expects at each place of the training text.",
    )
    teacher_weight: float = option(
        0.5, "With --teacher: weight of the words that it expects; the rest is that of the words of the text."
    )
    teacher_words: int = option(32, "With --teacher: number of most probable words to learn at each place.")
    teacher_file: Path | None = option(
        None,
        "With --teacher: file of the words that it expects, made if there is none. Runs with the same texts "
        "and vocabulary can share it. Default: a file in the folder of the run.",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.teacher_weight <= 1:
            raise ConfigError(f"teacher_weight is {self.teacher_weight}; expected 0 to 1")
        if not 1 <= self.teacher_words <= MAX_TEACHER_WORDS:
            raise ConfigError(f"teacher_words is {self.teacher_words}; expected 1 to {MAX_TEACHER_WORDS:,}")
        if self.teacher is None and self.teacher_file is not None:
            raise ConfigError(f"--teacher-file {self.teacher_file} needs a teacher: give --teacher FOLDER")

    def identity(self) -> dict[str, Any]:
        """Options that must stay the same when a run is resumed, as plain data; empty without a teacher."""
        if self.teacher is None:
            return {}
        return {
            "teacher": str(self.teacher),
            "teacher_weight": self.teacher_weight,
            "teacher_words": self.teacher_words,
        }
