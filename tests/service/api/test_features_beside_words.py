"""Networks that read topics, word classes or parts of speech, behind a server: the answers of the library."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from rescorer import Hypothesis, NBestList, Rescorer, Utterance
from rescorer.cli import app
from rescorer.client import Client
from rescorer.models import contexts
from rescorer.models.contexts import TopicReader
from rescorer.models.network_files import Vocabulary
from rescorer.models.neural import NeuralModel
from rescorer.trie import SENTENCE_END
from rescorer_training.features import add_class_inputs, fold_class_inputs
from tests.support.reference_scorer import reference_log_probs
from tests.support.repositories import add_version
from tests.support.servers import RunningServer, run_server
from tests.support.tiny_models import NETWORK_WORDS, stable_network, write_bundle

pytestmark = pytest.mark.slow

LBL = {"kind": "lbl", "window": 2, "activation": "linear"}
CARRIED = {"kind": "lstm", "carried": True}
PASTS = [((), ""), (("the dog ran",), ""), (("the dog ran", "on the mat"), "the"), (("nobody", ""), "a cat")]


def with_topics(seed: int = 0, **config) -> tuple[NeuralModel, Vocabulary]:
    model, vocabulary = stable_network(topics=3, topic_decay=0.9, seed=seed, **config)
    words = torch.rand(len(vocabulary), 3) ** 4
    words[[0, 1, -1]] = 0.0
    model.topic_words.copy_(words / words.sum(dim=1, keepdim=True).clamp(min=1e-9))
    return model, vocabulary


def with_tags(**config) -> tuple[NeuralModel, Vocabulary]:
    model, vocabulary = stable_network(pos_tags=3, **config)
    assert model.tags is not None
    for buffer in model.tags.buffers():
        buffer.copy_((4 * torch.rand(buffer.shape)).softmax(-1))
    model.tags.words[[0, -1]] = 0.0
    return model, vocabulary


def with_classes(**config) -> tuple[NeuralModel, Vocabulary]:
    model, vocabulary = stable_network(**config)
    add_class_inputs(model, torch.arange(2 * len(vocabulary)).view(-1, 2) % 5)
    model.network.embedding.class_vectors.data.normal_()
    folded = fold_class_inputs(model)
    assert isinstance(folded, NeuralModel)
    return folded.eval(), vocabulary


NETWORKS = {
    "topics": (with_topics, LBL), "topics, carried state": (with_topics, CARRIED),
    "parts of speech": (with_tags, LBL), "parts of speech, recurrent": (with_tags, {"kind": "lstm"}),
    "classes": (with_classes, LBL), "classes, carried state": (with_classes, CARRIED),
}  # fmt: skip


@pytest.fixture(scope="module", params=NETWORKS)
def bundle(request, tmp_path_factory):
    make, config = NETWORKS[request.param]
    return write_bundle(tmp_path_factory.mktemp("network"), network=make(**config))


def make_list(number: int, past: tuple[str, ...] = (), context: str = "") -> NBestList:
    hypotheses = (Hypothesis("the cat sat"), Hypothesis("the dog ran fast"), Hypothesis(""))
    streams = {"acoustic": (-1.0, -2.0, -9.0)}
    return NBestList(str(number), hypotheses, streams, context=context, previous=tuple(map(Utterance, past)))


def neural_scores(answer) -> dict[str, float]:
    return {hypothesis.text: hypothesis.components["neural"] for hypothesis in answer.hypotheses}


def check_answers(found, expected) -> None:
    for answer, other in zip(found, expected, strict=True):
        assert [h.text for h in answer.hypotheses] == [h.text for h in other.hypotheses]
        assert neural_scores(answer) == pytest.approx(neural_scores(other), abs=1e-4)


@pytest.mark.parametrize("workers", [0, 1])
def test_server_library_and_reference_agree(bundle, workers):
    lists = [make_list(number, *past) for number, past in enumerate(PASTS)]
    rescorer = Rescorer.load(bundle)
    expected = rescorer.rescore(lists)
    model = rescorer.scorer.models["neural"]
    for (past, context), answer in zip(PASTS, expected, strict=True):
        history = [word for text in past if text for word in (*text.split(), SENTENCE_END)]
        for text, score in neural_scores(answer).items():
            reference = reference_log_probs(model, tuple(text.split()), (*history, *context.split()))
            assert score == pytest.approx(reference.sum(), abs=1e-3)
    with run_server(bundle, workers=workers) as server, Client(server.target) as client:
        check_answers(client.rescore(lists), expected)
        check_answers([client.rescore([nbest])[0] for nbest in reversed(lists)], expected[::-1])


def test_files_have_the_answers_of_the_library(bundle, tmp_path):
    lists = [make_list(number, *past) for number, past in enumerate(PASTS)]
    lines = [
        {
            "id": nbest.id, "context": nbest.context,
            "previous": [{"text": utterance.text} for utterance in nbest.previous],
            "hypotheses": [
                {"text": h.text, "scores": {"acoustic": score}}
                for h, score in zip(nbest.hypotheses, nbest.streams["acoustic"], strict=True)
            ],
        }
        for nbest in lists
    ]  # fmt: skip
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "out.jsonl"
    arguments = ["rescore", str(tmp_path / "lists.jsonl"), "-o", str(output), "--bundle", str(bundle)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    answers = map(json.loads, output.read_text().splitlines())
    for line, other in zip(answers, Rescorer.load(bundle).rescore(lists), strict=True):
        found = {h["text"]: h["components"]["neural"] for h in line["hypotheses"]}
        assert found == pytest.approx(neural_scores(other), abs=1e-4)


@pytest.fixture
def inferred(monkeypatch):
    """Number of texts whose topics were inferred, call by call."""
    counts: list[int] = []
    read_last = TopicReader.read_last

    def count(reader, words, lengths):
        counts.append(len(words))
        return read_last(reader, words, lengths)

    monkeypatch.setattr(TopicReader, "read_last", count)
    return counts


def reader_of(server: RunningServer) -> TopicReader:
    assert server.scorer is not None
    return server.scorer.models["neural"].topics


def test_topics_are_cached_by_text(tmp_path, inferred):
    bundle = write_bundle(tmp_path, network=with_topics(**LBL))
    with run_server(bundle) as server, Client(server.target) as client:
        inferred.clear()
        first = client.rescore([make_list(0, ("the dog ran",))])
        assert sum(inferred) == 1
        again = client.rescore([make_list(1, ("the dog ran",)), make_list(2, ("the dog , RAN",))])
        assert sum(inferred) == 1  # the same words
        check_answers(again, [*first, *first])
        client.rescore([make_list(3, ("the dog ran", "on the mat"))])
        assert sum(inferred) == 2


def test_memory_for_topics_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(contexts, "CACHE_BYTES", 1 << 13)
    bundle = write_bundle(tmp_path, network=with_topics(**LBL))
    pasts = [tuple(NETWORK_WORDS[(i >> shift) % 8] for shift in (0, 3, 6)) for i in range(100)]
    lists = [make_list(i, past) for i, past in enumerate(pasts)]
    long = make_list(100, (" ".join(NETWORK_WORDS * 12),) * 20)  # more words than are read
    with run_server(bundle) as server, Client(server.target) as client:
        found = [client.rescore([nbest])[0] for nbest in lists]
        reader = reader_of(server)
        assert 0 < len(reader._cache) <= (1 << 13) // topics_entry_bytes(reader)
        (after_much,) = client.rescore([long])
        assert len(reader._cache) <= (1 << 13) // topics_entry_bytes(reader)
    expected = Rescorer.load(bundle).rescore([*lists, long])
    check_answers([*found, after_much], expected)


def topics_entry_bytes(reader: TopicReader) -> int:
    """Least size of a cached mixture."""
    return 4 * reader.n_topics


def test_a_reload_replaces_the_topics(tmp_path):
    folder = tmp_path / "models"
    write_bundle(folder, network=with_topics(**LBL))
    other = write_bundle(tmp_path / "other", network=with_topics(seed=5, **LBL))
    nbest = make_list(0, ("the dog ran",))
    bundles = (folder / "tiny" / "1", other)
    before, after = (neural_scores(Rescorer.load(path).rescore([nbest])[0]) for path in bundles)
    assert max(abs(before[text] - after[text]) for text in before) > 0.01
    with run_server(None, repository=folder) as server, Client(server.target) as client:
        assert neural_scores(client.rescore([nbest])[0]) == pytest.approx(before, abs=1e-4)
        add_version(folder, "tiny/2", other)
        server.run(server.server.reloader.reload())
        assert neural_scores(client.rescore([nbest])[0]) == pytest.approx(after, abs=1e-4)
