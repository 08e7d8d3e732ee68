"""Toolkits' markup in texts: recognised by its structure, joined as the toolkits do, and else left alone."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.pieces import (
    BYTE_LEVEL,
    KINDS,
    LETTERS,
    LETTERS_UNDERSCORED,
    MAX_SAMPLE_LISTS,
    SENTENCEPIECE,
    SPACES,
    SUBWORD_NMT,
    UNDERSCORES,
    WORD_ENDS,
    WORDPIECE,
    JoinReport,
    ListMarkup,
    find_markup,
    join_hypothesis,
    join_lists,
    join_text,
    watch_markup,
)
from rescorer.types import Hypothesis, NBestList, Utterance

SENTENCES = {
    "English": "the sea was calm, it's 3.5 #one C++ a@b.org c# [noise] <unk> i am a well-known",
    "Buckwalter": "wqAl h*A Al|xr |n mr|p l| kr$ Al>mr Al<mr {lktAb w b | bh",
    "Maltese": "Ġorġ qal li l-Ġimgħa Ġuda ħadem ġewwa Ġeneralment u ż",
    "Arabic": "نعم لا شكرا قال هذا الكتاب",
    "Hindi": "वह गया है और वह आया",
    "Thai": "ภาษา ไทย ดี",
    "Chinese": "今 天 天 气 很 好 今天",
    "Korean": "오늘 날씨 가 좋다",
    "German": "straße über größe z. B. 3,5 %",
    "French": "l'été où ça «non» c'est",
    "Russian": "сегодня хорошая погода",
    "Turkish": "İstanbul ılık ışık",
    "transcription": "[laughs] (cough) %um wo- river(2) we_did ++noise++ !SIL {breath} <sil> </s>",
    "signs": "## @@ | _ # @ || a|b x@@y.org C## _emph_ **bold** == -> 5% $5 ~",
}
ORDINARY = st.one_of(
    [st.lists(st.sampled_from(text.split()), min_size=1, max_size=12) for text in SENTENCES.values()]
)

WORD = (
    st.text(st.sampled_from("abcdeéßñçżабвגדمنवкाि今天ไท가나ı'"), min_size=1, max_size=8)
    .map(lambda text: unicodedata.normalize("NFC", text))
    .filter(lambda text: unicodedata.category(text[0])[0] == "L")
)
WORDS = st.lists(WORD, min_size=1, max_size=6)
CUTS = st.lists(st.integers(1, 4), min_size=1, max_size=20)
"""Lengths of pieces, which are taken in turn."""


def cut(word: str, lengths: list[int]) -> list[str]:
    """Cut a word into pieces; the lengths are rotated, so that the next word is cut otherwise."""
    pieces = []
    while word:
        length = lengths.pop(0)
        lengths.append(length)
        pieces.append(word[:length])
        word = word[length:]
    return pieces


def spell(word: str) -> list[str]:
    """Letters with the marks that combine with them."""
    letters: list[str] = []
    for character in word:
        if unicodedata.category(character)[0] == "M":
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def to_byte_characters(text: str) -> str:
    """The characters of GPT-2 for the bytes of a text, as its tokenizer defines them."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = [byte for byte in range(256) if byte not in kept]
    return "".join(chr(byte if byte in kept else 256 + shifted.index(byte)) for byte in text.encode())


def segment(words, lengths, kind):
    """Write words in pieces as a toolkit does."""
    pieces = [cut(word, lengths) for word in words]
    if kind is SENTENCEPIECE:
        return " ".join("▁" + " ".join(word) for word in pieces)
    if kind is UNDERSCORES:
        return " ".join("_" + " ".join(word) for word in pieces)
    if kind is WORD_ENDS:
        return " ".join(" ".join(word) + "</w>" for word in pieces)
    if kind is WORDPIECE:
        return " ".join(" ##".join(word) for word in pieces)
    if kind is SUBWORD_NMT:
        return " ".join("@@ ".join(word) for word in pieces)
    if kind is LETTERS:
        return " | ".join(" ".join(spell(word)) for word in words) + " |"
    if kind is LETTERS_UNDERSCORED:
        return " _ ".join(" ".join(spell(word)) for word in words)
    if kind is SPACES:
        return " <space> ".join(" ".join(spell(word)) for word in words)
    assert kind is BYTE_LEVEL
    return " ".join("Ġ" + " ".join(cut(to_byte_characters(word), lengths)) for word in words)


PIECE_KINDS = [kind for kind in KINDS if kind.count is not None]


