"""Check lists made from text: words, scores and how they resemble the lists that they imitate."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.evaluation.list_errors import evaluate_list
from rescorer.formats.jsonlines import read_lists, writer
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList
from rescorer_training.cli import app
from rescorer_training.cli.reranking import check_read_twice
from rescorer_training.lists.patterns import Choice, CountModel, Pronunciations, choose_sentences
from rescorer_training.lists.speech import dictionary_path
from rescorer_training.lists.text import Confusions, ListImitator, ScoreModel, Substitution, find_kept

ONSETS, VOWELS, CODAS = "B D P T K G", "AA IY UW EH", "N M T K"
DICTIONARY = [
    f"{(onset + vowel + coda).lower()} {onset} {vowel} {coda}"
    for onset in ONSETS.split()
    for vowel in VOWELS.split()
    for coda in CODAS.split()
]
WORDS = [line.split()[0] for line in DICTIONARY]
LISTS = 30


def make_real_lists() -> list[NBestList]:
    """Lists of ten hypotheses; errors change the onset, cost 7 in the score, and one word is inserted."""
    random = np.random.default_rng(5)
    lists = []
    for number in range(LISTS):
        reference = [WORDS[i] for i in random.integers(len(WORDS), size=6 + number % 5)]
        hypotheses, scores = [], []
        for rank in range(10):
            words = list(reference)
            for position in random.choice(len(words), rank % 4, replace=False):
                words[position] = random.choice(ONSETS.split()).lower() + words[position][1:]
            if rank == 9:
                words.insert(2, "baan")
            errors = sum(a != b for a, b in zip(words, reference, strict=False)) if rank < 9 else 4
            hypotheses.append(" ".join(words))
            scores.append(-50.0 - 7.0 * errors + float(random.normal()))
        lists.append(
            NBestList(
                f"real-{number}",
                tuple(map(Hypothesis, hypotheses)),
                {"am": tuple(scores)},
                reference=" ".join(reference),
                group=f"speaker-{number % 3}",
            )
        )
    return lists


@pytest.fixture
def text(tmp_path: Path) -> Path:
    random = np.random.default_rng(6)
    path = tmp_path / "text.txt"
    lines = [" ".join(WORDS[i] for i in random.integers(len(WORDS), size=6 + n % 5)) for n in range(150)]
    path.write_text("\n".join(lines))
    return path


def imitate(text: Path, seed: int = 1) -> tuple[ListImitator, list[NBestList]]:
    counts = Counter(text.read_text().split())
    imitator = ListImitator(
        make_real_lists(), Normaliser(), Pronunciations(DICTIONARY), counts, CountModel(counts)
    )
    sentences = choose_sentences([text], Normaliser(), Choice(100, seed, 3, 20), set())
    return imitator, list(map(imitator.make, sentences))


def test_made_lists_resemble_real_ones(text: Path) -> None:
    real, made = make_real_lists(), imitate(text)[1]

    def describe(lists: list[NBestList]) -> np.ndarray:
        evaluated = [evaluate_list(nbest, Normaliser().normalise) for nbest in lists]
        words = sum(item.system.reference_words for item in evaluated)
        errors = sum(sum(h.errors for h in item.hypotheses) / len(item.hypotheses) for item in evaluated)
        return np.array([np.mean([len(nbest.hypotheses) for nbest in lists]), errors / words])

    assert describe(made) == pytest.approx(describe(real), rel=0.15)
    references = set(text.read_text().splitlines())
    for nbest in made:
        assert nbest.reference in references
        assert nbest.group.startswith("speaker-")
        assert str(nbest.fields["imitates"]).startswith("real-")
        texts = [hypothesis.text for hypothesis in nbest.hypotheses]
        assert texts[0] == nbest.reference  # as in the real lists
        heard = [word for text in texts for word in text.split()]
        assert set(heard) <= set(WORDS)


def test_scores_follow_errors_as_in_real_lists(text: Path) -> None:
    slopes = []
    for nbest in imitate(text)[1]:
        errors = [h.errors for h in evaluate_list(nbest, Normaliser().normalise).hypotheses]
        slopes.append(np.polyfit(errors, nbest.streams["am"], 1)[0])
    assert np.mean(slopes) == pytest.approx(-7.0, abs=1.5)


def test_wrong_words_share_most_phones(text: Path) -> None:
    _, made = imitate(text)
    same_ending = total = 0
    for nbest in made:
        reference = (nbest.reference or "").split()
        for hypothesis in nbest.hypotheses:
            words = hypothesis.text.split()
            if len(words) == len(reference):
                pairs = [(a, b) for a, b in zip(reference, words, strict=True) if a != b]
                total += len(pairs)
                same_ending += sum(a[1:] == b[1:] for a, b in pairs)
    assert same_ending > 0.8 * total > 0


def test_lists_depend_on_their_sentence_and_the_seed_only(text: Path) -> None:
    imitator, made = imitate(text)
    sentences = choose_sentences([text], Normaliser(), Choice(100, 1, 3, 20), set())
    assert [imitator.make(sentence) for sentence in reversed(sentences)] == made[::-1]
    assert imitate(text, seed=2)[1] != made


def test_keeps_only_those_duplicates_that_real_lists_have() -> None:
    a, b, c = ("a",), ("b",), ("c",)
    assert find_kept([a, a, b, a, b], [a, a, b, c, c]) == [0, 1, 2]


def test_score_model_recovers_weights() -> None:
    random = np.random.default_rng(1)
    weights = random.normal(size=(6, 2))
    facts = [random.normal(size=(8, 6)) for _ in range(20)]
    facts = [part - part.mean(axis=0) for part in facts]
    scores = [part @ weights + random.normal() for part in facts]
    model = ScoreModel.fit(facts, scores)
    assert model.weights == pytest.approx(weights, abs=0.02)
    assert model.transfer(scores[0], facts[0], facts[1]) == pytest.approx(
        scores[0] + (facts[1] - facts[0]) @ weights, abs=0.2
    )


def test_confusions_prefer_what_was_seen_and_never_repeat() -> None:
    pronunciations = Pronunciations(DICTIONARY)
    counts = Counter(WORDS)
    seen = [Substitution("baan", "paan", ())] * 30
    confusions = Confusions(
        pronunciations, counts, CountModel(counts), seen, Counter({("a",): 3, ("b", "c"): 1})
    )
    words, costs = confusions.neighbours("baat")
    assert words[int(np.argmin(costs))] == "paat"
    random = np.random.default_rng(1)
    drawn = confusions.draw_wrong("baat", (), 12, random)
    assert len(set(drawn)) == 12
    assert "baat" not in drawn
    assert set(confusions.draw_inserted(2, random)) == {("a",), ("b", "c")}
    assert len(confusions.draw_inserted(5, random)) == 5


def test_rejects_lists_without_references_or_with_different_streams(text: Path) -> None:
    pronunciations, counts = Pronunciations(DICTIONARY), Counter(WORDS)
    bare = NBestList("x", (Hypothesis("a"),))
    with pytest.raises(ConfigError, match="no list has a reference"):
        ListImitator([bare], Normaliser(), pronunciations, counts, CountModel(counts))
    lists = [*make_real_lists(), NBestList("y", (Hypothesis("a"),), {"lm": (1.0,)}, reference="a")]
    with pytest.raises(ConfigError, match=r"list 'y' has the streams \['lm'\]"):
        ListImitator(lists, Normaliser(), pronunciations, counts, CountModel(counts))


def test_command_excludes_references_and_is_repeatable(tmp_path: Path, text: Path) -> None:
    real = make_real_lists()
    with writer(tmp_path / "real.jsonl") as write:
        for nbest in real:
            write(nbest)
    with open(text, "a") as stream:
        stream.write(f"\n{(real[0].reference or '').upper()}\n")
    (tmp_path / "words.dict").write_text("\n".join(DICTIONARY))
    outputs = []
    for name in ("a.jsonl", "b.jsonl"):
        options = ["--like", str(tmp_path / "real.jsonl"), "--dictionary", str(tmp_path / "words.dict")]
        command = ["lists", "text", str(text), "-o", str(tmp_path / name), "-n", "500", *options]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert "150 lists written" in result.output
        assert "the texts have only 150 fitting sentences, not 500" in result.stderr
        outputs.append((tmp_path / name).read_text())
    assert outputs[0] == outputs[1]
    made = [item for item in read_lists(tmp_path / "a.jsonl") if isinstance(item, NBestList)]
    assert real[0].reference not in {nbest.reference for nbest in made}


def test_draws_words_again_where_there_are_too_few() -> None:
    counts = Counter(WORDS[:3])
    confusions = Confusions(Pronunciations(DICTIONARY), counts, CountModel(counts), [], Counter())
    drawn = confusions.draw_wrong(WORDS[0], (), 5, np.random.default_rng(1))
    assert len(drawn) == 5
    assert set(drawn) == {*WORDS[1:3]}


def test_rejects_texts_whose_words_have_no_pronunciation() -> None:
    counts = Counter(["xqzt", "brfk", WORDS[0]])
    with pytest.raises(ConfigError, match="only 1 of the 3 distinct words of the texts are in the pronun"):
        Confusions(Pronunciations(DICTIONARY), counts, CountModel(counts), [], Counter())


def test_command_rejects_a_pipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="-: is a pipe, but texts are read twice"):
        check_read_twice([Path("-")])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="write it to a file first"):
        check_read_twice([pipe])


def test_names_both_ways_to_a_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    with pytest.raises(ConfigError, match="pip install pocketsphinx, or give a pronunciation dictionary"):
        dictionary_path()
