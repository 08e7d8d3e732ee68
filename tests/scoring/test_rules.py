"""Decision rules in the library: what they check, what they change and what they answer."""

from __future__ import annotations

import numpy as np
import pytest

from rescorer import ConfigError, DecisionRule, Hypothesis, InvalidList, NBestList, Weights
from rescorer import decision as decision_module
from rescorer.decision import STEPS_PER_ROW, STEPS_PER_SLOT, estimate_steps
from rescorer.weights import parse_weights, weights_to_dict
from tests.support.decision_twins import plain_expected_errors, plain_posteriors

STREAM_ONLY = Weights("stream", {"s": 1.0}, {})
MBR = DecisionRule("minimum_bayes_risk")


def make_list(*hypotheses: tuple[str, float]) -> NBestList:
    texts, scores = zip(*hypotheses, strict=True)
    return NBestList("u1", tuple(map(Hypothesis, texts)), {"s": tuple(scores)})


VOTES = make_list(
    ("the cat sat", np.log(0.3)), ("a bat sat", np.log(0.25)), ("a hat sat", np.log(0.25)), ("", np.log(0.2))
)


def test_maximum_is_the_default(library):
    (answer,) = library.rescore([VOTES], STREAM_ONLY)
    assert answer.decision == DecisionRule()
    assert answer.best.text == "the cat sat"
    assert answer.best.expected_errors is None


def test_minimum_bayes_risk_orders_by_expected_errors(library):
    (answer,) = library.rescore([VOTES], STREAM_ONLY, decision=MBR)
    errors = plain_expected_errors(
        [hypothesis.text.split() for hypothesis in VOTES.hypotheses],
        plain_posteriors(VOTES.streams["s"], 1.0),
        "word",
    )
    assert answer.decision == MBR
    assert [h.original_rank for h in answer.hypotheses] == [1, 2, 0, 3]
    assert [h.expected_errors for h in answer.hypotheses] == pytest.approx([errors[i] for i in (1, 2, 0, 3)])
    (maximum,) = library.rescore([VOTES], STREAM_ONLY)
    for hypothesis in answer.hypotheses:
        same = next(h for h in maximum.hypotheses if h.original_rank == hypothesis.original_rank)
        assert hypothesis.total == same.total
        assert hypothesis.log_posterior == same.log_posterior


def test_the_rule_of_the_weights_applies_unless_the_call_says_otherwise(library):
    weights = Weights("stream", {"s": 1.0}, {}, decision=MBR)
    assert library.rescore([VOTES], weights)[0].decision == MBR
    assert library.rescore([VOTES], weights, decision=DecisionRule())[0].best.text == "the cat sat"


def test_low_temperature_is_the_maximum(library):
    (answer,) = library.rescore(
        [VOTES], STREAM_ONLY, decision=DecisionRule("minimum_bayes_risk", temperature=0.01)
    )
    assert answer.best.text == "the cat sat"


def test_posteriors_of_merged_hypotheses_are_added_and_dropped_ones_do_not_count(library):
    nbest = make_list(("", 0.0), ("a b", 0.0), ("A b", 0.0), ("a c", 0.0))
    (answer,) = library.rescore([nbest], STREAM_ONLY, decision=MBR, merge=True, drop_empty=True)
    assert [h.original_rank for h in answer.hypotheses] == [1, 3]
    assert [h.expected_errors for h in answer.hypotheses] == pytest.approx([1 / 3, 2 / 3])
    assert answer.best.merged_ranks == (1, 2)
    (apart,) = library.rescore([nbest], STREAM_ONLY, decision=MBR, drop_empty=True)
    assert [h.expected_errors for h in apart.hypotheses] == pytest.approx([1 / 3, 1 / 3, 2 / 3])


def test_characters_differ_from_words(library):
    nbest = make_list(("aaaaaaaa x", 0.0), ("aaaaaaab x", 0.0), ("aaaaaaaa yyyyyyyyy", 0.0))
    by_word, by_character = (
        library.rescore([nbest], STREAM_ONLY, decision=DecisionRule("minimum_bayes_risk", unit))[0]
        for unit in ("word", "character")
    )
    assert [h.expected_errors for h in by_word.hypotheses] == pytest.approx([2 / 3, 1, 1])
    assert by_character.best.expected_errors == pytest.approx(10 / 3)


def test_lists_that_are_too_long_are_rejected_by_name(library, monkeypatch):
    monkeypatch.setattr(decision_module, "MAX_STEPS", 5)
    error, good = library.rescore_each([VOTES, make_list(("a", 0.0))], STREAM_ONLY, decision=MBR)
    assert isinstance(error, InvalidList)
    assert "list 'u1', hypotheses: comparing 4 distinct hypotheses with up to 3 words" in str(error)
    assert good.decision == MBR