@pytest.mark.parametrize("kind", PIECE_KINDS, ids=lambda kind: kind.name)
@given(st.lists(WORDS, min_size=1, max_size=5), CUTS)
def test_joining_gives_the_words_back(kind, sentences, lengths):
    texts = [" ".join(words) for words in sentences]
    marked = [segment(words, lengths, kind) for words in sentences]
    assert [join_text(text, [kind]) for text in marked] == texts
    joined = [join_text(text, find_markup(marked)) for text in marked]
    assert find_markup(joined) == ()  # joining twice is joining once
    assert [join_text(text) for text in texts] == texts


@pytest.mark.parametrize("kind", [kind for kind in PIECE_KINDS if not kind.is_spelt])
@given(WORDS, CUTS)
def test_joining_is_idempotent_for_one_kind(kind, words, lengths):
    joined = join_text(segment(words, lengths, kind), [kind])
    assert join_text(joined, [kind]) == joined


@given(
    st.text(st.sampled_from("#@▁_|Ġab </w>")),
    st.sampled_from([WORDPIECE, SUBWORD_NMT, SENTENCEPIECE, WORD_ENDS]),
)
def test_joining_any_text_is_idempotent_and_adds_nothing(text, kind):
    joined = join_text(text, [kind])
    assert join_text(joined, [kind]) == joined
    assert not set(joined) - set(text) - {" "}
    assert re.sub(r"[^ab]", "", joined) == re.sub(r"[^ab]", "", text)


ODD = st.text(st.one_of(st.sampled_from("#@▁_|Ġ<>/ws⁇[] "), st.characters(codec=None)))


@given(ODD, st.lists(ODD, max_size=3))
def test_any_text_can_be_joined(text, others):
    joined = join_text(text, KINDS)
    assert joined == text or joined == " ".join(joined.split())
    assert join_text(text, find_markup([text, *others])) is not None


@given(WORDS, CUTS)
def test_joins_as_the_toolkits_themselves_do(words, lengths):
    twins = {
        SENTENCEPIECE: lambda text: text.replace(" ", "").replace("▁", " ").strip(),  # DecodePieces
        WORDPIECE: lambda text: text.replace(" ##", ""),  # convert_tokens_to_string
        SUBWORD_NMT: lambda text: re.sub("(@@ )|(@@ ?$)", "", text),  # the sed command of its README
        WORD_ENDS: lambda text: text.replace(" ", "").replace("</w>", " ").strip(),
        LETTERS: lambda text: text.replace(" ", "").replace("|", " ").strip(),  # fairseq's post_process
    }
    for kind, twin in twins.items():
        marked = segment(words, lengths, kind)
        assert join_text(marked, [kind]) == twin(marked)


@given(st.lists(ORDINARY.map(" ".join), min_size=1, max_size=20))
def test_ordinary_texts_have_no_markup(texts):
    assert [kind.name for kind in find_markup([*texts, *SENTENCES.values()])] == []


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_of_a_language_are_left_alone(language):
    text = SENTENCES[language]
    assert find_markup([text] * 10) == ()
    assert join_text(text) == " ".join(text.split())


