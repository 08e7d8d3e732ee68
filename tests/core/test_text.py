"""The normaliser: what recognisers, people and books write becomes the same canonical words."""

from __future__ import annotations

import gzip
import json
import re
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import text
from rescorer.errors import ConfigError
from rescorer.text import INNER, VARIANT, Normaliser, NormaliserSettings

CONVERSATION = NormaliserSettings(
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
def test_the_default_normaliser(text, words):
    assert Normaliser().words(text) == tuple(words.split())


def test_hesitations_become_one_class():
    assert Normaliser(CONVERSATION).words("Uh um, uh-huh Uh-huh. uh_huh, %hesitation") == (
        "%hesitation", "%hesitation", "uh_huh", "uh_huh", "uh_huh", "%hesitation",
    )  # fmt: skip


def test_upper_case_keeps_its_marks():
    assert Normaliser(NormaliserSettings(case="upper")).words("to be [oov]") == ("TO", "BE", "[OOV]")


def test_raw_text_is_only_split():
    assert Normaliser(NormaliserSettings.raw()).words("<unk> N 's U.S. to(2)") == (
        "<unk>",
        "N",
        "'s",
        "U.S.",
        "to(2)",
    )


@given(st.text(max_size=60))
def test_canonical_words_are_canonical(text):
    """Normalising twice changes nothing, and words hold no white space."""
    normaliser = Normaliser()
    words = normaliser.words(text)
    assert all(word and not any(c.isspace() for c in word) for word in words)
    once_more = normaliser.words(" ".join(words))
    assert normaliser.words(" ".join(once_more)) == once_more


@given(st.lists(st.text(alphabet="ab-_()2'%<>[]. ", max_size=12), max_size=5))
def test_a_token_is_normalised_alone(parts):
    normaliser = Normaliser()
    whole = normaliser.words(" ".join(parts))
    assert whole == tuple(word for part in parts for word in normaliser.words(part))


@given(st.text(alphabet="ab12().,!?/é_-", max_size=14))
def test_patterns_find_what_obvious_ones_do(token):
    assert VARIANT.sub("", token) == re.sub(r"(.+)\(\d+\)(?=\W*$)", r"\1", token)
    inner = r"(?<=[^\W_])(?:[/,;:!?…()\[\]\"“”]|\.{2,})+(?=[^\W_])"
    assert INNER.sub(" ", token) == re.sub(inner, " ", token)


@pytest.mark.parametrize(
    "token",
    [
        *("w" * 40_000, "(" * 40_000, "w(" * 20_000, "((1" * 10_000, "w(1)" + "." * 40_000 + "é"),
        *("a" + "." * 40, "a" + "\u0301\u0323" * 20_000, "1," * 20_000, "++" + "a" * 40_000),
    ],
)
def test_a_token_takes_time_by_its_length(token):
    """One that callers make up must not hold up a process: by its square, these took from 2 to 8 s."""
    began = time.process_time()
    Normaliser().words(token)
    assert time.process_time() - began < 1


def test_the_memory_of_tokens_is_bounded_in_bytes(monkeypatch):
    """Short tokens of many words take eight times what ordinary ones do."""
    monkeypatch.setattr(text, "MEMORY_BYTES", 1_000_000)
    normaliser = Normaliser()
    tracemalloc.start()
    try:
        for number in range(3000):
            normaliser.words("-".join([str(number), *["𝔘ab"] * 14]))
        assert tracemalloc.get_traced_memory()[1] < 1_200_000
    finally:
        tracemalloc.stop()


def test_settings_survive_json():
    settings = NormaliserSettings.from_dict(json.loads(CONVERSATION.to_json()))
    assert settings == CONVERSATION


@pytest.mark.parametrize("values", [{"cases": "lower"}, {"case": "small"}, {"drop": ["("]}])
def test_wrong_settings_are_refused(values):
    with pytest.raises(ConfigError):
        NormaliserSettings.from_dict(values)


@pytest.mark.data
def test_tagged_and_clean_lists_have_the_same_words(data_dir):
    folder = data_dir / "nbest" / "read-speech"
    normaliser = Normaliser()
    with (
        gzip.open(folder / "pocketsphinx-100best.jsonl.gz", "rt") as clean,
        gzip.open(folder / "pocketsphinx-100best-tagged.jsonl.gz", "rt") as tagged,
    ):
        for one, other in zip(clean, tagged, strict=True):
            a, b = (
                [normaliser.words(hypothesis["text"]) for hypothesis in json.loads(line)["hyps"]]
                for line in (one, other)
            )
            assert a == b