def test_weights_round_trip_with_their_rule():
    weights = Weights("w", {"s": 1.0}, decision=DecisionRule("minimum_bayes_risk", "character", 2.5))
    assert parse_weights(weights_to_dict(weights)) == weights
    assert "decision" not in weights_to_dict(Weights())  # readable by versions without rules


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        ("mbr", "weights.decision is 'mbr'; expected an object such as"),
        ({"kind": "minimum_bayes_risks"}, "decision.kind is 'minimum_bayes_risks'.*did you mean 'minimum_b"),
        ({"kind": None}, "decision.kind is 'None'; expected one of maximum"),
        ({"unit": "words"}, "decision.unit is 'words'; expected one of word, character, mixed; did you"),
        ({"temperature": 0}, "decision.temperature is 0; expected a finite number above 0"),
        ({"temperature": True}, "decision.temperature is True"),
        ({"temperature": "2"}, "decision.temperature is '2'"),
        ({"temperature": float("inf")}, "decision.temperature is inf"),
        ({"temprature": 2}, "unknown settings of weights.decision .'temprature'.*did you mean 'temperature'"),
        ({"kind": "confusion_network", "unit": "character"}, "a confusion network decides word by word"),
    ],
)
def test_invalid_rules_are_refused(decision, message):
    with pytest.raises(ConfigError, match=message):
        parse_weights({"decision": decision})


CONSENSUS = DecisionRule("confusion_network")


def test_a_confusion_network_adds_its_consensus_and_keeps_the_order(library):
    nbest = make_list(("The cat, sat", np.log(0.4)), ("the hat sad", np.log(0.3)), ("a cat sad", np.log(0.3)))
    (answer,) = library.rescore([nbest], STREAM_ONLY, decision=CONSENSUS)
    assert answer.decision == CONSENSUS
    assert [h.original_rank for h in answer.hypotheses] == [0, 1, 2]
    assert [word.word for word in answer.consensus] == ["the", "cat", "sad"]
    assert answer.consensus_rank is None
    assert answer.best.expected_errors is None
    assert library.rescore([nbest], STREAM_ONLY)[0].consensus == ()


def test_a_consensus_that_is_a_hypothesis_is_named(library):
    nbest = make_list(("x y", np.log(0.4)), ("A B", np.log(0.3)), ("a b", np.log(0.3)))
    (answer,) = library.rescore([nbest], STREAM_ONLY, decision=CONSENSUS, merge=True)
    assert [h.original_rank for h in answer.hypotheses] == [1, 0]
    assert answer.consensus_rank == 1
    (apart,) = library.rescore([nbest], STREAM_ONLY, decision=CONSENSUS)
    assert apart.consensus_rank == 1
    assert apart.best.text == "x y"


def test_the_consensus_has_the_times_of_the_words(library):
    times = [{"word": "A", "start_s": 0.0, "duration_s": 1.0}], [{"word": "a", "start_s": 1, "duration_s": 2}]
    hypotheses = (Hypothesis("A", {"words": times[0]}), Hypothesis("a", {"words": times[1]}))
    (answer,) = library.rescore(
        [NBestList("u1", hypotheses, {"s": (0.0, 0.0)})], STREAM_ONLY, decision=CONSENSUS
    )
    (word,) = answer.consensus
    assert (word.start_s, word.duration_s) == pytest.approx((0.5, 1.5))


def test_estimated_work_bounds_the_work_of_minimum_bayes_risk():
    words = [("a", "b", "c" * 70), ("a", "x", "y", "z"), ("a", "b", "c" * 70), ()]
    assert estimate_steps(DecisionRule(), words) == 0
    for unit in ("word", "character", "mixed"):
        rule = DecisionRule("minimum_bayes_risk", unit)
        compared = [len(code) for code in decision_module.code_list(words, unit).codes]
        assert estimate_steps(rule, words) >= decision_module.count_steps(compared)
    assert estimate_steps(CONSENSUS, words) == 10 * (STEPS_PER_ROW + 4) + 4 * 4 * STEPS_PER_SLOT


def test_estimated_work_of_a_network_counts_the_slots_that_short_hypotheses_pass():
    """Each of 1,000 short hypotheses visits all slots of one long hypothesis."""
    words = [tuple(f"w{i}" for i in range(500)), *[("w1",)] * 1000]
    assert estimate_steps(CONSENSUS, words) > 1000 * 500 * STEPS_PER_SLOT


@pytest.mark.parametrize("temperature", [10**400, -(10**400), float("inf"), float("nan"), 0, -1.0, True, "1"])
def test_rejects_temperatures_that_are_not_finite_and_positive(temperature):
    with pytest.raises(ConfigError, match="expected a finite number above 0") as error:
        DecisionRule("minimum_bayes_risk", temperature=temperature)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e300, 1.7e308])
@pytest.mark.parametrize("kind", ["minimum_bayes_risk", "confusion_network"])
def test_extreme_temperatures_give_finite_answers(library, kind, temperature):
    (answer,) = library.rescore([VOTES], STREAM_ONLY, decision=DecisionRule(kind, temperature=temperature))
    if kind == "minimum_bayes_risk":
        assert np.isfinite([h.expected_errors for h in answer.hypotheses]).all()
    elif temperature < 1:
        assert [(word.word, word.posterior) for word in answer.consensus] == [
            ("the", 1.0), ("cat", 1.0), ("sat", 1.0)
        ]  # fmt: skip
    else:
        assert [word.posterior for word in answer.consensus] == pytest.approx([0.5, 0.25, 0.75])
