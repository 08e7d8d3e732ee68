"""What people bring from other toolkits is read at once: one command, no error, the right numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.list_lines import record, write

REFERENCE = "the cat sat"
TEXTS = ("the mat sat", "the cat sat")
N_JOBS, LISTS_PER_JOB = 11, 2
IDS = [f"u{number}" for number in range(1, N_JOBS * LISTS_PER_JOB + 1)]


def divide_ids():
    """The ids of each job, with its number."""
    return [(job, IDS[LISTS_PER_JOB * (job - 1) : LISTS_PER_JOB * job]) for job in range(1, N_JOBS + 1)]


def make_kaldi(folder):
    for job, ids in divide_ids():
        inner = folder / f"nbest.{job}"
        inner.mkdir(parents=True)
        keys = [(f"{key}-{rank}", text) for key in ids for rank, text in enumerate(TEXTS, start=1)]
        write(inner / "words_text", *(f"{key} {text}" for key, text in keys))
        for archive in ("acwt", "lmwt"):
            write(inner / archive, *(f"{key} {10 + rank}" for rank, (key, _) in enumerate(keys)))
    write(folder / "num_jobs", str(N_JOBS))
    return [folder]


def make_inputs(folder):
    return sorted(make_kaldi(folder)[0].glob("nbest.*"))


def make_espnet(folder):
    logdir = folder / "logdir"
    for job, ids in divide_ids():
        for rank, text in enumerate(TEXTS, start=1):
            inner = logdir / f"output.{job}" / f"{rank}best_recog"
            inner.mkdir(parents=True)
            write(inner / "text", *(f"{key} {text}" for key in ids))
            write(inner / "score", *(f"{key} tensor(-{rank}.5)" for key in ids))
        write(logdir / f"keys.{job}.scp", *(f"{key} {key}.wav" for key in ids))
        write(logdir / f"asr_inference.{job}.log", "# python3 -m espnet2.bin.asr_inference")
    return [logdir]


def make_nemo(folder):
    folder.mkdir()
    write(folder / "beams.tsv", *(f"{text}\t-{rank}.5" for _ in IDS for rank, text in enumerate(TEXTS)))
    return [folder / "beams.tsv", "--format", "nemo:beam=2"]


def make_files(folder):
    folder.mkdir()
    for job, ids in divide_ids():
        write(folder / f"part{job}.jsonl", *(record(key, *TEXTS) for key in ids))
    return [folder]


SHAPES = {"kaldi": make_kaldi, "espnet": make_espnet, "nemo": make_nemo, "files": make_files}
OWN_SCORE = ["-w", "acoustic=0", "-w", "first_pass=1", "-w", "lm:mixture=0"]


def call(*arguments):
    """Run the program in a process of its own; returns its output."""
    command = [sys.executable, "-m", "rescorer.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, "rejected:" in done.stderr) == (0, False), done.stderr
    return done.stdout


@pytest.fixture
def references(tmp_path):
    """References as Kaldi's text, and as a manifest in another order of names than that of numbers."""
    write(tmp_path / "text", *(f"{key} {REFERENCE}" for key in IDS))
    entries = [{"audio_filepath": f"calls/{key}.wav", "duration": 1.5, "text": REFERENCE} for key in IDS]
    write(tmp_path / "manifest.json", *map(json.dumps, entries))
    return tmp_path / "text", tmp_path / "manifest.json"


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_evaluates_what_a_toolkit_leaves(tmp_path, references, shape):
    reference = references[shape in ("nemo", "files")]
    arguments = SHAPES[shape](tmp_path / "in")
    report = json.loads(call("evaluate", *arguments, "--reference", reference, "--json"))
    counts = {row["name"]: (row["lists"], row["wer"]) for row in report["systems"]}
    assert [*counts.values()] == [(len(IDS), 33.33), (len(IDS), 0)]


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_kaldi, make_inputs, make_espnet, make_files])
def test_rescores_jobs_in_their_order(tmp_path, ngram_bundle, make):
    arguments = make(tmp_path / "in")
    weights = OWN_SCORE if make is make_espnet else []
    call("rescore", *arguments, "-o", tmp_path / "out.jsonl", "--bundle", ngram_bundle, *weights)
    found = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(found) == sorted(IDS)
    assert make is make_inputs or found == IDS


