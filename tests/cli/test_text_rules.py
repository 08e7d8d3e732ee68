"""Commands compare, count and write texts by rules of their own, whatever a bundle's models read."""

from __future__ import annotations

import json

import pytest

from rescorer.text import NormaliserSettings
from tests.support.sharding import write_lines
from tests.support.tiny_models import write_bundle

FIRST_RULES = json.dumps({"case": "lower"})


@pytest.fixture(scope="module")
def ngram_bundle_first_rules(tmp_path_factory):
    """A bundle whose models read text by the first rules, as those of earlier versions do."""
    folder = tmp_path_factory.mktemp("first")
    return write_bundle(folder, neural=False, text=NormaliserSettings.first_rules())


def write_lists(path, *lists):
    """Write lists, each a reference and its texts, best first."""
    records = [
        {
            "id": f"u{number}",
            "reference": reference,
            "hypotheses": [{"text": text, "scores": {"acoustic": -i}} for i, text in enumerate(texts)],
        }
        for number, (reference, *texts) in enumerate(lists)
    ]
    return write_lines(path, list(map(json.dumps, records)))


def evaluate(run, *arguments):
    code, out, err = run("evaluate", *arguments, "--json")
    return code, json.loads(out)["systems"][0] | {"normaliser": json.loads(out)["normaliser"]}, err


@pytest.mark.parametrize(
    ("reference", "text", "errors", "words"),
    [
        ("plus 2,5 grad", "plus 25 grad", 1, 3),
        ("c++ oder c#", "c oder c", 2, 3),
        ("qAl$ *hb", "qAlh hb", 2, 2),
        ("ba˥ na˩", "ba na", 2, 2),
        ("the old ship", "the ⁇ ship", 1, 3),
        ("لا نعم", "لا،نعم", 0, 2),
        ("बस है और", "बस है।और", 0, 3),
        ("izmir güzel", "İzmir güzel", 0, 2),
        ("sil baştan", "sil baştan", 0, 2),
        ("１０ meter", "10 meter", 0, 2),
        ("می\u200cرود", "میرود", 1, 1),
        ("5 % or -5", "5 or 5", 2, 4),
    ],
)
def test_evaluate_counts_every_difference_between_words(run, tmp_path, reference, text, errors, words):
    code, system, _ = evaluate(run, write_lists(tmp_path / "in.jsonl", (reference, text)))
    assert (code, system["errors"], system["reference_words"]) == (0, errors, words)
    assert system["normaliser"] == "rules 2"


def test_language_decides_the_case_of_dotless_i(run, tmp_path):
    lists = write_lists(tmp_path / "in.jsonl", ("ılık sıcak", "ILIK SICAK"))
    assert evaluate(run, lists)[1]["errors"] == 2
    code, system, _ = evaluate(run, lists, "--language", "tr")
    assert (code, system["errors"], system["normaliser"]) == (0, 0, "rules 2, language tr")
    code, _, err = run("evaluate", lists, "--language", "Turkish!")
    assert code == 2
    assert "--language: expected a tag such as 'tr'" in err


def test_fillers_and_letters_are_named_sets(run, tmp_path):
    lists = write_lists(tmp_path / "in.jsonl", ("yes", "uh yes um"))
    assert evaluate(run, lists)[1]["errors"] == 2
    assert evaluate(run, lists, "--fillers", "english")[1]["errors"] == 0
    arabic = write_lists(tmp_path / "ar.jsonl", ("h*A", "H*A"), ("Al$rq", "Alrq"))
    assert evaluate(run, arabic)[1]["errors"] == 1
    assert evaluate(run, arabic, "--letters", "buckwalter")[1]["errors"] == 2


def test_errors_beside_a_bundle_are_counted_by_the_default_rules(run, tmp_path, ngram_bundle_first_rules):
    lists = write_lists(tmp_path / "in.jsonl", ("the 3,5 cats", "the 35 cats", "the 3,5 cats"))
    options = ["--bundle", str(ngram_bundle_first_rules), "-w", "lm:mixture=0"]
    code, system, err = evaluate(run, lists, *options)
    assert (code, system["errors"], system["normaliser"]) == (0, 1, "rules 2")
    assert "gives its models the same words for 1 text that differs from another of its list" in err
    assert "'the 35 cats' = 'the 3,5 cats'" in err
    first = tmp_path / "text.json"
    first.write_text(FIRST_RULES)
    code, system, err = evaluate(run, lists, *options, "--normaliser", str(first))
    assert (code, system["errors"], err) == (0, 0, "")


def test_merging_keeps_different_texts_apart(run, tmp_path, ngram_bundle_first_rules):
    lists = write_lists(tmp_path / "in.jsonl", ("um 3,5", "um 35", "um 3,5", "Um 3,5!"))
    output = tmp_path / "out.jsonl"
    options = ["--bundle", str(ngram_bundle_first_rules), "--merge", "--quiet", "-w", "lm:mixture=0"]
    assert run("rescore", lists, "-o", str(output), *options)[0] == 0
    texts = [hypothesis["text"] for hypothesis in json.loads(output.read_text())["hypotheses"]]
    assert sorted(texts) == ["um 3,5", "um 35"]


