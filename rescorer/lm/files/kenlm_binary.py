"""Check the header of a KenLM binary before KenLM maps the file into memory."""

from __future__ import annotations

import math
import os
import struct
from typing import BinaryIO, NamedTuple

from rescorer.errors import BundleError
from rescorer.lm.files.arpa import MAX_ORDER
from rescorer.lm.files.foreign_files import KENLM_MAGIC

FIXED_OFFSET = 88
"""Where the numbers of the header begin, after constants that KenLM compares itself."""
FIXED = struct.Struct("<B3xfIB3xI")
"""Order, multiplier of the probing hash tables, kind of model, whether the words follow, version."""
MAX_PROBING_MULTIPLIER = 100.0


class KenlmHeader(NamedTuple):
    """What the header of a KenLM binary says."""

    counts: list[int]
    """Number of n-grams per order."""


def is_kenlm_binary(stream: BinaryIO) -> bool:
    """Whether an open file begins as a KenLM binary does."""
    return os.pread(stream.fileno(), len(KENLM_MAGIC), 0) == KENLM_MAGIC


def read_kenlm_header(stream: BinaryIO) -> KenlmHeader:
    """Read and check the header of a KenLM binary.

    Raises:
        BundleError: the file is not a KenLM binary, or is too small for the n-grams that it declares.
    """
    size = os.fstat(stream.fileno()).st_size
    header = os.pread(stream.fileno(), FIXED_OFFSET + FIXED.size + 8 * MAX_ORDER, 0)
    if not header.startswith(KENLM_MAGIC) or len(header) < FIXED_OFFSET + FIXED.size:
        raise BundleError(f"{stream.name}: expected an ARPA file, or a KenLM binary with a list of its words")
    order, multiplier, *_ = FIXED.unpack_from(header, FIXED_OFFSET)
    counts_end = FIXED_OFFSET + FIXED.size + 8 * order
    if not 1 <= order <= MAX_ORDER or counts_end > len(header):
        raise BundleError(f"{stream.name}: order {order} in its header; expected 1 to {MAX_ORDER}")
    if not (math.isfinite(multiplier) and 1 <= multiplier <= MAX_PROBING_MULTIPLIER):
        raise BundleError(f"{stream.name}: the multiplier of its hash tables is {multiplier:g}; expected 1.5")
    counts = list(struct.unpack_from(f"<{order}Q", header, FIXED_OFFSET + FIXED.size))
    if sum(counts) > size:
        raise BundleError(
            f"{stream.name}: its header says {sum(counts):,} n-grams, but the file has only {size:,} bytes"
        )
    return KenlmHeader(counts)
