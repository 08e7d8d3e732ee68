"""The command ``inspect``: its tables, its exit codes, and its findings on real lists."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from rescorer.cli import main
from rescorer.cli.inspect import render_inspections
from rescorer.evaluation.inspection import inspect_lists
from rescorer.evaluation.list_statistics import ModelStats, WeightStats, describe_models
from rescorer.formats.fields import parse_field_map
from rescorer.formats.jsonlines import encode_list, read_lists
from rescorer.formats.registry import choose
from rescorer.models.network_files import NetworkConfig
from rescorer.models.neural import NeuralModel, save_model
from rescorer.safe_input import Folder
from rescorer.text import Normaliser
from rescorer.types import Weights
from tests.support import backward_models
from tests.support.inspection_cases import SOUND, TOTAL, with_scores
from tests.support.tiny_models import write_bundle


def run(monkeypatch, capsys, *arguments, command="inspect") -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["rescorer", command, *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    out, err = capsys.readouterr()
    return code, out, err


def test_reports_findings_and_rejected_lists(monkeypatch, capsys, tmp_path):
    sound, odd = tmp_path / "sound.jsonl", tmp_path / "odd.jsonl"
    sound.write_text("".join(encode_list(nbest) + "\n" for nbest in TOTAL), encoding="utf-8")
    broken = [encode_list(nbest) for nbest in with_scores(TOTAL, "score", lambda s: -s)]
    odd.write_text("\n".join([*broken, "{broken"]), encoding="utf-8")

    code, out, err = run(monkeypatch, capsys, sound)
    assert (code, err) == (0, "")
    assert "Nothing looks wrong" in out
    assert max(map(len, out.splitlines())) <= 120

    code, out, err = run(monkeypatch, capsys, sound, odd, "--bundle", write_bundle(tmp_path))
    assert (code, out.count("WARNING"), "odd.jsonl:41" in err) == (1, 5, True)
    assert "--stream NAME=FIELD:e:cost" in out

    code, out, _ = run(monkeypatch, capsys, odd, "--json")
    (record,) = json.loads(out)["files"]
    assert record["file"] == str(odd)
    assert (code, record["rejected"], record["suspicious"]) == (1, 1, True)
    assert record["streams"]["score"]["per_word_if_cost"] < 0
    assert {finding["code"] for finding in record["findings"]} == {"backwards", "cost", "error_sign"}

    references = tmp_path / "spoken.trn"
    references.write_text("".join(f"river ({nbest.id})\n" for nbest in TOTAL), encoding="utf-8")
    _, out, _ = run(monkeypatch, capsys, sound, odd, "--json", "--reference", references)
    assert [report["reference_words"] for report in json.loads(out)["files"]] == [40, 40]


def test_a_table_with_ids_is_no_file_of_nemo(monkeypatch, capsys, tmp_path):
    table = tmp_path / "table.tsv"
    table.write_text("u1\ttwo be\t-3.2\nu1\tto be\t-3.9\n", encoding="utf-8")
    code, _, err = run(monkeypatch, capsys, table, "--format", "nemo:beam=2")
    assert code == 3
    assert "three columns, not text<TAB>score; give --format table" in err
    code, out, err = run(monkeypatch, capsys, table, "--json")
    assert "read as a table: id=1, text=2, stream first_pass=3 (log base e)" in err
    (report,) = json.loads(out)["files"]
    assert (report["lists"], report["hypotheses"]) == (1, 2)


def test_one_list_is_not_one_lists(monkeypatch, capsys, tmp_path):
    lines = tmp_path / "one.jsonl"
    lines.write_text('{"id": "u1", "hypotheses": ["", "to be"], "reference": "to be"}\n', encoding="utf-8")
    _, out, _ = run(monkeypatch, capsys, lines)
    assert "1 hypothesis in 1 list without words" in out
    assert "(1 list with references)" in out
    assert "1 lists" not in out


def test_aligns_tables_on_a_narrow_screen():
    lists = with_scores(with_scores(SOUND, "acoustic", lambda s: 300.0 * s), "lm", lambda s: -s)
    found = inspect_lists(
        lists, Normaliser(), vocabulary=frozenset(), first_pass=Weights(streams={"acoustic": 1.0, "lm": 9.5})
    )
    console = Console(width=80, file=io.StringIO())
    console.print(render_inspections({"lists.jsonl": found}))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("  stream")) :][:4]
    assert [line.split()[0] for line in table] == ["stream", "acoustic", "lm", "first"]
    assert len({len(line.rstrip()) for line in table}) == 1  # the last column is aligned
    huge = inspect_lists(with_scores(SOUND, "acoustic", lambda s: 1e300 * s), Normaliser())
    console.print(render_inspections({"lists.jsonl": huge}))
    json.dumps(huge.to_dict(), allow_nan=False)


def test_exit_codes_of_errors(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, capsys, tmp_path / "none.jsonl")[0] == 3
    assert run(monkeypatch, capsys, tmp_path / "none.jsonl", "--first-pass", "am")[0] == 2


NAMES = ["hypotheses=hyps,reference=ref"]


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "names", "streams", "options", "lists", "expected"),
    [
        ("dstc2/rank-only-dev.jsonl", NAMES, [], {}, 3560, set()),
        ("switchboard/rank-only-tenbest.jsonl", NAMES, [], {}, 1622, set()),
        ("switchboard/scored-dev.jsonl", NAMES, ["acoustic=am_log2:2"], {}, 80, None),
        ("read-speech/moonshine-20best.jsonl.gz", NAMES, ["am=am"], {}, 143, {"empty_near_best"}),
        ("read-speech/moonshine-20best-cased.jsonl.gz", NAMES, ["am=am"], {}, 143, {"empty_near_best"}),
        ("read-speech/pocketsphinx-100best.jsonl.gz", NAMES, ["am=am", "lm=lm"],
         {"first_pass": Weights(streams={"am": 1.0, "lm": 9.5})}, 143, set()),
        ("read-speech/pocketsphinx-100best-tagged.jsonl.gz", NAMES, ["am=am", "lm=lm"],
         {"first_pass": Weights(streams={"am": 1.0, "lm": 9.5})}, 143, set()),
        ("read-speech/pocketsphinx-native.jsonl.gz", NAMES, ["score=score"], {}, 143,
         {"duplicates", "unsorted", "scale"}),
    ],
)  # fmt: skip
def test_warnings_on_real_lists(data_dir, file, names, streams, options, lists, expected):
    items = read_lists(data_dir / "nbest" / file, parse_field_map(names, streams))
    found = inspect_lists(items, Normaliser(), **options)
    assert (found.lists.lists, found.lists.rejected) == (lists, 0)
    warnings = {finding.code for finding in found.findings if finding.severity == "warning"}
    assert expected is None or warnings == expected


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "format_", "lists"),
    [
        ("read-speech/lattices", "htk:depth=5", 40),
        ("dstc10/logs-no-references.json", "alternatives:text=hyp,score=score,base=e,sign=log_prob", 1376),
    ],
)
def test_reads_real_lists_of_other_formats(data_dir, file, format_, lists):
    found = inspect_lists(choose(format_).read(data_dir / "nbest" / file), Normaliser())
    assert (found.lists.lists, found.lists.rejected, found.errors) == (lists, 0, None)
    assert not found.suspicious


GOLDEN = Path(__file__).parents[1] / "golden" / "sclite"


def test_counts_errors_like_evaluate(monkeypatch, capsys, tmp_path):
    """Every option gives the same rates as in evaluate; with an stm, words are aligned by time."""
    (tmp_path / "text.json").write_text(json.dumps({"punctuation": "keep", "hyphens": "keep"}))
    files = {
        "trn": [GOLDEN / "hyp.trn", "--reference", GOLDEN / "ref.trn"],
        "stm": [GOLDEN / "hyp.ctm", "--reference", GOLDEN / "ref.stm"],
    }
    options = ["", "--optional-words", "--fragments", "--characters"]
    for kind, option in product(files, options):
        counting = ["--counting", "sclite", *filter(None, [option]), "--normaliser", tmp_path / "text.json"]
        results = []
        for command in ("inspect", "evaluate"):
            _, out, _ = run(monkeypatch, capsys, *files[kind], *counting, "--json", command=command)
            found = json.loads(out)
            found |= (found.get("systems") or found["files"])[0]
            results.append([found[key] for key in ("wer", "oracle_wer", "reference_words", "lists")])
        assert results[0] == results[1], (kind, option)
    code, _, err = run(monkeypatch, capsys, *files["stm"], "--groups", "(.)")
    assert (code, "an stm scores a ctm" in err) == (2, True)


def test_lists_the_models_of_a_bundle(monkeypatch, capsys, tmp_path):
    lists = tmp_path / "lists.jsonl"
    lists.write_text("".join(encode_list(nbest) + "\n" for nbest in SOUND))
    folder = backward_models.write_bundle(tmp_path)
    code, out, _ = run(monkeypatch, capsys, lists, "--bundle", folder, "--json")
    assert code == 1  # no word of the lists is known
    assert json.loads(out)["files"][0]["models"] == [
        {"name": "ngram", "kind": "ngram", "network": "", "direction": "forward", "topics": 0, "licence": ""},
        {"name": "back", "kind": "ngram", "network": "", "direction": "backward", "topics": 0, "licence": ""},
        {
            "name": "neural",
            "kind": "neural",
            "network": "lstm",
            "direction": "forward",
            "topics": 0,
            "licence": "",
        },
        {
            "name": "leftward",
            "kind": "neural",
            "network": "lstm",
            "direction": "backward",
            "topics": 0,
            "licence": "",
        },
    ]
    _, out, _ = run(monkeypatch, capsys, lists, "--bundle", folder)
    models = (
        "ngram (n-gram, forward), back (n-gram, backward), neural (lstm, forward), leftward (lstm, backward)"
    )
    assert " ".join(out.split()).count(f"models {models}") == 1


def test_lists_the_topics_that_a_network_reads(library, tmp_path):
    config = NetworkConfig(11, class_sizes=(10,), kind="gru", topics=3, topic_decay=0.5)
    save_model(NeuralModel(config), library.models["neural"].words, tmp_path / "neural")
    bundle = replace(library.bundle, files=Folder(tmp_path))
    described = describe_models(bundle)
    assert [(model.name, model.network, model.topics) for model in described] == [
        ("ngram", "", 0),
        ("neural", "gru", 3),
    ]
    models = ModelStats("b/1", described, {}, WeightStats("default", ()))
    found = replace(inspect_lists(SOUND, Normaliser()), models=models)
    console = Console(width=80, file=io.StringIO())
    console.print(render_inspections({"lists.jsonl": found}))
    assert "neural (gru, forward, 3 topics)" in console.file.getvalue()


def test_weights_need_a_bundle(monkeypatch, capsys, tmp_path):
    (tmp_path / "x.jsonl").write_text("")
    code, _, err = run(monkeypatch, capsys, tmp_path / "x.jsonl", "--weights", "pocketsphinx")
    assert (code, "give --bundle" in err) == (2, True)


def test_warns_of_unread_scores(monkeypatch, capsys, tmp_path):
    """The file is sound, but no option names the field that holds the scores."""
    flat = tmp_path / "flat.jsonl"
    records = [
        {
            "id": nbest.id,
            "hyps": [
                {"text": hypothesis.text, "am": score, "ntok": 3, "start": 0.5}
                for hypothesis, score in zip(nbest.hypotheses, nbest.streams["score"], strict=True)
            ],
        }
        for nbest in TOTAL
    ]
    flat.write_text("".join(json.dumps(record) + "\n" for record in records))
    code, out, _ = run(monkeypatch, capsys, flat, "--map", "hypotheses=hyps", "--json")
    found = {finding["code"]: finding["message"] for finding in json.loads(out)["files"][0]["findings"]}
    assert (code, set(found)) == (1, {"unread_scores", "no_streams"})
    assert found["unread_scores"].endswith("look like scores: am")
    assert run(monkeypatch, capsys, flat, "--map", "hypotheses=hyps", "--stream", "am=am")[0] == 0
