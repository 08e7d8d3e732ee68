"""Read n-gram tables into the arrays in which ARPA files are read, so that commands take either."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.files.arpa_lines import ArpaOrder
from rescorer.lm.files.arpa_ngrams import ArpaModel
from rescorer.lm.ngrams.building import list_ngrams
from rescorer.lm.ngrams.table_file import is_table_file, map_table
from rescorer.safe_input.files import open_regular


def is_table(path: Path) -> bool:
    """Whether a file starts like an n-gram table."""
    try:
        with open_regular(path) as stream:
            return is_table_file(stream)
    except BundleError:
        return False


def read_table_arrays(path: Path) -> ArpaModel:
    """Read the words and the n-grams of every order from an n-gram table.

    Raises:
        BundleError: the table is damaged, or is one of classes or with a gap.
    """
    with open_regular(path) as stream:
        content = map_table(stream)
        if content.members or content.skip:
            raise BundleError(f"{path}: has n-grams of classes or with a gap; expected n-grams of words")
        orders = list_ngrams(content.table, stream.name)
    wide = [ArpaOrder(ids, values.astype(np.float64)) for ids, values in orders]
    return ArpaModel(tuple(content.unit_names), wide)
