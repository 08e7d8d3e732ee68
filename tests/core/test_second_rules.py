"""The second rules: nothing but the rules that have a name makes words equal, joins or loses them."""

from __future__ import annotations

import re
import string
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rescorer.evaluation.word_statistics import EqualTexts, make_mild_normaliser
from rescorer.extensions import make_ranker
from rescorer.models.bundle import read_bundle
from rescorer.ranking import select_and_order
from rescorer.service.settings import ServiceSettings, find_contradictions
from rescorer.text import FILLERS, Normaliser, NormaliserSettings
from rescorer.text.normaliser import (
    INVISIBLE,
    OTHER_SENTENCE_MARKS,
    FirstRules,
    SecondRules,
    fold_compatibility,
)
from rescorer.text.unicode_classes import DASHES, FORMAT_CHARACTERS, QUOTES_AND_BRACKETS, TERMINAL_PUNCTUATION
from tests.support.tiny_models import write_bundle

DEFAULT = Normaliser()
# letters with marks, in the languages of a dozen and more scripts
WORDS = (
    "sea straße ışık šuma đak ñandú œuvre þing", "море дождь їжак қала", "θάλασσα λόγος", "ծով գիրք",
    "ים ספר שָׁלוֹם", "بحر كِتَاب دریا سمندر", "समुद्र की गाड़ी", "সমুদ্র নদী", "கடல் நீர்", "సముద్రం", "ಸಮುದ್ರ",
    "കടൽ പുഴ", "මුහුද", "ทะเล น้ำ", "ທະເລ", "សមុទ្រ", "ပင်လယ်", "རྒྱ་མཚོ", "ባሕር መጽሐፍ", "ზღვა", "바다 강",
    "大海", "うみ ガラス", "biển nước", "à̱ ɓâ",
)  # fmt: skip
FRAGMENTS = (
    "3,5 35 1,234,567 1.234,5 c++ -5 5% $5 İ I ı U.S. ⁇ <unk> ' ’ का है । ، 。 １ ﬁ ﻻ ß _ - — [NOISE] (2) a/b "
    "1/2 👩\u200d🚀 · « ʼ \u200c \u200d \u200b \u00ad \u0301 \u0387 \U000e0067"
)
TEXTS = st.lists(st.text(max_size=3) | st.sampled_from([*FRAGMENTS.split(), " "]), max_size=12).map("".join)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("<s> they say <sil> in all our(2) blood </s> [NOISE] ++UH++ !NULL", "they say in all our blood"),
        ("don’t ‘quoted,’ 'quoted' 'tis boys' ‘two words’", "don't quoted quoted 'tis boys' two words'"),
        ("um 3,5 prozent, 35 3.5 .5 5", "um 3,5 prozent 35 3.5 .5 5"),
        (
            "1,234 1,234,567 1.234.567 1,234.5 1.234,5 12,34,567",
            "1,234 1234567 1234567 1234.5 1234,5 1234567",
        ),
        ("c++ c# c $5 €5 -5 −5 +5 5% 5 a&b @home #tag", "c++ c# c $5 €5 -5 -5 +5 5% 5 a&b @home #tag"),
        ("ma˥ ma˥˩ ma", "ma˥ ma˥˩ ma"),
        ("%hesitation <unk> <UNK> ⁇ a⁇ [oov]", "%hesitation <unk> <unk> ⁇ a ⁇ [oov]"),
        ("१,२३,४५६ ٣٬٥٠٠ 0,123,456 sum,1,234,567", "१२३४५६ ٣٥٠٠ 0,123,456 sum 1234567"),
        ("–5 ‑5 $-5 ₹.5 c++-5 2020–2021 —5", "-5 -5 $-5 ₹.5 c++ 5 2020 2021 5"),
        ("‚ja‘ ‘·ja’", "ja ja"),
        ("and/or yes,no wait...what 1/2 24/7", "and or yes no wait what 1/2 24/7"),
        ("U.S. a.m., left.She plan b.I", "us am left she plan b i"),
        ("well-known COVID-19 — she said--", "well known covid 19 she said"),
        ("book(s) «oui» „ja“ [maybe]", "book s oui ja maybe"),
        ("sil", "sil"),
        ("se\u00ada\ufeff ca\u2060t", "sea cat"),
        ("ทะเล\u200bน้ำ", "ทะเล น้ำ"),
        ("می\u200cخواهم میخواهم c\u200ca می\u200c؛", "می\u200cخواهم میخواهم ca می"),
        ("র\u200d্য র্য ন্\u200d ন্\u200c", "র\u200d্য র্য ন্\u200d ন্"),
        ("👩\u200d🚀 👩🚀 ❤\ufe0f ❤", "👩\u200d🚀 👩🚀 ❤ ❤"),
        ("１２ ＡＢ ｶﾞ ﻻ ﬁn m² ½", "12 ab ガ لا fin m² ½"),
        ("Ի՞նչ ինչ", "ինչ ինչ"),
        ('צה"ל צה״ל ג׳ורג׳', "צה״ל צה״ל ג'ורג'"),
        ("col·lecció ναι·όχι", "col·lecció ναι όχι"),
        ("¿Qué?¡Hola!", "qué hola"),
        ("ΟΔΟΣ,ΝΑΙ οδος", "οδος ναι οδος"),
        ("İstanbul istanbul i\u0307", "istanbul istanbul i"),
        ("Cafe\u0301 café", "café café"),
        ("| = ♪", "| = ♪"),
    ],
)
def test_default_settings(text, words):
    assert DEFAULT.normalise(text) == tuple(words.split())


