"""Text in order: contiguous batches, the state carried between them, and perplexity measured that way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.reference_scorer import reference_log_probs
from rescorer_training.data.stream_batches import StreamBatches
from rescorer_training.neural.checkpoint import interleaved
from rescorer_training.neural.validation import perplexity
from tests.support.toy_runs import toy_model, toy_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return toy_text(tmp_path_factory.mktemp("text"))


@given(st.integers(2, 300), st.integers(1, 9), st.integers(1, 40), st.integers(0, 5))
def test_streams_hold_the_whole_text_in_order(n, rows, bptt, epoch):
    ids = np.arange(n, dtype=np.int32)
    if n < 2 * rows:
        with pytest.raises(ConfigError, match="too few"):
            StreamBatches.of(ids, rows, bptt, 3, epoch)
        return
    batches = StreamBatches.of(ids, rows, bptt, 3, epoch)
    read = [batches.rows(number) for number in range(len(batches))]
    assert all(inputs.shape[1] <= bptt for inputs, _ in read)
    inputs, targets = (np.concatenate(columns, axis=1) for columns in zip(*read, strict=True))
    words = targets[targets >= 0]  # row after row
    assert words.tolist() == np.roll(ids, -batches.offset).tolist()
    assert (inputs[targets >= 0] == (words - 1) % n).all()  # the word before it
    counted = [batches.n_words(number) for number in range(len(batches))]
    assert counted == [(row_targets >= 0).sum() for _, row_targets in read]


@given(st.integers(1, 4), st.integers(4, 9))
def test_parts_are_dealt_rows_and_put_back(n_parts, rows):
    batches = StreamBatches(np.arange(200, dtype=np.int32), rows, 7)
    whole = torch.from_numpy(batches.rows(2)[0])
    parts = [(torch.from_numpy(batches.rows(2, part, n_parts)[0]),) for part in range(n_parts)]
    assert torch.equal(interleaved(parts)[0], whole)


@pytest.mark.parametrize(("kind", "window"), [("lstm", 0), ("gru", 0), ("feedforward", 3)])
def test_carried_perplexity_is_one_pass_over_the_text_from_its_end_mark(text, kind, window):
    model = toy_model(text, kind=kind, window=window, carried=True).eval()
    ids = torch.from_numpy(np.array(text.validation.ids, dtype=np.int64))
    inputs = torch.cat([ids.new_tensor([text.vocabulary.end]), ids[:-1]])
    with torch.no_grad():
        hidden, _ = model.network(inputs[None])
        twin = math.exp(float(model.output.loss(hidden[0], ids)) / len(ids))
    assert perplexity(model, text.validation) == pytest.approx(twin, rel=1e-5)
    # What scoring gives the first sentence is what the first sentence has here.
    first = [text.vocabulary.words[i] for i in ids[: int((ids == text.vocabulary.end).nonzero()[0])]]
    with torch.no_grad():
        table = model.output.distribution(hidden[0, : len(first) + 1])
    here = table[torch.arange(len(first) + 1), ids[: len(first) + 1]].numpy()
    scored = reference_log_probs(NeuralLanguageModel(model, text.vocabulary), tuple(first))
    np.testing.assert_allclose(scored, here, atol=1e-5)


def test_streams_of_a_long_text_are_warmed_up(text):
    model = toy_model(text, carried=True)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    long = type(text.train).of(np.tile(text.train.ids, 3), start=text.vocabulary.start, end=0, longest=50)
    assert perplexity(model, long, streams=3) == pytest.approx(perplexity(model, long, streams=1), rel=1e-5)
