"""``rescorer rescore --shards`` and ``rescorer shards``: what users see and may do wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from rescorer.bench.load import process_tree
from rescorer.cli.rescore import EngineOptions
from rescorer.errors import ConfigError
from rescorer.jobs.store import RECORDS
from tests.support.sharding import BATCH_WORDS, make_lines, write_lines


@pytest.fixture
def lists(tmp_path):
    return write_lines(tmp_path / "in.jsonl", make_lines(40))


@pytest.fixture
def rescore(run, ngram_bundle, tmp_path):
    """Rescore into the folder ``out``."""

    def call(*arguments):
        fixed = "-o", tmp_path / "out", "--bundle", ngram_bundle, "--batch-words", BATCH_WORDS
        return run("rescore", *arguments, *fixed)

    return call


def test_shards_give_the_output_of_the_plain_command(run, rescore, lists, ngram_bundle, tmp_path):
    plain = tmp_path / "plain.jsonl"
    assert run("rescore", lists, "-o", plain, "--bundle", ngram_bundle, "--batch-words", BATCH_WORDS)[0] == 1
    code, _, err = rescore(lists, "--shards", 3, "--json")
    assert code == 1, err
    summary = json.loads(err)
    assert run("shards", "verify", tmp_path / "out", "--inputs") == (
        0,
        "3 shards, all committed and intact\n",
        "",
    )
    code, _, err = run("shards", "merge", tmp_path / "out", "-o", tmp_path / "merged.jsonl", "--json")
    assert code == 0
    assert json.loads(err) == {"shards": 3, **summary}
    for suffix in ("", ".rejects"):
        assert (tmp_path / f"merged.jsonl{suffix}").read_bytes() == (
            tmp_path / f"plain.jsonl{suffix}"
        ).read_bytes()


def test_tasks_of_an_array_job_make_the_plan_and_run_a_shard_each(run, rescore, lists, tmp_path):
    for shard in (1, 0, 2):
        code, _, err = rescore(lists, "--shards", 3, "--shard", shard)
        assert code in (0, 1), err
    code, out, _ = run("shards", "status", tmp_path / "out", "--json")
    status = json.loads(out)
    assert (status["committed"], status["missing"], status["attempts"]) == (3, [], [])
    assert "1 of 1 shard committed before" in rescore(lists, "--shard", 1)[2]
    assert rescore(lists, "--shard", 3)[2].endswith("the plan has shards 0 to 2\n")


def test_resume_runs_what_is_missing(run, rescore, lists, tmp_path):
    code, _, err = rescore(lists, "--shard-lists", 10, "--plan-only")
    assert (code, "4 shards" in err or "5 shards" in err) == (0, True), err
    rescore(lists, "--shard", 2)
    code, _, err = rescore(lists, "--resume")
    assert "1 of " in err
    assert "shards committed before" in err
    assert run("shards", "verify", tmp_path / "out")[0] == 0


def cut_short(folder, record):
    record.write_bytes(record.read_bytes()[:100])
    return record


def change_checksum(folder, record):
    record.write_text(record.read_text().replace('"sha256": "', '"sha256": "0', 1))
    return record


def delete_data(folder, record):
    data = folder / json.loads(record.read_text())["data"]["name"]
    data.unlink()
    return data


def empty_rejects(folder, record):
    rejects = folder / json.loads(record.read_text())["rejects"]["name"]
    rejects.write_text("")
    return rejects


@pytest.mark.parametrize("damage", [cut_short, change_checksum, delete_data, empty_rejects])
def test_all_commands_say_that_a_shard_with_a_damaged_record_is_not_committed(
    damage, run, rescore, lists, tmp_path
):
    out = tmp_path / "out"
    rescore(lists, "--shards", 3, "--plan-only")
    rescore(lists, "--shard", 1)
    record = out / "records" / "000001.json"
    damaged = damage(out, record)
    before = record.read_bytes()
    for option in (("--resume",), ("--resume",), ("--shard", 1)):
        code, _, err = rescore(lists, *option)
        assert (code, "failed: shard 1: " in err) == (3, True), err
        assert str(damaged) in err
        assert "remove " in err
        assert "and --resume" in err
    assert record.read_bytes() == before
    status = json.loads(run("shards", "status", out, "--json")[1])
    assert (status["committed"], status["missing"], len(status["damaged"])) == (2, [1], 1)
    code, problems, _ = run("shards", "verify", out)
    assert (code, problems.count("\n"), str(damaged) in problems) == (1, 2, True), problems
    code, _, err = run("shards", "merge", out, "-o", tmp_path / "merged.jsonl")
    assert (code, str(damaged) in err) == (3, True), err
    record.unlink()  # what the messages say
    assert "2 of 3 shards committed before" in rescore(lists, "--resume")[2]
    assert run("shards", "verify", out)[0] == 0


def test_resume_refuses_what_has_changed_and_names_it(rescore, lists, run, bundle, tmp_path):
    rescore(lists, "--shards", 2, "--plan-only")
    for options, message in [
        (("-w", "word=-1"), "weights.word was 0.1, is -1.0"),
        (("--merge",), "options.merge was false, is true"),
        (("--to", "trn"), "options.to was jsonl, is trn"),
    ]:
        code, _, err = rescore(lists, "--resume", *options)
        assert (code, message in err) == (2, True), err
    fixed = "-o", tmp_path / "out", "--batch-words", BATCH_WORDS
    code, _, err = run("rescore", lists, "--resume", "--bundle", bundle, *fixed)
    assert code == 2
    assert "bundle.files.neural" in err
    assert "restore what has changed" in err
    other = write_lines(tmp_path / "other.jsonl", make_lines(3))
    code, _, err = rescore(lists, other, "--resume")
    assert (code, "other.jsonl: this file is not in the plan" in err) == (3, True), err
    write_lines(lists, make_lines(41))
    code, _, err = rescore(lists, "--resume")
    assert (code, "in.jsonl: changed since the plan: it had" in err) == (3, True), err


def test_input_that_changes_without_its_size_fails_only_its_shard(rescore, lists, run, tmp_path):
    rescore(lists, "--shards", 3, "--plan-only")
    lists.write_text(lists.read_text().replace('"u39"', '"v39"'))
    code, _, err = rescore(lists, "--resume")
    assert code == 3
    assert "1 of 3 shards failed: shard 2: " in err
    assert "have changed since the plan" in err
    status = json.loads(run("shards", "status", tmp_path / "out", "--json")[1])
    assert status["missing"] == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shards", 2, "--shard-lists", 2), "give one of them"),
        (("--resume", "--shard", 1), "give one of them"),
        (("--resume",), "has no plan yet; give --shards N"),
        (("--shard", 0), "has no plan yet; give --shards N"),
        (("--shards", 2, "--rejects", "r"), "each shard has its rejects"),
        (("--workers", 2, "--processes", 3), "--processes is the old name of --workers"),
        (("--plan-only",), "--plan-only is for shards"),
        (("--shards", 1_000_000), "at most 100,000"),
        (("--shards", 2, "--address", "auto"), "--address is for a cluster; give --engine ray too"),
        (("--shards", 2, "--gpus-per-worker", 1), "--gpus-per-worker is for a cluster"),
        (("--engine", "ray"), "--engine ray runs shards; give --shards N"),
        (("--shards", 2, "--engine", "ray", "--address", "head"), "expected auto, HOST:PORT or ray://"),
        (("--shards", 2, "--engine", "ray", "--gpus-per-worker", 0.5), "--device is cpu"),
        (("--shards", 2, "--engine", "ray", "--gpus-per-worker", 1e-5), "shares of at least 0.0001"),
        (("--shards", 2, "--engine", "ray", "--device", "cuda"), "give --gpus-per-worker too"),
    ],
)
def test_says_what_is_wrong_with_options(options, message, rescore, lists):
    code, _, err = rescore(lists, *options)
    assert code == 2
    assert message in err


def test_accepts_the_old_name_of_workers_with_a_warning(run, rescore, lists, ngram_bundle, tmp_path):
    warning = "warning: --processes is now called --workers; the old name ends with 0.2\n"
    code, _, err = rescore(lists, "--shards", 2, "--processes", 1)
    assert (code, err.startswith(warning)) == (1, True), err
    fixed = lists, "--bundle", ngram_bundle, "--batch-words", BATCH_WORDS, "--quiet"
    answers = []
    for number, option in enumerate([("--processes", 2), ("--workers", 2), ()]):
        out = tmp_path / f"{number}.jsonl"
        code, _, err = run("rescore", *fixed, "-o", out, *option)
        assert (code, err) == (1, warning if "--processes" in option else "")
        answers.append(out.read_bytes())
    assert answers[0] == answers[1] == answers[2]
    assert "--processes" not in run("rescore", "--help")[1]


def test_says_what_is_wrong_with_folders(run, rescore, lists, ngram_bundle, tmp_path):
    assert (
        "shards are written into a folder"
        in run("rescore", lists, "--bundle", ngram_bundle, "--shards", 2)[2]
    )
    code, _, err = run("rescore", lists, "-o", lists, "--bundle", ngram_bundle, "--shards", 2)
    assert (code, "is a file; shards are written into a folder" in err) == (2, True)
    assert "this input is given twice" in run("rescore", lists, lists, "--bundle", ngram_bundle)[2]
    for command in ("status", "verify", "clean"):
        code, _, err = run("shards", command, tmp_path / "none")
        assert (code, "there is no plan.json" in err) == (2, True), err
    rescore(lists, "--shards", 2)
    assert "has a plan already: --resume goes on with it" in rescore(lists, "--shards", 2)[2]


@pytest.mark.parametrize("address", ["localhost:{}", "localhost:99999", "no-such-host.invalid:6379"])
def test_makes_no_plan_for_a_cluster_that_does_not_answer(
    address, run, rescore, lists, unused_port, tmp_path
):
    options = "--shards", 2, "--engine", "ray", "--address", address.format(unused_port)
    for _ in range(2):
        code, _, err = rescore(lists, *options)
        assert (code, "no Ray cluster answers there" in err) == (2, True), err
    assert not (tmp_path / "out").exists()
    assert rescore(lists, *options, "--plan-only")[0] == 0  # for machines that reach it


def test_makes_no_plan_for_an_engine_that_is_not_installed(rescore, lists, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = rescore(lists, "--shards", 2, "--engine", "ray")
    assert (code, "pip install 'rescorer[ray]'" in err) == (2, True), err
    assert not (tmp_path / "out").exists()


def test_a_failure_after_the_plan_says_how_to_go_on(rescore, lists, monkeypatch):
    def fail(*_):
        raise ConfigError("no worker can start")

    monkeypatch.setattr(EngineOptions, "run_shards", fail)
    code, _, err = rescore(lists, "--shards", 2)
    assert (code, "no worker can start; the plan in " in err, "with --resume" in err) == (2, True, True), err
    assert "the plan in" not in rescore(lists, "--resume")[2]


def test_conversations_are_never_divided(run, rescore, lists, tmp_path):
    _, _, err = rescore(lists, "--shards", 4, "--session", "group", "-w", "cache=0.1")
    assert "of 4 shards, 3 got no lists" in err
    status = json.loads(run("shards", "status", tmp_path / "out", "--json")[1])
    assert (status["committed"], status["lists"] + status["rejected"]) == (4, 44)


def test_status_shows_what_killed_processes_left(run, rescore, lists, tmp_path):
    rescore(lists, "--shards", 2)
    (tmp_path / "out" / "attempts" / "000001.abc.jsonl").write_text("left")
    out = run("shards", "status", tmp_path / "out")[1]
    assert "attempts/000001.abc.jsonl: 4 bytes, written 0 s ago" in out
    assert run("shards", "clean", tmp_path / "out")[1] == "0 files deleted, 0.0 MB\n"
    deleted = json.loads(run("shards", "clean", tmp_path / "out", "--older-than", 0, "--json")[1])
    assert deleted == {"deleted": ["attempts/000001.abc.jsonl"], "bytes": 4}
    assert run("shards", "verify", tmp_path / "out")[0] == 0


def test_status_fits_on_a_narrow_terminal(run, rescore, lists, tmp_path, monkeypatch):
    rescore(lists, "--shards", 2)
    (tmp_path / "out" / "attempts" / f"000001.{'a' * 12}.jsonl.rejects").write_text("left")
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("shards", "status", tmp_path / "out")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_shards_of_a_folder_of_tables_give_the_output_of_the_plain_command(
    run, rescore, lists, ngram_bundle, tmp_path
):
    (tmp_path / "tables").mkdir()
    for i in range(3):
        write_lines(lists, make_lines(10 + i))
        assert run("convert", lists, tmp_path / "tables" / f"part-{i}.parquet", "--to", "parquet")[0] == 1
    fixed = "--bundle", ngram_bundle, "--batch-words", BATCH_WORDS
    assert run("rescore", tmp_path / "tables", "-o", tmp_path / "plain.jsonl", *fixed)[0] == 0
    assert rescore(tmp_path / "tables", "--shards", 3)[0] == 0
    assert run("shards", "verify", tmp_path / "out", "--inputs")[0] == 0
    assert run("shards", "merge", tmp_path / "out", "-o", tmp_path / "merged.jsonl")[0] == 0
    assert (tmp_path / "merged.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    forecast = json.loads(run("rescore", tmp_path / "tables", "--plan", "--json", *fixed)[1])
    assert forecast["lists"] == 33


def test_tables_may_have_other_names_of_columns(run, ngram_bundle, tmp_path):
    table = pa.table({"utt": ["u1"], "nbest": [["the cat", "the mat"]], "am": [[-1.0, -2.0]]})
    pq.write_table(table, tmp_path / "a.parquet")
    options = "--map", "id=utt,hypotheses=nbest", "--stream", "acoustic=am:10", "-w", "acoustic=1"
    code, _, err = run(
        "rescore", tmp_path / "a.parquet", *options, "-o", tmp_path / "o", "--bundle", ngram_bundle
    )
    assert code == 0, err
    record = json.loads((tmp_path / "o").read_text())
    assert (record["id"], record["hypotheses"][0]["components"]["acoustic"]) == ("u1", -2.302585)


def kill_when_some_are_committed(process: subprocess.Popen[bytes], out: Path, *, n_committed: int) -> None:
    """Kill a worker of a command that rescores in shards, then its main process, after more commits."""
    victims = [lambda: process_tree(process.pid)[-1], lambda: process.pid]
    for number, find_victim in enumerate(victims, start=1):
        while len(list((out / RECORDS).glob("*"))) < number * n_committed:
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(find_victim(), signal.SIGKILL)


@pytest.mark.slow
def test_kills_of_workers_and_of_the_main_process_lose_and_repeat_nothing(run, ngram_bundle, tmp_path):
    lists = write_lines(tmp_path / "in.jsonl", make_lines(160))
    plain, merged, out = (tmp_path / name for name in ("plain.jsonl", "merged.jsonl", "out"))
    options = lists, "--bundle", ngram_bundle, "--batch-words", BATCH_WORDS
    assert run("rescore", *options, "-o", plain)[0] == 1
    sharded = "rescore", *options, "-o", out, "--shards", 80, "--workers", 2
    command = [sys.executable, "-m", "rescorer.cli", *map(str, sharded)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        kill_when_some_are_committed(process, out, n_committed=10)
    assert process.returncode == -signal.SIGKILL
    assert "shards committed before" in run(*sharded, "--resume")[2]
    assert run("shards", "verify", out, "--inputs")[0] == 0
    assert run("shards", "merge", out, "-o", merged)[0] == 0
    assert merged.read_bytes() == plain.read_bytes()
