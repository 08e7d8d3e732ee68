"""Sets of phrases that are kept between lists."""

from __future__ import annotations

from rescorer import NBestList, Phrase
from rescorer import phrases as phrases_module
from rescorer.phrases import MAX_KEPT, PhraseFinder, compile_phrases


def split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def find(phrases: PhraseFinder, text: str):
    return phrases.find(NBestList("u", (), phrases=(Phrase(text),)), ())


def test_the_latest_sets_are_kept_within_bounds(monkeypatch):
    compiled = []
    monkeypatch.setattr(phrases_module, "MAX_KEPT_NODES", 40)
    monkeypatch.setattr(
        phrases_module, "compile_phrases", lambda p, *a: compiled.append(p) or compile_phrases(p, *a)
    )
    phrases = PhraseFinder(split, {})
    for index in range(MAX_KEPT):
        find(phrases, f"a{index} b")
    find(phrases, "a0 b")
    assert len(compiled) == MAX_KEPT
    find(phrases, "a b c d e f g h i j k l m")  # 13 nodes beside 2 × 16: those of 3 sets go
    assert len(compiled) == MAX_KEPT + 1
    find(phrases, "a0 b")
    assert len(compiled) == MAX_KEPT + 1
    find(phrases, "a1 b")
    assert len(compiled) == MAX_KEPT + 2
