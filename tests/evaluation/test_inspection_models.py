"""Inspection with a bundle: units of language-model scores, and whether the weights suit the lists."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.inspection import guess_units, inspect_lists, is_in_nats
from rescorer.evaluation.list_errors import evaluate_list
from rescorer.evaluation.list_statistics import LISTS_PER_BATCH, ModelTally
from rescorer.evaluation.scored_lists import collect_components
from rescorer.formats.fields import parse_field_map
from rescorer.formats.jsonlines import read_lists
from rescorer.pipeline import Rescorer
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList, Weights
from tests.support.inspection_cases import finding_codes

STARTER = Path(__file__).resolve().parents[2] / "models" / "starter" / "1"
WORDS = ("the", "cat", "sat", "on", "mat", "zebra")
NGRAM = Weights("ngram", {"acoustic": 1.0}, {"ngram": 0.6})
NATS_OF_LOG10, NATS_OF_LOG2 = math.log(10), math.log(2)


@pytest.fixture(scope="module")
def lists(library) -> list[NBestList]:
    """Lists with an acoustic score that is better for fewer errors, and with the scores of the n-gram."""
    draw = random.Random(3)
    without_scores = []
    for number in range(LISTS_PER_BATCH + 6):
        reference = [draw.choice(WORDS) for _ in range(draw.randint(3, 8))]
        texts = {
            " ".join(word if draw.random() > 0.25 else draw.choice(WORDS) for word in reference): None
            for _ in range(6)
        }
        without_scores.append(
            NBestList(f"u{number}", tuple(map(Hypothesis, texts)), reference=" ".join(reference))
        )
    results = library.rescore(without_scores, Weights("lm", {}, {"ngram": 1.0}))
    lists = []
    for nbest, result in zip(without_scores, results, strict=True):
        evaluated = evaluate_list(nbest, library.bundle.normaliser.normalise)
        acoustic = (
            np.array([-1.5 * counts.errors + draw.gauss(0, 1) for counts in evaluated.hypotheses]) - 100
        )
        order = np.argsort(-acoustic)
        lm = collect_components(result)["ngram"][order]
        lists.append(
            replace(
                nbest,
                hypotheses=tuple(nbest.hypotheses[i] for i in order),
                streams={"acoustic": tuple(acoustic[order].tolist()), "lm": tuple(lm.tolist())},
            )
        )
    return lists


@pytest.fixture(scope="module")
def starter() -> Rescorer:
    return Rescorer.load(STARTER)


@pytest.fixture(scope="module")
def recognised(data_dir) -> list[NBestList]:
    """Half of PocketSphinx's lists, with its acoustic and language-model scores."""
    names = parse_field_map(["hypotheses=hyps,reference=ref"], ["am=am", "lm=lm"])
    lists = list(read_lists(data_dir / "nbest/read-speech/pocketsphinx-100best.jsonl.gz", names))
    return lists[::2]


def with_lm(lists, change, name="lm"):
    """The lists with ``change`` applied to the n-gram's scores, as a stream called ``name``."""
    return [
        replace(
            nbest,
            streams={
                "acoustic": nbest.streams["acoustic"],
                name: tuple(map(change, nbest.streams["lm"])),
            },
        )
        for nbest in lists
    ]


def warnings(library, lists, weights=NGRAM, **options) -> dict[str, str]:
    found = inspect_lists(lists, Normaliser(), models=ModelTally(library, weights), **options)
    return {finding.code: finding.message for finding in found.findings if finding.severity == "warning"}


@pytest.mark.parametrize("name", ["lm", "second", "x_score"])
@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1 / NATS_OF_LOG10, "log10 0.434"),
        (1 / NATS_OF_LOG2, "log2 1.44"),
        (10000.5 / 1024, "bytelogs 9.77"),
        (1 / math.log(1.0001), "Sphinx's 1.0001"),
        (NATS_OF_LOG10, "natural logs read as log10 2.3"),
        (NATS_OF_LOG2, "natural logs read as log2 0.693"),
    ],
)
def test_detects_the_base_by_comparison_with_the_ngram(library, lists, name, factor, expected):
    """Under any stream name: only language-model scores correlate so well with the n-gram."""
    (message,) = [
        message
        for code, message in warnings(library, with_lm(lists, lambda s: s * factor, name)).items()
        if code == "base"
    ]
    assert expected in message
    assert message.startswith(f"{name}: a nat of the bundle's n-gram is {factor:.3g} here (r +1.00")


def test_accepts_scores_in_nats_even_if_small_per_word(library, lists):
    """The tiny n-gram has 1.9 nats per word, which looks like log10 without the bundle."""
    assert "base" not in warnings(library, lists)
    assert finding_codes(lists) == {"base"}
    assert "base" not in warnings(library, with_lm(lists, lambda s: s, "second"))


def test_detects_costs_by_comparison_with_the_ngram(library, lists):
    """The costs are shifted below zero, so that the comparison is the only evidence."""
    found = warnings(library, with_lm(lists, lambda s: -s - 50.0))
    assert "falls where the bundle's n-gram rises (r -1.00" in found["cost"]
    assert "cost" not in warnings(library, with_lm(lists, lambda s: -s - 50.0, "second"))


def noisy(lists, factor):
    """Scores like another model's: the n-gram's, and about as much that is independent of them."""
    draw = random.Random(4)
    return with_lm(lists, lambda s: factor * (0.8 * s + draw.gauss(0, 0.9)))


