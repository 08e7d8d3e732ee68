"""Train a model in pieces of words further: all of its weights, or matrices of low rank beside them.

LoRA (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models") keeps each matrix W of a decoder's
layers, and learns the difference as a product of two small ones,

    W' = W + (α / r) · B · A,    A (r, K) random, B (M, r) zero at first,

so that only r · (K + M) numbers need gradients and moments. At the end W' takes the place of W, and scoring
is as fast as before. Embeddings, normalisations and the output layer stay as they are.

Sentences are read as scoring reads them: after the model's start, in its form of texts, with an end only if
it scores ends. The loss is the sum of -ln P of the units that scoring adds up. A folder can hold the state of
a run, from which it continues exactly.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rescorer.errors import ConfigError, ScoringError, pluralise
from rescorer.list_checks import join_history
from rescorer.progress import ProgressTask, track
from rescorer.safe_input import Folder
from rescorer.signals import HeldStop, Stopped, hold_stops
from rescorer.trie import Words
from rescorer.units.automodel import AutoModelConfig
from rescorer.units.decoders import Decoder, DecoderLayer, UnitNetwork
from rescorer.units.files import UnitConfig, load_unit_model, make_model, read_unit_config
from rescorer.units.importing import (
    CHOSEN_BY,
    check_and_write,
    find_perplexity,
    fits,
    reopen,
    score_sentences,
)
from rescorer.units.model import DecoderScorer, UnitLanguageModel
from rescorer.units.prompts import read_before
from rescorer.units.recurrent import RecurrentDecoder
from rescorer.units.smoothing import PARTS
from rescorer_training.state_files import check_options, read_state_file, write_state_file

FULL_PARAMETERS = 20_000_000
"""Largest number of parameters of a decoder of which all are trained by default."""
DEFAULT_RANK = 16
LOW_RANK_RATE, FULL_RATE = 1e-3, 3e-4
"""Default peak learning rates: with LoRA, and of all weights."""
MAX_RANK = 1024
MAX_UNITS_READ = 512
"""Largest number of units of a sentence that is trained on; longer ones are cut."""
PART_UNITS, PARTS_PER_STEP = 256, 2
"""Units, padding included, whose activations are held at once, and number of such parts per step."""
POOL_SENTENCES = 2048
"""Number of sentences that are sorted by length at once, so that parts have little padding."""
VALIDATIONS = 10
"""Number of validations in a run that is not stopped early."""
WARMUP = 0.05  # share of a run in which the learning rate rises
FINAL_RATE = 0.1  # last learning rate, relative to the peak
MAX_FITTING_WORDS = 3000
"""Words of held-out text by which training stops; more would take as long as the training itself."""
MAX_JUDGED_WORDS = 10_000
"""Words of a text by which a model is judged before and after."""
SCORED_AT_ONCE = 50  # sentences
REPLAYED = 0.25
"""Share of the sentences that are drawn from the original text, if there is one."""
SCORES_AT_ONCE = 1 << 23  # scores of units that the loss computes at once, in numbers


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of every run: which weights are trained, and how long. They are saved with the run.

    Raises:
        ConfigError: a value is out of range.
    """

    epochs: int = 12
    """Largest number of passes over the text or the lists."""
    rank: int | None = None
    """r; 0: all weights are trained; None: ``DEFAULT_RANK``, or 0 for recurrent networks and decoders of at
    most ``FULL_PARAMETERS``."""
    alpha: float | None = None
    """α; None: 2 · r."""
    learning_rate: float | None = None
    """Peak learning rate; None: ``LOW_RANK_RATE`` or ``FULL_RATE``."""
    bfloat16: bool = False
    """Whether LoRA multiplies the matrices that it keeps in bfloat16."""
    patience: int = 2
    """Consecutive validations without improvement after which training stops."""
    seed: int = 1

    def __post_init__(self) -> None:
        check_range(self, {"epochs": (1, None), "rank": (0, MAX_RANK), "patience": (1, None)})
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise ConfigError(f"alpha is {self.alpha}; expected a finite number above 0")
        if self.learning_rate is not None and not 0 < self.learning_rate <= 1:  # of AdamW: weights move by it
            rate = self.learning_rate
            raise ConfigError(f"learning_rate is {rate}; expected a number above 0, at most 1")


