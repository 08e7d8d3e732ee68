"""The comparison of imported models with transformers: all its ways give the same scores."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rescorer.terminal.tables import print_out
from rescorer.trie import build_trie
from rescorer.units.importing import score_alone
from tests.support.unit_models import unit_model
from tools.unit_speed import Peer, measure

LISTS = [[("the", "cat", "sat"), ("the", "cat"), ()], [("a", "dog"), ("a", "dog", "on")]]


class FakePeer:
    """Answers like a network of transformers, by the slow twin of our own one."""

    def __init__(self, decoder):
        self._decoder = decoder

    def __call__(self, input_ids, attention_mask):
        vectors = [self._decoder.sequence_vectors(row, torch.float32) for row in input_ids.tolist()]
        return SimpleNamespace(logits=torch.stack([self._decoder.scores(rows) for rows in vectors]))


@pytest.mark.parametrize(("end", "has_start"), [(2, True), (None, True), (None, False)])
def test_all_ways_give_the_same_scores(capsys, end, has_start):
    model, config = unit_model(end=end, has_start=has_start)
    peer = FakePeer(model.scorer.decoder)

    def by_trie(hypotheses):
        trie = build_trie(hypotheses)
        return model.score(trie).sum_paths(trie)

    ways = {"alone": Peer(peer, model, 1), "padded": Peer(peer, model, 2), "trie": by_trie}
    for hypotheses in LISTS:
        expected = [score_alone(model, config, words) for words in hypotheses]
        for score in ways.values():
            np.testing.assert_allclose(score(hypotheses), expected, atol=1e-3)
    print_out(measure(ways, LISTS))
    printed = capsys.readouterr().out
    assert "2 lists, 10 words" in printed
    assert [line.split()[0] for line in printed.splitlines()[-3:]] == list(ways)
