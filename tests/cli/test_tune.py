"""The command ``tune``, and ``evaluate`` with the same options."""

from __future__ import annotations

import json
import random

from rescorer.pipeline import Rescorer
from rescorer.text import Normaliser
from rescorer.types import Weights
from rescorer_training.recipe.bundles import BundleParts, make_bundle
from tests.support.list_lines import GOOD, record, write
from tests.support.tiny_models import ARPA, write_arpa


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
    assert (kept["name"], kept["lm"], kept["empty"]) == ("start (kept)", {"mixture": 0.5}, -2.0)
    assert kept["tuned_on"] == []
    assert report["start_over_first_pass"]["gain"] is not None
    assert (
        "nothing shows that the start is good for these models: it was never tuned" in report["start_remark"]
    )
    code, out, _ = run("tune", source, *start, "-o", output)
    first, second, third = out.splitlines()[:3]
    assert first.startswith("verdict: the start is kept")
    assert "--force writes the tuned ones" in second
    assert "start from the first pass, `-w lm:mixture=0`" in third
    code, out, _ = run("tune", source, *start, "-o", output, "--force", "--free", "lm,word")
    assert code == 0
    assert out.startswith("verdict: the start is not kept, because of --force")
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


def lists_of_names(path, n_lists=40, said=20, phrases=("mat",)):
    """Lists whose second hypothesis has a name, which was said in the first ones; later ones are sure."""
    lists = []
    for i in range(n_lists):
        word = "mat" if i < said else "cat"
        nbest = json.loads(record(f"u{i}", "the cat", "the mat", reference=f"the {word} {'x ' * i}"))
        margin = 1.0 if i < said else 6.0 + i / 10
        for hypothesis, score in zip(nbest["hypotheses"], (margin, 0.0), strict=True):
            hypothesis["scores"]["acoustic"] = score
        lists.append(json.dumps(nbest | {"phrases": list(phrases)}))
    return write(path, *lists)


def test_tunes_the_weight_of_phrases_within_a_bound(run, ngram_bundle, tmp_path):
    source, output = lists_of_names(tmp_path / "in.jsonl"), tmp_path / "w.json"
    start = ("--bundle", ngram_bundle, "-w", "lm:mixture=0", "-w", "phrases=0.1")
    code, out, err = run("tune", source, *start, "-o", output, "--free", "phrases")
    assert (code, err) == (0, "")
    assert (
        "phrases: 40 in 40 lists, 20 of them said; some that were not said occur in the hypotheses of 20"
        in out
    )
    assert "at most 0.5 % of the tuning lists are allowed" in out
    assert 1.0 < json.loads(output.read_text())["phrases"] < 8.0
    code, out, _ = run("tune", source, *start, "-o", output, "--json", "--max-false-alarms", "50")
    report = json.loads(out)
    assert (code, report["false_alarms"]["max_false_alarms"], report["false_alarms"]["said"]) == (0, 50, 20)
    assert report["weights"]["phrases"]["start"] == 0.1
    code, out, _ = run("tune", source, *start, "-o", output, "--free", "word")
    assert (code, "false alarms" in out) == (0, False)


def test_tunes_the_weight_of_phrases_that_all_lists_share(run, ngram_bundle, tmp_path):
    source, output = lists_of_names(tmp_path / "in.jsonl", phrases=()), tmp_path / "w.json"
    names = write(tmp_path / "names.txt", "mat", "nobody")
    start = ("--bundle", ngram_bundle, "-w", "lm:mixture=0", "-w", "phrases=0.1")
    code, out, _ = run("tune", source, *start, "-o", output, "--phrases", names)
    assert (code, "phrases: 80 in 40 lists, 20 of them said" in out) == (0, True)
    assert 1.0 < json.loads(output.read_text())["phrases"] < 8.0