def check_range(options: RunOptions, ranges: Mapping[str, tuple[int, int | None]]) -> None:
    """Raise ConfigError if an option that is a number is below or above its bounds."""
    for name, (least, largest) in ranges.items():
        value = getattr(options, name)
        if value is not None and not least <= value <= (largest or value):
            expected = f"{least} to {largest:,}" if largest else f"at least {least}"
            raise ConfigError(f"{name} is {value}; expected {expected}")


@dataclass(frozen=True, slots=True)
class FinetuningOptions(RunOptions):
    """Options of a run on text.

    Raises:
        ConfigError: a value is out of range.
    """

    words: int = 200_000
    """Largest number of words of the text to read."""
    before: int = 0
    """Number of sentences of the text, before each one, that are read as its previous utterances."""

    def __post_init__(self) -> None:
        RunOptions.__post_init__(self)  # super() does not work in a dataclass with slots
        check_range(self, {"words": (1, None), "before": (0, None)})


class LowRankLayer(DecoderLayer):
    """A layer with products of low rank beside its matrices.

    Args:
        factors: A (r, K) and B (M, r) of each matrix, by its name.
        scale: α / r.
    """

    def __init__(
        self, layer: DecoderLayer, factors: Mapping[str, tuple[Tensor, Tensor]], scale: float
    ) -> None:
        super().__init__(layer.config, layer.tensors)
        self.factors, self.scale = factors, scale

    def multiply(
        self, x: Tensor, name: str, added: Tensor | None = None, rows: slice | None = None
    ) -> Tensor:
        down, up = self.factors[name]
        change = functional.linear(functional.linear(x, down), up if rows is None else up[rows])
        return super().multiply(x, name, added, rows) + self.scale * change