@pytest.mark.parametrize(
    ("texts", "kinds", "joined"),
    [
        (["▁a ▁bro ken ▁vase"], "sentencepiece", "a broken vase"),
        (["▁a▁broken▁vase"], "sentencepiece", "a broken vase"),
        (["a bro ken ▁vase"], "sentencepiece", "abroken vase"),
        (["a ▁bro ken ▁vase"], "sentencepiece", "a broken vase"),
        (["▁ a ▁ v a s e"], "sentencepiece", "a vase"),
        (["a▁ bro ken▁ vase▁"], "sentencepiece", "a broken vase"),
        (["_a _bro ken _vase"], "underscores", "a broken vase"),
        (["a bro ##ken va ##se"], "wordpiece", "a broken vase"),
        (["[CLS] a bro ##ken vase [SEP]"], "sentence-marks wordpiece", "a broken vase"),
        (["a bro@@ ken va@@ se"], "subword-nmt", "a broken vase"),
        (["a bro@@ ken va@@"], "subword-nmt", "a broken va"),
        (["a</w> bro ken</w> vase</w>"], "word-ends", "a broken vase"),
        (["aĠbrokenĠvase"], "byte-level", "a broken vase"),
        (["Ġa Ġbro ken Ġvase"], "byte-level", "a broken vase"),
        (["Ġa Ġpo Ã« me Ġini"], "byte-level", "a poëme ini"),
        (["a | v a s e |"], "letters", "a vase"),
        (["A | V A S E"], "letters", "A VASE"),
        (["a _ v a s e"], "letters-underscored", "a vase"),
        (["| a | | v a s e |"], "letters", "a vase"),
        (["A|BROKEN|VASE|"], "letters", "A BROKEN VASE"),
        (["i t ' s | [noise] | a | v a s e |"], "letters", "it's [noise] a vase"),
        (["क ि | वा स |"], "letters", "कि वास"),
        (["a <space> v a s e"], "spaces", "a vase"),
        (["a<space>vase"], "spaces", "a vase"),
        (["<|startoftranscript|><|de|><|0.00|> A vase.<|2.40|><|endoftext|>"], "whisper", "A vase."),
        (["<|startofprev|> Of clay.<|startoftranscript|><|en|> A vase."], "whisper", "A vase."),
        (["A vase.<|1.00|><|1.00|>It broke."], "whisper", "A vase. It broke."),
        (["a vase<sos/eos>"], "sentence-marks", "a vase"),
        (["<sos/eos> a vase <#s>"], "sentence-marks", "a vase"),
        (["a vase</s>"], "sentence-marks", "a vase"),
        (["<|en|> ▁a ▁bro ken ▁vase </s>"], "whisper sentencepiece", "a broken vase </s>"),
        (["▁a ▁bro <unk> ken ▁vase"], "sentencepiece", "a bro <unk> ken vase"),
        (["▁a▁⁇▁vase"], "sentencepiece", "a ⁇ vase"),
        (["a [UNK] bro ##ken"], "wordpiece", "a [UNK] broken"),
        (["v a <unk> e | a |"], "letters", "va <unk> e a"),
        (["</s> a vase <s>"], "", "</s> a vase <s>"),
        (["a ⁇ vase"], "", "a ⁇ vase"),
        (["a drawing ▁▂▃▅"], "", "a drawing ▁▂▃▅"),
        (["fill in ▁▁▁▁"], "", "fill in ▁▁▁▁"),
        (["Il Ġuda"], "", "Il Ġuda"),
        (["x | y"], "", "x | y"),
        (["the | cat | sat"], "", "the | cat | sat"),
    ],
)  # fmt: skip
def test_recognises_and_joins(texts, kinds, joined):
    found = find_markup(texts)
    assert " ".join(kind.name for kind in found) == kinds
    assert join_text(texts[0], found) == join_text(texts[0]) == joined


def test_rare_marks_count_only_where_there_are_enough():
    ordinary = ["a clay vase broke on the floor of the old house"] * 100
    assert find_markup([*ordinary, "a ##vase"]) == find_markup([*ordinary, "we @@ a va@@ se"]) == ()
    assert find_markup([*ordinary, "▁a ▁vase"]) == find_markup([*ordinary, "a | v a s e |"]) == ()
    assert find_markup([*ordinary, *["the po ##t broke"] * 10]) == (WORDPIECE,)
    assert find_markup([*["##1 a vase"] * 10, "the po ##t"]) == ()  # numbers of lines


def test_letters_without_a_mark_are_one_word_only_in_a_file_of_letters():
    assert join_text("y e s", [LETTERS]) == join_text("y e s", [SPACES]) == "yes"
    assert join_text("y e s") == join_text("y e s", [WORDPIECE]) == "y e s"


def times(*words, confidence=True):
    return [
        {
            "word": word,
            "start_s": i / 2,
            "duration_s": 0.5,
            **({"confidence": 1 - i / 8} if confidence else {}),
        }
        for i, word in enumerate(words)
    ]


@pytest.mark.parametrize("kind", PIECE_KINDS, ids=lambda kind: kind.name)
@given(WORDS, CUTS)
def test_word_times_are_joined_like_the_words(kind, words, lengths):
    marked = segment(words, lengths, kind)
    made = join_hypothesis(Hypothesis(marked, {"words": times(*marked.split()), "nwords": 99}), [kind])
    assert made.text == " ".join(words)
    entries = made.fields["words"] if made.text != marked else times(*words)
    assert [entry["word"] for entry in entries] == words
    if made.text != marked:
        assert made.fields["nwords"] == len(words)
    ends = [entry["start_s"] + entry["duration_s"] for entry in entries]
    assert all(end <= entry["start_s"] for end, entry in zip(ends, entries[1:], strict=False))