@pytest.mark.parametrize("text", WORDS)
def test_words_of_many_scripts_stay_as_they_are(text):
    assert DEFAULT.normalise(text) == tuple(unicodedata.normalize("NFC", word) for word in text.split())


def characters_of(content: str) -> list[str]:
    """All characters that a character class with this content matches."""
    return re.findall(f"[{content}]", "".join(map(chr, range(0x110000))))


def test_every_sentence_mark_separates_words_in_every_script():
    marks = characters_of(TERMINAL_PUNCTUATION + OTHER_SENTENCE_MARKS)
    assert len(marks) > 290
    for script in WORDS:
        word = unicodedata.normalize("NFC", script.split()[0])
        for mark in marks:
            if mark != "⁇":
                assert DEFAULT.normalise(f"{word}{mark}{word}{mark}") == (word, word), mark


def test_tables_agree_with_those_of_python():
    """Python's own tables may be older, so that only characters which both know are compared."""
    for table, categories in ((DASHES, {"Pd"}), (FORMAT_CHARACTERS, {"Cf"})):
        ours = set(characters_of(table))
        assert {c for c in map(chr, range(0x110000)) if unicodedata.category(c) in categories} <= ours
        assert {unicodedata.category(c) for c in ours} <= categories | {"Cn"}
    brackets = set(characters_of(QUOTES_AND_BRACKETS))
    assert {
        c for c in map(chr, range(0x110000)) if unicodedata.category(c) in ("Ps", "Pe", "Pi", "Pf")
    } <= brackets


REMOVED = re.compile(
    rf"(?!⁇)[{TERMINAL_PUNCTUATION}{OTHER_SENTENCE_MARKS}{QUOTES_AND_BRACKETS}{DASHES}{FORMAT_CHARACTERS}"
    r"\s_/`´·\u0387\u0f0b\u055b-\u055e\u02bc\u05f3\u05f4\u066c\u2212\x00-\x1f\x7f-\x9f\ufe0e\ufe0f]"
)


def essence(text: str) -> str:
    """What the named rules leave of a text: a slow twin that removes whole classes of characters.

    Words are equal only if their essence is, and no text loses anything of it.
    """
    composed = "".join(map(fold_compatibility, unicodedata.normalize("NFC", text)))
    lower = unicodedata.normalize("NFC", composed).replace("İ", "i").lower()
    folded = unicodedata.normalize("NFC", lower).replace("i\u0307", "i")
    return unicodedata.normalize("NFC", REMOVED.sub("", folded).replace("ς", "σ"))


NOTHING_DROPPED = Normaliser(NormaliserSettings(drop=(), variants=False))


