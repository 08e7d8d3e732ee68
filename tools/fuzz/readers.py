"""Fuzzes the readers, guided by coverage, with atheris (libFuzzer): ``python -m tools.fuzz.readers --all``.

A run fails on anything but a fault of ours, on an input that takes longer than ``HANG_S``, and on one that
takes more memory than its target's ``memory_per_byte`` and ``MEMORY_BYTES`` allow. Each target runs in a
process of its own; what broke it stays in the folder of the run.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import tracemalloc
import zlib
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rescorer"], enable_loader_override=False):
    from tools.fuzz.targets import TARGETS, Target

MAX_INPUT_BYTES = 16_384
HANG_S = 2.0
"""Of the processor's time; good inputs of this size take some milliseconds."""
MEMORY_BYTES = 4 << 20
"""Buffers, caches of regular expressions, and the paths that a lattice is granted."""
MEASURED_EVERY = 16
"""Memory is measured for one input of so many, for it makes them slow; the process's limit holds for all."""
PROCESS_MB = 768
MEMORY_FOLDER = next((folder for folder in ["/dev/shm"] if Path(folder).is_dir()), None)
"""For files that are read once."""


def fuzz(target: Target, files: Path, arguments: list[str]) -> None:
    """Runs libFuzzer in this process, which ends with it; ``files`` is a folder for the target's files."""
    count = 0

    def one_input(data: bytes) -> None:
        nonlocal count
        count += 1
        measured = count % MEASURED_EVERY == 0
        if measured:
            tracemalloc.start()
        start = time.process_time()
        target.run(data, files)
        seconds = time.process_time() - start
        if measured:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            allowed = target.memory_per_byte * text_bytes(data) + MEMORY_BYTES
            assert peak <= allowed, f"memory of {peak} bytes; expected {allowed} at most"
        assert seconds <= HANG_S, f"took {seconds:.1f} s; expected {HANG_S} at most"

    atheris.Setup([sys.argv[0], *arguments], one_input)
    atheris.Fuzz()


def text_bytes(data: bytes) -> int:
    """Size of an input, or of what can be decompressed of it."""
    try:
        return max(len(data), len(zlib.decompressobj(31).decompress(data, 1 << 26)))
    except zlib.error:
        return len(data)


def run(target: Target, folder: Path, limits: list[str]) -> bool:
    """Fuzzes a target in a process of its own; prints a line, and returns whether nothing broke it."""
    seeds, found = folder / "seeds", folder / "corpus"
    for each in (seeds, found):
        each.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(target.seeds):
        (seeds / str(index)).write_bytes(seed)
    lines = ("".join(f"\\x{byte:02x}" for byte in token) for token in target.tokens)
    (folder / "dictionary").write_text("".join(f'"{line}"\n' for line in lines))
    arguments = [
        *limits,
        f"-max_len={MAX_INPUT_BYTES}",
        "-len_control=10",  # long inputs soon
        f"-timeout={10 * HANG_S:.0f}",
        f"-rss_limit_mb={PROCESS_MB}",
        f"-artifact_prefix={folder}/",
        f"-dict={folder / 'dictionary'}",
        "-print_final_stats=1",
        *map(str, (found, seeds)),
    ]
    with open(folder / "log", "wb") as log, tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as files:
        process = os.fork()
        if process == 0:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            fuzz(target, Path(files), arguments)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    said = (folder / "log").read_text(errors="replace")
    print(f"{target.name:20}{summary(said)}  {'ok' if code == 0 else f'FAILED, see {folder}'}", flush=True)
    return code == 0


def summary(log: str) -> str:
    """Executions, their rate, coverage and memory, from libFuzzer's last words."""

    def last(pattern: str) -> str:
        return (re.findall(pattern, log) or ["?"])[-1]

    executions, rate = last(r"number_of_executed_units:\s*(\d+)"), last(r"average_exec_per_sec:\s*(\d+)")
    edges, memory = last(r"cov: (\d+)"), last(r"peak_rss_mb:\s*(\d+)")
    return f"{executions:>10} executions {rate:>6}/s {edges:>6} edges {memory:>5} MB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", action="append", choices=TARGETS, default=[], metavar="NAME")
    parser.add_argument("--all", action="store_true", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--runs", type=int, help="executions of each, instead of seconds")
    parser.add_argument("--folder", type=Path, help="for logs, what was found and what failed")
    options = parser.parse_args()
    names = list(TARGETS) if options.all else options.format
    if not names:
        parser.error("say --format NAME or --all")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    limits = [f"-runs={options.runs}"] if options.runs else [f"-max_total_time={options.seconds}"]
    results = [run(TARGETS[name], folder / name, limits) for name in names]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
