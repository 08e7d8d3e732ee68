"""What each process that torchrun starts for ``test_distributed.py`` does: trains, stops, goes on."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from rescorer_training.neural.distributed import Workers
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.prepare import prepared
from rescorer_training.neural.trainer import Run
from tests.support.toy_runs import toy_model, without_time

OPTIONS = TrainingOptions(
    epochs=2, batch_words=64, batch_rows=6, bptt=9, warmup_steps=5, learning_rate=0.01, schedule="constant"
)
ORDERS = {"sentences": False, "carried": True}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    workers = Workers.join()
    text = prepared(folder / "text", 50)

    def run(name: str, carried: bool, epochs: int, dropout: float) -> Run:
        model = toy_model(text, carried=carried, dropout=dropout)
        options = replace(OPTIONS, epochs=epochs)
        return Run(folder / name, model, text.vocabulary, options, workers=workers)

    for name, carried in ORDERS.items():
        run(name, carried, 2, 0.0).train(text.train, text.validation)
        whole = run(f"{name}-whole", carried, 2, 0.3)  # each process has dropout of its own
        whole.train(text.train, text.validation)
        run(f"{name}-parts", carried, 1, 0.3).train(text.train, text.validation)
        workers.wait()
        parts = run(f"{name}-parts", carried, 2, 0.3)
        parts.resume()
        parts.train(text.train, text.validation)
        assert without_time(parts) == without_time(whole)
        for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
            assert torch.equal(a, b)
    workers.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
