"""Units of errors: characters as people see them in the scripts of the world, and mixed units."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.text import unicode_classes as classes
from rescorer.text.units import (
    SCRIPTS_WITHOUT_SPACES,
    SpacingTally,
    rate_name,
    remark_on_spacing,
    split_characters,
    split_units,
    unit_noun,
)
from tests.support.units_twin import has, plain_clusters, plain_units

WORDS = {
    "Hindi": "न|म|स्ते",
    "Hindi, conjuncts": "वि|द्या|र्थी",
    "Hindi, nukta": "ज़|रू|र",
    "Bengali": "বাং|লা",
    "Bengali, conjunct": "বি|জ্ঞা|ন",
    "Tamil": "த|மி|ழ்",
    "Tamil, vowel around": "கொ|டு",
    "Telugu": "తె|లు|గు",
    "Telugu, conjunct": "వి|ద్యా|ర్థి",
    "Malayalam": "മ|ല|യാ|ളം",
    "Kannada, no conjuncts in UAX #29": "ಕ|ನ್|ನ|ಡ",
    "Gujarati": "ગુ|જ|રા|તી",
    "Gurmukhi": "ਪੰ|ਜਾ|ਬੀ",
    "Sinhala": "සිං|හ|ල",
    "Thai": "ภ|า|ษ|า|ไ|ท|ย",
    "Thai, tones and am": "น้ำ|ที่",
    "Lao": "ພ|າ|ສ|າ|ລ|າ|ວ",
    "Lao, am": "ນ້ຳ",
    "Khmer": "ភា|សា|ខ្មែ|រ",
    "Burmese": "မြ|န်|မ|ာ",
    "Tibetan": "བོ|ད|སྐ|ད",
    "Korean, syllables": "한|국|어",
    "Korean, jamo": "\u1112\u1161\u11ab|\u1100\u116e\u11a8|\u110b\u1165",
    "Vietnamese, NFC": "t|i|ế|n|g|V|i|ệ|t",
    "Arabic with harakat": "مَ|رْ|حَ|بً|ا",
    "Persian with a non-joiner": "م|ی\u200c|خ|و|ا|ه|م",
    "Hebrew with niqqud": "שָׁ|ל|וֹ|ם",
    "Amharic": "ሰ|ላ|ም",
    "Chinese": "你|好|世|界",
    "Chinese with a variation": "葛\U000e0100|城",
    "Japanese": "が|ぎ|ー|パ|ン",
    "Japanese, half width": "ｶﾞ|ﾊﾟ",
    "Turkish": "İ|s|t|a|n|b|u|l",
    "German": "G|r|ü|ß|e",
    "Russian with stress": "м|о́|л|о|д|ц|ы",
    "Yoruba": "Y|o|r|ù|b|á",
    "emoji": "👩‍👩‍👧|👍🏽|❤️|1️⃣",
    "flags": "🇩🇪|🇫🇷|🇯",
}
"""Words of many scripts with a stroke between the characters that UAX #29 finds in them."""


@pytest.mark.parametrize("name", WORDS)
def test_characters_are_those_that_people_see(name):
    characters = WORDS[name].split("|")
    word = "".join(characters)
    expected = tuple(unicodedata.normalize("NFC", text) for text in characters)
    assert split_characters(word) == expected
    for form in ("NFC", "NFD"):
        assert split_characters(unicodedata.normalize(form, word)) == expected


def test_spaces_do_not_change_characters():
    for word in map(str, WORDS.values()):
        text = word.replace("|", "")
        for place in range(1, len(text)):
            assert split_units((text[:place], text[place:]), "character") == split_characters(text)


MIXED = {
    "我 喜欢 machine learning 课": "我|喜|欢|machine|learning|课",
    "我喜欢 machine learning课": "我|喜|欢|machine|learning|课",
    "iphone手机15号": "iphone|手|机|15|号",
    "コーヒー を two cups": "コ|ー|ヒ|ー|を|two|cups",
    "ไป meeting ที่ office": "ไ|ป|meeting|ที่|office",
    "ການ update ລະບົບ": "ກ|າ|ນ|update|ລ|ະ|ບົ|ບ",
    "ខ្ញុំ ចូលចិត្ត coffee": "ខ្ញុំ|ចូ|ល|ចិ|ត្ត|coffee",
    "မြန်မာ language": "မြ|န်|မ|ာ|language",
    "མ ི ་ test": "མི|་|test",
    "한국어 공부 hard": "한국어|공부|hard",
    "ꦲ tiếng việt hay": "ꦲ|tiếng|việt|hay",
    "मेरा phone टूट गया": "मेरा|phone|टूट|गया",
    "naïve 人": "naïve|人",
    "ㄅㄆ bpm": "ㄅ|ㄆ|bpm",
    "你好，iphone。": "你|好|，|iphone|。",
    "café déjà vu": "café|déjà|vu",
    "": "",
}


@pytest.mark.parametrize("text", MIXED)
def test_mixed_units_are_characters_of_scripts_without_spaces_and_words_of_others(text):
    expected = tuple(MIXED[text].split("|")) if text else ()
    assert split_units(tuple(text.split()), "mixed") == expected


