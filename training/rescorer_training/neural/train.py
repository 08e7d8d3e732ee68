"""Train a network: epochs of updates, validation, early stopping and resumption.

Back-propagation through time (Williams & Peng 1990) is truncated at the end of a sentence. If the recurrent
state is carried across sentences, it is truncated after ``bptt`` words instead. The folder of a run contains
``best/``, the model with the lowest validation perplexity; ``state.safetensors``, from which a killed run
continues exactly; and ``log.jsonl``, with one line per validation.

``torch.compile`` is not used: on a busy two-core machine it took more than three minutes to compile an LSTM
over 35 words.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError
from rescorer.formats.io.text_io import write_text
from rescorer.models.contexts import TopicReader
from rescorer.models.network_files import NetworkConfig, Vocabulary, read_config, read_vocabulary
from rescorer.models.networks import State
from rescorer.models.neural import NeuralModel, SequenceModel, load_model
from rescorer.safe_input import Folder
from rescorer.signals import HeldStop, Stopped, hold_stops
from rescorer_training.batches import Batches, SentenceBatches, Sentences, StreamBatches
from rescorer_training.corpus import record_normaliser
from rescorer_training.neural import build, checkpoint, export, optimisation, pieces, prepare
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.teacher import Lessons, prepare_lessons

LOSS_CHECK_STEPS = 20
"""Number of steps between checks of the loss and of the time since the last checkpoint.

