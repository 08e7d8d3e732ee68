"""Report training progress: status lines, progress bars, the log of validations, TensorBoard scalars."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rescorer.errors import ConfigError

MAX_LOG_PERPLEXITY = 700.0
"""Limit on the mean loss in nats; the perplexity of a larger loss may not fit into a float64."""


def print_status(message: str) -> None:
    """Print a line on stderr, above a progress bar if one is shown."""
    tqdm.write(message, file=sys.stderr)


class Monitor:
    """Progress reports of one training run, with one line per validation in ``log.jsonl``.

    Args:
        folder: folder of the run.
        quiet: report nothing; for all processes of a group except the first.
        tensorboard: also write scalars to ``folder/tensorboard``.

        unit: what is predicted and counted, in the plural.

    Raises:
        ConfigError: ``tensorboard`` is set and TensorBoard is not installed.
    """

    def __init__(
        self, folder: Path, *, quiet: bool = False, tensorboard: bool = False, unit: str = "words"
    ) -> None:
        self.folder, self.quiet, self.unit = folder, quiet, unit
        self.bar: tqdm | None = None
        self.scalars = make_summary_writer(folder / "tensorboard") if tensorboard and not quiet else None

    def start(self, n_words: int, n_done: int) -> None:
        """Show a bar with words per second and the remaining time.

        Args:
            n_words: number of training words in the whole run.
            n_done: number of these words already trained on.
        """
        if not self.quiet:
            style: dict[str, Any] = {"unit_scale": True, "smoothing": 0.05, "disable": None}
            style["unit"] = f" {self.unit}"
            self.bar = tqdm(total=n_words, initial=n_done, **style)

    def advance(self, n_words: int) -> None:
        """Advance the bar by a number of words."""
        if self.bar is not None:
            self.bar.update(n_words)

    def report_loss(self, step: int, mean_loss: float, learning_rate: float) -> None:
        """Show the mean loss of the last few steps, in nats per word, and write it as a scalar."""
        if self.bar is not None:
            perplexity = math.exp(min(mean_loss, MAX_LOG_PERPLEXITY))
            self.bar.set_postfix_str(f"loss {mean_loss:.3f}, perplexity {perplexity:.1f}", refresh=False)
        if self.scalars is not None:
            self.scalars.add_scalar("training/loss", mean_loss, step)
            self.scalars.add_scalar("training/learning_rate", learning_rate, step)
            words_per_second = self.bar.format_dict["rate"] if self.bar is not None else None
            if words_per_second:
                self.scalars.add_scalar("training/words_per_second", words_per_second, step)

    def report_validation(self, entry: dict[str, Any]) -> None:
        """Append a validation's entry of ``Progress.reports`` to the log."""
        if self.quiet:
            return
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        if self.scalars is not None:
            self.scalars.add_scalar("validation/perplexity", entry["validation_perplexity"], entry["step"])

    def rewind(self, reports: Sequence[dict[str, Any]]) -> None:
        """Forget validations that were reported after a checkpoint, since they are done again."""
        if not self.quiet:
            lines = "".join(json.dumps(entry) + "\n" for entry in reports)
            (self.folder / "log.jsonl").write_text(lines, encoding="utf-8")

    def close(self) -> None:
        """Close the bar and the scalar writer."""
        if self.bar is not None:
            self.bar.close()
        if self.scalars is not None:
            self.scalars.close()


def make_summary_writer(folder: Path) -> Any:
    """Return TensorBoard's writer; raises ConfigError if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("--tensorboard needs TensorBoard: pip install 'rescorer[training]'") from None
    return SummaryWriter(str(folder))
