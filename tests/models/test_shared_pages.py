"""Pages of n-gram tables: processes that open the same file share them in memory."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from rescorer.models.ngram_files import read_ngram, write_table
from tests.conftest import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "golden" / "kneser-ney"
SCORE_AND_WAIT = """
import sys
from pathlib import Path
from rescorer.models.ngram_files import read_ngram
from rescorer.trie import build_trie

model = read_ngram(Path(sys.argv[1]))
model.score(build_trie([("the", "kettle", "is", "on")]))
print("scored", flush=True)
sys.stdin.read()
"""


def mapped_kib(process_id: int, path: Path) -> dict[str, int]:
    """Memory of the mapping of a file in KiB, by the names of /proc/PID/smaps."""
    text = Path(f"/proc/{process_id}/smaps").read_text()
    mappings = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", text)
    (mapping,) = (mapping for mapping in mappings if mapping.partition("\n")[0].endswith(f" {path}"))
    return {name: int(value) for name, value in re.findall(r"(?m)^(\w+): +(\d+) kB$", mapping)}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/PID/smaps, which Linux has")
def test_processes_share_the_pages_of_a_table(tmp_path):
    path = tmp_path.resolve() / "m.ngram"
    with path.open("wb") as stream:
        write_table(stream, read_ngram(GOLDEN / "listed.arpa").content)
    with ExitStack() as stack:
        command = [sys.executable, "-c", SCORE_AND_WAIT, str(path)]
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(2)
        ]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout.readline() == b"scored\n"
        for process in processes:
            kib = mapped_kib(process.pid, path)
            assert kib["Private_Dirty"] == kib["Anonymous"] == 0
            assert kib["Shared_Clean"] + kib["Shared_Dirty"] > 0