@dataclass(frozen=True, slots=True)
class Trainable:
    """A network, and those of its tensors that are trained."""

    network: UnitNetwork
    parameters: Mapping[str, Tensor]
    scale: float | None = None
    """α / r of LoRA; None: the parameters are the network's own tensors."""

    def merge(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the trained model, by those of the model as it was, in float32; none is changed."""
        trained = {name: tensor.detach() for name, tensor in self.parameters.items()}
        if self.scale is None:
            return {**tensors, **trained}
        merged = dict(tensors)
        for name in (name.removesuffix(".down") for name in trained if name.endswith(".down")):
            change = trained[f"{name}.up"].double() @ trained[f"{name}.down"].double()
            merged[f"{name}.weight"] = (tensors[f"{name}.weight"].double() + self.scale * change).float()
        return merged


def choose_rank(model: UnitLanguageModel, options: RunOptions) -> int:
    """The rank of LoRA, or 0 if all weights are trained; see ``RunOptions.rank``.

    Raises:
        ConfigError: a rank is given for a recurrent network.
    """
    assert isinstance(model.scorer, DecoderScorer)
    decoder = model.scorer.decoder
    if isinstance(decoder, RecurrentDecoder):
        if options.rank:
            raise ConfigError(
                f"rank is {options.rank}, but {model.name!r} is a recurrent network; expected 0"
            )
        return 0
    assert isinstance(decoder, Decoder)
    if options.rank is not None:
        return options.rank
    return 0 if sum(map(Tensor.numel, decoder.tensors.values())) <= FULL_PARAMETERS else DEFAULT_RANK


def make_trainable(model: UnitLanguageModel, options: RunOptions, rank: int) -> Trainable:
    """The network of a loaded model to train. The model's tensors, which may be mapped from a file, stay as
    they are.

    Args:
        rank: result of ``choose_rank``.
    """
    assert isinstance(model.scorer, DecoderScorer)
    decoder = model.scorer.decoder
    if isinstance(decoder, Decoder) and rank:
        return _add_low_rank(decoder, rank, options)
    assert isinstance(decoder, Decoder | RecurrentDecoder)
    copies = {name: tensor.detach().clone().requires_grad_() for name, tensor in decoder.tensors.items()}
    kind = Decoder if isinstance(decoder, Decoder) else RecurrentDecoder
    return Trainable(kind(decoder.config, copies), copies)  # type: ignore[arg-type]


def _add_low_rank(decoder: Decoder, rank: int, options: RunOptions) -> Trainable:
    random = torch.Generator().manual_seed(options.seed)
    scale = (options.alpha or 2.0 * rank) / rank
    network, parameters = Decoder(decoder.config, decoder.tensors), dict[str, Tensor]()
    layers = []
    for number, layer in enumerate(network.layers):
        factors = {}
        for part in PARTS:
            rows, columns = layer.tensors[f"{part}.weight"].shape
            down = (2 * torch.rand(rank, columns, generator=random) - 1) / math.sqrt(columns)
            pair = (down.to(decoder.device), torch.zeros(rows, rank, device=decoder.device))
            factors[part] = pair[0].requires_grad_(), pair[1].requires_grad_()
            name = f"layers.{number}.{part}"
            parameters |= {f"{name}.down": factors[part][0], f"{name}.up": factors[part][1]}
        layers.append(LowRankLayer(layer, factors, scale))
    network.layers = [*layers]
    return Trainable(network, parameters, scale)


class UnitSentence(NamedTuple):
    """A sentence as a model reads it."""

    units: list[int]
    """Units of start, what was said before, text and end."""
    n_words: int
    first_scored: int
    """Position of the first unit that is scored."""

    @property
    def is_scored(self) -> bool:
        """Whether the sentence has a unit that is scored."""
        return self.first_scored < len(self.units)


class UnitWriter:
    """Writes sentences as the units that a model reads when it scores them."""

    def __init__(self, model: UnitLanguageModel, config: UnitConfig) -> None:
        if isinstance(config.decoder, AutoModelConfig):
            raise ConfigError(
                f"{model.name!r} is run by transformers, and only models that this package runs itself can "
                "be adapted; train it further with transformers, and import the result"
            )
        assert isinstance(model.scorer, DecoderScorer)
        self.divider, self.config = model.divider, config
        self.n_positions = model.scorer.decoder.n_positions

    def write(self, words: Words, history: Words = ()) -> UnitSentence:
        """The units of a sentence of words, as the model's form of texts has them.

        Args:
            history: what was said before, see ``prompts.read_before``.
        """
        start, end = self.config.start, [] if self.config.end is None else [self.config.end]
        before, text = (
            read_before(self.divider, said, self.config.prompt).units
            for said in (history, (*history, *words))
        )
        n_before = len(start) + len(before)
        return UnitSentence([*start, *text, *end], len(words), max(n_before, 1))

    @property
    def limit(self) -> int:
        """Largest number of units of a sentence that are read; longer ones are cut."""
        return min(MAX_UNITS_READ, self.n_positions)

    def fits(self, sentence: UnitSentence) -> bool:
        """Whether a sentence has something to score, and the model can read it as a whole."""
        return sentence.is_scored and len(sentence.units) <= self.limit

    def reaches(self, sentence: UnitSentence) -> bool:
        """Whether something is left to score of a sentence when it is cut."""
        return sentence.is_scored and sentence.first_scored < self.limit

    def pad(self, sentences: Sequence[UnitSentence], device: torch.device) -> tuple[Tensor, Tensor]:
        """What the network reads, (B, T), and the unit after each position, (B, T); -1 where none is
        scored."""
        width = min(max(len(sentence.units) for sentence in sentences), self.limit) - 1
        inputs = np.zeros((len(sentences), width), dtype=np.int64)
        targets = np.full((len(sentences), width), -1, dtype=np.int64)
        for row, (units, _, first) in enumerate(sentences):
            cut = units[: width + 1]
            inputs[row, : len(cut) - 1] = cut[:-1]
            targets[row, first - 1 : len(cut) - 1] = cut[first:]
        return torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)


def sum_losses(network: UnitNetwork, inputs: Tensor, targets: Tensor) -> np.ndarray:
    """Sum of -ln P of the scored units of each padded sequence, (B,) float64, see ``UnitWriter.pad``."""
    with torch.no_grad():
        vectors, wanted = _scored_rows(network, inputs, targets)
        rows = torch.arange(len(wanted), device=wanted.device)
        log_probs = network.log_probs(vectors, rows, wanted).cpu().numpy()
    sequence = np.nonzero(targets.cpu().numpy() >= 0)[0]
    return np.bincount(sequence, weights=-log_probs, minlength=len(targets))


def add_gradients(
    network: UnitNetwork, inputs: Tensor, targets: Tensor, factors: float | np.ndarray
) -> float:
    """Add the gradients of the sum of -ln P, which is returned, each sequence times its factor.

    Scores of all units are held for some rows at a time only.

    Args:
        factors: of all sequences, or (B,) of each.
    """
    vectors, wanted = _scored_rows(network, inputs, targets)
    leaf = vectors.detach().requires_grad_()
    n_rows = max(1, SCORES_AT_ONCE // len(network.tensors["embedding.weight"]))
    by_sequence = torch.as_tensor(np.broadcast_to(factors, len(targets)).copy()).to(vectors)
    by_unit = by_sequence.unsqueeze(1).expand_as(targets)[targets >= 0]  # (N,)
    total = 0.0
    parts = (part.split(n_rows) for part in (leaf, wanted, by_unit))
    for part, units, weights in zip(*parts, strict=True):
        losses = functional.cross_entropy(network.scores(part), units, reduction="none")
        (weights @ losses).backward()  # type: ignore[no-untyped-call]
        total += float(losses.detach().sum())
    if leaf.grad is not None:
        vectors.backward(leaf.grad)  # type: ignore[no-untyped-call]
    return total


def _scored_rows(network: UnitNetwork, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Context vectors before the scored units, (N, D), and these units, (N,)."""
    places = (targets.flatten() >= 0).nonzero().squeeze(1)
    vectors = network.batch_vectors(inputs).flatten(0, 1).index_select(0, places)
    return vectors, targets.flatten().index_select(0, places)


@dataclass(frozen=True, slots=True)
class FinetuningTexts:
    """The texts of a run, as words in the model's form of texts."""

    train: Sequence[Words]
    fitting: Sequence[Words]
    """Held-out text by which training stops."""
    replay: Sequence[Words] = ()
    """Text of the kind that the model was trained on, of which ``REPLAYED`` of the sentences are drawn."""

    def digest(self) -> str:
        """SHA-256 of all words, in hexadecimal."""
        digest = hashlib.sha256()
        for text in (self.train, self.fitting, self.replay):
            for words in text:
                digest.update(f"{' '.join(words)}\n".encode())
            digest.update(b"\0")
        return digest.hexdigest()


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    step: int = 0
    n_read: int = 0
    """Number of words, those of replayed sentences included, or of lists that were read."""
    validated: int = -1
    """Step of the last validation."""
    without_gain: int = 0
    """Consecutive validations without improvement."""
    seconds: float = 0.0
    figures: list[float] = field(default_factory=list)
    """Result of each validation; the first is before training. Less is better."""


def find_history(sentences: Sequence[Words], index: int, before: int) -> Words:
    """The ``before`` sentences before one, joined by ``list_checks.join_history``."""
    return join_history(sentences[max(index - before, 0) : index], ())


def take_words(sentences: Iterable[Words], most: int) -> Iterator[Words]:
    """The first sentences, until they have ``most`` words."""
    n_words = 0
    for words in sentences:
        if n_words >= most:
            return
        n_words += len(words)
        yield words


def plan_parts(sentences: Sequence[UnitSentence]) -> list[list[int]]:
    """Divide sentences, shorter ones first, into parts of at most ``PART_UNITS``, padding included, or of one
    sentence; return the indices of the sentences of each part."""
    parts: list[list[int]] = []
    for index in sorted(range(len(sentences)), key=lambda index: len(sentences[index].units)):
        if not parts or (len(parts[-1]) + 1) * len(sentences[index].units) > PART_UNITS:
            parts.append([])
        parts[-1].append(index)
    return parts


def cut_into_parts(sentences: Sequence[UnitSentence]) -> list[list[UnitSentence]]:
    """The sentences of each part that ``plan_parts`` makes."""
    return [[sentences[index] for index in part] for part in plan_parts(sentences)]


Step = TypeVar("Step")


class Run(Generic[Step]):
    """A run, which takes steps, validates, stops early, keeps the best parameters, and can be resumed.

    Args:
        writer: writes what the model reads.
        n_planned: number of words or lists to read.
        identity: options and inputs, which must be the same when the run is resumed.
        state: file for the state of the run; None: it is not saved. If the file exists, the run continues.

    Raises:
        ConfigError: the state is that of a run with other options or inputs.
        BundleError: the state is damaged.
    """

    unit = "words"
    """What is counted."""
    figure = "perplexity per word"
    """What validations measure."""

    def __init__(
        self,
        trainable: Trainable,
        writer: UnitWriter,
        options: RunOptions,
        n_planned: int,
        identity: Mapping[str, Any],
        state: Path | None = None,
    ) -> None:
        self.trainable, self.writer, self.run_options = trainable, writer, options
        self.network, self.state = trainable.network, state
        self.parameters = list(trainable.parameters.values())
        rate = FULL_RATE if trainable.scale is None else LOW_RANK_RATE
        self.peak_rate = options.learning_rate or rate
        self.optimiser = torch.optim.AdamW(self.parameters, self.peak_rate, (0.9, 0.99), weight_decay=0.0)
        self.progress = Progress()
        self.best = [parameter.detach().clone() for parameter in self.parameters]
        self.n_planned = n_planned
        self.identity = {**asdict(options), **identity}
        if state is not None and state.exists():
            self._resume(state)

    def make_steps(self) -> Iterator[Step]:
        """Endless steps, the same for the same seed."""
        raise NotImplementedError

    def validate(self, check: Callable[[], object]) -> float:
        """Measure the network on what is held out; less is better.

        Args:
            check: called now and then; raises an exception to end the run.
        """
        raise NotImplementedError

    def add_step(self, step: Step) -> tuple[float, int]:
        """Add the gradients of a step; return its loss, and the number of words or lists that were read."""
        raise NotImplementedError

    def run(self, name: str) -> Progress:
        """Train, and leave the parameters that were best in validations in the network.

        SIGTERM and Ctrl-C take effect between two steps, after the state has been saved.

        Raises:
            ScoringError: the loss is not finite, or the state cannot be saved.
        """
        progress, patience = self.progress, self.run_options.patience
        started = time.monotonic() - progress.seconds
        steps = self.make_steps()
        for _ in range(progress.step):
            next(steps)
        with track(f"training {name}", self.unit, self.n_planned) as task, hold_stops() as stop:
            task.advance(min(progress.n_read, self.n_planned))
            try:
                while True:
                    if self._is_validation_due():
                        self._validate(stop, task)
                        progress.seconds = time.monotonic() - started
                        self._save()
                    if progress.n_read >= self.n_planned or progress.without_gain >= patience:
                        break
                    self._take_step(next(steps), task)
                    progress.seconds = time.monotonic() - started
                    stop.check()
            except Stopped:
                self._save()
                raise
        with torch.no_grad():
            for parameter, best in zip(self.parameters, self.best, strict=True):
                parameter.copy_(best)
        return progress

    def _is_validation_due(self) -> bool:
        progress = self.progress
        due = len(progress.figures) * self.n_planned / VALIDATIONS
        return progress.validated < progress.step and progress.n_read >= min(due, self.n_planned)

    def _validate(self, stop: HeldStop, task: ProgressTask) -> None:
        """Measure what is held out, and keep the parameters if they are the best."""
        found, progress = self.validate(stop.check), self.progress
        is_best = found < min(progress.figures, default=math.inf)
        if is_best:
            self.best = [parameter.detach().clone() for parameter in self.parameters]
        progress.without_gain = 0 if is_best else progress.without_gain + 1
        progress.figures.append(found)
        progress.validated = progress.step
        task.set_note(f"{self.figure} {found:.4g}")

    def _take_step(self, step: Step, task: ProgressTask) -> None:
        progress = self.progress
        done = progress.n_read / self.n_planned
        rate = min((done + WARMUP / 10) / WARMUP, 1 - (1 - FINAL_RATE) * done)
        for group in self.optimiser.param_groups:
            group["lr"] = self.peak_rate * min(rate, 1.0)
        self.optimiser.zero_grad(set_to_none=True)
        loss, n_read = self.add_step(step)
        if not math.isfinite(loss):
            raise ScoringError(f"the loss is {loss} at step {progress.step}; choose a lower learning rate")
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        progress.step, progress.n_read = progress.step + 1, progress.n_read + n_read
        task.advance(n_read)

    def _save(self) -> None:
        if self.state is None:
            return
        tensors = dict[str, Tensor]()
        for number, (name, parameter) in enumerate(self.trainable.parameters.items()):
            tensors |= {f"now.{name}": parameter, f"best.{name}": self.best[number]}
            moments = self.optimiser.state.get(parameter, {})
            tensors |= {f"{key}.{name}": value for key, value in moments.items()}
        position = f"step {self.progress.step}"
        write_state_file(self.state, tensors, self.identity, asdict(self.progress), position)

    def _resume(self, state: Path) -> None:
        metadata, tensors = read_state_file(state)
        check_options(state, json.loads(metadata["options"]), self.identity)
        self.progress = Progress(**json.loads(metadata["progress"]))
        device = self.network.device
        with torch.no_grad():
            for number, (name, parameter) in enumerate(self.trainable.parameters.items()):
                parameter.copy_(tensors[f"now.{name}"])
                self.best[number] = tensors[f"best.{name}"].to(device)
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in tensors]
                if keys:
                    moments = {key: tensors[f"{key}.{name}"] for key in keys}
                    self.optimiser.state[parameter] = {
                        key: value if key == "step" else value.to(device) for key, value in moments.items()
                    }


