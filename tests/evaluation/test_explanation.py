"""Explanations: weighted components add up to totals, and say what decided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rescorer.evaluation.error_analysis import MERGED, explain_list, sort_by_change
from rescorer.evaluation.list_errors import Selection
from rescorer.types import DecisionRule, Weights
from tests.evaluation.test_rows import make_list, score

TEXTS = {"the mat": -1.0, "the cat": -1.5, "The cat": -1.5, "the cat sat": -9.0}
WEIGHTS = Weights("test", {"acoustic": 2.0}, {"ngram": 3.0}, word=0.5, oov=0.0)


@pytest.mark.parametrize("selection", [Selection(), Selection(merge=True)])
def test_terms_add_up_to_totals_and_leads(selection):
    (scored,) = score([make_list(1, TEXTS)], {"the cat": 1.0, "The cat": 1.0}, selection)
    found = explain_list(scored, WEIGHTS)
    for candidate in (*found.best, found.first_pass, found.oracle):
        assert sum(candidate.terms.values()) == pytest.approx(candidate.total)
    assert (found.winner.first_pass_rank, found.winner.words) == (2, ("the", "cat"))
    lead = found.lead_over(found.first_pass)
    assert sum(lead.values()) == pytest.approx(found.winner.total - found.first_pass.total)
    assert lead["ngram"] == pytest.approx(3.0)
    assert (MERGED in lead) == selection.merge
    assert found.winner.components == {"acoustic": -1.5, "ngram": 1.0, "words": 2.0}
    assert (found.has_changed, found.errors_saved) == (True, 1)


def test_finds_the_oracle_only_with_a_reference():
    (scored,) = score([make_list(1, TEXTS)])
    found = explain_list(scored, WEIGHTS)
    assert found.oracle is not None
    assert (found.oracle.first_pass_rank, found.oracle.errors) == (4, 0)
    unknown = explain_list(scored, WEIGHTS, has_reference=False)
    assert (unknown.oracle, unknown.winner.errors, unknown.errors_saved) == (None, None, 0)
    assert unknown.to_dict()["lead_over_oracle"] is None


def test_follows_the_decision_rule():
    """Two spellings of similar texts are together more probable than the best hypothesis."""
    (scored,) = score([make_list(1, {"a b c": -1.0, "the mat": -1.2, "the cat": -1.2})])
    by_maximum = explain_list(scored, replace(WEIGHTS, word=0.0))
    rule = DecisionRule("minimum_bayes_risk")
    by_risk = explain_list(scored, replace(WEIGHTS, word=0.0, decision=rule))
    assert (by_maximum.winner.first_pass_rank, by_risk.winner.first_pass_rank) == (1, 2)


def test_sorts_lists_by_the_change_of_their_errors():
    lists = [
        make_list(1, {"the cat sat": -1.0}),
        make_list(2, {"the mat sat": -1.0, "the cat sat": -1.1}),
        make_list(3, {"a b c": -1.0, "the cat sat": -1.1}),
    ]
    explanations = [explain_list(item, WEIGHTS) for item in score(lists, {"the cat sat": 1.0})]
    assert [found.id for found in sort_by_change(explanations)] == ["u3", "u2"]
