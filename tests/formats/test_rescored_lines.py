"""Re-ranked lists as JSON lines and parquet: written from columns as from an object per hypothesis."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.formats.jsonlines import encode_ranking, encode_rankings
from rescorer.formats.rescored import get_renderer, rescored_writer
from rescorer.types import Weights
from tests.support.rescored_lines import encode_rescored_list, rankings

WEIGHTS = Weights("tuned", {"acoustic": 1.0}, tuned_on=("abc",))


@given(rankings())
def test_encodes_a_ranking_as_its_hypotheses_one_by_one(ranked):
    expected = encode_rescored_list(ranked.to_rescored_list(WEIGHTS, "demo/3"))
    found = json.loads(encode_ranking(ranked, WEIGHTS, "demo/3"))
    assert json.dumps(found) == json.dumps(json.loads(expected))


@given(st.lists(rankings(), max_size=6))
def test_many_lists_are_encoded_as_each_alone(ranked):
    alone = [encode_ranking(one, WEIGHTS, "demo/3") for one in ranked]
    assert encode_rankings(ranked, WEIGHTS, "demo/3") == alone


def without_nulls(value: Any) -> Any:
    """A value without the fields and the components that it lacks."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [*map(without_nulls, value)] if isinstance(value, list) else value


@pytest.mark.parametrize("best_only", [False, True])
@given(lists=st.lists(rankings(with_fields=False), max_size=4))
@settings(max_examples=30)
def test_a_table_has_the_records_of_json_lines(tmp_path_factory, lists, best_only):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path_factory.getbasetemp() / "rescored.parquet"
    with rescored_writer("parquet", path) as write:
        for ranked in lists:
            (row,) = get_renderer("parquet", best_only=best_only)([ranked], WEIGHTS, "demo/3")
            write(row)
    rows = [without_nulls(row) for row in parquet.read_table(path).to_pylist(maps_as_pydicts="strict")]
    render = get_renderer("jsonl", best_only=best_only)
    expected = [without_nulls(json.loads(line)) for line in render(lists, WEIGHTS, "demo/3")]
    for row in rows:
        row["weights"] = json.loads(row["weights"])
    assert rows == expected


@given(ranked=rankings(with_fields=False))
@settings(max_examples=5)
def test_long_contexts_end_a_row_group(tmp_path_factory, ranked):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path_factory.getbasetemp() / "contexts.parquet"
    long = replace(ranked, nbest=replace(ranked.nbest, context="a" * (1 << 18)))
    with pytest.MonkeyPatch.context() as patch, rescored_writer("parquet", path) as write:
        patch.setattr("rescorer.formats.parquet.GROUP_BYTES", 1 << 18)
        for row in get_renderer("parquet")([long, long, ranked], WEIGHTS, "demo/3"):
            write(row)
    assert parquet.ParquetFile(path).num_row_groups == 3


@given(rankings())
def test_the_best_hypothesis_alone_is_that_of_the_whole_list(ranked):
    whole = json.loads(get_renderer("jsonl")([ranked], WEIGHTS, "demo/3")[0])
    best = json.loads(get_renderer("jsonl", best_only=True)([ranked], WEIGHTS, "demo/3")[0])
    assert json.dumps(best) == json.dumps(whole | {"hypotheses": whole["hypotheses"][:1]})