class Finetuner(Run[list[list[UnitSentence]]]):
    """A run on text, which minimises its perplexity. A step is a few parts.

    Raises:
        ConfigError: a text has nothing to score; or as ``Run``.
        BundleError: as ``Run``.
    """

    def __init__(
        self,
        trainable: Trainable,
        writer: UnitWriter,
        texts: FinetuningTexts,
        options: FinetuningOptions,
        state: Path | None = None,
    ) -> None:
        self.texts, self.before = texts, options.before
        held_out = list(take_words(texts.fitting, MAX_FITTING_WORDS))
        fitting = (
            writer.write(words, find_history(held_out, index, self.before))
            for index, words in enumerate(held_out)
        )
        self.fitting = [sentence for sentence in fitting if writer.fits(sentence)]
        if not self.fitting:
            raise ConfigError("the held-out text has no sentence that the model can read")
        n_words = min(options.epochs * sum(map(len, texts.train)), options.words)
        super().__init__(trainable, writer, options, n_words, {"texts": texts.digest()}, state)
        if not any(writer.reaches(self._write(index)) for index in range(len(texts.train))):
            raise ConfigError("the text has no sentence of which the model scores a unit")

    def make_steps(self) -> Iterator[list[list[UnitSentence]]]:
        random = np.random.default_rng(self.run_options.seed)
        parts: list[list[UnitSentence]] = []
        for pool in self._make_pools(random):
            new = cut_into_parts(list(filter(self.writer.reaches, pool)))
            parts += [new[number] for number in random.permutation(len(new))]
            while len(parts) >= PARTS_PER_STEP:
                yield parts[:PARTS_PER_STEP]
                del parts[:PARTS_PER_STEP]

    def _write(self, index: int) -> UnitSentence:
        """A sentence to train on, after those before it."""
        train = self.texts.train
        return self.writer.write(train[index], find_history(train, index, self.before))

    def _make_pools(self, random: np.random.Generator) -> Iterator[list[UnitSentence]]:
        """Endless sentences in random order, ``POOL_SENTENCES`` at a time."""
        replay = self.texts.replay
        pool: list[UnitSentence] = []
        while True:
            for index in random.permutation(len(self.texts.train)).tolist():
                pool.append(self._write(index))
                if replay and random.random() < REPLAYED / (1 - REPLAYED):
                    pool.append(self.writer.write(replay[int(random.integers(len(replay)))]))
                if len(pool) >= POOL_SENTENCES:
                    yield pool
                    pool = []
            yield pool
            pool = []

    def validate(self, check: Callable[[], object]) -> float:
        log_prob, n_words = 0.0, sum(sentence.n_words for sentence in self.fitting)
        for part in cut_into_parts(self.fitting):
            log_prob -= float(sum_losses(self.network, *self.writer.pad(part, self.network.device)).sum())
            check()
        return math.exp(min(-log_prob / n_words, 700.0))

    def add_step(self, step: Sequence[Sequence[UnitSentence]]) -> tuple[float, int]:
        padded = [self.writer.pad(part, self.network.device) for part in step]
        n_scored = sum(int((targets >= 0).sum()) for _, targets in padded)
        loss = sum(add_gradients(self.network, *part, 1 / n_scored) for part in padded)
        return loss, sum(sentence.n_words for part in step for sentence in part)


