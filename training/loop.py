"""Owns the training loop of the neural models: batches, updates, validation, early stopping, resume.

Maximum likelihood by Adam (Kingma & Ba 2015) with warm-up and a cosine decay to zero. A run lives in a
folder: ``best/`` the model with the lowest validation perplexity, ``state.*`` everything needed to go on
exactly where a killed run stopped, ``log.jsonl`` one line a report.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from rescorer.errors import ConfigError, ScoringError
from rescorer.lm.checkpoint import save_model
from rescorer.lm.networks import NeuralModel
from rescorer.vocabulary import Vocabulary
from training.batches import Sentences, batches, in_length_order
from training.run_state import load_state, save_state


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How a run trains; stored with it, and compared when it is resumed."""

    epochs: int = 10
    batch_words: int = 4096
    """Words a batch, padding included."""
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    gradient_clip: float = 1.0
    """Largest norm of the gradient of the mean loss."""
    weight_decay: float = 0.0
    validations_an_epoch: int = 1
    patience: int = 4
    """Stop after so many validations in a row without a new best."""
    bfloat16: bool = False
    """Multiply the network's matrices in bfloat16 (twice as fast on processors that have it)."""
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_words", "validations_an_epoch", "patience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a positive number")


@dataclass
class Progress:
    """Where a run stands; what ``state.json`` holds beside the options."""

    epoch: int = 0
    batch: int = 0
    """Batches of this epoch already trained on."""
    step: int = 0
    best_perplexity: float = math.inf
    validations_without_gain: int = 0
    seconds: float = 0.0
    reports: list[dict[str, Any]] = field(default_factory=list)
    """One entry a validation: step, epoch, training and validation perplexity, seconds."""
    loss: float = 0.0
    """Σ −ln P since the last validation, over ``loss_words`` words."""
    loss_words: int = 0


def perplexity(model: NeuralModel, sentences: Sentences, batch_words: int = 8192) -> float:
    """exp of the mean −ln P a word, ``</s>`` counted, every sentence from the start state."""
    order = np.argsort(sentences.lengths, kind="stable")
    device = next(model.parameters()).device
    total, was_training = 0.0, model.training
    model.eval()
    with torch.no_grad():
        for chosen in in_length_order(order, sentences.lengths, batch_words):
            inputs, targets = (torch.from_numpy(rows).to(device) for rows in sentences.rows(chosen))
            total += float(model.loss(inputs, targets))
    model.train(was_training)
    return math.exp(total / sentences.n_words)


class Run:
    """One training run in its folder.

    Args:
        inputs: what else makes the run what it is, as plain data, such as its texts; kept with the options,
            and like them compared when the run is resumed.
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
        checkpoint_every_s: float = 300.0,
    ) -> None:
        self.folder, self.model, self.vocabulary, self.options = folder, model, vocabulary, options
        self.checkpoint_every_s = checkpoint_every_s
        self.identity = {**asdict(options), **(inputs or {})}
        self.device = next(model.parameters()).device
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay, fused=True
        )
        self.progress = Progress()
        torch.manual_seed(options.seed)

    def resume(self) -> None:
        """Goes back to the last state written; raises ConfigError where there is none or options differ."""
        state = load_state(self.folder, self.model, self.optimiser, self.identity)
        self.progress = Progress(**state)

    def train(
        self, text: Sentences, validation: Sentences, report: Callable[[dict[str, Any]], None] | None = None
    ) -> Progress:
        """Trains to the end, or until validation stops improving; returns where it ended.

        Args:
            report: called with each validation's entry of ``Progress.reports``.

        Raises:
            ScoringError: the loss became NaN or infinite.
        """
        progress, options = self.progress, self.options
        self.model.train()
        with tqdm(
            total=options.epochs * text.n_words, unit=" words", unit_scale=True, smoothing=0.05, disable=None
        ) as bar:
            while not self._finished():
                order = batches(text, options.batch_words, options.seed, progress.epoch)
                done = sum(int(text.lengths[chosen].sum()) for chosen in order[: progress.batch])
                bar.update(progress.epoch * text.n_words + done - bar.n)
                self._epoch(order, text, validation, report, bar)
        return progress

    def _finished(self) -> bool:
        progress, options = self.progress, self.options
        return progress.epoch >= options.epochs or progress.validations_without_gain >= options.patience

    def _epoch(  # type: ignore[no-untyped-def]
        self, order: list[np.ndarray], text: Sentences, validation: Sentences, report, bar: tqdm
    ) -> None:
        progress, options = self.progress, self.options
        parts = options.validations_an_epoch
        checks = {len(order) * (i + 1) // parts for i in range(parts)}
        began, saved = time.monotonic() - progress.seconds, time.monotonic()
        for chosen in order[progress.batch :]:
            bar.update(self._update(text, chosen, options.epochs * len(order)))
            progress.batch += 1
            progress.seconds = time.monotonic() - began
            if progress.step % 20 == 0:
                running = math.exp(progress.loss / progress.loss_words)
                bar.set_postfix_str(f"perplexity {running:.1f}", refresh=False)
            check = progress.batch in checks
            if check:
                self._validate(validation, report)
            if check or time.monotonic() - saved > self.checkpoint_every_s:
                save_state(self.folder, self.model, self.optimiser, self.identity, asdict(progress))
                saved = time.monotonic()
            if self._finished():
                return
        progress.epoch, progress.batch = progress.epoch + 1, 0

    def _update(self, text: Sentences, chosen: np.ndarray, total_steps: int) -> int:
        """One step of the optimiser on one batch; returns the words it predicted."""
        progress, options = self.progress, self.options
        inputs, targets = (torch.from_numpy(rows).to(self.device) for rows in text.rows(chosen))
        words = int(text.lengths[chosen].sum())
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(options, progress.step, total_steps)
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.model.loss(inputs, targets, options.bfloat16)
        (loss / words).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.gradient_clip)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ScoringError(
                f"the loss is {value} at step {progress.step}; start again with a lower --learning-rate "
                f"(now {options.learning_rate:g}) or --gradient-clip (now {options.gradient_clip:g})"
            )
        self.optimiser.step()
        progress.loss += value
        progress.loss_words += words
        progress.step += 1
        return words

    def _validate(self, validation: Sentences, report) -> None:  # type: ignore[no-untyped-def]
        """Measures, keeps the best model, and writes one line to the log."""
        progress = self.progress
        measured = perplexity(self.model, validation)
        entry = {
            "step": progress.step,
            "epoch": progress.epoch + 1,
            "training_perplexity": round(math.exp(progress.loss / progress.loss_words), 3),
            "validation_perplexity": round(measured, 3),
            "seconds": round(progress.seconds, 1),
        }
        progress.loss, progress.loss_words = 0.0, 0
        progress.reports.append(entry)
        if measured < progress.best_perplexity:
            progress.best_perplexity, progress.validations_without_gain = measured, 0
            save_model(self.model, self.vocabulary, self.folder / "best")
        else:
            progress.validations_without_gain += 1
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        if report is not None:
            report(entry)


def learning_rate(options: TrainingOptions, step: int, total_steps: int) -> float:
    """Linear warm-up, then a cosine to zero at ``total_steps`` (Loshchilov & Hutter 2017)."""
    warm = min(1.0, (step + 1) / max(1, options.warmup_steps))
    return options.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total_steps)))