@given(TEXTS)
@example("a\u0300\u0301-\u0301")
@example("\u0387\u0301")
def test_nothing_but_what_the_rules_name_is_lost(text):
    words = NOTHING_DROPPED.normalise(text)
    assert essence(" ".join(words)) == essence(text)


@given(TEXTS)
def test_normalising_is_idempotent(text):
    words = DEFAULT.normalise(text)
    assert all(word and not any(map(str.isspace, word)) for word in words)
    assert DEFAULT.normalise(" ".join(words)) == words


@given(st.lists(TEXTS, max_size=4))
def test_tokens_are_normalised_independently(parts):
    assert DEFAULT.normalise(" ".join(parts)) == tuple(
        word for part in parts for word in DEFAULT.normalise(part)
    )


@given(TEXTS)
def test_each_word_has_a_surface_with_the_same_word(text):
    surfaces = DEFAULT.surfaces(text)
    words = DEFAULT.normalise(text)
    assert len(surfaces) == len(words)
    assert tuple(word for surface in surfaces for word in DEFAULT.normalise(surface)) == words


def test_surfaces_are_words_as_they_came():
    assert DEFAULT.surfaces("The 3,5 to(2) <sil> we_did, «Oui»") == ("The", "3,5", "to", "we", "did", "«Oui»")
    assert DEFAULT.surfaces("\u200d(2)") == ("\u200d(2)",)


def test_numbers_with_and_without_marks_stay_different():
    numbers = ["35", "3,5", "3.5", ".35", ",35", "-35", "3-5", "3/5", "3:5", "35%", "$35", "+35"]
    assert len({DEFAULT.normalise(number) for number in numbers} | {("3", "5")}) == len(numbers) - 1


@pytest.mark.parametrize(
    ("mark", "text", "words"), [(".", "1,234 3,5 1,234.5", "1234 3,5 1234.5"), (",", "1.234 3.5", "1234 3.5")]
)
def test_a_known_decimal_mark_tells_which_separators_are_thousands(mark, text, words):
    assert Normaliser(NormaliserSettings(decimal_mark=mark)).normalise(text) == tuple(words.split())


@pytest.mark.parametrize("language", ["tr", "az", "az-Latn", "TR"])
def test_turkish_case(language):
    lower = Normaliser(NormaliserSettings(language=language))
    assert lower.normalise("IŞIK AÇIK İSTANBUL i") == lower.normalise("ışık açık istanbul i")
    assert lower.normalise("I i") == ("ı", "i")
    assert Normaliser(NormaliserSettings(language=language, case="upper")).normalise("ı i") == ("I", "İ")


def test_upper_case_does_not_join_letters():
    assert Normaliser(NormaliserSettings(case="upper")).normalise("maße masse <unk>") == (
        "MAẞE",
        "MASSE",
        "<UNK>",
    )
    upper = Normaliser(NormaliserSettings(case="upper"))
    assert len({upper.normalise(word) for word in ("ı", "i", "ſ", "s", "ᾳ", "αι")}) == 6


def test_texts_without_spaces_are_composed_at_any_length():
    text = "がギ한né" * 400
    assert DEFAULT.normalise(unicodedata.normalize("NFD", text)) == (text,)


def test_alphabets_in_which_signs_are_letters():
    buckwalter = Normaliser(NormaliserSettings(letters="buckwalter"))
    assert buckwalter.normalise("h*A h$A $kr| *kr~ {w 'ilY, <sil> Al-ktAb.") == (
        *("h*A", "h$A", "$kr|", "*kr~", "{w", "'ilY", "Al", "ktAb"),
    )
    sampa = Normaliser(NormaliserSettings(letters="x-sampa"))
    assert sampa.normalise('"wO:t@` t_h <sil> {nd') == ('"wO:t@`', "t_h", "{nd")


@pytest.mark.parametrize(
    ("name", "dropped"), [("english", "uh Um [UH] hmm"), ("switchboard", "uh %HESITATION")]
)
def test_fillers_are_dropped_only_by_name(name, dropped):
    assert name in FILLERS
    assert len(DEFAULT.normalise(dropped)) == len(dropped.split())
    assert Normaliser(NormaliserSettings(fillers=(name,))).normalise(dropped + " sea") == ("sea",)


