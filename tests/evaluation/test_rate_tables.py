"""Tables of error rates, tables for papers, and signatures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.evaluation.error_rate import CountingSettings
from rescorer.evaluation.rate_tables import COLUMNS, GAIN_COLUMNS, Signature, parse_columns, tabulate
from rescorer.text import NormaliserSettings
from tests.support.list_lines import record, write

WORDS = st.lists(st.sampled_from(["a", "b", "to", "tö"]), max_size=3).map(tuple)
KEYS = st.lists(st.tuples(st.text(max_size=3), WORDS, st.integers(0, 2)), max_size=6)
SETTINGS = NormaliserSettings()


def make(keys, counting=None, settings=SETTINGS):
    return Signature.make(counting or CountingSettings(), settings, keys)


@given(keys=KEYS, data=st.data())
def test_signatures_ignore_order_and_ids_and_come_back_from_text(keys, data):
    signature = make(keys)
    shuffled = data.draw(st.permutations(keys))
    assert make([(f"new-{i}", words, 0) for i, (_, words, _) in enumerate(shuffled)]) == signature
    assert Signature.parse(str(signature)) == signature
    assert signature.check(signature) == ""


@given(keys=KEYS, others=KEYS)
def test_signatures_differ_if_references_do(keys, others):
    same = sorted(words for _, words, _ in keys) == sorted(words for _, words, _ in others)
    assert (make(keys) == make(others)) == same


def test_a_signature_names_what_differs():
    keys = [("u1", ("to", "be"), 0)]
    mine, other = make(keys), make(keys, CountingSettings("sclite", "word", fragments=True))
    assert str(other).startswith("WER|count:sclite+fragments|text:rules-2|lists:1|refs:")
    with pytest.raises(ConfigError, match=r"count is levenshtein here, sclite\+fragments there$"):
        mine.check(other)
    changed = make(keys, settings=replace(SETTINGS, hyphens="keep"))
    with pytest.raises(ConfigError, match=r"text is rules-2 here, rules-2-[0-9a-f]{8} there"):
        mine.check(changed)
    assert mine.check(replace(mine, version="0.1")) == f"version is {mine.version} here, 0.1 there"
    for text in ("", "WER", "WER|count:a", str(mine) + "|more:1", str(mine).replace("count", "cuont")):
        with pytest.raises(ConfigError, match=r"expected WER\|count:…\|text:…\|lists:…\|refs:…\|version:…"):
            Signature.parse(text)


def test_columns():
    assert parse_columns("SER, oracle,ser") == ("ser", "oracle")
    assert set(parse_columns("all")) == {*COLUMNS, *GAIN_COLUMNS}
    with pytest.raises(ConfigError, match="did you mean 'oracle'"):
        parse_columns("oracel")
    assert tabulate({}, "word").headings == ()


@pytest.fixture
def files(tmp_path):
    """Texts of two systems and the references, in lines with ids and as plain sentences."""
    texts = {
        "ref": [f"the cat sat on mat {n}" for n in range(30)],
        "a": [f"the cat sad on mat {n}" for n in range(30)],
        "b": [f"the cat sat on mat {n if n > 5 else 'x'}" for n in range(30)],
    }
    for name, lines in texts.items():
        write(tmp_path / f"{name}.txt", *lines)
        write(tmp_path / f"{name}.kaldi", *(f"u{n} {line}" for n, line in enumerate(lines)))
        write(tmp_path / f"{name}.trn", *(f"{line} (u{n})" for n, line in enumerate(lines)))
    return tmp_path


@pytest.mark.parametrize(("end", "reference"), [("txt", "txt"), ("kaldi", "kaldi"), ("trn", "kaldi")])
def test_one_file_of_texts_has_an_error_rate_without_a_first_pass(run, files, end, reference):
    code, out, err = run("evaluate", files / f"a.{end}", "--reference", files / f"ref.{reference}")
    lines = out.splitlines()
    assert (code, "by order" in err, lines[0].strip()) == (0, end == "txt", "30 lists, 180 words")
    assert lines[1].split() == ["system", "WER", "%", "interval", "sub/del/ins"]
    assert lines[2].split()[:2] == [f"a.{end}", "16.67"]
    assert "oracle" not in out
    assert "gain" not in out


def test_several_files_are_tested_against_the_first(run, files):
    names = f"base={files / 'a.trn'}", f"ours={files / 'b.trn'}"
    code, out, _ = run("evaluate", *names, "--reference", files / "ref.trn")
    assert code == 0
    assert "ours has 13.33 ± " in out
    assert "points fewer errors than base: more than chance (p < 0.001)" in out
    command = f"rescorer compare {' '.join(names)} --reference {files / 'ref.trn'}"
    assert command in " ".join(out.split())
    options = (*names, "--reference", files / "ref.trn", "--json")
    (found,) = json.loads(run("evaluate", *options)[1])["comparisons"]
    assert (found["baseline"], found["system"], found["gain"]) == ("base", "ours", 13.33)
    compared = json.loads(run("compare", *options)[1])
    assert found["gain_interval"] == compared["pairs"][0]["gain_interval"]


def test_checks_a_signature(run, files):
    own = ("evaluate", files / "a.trn", "--reference", files / "ref.trn")
    signature = json.loads(run(*own, "--json")[1])["signature"]
    assert run(*own, "--signature", signature)[0] == 0
    plain = ("evaluate", files / "b.txt", "--reference", files / "ref.txt")
    assert run(*plain, "--signature", signature)[0] == 0
    code, _, err = run(*own, "--signature", signature, "--characters")
    assert (code, "rate is CER here, WER there" in err) == (2, True)
    other = write(files / "other.trn", *(f"the dog (u{n})" for n in range(30)))
    code, _, err = run("evaluate", files / "a.trn", "--reference", other, "--signature", signature)
    assert (code, "refs is " in err) == (2, True)
    code, _, err = run(*own, "--signature", signature.rpartition(":")[0] + ":0.1")
    assert (code, "note: --signature: version is" in err) == (0, True)
    lists = write(files / "l.jsonl", record("u1", "a", reference="a b"))
    apart = write(files / "m.jsonl", record("u2", "a", reference="a c"))
    code, _, err = run("evaluate", lists, apart, "--signature", signature)
    assert (code, "share no list" in err) == (2, True)