Each check of the loss makes the CPU wait for a GPU."""
CHECKPOINT_EVERY_S = 300.0
"""Maximum time between two checkpoints; each validation also writes one."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A run, in which one network is trained."""

    folder: Path
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Further plain data that must not change when the run is resumed, such as names of texts."""
    processes: checkpoint.ProcessGroup = field(default_factory=checkpoint.ProcessGroup)
    """Group of processes that share the run."""
    monitor: prepare.Monitor | None = None
    """Receives progress reports. None for the default, which shows a bar and writes ``log.jsonl``."""
    lessons: Lessons | None = None
    """Words that a teacher expects in the training text; None without a teacher."""


class Trainer:
    """Train the network of a run.

    Args:
        objective: the loss function.
    """

    def __init__(
        self,
        run: TrainingRun,
        model: SequenceModel,
        vocabulary: Vocabulary,
        options: TrainingOptions,
        objective: optimisation.Objective = optimisation.MaximumLikelihood(),  # noqa: B008 (has no state)
    ) -> None:
        optimisation.check_penalties(options, model.config)
        self.folder, self.processes = run.folder, run.processes
        self.model, self.vocabulary, self.options = model, vocabulary, options
        self.objective, self.lessons = objective, run.lessons
        self.monitor = run.monitor or prepare.Monitor(run.folder, quiet=not run.processes.is_first)
        self.checkpoint_every_s = CHECKPOINT_EVERY_S
        self.identity = {**asdict(options), **run.inputs}
        self.device = next(model.parameters()).device
        named = [pair for pair in model.named_parameters() if pair[1].requires_grad]
        self.parameters = [parameter for _, parameter in named]
        self.clipper = optimisation.GradientClipper(named, options.gradient_clip)
        self.optimiser = optimisation.make_optimiser(options, self.parameters)
        self.average = optimisation.WeightAverage(self.parameters, options)
        self.progress = checkpoint.Progress()
        self.states: list[State | None] = [None] * options.accumulate
        """Carried recurrent state for each part of a batch that this process computes."""
        self.started = 0.0
        """Time at which training would have started without interruptions, on the monotonic clock."""
        self.losses: list[tuple[Tensor, int]] = []
        """Summed objective (on the device) and number of words of each step since the last check."""
        self.stop = HeldStop()
        self.units_per_word = 1.0
        """By which a mean loss becomes one per word; see ``Sentences``."""
        torch.manual_seed(options.seed + run.processes.rank)

    def resume(self) -> None:
        """Restore the last checkpoint; raises ConfigError if there is none or if it is from another run."""
        self.progress, carried = checkpoint.load_state(
            self.folder, self.model, self.optimiser, self.average, self.identity, self.processes.rank
        )
        self.processes.check_same(self.progress.step, "steps of the last checkpoint")
        self.monitor.rewind(self.progress.reports)
        self.average.n_steps = self.progress.averaged_steps
        if carried is not None:
            whole = tuple(tensor.to(self.device) for tensor in carried)
            self.states = [tuple(tensor[part :: self.n_parts] for tensor in whole) for part in self._parts]

    @property
    def n_parts(self) -> int:
        """Number of parts that a batch is divided into, over all processes."""
        return self.processes.size * self.options.accumulate

    @property
    def _parts(self) -> range:
        """Numbers of the parts that this process computes."""
        first = self.processes.rank * self.options.accumulate
        return range(first, first + self.options.accumulate)

    def train(self, text: Sentences, validation: Sentences) -> checkpoint.Progress:
        """Train until all epochs are done or validation stops improving; return the final progress.

        SIGTERM and Ctrl-C take effect between two steps, after a checkpoint has been written.

        Raises:
            ScoringError: the loss is not finite or has diverged, or a checkpoint cannot be written.
        """
        progress = self.progress
        self.started = time.monotonic() - progress.seconds
        self.units_per_word = text.units_per_word
        loss_limit = optimisation.compute_loss_limit(text.targets) if self._has_perplexity else math.inf
        self.model.train()
        batches = self._make_batches(text)
        words_per_epoch = sum(map(batches.count_targets, range(len(batches))))
        words_done = sum(map(batches.count_targets, range(progress.batch)))
        self.monitor.start(
            self.options.epochs * words_per_epoch, progress.epoch * words_per_epoch + words_done
        )
        with hold_stops() as self.stop:
            try:
                while not self._is_finished():
                    self._train_epoch(self._make_batches(text), validation, loss_limit)
            except Stopped:
                self._check_losses(loss_limit)
                self._save()
                raise
            finally:
                self.monitor.close()
        return progress

    def _make_batches(self, text: Sentences) -> Batches:
        """Make the batches of the current epoch."""
        options, epoch = self.options, self.progress.epoch
        if self.model.config.carried:
            if text.corpora:
                raise ConfigError(
                    "texts cannot have weights if the state is carried: weights draw single sentences, but a "
                    "carried state needs the whole text"
                )
            return StreamBatches.for_epoch(
                text.ids, options.batch_rows, options.bptt, options.seed, epoch, text
            )
        return SentenceBatches.for_epoch(text, options.batch_words, options.seed, epoch)

    def _is_finished(self) -> bool:
        progress, options = self.progress, self.options
        return progress.epoch >= options.epochs or progress.validations_without_gain >= options.patience

    def _train_epoch(self, batches: Batches, validation: Sentences, loss_limit: float) -> None:
        """Train on the remaining batches of the current epoch.

        Raises:
            Stopped: a stop was requested. The state is that between two steps, or before a validation.
        """
        progress, options = self.progress, self.options
        n_validations = options.validations_an_epoch
        validate_after = {len(batches) * (i + 1) // n_validations for i in range(n_validations)} - {0}
        saved = time.monotonic()
        self.monitor.start_epoch(progress.epoch + 1, options.epochs)
        while not self._is_finished():
            if progress.batch in validate_after and not self._is_validated:
                self._check_losses(loss_limit)
                self._validate(validation)
                self._save()
                saved = time.monotonic()
            elif progress.batch < len(batches):
                self.monitor.advance(self._update(batches, progress.batch, options.epochs * len(batches)))
                progress.batch += 1
                progress.seconds = time.monotonic() - self.started
                if progress.step % LOSS_CHECK_STEPS == 0:
                    self._check_losses(loss_limit)
                    if self.processes.max(time.monotonic() - saved > self.checkpoint_every_s):
                        self._save()
                        saved = time.monotonic()
                self._check_stop()
            else:
                progress.epoch, progress.batch = progress.epoch + 1, 0
                self.states = [None] * options.accumulate
                return

    @property
    def _is_validated(self) -> bool:
        """Whether the last validation was after the last step."""
        reports = self.progress.reports
        return bool(reports) and reports[-1]["step"] == self.progress.step

    def _check_stop(self) -> None:
        """Raise ``Stopped`` if a stop was requested, in all processes after the same step."""
        is_check = self.processes.size == 1 or self.progress.step % LOSS_CHECK_STEPS == 0
        if is_check and self.processes.max(self.stop.number):
            raise Stopped

    def _update(self, batches: Batches, number: int, total_steps: int) -> int:
        """Take one optimiser step on one batch; return the number of words of the batch in all processes."""
        progress, options = self.progress, self.options
        n_words = batches.count_targets(number)
        for group in self.optimiser.param_groups:
            group["lr"] = optimisation.compute_learning_rate(
                options, progress.step, total_steps, progress.reductions
            )
        self.optimiser.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for index, part in enumerate(self._parts):
            inputs, targets = batches.make_rows(number, part, self.n_parts)
            if len(inputs):
                topics = batches.make_topics(number, part, self.n_parts)
                places = None if self.lessons is None else batches.find_positions(number, part, self.n_parts)
                loss, penalty, state = self._compute_loss(inputs, targets, topics, self.states[index], places)
                ((loss if penalty is None else loss + penalty) / n_words).backward()
                total += loss.detach()
                if self.model.config.carried:
                    self.states[index] = tuple(tensor.detach() for tensor in state)
        total = self.processes.sum_gradients(self.parameters, total)
        self.clipper.clip()
        self.optimiser.step()
        self.average.update()
        self.losses.append((total, n_words))
        progress.step += 1
        return n_words

    def _compute_loss(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        topics: np.ndarray | None,
        state: State | None,
        places: np.ndarray | None,
    ) -> tuple[Tensor, Tensor | None, State]:
        """Return the objective and the penalty, both sums over (B, T) words, and the next recurrent state.

        Args:
            places: (N,) place of each target in the text, if there is a teacher; otherwise None.
        """
        positions = torch.from_numpy(np.flatnonzero(targets >= 0)).to(self.device)  # without padding
        words = torch.from_numpy(targets[targets >= 0]).to(self.device)  # (N,)
        hidden, state = self.model.context_vectors(
            torch.from_numpy(inputs).to(self.device),
            state,
            None if topics is None else torch.from_numpy(topics).to(self.device),
            bfloat16=self.options.bfloat16,
        )
        penalty = optimisation.penalise_activations(
            hidden, torch.from_numpy(targets >= 0).to(self.device), self.options
        )
        hidden = hidden.flatten(0, 1).index_select(0, positions)  # (N, D)
        loss = self.objective.loss(self.model.output, hidden, words)
        if self.lessons is not None and places is not None:
            drawn = self.lessons.draw(places, words)
            loss = torch.lerp(
                loss, self.objective.loss(self.model.output, hidden, drawn), self.lessons.weight
            )
        return loss, penalty, state

    def _check_losses(self, limit: float) -> None:
        """Add up the losses since the last check; raise ScoringError if training has diverged."""
        progress = self.progress
        if not self.losses:
            return
        loss = sum(float(value) for value, _ in self.losses)
        n_words = sum(n for _, n in self.losses)
        self.losses.clear()
        optimisation.check_loss(loss / n_words, progress.step, self.options, limit)
        progress.loss += loss
        progress.loss_words += n_words
        progress.words += n_words
        sums, n_steps = self.clipper.take_sums()
        progress.gradient_steps += n_steps
        for name, value in sums.items():
            progress.gradients[name] = progress.gradients.get(name, 0.0) + value
        mean_loss = loss / n_words * self.units_per_word
        norms = {name: value / n_steps for name, value in sums.items()}
        self.monitor.report_loss(progress.step, mean_loss, self.optimiser.param_groups[0]["lr"], norms)

    @property
    def _has_perplexity(self) -> bool:
        """Whether the objective's mean loss is the logarithm of a perplexity."""
        return isinstance(self.objective, optimisation.MaximumLikelihood) and self.lessons is None

    def _validate(self, validation: Sentences) -> None:
        """Measure the validation perplexity, save the model if it is the best, and update the schedule."""
        progress, is_first = self.progress, self.processes.is_first
        check_stop = self.stop.check if self.processes.size == 1 else lambda: None
        with self.average.swap_in():
            current = self.processes.broadcast(
                prepare.perplexity(self.model, validation, on_batch=check_stop) if is_first else 0.0
            )
            optimisation.check_loss(
                math.log(current), progress.step, self.options, of="the loss on the validation text"
            )
            is_best = current < progress.best_perplexity
            if is_best and is_first:
                checkpoint.save_best(self.folder, self.model, self.vocabulary, progress.step)
        progress.reductions += optimisation.has_stalled(self.options, current, progress.best_perplexity)
        progress.best_perplexity = min(current, progress.best_perplexity)
        progress.validations_without_gain = 0 if is_best else progress.validations_without_gain + 1
        progress.seconds = time.monotonic() - self.started
        entry = {
            "step": progress.step,
            "epoch": progress.epoch + 1,
            **self._summarise_training_loss(),
            **self._summarise_gradients(),
            "validation_perplexity": round(current, 3),
            "seconds": round(progress.seconds, 1),
        }
        progress.loss, progress.loss_words = 0.0, 0
        progress.gradients, progress.gradient_steps = {}, 0
        progress.reports.append(entry)
        perplexities = [report["validation_perplexity"] for report in progress.reports]
        self.average.start_if_due(progress.epoch + 1, perplexities)
        self.monitor.report_validation(entry)

    def _summarise_training_loss(self) -> dict[str, float]:
        """Return the perplexity since the last validation; if the objective has none, the mean loss."""
        mean_loss = self.progress.loss / self.progress.loss_words
        if self._has_perplexity:
            log_perplexity = min(mean_loss * self.units_per_word, prepare.MAX_LOG_PERPLEXITY)
            return {"training_perplexity": round(math.exp(log_perplexity), 3)}
        return {"training_loss": round(mean_loss, 4)}

    def _summarise_gradients(self) -> dict[str, Any]:
        """Return mean norms of the gradients since the last validation, and the share of clipped steps."""
        progress = self.progress
        if not progress.gradient_steps:  # the first validation after a checkpoint of an earlier version
            return {}
        means = {name: value / progress.gradient_steps for name, value in progress.gradients.items()}
        clipped = round(means.pop("clipped"), 4)
        return {
            "gradient_norms": {name: float(f"{mean:.4g}") for name, mean in means.items()},
            "clipped": clipped,
        }

    def _save(self) -> None:
        """Write a checkpoint that includes the state of all processes."""
        carried = [
            None if state is None else tuple(tensor.cpu() for tensor in state) for state in self.states
        ]
        gathered = self.processes.gather((checkpoint.get_random_state(), carried))
        if self.processes.is_first:
            self.progress.averaged_steps = self.average.n_steps
            whole = checkpoint.interleave([state for _, states in gathered for state in states])
            generators = [random for random, _ in gathered]
            state = checkpoint.TrainingState(self.model, self.optimiser, self.average, generators, whole)
            checkpoint.save_state(self.folder, state, self.identity, self.progress)