@dataclass(frozen=True, slots=True)
class Finetuned:
    """A model that was trained further."""

    folder: Path
    """Folder of the result: that of the model as it was, unless training improved it and wrote it."""
    figures: Sequence[float]
    """Result of each validation; the first is before training. See ``Run.figure``."""
    n_read: int
    """Number of words or lists that training read."""
    seconds: float
    rank: int
    """Rank of LoRA; 0: all weights were trained."""
    trained: int
    """Number of trained parameters."""

    @property
    def is_improved(self) -> bool:
        return min(self.figures) < self.figures[0]

    def to_dict(self) -> dict[str, Any]:
        """Convert the facts of a run on text to JSON data."""
        return {
            "improved": self.is_improved,
            "fitting_perplexity_per_word": [round(value, 3) for value in self.figures],
            "words": self.n_read,
            "seconds": round(self.seconds, 1),
            "rank": self.rank,
            "trained_parameters": self.trained,
        }


@dataclass(frozen=True, slots=True)
class FinetuningPlaces:
    """Where a model is, and where files go."""

    source: Path
    """Folder of an imported model."""
    output: Path
    """Folder to write, if the model was improved."""
    state: Path | None = None
    """File for the state of the run."""
    device: str = "cpu"


def finetune(
    name: str,
    places: FinetuningPlaces,
    texts: FinetuningTexts,
    options: FinetuningOptions,
    note: Mapping[str, Any],
) -> Finetuned:
    """Train an imported model further, and write the result as an import writes it, after the same checks.

    Args:
        name: name of the model.
        note: what the configuration of the result records of its origin, besides what that of the source has.

    Raises:
        ConfigError: the model cannot be trained, or a text has nothing to score.
        BundleError: the model or the state is damaged, or scores of the result fail the checks.
        ScoringError: training diverges, or the state cannot be saved.
    """
    source = SourceModel.load(places.source, name, places.device)
    if options.before and not source.model.reads_previous:
        raise ConfigError(
            f"{name!r} is to read {pluralise(options.before, 'sentence')} before each one, but it does not "
            "read previous utterances; import it with --prompt"
        )
    rank = choose_rank(source.model, options)
    trainable = source.make_trainable(options, rank)
    run = Finetuner(trainable, source.writer, texts, options, places.state)
    progress = run.run(name)
    found = Finetuned(
        places.source, progress.figures, progress.n_read, progress.seconds, rank,
        sum(parameter.numel() for parameter in run.parameters),
    )  # fmt: skip
    if not found.is_improved:
        return found
    adaptation = {**asdict(options), **found.to_dict(), **note}
    source.write(trainable, texts.fitting, places.output, adaptation)
    return replace(found, folder=places.output)


