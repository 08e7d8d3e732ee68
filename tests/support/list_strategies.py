"""Hypothesis strategies for n-best lists, and checks that the tests of file formats share."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import strategies as st

from rescorer.types import Hypothesis, NBestList

LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"], exclude_characters="\ufeff/▁")
WORD = st.text(LETTERS, min_size=1, max_size=5)
TEXT = st.lists(WORD | st.just("a b"), max_size=4).map(" ".join)
ID = st.text("abc-_.:7", min_size=1, max_size=8).filter(
    lambda list_id: list_id[0] not in ".-" and ".gz" not in list_id
)
NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


@st.composite
def nbest_lists(
    draw: st.DrawFn,
    streams: Sequence[str] = (),
    numbers: st.SearchStrategy[float] = NUMBERS,
    ids: st.SearchStrategy[str] = ID,
    references: bool = False,
    fields: Callable[[str], Mapping[str, object]] = lambda text: {},
) -> NBestList:
    """Draw a list of one-line texts with the given streams."""
    texts = draw(st.lists(TEXT, min_size=1, max_size=4))
    return NBestList(
        id=draw(ids),
        hypotheses=tuple(Hypothesis(text, fields(text)) for text in texts),
        streams={name: tuple(draw(numbers) for _ in texts) for name in streams},
        reference=draw(st.none() | TEXT) if references else None,
    )


def several(lists: st.SearchStrategy[NBestList]) -> st.SearchStrategy[list[NBestList]]:
    """Up to three lists with distinct ids, sorted by id."""
    drawn = st.lists(lists, min_size=1, max_size=3, unique_by=lambda nbest: nbest.id)
    return drawn.map(lambda nbests: sorted(nbests, key=lambda nbest: nbest.id))


def lists_match(found: Sequence[object], expected: Sequence[NBestList], relative: float = 1e-12) -> bool:
    """Whether lists are equal, up to the rounding of scores that were converted to another base."""
    return len(found) == len(expected) and all(
        isinstance(one, NBestList)
        and (one.id, one.hypotheses, one.reference, one.fields)
        == (other.id, other.hypotheses, other.reference, other.fields)
        and {name: pytest.approx(values, rel=relative) for name, values in other.streams.items()}
        == one.streams
        for one, other in zip(found, expected, strict=True)
    )


def write_truncated_gzip(path: Path, text: str) -> None:
    """Write a gzip file whose end is missing, though its first lines are complete."""
    noise = "".join(os.urandom(20).hex() + "\n" for _ in range(1000))
    path.write_bytes(gzip.compress((text + noise).encode())[:-5000])
