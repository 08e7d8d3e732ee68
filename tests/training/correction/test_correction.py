"""Networks that rewrite the first hypothesis: probabilities, search, learning, held-out scores, commands."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import BundleError, ConfigError, FormatError, ScoringError
from rescorer.formats.jsonlines import read_lists, writer
from rescorer.models.network_files import Vocabulary
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList
from rescorer_training import correction
from rescorer_training.cli import main
from rescorer_training.correction import (
    UNKNOWN_SHARE,
    CorrectionOptions,
    Corrector,
    CorrectorConfig,
    CorrectorNetwork,
    hold_out,
    pair,
    rewrite_text,
    train,
)

VOCABULARY = Vocabulary(("</s>", "<unk>", "a", "b", "c", "<s>"))
WORDS = st.lists(st.sampled_from(["a", "b", "c", "x", "y"]), max_size=5).map(tuple)
SMALL = CorrectionOptions(embedding=32, hidden=32, epochs=10, batch_words=40, learning_rate=0.01, dropout=0.0)
CONFUSED = {"sea": "see", "two": "to", "bare": "bear"}


@pytest.fixture(scope="module")
def corrector() -> Corrector:
    torch.manual_seed(3)
    network = CorrectorNetwork(CorrectorConfig(len(VOCABULARY), 4, 5))
    for value in network.parameters():
        torch.nn.init.normal_(value, std=0.8)
    return Corrector(network.eval(), VOCABULARY, Normaliser())


def plain_log_prob(corrector: Corrector, source, target) -> float:
    """ln P(target | source) by the equations, one word at a time, in float64."""
    parameters = {name: value.double().numpy() for name, value in corrector.network.state_dict().items()}
    vocabulary = list(VOCABULARY.words)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def embed(word):
        return parameters["words.weight"][
            vocabulary.index(word if word in "abc" or len(word) > 1 else "<unk>")
        ]

    def gru(name, suffix, x, h):
        w, u = (parameters[f"{name}.weight_{kind}_l0{suffix}"] for kind in ("ih", "hh"))
        b, c = (parameters[f"{name}.bias_{kind}_l0{suffix}"] for kind in ("ih", "hh"))
        wr, wz, wn = np.split(w @ x + b, 3)
        ur, uz, un = np.split(u @ h + c, 3)
        z = sigmoid(wz + uz)
        return (1 - z) * np.tanh(wn + sigmoid(wr + ur) * un) + z * h

    def linear(name, x):
        return parameters[f"{name}.weight"] @ x + parameters[f"{name}.bias"]

    read, size = [*source, "</s>"], 5
    forward, backward = [], []
    for directed, words, suffix in ((forward, read, ""), (backward, read[::-1], "_reverse")):
        h = np.zeros(size)
        for word in words:
            h = gru("encoder", suffix, embed(word), h)
            directed.append(h)
    hidden = [np.concatenate(both) for both in zip(forward, backward[::-1], strict=True)]
    keys = np.array([linear("keys", h) for h in hidden])
    state = np.tanh(linear("start", np.mean(hidden, axis=0)))
    total, before = 0.0, "<s>"
    for word in (*target, "</s>"):
        state = gru("decoder", "", embed(before), state)
        attention = np.exp(keys @ state)
        attention /= attention.sum()
        mixed = np.tanh(linear("mix", np.concatenate([state, attention @ keys])))
        gate = sigmoid(linear("gate", mixed))[0]
        logits = parameters["words.weight"] @ mixed + parameters["bias"]
        written = np.exp(logits) / np.exp(logits).sum()
        is_known = word in vocabulary
        share = written[vocabulary.index(word)] if is_known else UNKNOWN_SHARE * written[1]
        copied = sum(a for a, other in zip(attention, read, strict=True) if other == word)
        total += math.log(gate * share + (1 - gate) * copied)
        before = word
    return total


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_scores_are_those_of_the_equations_whatever_is_scored_together(corrector, texts):
    scores = corrector.score([pair(source, target, VOCABULARY) for source, target in texts])
    expected = [plain_log_prob(corrector, source, target) for source, target in texts]
    np.testing.assert_allclose(scores, expected, atol=1e-4)


@given(WORDS, WORDS)
@settings(deadline=None, max_examples=30)
def test_probabilities_of_the_next_word_sum_to_one(corrector, source, target):
    """Over the vocabulary, where <unk> is one word, and the words of the source that the vocabulary lacks."""
    unknown = VOCABULARY.unknown
    with torch.no_grad():
        ids = torch.tensor([pair(source, target, VOCABULARY).source])
        encoded = corrector.network.encode(ids, unknown)
        inputs = torch.tensor([[VOCABULARY.start, *pair((), target, VOCABULARY).target]])
        written, copied, _ = corrector.network.decode(encoded, inputs, encoded.state, unknown)
    total = written.exp().sum(2) + copied.exp().sum(2)
    np.testing.assert_allclose(total, np.ones(total.shape), atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(WORDS, st.integers(1, 6))
def test_rewritings_have_their_scores_and_no_unknown_word_of_their_own(corrector, source, beam):
    found = corrector.rewrite(source, beam)
    assert len(found) <= beam
    assert bool(found) == bool(source)
    assert len({words for _, words in found}) == len(found)
    scores = corrector.score([pair(source, words, VOCABULARY) for _, words in found])
    for (total, words), score in zip(found, scores, strict=True):
        assert {*words} <= {"a", "b", "c", *source}
        if {*words} <= {"a", "b", "c"}:  # the score of another word has a share of <unk> besides
            assert total == pytest.approx(score, abs=1e-4)
    assert [total for total, _ in found] == sorted((total for total, _ in found), reverse=True)


def test_a_wide_beam_finds_the_most_probable_rewriting(corrector):
    every = [(), *[(one,) for one in "abc"], *[(one, two) for one in "abc" for two in "abc"]]
    scores = corrector.score([pair(("a", "c"), words, VOCABULARY) for words in every])
    found = {words: total for total, words in corrector.rewrite(("a", "c"), 40)}
    for words, score in zip(every, scores, strict=True):
        if score > min(found.values()):
            assert found[words] == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("The C was calm.", "the sea was calm", "The sea was calm."),
        ("Uh, to be, or not!", "two be or not", "Two be, or not!"),
        ("to be", "to be or not", "to be or not"),
        ("be or not", "to be or not", "to be or not"),
        ("to be, be or not", "to be or not", "to be, or not"),
        ("THE SEE", "the sea was", "THE SEA WAS"),
        ("", "the sea", "the sea"),
        ("the sea", "", ""),
    ],
)
def test_what_stays_is_written_as_it_was(text, words, expected):
    assert rewrite_text(text, tuple(words.split()), Normaliser()) == expected


@given(st.lists(st.sampled_from(["The", "sea,", "was", "CALM.", "uh", "–", "left-over"])), WORDS)
def test_a_rewritten_text_reads_as_the_rewriting(tokens, words):
    normaliser = Normaliser()
    assert normaliser.normalise(rewrite_text(" ".join(tokens), words, normaliser)) == words


def make_lists(n_lists: int, seed: int = 1) -> list[NBestList]:
    """The recogniser always confuses the same words. The second hypothesis is right."""
    draw, lists = random.Random(seed), []
    for number in range(n_lists):
        words = draw.choices(["the", "old", "boat", *CONFUSED], k=draw.randint(1, 3))
        if number % 4 == 0:
            words.append("".join("zyxwvutsrq"[int(digit)] for digit in str(number)))  # occurs once
        heard = [CONFUSED.get(word, word) for word in words]
        texts = (" ".join(heard), " ".join([*heard[:-1], words[-1]]))
        scores = {"acoustic": (-1.0, -2.0)}
        lists.append(
            NBestList(f"u{number}", tuple(map(Hypothesis, texts)), scores, reference=" ".join(words))
        )
    return lists


@pytest.fixture(scope="module")
def trained() -> Corrector:
    torch.set_num_threads(1)
    return train(make_lists(120), Normaliser(), SMALL)


def test_learns_what_is_confused_and_copies_what_it_never_saw(trained):
    def score(source, *targets):
        return trained.score([pair(source, target, trained.vocabulary) for target in targets])

    right, copied, wrong = score(("to",), ("two",), ("to",), ("bare",))
    assert right > max(copied, wrong) + 0.5
    copied, other = score(("the", "whale"), ("the", "whale"), ("the", "oar"))
    assert copied > other + 2


def test_the_same_seed_trains_the_same_network(trained):
    again = train(make_lists(120), Normaliser(), SMALL)
    for name, value in again.network.state_dict().items():
        assert torch.equal(value, trained.network.state_dict()[name]), name


def test_lists_get_scores_and_new_hypotheses_with_those_of_the_first(trained, monkeypatch):
    found = [(-1.0, ("to", "old", "see")), (-2.0, ()), (-3.0, ("two", "old", "sea")), (-4.0, ("two",))]
    monkeypatch.setattr(Corrector, "rewrite", lambda self, source, beam: found)
    nbest = NBestList(
        "u1",
        (Hypothesis("To old see!", {"words": [], "speaker": "x"}), Hypothesis("two old see")),
        {"acoustic": (-5.0, -6.0)},
    )
    (plain,) = trained.annotate([nbest])
    assert plain.streams.keys() == {"acoustic", "correction"}
    (found,) = trained.annotate([nbest], 1)
    assert found.hypotheses[:2] == nbest.hypotheses
    assert found.hypotheses[2] == Hypothesis("Two old sea!", {"speaker": "x"})
    assert found.streams["acoustic"] == (-5.0, -6.0, -5.0)
    assert found.streams["corrected"] == (0.0, 0.0, 1.0)
    assert found.streams["correction"][:2] == pytest.approx(plain.streams["correction"], abs=1e-5)
    with pytest.raises(ConfigError, match="list 'u1' already has a stream 'correct"):
        trained.annotate([found])


def test_empty_and_long_hypotheses_are_scored_and_not_rewritten(trained):
    nbest = NBestList("u1", (Hypothesis(""), Hypothesis("old " * 300)), {})
    (found,) = trained.annotate([nbest], 2)
    assert len(found.hypotheses) == 2
    assert np.isfinite(found.streams["correction"]).all()
    (found,) = trained.annotate([replace(nbest, hypotheses=nbest.hypotheses[::-1])], 2)
    assert len(found.hypotheses) == 2


@pytest.mark.parametrize("shares", [False, True])
def test_held_out_scores_are_of_networks_that_saw_no_such_list(monkeypatch, trained, shares):
    lists = [replace(one, group=f"g{number % 12}") for number, one in enumerate(make_lists(60))]
    lists += [replace(lists[0], id="copy", group="g5")]
    seen = []

    def watch(training, normaliser, options):
        seen.append({nbest.id for nbest in training})
        return trained

    monkeypatch.setattr(correction, "train", watch)
    found = hold_out(lists, Normaliser(), SMALL, n_folds=4, share_references=shares)
    assert [nbest.id for nbest in found] == [nbest.id for nbest in lists]
    groups = {nbest.id: nbest.group for nbest in lists}
    for ids in seen:
        others = groups.keys() - ids
        held_out = {group for group in groups.values() if not {groups[one] for one in ids} & {group}}
        assert {one for one in others if groups[one] in held_out}
        if shares:
            assert all(groups[one] in held_out for one in others)


def test_a_saved_network_scores_the_same_and_a_damaged_one_is_refused(trained, tmp_path):
    trained.save(tmp_path, {"lists": 120})
    pairs = [pair(("to", "see"), ("two", "sea"), trained.vocabulary)]
    assert Corrector.load(tmp_path).score(pairs) == trained.score(pairs)
    config = json.loads((tmp_path / "config.json").read_text())
    for changed, message in (
        ({"hidden": 17}, "the weights do not fit the network"),
        ({"vocabulary_size": 5}, "the vocabulary has"),
        ({"hidden": 0}, "hidden is 0; expected an integer from 1 to 4,096"),
        ({"kind": "lstm"}, "kind is 'lstm'"),
        ({"other": 1}, "expected a JSON object with the settings"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(BundleError, match=message):
            Corrector.load(tmp_path)


def test_refuses_what_nothing_can_be_learnt_from():
    with pytest.raises(FormatError, match="19 lists have references; expected at least 20"):
        train([*make_lists(19), NBestList("u", (Hypothesis("a"),), {})], Normaliser(), SMALL)
    with pytest.raises(FormatError, match="no two lists share a word"):
        train(
            [NBestList(str(i), (Hypothesis(f"a{i}"),), {}, reference=f"b{i}") for i in range(20)],
            Normaliser(),
            SMALL,
        )
    with pytest.raises(ConfigError, match="hidden is 0; expected 1 to 4,096"):
        CorrectionOptions(hidden=0)
    with pytest.raises(ConfigError, match="dropout is 1"):
        CorrectionOptions(dropout=1.0)


def test_training_that_diverges_says_so(monkeypatch):
    monkeypatch.setattr(Corrector, "score", lambda self, pairs: np.full(len(pairs), math.nan))
    with pytest.raises(ScoringError, match="training diverged"):
        train(make_lists(20), Normaliser(), SMALL)


def test_commands_train_score_and_add(tmp_path, monkeypatch, capsys):
    def call(*arguments) -> int:
        monkeypatch.setattr("sys.argv", ["rescorer-train", "correct", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return exit_.value.code or 0

    with writer(tmp_path / "lists.jsonl") as write:
        for nbest in make_lists(40):
            write(nbest)
    options = [
        "--embedding",
        8,
        "--hidden",
        8,
        "--epochs",
        1,
        "--folds",
        2,
        "--candidates",
        1,
        "--threads",
        1,
    ]
    arguments = ["train", tmp_path / "lists.jsonl", "-o", tmp_path / "run", *options]
    assert call(*arguments, "--held-out", tmp_path / "held-out.jsonl") == 0
    held_out = list(read_lists(tmp_path / "held-out.jsonl"))
    assert [nbest.id for nbest in held_out] == [f"u{number}" for number in range(40)]
    assert all(nbest.streams.keys() == {"acoustic", "correction", "corrected"} for nbest in held_out)
    assert call("apply", tmp_path / "run", tmp_path / "lists.jsonl", "-o", tmp_path / "out.jsonl") == 0
    assert all(len(nbest.hypotheses) == 2 for nbest in read_lists(tmp_path / "out.jsonl"))
    assert call(*arguments) == 2
    assert "already has a network" in capsys.readouterr().err
    with writer(tmp_path / "few.jsonl") as write:  # with two references, so that a fold leaves half of them
        for number, nbest in enumerate(make_lists(30)):
            write(replace(nbest, reference=f"the sea {number % 2}"))
    arguments = ["train", tmp_path / "few.jsonl", "-o", tmp_path / "other", *options]
    assert call(*arguments, "--held-out", tmp_path / "other.jsonl") == 2
    left = (
        "15 lists with references are left to train on; expected at least 20: give more lists, more --folds"
    )
    err = capsys.readouterr().err
    assert f"without fold 1 and lists that share its references, {left}, or --share-references" in err
    assert call(*arguments, "--share-references", "--held-out", tmp_path / "other.jsonl") == 2
    assert f"without fold 1, {left}\n" in capsys.readouterr().err
    assert not (tmp_path / "other" / "config.json").exists()
    assert call("apply", tmp_path / "other", tmp_path / "lists.jsonl", "-o", tmp_path / "out.jsonl") == 2
    message = f"rescorer-train: {tmp_path / 'other' / 'config.json'}: is missing"
    assert capsys.readouterr().err.splitlines()[-1] == message