def test_a_word_lasts_from_its_first_piece_to_its_last_and_is_as_certain_as_the_least_certain():
    entries = times("▁a", "▁bro", "ken", "▁vase")
    made = join_hypothesis(Hypothesis("▁a ▁bro ken ▁vase", {"words": entries, "n": 1}), [SENTENCEPIECE])
    assert made.fields["n"] == 1
    assert made.fields["words"][1] == {
        "word": "broken",
        "start_s": 0.5,
        "duration_s": 1.0,
        "confidence": 0.75,
    }
    assert made.fields["words"][2] == {**entries[3], "word": "vase"}


@pytest.mark.parametrize(
    "words",
    [times("▁a", "▁vase"), times("▁a", "▁bro", "ken", "▁vase", "▁x"), [*times("▁a"), {"word": 1}], "a", [3]],
)
def test_word_times_that_do_not_fit_are_left_out(words):
    lists = [NBestList("u", (Hypothesis("▁a ▁bro ken ▁vase", {"words": words, "n": 1}), Hypothesis("▁x y")))]
    report = Recorded()
    (made,) = join_lists(iter(lists), report)
    assert made.hypotheses == (Hypothesis("a broken vase", {"n": 1}), Hypothesis("xy"))
    assert report.told[1:] == [("lost_times", 1)]


class Recorded(JoinReport):
    """Keeps the calls in their order."""

    def __init__(self):
        self.told = []

    def joined(self, found):
        self.told.append(("joined", [item.kind for item in found]))

    def lost_times(self, count):
        self.told.append(("lost_times", count))

    def left(self, found):
        self.told.append(("left", [item.kind for item in found]))


def test_whole_lists_are_joined():
    nbest = NBestList(
        "u", (Hypothesis("▁a ▁va se"),), {"am": (-1.0,)}, "▁o n", "a va@@ se", "g", {"k": "▁x"},
        previous=(Utterance("▁he llo", "bob"),),
    )  # fmt: skip
    assert list(join_lists(iter([nbest]))) == [
        NBestList(
            "u", (Hypothesis("a vase"),), {"am": (-1.0,)}, "on", "a vase", "g", {"k": "▁x"},
            previous=(Utterance("hello", "bob"),),
        )
    ]  # fmt: skip
    plain = NBestList("u", (Hypothesis("a  vase"),))
    assert list(join_lists(iter([plain]))) == [plain]


def test_errors_stay_where_they_are():
    good, bad = NBestList("u", (Hypothesis("▁a ▁va se"),)), InvalidList("odd")

    def read():
        yield good
        yield bad
        raise FormatError("broken")

    joined = join_lists(read())
    assert next(joined).hypotheses[0].text == "a vase"
    assert next(joined) is bad
    with pytest.raises(FormatError):
        next(joined)


def test_the_first_lists_decide():
    texts = ["▁a ▁va se"] * MAX_SAMPLE_LISTS + ["va ##se", "▁va se"]  # one of 1,000 is no structure
    lists = [NBestList(str(i), (Hypothesis(text),)) for i, text in enumerate(texts)]
    report = Recorded()
    joined = [item.hypotheses[0].text for item in join_lists(iter(lists), report)]
    assert joined[-2:] == ["va ##se", "vase"]
    assert report.told == [("joined", [SENTENCEPIECE])]
    markup = ListMarkup()
    markup.add(lists[-2])
    (made,) = join_lists(iter([lists[-2]]), markup=markup)
    assert made.hypotheses[0].text == "vase"


def test_what_the_first_lists_do_not_have_is_reported():
    texts = ["▁a ▁va se"] * MAX_SAMPLE_LISTS + ["va ##se"] * MAX_SAMPLE_LISTS + ["a vase<eos>"]
    lists = [NBestList(str(i), (Hypothesis(text),)) for i, text in enumerate(texts)]
    report = Recorded()
    joined = [item.hypotheses[0].text for item in join_lists(iter(lists), report)]
    assert joined[-2:] == ["va ##se", "a vase"]  # marks that are not words are removed everywhere
    assert report.told == [("joined", [SENTENCEPIECE]), ("left", [WORDPIECE])]


def test_watching_reports_once():
    lists = [NBestList("u", (Hypothesis("▁a ▁va se"),))] * (MAX_SAMPLE_LISTS + 10)
    for n in (3, len(lists)):
        reports = []
        assert list(watch_markup(iter(lists[:n]), reports.append)) == lists[:n]
        assert [[found.kind for found in report] for report in reports] == [[SENTENCEPIECE]]
    reports = []
    watched = watch_markup(iter(lists), reports.append)
    next(watched)
    watched.close()  # as where a command looks at the first lists only
    assert len(reports) == 1
