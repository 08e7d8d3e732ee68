"""Owns the training loop of the neural models: epochs of updates, validation, early stopping, resume.

Truncated back-propagation through time (Williams & Peng 1990): over one sentence, or over ``bptt`` words
with the state carried on. A run lives in a folder: ``best/`` the model with the lowest validation perplexity,
``state.*`` everything needed to go on exactly where a killed run stopped, ``log.jsonl`` a line a validation.

No ``torch.compile``: tried on a busy two-core machine, it had not compiled an LSTM over 35 words after three
minutes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError, ScoringError
from rescorer.lm.networks import NeuralModel, State
from rescorer.vocabulary import Vocabulary
from rescorer_training.data.sentence_batches import Batches, SentenceBatches, Sentences
from rescorer_training.data.stream_batches import StreamBatches
from rescorer_training.neural.averaging import WeightAverage
from rescorer_training.neural.checkpoint import (
    Parts,
    interleaved,
    load_state,
    random_state,
    save_best,
    save_state,
)
from rescorer_training.neural.distributed import Workers
from rescorer_training.neural.objectives import MaximumLikelihood, Objective
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.progress import Monitor
from rescorer_training.neural.schedule import learning_rate, make_optimiser, reduces
from rescorer_training.neural.validation import perplexity, unigram_entropy

LOOK_EVERY = 20
"""Steps between looks at the loss, which make a GPU wait, and at the clock."""
DIVERGED = math.log(10.0)
"""Nats a word above the unigram distribution's; after the first steps a network gets there only when its
updates are too large."""
FIRST_STEPS = 100

Report = Callable[[dict[str, Any]], None]


@dataclass
class Progress:
    """Where a run stands; what the state holds beside tensors and options."""

    epoch: int = 0
    batch: int = 0
    """Batches of this epoch already trained on."""
    step: int = 0
    best_perplexity: float = math.inf
    validations_without_gain: int = 0
    reductions: int = 0
    """How often plateau has lowered the learning rate."""
    averaged_steps: int = 0
    seconds: float = 0.0
    reports: list[dict[str, Any]] = field(default_factory=list)
    """One entry a validation: step, epoch, training and validation perplexity, seconds."""
    loss: float = 0.0
    """Σ of the objective since the last validation, over ``loss_words`` words."""
    loss_words: int = 0
    words: int = 0
    """Trained on so far, over all epochs."""


class Run:
    """One training run in its folder.

    Args:
        inputs: what else makes the run what it is, as plain data, such as its texts; kept with the options,
            and like them compared when the run is resumed.
        objective: what to minimise, −ln P if nothing else is said.
        workers: the processes that share the run.
        monitor: whom to tell; None: a bar and ``log.jsonl``.
        checkpoint_every_s: write the state at least so often; validations write it too.
    """

    def __init__(
        self,
        folder: Path,
        model: NeuralModel,
        vocabulary: Vocabulary,
        options: TrainingOptions,
        *,
        inputs: Mapping[str, Any] | None = None,
        objective: Objective = MaximumLikelihood(),  # noqa: B008 (has no state)
        workers: Workers = Workers(),  # noqa: B008 (frozen)
        monitor: Monitor | None = None,
        checkpoint_every_s: float = 300.0,
    ) -> None:
        self.folder, self.model, self.vocabulary, self.options = folder, model, vocabulary, options
        self.objective, self.workers = objective, workers
        self.monitor = monitor or Monitor(folder, quiet=not workers.first)
        self.checkpoint_every_s = checkpoint_every_s
        self.identity = {**asdict(options), **(inputs or {})}
        self.device = next(model.parameters()).device
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.optimiser = make_optimiser(options, self.parameters)
        self.average = WeightAverage(self.parameters, options)
        self.progress = Progress()
        self.states: list[State | None] = [None] * options.accumulate
        """Carried by the rows of each part of a batch."""
        self.losses: list[tuple[Tensor, int]] = []
        """Of steps since the last look: Σ of the objective, on the device, and words."""
        torch.manual_seed(options.seed + workers.rank)

    def resume(self) -> None:
        """Goes back to the last state written; raises ConfigError where there is none or options differ."""
        progress, carried = load_state(
            self.folder, self.model, self.optimiser, self.average, self.identity, self.workers.rank
        )
        self.progress = Progress(**progress)
        self.average.n_steps = self.progress.averaged_steps
        if carried is not None:
            whole = tuple(part.to(self.device) for part in carried)
            self.states = [tuple(part[p :: self.n_parts] for part in whole) for p in self._parts]

    @property
    def n_parts(self) -> int:
        """Parts that a batch's rows are dealt out to: those of every process."""
        return self.workers.count * self.options.accumulate

    @property
    def _parts(self) -> range:
        first = self.workers.rank * self.options.accumulate
        return range(first, first + self.options.accumulate)

    def train(self, text: Sentences, validation: Sentences, report: Report | None = None) -> Progress:
        """Trains to the end, or until validation stops improving; returns where it ended.

        Args:
            report: called with each validation's entry of ``Progress.reports``.

        Raises:
            ScoringError: the loss became NaN or far worse than word frequencies alone, or the disk is full.
        """
        progress = self.progress
        limit = unigram_entropy(text.ids) + DIVERGED
        self.model.train()
        batches = self._batches(text)
        an_epoch = sum(map(batches.count_targets, range(len(batches))))
        done = sum(map(batches.count_targets, range(progress.batch)))
        self.monitor.start(self.options.epochs * an_epoch, progress.epoch * an_epoch + done)
        try:
            while not self._finished():
                self._epoch(self._batches(text), validation, limit, report)
        finally:
            self.monitor.close()
        return progress

    def _batches(self, text: Sentences) -> Batches:
        """Those of the current epoch."""
        options, epoch = self.options, self.progress.epoch
        if self.model.config.carried:
            if text.corpora:
                raise ConfigError(
                    "texts have weights, which draw single sentences; a carried state needs all"
                )
            return StreamBatches.for_epoch(text.ids, options.batch_rows, options.bptt, options.seed, epoch)
        return SentenceBatches.for_epoch(text, options.batch_words, options.seed, epoch)

    def _finished(self) -> bool:
        progress, options = self.progress, self.options
        return progress.epoch >= options.epochs or progress.validations_without_gain >= options.patience

    def _epoch(self, batches: Batches, validation: Sentences, limit: float, report: Report | None) -> None:
        progress, options = self.progress, self.options
        parts = options.validations_an_epoch
        checks = {len(batches) * (i + 1) // parts for i in range(parts)}
        began, saved = time.monotonic() - progress.seconds, time.monotonic()
        for number in range(progress.batch, len(batches)):
            self.monitor.advance(self._update(batches, number, options.epochs * len(batches)))
            progress.batch += 1
            progress.seconds = time.monotonic() - began
            check, save = progress.batch in checks, False
            if check or progress.step % LOOK_EVERY == 0:
                self._look(limit)
                save = bool(self.workers.agree(time.monotonic() - saved > self.checkpoint_every_s))
            if check:
                self._validate(validation, report)
            if check or save:
                self._save()
                saved = time.monotonic()
            if self._finished():
                return
        progress.epoch, progress.batch = progress.epoch + 1, 0
        self.states = [None] * options.accumulate

    def _update(self, batches: Batches, number: int, total_steps: int) -> int:
        """One step of the optimiser on one batch; returns the words it predicted, in all processes."""
        progress, options = self.progress, self.options
        words = batches.count_targets(number)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(options, progress.step, total_steps, progress.reductions)
        self.optimiser.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for index, part in enumerate(self._parts):
            inputs, targets = batches.make_rows(number, part, self.n_parts)
            if len(inputs):
                loss, state = self._loss(inputs, targets, self.states[index])
                (loss / words).backward()
                total += loss.detach()
                if self.model.config.carried:
                    self.states[index] = tuple(each.detach() for each in state)
        total = self.workers.sum_gradients(self.parameters, total)
        torch.nn.utils.clip_grad_norm_(self.parameters, options.gradient_clip)
        self.optimiser.step()
        self.average.update()
        self.losses.append((total, words))
        progress.step += 1
        return words

    def _loss(self, inputs: np.ndarray, targets: np.ndarray, state: State | None) -> tuple[Tensor, State]:
        """Σ of the objective over some rows, and the state after them."""
        real = torch.from_numpy(np.flatnonzero(targets >= 0)).to(self.device)
        words = torch.from_numpy(targets[targets >= 0]).to(self.device)  # (N,)
        hidden, state = self.model.context_vectors(
            torch.from_numpy(inputs).to(self.device), state, bfloat16=self.options.bfloat16
        )
        hidden = hidden.flatten(0, 1).index_select(0, real)  # (N, D)
        return self.objective.loss(self.model.output, hidden, words), state

    def _look(self, limit: float) -> None:
        """Adds up the losses since the last look, and stops where they say that training has failed."""
        progress = self.progress
        if not self.losses:
            return
        loss = sum(float(value) for value, _ in self.losses)
        words = sum(n for _, n in self.losses)
        self.losses.clear()
        judged = self._is_likelihood and progress.step > FIRST_STEPS
        self._check(loss / words, limit if judged else math.inf)
        progress.loss += loss
        progress.loss_words += words
        progress.words += words
        self.monitor.report_loss(progress.step, loss / words, self.optimiser.param_groups[0]["lr"])

    @property
    def _is_likelihood(self) -> bool:
        """Whether the objective's mean is the logarithm of a perplexity."""
        return isinstance(self.objective, MaximumLikelihood)

    def _check(self, mean: float, limit: float = math.inf) -> None:
        """Raises ScoringError where a mean loss is not finite or above the limit."""
        options = self.options
        if not math.isfinite(mean) or mean > limit:
            raise ScoringError(
                f"the loss is {mean:.4g} nats a word at step {self.progress.step}, where word frequencies "
                f"alone give less. Start again with a lower --learning-rate (now "
                f"{options.learning_rate:g}), --gradient-clip (now {options.gradient_clip:g}) or more "
                f"--warmup-steps (now {options.warmup_steps})"
            )

    def _validate(self, validation: Sentences, report: Report | None) -> None:
        """Measures, keeps the best model, lowers the learning rate, and tells."""
        progress = self.progress
        with self.average.in_place():
            first = self.workers.first
            measured = self.workers.agree(perplexity(self.model, validation) if first else 0.0)
            self._check(math.log(measured))
            better = measured < progress.best_perplexity
            if better and first:
                save_best(self.folder, self.model, self.vocabulary, asdict(progress))
        progress.reductions += reduces(self.options, measured, progress.best_perplexity)
        progress.best_perplexity = min(measured, progress.best_perplexity)
        progress.validations_without_gain = 0 if better else progress.validations_without_gain + 1
        entry = {
            "step": progress.step,
            "epoch": progress.epoch + 1,
            **self._training_loss(),
            "validation_perplexity": round(measured, 3),
            "seconds": round(progress.seconds, 1),
        }
        progress.loss, progress.loss_words = 0.0, 0
        progress.reports.append(entry)
        self.average.consider(
            progress.epoch + 1, [each["validation_perplexity"] for each in progress.reports]
        )
        self.monitor.report_validation(entry)
        if report is not None:
            report(entry)

    def _training_loss(self) -> dict[str, float]:
        """Since the last validation; a perplexity where the objective has one."""
        mean = self.progress.loss / self.progress.loss_words
        if self._is_likelihood:
            return {"training_perplexity": round(math.exp(mean), 3)}
        return {"training_loss": round(mean, 4)}

    def _save(self) -> None:
        """Writes the state of all processes."""
        workers, progress = self.workers, self.progress
        carried = [None if state is None else tuple(each.cpu() for each in state) for state in self.states]
        gathered = workers.gather((random_state(), carried))
        if workers.first:
            progress.averaged_steps = self.average.n_steps
            whole = interleaved([state for _, states in gathered for state in states])
            parts = Parts(self.model, self.optimiser, self.average, [random for random, _ in gathered], whole)
            save_state(self.folder, parts, self.identity, asdict(progress))
