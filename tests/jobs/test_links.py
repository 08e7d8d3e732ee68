"""Symbolic links in a folder of shards: nothing outside the folder is read, written or deleted."""

from __future__ import annotations

import os

import pytest

from rescorer.errors import ConfigError
from rescorer.jobs.store import LocalStore
from tests.support.list_lines import GOOD, write

RECORD = "records/000000.json"
REASON = "leads out of the folder to .*outside.*: remove the link"


@pytest.fixture
def outside(tmp_path):
    """A folder with a file, to which links lead."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("secret")
    return folder


@pytest.mark.parametrize("name", ["records", "attempts"])
def test_a_linked_folder_is_refused_before_anything_is_written(run, ngram_bundle, tmp_path, outside, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(outside)
    lists = write(tmp_path / "in.jsonl", *GOOD)
    job = ("rescore", lists, "--bundle", ngram_bundle, "-w", "acoustic=1", "-o", tmp_path / "out")
    code, _, err = run(*job, "--shards", "2")
    assert (code, err.count("leads out of the folder")) == (2, 1), err
    assert os.listdir(outside) == ["file"]
    for command in ("status", "verify", "clean"):
        assert run("shards", command, tmp_path / "out")[0] != 0
    assert (outside / "file").read_text() == "secret"


@pytest.mark.parametrize("name", ["plan.json", RECORD, "attempts/000000.0a.jsonl"])
@pytest.mark.parametrize("target", ["file", "missing"])
def test_a_linked_file_is_refused(tmp_path, outside, name, target):
    store = LocalStore(tmp_path / "out")
    store.prepare()
    (store.folder / name).symlink_to(outside / target)
    calls = [
        lambda: store.open(name), lambda: store.create(name, b"ours"), lambda: store.exists(name),
        lambda: store.save(name), lambda: store.scratch(name), lambda: store.delete(name),
    ]  # fmt: skip
    if "/" in name:
        calls.append(lambda: store.list_files(name.partition("/")[0]))
    for call in calls:
        with pytest.raises(ConfigError, match=REASON):
            call()
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "secret"


def test_links_that_stay_inside_and_links_to_the_folder_are_followed(tmp_path):
    folder = tmp_path / "real"
    (folder / "elsewhere").mkdir(parents=True)
    (folder / "records").symlink_to("elsewhere")
    (tmp_path / "link").symlink_to(folder)
    store = LocalStore(tmp_path / "link")
    store.prepare()
    assert store.create(RECORD, b"ours")
    assert (folder / "elsewhere" / "000000.json").read_bytes() == b"ours"
    assert [file.name for file in store.list_files("records")] == [RECORD]


def test_a_pipe_in_place_of_a_record_does_not_block(tmp_path):
    store = LocalStore(tmp_path)
    store.prepare()
    os.mkfifo(tmp_path / RECORD)
    with pytest.raises(ConfigError, match="is no regular file"):
        store.open(RECORD)
