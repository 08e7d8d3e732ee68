"""Rescore an archive in one way, measure it, and check what came out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rescorer.shards.inspection import read_status
from rescorer.shards.store import LocalStore
from tools.archive.checking import Checked, check_output, read_lines
from tools.archive.disturbances import Scenario, ShardRun, Timing
from tools.archive.usage import ChildSampler

COMMAND = (sys.executable, "-m", "rescorer.cli")


@dataclass(frozen=True, slots=True)
class Setup:
    """What is rescored, and by what.

    Args:
        scoring: options of ``rescorer rescore`` for bundle and weights.
        sharding: its further options for shards, such as the engine.
    """

    archive: tuple[Path, ...]
    folder: Path
    scoring: tuple[str, ...]
    sharding: tuple[str, ...] = ()
    workers: int = 2
    shards: int = 40
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a scenario, and what is wrong with its output."""

    scenario: str
    seconds: float
    cpu_s: float
    """Processor time of all processes."""
    lists: int
    hypotheses: int
    peak_mb: float
    """Largest memory of a process that rescored."""
    growth_mb: float
    """Growth of the longest of them from the first third of its life to the last."""
    kills: int
    resumes: int
    leftovers: int
    """Files of killed processes, which no record names."""
    sha256: str
    """Hash of the whole output."""
    faults: list[str]


def run_scenario(setup: Setup, scenario: Scenario) -> Outcome:
    """Rescore the archive into a folder that is deleted afterwards."""
    folder = setup.folder / scenario.name
    shutil.rmtree(folder, ignore_errors=True)
    setup.folder.mkdir(parents=True, exist_ok=True)
    scoring = [*map(str, setup.archive), *setup.scoring, "--threads", "1", "--quiet"]
    options = [*scoring, *setup.sharding, "--workers", str(setup.workers)]
    run = ShardRun(options, folder, setup.shards, scenario, setup.timing)
    with ChildSampler() as sampler:
        if scenario.is_sharded:
            run.run()
        else:
            run.faults += run_plainly(setup, folder)
    checked, leftovers = check_shards(setup, folder) if scenario.is_sharded else check_files(setup, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(
        scenario.name,
        sampler.seconds,
        sampler.cpu_s,
        checked.lists,
        checked.hypotheses,
        sampler.peak_mb,
        sampler.growth_mb,
        run.kills,
        run.resumes,
        leftovers,
        checked.sha256,
        [*run.faults, *checked.faults],
    )


def run_plainly(setup: Setup, folder: Path) -> list[str]:
    """Rescore each file by a process of its own, several at a time; return what went wrong."""
    folder.mkdir()
    pairs = enumerate(map(str, setup.archive))
    commands = [["rescore", path, "-o", str(output_path(folder, number))] for number, path in pairs]
    options = [*setup.scoring, "--threads", "1", "--quiet"]
    with ThreadPoolExecutor(setup.workers) as pool:
        return [
            fault
            for faults in pool.map(lambda each: run_command(*each, *options), commands)
            for fault in faults
        ]


def output_path(folder: Path, number: int) -> Path:
    """Output of a plain process for a file of the archive."""
    return folder / f"{number:02}.jsonl"


def check_files(setup: Setup, folder: Path) -> tuple[Checked, int]:
    """Check the output of plain processes."""
    paths = [path for number in range(len(setup.archive)) if (path := output_path(folder, number)).exists()]
    return check_output(read_lines(paths), setup.archive), 0


def check_shards(setup: Setup, folder: Path) -> tuple[Checked, int]:
    """Verify and merge shards, and check what the merger writes; also return the number of leftovers."""
    problems = run_command("shards", "verify", str(folder), "--inputs")
    command = [*COMMAND, "shards", "merge", str(folder), "-o", "-"]
    merger = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert merger.stdout is not None
    with merger.stdout:
        checked = check_output(merger.stdout, setup.archive)
    if code := merger.wait():
        problems.append(f"exit code {code} of shards merge")
    checked.faults += problems
    return checked, len(read_status(LocalStore(folder)).leftovers)


def run_command(*arguments: str) -> list[str]:
    """Run a command of ``rescorer``; return what it printed if it fails."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    return [f"{' '.join(arguments[:2])}: {done.stdout}{done.stderr}"] if done.returncode else []


def find_differences(outcomes: Sequence[Outcome]) -> list[str]:
    """Say which scenarios gave other output than the first one."""
    return [
        f"{outcome.scenario}: the output differs from that of {outcomes[0].scenario}"
        for outcome in outcomes[1:]
        if outcome.sha256 != outcomes[0].sha256
    ]
