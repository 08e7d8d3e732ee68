"""Program for ``test_distributed.py`` that torchrun starts in each process: train, stop and resume."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import distributed

from rescorer_training.neural.checkpoint import ProcessGroup
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.prepare import load_prepared
from rescorer_training.neural.train import Trainer, TrainingRun
from rescorer_training.progress import end_without_finalisation
from tests.support.toy_training import make_model, reports_without_seconds

OPTIONS = TrainingOptions(
    epochs=2, batch_words=64, batch_rows=6, bptt=9, warmup_steps=5, learning_rate=0.01, schedule="constant"
)
RUNS = {"sentences": False, "carried": True}
"""Whether the state is carried, by the name of the run."""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    processes = ProcessGroup.join()
    text = load_prepared(folder / "text", 50)

    def make_trainer(name: str, carried: bool, epochs: int, dropout: float) -> Trainer:
        model = make_model(text, carried=carried, dropout=dropout)
        options = replace(OPTIONS, epochs=epochs)
        run = TrainingRun(folder / name, processes=processes)
        return Trainer(run, model, text.vocabulary, options)

    for name, carried in RUNS.items():
        make_trainer(name, carried, 2, 0.0).train(text.train, text.validation)
        # With dropout, each process has its own random state.
        uninterrupted = make_trainer(f"{name}-uninterrupted", carried, 2, 0.3)
        uninterrupted.train(text.train, text.validation)
        make_trainer(f"{name}-resumed", carried, 1, 0.3).train(text.train, text.validation)
        distributed.all_reduce(torch.zeros(()))
        resumed = make_trainer(f"{name}-resumed", carried, 2, 0.3)
        resumed.resume()
        resumed.train(text.train, text.validation)
        assert reports_without_seconds(resumed) == reports_without_seconds(uninterrupted)
        for a, b in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
            assert torch.equal(a, b)
    processes.leave()


if __name__ == "__main__":
    with end_without_finalisation():
        main(Path(sys.argv[1]))
