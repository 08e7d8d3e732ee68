"""Scores of candidates by vectors beside sums over one word at a time; the command with all models."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.errors import BundleError, ConfigError
from rescorer.text import Normaliser
from rescorer_training.cli import app
from rescorer_training.completion import (
    COMBINATION,
    CandidateScores,
    Combined,
    Question,
    answer,
    combine,
    score_neighbours,
    score_similarity,
    score_vectors,
)
from rescorer_training.vectors.files import WordVectors
from rescorer_training.vectors.word2vec import NeighbourModel, Word2VecOptions, load_neighbour_model
from tests.support.tiny_models import write_arpa
from tests.support.word2vec_twin import path_targets

WORDS = tuple("abcdefg")
COUNTS = np.array([40, 20, 9, 8, 3, 2, 1])
TEXTS = st.lists(st.sampled_from("abcdefgx"), max_size=6).map(" ".join)
CANDIDATES = st.lists(st.sampled_from([*"abcdefgxy", "a-b", "c-x"]), min_size=5, max_size=5, unique=True)


def make_model(seed: int, model: str, layer: str) -> NeighbourModel:
    generator = np.random.default_rng(seed)
    n_outputs = len(WORDS) - (layer == "hierarchical")
    vectors = [generator.normal(size=(n, 4)).astype(np.float32) for n in (len(WORDS), n_outputs)]
    options = Word2VecOptions(model=model, output_layer=layer, dimensions=4, window=3)
    return NeighbourModel(WORDS, COUNTS, *vectors, options)


def log_prob(model: NeighbourModel, query: np.ndarray, word: int) -> float:
    """ln P(word | query), by the formulas of each output layer."""
    if model.options.output_layer == "hierarchical":
        signs = [(node, 1 if label else -1) for node, label, _ in path_targets(word, COUNTS)]
        return -sum(math.log1p(math.exp(-sign * float(query @ model.outputs[node]))) for node, sign in signs)
    masses = [n**0.75 * math.exp(float(query @ v)) for n, v in zip(COUNTS, model.outputs, strict=True)]
    return math.log(masses[word] / sum(masses))


def score_slowly(model: NeighbourModel, question: Question) -> list[float]:
    """Scores of the candidates of a question, NaN for unknown ones."""
    before, after = (
        [WORDS.index(w) for w in part.split() if w in WORDS] for part in question.text.split("_____")
    )
    near = [(w, d) for side in (before[::-1], after) for d, w in enumerate(side, start=1) if d <= 3]
    scores = []
    for candidate in question.candidates:
        own = []
        for w in (WORDS.index(w) for w in candidate.split("-") if w in WORDS):
            if not near:
                own.append(0.0)
            elif model.options.model == "skip-gram":
                own.append(sum((4 - d) / 3 * log_prob(model, model.inputs[w], c) for c, d in near))
            else:
                mean = sum((4 - d) / 3 * model.inputs[c] for c, d in near) / sum((4 - d) / 3 for _, d in near)
                own.append(log_prob(model, mean, w) - math.log(COUNTS[w] / COUNTS.sum()))
        scores.append(float(np.mean(own)) if own else math.nan)
    return scores


def fill_unknown(scores: list[float]) -> list[float]:
    known = [score for score in scores if not math.isnan(score)]
    return [(sum(known) / len(known) if known else 0.0) if math.isnan(s) else s for s in scores]


@settings(deadline=None)
@pytest.mark.parametrize("kind", ["skip-gram", "cbow"])
@pytest.mark.parametrize("layer", ["negative", "hierarchical"])
@given(seed=st.integers(0, 99), before=TEXTS, after=TEXTS, candidates=CANDIDATES)
def test_neighbours_equal_sums_over_one_word_at_a_time(kind, layer, seed, before, after, candidates):
    model, question = make_model(seed, kind, layer), Question(f"{before} _____ {after}", tuple(candidates), 0)
    expected = score_slowly(model, question)
    found = score_neighbours(model, [question], Normaliser())
    np.testing.assert_allclose(found.values[0], fill_unknown(expected), atol=1e-4)
    assert found.n_unknown == sum(map(math.isnan, expected))


@pytest.mark.parametrize("layer", ["negative", "hierarchical"])
def test_probabilities_sum_to_one(layer):
    model = make_model(1, "skip-gram", layer)
    np.testing.assert_allclose(np.exp(model.log_probs(model.inputs)).sum(axis=1), 1, atol=1e-6)


@settings(deadline=None)
@given(st.integers(0, 99), TEXTS, TEXTS, CANDIDATES)
def test_similarity_is_the_mean_cosine(seed, before, after, candidates):
    vectors = WordVectors(WORDS, make_model(seed, "cbow", "negative").inputs)
    question = Question(f"{before} _____ {after}", tuple(candidates), 0)
    context = [vectors.matrix[WORDS.index(w)] for w in f"{before} {after}".split() if w in WORDS]
    scores = []
    for candidate in candidates:
        own = [vectors.matrix[WORDS.index(w)] for w in candidate.split("-") if w in WORDS]
        pairs = [[u @ v / np.linalg.norm(u) / np.linalg.norm(v) for v in context] or [0.0] for u in own]
        scores.append(float(np.mean([np.mean(row) for row in pairs])) if own else math.nan)
    found = score_similarity(vectors, [question], Normaliser())
    np.testing.assert_allclose(found.values[0], fill_unknown(scores), atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of skip-gram, a file of vectors, an n-gram model and twelve questions."""
    folder = tmp_path_factory.mktemp("completion")
    text = folder / "text.txt"
    text.write_text("the cat sat on the mat\nthe dog sat on the log\na cat and a dog ran\n" * 5)
    arguments = ["vectors", "train", str(text), "-o", str(folder / "file.txt"), "--run", str(folder / "run")]
    sizes = ["--dimensions", "4", "--min-count", "1", "--threads", "1", "--output-layer", "hierarchical"]
    CliRunner().invoke(app, arguments + sizes, catch_exceptions=False)
    rows = [f"{i},the _____ sat on the mat,cat,on,the,mat,and,{'ab'[i % 2]}\n" for i in range(12)]
    (folder / "questions.csv").write_text("id,question,a,b,c,d,e,answer\n" + "".join(rows))
    write_arpa(folder)
    return folder


