"""Write the files of n-gram models atomically, in the form that the name of the file asks for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rescorer.formats.io.targets import (
    check_target,
    copy_to_stream,
    explain_write_errors,
    is_stream,
    replace_file,
)
from rescorer.formats.io.text_io import write_text
from rescorer.lm.files.arpa_lines import ArpaOrder
from rescorer.lm.ngrams.building import build_table
from rescorer.lm.ngrams.table_file import SUFFIX, write_table
from rescorer.lm.ngrams.table_model import TableContent
from rescorer.lm.ngrams.units import ClassMembers
from rescorer.vocabulary import END, START, UNKNOWN
from rescorer_training.ngram import lmplz
from rescorer_training.ngram.arpa import clamped_log10, write_arpa
from rescorer_training.ngram.smoothing.building import NGramProbabilities

SPECIAL_WORDS = (UNKNOWN, START, END)
BINARY_SUFFIXES = (".bin", ".binary", ".klm")
"""File name suffixes for which a KenLM binary is written instead of an ARPA file."""


def write_model(
    path: Path,
    model: Sequence[NGramProbabilities],
    names: Sequence[str],
    *,
    skip: int = 0,
    members: ClassMembers | None = None,
) -> None:
    """Write an n-gram table if the name ends in ``.ngram``, and an ARPA file otherwise.

    Args:
        names: the word or the name of the class of each id, ``SPECIAL_WORDS`` first.
        skip: words between a context and the word that it predicts; only tables can have any.
        members: words of the classes; None if units are words. Only tables can have them.

    Raises:
        OSError: the file cannot be written.
    """
    if path.suffix != SUFFIX:
        return write_arpa(path, model, names)
    ids, orders = np.empty((1, 0), np.int32), []
    for order in model:
        ids = np.concatenate([ids[order.prefix], order.word[:, None]], axis=1)
        values = np.stack([np.minimum(clamped_log10(order.prob), 0.0), clamped_log10(order.backoff)], axis=1)
        orders.append(ArpaOrder(ids, values.astype(np.float32)))
    content = TableContent(tuple(names[: len(model[0])]), build_table(orders, str(path)), skip, members)
    with path.open("wb") as stream:
        write_table(stream, content)


def word_list_file(output: Path) -> Path:
    """The file next to a KenLM binary that lists its words."""
    return output.with_suffix(".words.txt")


def write_word_list(output: Path, words: Iterable[str]) -> None:
    """Write the words of a KenLM binary, without special words, to a file next to it.

    Does nothing for an ARPA file."""
    if output.suffix in BINARY_SUFFIXES:
        text = "".join(f"{word}\n" for word in words if word not in SPECIAL_WORDS)
        write_text(word_list_file(output), text)


@contextmanager
def staged_output(output: Path) -> Iterator[Path]:
    """Yield the path of the model to write with the files next to it: ``output``, unless that is a stream.

    For a device, a pipe or standard output, the path is one of a temporary folder. Only the model is copied
    to the stream, in the end.

    Raises:
        FormatError: the stream cannot be written.
    """
    if not is_stream(output):
        yield output
        return
    check_target(output)
    with tempfile.TemporaryDirectory(prefix="rescorer-") as folder:
        path = Path(folder) / output.name
        yield path
        copy_to_stream(path, output)


@contextmanager
def atomic_output(output: Path) -> Iterator[Path]:
    """Yield the path of a temporary ARPA file to write; on success, its content becomes that of ``output``.

    If ``output`` has one of ``BINARY_SUFFIXES``, the ARPA file is converted to a KenLM binary first. Other
    suffixes are those of the temporary file, too.

    Raises:
        ConfigError: KenLM's ``build_binary`` is needed but is not installed, or it fails.
        FormatError: the file cannot be written.
    """
    is_binary = output.suffix in BINARY_SUFFIXES
    if is_binary:
        lmplz.find_tool("build_binary")
    with explain_write_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(output) as complete:
            arpa = complete.with_name(f"{complete.name}.arpa") if is_binary else complete
            arpa.touch()  # fail now, rather than after the work, if the folder is not writable
            try:
                yield arpa
                if is_binary:
                    lmplz.build_binary(arpa, complete)
            finally:
                if is_binary:
                    arpa.unlink(missing_ok=True)
