"""Merged outputs of recognisers with biasing lists, and errors counted as published."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from rescorer.text import Normaliser, NormaliserSettings
from tools.phrases.biased_errors import BiasedErrors, add_up, count_biased_errors
from tools.phrases.librispeech import (
    PARTS,
    VOTES,
    add_words,
    keep_recognisers,
    make_list,
    read_utterances,
)
from tools.phrases.systems import choose_naively

REFERENCES = [
    ("1-2-0", "call ann now", ["ann"], ["ann", "zoe", "sil"]),
    ("3-4-0", "no", [], ["kat", "yes"]),
]
OUTPUTS = {"b1": ["call an now", "no"], "s1_100": ["call ann", ""], "s2_2000": ["call an now", "yes"]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ref").mkdir()
    (tmp_path / "hyp").mkdir()
    rows = [f"{i}\t{text}\t{json.dumps(rare)}\t{json.dumps(all_)}\n" for i, text, rare, all_ in REFERENCES]
    with gzip.open(tmp_path / "ref/test-clean.biasing_100.tsv.gz", "wt") as file:
        file.writelines(rows)
    for name, texts in OUTPUTS.items():
        with gzip.open(tmp_path / f"hyp/test-clean.{name}.tsv.gz", "wt") as file:
            file.writelines(f"{row[0]}\t{text}\n" for row, text in zip(REFERENCES, texts, strict=True))
    return tmp_path


def test_merges_outputs_into_lists(folder):
    first, second = read_utterances(folder, "test-clean")
    assert (first.id, first.speaker, first.rare) == ("1-2-0", "1", {"ann"})
    assert first.votes() == {("call", "an", "now"): 2, ("call", "ann"): 1}
    assert second.votes() == {("no",): 1, (): 1, ("yes",): 1}
    nbest = make_list(first, Normaliser(NormaliserSettings.first_rules()))
    assert [hypothesis.text for hypothesis in nbest.hypotheses] == ["call an now", "call ann"]
    assert nbest.streams[VOTES] == pytest.approx((0.6931, 0.0), abs=1e-4)
    assert [phrase.text for phrase in nbest.phrases] == ["ann", "zoe"]  # "sil" is a silence
    assert choose_naively(first) == ("call", "ann")
    assert choose_naively(second) == ("yes",)
    (kept, _) = keep_recognisers([first, second], ["b1"])
    assert list(kept.outputs) == ["b1"]
    with pytest.raises(SystemExit, match="librispeech-systems"):
        read_utterances(folder, "test-other")


def test_lists_grow_by_words_of_other_lists(folder):
    utterances = read_utterances(folder, "test-clean")
    first, second = add_words(utterances, 4, seed=1)
    assert first.listed[:3] == ("ann", "zoe", "sil")
    assert (len(first.listed), len(set(first.listed))) == (4, 4)
    assert set(second.listed) < {"ann", "zoe", "sil", "kat", "yes"}
    assert len(second.listed) == 4
    assert add_words(utterances, 4, seed=1)[0].listed == first.listed
    assert add_words(utterances, 99, seed=1)[1].listed[2:] != ()


def test_counts_errors_of_biased_words():
    counts = [
        count_biased_errors(("call", "ann", "now"), ("call", "an", "now"), {"ann"}),
        count_biased_errors(("call", "ann"), ("call", "ann", "ann"), {"ann"}),
        count_biased_errors(("no",), (), {"ann"}),
        count_biased_errors(("ann",), ("ann",), {"ann"}),
    ]
    assert counts == [(1, 3, 1, 1), (1, 2, 1, 1), (1, 1, 0, 0), (0, 1, 0, 1)]
    total = add_up(counts)
    assert total == BiasedErrors(3, 7, 2, 3)
    assert total.rates() == pytest.approx({"WER": 300 / 7, "U-WER": 25.0, "B-WER": 200 / 3})


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_counts_are_the_published_ones(data_dir, part):
    """All of 11 recognisers."""
    folder = data_dir / "wer/librispeech-systems"
    utterances = read_utterances(folder, part)
    assert len(utterances[0].outputs) == 11
    for name in utterances[0].outputs:
        counts = add_up(count_biased_errors(u.reference, u.outputs[name], u.rare) for u in utterances)
        text = (folder / "published" / f"{part}.{name}.tsv.result").read_text()
        rows = re.findall(r"ref_words=(\d+), subs=(\d+), ins=(\d+), dels=(\d+)", text)
        (words, *errors), _, (biased_words, *biased_errors) = [tuple(map(int, row)) for row in rows]
        assert counts == (sum(errors), words, sum(biased_errors), biased_words)
