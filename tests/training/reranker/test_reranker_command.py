"""The command ``rescorer-train reranker``: what it writes, when it writes nothing, and its errors."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from rescorer.evaluation.tuning import choose_cautious, is_as_good
from rescorer.models.bundle import read_bundle
from rescorer.pipeline import Rescorer
from rescorer.types import Hypothesis, NBestList
from rescorer_training.cli import main
from rescorer_training.reranker.training import group_features

WORDS = ("the", "cat", "sat", "on", "mat")


def make_lists(n_lists: int = 64, *, informative: bool = True) -> list[dict]:
    """Lists of 16 groups whose stream ``hint`` says, with some noise, how many words are wrong."""
    rng = random.Random(3)
    lists = []
    for number in range(n_lists):
        reference = rng.choices(WORDS, k=6)
        hypotheses = []
        for _ in range(2):  # too few for minimum Bayes risk
            text = list(reference)
            for place in rng.sample(range(6), rng.randint(0, 3)):
                text[place] = rng.choice(WORDS)
            hint = -count_wrong(text, reference) + rng.gauss(0, 0.3) if informative else rng.gauss(0, 1)
            scores = {"acoustic": rng.uniform(-9, 0), "hint": hint}
            hypotheses.append({"text": " ".join(text), "scores": scores})
        group, text = f"g{number % 16}", " ".join(reference)
        lists.append({"id": f"u{number}", "group": group, "reference": text, "hypotheses": hypotheses})
    return lists


def count_wrong(words: list[str], reference: list[str]) -> int:
    return sum(a != b for a, b in zip(words, reference, strict=True))


def write(path, lists):
    path.write_text("".join(json.dumps(item) + "\n" for item in lists))
    return path


def train(run, path, bundle, output, *options):
    return run("reranker", path, "--bundle", bundle, "-o", output, "--no-cache", *options, command=main)


@pytest.fixture(scope="module")
def lists_file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("lists") / "lists.jsonl", make_lists())


def test_writes_a_bundle_that_ranks_better(run, lists_file, ngram_bundle, tmp_path):
    output = tmp_path / "mine" / "2"
    code, text, errors = train(run, lists_file, ngram_bundle, output, "--name", "hints")
    assert code == 0, errors
    assert "written" in text
    assert "use it with --weights hints" in text
    assert "hint" in (tmp_path / "mine" / "2.md").read_text()
    bundle = read_bundle(output)
    assert (bundle.label, list(bundle.rerankers)) == ("mine/2", ["hints"])
    assert bundle.rerankers["hints"].held_out["gain_low"] > 0
    rescorer = Rescorer.load(output)
    wrong = first = 0
    for item in make_lists():
        scores = [hypothesis["scores"] for hypothesis in item["hypotheses"]]
        streams = {name: tuple(score[name] for score in scores) for name in scores[0]}
        hypotheses = tuple(Hypothesis(hypothesis["text"]) for hypothesis in item["hypotheses"])
        nbest = NBestList(item["id"], hypotheses, streams)
        best = rescorer.rescore([nbest], bundle.weights["hints"])[0].best
        wrong += count_wrong(best.text.split(), item["reference"].split())
        first += count_wrong(hypotheses[0].text.split(), item["reference"].split())
    assert wrong < 0.7 * first


def test_is_deterministic_and_reports_json(run, lists_file, ngram_bundle, tmp_path):
    answers = [
        train(run, lists_file, ngram_bundle, tmp_path / f"m{i}" / "1", "--json", "--seed", 1) for i in (0, 1)
    ]
    assert answers[0] == answers[1]
    report = json.loads(answers[0][1])
    assert report["written"]
    assert report["better"]
    assert report["systems"][0]["name"] == "first pass"
    assert report["systems"][-1]["name"] == "reranker"
    assert max(report["worth"], key=lambda name: report["worth"][name]["loss"]) == "hint"
    files = [tmp_path / f"m{i}" / "1" / "reranker" / "reranker" / "parameters.safetensors" for i in (0, 1)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_writes_nothing_without_a_gain_unless_forced(run, ngram_bundle, tmp_path):
    path = write(tmp_path / "lists.jsonl", make_lists(informative=False))
    code, text, _ = train(run, path, ngram_bundle, tmp_path / "m" / "1")
    assert code == 0
    assert "not written" in text
    assert not (tmp_path / "m" / "1").exists()
    assert (tmp_path / "m" / "1.md").exists()
    code, text, errors = train(run, path, ngram_bundle, tmp_path / "m" / "1", "--force")
    assert code == 0, errors
    assert read_bundle(tmp_path / "m" / "1").rerankers


def test_takes_a_prior_from_lists_that_lack_a_stream(run, lists_file, ngram_bundle, tmp_path):
    others = make_lists(100)[40:]  # 24 are among those to train on, and one more has the reference of one
    for hypothesis in (hypothesis for item in others for hypothesis in item["hypotheses"]):
        del hypothesis["scores"]["acoustic"]
    prior = write(tmp_path / "prior.jsonl", [{**item, "group": ""} for item in others])
    code, text, errors = train(
        run, lists_file, ngram_bundle, tmp_path / "m" / "1", "--prior-lists", prior, "--json"
    )
    assert code == 0, errors
    report = json.loads(text)
    assert report["better"]
    assert report["prior_lists"].startswith("60 lists of another kind; 25 share")
    assert "prior: 60 lists" in (tmp_path / "m" / "1.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lists: lists[:19], "--prior-lists: 19 lists with references"),
        (lambda lists: [{**item, "reference": None} for item in lists], "no list could be used"),
    ],
)
def test_rejects_prior_lists_that_teach_nothing(change, message, run, lists_file, ngram_bundle, tmp_path):
    prior = write(tmp_path / "prior.jsonl", change(make_lists()))
    code, _, errors = train(run, lists_file, ngram_bundle, tmp_path / "m" / "1", "--prior-lists", prior)
    assert code == 2
    assert message in " ".join(errors.split())


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda lists: lists[:10], (), "needs at least 20"),
        (
            lambda lists: [{**item, "group": f"g{i % 2}"} for i, item in enumerate(lists)],
            (),
            "groups of lists: 2;",
        ),
        (
            lambda lists: [{**item, "hypotheses": item["hypotheses"][:1] * 3} for item in lists],
            (),
            "nothing to learn",
        ),
        (lambda lists: [{**item, "reference": None} for item in lists], (), "no list could be used"),
        (
            lambda lists: lists,
            ("-w", "acoustic=0", "-w", "lm:ngram=0", "-w", "lm:mixture=0"),
            "the same total",
        ),
        (lambda lists: lists, ("--name", "default"), "already has"),
    ],
)
def test_rejects_what_cannot_be_learnt_from(change, options, message, run, ngram_bundle, tmp_path):
    path = write(tmp_path / "lists.jsonl", change(make_lists()))
    code, _, errors = train(run, path, ngram_bundle, tmp_path / "m" / "1", *options)
    assert code == 2
    assert message in errors


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("m/1", ("--name", "x" * 300), "expected 1 to 100 printable characters"),
        ("m/1", ("--name", "é" * 101), "expected 1 to 100 printable characters"),
        ("m/1", ("--name", "語" * 90), "expected a name for a folder"),
        ("m/1", ("--name", "a\nb"), "expected 1 to 100 printable characters"),
        ("m/1", ("--name", " "), "expected a name for a folder"),
        ("m/1", ("--name", "a\\b"), "expected a name for a folder"),
        ("m/1", ("--seed", "-1"), "greater than or equal to 0"),
        ("m/\u0663", (), "must be a version number"),
        ("m\nx/1", (), "expected 1 to 100 printable characters"),
        ("file/1", (), "is not a folder"),
        ("page/1", (), "cannot be written"),
    ],
)
def test_checks_names_and_places_before_any_work(
    output, options, message, run, ngram_bundle, tmp_path, monkeypatch
):
    monkeypatch.setattr("rescorer_training.cli.reranking.read_files", lambda *_: pytest.fail("work was done"))
    (tmp_path / "file").touch()
    (tmp_path / "page" / "1.md").mkdir(parents=True)
    code, _, errors = train(run, "lists.jsonl", ngram_bundle, tmp_path / output, *options)
    assert code == 2
    assert message in errors


@pytest.mark.parametrize("factor", [1e9, 1e200, 1e298])
def test_rejects_huge_scores_before_any_search(factor, run, ngram_bundle, tmp_path):
    lists = make_lists()
    for hypothesis in (hypothesis for item in lists for hypothesis in item["hypotheses"]):
        hypothesis["scores"]["acoustic"] *= factor
    path = write(tmp_path / "lists.jsonl", lists)
    code, _, errors = train(run, path, ngram_bundle, tmp_path / "m" / "1", "-w", "acoustic=1")
    assert code == 2
    assert "expected at most 500,000" in errors


def test_warns_of_base_weights_that_were_tuned_on_the_lists(run, lists_file, ngram_bundle, tmp_path):
    tuned = tmp_path / "tuned.json"
    options = (
        "--bundle",
        ngram_bundle,
        "-o",
        tuned,
        "--free",
        "word,hint",
        "-w",
        "hint=1",
        "--force",
        "--no-cache",
    )
    assert run("tune", lists_file, *options)[0] == 0
    code, text, errors = train(run, lists_file, ngram_bundle, tmp_path / "m" / "1", "--weights", tuned)
    assert code == 0, errors
    warning = "the base weights were tuned on 64 of these lists"
    assert warning in " ".join(text.split())
    assert warning in (tmp_path / "m" / "1.md").read_text()
    again = [tmp_path / "again.json" if option == tuned else option for option in options]
    assert "tuned on 64 of these 64 lists" in run("tune", lists_file, *again, "--weights", tuned)[2]


def test_reads_the_rules_by_which_texts_are_compared(run, lists_file, ngram_bundle, tmp_path):
    code, _, err = train(
        run, lists_file, ngram_bundle, tmp_path / "m" / "1", "--normaliser", tmp_path / "none.json"
    )
    assert (code, "none.json" in err) == (2, True)


def test_rejects_lists_that_lack_a_stream_of_others(run, ngram_bundle, tmp_path):
    lists = make_lists()
    for hypothesis in lists[7]["hypotheses"]:
        del hypothesis["scores"]["hint"]
    code, _, errors = train(run, write(tmp_path / "l.jsonl", lists), ngram_bundle, tmp_path / "m" / "1")
    assert code == 2
    assert "'u7' has no stream 'hint'" in errors


def test_prefers_the_cautious_candidate_within_one_standard_error():
    units = np.arange(4)
    errors = np.array([[5, 5, 5, 5], [4, 5, 5, 5], [1, 2, 1, 2]])
    assert choose_cautious(errors, units) == 2
    assert choose_cautious(errors[:2], units) == 0
    assert is_as_good(errors, units).tolist() == [False, False, True]
    assert is_as_good(errors[:2], units).tolist() == [True, True]


def test_features_of_one_model_or_kind_are_left_out_together():
    assert group_features(
        ("total", "empty", "score:am", "score_per_word:am", "distance:1", "distance:2")
    ) == {
        "am": ("score:am", "score_per_word:am"),
        "distance": ("distance:1", "distance:2"),
    }
