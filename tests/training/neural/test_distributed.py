"""Training in two processes gives the losses of one process and resumes exactly."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.distributed_training import OPTIONS, RUNS
from tests.support.toy_training import make_text, make_trainer, write_text

pytestmark = pytest.mark.slow


def torchrun(python: Path, *command: str | Path) -> None:
    """Train in two processes of ``python``."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    environment["PYTHON_EXEC"] = str(python)
    result = subprocess.run(
        [*launcher, *map(str, command)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr


def read_log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_two_processes_match_one_and_resume_exactly(tmp_path, warm_programs):
    (tmp_path / "text").mkdir()
    text = make_text(tmp_path / "text")
    torchrun(warm_programs / "python", "-m", "tests.support.distributed_training", tmp_path)
    for name, carried in RUNS.items():
        single = make_trainer(tmp_path / "single", text, OPTIONS, carried=carried, dropout=0.0)
        single.train(text.train, text.validation)
        for one, two in zip(single.progress.reports, read_log(tmp_path / name), strict=True):
            for loss in ("training_perplexity", "validation_perplexity"):
                assert math.log(one[loss]) == pytest.approx(math.log(two[loss]), abs=1e-4)


def test_command_trains_in_two_processes(tmp_path, warm_programs):
    train, validation = write_text(tmp_path)
    sizes = ["--embedding", "8", "--hidden", "8", "--epochs", "1", "--batch-words", "64", "--threads", "1"]
    torchrun(
        warm_programs / "python",
        "-m",
        "rescorer_training",
        "neural",
        train,
        "--validation",
        validation,
        "-o",
        tmp_path / "run",
        *sizes,
    )
    facts = json.loads((tmp_path / "run" / "best" / "training.json").read_text())
    assert facts["processes"] == 2
    assert facts["words"] == 1999
    assert len(read_log(tmp_path / "run")) == 1
