"""Normaliser under the first rules, which models of earlier bundles read, and its settings."""

from __future__ import annotations

import gzip
import json
import re
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.text import Normaliser, NormaliserSettings, utf8_bytes
from rescorer.text import normaliser as normaliser_module
from rescorer.text.normaliser import INNER_PUNCTUATION, VARIANT

FIRST = NormaliserSettings.first_rules()
CONVERSATION = NormaliserSettings.first_rules(
    replace={"uh": "%hesitation", "um": "%hesitation", "uh-huh": "uh_huh"}, keep=(r"%\w+", "uh_huh")
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("<s> design they say <sil> in all our(2) blood </s>", "design they say in all our blood"),
        ("[NOISE] [SPEECH] ++UH++ !NULL -pau-", ""),
        ("There's iron, they say, in all our blood.", "there's iron they say in all our blood"),
        ("we_did  well-known", "we did well known"),
        ("don’t ‘quoted’ 'quoted' 'tis boys'", "don't quoted quoted 'tis boys'"),
        ("3.5 times 1,000 U.S.A. $5", "3.5 times 1000 usa 5"),
        ("%hesitation <unk> [oov]", "%hesitation <unk> [oov]"),
        ("[noise], <sil>, [laughter]. [breath]", ""),
        ("and/or yes,no wait...what 10:30 1,000,000", "and or yes no wait what 10 30 1000000"),
        ("se\u200ba \u00adso\ufeff to(2), to(2).", "sea so to to"),
        ("-- ' \" … — !", ""),
        ("Cafe\u0301", "café"),
        ("to(2) (to)", "to to"),
    ],
)
def test_default_settings(text, words):
    assert Normaliser(FIRST).normalise(text) == tuple(words.split())


def test_replaces_hesitations_by_one_word():
    assert Normaliser(CONVERSATION).normalise("Uh um, uh-huh Uh-huh. uh_huh, %hesitation") == (
        "%hesitation", "%hesitation", "uh_huh", "uh_huh", "uh_huh", "%hesitation",
    )  # fmt: skip


def test_upper_case_applies_to_kept_tokens():
    assert Normaliser(NormaliserSettings.first_rules(case="upper")).normalise("to be [oov]") == (
        "TO",
        "BE",
        "[OOV]",
    )


def test_raw_settings_only_split():
    assert Normaliser(NormaliserSettings.raw()).normalise("<unk> N 's U.S. to(2)") == (
        "<unk>",
        "N",
        "'s",
        "U.S.",
        "to(2)",
    )


@given(
    st.text(st.characters() | st.sampled_from("aIi\u0390\u1d160\u0344\ufdfa\u0130 "), max_size=30),
    st.sampled_from([{"rules": 1}, {"rules": 2}, {"rules": 2, "language": "tr"}]),
    st.sampled_from(["NFC", "NFKC"]),
    st.sampled_from(["lower", "upper", "keep"]),
    st.dictionaries(st.text("aAΐ", max_size=2), st.text("bc \u0390", max_size=9), max_size=2),
)
def test_words_grow_no_more_than_their_bound(text, rules, unicode_form, case, replace):
    settings = {**rules, "unicode_form": unicode_form, "case": case, "replace": replace}
    normaliser = Normaliser(NormaliserSettings.from_dict(settings))
    words = " ".join(normaliser.normalise(text))
    assert utf8_bytes(words) <= utf8_bytes(text) * normaliser.max_growth(text)


@given(st.text(max_size=60))
def test_normalisation_converges(text):
    """The second normalisation reaches a fixed point, and words contain no white space."""
    normaliser = Normaliser(FIRST)
    words = normaliser.normalise(text)
    assert all(word and not any(c.isspace() for c in word) for word in words)
    again = normaliser.normalise(" ".join(words))
    assert normaliser.normalise(" ".join(again)) == again


@given(st.lists(st.text(alphabet="ab-_()2'%<>[]. ", max_size=12), max_size=5))
def test_tokens_are_normalised_independently(parts):
    normaliser = Normaliser(FIRST)
    whole = normaliser.normalise(" ".join(parts))
    assert whole == tuple(word for part in parts for word in normaliser.normalise(part))


@given(
    st.text(alphabet="ab1,/.-_(\u200b \u0301", max_size=40),
    st.sampled_from([FIRST, NormaliserSettings(), NormaliserSettings(replace={"a": "b b b"})]),
    st.integers(1, 9),
)
def test_no_more_words_are_found_than_are_enough(text, settings, enough):
    assert (
        Normaliser(settings).normalise(text, enough)[:enough] == Normaliser(settings).normalise(text)[:enough]
    )
    normaliser = Normaliser(settings)
    normaliser.normalise(text, enough)
    assert normaliser.normalise(text) == Normaliser(settings).normalise(text)  # what is cached is complete


@pytest.mark.parametrize("text", ["a," * 9_000, "a/" * 9_000, "a\u200b" * 9_000, "a,a,a " * 3_000])
@pytest.mark.parametrize("settings", [FIRST, NormaliserSettings()])
def test_a_text_with_too_many_words_is_not_divided_to_its_end(text, settings):
    """One word of 4 MB was refused only after it had been divided into two million, in 3.8 s."""
    normaliser, parts = Normaliser(settings), []
    strip = normaliser_module.strip_punctuation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normaliser_module, "strip_punctuation", lambda part: parts.append(part) or strip(part))
        patch.setattr(
            normaliser_module.SecondRules,
            "_words_of_part",
            lambda rules, part, find=normaliser_module.SecondRules._words_of_part: (
                parts.append(part) or find(rules, part)
            ),
        )
        words = normaliser.normalise(text, 13)
    assert set(words) <= {"a", "a" * 9_000}  # the first rules remove the space of no width
    assert len(parts) < 20