LEARNT_SHARE = 0.99
"""A network has learnt something if its perplexity is below this share of the unigram perplexity."""
STATE_DESCRIPTIONS = {False: "reset at every sentence", True: "carried over sentence ends"}


def prepare_run(
    inputs: prepare.RunInputs,
    vocabulary: Path | None,
    vocabulary_size: int,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 (frozen)
) -> prepare.PreparedText:
    """Choose the vocabulary, encode the text, order words by class, and prepare what the network reads.

    Raises:
        ConfigError: the folder already has a run, or the classes cannot be formed.
        FormatError: a text cannot be used.
    """
    folder = inputs.folder
    if inputs.has_pieces:
        pieces.check_pieces(network)
    checkpoint.start_folder(folder, inputs.normaliser)
    inherited, backward, topics = None, bool(network.backward), None
    if inputs.start_from:
        start = Folder(inputs.start_from / "best")
        config = read_config(start)
        inherited, backward = read_vocabulary(start, config), config.backward
        if config.topics:
            topics = TopicReader(load_model(start)[0].topic_words, config.topic_decay)
    if backward and inputs.teacher.teacher is not None:
        raise ConfigError("--teacher reads sentences forward, so it cannot teach a backward network")
    text = prepare.prepare_text(inputs, inherited or vocabulary, size=vocabulary_size, backward=backward)
    build.order_by_classes(folder, text, network)
    text = prepare.load_prepared(folder, inputs.longest)
    build.prepare_class_inputs(folder, text, network)
    build.prepare_tags(folder, text, network, inputs.normaliser)
    build.prepare_topics(folder, text, network, topics)
    return prepare.load_prepared(folder, inputs.longest)