@dataclass(frozen=True, slots=True)
class SourceModel:
    """An imported model that is to be trained further."""

    folder: Path
    config: UnitConfig
    model: UnitLanguageModel
    writer: UnitWriter
    device: str

    @classmethod
    def load(cls, folder: Path, name: str, device: str) -> SourceModel:
        """Load a model from its folder.

        Raises:
            ConfigError: the model is run by another library.
            BundleError: the model is damaged.
        """
        config = read_unit_config(Folder(folder))
        model = load_unit_model(folder, name, device, context_cache_bytes=0)
        return cls(folder, config, model, UnitWriter(model, config), device)

    def make_trainable(self, options: RunOptions, rank: int) -> Trainable:
        """A network to train; see the function ``make_trainable``."""
        model = self.model
        if rank and options.bfloat16:
            model = load_unit_model(self.folder, model.name, self.device, "bfloat16", context_cache_bytes=0)
        return make_trainable(model, options, rank)

    def merge(self, trainable: Trainable) -> UnitLanguageModel:
        """The trained model, on the device of the source."""
        assert isinstance(self.model.scorer, DecoderScorer)
        tensors = trainable.merge(self.model.scorer.decoder.tensors)  # type: ignore[union-attr]
        return self._make(self.config, tensors)

    def _make(self, config: UnitConfig, tensors: Mapping[str, Tensor]) -> UnitLanguageModel:
        tokenizer = self.model.divider.tokenizer
        return make_model(config, tensors, tokenizer, self.model.name, context_cache_bytes=0)

    def write(
        self, trainable: Trainable, texts: Sequence[Words], folder: Path, adaptation: Mapping[str, Any]
    ) -> None:
        """Write the trained model as an import writes it, after the same checks.

        Args:
            texts: words in the model's form of texts, of which some are used for the checks.
            adaptation: what the configuration records of the training.

        Raises:
            BundleError: scores of the result fail the checks.
        """
        assert isinstance(self.model.scorer, DecoderScorer)
        base: Mapping[str, Tensor] = self.model.scorer.decoder.tensors  # type: ignore[union-attr]
        tensors = {key: tensor.cpu() for key, tensor in trainable.merge(base).items()}
        foreign = reopen(self.folder, self.config, tensors)
        source = {**foreign.source, "sha256": foreign.digest(), "adaptation": adaptation}
        config = replace(self.config, source=source)
        merged = self._make(config, tensors)
        sentences = [words for words in texts if fits(merged, words)][:CHOSEN_BY]
        check_and_write(replace(foreign, source=source), config, merged, sentences, folder)


def per_word_perplexity(
    folder: Path, name: str, sentences: Sequence[Words], purpose: str, before: int = 0
) -> float:
    """Perplexity per word of those sentences that a model can read; not a number if there are none.

    Args:
        before: see ``FinetuningOptions``.
    """
    model = load_unit_model(folder, name, context_cache_bytes=0)
    log_prob, n_words = 0.0, 0
    with track(f"scoring {purpose}", "words", sum(map(len, sentences))) as task:
        for first in range(0, len(sentences), SCORED_AT_ONCE):
            part = range(first, min(first + SCORED_AT_ONCE, len(sentences)))
            said = [(sentences[index], find_history(sentences, index, before)) for index in part]
            if readable := [(words, history) for words, history in said if fits(model, (*history, *words))]:
                found, n_read = score_sentences(model, *zip(*readable, strict=True))
                log_prob, n_words = log_prob + found, n_words + n_read
            task.advance(sum(len(words) for words, _ in said))
    return find_perplexity(log_prob, n_words) if n_words else math.nan
