"""Progress bar of ``rescorer rescore``."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from rescorer.files.rescoring import FileSummary

GZIP_MAGIC = b"\x1f\x8b"
MAX_HEADER_BYTES = 1 << 24


def count_json_lines(source: str) -> int | None:
    """Count the lines of a file that begin with ``{``, without the header; None if it is not such a file.

    Reading a file is hundreds of times as fast as rescoring it.
    """
    path = Path(source)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        is_gzip = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    try:
        with gzip.open(path) if is_gzip else path.open("rb") as lines:
            first = lines.readline(MAX_HEADER_BYTES)
            if not first.startswith(b"{") or not first.endswith(b"\n"):
                return None
            is_list = b'"format"' not in first
            return sum(line.startswith(b"{") for line in lines) + is_list
    except (OSError, EOFError):  # a damaged file, which the reader reports
        return None


@contextmanager
def show_rescoring(
    enabled: bool, sources: Sequence[str] = ()
) -> Iterator[Callable[[int, FileSummary], None]]:
    """Show a bar on stderr; yields the function to call after each batch.

    Args:
        sources: the inputs; if they are files with one list per line, the bar shows how many there are.
    """
    counts = list(map(count_json_lines, sources)) if enabled else []
    total = None if None in counts else sum(filter(None, counts)) or None
    with tqdm(desc="rescoring", unit=" lists", total=total, disable=not enabled) as bar:

        def update(n_items: int, summary: FileSummary) -> None:
            bar.update(n_items)
            bar.set_postfix_str(f"{summary.words:,} words", refresh=False)

        yield update