def test_range_of_units_allows_for_noise_on_both_sides(library, lists):
    """A regression on the n-gram attributes all noise to one side and finds 0.6 units per nat for nats."""
    found = inspect_lists(
        noisy(lists, 1.0), Normaliser(), models=ModelTally(library, NGRAM)
    ).models.correlations["lm"]
    assert 0.5 < found.r < 0.9
    assert is_in_nats(found)
    log10 = inspect_lists(noisy(lists, 1 / NATS_OF_LOG10), Normaliser(), models=ModelTally(library, NGRAM))
    assert next(iter(guess_units(log10.models.correlations["lm"]))) == "log10"
    assert "base" in {finding.code for finding in log10.findings}


def test_does_not_guess_the_base_from_few_lists(library, lists):
    few = with_lm(lists[:9], lambda s: s / NATS_OF_LOG10, "second")
    assert warnings(library, few) == {}


@given(data=st.data())
def test_ngram_correlation_matches_numpy(data, library, lists):
    """Compares with all hypotheses at once, the mean of each list subtracted."""
    chosen = data.draw(st.lists(st.sampled_from(lists), min_size=1, max_size=5))
    found = inspect_lists(chosen, Normaliser(), models=ModelTally(library, NGRAM)).models.correlations
    ngram, x = (
        np.concatenate([np.array(nbest.streams[name]) - np.mean(nbest.streams[name]) for nbest in chosen])
        for name in ("lm", "acoustic")
    )
    assert found["lm"].r == pytest.approx(1.0)
    assert found["lm"].units_per_nat == pytest.approx((1.0, 1.0))
    r, ratio = found["acoustic"].r, found["acoustic"].ratio
    assert r == pytest.approx(x @ ngram / np.sqrt(x @ x * (ngram @ ngram)))
    assert ratio * abs(r) == pytest.approx(abs(np.polyfit(ngram, x, 1)[0]))
    assert ratio == pytest.approx(x.std() / ngram.std())


def test_warns_if_weights_do_worse_than_the_first_pass(library, lists):
    found = inspect_lists(lists, Normaliser(), models=ModelTally(library, replace(NGRAM, lm={"ngram": 50.0})))
    weights = found.models.weights
    assert weights.referenced == weights.lists == len(lists)
    assert weights.first_errors == found.errors.totals.system.errors < weights.errors
    results = library.rescore(lists, replace(NGRAM, lm={"ngram": 50.0}))
    words = library.bundle.normaliser.normalise
    added = [
        evaluate_list(nbest, words).hypotheses[result.best.original_rank].errors
        - evaluate_list(nbest, words).system.errors
        for nbest, result in zip(lists, results, strict=True)
    ]
    assert weights.errors - weights.first_errors == sum(added)
    assert weights.added_t == pytest.approx(np.mean(added) / (np.std(added, ddof=1) / len(added) ** 0.5))
    (finding,) = [finding for finding in found.findings if finding.code == "weights"]
    assert f"make {weights.errors} word errors, the first pass {weights.first_errors}" in finding.message
    assert "rescorer tune FILE" in finding.advice


def test_warns_if_one_side_alone_decides(library, lists):
    unreferenced = [replace(nbest, reference=None) for nbest in lists]
    assert "weights" not in warnings(library, unreferenced)
    loud = warnings(library, unreferenced, replace(NGRAM, lm={"ngram": 50.0}))["weights"]
    assert loud.endswith("the models alone would decide")
    faint = warnings(library, unreferenced, replace(NGRAM, lm={"ngram": 0.01}))["weights"]
    assert faint.endswith("the streams alone would decide")
    # with references too: these weights rank like the first pass, so errors are no evidence
    assert "weights" in warnings(library, lists, replace(NGRAM, lm={"ngram": 0.01}))


def test_compares_lists_that_the_weights_refuse(library, lists):
    renamed = [replace(nbest, streams={"lm": nbest.streams["lm"]}) for nbest in lists]
    found = inspect_lists(renamed, Normaliser(), models=ModelTally(library, NGRAM))
    assert (found.models.weights.refused, found.models.weights.lists) == (len(lists), 0)
    assert found.models.correlations["lm"].units_per_nat == pytest.approx((1.0, 1.0))
    (note,) = [finding for finding in found.findings if finding.code == "weights_refuse"]
    assert (note.severity, 'streams["acoustic"]' in note.message) == ("note", True)


def test_huge_scores_have_no_correlation(library, lists):
    found = inspect_lists(
        with_lm(lists, lambda s: 1e300 * s), Normaliser(), models=ModelTally(library, NGRAM)
    )
    assert "lm" not in found.models.correlations
    assert found.lists.rejected == 0


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "code", "expected"),
    [
        (1.0, None, ""),
        (1 / NATS_OF_LOG10, "base", "log10 0.434"),
        (NATS_OF_LOG10, None, ""),  # the starter's pruned n-gram correlates too weakly to notice
        (NATS_OF_LOG2, "base", "natural logs read as log2 0.693"),
        (1 / NATS_OF_LOG2, None, ""),  # within the range of two trigrams trained on different texts
        (-1.0, "cost", "falls where"),
    ],
)
def test_compares_a_recognisers_scores_with_another_model(recognised, starter, factor, code, expected):
    """PocketSphinx's trigram and the starter, trained on novels, have r 0.58; a regression finds log10."""
    shift = min(0.0, 400 * factor)  # below zero, so that costs cannot be recognised by their sign
    lists = [
        replace(nbest, streams={"lm": tuple(factor * s + shift for s in nbest.streams["lm"])})
        for nbest in recognised
    ]
    found = inspect_lists(lists, starter.bundle.normaliser, models=ModelTally(starter, Weights("ngram")))
    messages = {
        finding.code: finding.message for finding in found.findings if finding.code in ("base", "cost")
    }
    assert set(messages) == ({code} if code else set())
    assert not code or expected in messages[code]
