"""Inspection of words: marks that the normaliser leaves in them, and OOV words."""

from __future__ import annotations

import pytest

from rescorer.evaluation.inspection import inspect_lists
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.types import Hypothesis, NBestList
from tests.support.inspection_cases import TOTAL, WORDS, finding_codes, with_texts


@pytest.mark.parametrize(
    ("token", "settings", "kind"),
    [
        ("<noise>", NormaliserSettings(drop=(), keep=()), "filler"),
        ("<sil>", NormaliserSettings(drop=()), "filler"),  # although `keep` lists it as a word
        ("</s>", NormaliserSettings(drop=()), "filler"),
        ("<mine>", NormaliserSettings(drop=()), None),
        ("[laughs]", NormaliserSettings(), "filler"),
        ("(cough)", NormaliserSettings(), "filler"),
        ("%um", NormaliserSettings(keep=()), "filler"),
        ("river(2)", NormaliserSettings(variants=False), "variant"),
        ("river#2", NormaliserSettings(), "variant"),
        ("river_bank", NormaliserSettings(multiwords=""), "multiword"),
        ("river+bank", NormaliserSettings(), "multiword"),
        ("River", NormaliserSettings(case="keep"), "case"),
        ("<sil>", NormaliserSettings(), None),
        ("<noise>", NormaliserSettings(), None),
        ("%um", NormaliserSettings(), None),
        ("river(2)", NormaliserSettings(), None),
        ("river_bank", NormaliserSettings(), None),
        ("River", NormaliserSettings(), None),
        ("Zanzibar", NormaliserSettings(case="keep"), None),  # a name, which never occurs in lower case
        ("well-known", NormaliserSettings(), None),
        ("wo-", NormaliserSettings(), None),
    ],
)
def test_classifies_tokens_that_the_settings_do_not_cover(token, settings, kind):
    lists = [*TOTAL, NBestList("odd", (Hypothesis(f"{token} river"), Hypothesis("river")))]
    found = inspect_lists(lists, Normaliser(settings)).words.uncovered
    assert {name: tokens.examples for name, tokens in found.items()} == (
        {kind: ((token, 1),)} if kind else {}
    )


def test_takes_marks_known_to_the_bundle_as_words():
    lists = with_texts(TOTAL, lambda nbest, texts: [f"%um {text}" for text in texts])
    assert finding_codes(lists, vocabulary=frozenset({*WORDS, "%um"})) == set()
    assert finding_codes(lists, vocabulary=frozenset(WORDS)) == {"filler"}
    assert finding_codes(lists) == set()


def test_counts_unknown_words():
    found = inspect_lists(TOTAL, Normaliser(), vocabulary=frozenset(set(WORDS) - {"stone"})).words.unknown
    stones = sum(hypothesis.text.split().count("stone") for nbest in TOTAL for hypothesis in nbest.hypotheses)
    assert found.unknown.examples == (("stone", stones),)
    assert found.rate == stones / sum(
        len(hypothesis.text.split()) for nbest in TOTAL for hypothesis in nbest.hypotheses
    )
    spoken = [word for nbest in TOTAL for word in nbest.reference.split()]
    assert found.reference_rate == spoken.count("stone") / len(spoken)
    upper = Normaliser(NormaliserSettings(case="upper"))
    wrong_case = inspect_lists(TOTAL, upper, vocabulary=frozenset(WORDS))
    assert [finding.code for finding in wrong_case.findings] == ["oov"]
    assert "another case" in wrong_case.findings[0].message


def test_pieces_that_the_bundle_knows_as_words_are_only_worth_a_note():
    lists = with_texts(TOTAL, lambda nbest, texts: [f"▁{text.replace(' ', ' ▁')}" for text in texts])
    raw = Normaliser(NormaliserSettings.raw())

    def severities(normaliser, vocabulary):
        found = inspect_lists(lists, normaliser, vocabulary=frozenset(vocabulary)).findings
        return [finding.severity for finding in found if finding.code == "markup"]

    assert severities(raw, [f"▁{word}" for word in WORDS]) == ["note"]
    assert severities(raw, WORDS) == severities(Normaliser(), WORDS) == ["warning"]
