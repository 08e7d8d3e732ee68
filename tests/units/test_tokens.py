"""Tokenizers of other toolkits on odd texts and odd files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rescorer.errors import BundleError, InputError
from rescorer.units import tokens
from rescorer.units.gguf import CONTROL, USER_DEFINED, GgufFile
from rescorer.units.tokens import JsonTokenizer, SentencePieceTokenizer, WordDivider
from rescorer.units.toolkits import _write_tokenizer
from tests.support.unit_models import PEER_MODELS, LetterTokenizer

pytest.importorskip("tokenizers")
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
LETTERS = {letter: number for number, letter in enumerate("</s>abĠ ▁", start=2)}
VOCABULARY = {"<unk>": 0, "</s>": 1, **{letter: 2 + i for i, letter in enumerate(dict.fromkeys(LETTERS))}}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPACES = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
UNIGRAM = [[piece, -1.0] for piece in VOCABULARY]
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bpe": ({"type": "BPE", "vocab": VOCABULARY, "merges": [], "unk_token": "<unk>"}, BYTES),
    "words": (
        {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "<unk>"}, {"type": "WhitespaceSplit"}
    ),
    "unigram": ({"type": "Unigram", "vocab": UNIGRAM, "unk_id": 0}, SPACES),
}  # fmt: skip


def write(model, pre_tokenizer, special=("<unk>", "</s>")):
    """A tokenizer in the form of ``tokenizers``."""
    added = [{"id": VOCABULARY[name], "content": name, "special": True, **FLAGS} for name in special]
    return json.dumps(
        {"version": "1.0", "added_tokens": added, "pre_tokenizer": pre_tokenizer, "model": model}
    ).encode()


HARMLESS = (
    r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s]+[\r\n/]*",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|(?=(\d{3})+(?!\d))|(?:\r?\n)+| {2,}|[()*+]+",
)
ENDLESS = (
    r"(a+)+b",
    r"(?:\w+\s?)*$",
    r"(x|x|xx)*y",
    r"(([a-z ])+.)+[A-Z]",
    r"(?:a{1,500}){2,}",
    r"((?:b*)c)+",
)


def with_steps(**steps):
    return json.dumps(json.loads(write(*KINDS["bpe"])) | steps).encode()


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def test_patterns_that_may_take_for_ever_are_refused():
    for pattern in HARMLESS:
        JsonTokenizer(with_steps(pre_tokenizer=split(pattern)), "t.json").encode(["ab 12345 (a)"])
    for pattern in ENDLESS:
        with pytest.raises(BundleError, match=r"t.json: the pattern .* repeats what repeats"):
            JsonTokenizer(with_steps(pre_tokenizer=split(pattern)), "t.json")


def test_texts_may_not_grow_without_bounds():
    def replacing(content, pattern):
        return {"type": "Replace", "pattern": pattern, "content": content}

    space = replacing("▁", {"String": " "})
    JsonTokenizer(with_steps(normalizer={"type": "Sequence", "normalizers": [space] * 50}), "t.json")
    for step, times in ((replacing("a" * 99, {"String": "a"}), 5), (replacing("aa", {"Regex": "."}), 9)):
        with pytest.raises(BundleError, match=r"t.json: its normalizer may make texts .* times as long"):
            JsonTokenizer(
                with_steps(normalizer={"type": "Sequence", "normalizers": [step] * times}), "t.json"
            )
    added = [{"id": 9, "content": "q" * 2000, "special": True, **FLAGS}]
    with pytest.raises(BundleError, match="an added unit has more than 1,000 characters"):
        JsonTokenizer(with_steps(added_tokens=added), "t.json")


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_cannot_contain_special_units(kind):
    tokenizer = JsonTokenizer(write(*KINDS[kind]), kind)
    end = tokenizer.find("</s>")
    assert end == 1
    for text in ("a </s> b", "</s>", "a</s>b"):
        (units,) = tokenizer.encode([text])
        assert units, text
        assert end not in units, text


@pytest.mark.parametrize(
    "text", ["\ud83d", "a \udfff b", "\x00", "\u2028", "\u0301", "\U0001f469\u200d\U0001f467", "e" * 999]
)
def test_every_text_can_be_divided(text):
    for kind, parts in KINDS.items():
        divider = WordDivider(JsonTokenizer(write(*parts), kind))
        for after_space in (False, True):
            assert len(divider.divide([text, ""], after_space=after_space)) == 2
    pytest.importorskip("sentencepiece")
    path = PEER_MODELS / "toolkits" / "icefall" / "bpe.model"
    (units,) = SentencePieceTokenizer(path.read_bytes(), "icefall").encode([f"A {text}"])
    assert units


def test_a_pattern_that_takes_too_long_fails_for_its_text_only():
    tokenizer = JsonTokenizer(with_steps(pre_tokenizer=split("x*" * 8 + "y")), "bomb")
    with pytest.raises(InputError, match="cannot be divided into pieces of words"):
        tokenizer.encode(["x" * 60 + "zy"])
    assert tokenizer.encode(["ab"]) != [[]]


def test_a_word_of_espnet_cannot_end_a_sentence():
    tokenizer = JsonTokenizer(_write_tokenizer("word", ["<blank>", "<unk>", "a", "<sos/eos>"]), "espnet")
    assert tokenizer.encode(["a <sos/eos> <blank> a"]) == [[2, 1, 1, 2]]
    assert tokenizer.find("<sos/eos>") == 3


def test_units_that_users_defined_are_part_of_texts():
    file = object.__new__(GgufFile)
    file.values = {
        "tokenizer.ggml.tokens": ["a", "</s>", "<think>"],
        "tokenizer.ggml.token_type": [1, CONTROL, USER_DEFINED],
    }
    assert [(one["content"], one["special"]) for one in file._special_units()] == [
        ("</s>", True), ("<think>", False),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["words", "unigram"])
def test_refuses_tokenizers_that_cannot_divide_every_text(kind):
    model, pre_tokenizer = KINDS[kind]
    model = {**model, "unk_token": "[UNK]"} if kind == "words" else {**model, "unk_id": None}
    with pytest.raises(BundleError, match="with a unit for what is unknown"):
        JsonTokenizer(write(model, pre_tokenizer, ()), kind)


def test_the_size_of_a_tokenizer_counts_gaps_between_numbers():
    model, pre_tokenizer = KINDS["words"]
    sparse = {**model, "vocab": {**VOCABULARY, "b": 900}}
    assert JsonTokenizer(write(sparse, pre_tokenizer), "sparse").size == 901
    far = {**model, "vocab": {**VOCABULARY, "b": 4_000_000_000}}
    with pytest.raises(BundleError, match="has the unit 4,000,000,000; expected numbers below 1,000,000"):
        JsonTokenizer(write(far, pre_tokenizer), "far")


def test_the_cache_of_units_is_bounded_whatever_the_words_are_like(monkeypatch):
    monkeypatch.setattr(tokens, "MAX_CACHED", 1000)
    divider, tokenizer = WordDivider(LetterTokenizer()), LetterTokenizer()
    for number in range(40):
        words = [str(number) * 50, str(number) * 10, "ab", str(number) * 2000 * (number % 7 == 0)]
        assert divider.divide(words, after_space=False) == tokenizer.encode(words)
        kept = divider._known[False]
        size = sum(len(word) + len(units) + tokens.ENTRY_SIZE for word, units in kept.items())
        assert size == divider._sizes[False] <= 1000
