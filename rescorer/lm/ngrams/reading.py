"""Open n-gram models of any kind: our own tables, ARPA files and KenLM binaries."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from rescorer.lm.files.arpa import check_arpa, has_arpa_header
from rescorer.lm.files.arpa_ngrams import read_arpa
from rescorer.lm.files.kenlm_binary import is_kenlm_binary, read_kenlm_header
from rescorer.lm.ngrams.building import build_table
from rescorer.lm.ngrams.kenlm_model import load_kenlm
from rescorer.lm.ngrams.model import NgramModel
from rescorer.lm.ngrams.table_file import is_table_file, map_table
from rescorer.lm.ngrams.table_model import TableContent, TableNgram
from rescorer.safe_input.files import open_regular


def read_ngram(
    source: Path | BinaryIO,
    name: str = "ngram",
    words: frozenset[str] | None = None,
    *,
    backward: bool = False,
) -> NgramModel:
    """Open an n-gram model; its kind is detected from its content.

    Args:
        source: the model file, by its path or opened.
        words: vocabulary of a KenLM binary, from which it cannot be read.
        backward: whether the model was estimated from reversed sentences.

    Raises:
        BundleError: the file cannot be read, or it is a KenLM binary and its vocabulary is missing or KenLM
            is not installed.
    """
    with open_regular(source) if isinstance(source, Path) else nullcontext(source) as stream:
        model = _read_model(stream, name, words)
    model.backward = backward
    return model


def _read_model(stream: BinaryIO, name: str, words: frozenset[str] | None) -> NgramModel:
    if is_table_file(stream):
        return TableNgram(map_table(stream), name)
    if words is not None and not has_arpa_header(stream):
        read_kenlm_header(stream)
        return load_kenlm(stream, words, name)
    return read_arpa_model(stream, name)


def contains_words(path: Path) -> bool:
    """Whether a model file contains its words, as ARPA files and our tables do and KenLM binaries do not.

    Raises:
        BundleError: the file cannot be opened or is none of these; the message says what it is instead.
    """
    with open_regular(path) as stream:
        if is_kenlm_binary(stream):
            return False
        if not is_table_file(stream):
            check_arpa(stream)
        return True


def read_arpa_model(stream: BinaryIO, name: str = "ngram") -> TableNgram:
    """Read an ARPA file, and build its table in memory; raises BundleError if it cannot be read."""
    model = read_arpa(stream)
    return TableNgram(TableContent(model.words, build_table(model.orders, stream.name)), name)
