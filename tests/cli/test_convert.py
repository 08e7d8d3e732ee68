"""The command ``convert``, and formats other than JSON lines in other commands."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rescorer.cli import app
from rescorer.errors import ConfigError, FormatError
from rescorer.formats.jsonlines import read_lists

TEXTS = [("the cat", "a cat"), ("the mat", "")]
LISTS = [
    {
        "id": f"u{i}",
        "hypotheses": [{"text": text, "scores": {"acoustic": -1.5 * i, "lm": -2.0}} for text in texts],
        "reference": "the cat",
    }
    for i, texts in enumerate(TEXTS)
]


def run(*arguments: object):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in LISTS))
    return path


@pytest.mark.parametrize("name", ["srilm", "kaldi"])
def test_round_trip(tmp_path, source, name):
    done = run(source, tmp_path / "out", "--to", name)
    assert done.exit_code == 0, done.output
    assert f"warning: reference of 2 lists left out: {name} cannot store this" in done.stderr
    assert f"2 lists written as {name}; 0 rejected" in done.stderr
    back = run(tmp_path / "out", tmp_path / "back.jsonl.gz")
    assert f"out: {name} (" in back.stderr
    for found, expected in zip(read_lists(tmp_path / "back.jsonl.gz"), read_lists(source), strict=True):
        assert found.id == expected.id
        assert [hypothesis.text for hypothesis in found.hypotheses] == [
            hypothesis.text for hypothesis in expected.hypotheses
        ]
        assert found.streams == {name: pytest.approx(values) for name, values in expected.streams.items()}
    assert not (tmp_path / "out.rejects").exists()


def test_renames_streams_and_writes_to_pipes(tmp_path, source):
    done = run(source, "-", "--rename", "acoustic=first_pass")
    assert list(json.loads(done.stdout.splitlines()[0])["hypotheses"][0]["scores"]) == ["first_pass", "lm"]
    done = run(source, tmp_path / "out", "--to", "nbestlist1", "--rename", "acoustic=first_pass")
    warning = "warning: scores of the stream lm of 2 lists left out: nbestlist1 cannot store this"
    assert warning in done.stderr.splitlines()
    assert (tmp_path / "out" / "u1").read_text() == "NBestList1.0\n(-15) the mat\n(-15)\n"
    done = run(source, "-", "--rename", "acoustic=lm")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "--rename gives two streams the same name" in done.stderr


def test_reads_mapped_fields_and_groups(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"id": "s1-u1", "hyps": [{"text": "a", "am": 10}]}\n')
    done = run(tmp_path / "in.jsonl", "-", "--format", "jsonl")  # as in the other commands
    assert "`--map hypotheses=hyps` reads 'hyps'" in done.stderr
    options = ["--map", "hypotheses=hyps", "--stream", "acoustic=am:10:cost", "--groups", "^(s1)-"]
    done = run(tmp_path / "in.jsonl", "-", *options)
    (record,) = map(json.loads, done.stdout.splitlines())
    assert record["group"] == "s1"
    assert record["hypotheses"][0]["scores"] == {"acoustic": pytest.approx(-10 * math.log(10))}


def test_writes_lists_that_do_not_fit_to_the_rejects(tmp_path, source):
    with source.open("a") as file:
        file.write(json.dumps(LISTS[0] | {"id": "a/b"}) + "\n{broken\n")
    done = run(source, tmp_path / "out", "--to", "srilm")
    assert done.exit_code == 1
    assert "2 lists written as srilm; 2 rejected" in done.stderr
    unfit, broken = map(json.loads, (tmp_path / "out.rejects").read_text().splitlines())
    assert (unfit["id"], unfit["list"]["id"]) == ("a/b", "a/b")
    assert broken["line"] == 4


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (["--to", "sphinx"], ConfigError, "unknown format 'sphinx'"),
        (["--from", "sphinx"], ConfigError, "unknown format 'sphinx'"),
        (["--from", "kaldi"], FormatError, "expected a folder with words_text"),
        (
            ["--from", "srilm", "--map", "text=x"],
            ConfigError,
            "--map and --stream are for JSON lines",
        ),
        (["--rename", "a"], ConfigError, "expected OLD=NEW"),
        (["--rename", "a=b", "--rename", "c=b"], ConfigError, "each name once"),
    ],
)
def test_rejects_contradicting_options(source, options, kind, message):
    done = run(source, "-", *options)
    assert isinstance(done.exception, kind)
    assert message in str(done.exception)


def test_warns_of_re_ranked_lists(tmp_path, ngram_bundle, source):
    """They carry totals instead of scores, which cannot be combined again."""
    written = tmp_path / "re-ranked.jsonl"
    options = ["--bundle", str(ngram_bundle), "-o", str(written)]
    assert CliRunner().invoke(app, ["rescore", str(source), *options]).exit_code == 0
    message = "these lists are the output of `rescorer rescore`, with totals and components instead of scores"
    done = run(written, tmp_path / "out", "--to", "kaldi")
    assert done.stderr.count(f"warning: {written}: {message}; convert the lists that it read instead") == 1
    assert message not in run(source, tmp_path / "out2", "--to", "kaldi").stderr
    again = CliRunner().invoke(app, ["rescore", str(written), "--bundle", str(ngram_bundle)])
    assert isinstance(again.exception, ConfigError)
    assert f"{message}: give the lists that it read, or `-w acoustic=0`" in str(again.exception)


def test_does_not_write_a_folder_to_a_pipe(source):
    assert "as a folder and cannot go to a pipe" in str(run(source, "-", "--to", "kaldi").exception)


def test_lists_the_formats():
    done = run("--formats")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in ("jsonl", "srilm", "kaldi", "everything", "fixed: log10"))


def test_evaluate_reads_other_formats(tmp_path, source):
    run(source, tmp_path / "out", "--to", "kaldi")
    common = ["evaluate", str(tmp_path / "out"), "--json", "--reference", str(source), "--groups", "^(u)"]
    detected = CliRunner().invoke(app, common)
    explicit = CliRunner().invoke(app, [*common, "--format", "kaldi"])
    assert detected.exit_code == 0
    assert detected.stdout == explicit.stdout
    assert json.loads(explicit.stdout)["systems"][0]["wer"] == 25.0


def test_summarises_many_rejected_lists(tmp_path):
    """A format that can hold none of the lists prints three reasons and the number of others."""
    lists = [{"id": f"u{i}", "hypotheses": [{"text": "the cat"}]} for i in range(96)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(nbest) + "\n" for nbest in lists))
    done = run(path, tmp_path / "out.ctm", "--to", "ctm")
    rejected = [line for line in done.stderr.splitlines() if line.startswith("rejected: ")]
    assert (done.exit_code, len(rejected)) == (1, 4)
    assert "93 more lists" in rejected[-1]
    assert str(tmp_path / "out.ctm.rejects") in rejected[-1]
    assert len((tmp_path / "out.ctm.rejects").read_text().splitlines()) == 96


def test_warns_of_missing_jobs_once(run, tmp_path):
    for number in (1, 3):
        (tmp_path / f"output.{number}").mkdir()
        (tmp_path / f"output.{number}" / "a.jsonl").write_text(
            f'{{"id": "u{number}", "hypotheses": ["a"]}}\n'
        )
    code, out, err = run("convert", tmp_path, "-")
    assert (code, out.count('"id"'), err.count("output.2 missing between its 2 jobs")) == (0, 2, 1)