@pytest.mark.slow
def test_writes_back_into_a_manifest(tmp_path, ngram_bundle, references):
    manifest, output = references[1], tmp_path / "out.json"
    options = ["-o", output, "--bundle", ngram_bundle, *OWN_SCORE, "--to", f"manifest:manifest={manifest}"]
    call("rescore", *make_nemo(tmp_path / "in"), *options)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    expected = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert lines == [{**line, "pred_text": TEXTS[0]} for line in expected]


def test_reads_a_folder_of_shards_as_it_is(run, tmp_path, ngram_bundle, references):
    lists = write(tmp_path / "in.jsonl", *(record(key, *TEXTS) for key in IDS))
    options = ["--bundle", ngram_bundle, "-o", tmp_path / "out", "--shards", 3]
    run("rescore", lists, *options, "--plan-only")
    code, _, err = run("evaluate", tmp_path / "out", "--reference", references[0])
    assert (code, "3 of 3 shards are not committed: 0, 1, 2" in err, "--resume" in err) == (2, True, True)
    run("rescore", lists, *options[:-2], "--resume")
    code, out, err = run("evaluate", tmp_path / "out", "--reference", references[0], "--json")
    assert code == 0, err
    assert json.loads(out)["systems"][0]["lists"] == len(IDS)
    run("shards", "merge", tmp_path / "out", "-o", tmp_path / "merged.jsonl")
    code, _, err = run("convert", tmp_path / "out", tmp_path / "copy.jsonl")
    assert (code, "the plan of its shards" in err) == (0, True)
    run("convert", tmp_path / "merged.jsonl", tmp_path / "other.jsonl")
    assert (tmp_path / "copy.jsonl").read_text() == (tmp_path / "other.jsonl").read_text()


def test_does_not_take_the_last_input_for_the_output(run, tmp_path):
    make_kaldi(tmp_path / "in")
    inputs = sorted((tmp_path / "in").glob("nbest.*"))
    for arguments in ([*inputs[:3]], inputs[:2]):
        code, _, err = run("convert", *arguments, "--to", "kaldi")
        assert (code, "was OUT forgotten?" in err) == (2, True)
    code, _, err = run("convert", *inputs[:3], tmp_path / "out.jsonl")
    assert (code, "6 lists written" in err) == (0, True)


@pytest.mark.parametrize("given", ["in", "in/*.jsonl"])
def test_no_file_of_a_folder_or_pattern_is_overwritten(run, tmp_path, ngram_bundle, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    make_files(tmp_path / "in")
    content = (tmp_path / "in" / "part2.jsonl").read_text()
    for command in ("rescore", "tune", "calibrate", "candidates", "convert"):
        target = ["in/part2.jsonl"] if command == "convert" else ["-o", "in/part2.jsonl", "-b", ngram_bundle]
        code, _, err = run(command, given, *target)
        assert (code, "would overwrite" in err or "was OUT forgotten" in err) == (2, True), (command, err)
    assert (tmp_path / "in" / "part2.jsonl").read_text() == content


def test_several_inputs_of_tune_are_one(run, tmp_path, ngram_bundle):
    files = [
        write(tmp_path / f"{job}.jsonl", *(record(key, *TEXTS, reference=f"the cat {key}") for key in ids))
        for job, ids in divide_ids()
    ]
    options = ["--bundle", ngram_bundle, "-o", tmp_path / "w.json", "--json"]
    outputs = [run("tune", *inputs, *options) for inputs in (files, [tmp_path / "*.jsonl"])]
    assert [code for code, _, _ in outputs] == [0, 0], outputs
    results = [json.loads(out) for _, out, _ in outputs]
    assert [result["systems"][0]["lists"] for result in results] == [len(IDS)] * 2
