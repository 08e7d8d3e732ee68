"""Batches of text in order, and the perplexity of networks that carry their state between them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.models.neural import NeuralLanguageModel
from rescorer_training.batches import StreamBatches
from rescorer_training.neural.checkpoint import interleave
from rescorer_training.neural.prepare import perplexity
from tests.support.reference_scorer import reference_log_probs
from tests.support.toy_training import make_model, make_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


@given(st.integers(2, 300), st.integers(1, 9), st.integers(1, 40), st.integers(0, 5))
def test_streams_contain_the_whole_text_in_order(n, rows, bptt, epoch):
    ids = np.arange(n, dtype=np.int32)
    if n < 2 * rows:
        with pytest.raises(ConfigError, match="too few"):
            StreamBatches.for_epoch(ids, rows, bptt, 3, epoch)
        return
    batches = StreamBatches.for_epoch(ids, rows, bptt, 3, epoch)
    read = [batches.make_rows(number) for number in range(len(batches))]
    assert all(inputs.shape[1] <= bptt for inputs, _ in read)
    inputs, targets = (np.concatenate(columns, axis=1) for columns in zip(*read, strict=True))
    words = targets[targets >= 0]  # one row after the other
    assert words.tolist() == np.roll(ids, -batches.offset).tolist()
    assert (inputs[targets >= 0] == (words - 1) % n).all()  # the word before it
    counted = [batches.count_targets(number) for number in range(len(batches))]
    assert counted == [(row_targets >= 0).sum() for _, row_targets in read]


@given(st.integers(1, 4), st.integers(4, 9))
def test_parts_of_a_batch_interleave_to_the_whole(n_parts, rows):
    batches = StreamBatches(np.arange(200, dtype=np.int32), rows, 7)
    whole = torch.from_numpy(batches.make_rows(2)[0])
    parts = [(torch.from_numpy(batches.make_rows(2, part, n_parts)[0]),) for part in range(n_parts)]
    assert torch.equal(interleave(parts)[0], whole)


@pytest.mark.parametrize(
    ("kind", "window"), [("lstm", 0), ("gru", 0), ("feedforward", 3), ("transformer", 9)]
)
def test_carried_perplexity_agrees_with_one_pass_over_the_text(text, kind, window):
    model = make_model(text, kind=kind, window=window, carried=True).eval()
    ids = torch.from_numpy(np.array(text.validation.ids, dtype=np.int64))
    inputs = torch.cat([ids.new_tensor([text.vocabulary.end]), ids[:-1]])
    with torch.no_grad():
        hidden, _ = model.network(inputs[None])
        expected = math.exp(float(model.output.loss(hidden[0], ids)) / len(ids))
    assert perplexity(model, text.validation) == pytest.approx(expected, rel=1e-5)
    # Scoring the first sentence on its own gives the same log-probabilities.
    first = [text.vocabulary.words[i] for i in ids[: int((ids == text.vocabulary.end).nonzero()[0])]]
    with torch.no_grad():
        table = model.output.distribution(hidden[0, : len(first) + 1])
    in_text = table[torch.arange(len(first) + 1), ids[: len(first) + 1]].numpy()
    scored = reference_log_probs(NeuralLanguageModel(model, text.vocabulary), tuple(first))
    np.testing.assert_allclose(scored, in_text, atol=1e-5)


@pytest.mark.parametrize(("kind", "window"), [("lstm", 0), ("transformer", 20)])
def test_perplexity_of_several_streams_agrees_with_one(text, kind, window):
    model = make_model(text, kind=kind, window=window, carried=True)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    long = type(text.train).from_ids(
        np.tile(text.train.ids, 3), start_id=text.vocabulary.start, end_id=0, max_words=50
    )
    assert perplexity(model, long, streams=3) == pytest.approx(perplexity(model, long, streams=1), rel=1e-5)
