"""The command ``rescorer candidates``: weights under which names win where they were said."""

from __future__ import annotations

import json

import pytest

from rescorer import Weights
from tests.support.small_dictionary import write_dictionary
from tests.support.tiny_models import write_bundle

SAID = {"mat": "mat", "hail": "hail", "rust": "rusk", "yolk": "york"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    weights = Weights("default", {"acoustic": 1.0}, {"ngram": 1.0}, mixture={"ngram": 0.5, "neural": 0.5})
    return write_bundle(tmp_path_factory.mktemp("bundle"), weights)


@pytest.fixture
def lists(tmp_path):
    lines = [
        {
            "id": f"u{i}",
            "group": f"speaker{i % 2}",
            "reference": f"the {said} sat",
            "phrases": [said],
            "hypotheses": [{"text": f"the {heard} sat", "scores": {"acoustic": -1}}],
        }
        for i, (heard, said) in enumerate(SAID.items())
    ]
    path = tmp_path / "lists.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_writes_weights_and_says_what_they_are_worth(run, bundle, lists, tmp_path):
    output, dictionary = tmp_path / "heard.json", write_dictionary(tmp_path)
    code, out, _ = run(
        "candidates",
        lists,
        "--bundle",
        bundle,
        "-o",
        output,
        "--dictionary",
        dictionary,
        *("--max-false-alarms", 0.5, "--decoys", 1, "--rounds", 20),
    )
    assert code == 0
    written = json.loads(output.read_text())
    assert written["sound_match"] > 0
    assert written["name"] == "heard"
    assert f"generated {written['generated']:g}" in out
    assert "false alarms: " in out
    assert "; gain " in out
    assert "2 folds of 2 units by group" in out
    again = tmp_path / "out.jsonl"
    options = ("--bundle", bundle, "--weights", output, "--generate", "--dictionary", dictionary)
    assert run("rescore", lists, "-o", again, *options)[0] == 0
    assert any(
        "generated" in h for line in again.read_text().splitlines() for h in json.loads(line)["hypotheses"]
    )


def test_lists_without_references_are_rejected(run, bundle, lists, tmp_path):
    lines = [json.loads(line) for line in lists.read_text().splitlines()]
    del lines[0]["reference"]
    lists.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--bundle", bundle, "-o", tmp_path / "w.json", "--dictionary", write_dictionary(tmp_path))
    draws = ("--max-false-alarms", 0.9, "--decoys", 1, "--rounds", 20)
    code, out, errors = run("candidates", lists, *options, *draws)
    assert code == 1
    assert "1 list rejected" in out
    assert "reference" in errors


def test_draws_of_the_same_phrases_count_once(run, bundle, lists, tmp_path):
    options = ("--bundle", bundle, "-o", tmp_path / "w.json", "--dictionary", write_dictionary(tmp_path))
    code, _, errors = run("candidates", lists, *options, "--max-false-alarms", 0.5, "--rounds", 20)
    assert code == 2
    assert "2 lists with phrases that were not said cannot show" in errors


def test_too_few_lists_for_the_bound_end_the_command(run, bundle, lists, tmp_path):
    options = ("--bundle", bundle, "-o", tmp_path / "w.json", "--dictionary", write_dictionary(tmp_path))
    code, _, errors = run("candidates", lists, *options)
    assert code == 2
    assert "more --rounds" in errors
    assert not (tmp_path / "w.json").exists()


@pytest.fixture
def sounds(bundle, tmp_path):
    """Options under which some generated hypotheses win."""
    dictionary = write_dictionary(tmp_path)
    weights = "-w", "generated=10", "-w", "sound_match=2"
    return "--bundle", bundle, "--generate", "--dictionary", dictionary, *weights


def test_evaluate_says_which_rows_count_generated_hypotheses(run, bundle, lists, sounds, tmp_path):
    table = tmp_path / "rows.csv"
    code, out, err = run("evaluate", lists, *sounds, "--alignments", "--export", table)
    assert code == 0, err
    assert "oracle with generated" in out
    assert "hypotheses that were generated" in out
    assert "u2, generated" in out
    assert "generated" in table.read_text().splitlines()[0]
    data = json.loads(run("evaluate", lists, *sounds, "--alignments", "--json")[1])
    rows = {row["name"]: row for row in data["systems"]}
    plain = json.loads(run("evaluate", lists, "--bundle", bundle, "--json")[1])["systems"]
    assert rows["first pass"]["errors"] == rows["oracle"]["errors"] == plain[0]["errors"] == 2
    assert rows["oracle with generated"]["errors"] == 0
    assert rows["mixture"]["errors"] < 2
    assert rows["mixture"]["generated"] > 0
    assert {row["generated"] for row in plain} == {0}
    assert any("were generated" in note for note in data["notes"])
    assert all(found["generated"] for found in data["alignments"])
    code, _, err = run("evaluate", lists, "--system", "oracle with generated", "--bundle", bundle)
    assert (code, "the rows can be" in err) == (2, True)


def test_tune_ranks_generated_hypotheses(run, bundle, lists, sounds, tmp_path):
    lines = lists.read_text() + lists.read_text().replace('"u', '"v')
    lists.write_text(lines.replace("speaker", ""))
    output = tmp_path / "tuned.json"
    code, out, err = run("tune", lists, *sounds, "-o", output, "--force", "--json")
    assert code == 0, err
    assert json.loads(output.read_text())["generated"] == 10
    rows = {row["name"]: row["errors"] for row in json.loads(out)["systems"]}
    assert rows["held out"] == rows["before tuning"] < rows["first pass"] == 4
    assert "were tuned on 8 of these 8 lists" in run("evaluate", lists, *sounds[:2], "--weights", output)[2]


def test_explain_says_how_a_hypothesis_was_generated(run, lists, sounds):
    code, out, err = run("explain", lists, "u2", *sounds)
    assert code == 0, err
    assert "a generated one wins by" in out
    assert "1, generated, oracle: 'rusk' for 'rust' of hypothesis 1" in out
    (found,) = json.loads(run("explain", lists, "u2", *sounds, "--json")[1])
    assert found["best"][0]["generated"]["phrase"] == "rusk"
    assert found["best"][0]["first_pass_rank"] is None
    assert "generated" in run("explain", lists, *sounds)[1]


def test_report_marks_generated_hypotheses(run, lists, sounds, tmp_path):
    page, data = tmp_path / "report.html", tmp_path / "report.json"
    code, _, err = run("report", lists, *sounds, "-o", page, "-o", data)
    assert code == 0, err
    assert "(generated: rusk for rust)" in page.read_text()
    described = json.loads(data.read_text())
    (shown,) = (item for item in described["utterances"]["rows"] if item["id"] == "u2")
    assert {row["generated"] for row in shown["tables"][0]["rows"]} == {"", "rusk for rust"}
    assert any("were generated" in remark for remark in described["remarks"])


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_generating_needs_a_bundle(run, lists, tmp_path, command):
    output = ("-o", tmp_path / "r.html") if command == "report" else ()
    code, _, err = run(command, lists, "--generate", *output)
    assert code == 2
    assert "--generate" in err
