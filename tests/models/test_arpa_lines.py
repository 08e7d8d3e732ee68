"""Lines of n-grams parsed all at once, against the same lines parsed one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.models import arpa
from rescorer.models.arpa import TokenBytes, WordIds, find_wrong_line, parse_decimals, parse_ngrams

WORDS = (
    "a",
    "b.",
    "-1",
    "é",
    "seven77",
    "eight888",
    "nine99999",
    "ten\0",
    "ten",
    "\\end",
    "x" * 24,
    "x" * 25,
)
digits = st.text("0123456789_", max_size=10)
numbers = (
    st.floats().map(repr)
    | st.floats(-120, 0).map("{:.6f}".format)
    | st.floats(-120, 0).map("{:.8g}".format)
    | st.builds(
        "{}{}{}{}".format, st.sampled_from(["", "-", "+"]), digits, st.sampled_from(["", "."]), digits
    )
)
tokens = st.binary(min_size=1, max_size=30)
spaces = st.text(" \t\r\v\f", min_size=1, max_size=2)


def parse_one_by_one(
    text: bytes, order: int, ids: dict[bytes, int]
) -> tuple[list[list[int]], list[list[str]]]:
    """Parse lines of an order above 1, with numbers as text that shows every bit.

    Raises:
        ValueError, KeyError: a line is not an n-gram of known words.
    """
    all_ids, values = [], []
    for line in text.split(b"\n"):
        prob, *words = line.split() or [None]
        if prob is None:
            continue
        if len(words) not in (order, order + 1):
            raise ValueError(line)
        all_ids.append([ids[word] for word in words[:order]])
        values.append([float(prob).hex(), float(words[order] if len(words) > order else 0).hex()])
    return all_ids, values


@st.composite
def arpa_lines(draw: st.DrawFn, order: int) -> bytes:
    lines = []
    words = (
        st.sampled_from(WORDS) if draw(st.booleans()) else st.sampled_from((*WORDS, "strange", "nine9999"))
    )
    for _ in range(draw(st.integers(1, 6))):
        n_words = draw(st.sampled_from([order] * 30 + [order - 1, order + 1]))
        columns = [draw(numbers), *(draw(words) for _ in range(n_words))]
        columns += [draw(numbers)] if draw(st.booleans()) else []
        between = draw(st.just(" ") | spaces)
        lines += [between.join(columns), *[""] * draw(st.sampled_from([0, 0, 0, 1]))]
    return draw(st.sampled_from(["", "\n"])).encode() + "\n".join(lines).encode()


@given(st.data(), st.integers(2, 4))
def test_lines_are_parsed_as_one_by_one(data, order):
    text = data.draw(arpa_lines(order))
    words = WordIds([(word.encode(),) for word in WORDS])
    if text.isspace():
        return
    try:
        expected = parse_one_by_one(text, order, words.ids)
    except (ValueError, KeyError):
        with pytest.raises(ValueError, match=r"columns|float|unigram"):
            parse_ngrams(text, order, words)
        wrong = find_wrong_line(text, lambda some: parse_ngrams(some, order, words))
        lines = text.split(b"\n")
        parse_one_by_one(b"\n".join(lines[:wrong]), order, words.ids)
        with pytest.raises((ValueError, KeyError)):
            parse_one_by_one(lines[wrong], order, words.ids)
    else:
        found = parse_ngrams(text, order, words)
        values = [[value.hex() for value in row] for row in found.values.tolist()]
        assert (found.ids.tolist(), values) == expected


@given(st.lists(numbers, min_size=1))
def test_numbers_are_those_of_float(texts):
    encoded = [text.encode() for text in texts]
    text, starts, ends = b" ".join(encoded), [], []
    for token in encoded:
        starts.append(ends[-1] + 1 if ends else 0)
        ends.append(starts[-1] + len(token))
    try:
        expected = [float(token).hex() for token in texts]
    except ValueError:
        with pytest.raises(ValueError, match="could not convert"):
            parse_decimals(TokenBytes(text), np.array(starts), np.array(ends))
    else:
        found = parse_decimals(TokenBytes(text), np.array(starts), np.array(ends))
        assert [value.hex() for value in found.tolist()] == expected


def look_up(words: WordIds, tokens: list[bytes]) -> list[int]:
    ends = np.cumsum([len(token) + 1 for token in tokens]) - 1
    return words.find(TokenBytes(b"\n".join(tokens)), ends - [len(token) for token in tokens], ends).tolist()


@pytest.mark.parametrize("max_steps", [0, 4])
@given(
    st.lists(st.binary(min_size=1, max_size=30), unique=True), st.lists(st.binary(min_size=1, max_size=30))
)
def test_words_are_found_by_their_hashes(max_steps, known, others):
    words = WordIds()
    words.add(known)
    sought = [*known, *others, b"?"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arpa, "MAX_STEPS", max_steps)
        assert look_up(words, sought) == [words.ids.get(token, arpa.NO_ID) for token in sought]


def test_words_whose_hashes_collide_get_another_function(monkeypatch):
    original, factors = TokenBytes.hash, []

    def collide(self, starts, ends, factor):
        factors.append(factor)
        return original(self, starts, ends, factor) * np.uint64(len(set(factors)) > 1)

    monkeypatch.setattr(TokenBytes, "hash", collide)
    words = WordIds([(b"<unk>", b"<UNK>")])
    words.add([b"a", b"b"])
    assert look_up(words, [b"b", b"a", b"<UNK>", b"c"]) == [2, 1, 0, arpa.NO_ID]
    assert factors == [*arpa.FACTORS[:2], arpa.FACTORS[1]]
