"""KenLM as the twin of our n-gram scores; tests that need it are skipped where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rescorer.models.ngram_files import KenlmNgram


def has_kenlm() -> bool:
    return find_spec("kenlm") is not None


needs_kenlm = pytest.mark.skipif(not has_kenlm(), reason="needs kenlm: pip install rescorer[kenlm]")


def open_twin(path: Path, words: frozenset[str] = frozenset()) -> KenlmNgram:
    """Load an ARPA file or KenLM binary with KenLM."""
    from rescorer.models.ngram_files import load_kenlm

    with path.open("rb") as stream:
        return load_kenlm(stream, words)
