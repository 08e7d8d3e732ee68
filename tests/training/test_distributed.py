"""Two processes share a run: the losses of one process, and every process goes on where it was."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.toy_runs import new_run, toy_text, write_text
from tests.support.two_processes import OPTIONS, ORDERS

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[2]


def torchrun(*command: str | Path) -> None:
    tool = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [*tool, *map(str, command)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_two_processes_give_the_losses_of_one_and_resume_exactly(tmp_path):
    (tmp_path / "text").mkdir()
    text = toy_text(tmp_path / "text")
    torchrun("-m", "tests.support.two_processes", tmp_path)
    for name, carried in ORDERS.items():
        alone = new_run(tmp_path / "alone", text, OPTIONS, carried=carried, dropout=0.0)
        alone.train(text.train, text.validation)
        for one, two in zip(alone.progress.reports, log(tmp_path / name), strict=True):
            for loss in ("training_perplexity", "validation_perplexity"):
                assert math.log(one[loss]) == pytest.approx(math.log(two[loss]), abs=1e-4)


def test_the_command_shares_a_run(tmp_path):
    train, validation = write_text(tmp_path)
    sizes = ["--embedding", "8", "--hidden", "8", "--epochs", "1", "--batch-words", "64", "--threads", "1"]
    torchrun(
        "-m", "rescorer_training", "neural", train, "--validation", validation, "-o", tmp_path / "run", *sizes
    )
    facts = json.loads((tmp_path / "run" / "best" / "training.json").read_text())
    assert facts["processes"] == 2
    assert facts["words"] == 1999
    assert len(log(tmp_path / "run")) == 1
