"""What a bundle tells an audit: the base of language model scores, and whether its weights suit the lists."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.components import collect_components
from rescorer.evaluation.error_rate.oracle import evaluate_list
from rescorer.evaluation.inspection.inspect import inspect_lists
from rescorer.evaluation.inspection.models import LISTS_PER_BATCH, ModelTally
from rescorer.evaluation.inspection.stream_findings import guess_units, is_in_nats
from rescorer.formats.field_map import parse_field_map
from rescorer.formats.nbest.jsonlines import read_lists
from rescorer.pipeline import Rescorer
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList, Weights
from tests.support.inspection_cases import codes

STARTER = Path(__file__).resolve().parents[2] / "models" / "starter" / "1"
WORDS = ("the", "cat", "sat", "on", "mat", "zebra")
NGRAM = Weights("ngram", {"acoustic": 1.0}, {"ngram": 0.6})
NATS_OF_LOG10, NATS_OF_LOG2 = math.log(10), math.log(2)


@pytest.fixture(scope="module")
def lists(library) -> list[NBestList]:
    """Lists with an acoustic score, better for fewer errors, and the very scores of the bundle's n-gram."""
    draw = random.Random(3)
    found = []
    for number in range(LISTS_PER_BATCH + 6):
        spoken = [draw.choice(WORDS) for _ in range(draw.randint(3, 8))]
        texts = {
            " ".join(w if draw.random() > 0.25 else draw.choice(WORDS) for w in spoken): 0 for _ in range(6)
        }
        found.append(NBestList(f"u{number}", tuple(map(Hypothesis, texts)), reference=" ".join(spoken)))
    answers = library.rescore(found, Weights("lm", {}, {"ngram": 1.0}))
    out = []
    for nbest, answer in zip(found, answers, strict=True):
        wrong = [each.errors for each in evaluate_list(nbest, library.bundle.normaliser.normalise).hypotheses]
        acoustic = np.array([-1.5 * errors + draw.gauss(0, 1) for errors in wrong]) - 100.0
        order = np.argsort(-acoustic)
        lm = collect_components(answer)["ngram"][order]
        out.append(
            replace(
                nbest,
                hypotheses=tuple(nbest.hypotheses[i] for i in order),
                streams={"acoustic": tuple(acoustic[order].tolist()), "lm": tuple(lm.tolist())},
            )
        )
    return out


@pytest.fixture(scope="module")
def starter() -> Rescorer:
    return Rescorer.load(STARTER)


def with_lm(lists, change, name="lm"):
    """The n-gram's scores changed, under another name."""
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
    return {each.code: each.message for each in found.findings if each.severity == "warning"}


@pytest.mark.parametrize("name", ["lm", "second", "x_score"])
@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (1 / NATS_OF_LOG10, "log10 0.434"),
        (1 / NATS_OF_LOG2, "log2 1.44"),
        (10000.5 / 1024, "bytelogs 9.77"),
        (1 / math.log(1.0001), "Sphinx's 1.0001"),
        (NATS_OF_LOG10, "natural logs read as log10 2.3"),
        (NATS_OF_LOG2, "natural logs read as log2 0.693"),
    ],
)
def test_the_base_of_scores_shows_beside_the_bundle_s_n_gram(library, lists, name, factor, says):
    """Whatever the stream is called: nothing but a language model goes with one so well."""
    (message,) = [
        text
        for code, text in warnings(library, with_lm(lists, lambda s: s * factor, name)).items()
        if code == "base"
    ]
    assert says in message
    assert message.startswith(f"{name}: a nat of the bundle's n-gram is {factor:.3g} here (r +1.00")


def test_scores_in_nats_are_not_warned_of_even_where_words_are_cheap(library, lists):
    """The tiny n-gram gives a word 1.9 nats: without the bundle that looks like log10."""
    assert "base" not in warnings(library, lists)
    assert codes(lists) == {"base"}
    assert "base" not in warnings(library, with_lm(lists, lambda s: s, "second"))


def test_a_cost_falls_where_the_n_gram_rises(library, lists):
    """Shifted below zero, so that nothing else gives it away."""
    found = warnings(library, with_lm(lists, lambda s: -s - 50.0))
    assert "falls where the bundle's n-gram rises (r -1.00" in found["cost"]
    assert "cost" not in warnings(library, with_lm(lists, lambda s: -s - 50.0, "second"))


def noisy(lists, factor):
    """Another model's scores: what the n-gram says, and as much again that it does not know of."""
    draw = random.Random(4)
    return with_lm(lists, lambda s: factor * (0.8 * s + draw.gauss(0, 0.9)))


def test_another_model_s_scores_leave_room_for_what_each_of_them_does_not_know(library, lists):
    """A regression on the n-gram alone would put the blame on one side, and scores in nats at 0.6 a nat."""
    found = inspect_lists(
        noisy(lists, 1.0), Normaliser(), models=ModelTally(library, NGRAM)
    ).models.correlations["lm"]
    assert 0.5 < found.r < 0.9
    assert is_in_nats(found)
    log10 = inspect_lists(noisy(lists, 1 / NATS_OF_LOG10), Normaliser(), models=ModelTally(library, NGRAM))
    assert next(iter(guess_units(log10.models.correlations["lm"]))) == "log10"
    assert "base" in {each.code for each in log10.findings}