@given(st.text(alphabet="ab12().,!?/é_-", max_size=14))
def test_linear_patterns_match_like_their_simple_equivalents(token):
    assert VARIANT.sub("", token) == re.sub(r"(.+)\(\d+\)(?=\W*$)", r"\1", token)
    inner = r"(?<=[^\W_])(?:[/,;:!?…()\[\]\"“”]|\.{2,})+(?=[^\W_])"
    assert INNER_PUNCTUATION.sub(" ", token) == re.sub(inner, " ", token)


@pytest.mark.parametrize(
    "token",
    [
        *("w" * 40_000, "(" * 40_000, "w(" * 20_000, "((1" * 10_000, "w(1)" + "." * 40_000 + "é"),
        *("a" + "." * 40_000 + "b", "-" * 40_000 + "b", "a-" * 20_000, "1,23" * 10_000, "a.b" * 10_000),
        *("a" + "." * 40, "a" + "\u0301\u0323" * 20_000, "1," * 20_000, "++" + "a" * 40_000),
    ],
)
def test_long_tokens_take_linear_time(token):
    """Untrusted tokens must not block a process; patterns of quadratic time took 2 to 8 s for these."""
    for settings in (FIRST, NormaliserSettings(), NormaliserSettings(hyphens="keep", decimal_mark=".")):
        start = time.process_time()
        Normaliser(settings).normalise(token)
        assert time.process_time() - start < 1


def test_cache_is_limited_in_bytes(monkeypatch):
    """The limit must count bytes: short tokens of many words need eight times as many as ordinary ones."""
    monkeypatch.setattr(normaliser_module, "MAX_CACHE_BYTES", 1_000_000)
    cached = Normaliser()
    tracemalloc.start()
    try:
        for number in range(3000):
            cached.normalise("-".join([str(number), *["𝔘ab"] * 14]))
        assert tracemalloc.get_traced_memory()[1] < 1_200_000
    finally:
        tracemalloc.stop()


def test_settings_json_round_trip():
    settings = NormaliserSettings.from_dict(json.loads(CONVERSATION.to_json()))
    assert settings == CONVERSATION


def test_a_file_without_rules_means_the_first_rules_and_their_defaults():
    assert NormaliserSettings.from_dict({}) == FIRST
    assert NormaliserSettings.from_dict({"rules": 2}) == NormaliserSettings()
    assert "rules" not in FIRST.to_dict()
    assert NormaliserSettings.from_dict(NormaliserSettings().to_dict()) == NormaliserSettings()


def test_first_rules_lack_the_settings_of_the_second():
    with pytest.raises(ConfigError, match='language: needs the second rules; set "rules" to 2'):
        NormaliserSettings.from_dict({"language": "tr"})


@pytest.mark.parametrize(
    "values",
    [
        *({"cases": "lower"}, {"case": "small"}, {"drop": ["("]}, {"rules": 3}, {"rules": True}),
        *({"rules": 2} | more for more in ({"fillers": ["eglish"]}, {"letters": "ipa"}, {"language": "a b"})),
    ],
)
def test_rejects_invalid_settings(values):
    with pytest.raises(ConfigError):
        NormaliserSettings.from_dict(values)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|aa)*",
        "(a|a?)+",
        "(a?){50}",
        "((ab)*c*)*",
        r"(\w*)\1+",
        "(?=(a+)+$)b",
        "a*a*a*b",
        "(" * 500,
    ],
)
def test_rejects_patterns_that_may_take_for_ever(pattern):
    with pytest.raises(ConfigError, match=r"drop: '.*'"):
        NormaliserSettings(drop=(pattern,))


@given(
    st.lists(st.sampled_from([*"ab.|?*+()", "[ab]", "{2,9}", r"\w", "(?:", "^", "$"]), max_size=12).map(
        "".join
    ),
    st.sampled_from(["a" * 99 + "!", "ab" * 40 + "c", "b" * 30, "a" * 1000]),
)
def test_accepted_patterns_match_any_token_quickly(pattern, token):
    try:
        normaliser = Normaliser(NormaliserSettings(drop=(pattern,), keep=()))
    except ConfigError:
        return
    began = time.process_time()
    normaliser.normalise(token)
    assert time.process_time() - began < 2  # hours, if any way to match were tried


def test_too_many_patterns_are_rejected():
    with pytest.raises(ConfigError, match="keep: 201 regular expressions; expected at most 200"):
        NormaliserSettings(keep=("a",) * 201)


@pytest.mark.data
def test_tagged_and_clean_lists_normalise_to_the_same_words(data_dir):
    folder = data_dir / "nbest" / "read-speech"
    normaliser = Normaliser(FIRST)
    with (
        gzip.open(folder / "pocketsphinx-100best.jsonl.gz", "rt") as clean,
        gzip.open(folder / "pocketsphinx-100best-tagged.jsonl.gz", "rt") as tagged,
    ):
        for clean_line, tagged_line in zip(clean, tagged, strict=True):
            clean_words, tagged_words = (
                [normaliser.normalise(hypothesis["text"]) for hypothesis in json.loads(line)["hyps"]]
                for line in (clean_line, tagged_line)
            )
            assert clean_words == tagged_words
