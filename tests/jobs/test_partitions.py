"""Any division into shards gives, byte by byte, what ``rescorer rescore`` writes for the undivided input."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.jobs.files import rescore_lists
from rescorer.jobs.plan import Division, InputFile, Part, Plan, find_files, make_plan, open_part, parse_plan
from rescorer.jobs.shards import find_outputs, merge, verify
from rescorer.jobs.store import LocalStore
from tests.support.sharding import (
    BATCH_WORDS,
    load,
    make_job,
    make_lines,
    make_source,
    plan_into,
    run_all,
    write_lines,
)

DIVISIONS = st.builds(
    Division,
    st.integers(1, 12),
    st.sampled_from(["shards", "lists"]),
    st.sampled_from([None, 20, BATCH_WORDS]),
)
HEADER = '{"format": "rescorer-nbest", "version": 1, "streams": {"acoustic": {"base": "10", "sign": "cost"}}}'


def rescore_plainly(path: Path, job, rescorer) -> tuple[str, str]:
    output, rejects = io.StringIO(), io.StringIO()
    lists = job.source.read_file(str(path))
    rescore_lists(rescorer, lists, lambda line: print(line, file=output), rejects.write)
    return output.getvalue(), rejects.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bundle", "ngram_bundle"])
@pytest.mark.parametrize("division", [Division(5, "shards", 40), Division(4, "lists", 40)])
def test_merges_to_the_bytes_of_the_undivided_file(kind, division, request, tmp_path):
    job = make_job(request.getfixturevalue(kind))
    lists = write_lines(tmp_path / "in.jsonl", make_lines(60))
    store = plan_into(tmp_path / "out", [lists], job, division)
    run_all(store, job)
    plan, rescorer = load(store, job)
    assert sum(bool(shard) for shard in plan.shards) > 3
    summary = merge(store, str(tmp_path / "merged.jsonl"), tmp_path / "merged.rejects")
    expected = rescore_plainly(lists, job, rescorer)
    merged = (tmp_path / "merged.jsonl").read_text(), (tmp_path / "merged.rejects").read_text()
    assert merged == expected
    assert (summary.lists, summary.rejected) == tuple(text.count("\n") for text in expected)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=3), DIVISIONS, st.booleans(), st.booleans())
@settings(max_examples=60)
def test_parts_hold_every_list_once_in_order(sizes, division, has_header, ends_with_line_end):
    """The slow twin is the reader of whole files."""
    source = make_source(format_="jsonl")
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for i, n in enumerate(sizes):
            path = write_lines(Path(folder) / f"{i}.jsonl", [HEADER] * has_header + make_lines(n))
            if not ends_with_line_end:
                path.write_text(path.read_text().rstrip("\n"))
            names.append(str(path))
        plan = make_plan(names, source, {}, division)
        assert parse_plan(plan.encode(), "plan") == plan
        found = []
        for shard in plan.shards:
            for part in shard:
                with open_part(plan.files[part.file], part, source) as lists:
                    items = list(lists)
                assert len(items) == part.lists
                found += items
        expected = [item for name in names for item in source.read_file(name)]
    assert list(map(repr, found)) == list(map(repr, expected))
    assert [str(item) for item in found] == [str(item) for item in expected]  # with the same line numbers
    if division.unit == "shards":
        assert len(plan.shards) == division.n
    elif division.batch_words is None:
        assert all((plan.count_lists(i) or 0) >= division.n for i in range(len(plan.shards) - 1))


def test_divides_by_bytes_evenly(tmp_path):
    path = write_lines(tmp_path / "in.jsonl", make_lines(400))
    plan = make_plan([str(path)], make_source(), {}, Division(4, "shards", None))
    sizes = [sum(part.end - part.start for part in shard) for shard in plan.shards]
    assert sum(sizes) == path.stat().st_size
    assert max(sizes) < 1.1 * min(sizes)


def test_compressed_files_and_other_formats_are_one_shard_each(tmp_path):
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(make_lines(20)).encode()))
    (tmp_path / "in.trn").write_text("the cat (u1)\nthe mat (u2)\n")
    source = make_source()
    plan = make_plan([str(packed), str(tmp_path / "in.trn")], source, {}, Division(1, "lists", None))
    assert [[plan.files[part.file].name for part in shard] for shard in plan.shards] == [
        [str(packed)],
        [str(tmp_path / "in.trn")],
    ]
    assert plan.count_lists(0) is None
    with open_part(plan.files[0], plan.shards[0][0], source) as lists:
        assert len(list(lists)) == len([line for line in make_lines(20) if line])


def test_finds_files_by_globs_and_in_folders(tmp_path):
    for name in ("b.jsonl", "a.jsonl", ".hidden.jsonl"):
        write_lines(tmp_path / name, make_lines(2))
    source = make_source()
    both = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    assert find_files([str(tmp_path)], source) == both
    assert find_files([str(tmp_path / "*.jsonl")], source) == both
    with pytest.raises(ConfigError, match=r"a\.jsonl: this input is given twice"):
        find_files([both[0], str(tmp_path)], source)
    with pytest.raises(ConfigError, match="a pipe cannot be divided"):
        find_files(["-"], source)
    with pytest.raises(FormatError, match="No such file"):
        find_files([str(tmp_path / "*.none")], source)


def test_a_file_without_lists_gives_empty_shards(tmp_path):
    (tmp_path / "in.jsonl").write_text("\n\n")
    plan = make_plan([str(tmp_path / "in.jsonl")], make_source(), {}, Division(3, "shards", None))
    assert len(plan.shards) == 3
    assert [plan.count_lists(index) for index in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("change", ["content", "shorter"])
def test_says_which_part_of_the_input_has_changed(change, tmp_path):
    path = write_lines(tmp_path / "in.jsonl", make_lines(30))
    source = make_source()
    plan = make_plan([str(path)], source, {}, Division(3, "shards", None))
    content = path.read_bytes()
    path.write_bytes(content[:-40] if change == "shorter" else content[:-40] + content[-40:].upper())
    with open_part(plan.files[0], plan.shards[0][0], source) as lists:
        list(lists)
    part = plan.shards[2][-1]
    expected = rf"in\.jsonl: bytes {part.start:,} to {part.end:,} have changed since the plan"
    with pytest.raises(InputError, match=expected), open_part(plan.files[0], part, source) as lists:
        list(lists)


def test_rejects_plans_of_other_versions():
    for content in (b"", b"[]", b'{"format": "rescorer-shards", "version": 2}', b"\xff"):
        with pytest.raises(FormatError, match="is no plan that this version can read"):
            parse_plan(content, "plan.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"file": 0', '"file": 1'),
        ('"start": 0', '"start": -1'),
        ('"start": 0', '"start": 1000'),
        ('"end": 10', '"end": 11'),
        ('"end": 10', '"end": 10.0'),
        ('"lists": 1', '"lists": "1"'),
        ('"sha256": "00', '"sha256": "../'),
        ('"n_bytes": 10', '"n_bytes": true'),
        ('"name": "in.jsonl"', '"name": 5'),
        ('"name": "in.jsonl"', '"name": "in\\u0000"'),
        ('"name": "in.jsonl"', '"name": "\\ud800"'),
        ('"answers": {}', '"answers": []'),
    ],
)
def test_rejects_plans_that_contradict_themselves(old, new):
    part = Part(0, 0, 10, 1, 1, "0" * 64)
    content = Plan({}, (InputFile("in.jsonl", 10, True),), ((part,), ())).encode()
    assert parse_plan(content, "plan.json").shards[0] == (part,)
    changed = content.replace(old.encode(), new.encode())
    assert changed != content
    with pytest.raises(FormatError, match=r"^plan.json: is no plan that this version can read: "):
        parse_plan(changed, "plan.json")


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_a_plan_that_names_a_device_or_a_pipe_does_not_hang(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    part = Part(0, 0, 10, 1, 1, "0" * 64)
    for is_lines in (True, False):
        plan = Plan({}, (InputFile(str(tmp_path / name), 10, is_lines),), ((part,),))
        (tmp_path / "plan.json").write_bytes(plan.encode())
        assert "is no regular file" in [*verify(LocalStore(tmp_path), inputs=True)][-1]


def test_a_plan_without_the_format_of_the_output_is_refused(tmp_path):
    for options in (None, [], {"to": 5}):
        plan = Plan({"options": options}, (), ())
        (tmp_path / "plan.json").write_bytes(plan.encode())
        with pytest.raises(FormatError, match=r"plan\.json: the plan does not say in which format"):
            find_outputs(LocalStore(tmp_path))