def test_the_scripts_without_spaces_are_a_class():
    examples = {"Han": "字々〇", "Hiragana": "あゞ", "Katakana": "アーヶ", "Thai": "ก๓ๆ", "Lao": "ກໆ",
                "Khmer": "ក១", "Myanmar": "က၁", "Tibetan": "ཀ༡", "Yi": "ꀀ", "Tai Le": "ᥐ",
                "New Tai Lue": "ᦀ", "Tai Tham": "ᨠ", "Javanese": "ꦏ", "Balinese": "ᬓ",
                "Bopomofo": "ㄅ"}  # fmt: skip
    assert set(examples) < set(SCRIPTS_WITHOUT_SPACES)
    assert all(has(char, "WITHOUT_SPACES") for text in examples.values() for char in text)
    with_spaces = "aéßıж한ᄒㅎאبकবַა1٣ⴰՀሀᏣ'-"
    assert not any(has(char, "WITHOUT_SPACES") for char in with_spaces)


@pytest.mark.parametrize(
    ("unit", "rate", "noun"),
    [("word", "WER", "word"), ("character", "CER", "character"), ("mixed", "MER", "unit")],
)
def test_names(unit, rate, noun):
    assert (rate_name(unit), unit_noun(unit)) == (rate, noun)


CLASSES = [name for name in vars(classes) if name.isupper() and name[0] != "S" and name != "UNICODE_VERSION"]
CLASSES += ["SPACING_MARK"]
LETTERS = {name: st.from_regex(f"[{getattr(classes, name)}]", fullmatch=True) for name in CLASSES}
CHARACTERS = st.one_of(
    *LETTERS.values(), st.sampled_from("aé1각가ー手กा्क\u200c\u200d\ufe0f👩"), st.characters(codec="utf-8")
)
TEXTS = st.text(CHARACTERS, max_size=12)
TOKENS = st.lists(TEXTS.map(lambda text: "".join(text.split())).filter(bool), max_size=4)


@given(TEXTS)
def test_characters_equal_those_of_the_slow_twin(text):
    expected = [unicodedata.normalize("NFC", cluster) for cluster in plain_clusters(text)]
    assert list(split_characters(text)) == expected


@given(TOKENS, st.sampled_from(["word", "character", "mixed"]))
def test_units_equal_those_of_the_slow_twin(words, unit):
    assert list(split_units(words, unit)) == plain_units(words, unit)


@given(st.text(st.one_of(LETTERS["WITHOUT_SPACES"], st.sampled_from("手กー你")), max_size=10), st.data())
def test_spaces_between_letters_that_need_none_change_nothing(text, data):
    places = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    words = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True) if text[a:b]]
    assert split_units(words, "mixed") == split_units([text] if text else [], "mixed")


@given(TEXTS)
def test_equivalent_texts_have_the_same_characters(text):
    one, other = (split_characters(unicodedata.normalize(form, text)) for form in ("NFC", "NFD"))
    assert one == other


@given(TOKENS)
def test_no_letter_is_lost(words):
    for unit in ("word", "character", "mixed"):
        joined = unicodedata.normalize("NFD", "".join(split_units(words, unit)))
        assert joined == unicodedata.normalize("NFD", "".join(words)), unit


@pytest.mark.parametrize(
    "part", ["क्", "👩\u200d", "\u1100", "🇩", "\u0600", "e\u0301", "\u0301", "手\ufe00", "ก a"]
)
def test_time_is_linear(part):
    """Texts are untrusted. In quadratic time these would take minutes."""
    started = time.perf_counter()
    for unit in ("character", "mixed"):
        split_units((part * 30_000).split(), unit)
    assert time.perf_counter() - started < 5.0


def test_text_without_spaces_is_noticed():
    undivided = [("今天天气很好",), ("我们去北京",), ("好",)]
    found = remark_on_spacing(undivided)
    assert found.startswith("2 of 3 texts have no spaces between words")
    assert "今天天气很好" in found
    assert all(option in found for option in ("--characters", "--unit mixed"))
    assert remark_on_spacing([("ฉันชอบกาแฟ", "deadline"), ("พรุ่งนี้",)])
    assert remark_on_spacing([("ผมไปโรงเรียน",), ("ผม", "ไป", "โรงเรียน")])  # hypotheses beside references


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [()],
        [("the", "sea", "was", "calm")],
        [("今天", "天气", "很", "好"), ("我们", "去", "北京"), ("好",)],
        [("한국어", "공부"), ("मेरा", "नाम")],
        [("the", "word", "日本")] + [("plain", "text")] * 20,
    ],
)
def test_divided_text_gives_no_remark(texts):
    assert remark_on_spacing(texts) == ""


def test_tally_adds_up():
    tally = SpacingTally()
    for words in (("今天天气",), ("今天", "天气"), ("a", "b"), ()):
        tally.add(words)
    assert (tally.texts, tally.in_scripts, tally.undivided, tally.is_undivided) == (3, 2, 1, True)