def test_punctuation_and_case_can_be_kept():
    keep = Normaliser(
        NormaliserSettings(
            drop=(), variants=False, case="keep", keep=(), multiwords="", hyphens="keep", punctuation="keep",
            compatibility="keep",
        )
    )  # fmt: skip
    text = "To(2), 3,5 x-ray «a» we_did １ <sil>"
    assert keep.normalise(text) == tuple(text.split())


def test_hyphens_can_be_kept_within_words():
    keep = Normaliser(NormaliserSettings(hyphens="keep"))
    assert keep.normalise("well-known -- -rd wo- -5 “x-ray”") == ("well-known", "rd", "wo", "-5", "x-ray")


def test_invisible_characters_are_those_that_do_not_change_a_word():
    assert all(INVISIBLE.match(c) for c in "\u00ad\u061c\u200e\u202a\u2060\ufeff\x07")
    assert not any(INVISIBLE.match(c) for c in "\u200b\u200c\u200d\u0600\u06dd\u180e\U000e0067a")


@given(st.lists(TEXTS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_which_texts_are_equal_does_not_depend_on_their_order(texts, random):
    shuffled = random.sample(texts, len(texts))
    first = NormaliserSettings.first_rules()
    stats = []
    for order in (texts, shuffled):
        tally = EqualTexts(Normaliser(first), make_mild_normaliser(first))
        tally.add(order)
        stats.append(tally)
    assert [(found.texts, found.beyond) for found in stats] == [(stats[0].texts, stats[0].beyond)] * 2
    by_text = dict(zip(texts, map(DEFAULT.normalise, texts), strict=True))
    merged = [
        select_and_order(np.array([float(len(text)) for text in order]), [by_text[text] for text in order])
        for order in (texts, shuffled)
    ]
    kept = [
        {by_text[order[position]] for position in positions}
        for order, (positions, _, _) in zip((texts, shuffled), merged, strict=True)
    ]
    assert kept[0] == kept[1] == set(by_text.values())
    assert all(len(positions) == len(kept[0]) for positions, _, _ in merged)


def test_a_bundle_and_a_service_say_the_language(tmp_path):
    turkish = NormaliserSettings(language="tr")
    bundle = read_bundle(write_bundle(tmp_path, neural=False, text=turkish))
    assert bundle.text_normaliser.normalise("ILIK") == ("ılık",)
    english = read_bundle(write_bundle(tmp_path / "b", neural=False))
    assert make_ranker(english).text_normaliser.normalise("ILIK") == ("ilik",)
    assert make_ranker(english, language="az").text_normaliser.normalise("ILIK") == ("ılık",)
    wrong = list(find_contradictions(ServiceSettings(bundle=tmp_path, language="Turkish language")))
    assert "language: expected a tag such as tr or pt-BR, got 'Turkish language'" in wrong


PLAIN_SETTINGS = [
    NormaliserSettings(fillers=("english", "switchboard"), replace={"gonna": "going to", "ok": ""}),
    NormaliserSettings(language="tr", case="upper", hyphens="keep"),
    NormaliserSettings(multiwords="x_", punctuation="keep"),
    NormaliserSettings(letters="buckwalter", drop=("a.*",), keep=("b.+",)),
    NormaliserSettings.first_rules(replace={"gonna": "going to", "OK": ""}, drop=("a.*", "uh")),
    NormaliserSettings.first_rules(case="upper", keep=("b.+",)),
    NormaliserSettings.first_rules(multiwords="x_", case="keep", punctuation="keep"),
    NormaliserSettings.raw(),
]


@pytest.mark.parametrize("settings", PLAIN_SETTINGS, ids=lambda settings: settings.describe())
@given(token=st.text(string.ascii_letters, min_size=1, max_size=8) | st.sampled_from(["uh", "GONNA", "ok"]))
def test_tokens_of_plain_letters_take_a_short_way(settings, token):
    """New words of this kind take 3 µs instead of 16."""
    rules = (FirstRules if settings.rules == 1 else SecondRules)(settings)
    short = rules.words_of(token)
    rules._are_letters_plain = False
    assert short == rules.words_of(token)
