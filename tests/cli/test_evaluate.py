"""The commands ``evaluate`` and ``tune``."""

from __future__ import annotations

import json

from tests.support.list_lines import GOOD, record, write


def test_evaluate_counts_and_compares(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, out, _ = run("evaluate", source, "--json")
    report = json.loads(out)
    assert (code, report["wer"], report["oracle_wer"], report["errors"]) == (0, 40.0, 20.0, 2)
    assert set(report["groups"]) == {"s1", "s2"}
    code, out, _ = run("evaluate", source, "--bundle", bundle, "--tune", "--json")
    compared = json.loads(out)
    assert set(compared["systems"]) == {
        "first pass", "ngram", "ngram, tuned", "neural", "neural, tuned", "mixture", "mixture, tuned",
    }  # fmt: skip
    assert compared["systems"]["first pass"]["wer"] == 40.0
    assert compared["references"][str(source)]["tokens"] == 7
    run("rescore", source, "-o", tmp_path / "out.jsonl", "--bundle", bundle)
    _, out, _ = run("evaluate", tmp_path / "out.jsonl", "--json")
    rescored = json.loads(out)
    assert rescored["wer"] == compared["systems"]["mixture"]["wer"]
    assert rescored["first_pass_wer"] == 40.0


def test_evaluate_warns_if_lists_tuned_the_weights(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    assert run("tune", source, "--bundle", bundle, "-o", tmp_path / "w.json")[0] == 0
    _, _, err = run("evaluate", source, "--bundle", bundle, "--weights", tmp_path / "w.json")
    assert "weights 'w' were tuned on 2 of these 2 lists" in err
    other = write(tmp_path / "other.jsonl", record("u9", "the cat", "the mat", reference="the mat"))
    _, _, err = run("evaluate", other, "--bundle", bundle, "--weights", tmp_path / "w.json")
    assert err == ""


def test_evaluate_reads_references_from_another_file(run, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "the cat"), record("u2", "the mat"))
    trn = write(tmp_path / "ref.trn", "the cat (u1)", "the { mat / rug } (u2)")
    code, out, err = run("evaluate", source, "--reference", trn, "--json")
    assert (code, json.loads(out)["wer"], err) == (0, 0.0, "")
    part = write(tmp_path / "part.jsonl", record("u1", "the cat"))
    code, _, err = run("evaluate", part, "--reference", trn)
    assert (code, err) == (0, f"{part}: no lists for 1 of 2 references: 'u2'\n")
    kaldi = write(tmp_path / "text", "u1 the cat", "u2 the rug")
    assert json.loads(run("evaluate", source, "--reference", kaldi, "--json")[1])["wer"] == 25.0
    code, _, err = run("evaluate", source)
    assert (code, "u1" in err, "reference" in err) == (3, True, True)


def test_shows_an_id_of_each_side_if_ids_differ(run, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "the cat"), record("u2", "the mat"))
    _, _, err = run(
        "evaluate", source, "--reference", write(tmp_path / "text", "spk-u1 the cat", "u2 the mat")
    )
    assert "no lists for 1 of 2 references: 'spk-u1'; there is a list 'u1' without a reference" in err


def test_evaluate_and_tune_continue_after_invalid_lists(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", GOOD[0], record("u3", "no reference"), GOOD[1])
    for options in ((), ("--bundle", bundle)):
        code, out, err = run("evaluate", source, "--json", *options)
        report = json.loads(out)
        assert (code, report["rejected"], "'u3'" in err) == (1, 1, True)
        assert report.get("systems", {"x": report}).popitem()[1]["lists"] == 2
    code, out, _ = run("tune", source, "--bundle", bundle, "-o", tmp_path / "w.json")
    assert (code, "1 lists rejected" in out) == (0, True)


def test_summarises_many_rejected_lists(run, tmp_path):
    """Prints the first few errors of each kind and the number of others; the JSON has all of them."""
    unreferenced = [record(f"u{i}", "the cat") for i in range(100, 150)]
    source = write(
        tmp_path / "in.jsonl", *GOOD, *unreferenced, "{broken", json.dumps({"id": "e", "hypotheses": []})
    )
    code, out, err = run("evaluate", source, "--json")
    assert code == 1
    assert len(err.splitlines()) == 3 + 1 + 1 + 1
    assert all(f"'u{i}'" in err for i in (100, 101, 102))
    assert "rejected: 47 more lists for their reference; --json names them all" in err
    assert "in.jsonl:53" in err  # errors of other kinds are still visible
    report = json.loads(out)
    assert report["rejected"] == len(report["rejected_lists"]) == 52
    assert sum("no reference" in reason for reason in report["rejected_lists"]) == 50
    _, out, err = run("inspect", write(tmp_path / "bad.jsonl", GOOD[0], *["{broken"] * 9), "--json")
    assert (len(json.loads(out)["rejected_lists"]), len(err.splitlines())) == (9, 4)


def test_merged_lists_keep_their_first_pass(run, bundle, tmp_path):
    """The hypothesis that the first choice was merged into counts as the first pass."""
    first = record("u1", "the cat", "the mat", "The CAT", reference="the cat")
    scores = json.loads(first)
    for hypothesis, score in zip(scores["hypotheses"], (-1.0, -50.0, -0.5), strict=True):
        hypothesis["scores"]["acoustic"] = score
    source = write(tmp_path / "in.jsonl", json.dumps(scores))
    _, _, err = run("rescore", source, "-o", tmp_path / "out.jsonl", "--bundle", bundle, "--merge")
    assert "changed in 0" in err
    _, out, _ = run("evaluate", tmp_path / "out.jsonl", "--json")
    assert (json.loads(out)["first_pass_wer"], json.loads(out)["wer"]) == (0.0, 0.0)


def test_rescore_writes_which_hypotheses_it_dropped(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "<sil>", "the cat", ""), record("u2", "", "-"))
    output = tmp_path / "out.jsonl"
    assert run("rescore", source, "-o", output, "--bundle", bundle, "--drop-empty", "--merge")[0] == 0
    first, second = map(json.loads, output.read_text().splitlines())
    assert (first["dropped_ranks"], [h["merged_ranks"] for h in first["hypotheses"]]) == ([1, 3], [[2]])
    assert (second["dropped_ranks"], [h["original_rank"] for h in second["hypotheses"]]) == ([2], [1])


def test_evaluate_counts_like_sclite(run, tmp_path):
    source = write(
        tmp_path / "in.jsonl",
        record("u1", "b c d a", reference="d a b a c"),
        record("u2", "word on", reference="(uh) wo- on"),
    )

    def errors(*options):
        code, out, _ = run("evaluate", source, "--json", *options)
        result = json.loads(out)
        assert code == 0
        return result["counting"], result["unit"], result["errors"], result["reference_words"]

    assert errors() == ("levenshtein", "word", 6, 8)
    assert errors("--counting", "sclite") == ("sclite", "word", 7, 8)
    assert errors("--counting", "sclite", "--optional-words", "--fragments") == ("sclite", "word", 5, 8)
    assert errors("--characters") == ("levenshtein", "character", 8, 11)
    _, out, _ = run("evaluate", source, "--characters")
    assert "CER %" in out
    code, _, err = run("evaluate", source, "--fragments")
    assert (code, "count with sclite" in err) == (2, True)
