"""Texts that toolkits left in pieces: commands name the kind, and ``--join-pieces`` makes words of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rescorer.formats.pieces import find_markup
from tests.support.sharding import write_lines

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
"""The options of all commands, on pages that are generated."""
REFERENCES = ("a broken vase", "it fell", "yes")
TEXTS = {
    "SentencePiece pieces (▁)": ("▁a ▁bro ken ▁vase", "▁it ▁f ell", "▁y es"),
    "pieces with _ at starts of words": ("_a _bro ken _vase", "_it _f ell", "_y es"),
    "WordPiece pieces (##)": ("a bro ##ken vase", "it f ##ell", "y ##es"),
    "subword-nmt pieces (@@)": ("a bro@@ ken vase", "it f@@ ell", "y@@ es"),
    "pieces with </w> at ends of words": ("a</w> bro ken</w> vase</w>", "it</w> f ell</w>", "y es</w>"),
    "byte-level pieces (Ġ)": ("a Ġbro ken Ġvase", "it Ġfell", "yes"),
    "letters with | between words": ("a | b r o k e n | v a s e |", "i t | f e l l", "y e s"),
    "letters with _ between words": ("a _ b r o k e n _ v a s e", "i t _ f e l l", "y e s"),
    "letters with <space>": ("a <space> b r o k e n <space> v a s e", "i t <space> f e l l", "y e s"),
    "Whisper's tokens (<|…|>)": ("<|en|> A broken vase.<|2.10|>", "<|en|> It fell.", "<|en|> Yes."),
    "sentence marks (<eos>)": ("a broken vase<sos/eos>", "it fell<sos/eos>", "yes <sos/eos>"),
}
GLUED = ("▁a▁broken▁vase", "▁it▁fell", "▁yes")


def write_texts(path, texts, references=REFERENCES):
    lines = [
        {"id": f"u{i}", "reference": reference, "hypotheses": [{"text": text, "scores": {"acoustic": -i}}]}
        for i, (text, reference) in enumerate(zip(texts, references, strict=True))
    ]
    return write_lines(path, list(map(json.dumps, lines)))


@pytest.mark.parametrize("name", TEXTS)
def test_inspect_names_the_kind_and_says_how_to_join(run, tmp_path, name):
    lists = write_texts(tmp_path / "in.jsonl", TEXTS[name])
    code, out, err = run("inspect", lists)
    assert (code, err) == (1, "")
    out = " ".join(out.split())
    assert f"of the hypotheses have {name}: {TEXTS[name][0]}" in out
    assert "→ Read them with --join-pieces: " in out
    assert "filler tokens" not in out.partition("WARNING")[2]  # it is said once
    code, out, err = run("inspect", lists, "--join-pieces", "--json")
    findings = json.loads(out)["files"][0]["findings"]
    assert "markup" not in {finding["code"] for finding in findings}
    assert err.startswith(f"note: {lists}: joined {name}: ")


@pytest.mark.parametrize("texts", [*TEXTS.values(), GLUED])
def test_evaluate_counts_words_once_they_are_joined(run, tmp_path, texts):
    lists = write_texts(tmp_path / "in.jsonl", texts)
    code, out, err = run("evaluate", lists, "--json")
    assert err.startswith(f"warning: {lists}: the texts have ")
    assert err.endswith("; --join-pieces makes words of them\n")
    assert err.count("\n") == 1
    code, out, _ = run("evaluate", lists, "--json", "--join-pieces")
    assert (code, json.loads(out)["systems"][0]["wer"]) == (0, 0.0)


def test_a_bundle_changes_nothing_unless_it_knows_the_pieces(run, tmp_path, ngram_bundle):
    lists = write_texts(tmp_path / "in.jsonl", ("▁the ▁ca t", "▁the ▁m at", "▁the ▁s at"))
    code, out, _ = run("inspect", lists, "--bundle", ngram_bundle)
    assert code == 1
    assert "WARNING 3 (100.0 %) of the hypotheses have SentencePiece pieces" in " ".join(out.split())


def test_unknown_pieces_are_named(run, tmp_path):
    lists = write_texts(tmp_path / "in.jsonl", ("a ⁇ vase", "it <unk>", "yes"))
    code, out, _ = run("inspect", lists)
    out = " ".join(out.split())
    assert code == 1
    assert "WARNING the hypotheses have 1 ⁇, as SentencePiece writes what it does not know" in out
    assert "remove it there. <unk> means the same: write both alike" in out
    code, out, _ = run("convert", lists, "-", "--join-pieces")
    assert [json.loads(line)["hypotheses"][0]["text"] for line in out.splitlines()] == [
        "a ⁇ vase",
        "it <unk>",
        "yes",
    ]


def test_says_when_there_is_nothing_to_join(run, tmp_path):
    lists = write_texts(tmp_path / "in.jsonl", REFERENCES)
    assert run("inspect", lists)[2] == run("evaluate", lists, "--json")[2] == ""
    code, _, err = run("evaluate", lists, "--join-pieces", "--json")
    assert (code, err) == (0, f"note: {lists}: --join-pieces found nothing to join\n")


def test_references_are_joined_by_their_own_marks(run, tmp_path):
    lists = write_texts(tmp_path / "in.jsonl", TEXTS["SentencePiece pieces (▁)"], ("?", "?", "?"))
    references = tmp_path / "refs"
    references.write_text("u0 a bro@@ ken vase\nu1 it f@@ ell\nu2 yes\n")
    options = "--reference", references, "--json", "--join-pieces"
    code, out, _ = run("evaluate", lists, *options)
    assert (code, json.loads(out)["systems"][0]["wer"]) == (0, 0.0)
    code, _, err = run("evaluate", lists, *options[:-1])
    assert f"warning: {references}: the texts have subword-nmt pieces (@@), such as 'a bro@@ ken vase'" in err
    inside = write_texts(tmp_path / "inside.jsonl", REFERENCES, TEXTS["WordPiece pieces (##)"])
    code, out, _ = run("evaluate", inside, "--join-pieces", "--json")
    assert (code, json.loads(out)["systems"][0]["wer"]) == (0, 0.0)
    code, out, _ = run("inspect", inside)
    assert code == 1
    assert "3 (100.0 %) of the references have WordPiece pieces" in " ".join(out.split())
    texts = [tmp_path / name for name in ("a", "b")]
    for path in texts:
        path.write_text("u0 ▁a ▁bro ken ▁vase\nu1 ▁it ▁f ell\nu2 ▁y es\n")
    code, out, _ = run("compare", *texts, *options)
    assert (code, [system["wer"] for system in json.loads(out)["systems"]]) == (0, [0.0, 0.0])


def test_word_times_are_joined_too(run, tmp_path):
    ctm = tmp_path / "in.ctm"
    ctm.write_text("u A 0.0 0.2 ▁a\nu A 0.2 0.1 ▁bro\nu A 0.3 0.3 ken\nu A 0.6 0.4 ▁vase\n")
    code, out, err = run("convert", ctm, "-", "--to", "ctm", "--join-pieces")
    assert code == 0, err
    assert out.splitlines() == ["u A 0.0 0.2 a", "u A 0.2 0.4 broken", "u A 0.6 0.4 vase"]
    lists = tmp_path / "in.jsonl"
    times = [{"word": "▁a", "start_s": 0.0, "duration_s": 0.2}]
    hypothesis = {"text": "▁a ▁va se", "words": times}
    lists.write_text(json.dumps({"id": "u", "hypotheses": [hypothesis]}))
    code, out, err = run("convert", lists, "-", "--join-pieces")
    assert json.loads(out)["hypotheses"] == [{"text": "a vase"}]
    assert "the field words of 1 hypothesis was left out" in err


@pytest.mark.slow
def test_shards_are_joined_as_the_whole_file(run, tmp_path, ngram_bundle):
    texts = ["t h e | c a t |"] * 30 + ["t h e"] * 30  # a part of the file that alone has no marks
    lists = write_texts(tmp_path / "in.jsonl", texts, texts)
    fixed = "--bundle", ngram_bundle, "--join-pieces"
    assert run("rescore", lists, "-o", tmp_path / "plain.jsonl", *fixed)[0] == 0
    assert run("rescore", lists, "-o", tmp_path / "out", "--shards", 4, *fixed)[0] == 0
    assert run("shards", "merge", tmp_path / "out", "-o", tmp_path / "merged.jsonl")[0] == 0
    merged = (tmp_path / "merged.jsonl").read_text()
    assert merged == (tmp_path / "plain.jsonl").read_text()
    assert [json.loads(line)["hypotheses"][0]["text"] for line in merged.splitlines()][-1] == "the"
    code, _, err = run("rescore", lists, "-o", tmp_path / "out", "--resume", *fixed[:2])
    assert code == 2
    assert "options.join_pieces was true, is null" in err


def test_a_plan_forecasts_joined_texts(run, tmp_path, ngram_bundle):
    lists = write_texts(tmp_path / "in.jsonl", ["▁the ▁c at"] * 40, ["the cat"] * 40)
    counts = []
    for options in ((), ("--join-pieces",)):
        code, out, err = run("rescore", lists, "--bundle", ngram_bundle, "--plan", "--json", *options)
        assert code == 0, err
        counts.append(json.loads(out)["words"]["value"])
    assert counts == pytest.approx([160, 120])  # with an end of sentence each


def test_every_command_that_reads_lists_joins_pieces():
    pages = [(REFERENCE / name).read_text(encoding="utf-8") for name in ("rescorer.md", "rescorer-train.md")]
    commands = {
        part.partition("\n")[0]: part
        for page in pages
        for part in page.split("\n## ")[1:]
        if "| `--map " in part
    }
    assert {"rescorer rescore", "rescorer convert", "rescorer inspect", "rescorer-train reranker"} <= set(
        commands
    )
    assert [name for name, part in commands.items() if "| `--join-pieces`" not in part] == []


def test_the_texts_here_are_what_they_are_called():
    assert [[kind.description for kind in find_markup(texts)] for texts in TEXTS.values()] == [
        [name] for name in TEXTS
    ]
