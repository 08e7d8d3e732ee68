"""The command ``tune``, and ``evaluate`` with the same options."""

from __future__ import annotations

import json

from tests.support.list_lines import GOOD, record, write


def tuning_lists(path, group=None):
    """Lists whose language models are right and whose acoustic scores are wrong."""
    lists = []
    for i in range(12):
        nbest = json.loads(record(f"spk-{i}", "mat sat the", "the cat sat", reference="the cat sat"))
        nbest["reference"] = f"the cat sat {'x ' * i}"
        for hypothesis, score in zip(nbest["hypotheses"], (-1.0, -3.0), strict=True):
            hypothesis["scores"]["acoustic"] = score
        lists.append(json.dumps(nbest | ({"group": group} if group else {})))
    return write(path, *lists)


def test_tuning_divides_lists_without_groups_by_id(run, ngram_bundle, tmp_path):
    source, weights = tuning_lists(tmp_path / "in.jsonl"), tmp_path / "w.json"
    start = ("--bundle", ngram_bundle, "-w", "lm:mixture=0.1")
    code, out, _ = run("tune", source, *start, "-o", weights)
    assert (code, "5 folds by id, because the lists have no groups, or only one" in out) == (0, True)
    assert run("evaluate", source, *start, "--tune")[0] == 0
    one_speaker = tuning_lists(tmp_path / "one.jsonl", "s1")
    code, out, _ = run("tune", one_speaker, *start, "-o", weights)
    assert (code, "5 folds by id" in out) == (0, True)
    code, out, _ = run("tune", source, *start, "-o", weights, "--groups", r"-(\d+)")
    assert (code, "5 folds of 12 units by group" in out) == (0, True)
    for pattern, message in (
        ("^(spk)", "all 12 lists are of the group 'spk'"),
        ("^(x)", "no list gets a group"),
    ):
        code, _, err = run("tune", source, *start, "-o", weights, "--groups", pattern)
        assert (code, message in err, "omit --groups" in err) == (2, True, True)


def test_merges_and_drops_in_evaluation_and_tuning(run, ngram_bundle, tmp_path):
    """Three hypotheses with the same words have more probability together than the best one, and the empty
    hypothesis, which has the best score, is dropped."""
    lists = []
    for i in range(4):
        texts = ("", "zebra", "the mat", "The mat", "the mat!")
        nbest = json.loads(record(f"u{i}", *texts, reference=f"the mat {'x ' * i}", group=f"g{i}"))
        for hypothesis, score in zip(nbest["hypotheses"], (0.0, -1.0, -1.5, -1.5, -1.5), strict=True):
            hypothesis["scores"]["acoustic"] = score
        lists.append(json.dumps(nbest))
    source = write(tmp_path / "in.jsonl", *lists)

    def errors(*options):
        code, out, err = run("evaluate", source, "--json", *options)
        assert code == 0, err
        return {system["name"]: system["errors"] for system in json.loads(out)["systems"]}

    expected_extra = 0 + 1 + 2 + 3  # reference words that no hypothesis has
    assert errors() == {
        str(source): 8 + expected_extra,
        "empty left out": 8 + expected_extra,
        "merged, empty left out": expected_extra,
        "oracle": expected_extra,
    }
    assert errors("--drop-empty")[str(source)] == 8 + expected_extra  # "zebra" is not better
    scored = ("--first-pass", "acoustic=1,word=0")
    assert errors("--drop-empty", "--merge", *scored)[str(source)] == expected_extra
    assert errors("--merge", "--first-pass", "acoustic=1,word=5")[str(source)] == expected_extra
    streams = ("--bundle", ngram_bundle, "-w", "lm:mixture=0")
    both = errors(*streams, "--merge", "--drop-empty")
    assert both["first pass"] == 8 + expected_extra
    assert both["merged, empty left out"] == both["ngram"] == expected_extra
    assert errors(*streams)["ngram"] == 8 + expected_extra
    code, out, _ = run("tune", source, *streams, "--merge", "--drop-empty", "-o", tmp_path / "w.json")
    rows = [line for line in out.splitlines() if line.startswith(("before", "first pass, m"))]
    assert (code, len(rows)) == (0, 2)
    code, _, err = run("evaluate", source, "--merge")
    assert (code, "give the scores with --first-pass" in err) == (2, True)


def test_tune_keeps_the_start_unless_forced(run, ngram_bundle, tmp_path):
    """Two lists prove nothing; weights that were written all the same say how they were made."""
    source, output = write(tmp_path / "in.jsonl", *GOOD), tmp_path / "w.json"
    start = ("--bundle", ngram_bundle, "-w", "lm:mixture=0.5", "-w", "empty=-2", "--drop-empty")
    code, out, _ = run("tune", source, *start, "-o", output, "--json")
    report, kept = json.loads(out), json.loads(output.read_text())
    assert (code, report["changed"], report["written"]) == (0, False, "start")
    assert report["reason"].startswith("the start is kept")
    assert (kept["lm"], kept["empty"], kept["tuned_on"]) == ({"mixture": 0.5}, -2.0, [])
    code, out, _ = run("tune", source, *start, "-o", output, "--force", "--free", "lm,word")
    assert code == 0
    assert "the start is not kept, because of --force" in out
    forced = json.loads(output.read_text())
    assert forced["tuned_with"] == {"merge": False, "drop_empty": True}
    assert len(forced["tuned_on"]) == 2
    assert {"wer", "start_wer", "gain"} <= set(forced["held_out"])
    for command in (("rescore", source, "-o", tmp_path / "out.jsonl"), ("evaluate", source)):
        _, _, err = run(*command, "--bundle", ngram_bundle, "--weights", output)
        assert "were tuned with --drop-empty and are used without it" in err
        _, _, err = run(*command, "--bundle", ngram_bundle, "--weights", output, "--drop-empty")
        assert "--drop-empty" not in err
    code, _, err = run("tune", source, *start, "-o", output, "--free", "wrod")
    assert (code, "did you mean 'word'" in err) == (2, True)
