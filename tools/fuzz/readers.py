"""Fuzz the readers, guided by coverage, with atheris (libFuzzer): ``python -m tools.fuzz.readers --all``.

A run fails if an input raises an error that is not one of this project, takes longer than ``MAX_SECONDS``, or
needs more memory than the target's ``memory_per_byte`` and ``FIXED_MEMORY_BYTES`` allow. Each target runs in
a process of its own. The input that made it fail remains in the folder of the run.
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
MAX_SECONDS = 2.0
"""Maximum processor time for one input. Valid inputs of the same size take some milliseconds."""
FIXED_MEMORY_BYTES = 4 << 20
"""Memory for buffers, caches of regular expressions, and the paths that a lattice may take."""
MEASURE_EVERY = 16
"""The memory of one input in this many is measured, because this is slow.

For all inputs, there is the memory limit of the process."""
MAX_PROCESS_MB = 768
MEMORY_FOLDER = next((folder for folder in ["/dev/shm"] if Path(folder).is_dir()), None)
"""Folder for files that are read once: in memory if possible."""


def fuzz(target: Target, files: Path, arguments: list[str]) -> None:
    """Run libFuzzer and end this process. ``files`` is a folder for the files of the target."""
    count = 0

    def test_one_input(data: bytes) -> None:
        nonlocal count
        count += 1
        measure = count % MEASURE_EVERY == 0
        if measure:
            tracemalloc.start()
        start = time.process_time()
        target.run(data, files)
        seconds = time.process_time() - start
        if measure:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            allowed = target.memory_per_byte * count_text_bytes(data) + FIXED_MEMORY_BYTES
            assert peak <= allowed, f"needed {peak} bytes of memory; expected at most {allowed}"
        assert seconds <= MAX_SECONDS, f"took {seconds:.1f} s; expected at most {MAX_SECONDS}"

    atheris.Setup([sys.argv[0], *arguments], test_one_input)
    atheris.Fuzz()


def count_text_bytes(data: bytes) -> int:
    """Return the size of an input, or of its decompressed text if that is larger."""
    try:
        return max(len(data), len(zlib.decompressobj(31).decompress(data, 1 << 26)))
    except zlib.error:
        return len(data)


def run(target: Target, folder: Path, limits: list[str]) -> bool:
    """Fuzz a target in a process of its own, and print a line with the result; return whether it passed."""
    seeds, found = folder / "seeds", folder / "corpus"
    for subfolder in (seeds, found):
        subfolder.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(target.seeds):
        (seeds / str(index)).write_bytes(seed)
    lines = ("".join(f"\\x{byte:02x}" for byte in token) for token in target.tokens)
    (folder / "dictionary").write_text("".join(f'"{line}"\n' for line in lines))
    arguments = [
        *limits,
        f"-max_len={MAX_INPUT_BYTES}",
        "-len_control=10",  # try long inputs early
        f"-timeout={10 * MAX_SECONDS:.0f}",
        f"-rss_limit_mb={MAX_PROCESS_MB}",
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
    output = (folder / "log").read_text(errors="replace")
    result = "ok" if code == 0 else f"FAILED, see {folder}"
    print(f"{target.name:20}{summarise_log(output)}  {result}", flush=True)
    return code == 0


def summarise_log(log: str) -> str:
    """Format executions, their rate, coverage and memory from the final statistics of libFuzzer."""

    def find_last(pattern: str) -> str:
        return (re.findall(pattern, log) or ["?"])[-1]

    executions = find_last(r"number_of_executed_units:\s*(\d+)")
    rate = find_last(r"average_exec_per_sec:\s*(\d+)")
    edges, memory = find_last(r"cov: (\d+)"), find_last(r"peak_rss_mb:\s*(\d+)")
    return f"{executions:>10} executions {rate:>6}/s {edges:>6} edges {memory:>5} MB"


def main() -> int:
    """Parse the command line and fuzz the chosen targets; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--format", action="append", choices=TARGETS, default=[], metavar="NAME", help="target to fuzz"
    )
    parser.add_argument("--all", action="store_true", help=f"all targets: {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=600, help="time per target")
    parser.add_argument("--runs", type=int, help="executions per target, instead of --seconds")
    parser.add_argument("--folder", type=Path, help="folder for logs, corpora and failures")
    options = parser.parse_args()
    names = list(TARGETS) if options.all else options.format
    if not names:
        parser.error("expected --format NAME or --all")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    limits = [f"-runs={options.runs}"] if options.runs else [f"-max_total_time={options.seconds}"]
    results = [run(TARGETS[name], folder / name, limits) for name in names]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