def run_command(folder, *options):
    arguments = ["complete", str(folder / "questions.csv"), *options]
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_command_combines_all_kinds_of_models(folder):
    options = ["--ngram", str(folder / "model.arpa"), "--vectors", f"sg={folder / 'run'}"]
    options += ["--vectors", str(folder / "file.txt"), "--combine"]
    facts = json.loads(run_command(folder, *options, "--json").stdout)
    assert list(facts["models"]) == ["ngram", "sg", "sg cosine", "file", COMBINATION]
    assert list(facts["weights"]) == ["ngram", "sg", "sg cosine", "file"]
    assert facts["models"]["sg cosine"]["n_correct"] == facts["models"]["file"]["n_correct"]
    for name, row in facts["models"].items():
        assert 0 <= row["interval"][0] <= row["accuracy"] <= row["interval"][1] <= 100
        assert ("test" in row) == (name != COMBINATION)
    table = run_command(folder, *options).stdout
    assert "only the combination is right" in table
    assert run_command(folder, *options).stdout == table


def test_command_needs_no_language_model(folder):
    facts = json.loads(run_command(folder, "--vectors", str(folder / "run"), "--json").stdout)
    assert list(facts["models"]) == ["run", "run cosine"]
    assert facts["weights"] is None


def test_refuses_what_cannot_be_combined_or_named(folder):
    question = [Question("the _____ sat", ("cat", "on", "mat", "a", "b"), 0)] * 12
    scores = score_vectors([f"x={folder / 'file.txt'}"], question, Normaliser())
    with pytest.raises(ConfigError, match="1 model cannot be combined; expected at least 2: add --vectors"):
        combine(scores, question)
    twice = [f"x={folder / 'file.txt'}", f"x={folder / 'run'}"]
    with pytest.raises(ConfigError, match="there is a model called 'x' already; choose another name"):
        score_vectors(twice, question, Normaliser())
    with pytest.raises(ConfigError, match="a model called 'ngram' already"):
        score_vectors([f"ngram={folder / 'run'}"], question, Normaliser(), taken=["ngram"])
    with pytest.raises(ConfigError, match="has no run of vectors train"):
        score_vectors([str(folder)], question, Normaliser())


def test_refuses_damaged_runs(folder, tmp_path):
    for name in ("vocabulary.json", "state.safetensors"):
        (tmp_path / name).write_bytes((folder / "run" / name).read_bytes())
    assert load_neighbour_model(tmp_path).words
    (tmp_path / "vocabulary.json").write_text("[[1, 2, 3]]")
    with pytest.raises(BundleError, match=r"vocabulary\.json is damaged"):
        load_neighbour_model(tmp_path)
    (tmp_path / "vocabulary.json").write_text('[["a", 2], ["b", 1]]')
    with pytest.raises(BundleError, match=r"inputs of shape .* expected \(3, 4\)"):
        load_neighbour_model(tmp_path)
    whole = (folder / "run" / "state.safetensors").read_bytes()
    (tmp_path / "state.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BundleError, match="is damaged"):
        load_neighbour_model(tmp_path)


def test_paired_test_compares_each_model_with_the_combination():
    questions = [Question("x _____", tuple("abcde"), 0)] * 4
    right, wrong = np.eye(5)[0], np.eye(5)[1]
    scores = {"m": CandidateScores(np.array([right, wrong, wrong, wrong]), 3)}
    combined = Combined(("m", "n"), (1.0, 2.0), CandidateScores(np.array([wrong, right, right, right]), 0))
    rows = answer(scores, questions, combined)
    assert (rows["m"].n_correct, rows["m"].n_unknown, rows[COMBINATION].n_correct) == (1, 3, 3)
    assert (rows["m"].test.only_first, rows["m"].test.only_second) == (1, 3)
    assert rows["m"].test.p_value == pytest.approx(0.625)
