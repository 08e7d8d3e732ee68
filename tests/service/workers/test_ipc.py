"""Frames between the server and its workers: what is packed comes out, and what is no frame is refused."""

from __future__ import annotations

import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.lm.base import EdgeScores
from rescorer.service.workers.__main__ import frames
from rescorer.service.workers.ipc import (
    PREFIX,
    lengths,
    pack,
    score_arrays,
    scores_of,
    trie_arrays,
    trie_of,
    unpack,
)
from rescorer.trie import build_trie

words = st.text(st.characters(exclude_categories=["Z", "Cc", "Cs"]), min_size=1, max_size=4)
sentences = st.lists(words, max_size=5).map(tuple)


def through(header, arrays):
    data = pack(header, arrays)
    head, body = lengths(data[: PREFIX.size])
    assert len(data) == PREFIX.size + head + body
    return unpack(data[PREFIX.size : PREFIX.size + head], data[PREFIX.size + head :])


@given(st.lists(st.tuples(sentences, sentences), max_size=6))
def test_a_trie_comes_out_as_it_went_in(pairs):
    trie = build_trie([hypothesis for hypothesis, _ in pairs], [context for _, context in pairs])
    frame = through({"do": "score"}, trie_arrays(trie))
    found = trie_of(frame.arrays)
    assert frame.header == {"do": "score"}
    assert (found.words, found.level_bounds) == (trie.words, trie.level_bounds)
    assert [each.tolist() for each in found.contexts] == [each.tolist() for each in trie.contexts]
    for name in ("parent", "node_word", "hypothesis_node", "end_nodes"):
        assert getattr(found, name).tolist() == getattr(trie, name).tolist()


@given(st.dictionaries(words, st.lists(st.floats(allow_nan=False), max_size=5), max_size=3))
def test_scores_come_out_as_they_went_in(log_probs):
    scores = {
        name: EdgeScores(np.array(values, dtype=np.float64), np.array([each < -1 for each in values], bool))
        for name, values in log_probs.items()
    }
    found = scores_of(through({}, score_arrays(scores)).arrays)
    assert list(found) == list(scores)
    for name, each in scores.items():
        assert found[name].log_probs.tolist() == each.log_probs.tolist()
        assert found[name].unknown.tolist() == each.unknown.tolist()


def test_what_is_no_frame_is_refused():
    with pytest.raises(ValueError, match="no frame begins"):
        lengths(b"GET / HTTP/1.1\r\n")
    with pytest.raises(ValueError, match="frames hold"):
        pack({}, {"a": np.array(["text"], dtype=object)})
    with pytest.raises(ValueError, match="beyond the frame"):
        unpack(b'{"arrays": [["a", "<i8", [3]]]}', b"12345678")
    with pytest.raises(ValueError, match="of type"):
        unpack(b'{"arrays": [["a", "|O", [1]]]}', b"12345678")


def test_what_a_scorer_receives_may_be_written_to():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number in range(2):
            ours.sendall(pack({"id": number}, {"ids": np.arange(5)}))
        ours.shutdown(socket.SHUT_WR)
        received = list(frames(theirs))
    assert [frame.header["id"] for frame in received] == [0, 1]
    assert all(frame.arrays["ids"].flags.writeable for frame in received)  # or torch warns


def test_a_frame_of_which_a_part_is_lost_is_the_end():
    whole = pack({"id": 1}, {"ids": np.arange(5)})
    for size in range(len(whole)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(whole[:size])
            ours.shutdown(socket.SHUT_WR)
            assert list(frames(theirs)) == []