def test_a_weight_of_phrases_that_over_boosts_is_lowered_with_a_warning(run, ngram_bundle, tmp_path):
    source, output = lists_of_names(tmp_path / "in.jsonl"), tmp_path / "w.json"
    start = ("--bundle", ngram_bundle, "-w", "lm:mixture=0", "-w", "phrases=90")
    code, _, err = run("tune", source, *start, "-o", output)
    assert (code, "the weight of phrases, 90, over-boosts" in err) == (0, True)
    assert "make 20 of 40 lists (50.00 %) worse; tuning starts from" in err
    assert 1.0 < json.loads(output.read_text())["phrases"] < 8.5
    code, _, err = run("evaluate", source, *start)
    assert (code, "make 20 of 40 lists (50.00 %) worse; `rescorer tune` finds" in err) == (0, True)
    _, _, err = run("evaluate", source, "--bundle", ngram_bundle, "--weights", output)
    assert "over-boosts" not in err


def test_warns_if_most_phrases_were_said(run, ngram_bundle, tmp_path):
    source, output = lists_of_names(tmp_path / "in.jsonl", said=30), tmp_path / "w.json"
    _, out, _ = run("tune", source, "--bundle", ngram_bundle, "-w", "lm:mixture=0", "-o", output)
    assert "most of the phrases of these lists were said" in out


def test_distractors_bound_the_weight_of_lists_without_phrases(run, ngram_bundle, tmp_path):
    source, output = tuning_lists(tmp_path / "in.jsonl"), tmp_path / "w.json"
    start = ("tune", source, "--bundle", ngram_bundle, "-o", output)
    code, out, err = run(*start, "--distractors", "5", "-w", "phrases=50")
    assert (code, " distractors" in out, "over-boosts" in err) == (0, True, True)
    assert json.loads(output.read_text())["phrases"] < 50
    code, _, err = run(*start, "--max-false-alarms", "5")
    assert (code, "but no list has phrases" in err) == (2, True)
    code, _, err = run(*start, "--distractors", "5", "--free", "word")
    assert (code, "but --free does not name it" in err) == (2, True)
    assert run(*start)[0] == 0
    assert "phrases" not in json.loads(output.read_text())


def test_finds_the_negative_weight_of_a_model_that_the_recogniser_has_in_it(run, tmp_path):
    """The acoustic scores contain the log-probability of the low-order model, which says nothing about what
    was said (Zheng et al. 2022)."""
    arpa = write_arpa(tmp_path)
    (tmp_path / "low.arpa").write_text(
        ARPA.replace("-1.6\tzebra", "-0.4\tzebra").replace("-0.9\tthe", "-2.9\tthe")
    )
    parts = BundleParts(
        name="two", version=1, ngrams={"ngram": arpa, "low": tmp_path / "low.arpa"}, networks={},
        weights=Weights("default", {"acoustic": 1.0}, {"mixture": 0.0}, mixture={"low": 0.0}),
        normaliser=Normaliser(),
        validation=write(tmp_path / "valid.txt", "the cat sat"), tests={},
    )  # fmt: skip
    make_bundle(parts, tmp_path / "two" / "1")
    draw, words = random.Random(1), ["the", "cat", "sat", "on", "mat", "zebra"]
    texts = [[" ".join(draw.choices(words, k=4)) for _ in range(3)] for _ in range(60)]
    rescorer, lists = Rescorer.load(tmp_path / "two" / "1"), []
    for i, hypotheses in enumerate(texts):
        low = [sum(score.log_probs["low"]) for score in rescorer.score_text(hypotheses)]
        nbest = json.loads(record(f"u{i}", *hypotheses, reference=f"{hypotheses[0]} {'x ' * i}"))
        for k, hypothesis in enumerate(nbest["hypotheses"]):
            hypothesis["scores"]["acoustic"] = low[k] - (k > 0) * draw.uniform(0.5, 3)
        lists.append(json.dumps(nbest))
    source, output = write(tmp_path / "in.jsonl", *lists), tmp_path / "w.json"
    code, _, err = run("tune", source, "--bundle", tmp_path / "two" / "1", "--free", "lm:low", "-o", output)
    assert code == 0, err
    tuned = json.loads(output.read_text())
    assert -1.5 < tuned["lm"]["low"] < -0.5
    assert tuned["mixture"]["low"] == 0
