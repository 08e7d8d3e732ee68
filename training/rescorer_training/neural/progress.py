"""Owns what a run tells while it trains: the progress bar, the log of validations, TensorBoard's scalars."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rescorer.errors import ConfigError

BARE_EXPONENT = 700.0
"""Largest mean loss whose perplexity is a float64."""


class Monitor:
    """Tells of one run in its folder: ``log.jsonl`` has one line a validation.

    Args:
        quiet: tell nothing, as all but one of several processes do.
        tensorboard: write scalars under ``folder/tensorboard`` too.

    Raises:
        ConfigError: scalars are asked for and TensorBoard is not installed.
    """

    def __init__(self, folder: Path, *, quiet: bool = False, tensorboard: bool = False) -> None:
        self.folder, self.quiet = folder, quiet
        self.bar: tqdm | None = None
        self.scalars = summary_writer(folder / "tensorboard") if tensorboard and not quiet else None

    def begin(self, n_words: int, done: int) -> None:
        """Shows the bar: words of the whole run, and those already trained on; it tells words/s and ETA."""
        if not self.quiet:
            bar: dict[str, Any] = {"unit": " words", "unit_scale": True, "smoothing": 0.05, "disable": None}
            self.bar = tqdm(total=n_words, initial=done, **bar)

    def step(self, words: int) -> None:
        if self.bar is not None:
            self.bar.update(words)

    def losses(self, step: int, mean_loss: float, rate: float) -> None:
        """The mean loss of the last few steps (nats a word), and the learning rate."""
        if self.bar is not None:
            shown = math.exp(min(mean_loss, BARE_EXPONENT))
            self.bar.set_postfix_str(f"loss {mean_loss:.3f}, perplexity {shown:.1f}", refresh=False)
        if self.scalars is not None:
            self.scalars.add_scalar("training/loss", mean_loss, step)
            self.scalars.add_scalar("training/learning_rate", rate, step)
            speed = self.bar.format_dict["rate"] if self.bar is not None else None
            if speed:
                self.scalars.add_scalar("training/words_per_second", speed, step)

    def validated(self, entry: dict[str, Any]) -> None:
        """One validation's entry of ``Progress.reports``."""
        if self.quiet:
            return
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        if self.scalars is not None:
            self.scalars.add_scalar("validation/perplexity", entry["validation_perplexity"], entry["step"])

    def end(self) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.scalars is not None:
            self.scalars.close()


def summary_writer(folder: Path) -> Any:
    """TensorBoard's writer; raises ConfigError where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("--tensorboard needs TensorBoard: pip install 'rescorer[training]'") from None
    return SummaryWriter(str(folder))
