"""Progress bar of ``rescorer rescore``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from rescorer.files.rescoring import FileSummary


@contextmanager
def show_rescoring(enabled: bool) -> Iterator[Callable[[int, FileSummary], None]]:
    """Show a bar on stderr; yields the function to call after each batch."""
    with tqdm(desc="rescoring", unit=" lists", disable=not enabled) as bar:

        def update(n_items: int, summary: FileSummary) -> None:
            bar.update(n_items)
            bar.set_postfix_str(f"{summary.words:,} words", refresh=False)

        yield update
