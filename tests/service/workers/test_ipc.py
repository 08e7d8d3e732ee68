"""Frames between processes: contents survive packing, invalid and truncated frames are rejected."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.frames import (
    PREFIX,
    Frame,
    pack,
    pack_scores,
    pack_trie,
    parse_prefix,
    unpack,
    unpack_scores,
    unpack_trie,
)
from rescorer.service.workers.peers import read_frame
from rescorer.trie import EdgeScores, build_trie

words = st.text(st.characters(exclude_categories=["Z", "Cc", "Cs"]), min_size=1, max_size=4)
names = words.filter(lambda name: "/" not in name)
"""A manifest refuses names of models with a slash."""
sentences = st.lists(words, max_size=5).map(tuple)


def pack_and_unpack(header, arrays):
    data = pack(header, arrays)
    head, body = parse_prefix(data[: PREFIX.size])
    assert len(data) == PREFIX.size + head + body
    return unpack(data[PREFIX.size : PREFIX.size + head], data[PREFIX.size + head :])


@given(st.lists(st.tuples(sentences, sentences), max_size=6))
def test_tries_survive_packing(pairs):
    trie = build_trie([hypothesis for hypothesis, _ in pairs], [context for _, context in pairs])
    frame = pack_and_unpack({"do": "score"}, pack_trie(trie))
    unpacked = unpack_trie(frame.arrays)
    assert frame.header == {"do": "score"}
    assert (unpacked.words, unpacked.level_bounds) == (trie.words, trie.level_bounds)
    assert [ids.tolist() for ids in unpacked.contexts] == [ids.tolist() for ids in trie.contexts]
    for name in ("parent", "node_word", "hypothesis_node", "end_nodes"):
        assert getattr(unpacked, name).tolist() == getattr(trie, name).tolist()


@given(st.dictionaries(names, st.lists(st.floats(allow_nan=False), max_size=5), max_size=3))
def test_scores_survive_packing(log_probs):
    scores = {
        name: EdgeScores(
            np.array(values, dtype=np.float64),
            np.array([value < -1 for value in values], bool),
            {f"{other} x": np.ones((2, 3)) * index for index, other in enumerate(log_probs)},
        )
        for name, values in log_probs.items()
    }
    unpacked = unpack_scores(pack_and_unpack({}, pack_scores(scores)).arrays)
    assert list(unpacked) == list(scores)
    for name, edges in scores.items():
        assert unpacked[name].log_probs.tolist() == edges.log_probs.tolist()
        assert unpacked[name].unknown.tolist() == edges.unknown.tolist()
        assert list(unpacked[name].encodings) == list(edges.encodings)
        for other, values in edges.encodings.items():
            assert unpacked[name].encodings[other].tolist() == values.tolist()


def test_rejects_invalid_frames():
    with pytest.raises(ValueError, match="invalid frame prefix"):
        parse_prefix(b"GET / HTTP/1.1\r\n")
    with pytest.raises(ValueError, match="expected one of the types"):
        pack({}, {"a": np.array(["text"], dtype=object)})
    with pytest.raises(ValueError, match="extends beyond the frame"):
        unpack(b'{"arrays": [["a", "<i8", [3]]]}', b"12345678")
    with pytest.raises(ValueError, match="invalid type"):
        unpack(b'{"arrays": [["a", "|O", [1]]]}', b"12345678")


async def read_all(data: bytes) -> list[Frame]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    frames = []
    with suppress(asyncio.IncompleteReadError):
        while True:
            frames.append(await read_frame(reader))
    return frames


def test_received_arrays_are_writable():
    data = b"".join(pack({"id": number}, {"ids": np.arange(5)}) for number in range(2))
    received = asyncio.run(read_all(data))
    assert [frame.header["id"] for frame in received] == [0, 1]
    # torch warns about read-only arrays
    assert all(frame.arrays["ids"].flags.writeable for frame in received)


def test_a_truncated_frame_ends_the_stream():
    frame = pack({"id": 1}, {"ids": np.arange(5)})
    for size in range(len(frame)):
        assert asyncio.run(read_all(frame[:size])) == []