def test_few_lists_tell_no_base(library, lists):
    few = with_lm(lists[:9], lambda s: s / NATS_OF_LOG10, "second")
    assert warnings(library, few) == {}


@given(data=st.data())
def test_likeness_is_numpys(data, library, lists):
    """Against all hypotheses at once, each list's means taken off."""
    chosen = data.draw(st.lists(st.sampled_from(lists), min_size=1, max_size=5))
    found = inspect_lists(chosen, Normaliser(), models=ModelTally(library, NGRAM)).models.correlations
    ngram = np.concatenate([np.array(n.streams["lm"]) - np.mean(n.streams["lm"]) for n in chosen])
    assert found["lm"].r == pytest.approx(1.0)
    assert found["lm"].units_per_nat == pytest.approx((1.0, 1.0))
    x = np.concatenate([np.array(n.streams["acoustic"]) - np.mean(n.streams["acoustic"]) for n in chosen])
    r, ratio = found["acoustic"].r, found["acoustic"].ratio
    assert r == pytest.approx(x @ ngram / np.sqrt(x @ x * (ngram @ ngram)))
    assert ratio * abs(r) == pytest.approx(abs(np.polyfit(ngram, x, 1)[0]))
    assert ratio == pytest.approx(x.std() / ngram.std())


def test_weights_that_do_worse_than_the_first_pass(library, lists):
    found = inspect_lists(lists, Normaliser(), models=ModelTally(library, replace(NGRAM, lm={"ngram": 50.0})))
    weights = found.models.weights
    assert weights.referenced == weights.lists == len(lists)
    assert weights.first_errors == found.errors.totals.system.errors < weights.errors
    answers = library.rescore(lists, replace(NGRAM, lm={"ngram": 50.0}))
    words = library.bundle.normaliser.normalise
    added = [
        evaluate_list(nbest, words).hypotheses[answer.best.original_rank].errors
        - evaluate_list(nbest, words).system.errors
        for nbest, answer in zip(lists, answers, strict=True)
    ]
    assert weights.errors - weights.first_errors == sum(added)
    assert weights.added_t == pytest.approx(np.mean(added) / (np.std(added, ddof=1) / len(added) ** 0.5))
    (finding,) = [each for each in found.findings if each.code == "weights"]
    assert f"make {weights.errors} word errors, the first pass {weights.first_errors}" in finding.message
    assert "rescorer tune FILE" in finding.advice


def test_weights_under_which_one_side_alone_decides(library, lists):
    unsaid = [replace(nbest, reference=None) for nbest in lists]
    assert "weights" not in warnings(library, unsaid)
    loud = warnings(library, unsaid, replace(NGRAM, lm={"ngram": 50.0}))["weights"]
    assert loud.endswith("it alone would decide")
    faint = warnings(library, unsaid, replace(NGRAM, lm={"ngram": 0.01}))["weights"]
    assert faint.endswith("they alone would decide")
    # references say nothing against them, nor for them: the first pass is what they give
    assert "weights" in warnings(library, lists, replace(NGRAM, lm={"ngram": 0.01}))


def test_lists_that_the_weights_refuse_are_told_and_compared_all_the_same(library, lists):
    renamed = [replace(nbest, streams={"lm": nbest.streams["lm"]}) for nbest in lists]
    found = inspect_lists(renamed, Normaliser(), models=ModelTally(library, NGRAM))
    assert (found.models.weights.refused, found.models.weights.lists) == (len(lists), 0)
    assert found.models.correlations["lm"].units_per_nat == pytest.approx((1.0, 1.0))
    (note,) = [each for each in found.findings if each.code == "weights_refuse"]
    assert (note.severity, 'streams["acoustic"]' in note.message) == ("note", True)


def test_absurd_scores_are_like_nothing(library, lists):
    found = inspect_lists(
        with_lm(lists, lambda s: 1e300 * s), Normaliser(), models=ModelTally(library, NGRAM)
    )
    assert "lm" not in found.models.correlations
    assert found.lists.rejected == 0


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "code", "says"),
    [
        (1.0, None, ""),
        (1 / NATS_OF_LOG10, "base", "log10 0.434"),
        (NATS_OF_LOG10, None, ""),  # the starter's n-gram, pruned, agrees too loosely to tell this one
        (NATS_OF_LOG2, "base", "natural logs read as log2 0.693"),
        (1 / NATS_OF_LOG2, None, ""),  # within what two trigrams of other texts may differ by
        (-1.0, "cost", "falls where"),
    ],
)
def test_a_recogniser_s_own_scores_beside_another_model(data_dir, starter, factor, code, says):
    """PocketSphinx's trigram and the starter's novels agree to r 0.58; a regression would call it log10."""
    file = data_dir / "nbest/read-speech/pocketsphinx-100best.jsonl.gz"
    names = parse_field_map(["hypotheses=hyps,reference=ref"], ["am=am", "lm=lm"])
    shift = min(0.0, 400 * factor)  # below zero, so that a cost is not told by its sign
    lists = [
        replace(nbest, streams={"lm": tuple(factor * s + shift for s in nbest.streams["lm"])})
        for nbest in read_lists(file, names)
    ]
    found = inspect_lists(lists, starter.bundle.normaliser, models=ModelTally(starter, Weights("ngram")))
    messages = {each.code: each.message for each in found.findings if each.code in ("base", "cost")}
    assert set(messages) == ({code} if code else set())
    assert not code or says in messages[code]
