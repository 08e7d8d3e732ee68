"""Read ARPA files line by line into dictionaries: the slow, obvious twin of the readers into arrays."""

from __future__ import annotations

from pathlib import Path

from rescorer.errors import FormatError
from rescorer_training.corpus import read_lines


def read_arpa(path: Path) -> list[dict[tuple[str, ...], tuple[float, float]]]:
    """Read an ARPA file, gzip or plain, into one dictionary per order.

    Returns:
        The log10 probability and log10 back-off weight of each n-gram; the weight is 0 if the file has none.

    Raises:
        FormatError: the file is not an ARPA file or its header has other counts; names the file and the line.
    """
    announced: dict[int, int] = {}
    orders: list[dict[tuple[str, ...], tuple[float, float]]] = []
    for number, raw in enumerate(read_lines(path), start=1):
        line = raw.strip()
        if line == "\\end\\":
            if [len(order) for order in orders] != list(announced.values()):
                raise FormatError(
                    f"the header announces {list(announced.values())} n-grams per order, "
                    f"the file has {[len(order) for order in orders]}",
                    file=str(path),
                    line=number,
                )
            return orders
        if line.startswith("ngram ") and not orders:
            n, _, size = line.removeprefix("ngram ").partition("=")
            announced[int(n)] = int(size)
        elif line == f"\\{len(orders) + 1}-grams:":
            orders.append({})
        elif line and orders:
            log10_prob, *words = line.split()
            try:
                log10_backoff = float(words.pop()) if len(words) > len(orders) else 0.0
                orders[-1][tuple(words)] = float(log10_prob), log10_backoff
            except ValueError:
                raise FormatError(f"expected an n-gram, got {line!r}", file=str(path), line=number) from None
    raise FormatError("no \\end\\ line; expected a complete ARPA file", file=str(path))
