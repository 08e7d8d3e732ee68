"""Tables are found in files, folders and object storages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rescorer.errors import ConfigError, FormatError
from rescorer.formats import parquet
from rescorer.formats.parquet import read_lists
from rescorer.formats.registry import detect
from tests.support.object_storage import put, refuse
from tests.support.tables import write_texts


def test_reads_folders_of_tables(tmp_path):
    for name in ("part-1.parquet", "part-0.parquet", "day=2/part-0.parquet", "_temporary/x.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_texts(tmp_path / name, 2)
    (tmp_path / "_SUCCESS").touch()
    assert [Path(name).relative_to(tmp_path) for name in parquet.find_tables(tmp_path)] == [
        Path(name) for name in ("day=2/part-0.parquet", "part-0.parquet", "part-1.parquet")
    ]
    assert detect(tmp_path) == ("parquet", "it has files that end in .parquet")
    assert len(list(read_lists(tmp_path))) == 6
    (tmp_path / "day=2" / "bad.parquet").write_bytes(b"PAR1")
    bad, *others = read_lists(tmp_path)
    assert ("bad.parquet: is not a parquet file" in str(bad), len(others)) == (True, 6)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"has no tables; expected files that end in \.parquet"):
        list(read_lists(tmp_path / "empty"))
    with pytest.raises(FormatError, match="cannot be read from a pipe"):
        list(read_lists("-"))


@pytest.mark.parametrize("names", [["a=1/x.parquet", "_SUCCESS"], ["a=1/b=2/x.parquet"]])
def test_detects_folders_that_have_tables_in_folders_only(names, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert detect(tmp_path) == ("parquet", "its folders have files that end in .parquet")
    (tmp_path / "other" / "_temporary").mkdir(parents=True)
    (tmp_path / "other" / "_temporary" / "x.parquet").touch()
    with pytest.raises(FormatError, match="no known format matches"):
        detect(tmp_path / "other")


def test_reads_objects_and_prefixes(bucket, storage, tmp_path):
    content = write_texts(tmp_path / "a", 3).read_bytes()
    for name in ("t/b.parquet", "t/a.parquet", "t/_SUCCESS", "t/notes.txt"):
        put(f"{bucket}/{name}", content if name.endswith("parquet") else "")
    assert detect(f"{bucket}/t/a.parquet")[0] == detect(f"{bucket}/t")[0] == "parquet"
    assert parquet.find_tables(f"{bucket}/t") == [f"{bucket}/t/a.parquet", f"{bucket}/t/b.parquet"]
    assert list(read_lists(f"{bucket}/t")) == 2 * list(read_lists(tmp_path / "a"))
    denied = refuse("403 Forbidden", "AccessDenied", "GET", "a.parquet")
    with (
        storage.fault(denied),
        pytest.raises(FormatError, match=r"a\.parquet: cannot be read: access denied"),
    ):
        list(read_lists(f"{bucket}/t/a.parquet"))


def test_says_which_extra_is_missing(tmp_path, monkeypatch):
    write_texts(tmp_path / "a", 1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'rescorer\[parquet\]'"):
        list(read_lists(tmp_path / "a"))
