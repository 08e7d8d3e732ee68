"""Read compressed files that expand to millions of words, values or lines: ``python -m tools.fuzz.bombs``.

Each file is read in a process of its own, with the limits that users have. The run fails if a reader needs
more than ``MAX_MB``, or if no error names the variable that holds the limit.
"""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from rescorer.formats.io.text_io import MAX_LINE_VARIABLE

MB = 1 << 20
MAX_MB = 500
"""Most memory of a process. Before there were limits, these files took 0.8 to 5 GB."""
ADDRESS_SPACE = 6 << 30
"""Limit on the address space of a process, so that a reader without limits does not harm the machine."""
BOMBS = {
    "detect": (b"", b"x" * 1024, 60 << 10, b"\n"),
    "jsonl": (b'{"id": "u1", "hypotheses": [', b'{"text":""},', 4 * MB, b'"a"]}\n'),
    "json": (b'[\n{"id": "u1", "hypotheses": [\n', b'{"text":""},\n', 4 * MB, b'"a"]}]\n'),
    "whisper": (b'{"segments": [{"text": "a", "tokens": [', b"{},", 20 * MB, b"1]}]}"),
    "kaldi-text": (b"u1 ", b"ab ", 20 * MB, b"\n"),
    "trn": (b"", b"ab ", 20 * MB, b"(u1)\n"),
    "ctm": (b"", b"u1 A 0.5 0.25 ab\n", 2 * MB, b""),
    "cued:base=e": (b"", b"u1 -1 -2 1 ab\n", 2 * MB, b""),
    "paragraphs": (b"", b"ab\n", 4 * MB, b""),
    "fairseq": (b"", b"H-1\t-0.5\tab\n", 2 * MB, b""),
    "wenet": (b"wav u1\n", b"candidate -1 ab\n", 2 * MB, b""),
    "moses": (b"0 ||| ab |||", b" x= 1", 4 * MB, b" ||| -1\n"),
    "table": (b"id\ttext\tscore\n", b"u1\tab\t-1\n", 2 * MB, b""),
    "srilm": (b"", b"-1 -2 1 ab\n", 2 * MB, b""),
    "nbestlist2": (b"NBestList2.0\n(-1)", b" a ( st: 0 et: 0 g: 0 a: 0 )", 2 * MB, b"\n"),
    "htk": (b"N=2 L=1\nI=0\nI=1\n", b"J=0 S=0 E=1 W=ab a=-1 l=-2\n", 2 * MB, b""),
    "kaldi-lattice": (b"u1\n", b"0\t1\tab\t1,2,\n", 2 * MB, b"1\n\n"),
}
"""For each format: the beginning of a file, a part that is repeated, how often, and the end."""
READ = """
import sys
from rescorer.formats.registry import choose, detect
choice, path = sys.argv[1:]
for item in detect(path)[0:1] if choice == "detect" else choose(choice).read(path):
    print(str(item)[:400] if isinstance(item, Exception | str) else item.id)
"""


def write_bomb(path: Path, begin: bytes, part: bytes, count: int, end: bytes) -> None:
    """Write a gzip file."""
    with gzip.open(path, "wb") as stream:
        stream.write(begin)
        for _ in range(count >> 10):
            stream.write(part * 1024)
        stream.write(end)


def read_bomb(choice: str, path: Path) -> tuple[int, str]:
    """Read a file in another process; return its peak memory in MB, and what it printed."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", READ, choice, str(path)],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE)),
        )
        _, _, usage = os.wait4(process.pid, 0)
        output.seek(0)
        return usage.ru_maxrss >> 10, output.read()


def main() -> int:
    """Read all files and print a line for each; return the exit code."""
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "u1"
        for choice, bomb in BOMBS.items():
            write_bomb(path, *bomb)
            if choice == "detect":  # many members, each of which is a line
                path.write_bytes(path.read_bytes() * 50)
            peak, output = read_bomb(choice, path)
            is_refused = choice == "detect" or MAX_LINE_VARIABLE in output
            passed = peak <= MAX_MB and is_refused
            code |= not passed
            result = "ok" if passed else f"FAILED: {output[-300:]}"
            print(f"{choice:16}{path.stat().st_size // 1000:>6} kB {peak:>6} MB  {result}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