def test_a_consensus_has_words_as_they_came(run, tmp_path, ngram_bundle_first_rules):
    texts = ("Um 3,5 Prozent, ja", "um 35 Prozent, ja", "Um 3,5 prozent, nein")
    lists = write_lists(tmp_path / "in.jsonl", ("", *texts))
    output = tmp_path / "out.trn"
    options = ["--bundle", str(ngram_bundle_first_rules), "--to", "trn", "--quiet", "-w", "lm:mixture=0"]
    rule = ["--decision", "confusion-network", "-w", "acoustic=0.1"]
    assert run("rescore", lists, "-o", str(output), *options, *rule)[0] == 0
    assert output.read_text() == "Um 3,5 Prozent, ja (u0)\n"


@pytest.mark.parametrize(
    ("option", "text"),
    [([], "Der Preis stieg um 3,5 Prozent."), (["--normalised"], "der preis stieg um 3,5 prozent")],
)
def test_combine_writes_words_of_the_first_system_that_has_them(run, tmp_path, option, text):
    first = write_lines(tmp_path / "a.trn", ["Der Preis stieg um 3,5 Prozent. (u1)"])
    second = write_lines(tmp_path / "b.trn", ["der preis stieg um 3,5 prozent (u1)"])
    output = tmp_path / "out.trn"
    assert run("combine", first, second, "--to", "trn", "-o", str(output), *option)[0] == 0
    assert output.read_text() == f"{text} (u1)\n"


def test_inspect_names_texts_that_a_normaliser_makes_equal(run, tmp_path):
    lists = write_lists(
        tmp_path / "in.jsonl", ("Um 3,5 Grad.", "um 35 grad", "um 3,5 grad", "um c++", "um c")
    )
    code, out, _ = run("inspect", lists, "--json")
    found = json.loads(out)["files"][0]
    assert found["equal_texts"]["normaliser"]["texts"] == 1
    assert found["equal_texts"]["normaliser"]["beyond_case_and_punctuation"] == 0
    first = tmp_path / "text.json"
    first.write_text(FIRST_RULES)
    code, out, _ = run("inspect", lists, "--normaliser", str(first))
    out = " ".join(out.split())
    assert code == 1
    assert "2 texts differ from another of their list in more than case and punctuation" in out
    assert "'um 35 grad' = 'um 3,5 grad'; 'um c++' = 'um c'" in out


def test_inspect_proposes_the_alphabet(run, tmp_path):
    lists = write_lists(
        tmp_path / "in.jsonl", ("wqAl >n h*A Al$y'", "wqAl >n h*A Al$yx"), ("<n {lktAb", "<n {lktAb")
    )
    code, out, _ = run("inspect", lists)
    assert code == 1
    assert "--letters buckwalter" in " ".join(out.split())
    assert "--letters" not in run("inspect", lists, "--letters", "buckwalter")[1]


def test_a_plan_records_the_rules_where_texts_are_compared(run, tmp_path, ngram_bundle_first_rules):
    lists = write_lists(tmp_path / "in.jsonl", ("a", "the cat", "the dog"))
    options = ["--bundle", str(ngram_bundle_first_rules), "--shards", "1", "--plan-only"]
    for name, more in (("plain", []), ("merged", ["--merge"])):
        assert run("rescore", lists, "-o", str(tmp_path / name), *options, *more)[0] == 0
    plans = [json.loads((tmp_path / name / "plan.json").read_text()) for name in ("plain", "merged")]
    assert "text" not in plans[0]["answers"]["options"]
    assert plans[1]["answers"]["options"]["text"]["rules"] == 2


def test_commands_name_the_rules(run, tmp_path, ngram_bundle_first_rules):
    lists = [("the cat", "the cat", "the dog"), ("the dog", "the cat", "the dog")]
    source = write_lists(tmp_path / "in.jsonl", *lists)
    options = [source, "--bundle", str(ngram_bundle_first_rules), "-w", "lm:mixture=0.1"]
    rules = "words are compared by rules 2, fillers english"
    for command, *more in (
        ("evaluate",),
        ("tune", "-o", str(tmp_path / "w.json")),
        ("calibrate", "-o", str(tmp_path / "c.json")),
    ):
        code, out, _ = run(command, *options, *more, "--fillers", "english")
        assert (code, rules in " ".join(out.split())) == (0, True), out


def test_a_plan_of_earlier_rules_names_how_to_go_on(run, tmp_path, ngram_bundle_first_rules):
    file = write_lists(tmp_path / "in.jsonl", ("plus 2,5 grad", "plus 25 grad", "plus 2,5 grad"))
    bundle, out = str(ngram_bundle_first_rules), str(tmp_path / "out")
    own_rules = ("--normaliser", f"{bundle}/text.json")
    command = ("rescore", file, "--bundle", bundle, "-o", out, "--merge")
    assert run(*command, *own_rules, "--shards", "1", "--plan-only")[0] == 0
    code, _, err = run(*command, "--resume")
    assert (code, f"go on with --normaliser {bundle}" in err) == (2, True), err
    code, _, err = run(*command, "--resume", "--language", "tr", "-w", "word=-1")
    assert (code, "weights.word was" in err) == (2, True), err
    assert run(*command, "--resume", *own_rules)[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--normaliser", "none.json"), "rescorer: --normaliser none.json: no such file"),
        (("--normaliser", "raw", "--language", "tr"), "rescorer: --language: needs the second rules"),
        (("--fillers", "dutch"), "rescorer: --fillers: no set is named 'dutch'"),
    ],
)
def test_errors_name_the_option(run, tmp_path, options, message):
    code, _, err = run("evaluate", write_lists(tmp_path / "in.jsonl", ("a b", "a b")), *options)
    assert (code, err.startswith(message)) == (2, True), err