def train(
    inputs: prepare.RunInputs,
    text: prepare.PreparedText,
    network: NetworkOptions,
    options: TrainingOptions,
    run: RunOptions = RunOptions(),  # noqa: B008 (frozen)
    *,
    tensorboard: bool = False,
    processes: checkpoint.ProcessGroup = checkpoint.ProcessGroup(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Train a network; return the metadata that is saved with the best model.

    Processes other than the first return an empty dictionary.

    Raises:
        ConfigError: the device is not available, or the run does not match the one to resume.
    """
    device = processes.prepare(run, options.seed)
    network = build.name_activation(network, inputs.folder / checkpoint.STATE_FILE if run.resume else None)
    model = build.make_network(
        inputs.folder, inputs.start_from, text, network, options.objective, resumed=run.resume
    )
    model.to(device)
    identity = inputs.identity() | {
        "network": asdict(network),
        "vocabulary": compute_fingerprint(text.vocabulary),
    }
    monitor = prepare.Monitor(
        inputs.folder, quiet=not processes.is_first, tensorboard=tensorboard,
        unit="pieces" if text.has_pieces else "words",
    )  # fmt: skip
    lessons = prepare_lessons(inputs, text, processes, device)
    trainer = Trainer(
        TrainingRun(inputs.folder, identity, processes, monitor, lessons),
        model,
        text.vocabulary,
        options,
        build.make_objective(options, text.counts(), device),
    )
    fingerprint = zlib.crc32(json.dumps(trainer.identity, sort_keys=True).encode())
    processes.check_same(fingerprint, "checksum of the options", "start all processes with the same ones")
    if run.resume:
        trainer.resume()
    if processes.is_first:
        prepare.print_status(describe_run(model, text))
    progress = trainer.train(text.train, text.validation)
    if not processes.is_first:
        return {}
    if progress.epoch < options.epochs:
        prepare.print_status(f"stopped early: {options.patience} validations without improvement")
    facts = write_facts(trainer, model.config, progress, inputs, text)
    if text.has_pieces:
        export.write_units(inputs.folder, inputs.validation, inputs.normaliser)
    return facts


def compute_fingerprint(vocabulary: Vocabulary) -> str:
    """Return a short hash of the words and their order."""
    return hashlib.sha256("\n".join(vocabulary.words).encode()).hexdigest()[:16]


def describe_run(model: NeuralModel, text: prepare.PreparedText) -> str:
    """Return a one-line summary of a run's network and training text."""
    config = model.config
    parameters = sum(value.numel() for value in model.parameters())
    classes = f" in {len(config.class_sizes)} classes" if config.class_sizes else ""
    unit = "pieces" if text.has_pieces else "words"
    cut = f", {text.train.n_truncated:,} sentences cut" if text.train.n_truncated else ""
    return (
        f"{config.kind} {config.embedding_size}/{config.hidden_size} × {config.layers}, "
        f"{parameters / 1e6:.1f} M parameters, "
        f"{config.vocabulary_size:,} {unit}{classes}, state {STATE_DESCRIPTIONS[config.carried]}, "
        f"{text.train.n_words:,} training {unit} in {len(text.train.starts):,} sentences{cut}"
    )


def write_facts(
    trainer: Trainer,
    config: NetworkConfig,
    progress: checkpoint.Progress,
    inputs: prepare.RunInputs,
    text: prepare.PreparedText,
) -> dict[str, Any]:
    """Write ``training.json`` next to the best model: facts for a bundle's manifest. Return the facts."""
    unigram_perplexity = text.unigram_perplexity()
    if progress.best_perplexity > LEARNT_SHARE * unigram_perplexity:
        prepare.print_status(
            "WARNING: the network learnt nothing from context. Its validation perplexity is "
            f"{progress.best_perplexity:,.2f}; the frequencies of single words alone give "
            f"{unigram_perplexity:,.2f}. After {progress.step:,} steps, try more --epochs, smaller batches "
            "or another --learning-rate."
        )
    facts = {
        "network": config.to_dict() | {"class_sizes": len(config.class_sizes)},
        "options": asdict(trainer.options),
        "texts": [path.name for path in inputs.texts],
        **inputs.teacher.identity(),
        "validation_text": inputs.validation.name,
        "state": STATE_DESCRIPTIONS[config.carried],
        "units_per_word": round(text.validation.units_per_word, 4),
        "validation_perplexity": round(progress.best_perplexity, 3),
        "unigram_perplexity": round(unigram_perplexity, 3),
        "epochs": progress.epoch,
        "steps": progress.step,
        "words": round(progress.words / text.train.units_per_word),
        "seconds": round(progress.seconds, 1),
        "threads": torch.get_num_threads(),
        "processes": trainer.processes.size,
        "torch": torch.__version__,
    }
    if trainer.options.objective != "ml":
        model, _ = load_model(trainer.folder / "best")
        log_normaliser = getattr(trainer.objective, "log_normaliser", 0.0)
        error = optimisation.measure_normaliser_error(model, text.validation, log_normaliser)
        prepare.print_status(
            f"the scores differ from log-probabilities by {error.mean:+.3f} ± {error.deviation:.3f} nats per "
            f"word; perplexities are normalised exactly"
        )
        facts["normaliser_error"] = asdict(error)
    record_normaliser(trainer.folder / "best", inputs.normaliser)
    write_text(trainer.folder / "best" / "training.json", json.dumps(facts, indent=2) + "\n")
    return facts
