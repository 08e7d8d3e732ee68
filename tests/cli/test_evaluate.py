"""The command ``evaluate``, and what it shares with ``rescore``, ``tune`` and ``report``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.list_lines import GOOD, record, write

REPORT_KEYS = {
    "systems", "shared_lists", "other_lists", "references", "rejected", "rejected_lists", "counting", "unit",
    "normaliser", "signature", "comparisons", "verdicts", "notes", "intervals", "oracle_by_depth",
}  # fmt: skip


def test_evaluate_counts_and_compares(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, out, _ = run("evaluate", source, "--json")
    report = json.loads(out)
    assert set(report) == REPORT_KEYS
    system, oracle = report["systems"]
    assert (code, system["wer"], system["oracle_wer"], system["errors"]) == (0, 40.0, 20.0, 2)
    assert (oracle["name"], oracle["wer"]) == ("oracle", 20.0)
    assert system["name"] == system["file"] == str(source)
    assert set(system["groups"]) == {"s1", "s2"}
    code, out, _ = run("evaluate", source, "--bundle", bundle, "--tune", "--json")
    compared = json.loads(out)
    assert set(compared) == REPORT_KEYS
    systems = {system["name"]: system for system in compared["systems"]}
    assert set(systems) == {
        "first pass", "ngram", "ngram, tuned", "neural", "neural, tuned", "mixture", "mixture, tuned",
        "mixture, tuned, MBR", "oracle",
    }  # fmt: skip
    assert systems["first pass"]["wer"] == 40.0
    assert compared["references"][str(source)]["tokens"] == 7
    run("rescore", source, "-o", tmp_path / "out.jsonl", "--bundle", bundle)
    _, out, _ = run("evaluate", tmp_path / "out.jsonl", "--json")
    rescored = json.loads(out)["systems"][0]
    assert rescored["wer"] == systems["mixture"]["wer"]
    assert rescored["first_pass_wer"] == 40.0


def test_evaluate_warns_if_lists_tuned_the_weights(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    assert run("tune", source, "--bundle", bundle, "-o", tmp_path / "w.json", "--force")[0] == 0
    _, _, err = run("evaluate", source, "--bundle", bundle, "--weights", tmp_path / "w.json")
    assert "weights 'w' were tuned on 2 of these 2 lists" in err
    other = write(tmp_path / "other.jsonl", record("u9", "the cat", "the mat", reference="the mat"))
    _, _, err = run("evaluate", other, "--bundle", bundle, "--weights", tmp_path / "w.json")
    assert err == ""


def test_evaluate_reads_references_from_another_file(run, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "the cat"), record("u2", "the mat"))
    trn = write(tmp_path / "ref.trn", "the cat (u1)", "the { mat / rug } (u2)")
    code, out, err = run("evaluate", source, "--reference", trn, "--json")
    assert (code, json.loads(out)["systems"][0]["wer"], err) == (0, 0.0, "")
    part = write(tmp_path / "part.jsonl", record("u1", "the cat"))
    code, _, err = run("evaluate", part, "--reference", trn)
    assert (code, err) == (0, f"{part}: no lists for 1 of 2 references: 'u2'\n")
    kaldi = write(tmp_path / "text", "u1 the cat", "u2 the rug")
    assert json.loads(run("evaluate", source, "--reference", kaldi, "--json")[1])["systems"][0]["wer"] == 25.0
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
        assert report["systems"][-1]["lists"] == 2
    code, out, _ = run("tune", source, "--bundle", bundle, "-o", tmp_path / "w.json")
    assert (code, "1 list rejected" in out) == (1, True)


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
    assert (len(json.loads(out)["files"][0]["rejected_lists"]), len(err.splitlines())) == (9, 4)


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
    assert [json.loads(out)["systems"][0][key] for key in ("first_pass_wer", "wer")] == [0.0, 0.0]


def test_rescore_writes_which_hypotheses_it_dropped(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "<sil>", "the cat", ""), record("u2", "", "-"))
    output = tmp_path / "out.jsonl"
    assert run("rescore", source, "-o", output, "--bundle", bundle, "--drop-empty", "--merge")[0] == 0
    first, second = map(json.loads, output.read_text().splitlines())
    assert (first["dropped_ranks"], [h["merged_ranks"] for h in first["hypotheses"]]) == ([1, 3], [[2]])
    assert (second["dropped_ranks"], [h["original_rank"] for h in second["hypotheses"]]) == ([2], [1])


def test_rescore_ends_with_the_next_step(run, bundle, tmp_path):
    source, output = write(tmp_path / "in.jsonl", *GOOD), tmp_path / "out put.jsonl"
    own = ("rescore", source, "-o", output, "--bundle", bundle)
    _, _, err = run(*own)
    *_, last = err.splitlines()
    assert last.startswith(f"next: rescorer evaluate '{output}' (with --reference FILE, unless ")
    assert "next:" not in run(*own, "--quiet")[2]
    assert "next:" not in run(*own, "--json")[2]
    assert "next:" not in run("rescore", source, "--bundle", bundle)[2]


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
        system = result["systems"][0]
        return result["counting"], result["unit"], system["errors"], system["reference_words"]

    assert errors() == ("levenshtein", "word", 6, 8)
    assert errors("--counting", "sclite") == ("sclite", "word", 7, 8)
    assert errors("--counting", "sclite", "--optional-words", "--fragments") == ("sclite", "word", 5, 8)
    assert errors("--characters") == ("levenshtein", "character", 8, 11)
    _, out, _ = run("evaluate", source, "--characters")
    assert "CER %" in out
    code, _, err = run("evaluate", source, "--fragments")
    assert (code, "count with sclite" in err) == (2, True)


def test_compares_systems_on_the_lists_that_they_share(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # short names, since lines are wrapped
    tmp_path = Path()
    first = write(
        tmp_path / "first.jsonl",
        record("u1", "the cat", reference="the cat"),
        record("u2", "a b", reference="the mat"),
        record("u3", "x", reference="the mat on"),
    )
    second = write(
        tmp_path / "second.jsonl",
        record("u2", "the mat", reference="The mat."),
        record("u1", "a cat", reference="the cat"),
    )
    code, out, _ = run("evaluate", first, second)
    assert code == 0
    assert f"compared on the 2 lists that all files have; others: {first} 1, {second} 0" in out
    report = json.loads(run("evaluate", first, second, "--own-lists", "--json")[1])
    found = [(system["name"], system["lists"], system["errors"]) for system in report["systems"]]
    assert found == [(str(first), 2, 2), (str(second), 2, 1), (f"{first}, all its lists", 3, 5)]
    assert (report["shared_lists"], report["other_lists"]) == (2, {str(first): 1, str(second): 0})
    other = write(tmp_path / "other.jsonl", record("u1", "the dog", reference="the dog"))
    code, out, _ = run("evaluate", first, other)
    assert (code, "the files share no list" in out, out.count("first.jsonl")) == (0, True, 1)


def make_good(n_lists: int) -> list[str]:
    """Make lists whose first hypotheses are right, and whose second ones lack one word or three."""
    return [
        record(
            f"u{i}",
            "the cat on the mat",
            "cat on the mat" if i < 5 else "cat on",
            reference="the cat on the mat",
        )
        for i in range(n_lists)
    ]


def test_warns_if_rescoring_adds_errors(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *make_good(10))
    _, _, err = run("evaluate", source, "--bundle", bundle, "-w", "acoustic=-9")
    assert len([line for line in err.splitlines() if "rescoring adds errors" in line]) == 1
    assert "rescorer inspect" in err
    run("rescore", source, "-o", tmp_path / "out.jsonl", "--bundle", bundle, "-w", "acoustic=-9")
    assert "rescoring adds errors" in run("evaluate", tmp_path / "out.jsonl")[2]
    assert "adds errors" not in run("evaluate", source)[2]
    source = write(tmp_path / "few.jsonl", *make_good(1))  # which may be chance
    assert "adds errors" not in run("evaluate", source, "--bundle", bundle, "-w", "acoustic=-9")[2]


def test_warning_compares_each_system_with_its_own_first_pass(run, bundle, tmp_path):
    """Under --own-lists, the rows for all lists of a file have another first pass."""
    odd = [record(f"v{i}", "a cat" if i else "a", "cat", reference="the cat") for i in range(3)]
    for name, records in (("one.jsonl", make_good(10)), ("all.jsonl", [*make_good(10), *odd])):
        source = write(tmp_path / name, *records)
        run("rescore", source, "-o", tmp_path / f"out-{name}", "--bundle", bundle, "-w", "acoustic=-9")
    files = [tmp_path / "out-one.jsonl", tmp_path / "out-all.jsonl"]
    _, out, err = run("evaluate", *files, "--own-lists", "--json")
    systems = json.loads(out)["systems"]
    worse = [system for system in systems if system["wer"] > system["first_pass_wer"]]
    assert worse
    for rate in {system["first_pass_wer"] for system in worse}:
        assert f"first pass {rate:.2f} %" in err


def test_unknown_stream_of_the_first_pass_is_to_be_left_out(run, tmp_path):
    """`-w` changes other weights than those of the first pass."""
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, _, err = run("evaluate", source, "--first-pass", "acoustic=1,graph=9.5")
    assert (code, "; leave it out" in err, "`-w" in err) == (2, True, False)


def test_missing_references_name_the_option(run, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "a", "b"))
    assert "give references with --reference FILE" in run("evaluate", source)[2]


def test_names_the_weights_for_lists_with_one_mixed_score(run, bundle, tmp_path):
    """Whisper and speech services give one score, which the weights of a bundle do not name."""
    hypotheses = [{"text": "the cat", "scores": {"first_pass": -1.0}}]
    source = write(tmp_path / "in.jsonl", json.dumps({"id": "u1", "hypotheses": hypotheses}))
    err = run("rescore", source, "--bundle", bundle)[2]
    assert "`-w acoustic=0 -w first_pass=1 -w lm:mixture=0" in err


def test_evaluate_and_report_cache_scores(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    cache = tmp_path / "cache"
    commands = ["evaluate", source, "--json"], ["report", source, "-o", tmp_path / "r.json"]
    for command, *arguments in commands:
        options = ["--bundle", bundle, "--cache", cache]
        assert run(command, *arguments, *options, "--no-cache")[0] == 0
        assert not cache.exists()
        first = run(command, *arguments, *options)
        files = {path: path.read_bytes() for path in cache.iterdir()}
        assert files
        assert run(command, *arguments, *options) == first
        assert {path: path.read_bytes() for path in cache.iterdir()} == files
        shutil.rmtree(cache)
