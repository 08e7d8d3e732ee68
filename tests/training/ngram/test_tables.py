"""N-gram tables as input of the commands that change n-gram models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import BundleError
from rescorer.models.ngram_files import build_table, list_ngrams, read_ngram, write_table
from rescorer.models.ngrams import NO_KEY
from rescorer_training.cli import main
from rescorer_training.ngram.backoff_model import load_backoff_model
from rescorer_training.recipe.bundles import write_arpa_table
from tests.support.backoff_models import FIRST_TEXT, SECOND_TEXT, map_ngrams_to_rows, train_small_model
from tests.support.random_ngrams import random_orders, write_random_arpa


def write_table_of(arpa: Path) -> Path:
    path = arpa.with_suffix(".ngram")
    with arpa.open("rb") as stream:
        write_arpa_table(stream, path)
    return path


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), order=st.integers(1, 5), gaps=st.booleans())
def test_the_listed_ngrams_make_an_equal_table(seed, order, gaps, tmp_path_factory):
    path = tmp_path_factory.mktemp("list") / "m.arpa"
    model = read_ngram(write_random_arpa(path, random_orders(seed, order, gaps=gaps)))
    again = build_table(list_ngrams(model.table, "m"), "m")
    np.testing.assert_array_equal(again.unigrams, model.table.unigrams)
    for found, expected in zip(again.orders, model.table.orders, strict=True):
        np.testing.assert_array_equal(found.records, expected.records)
        np.testing.assert_array_equal(found.hash.pilots, expected.hash.pilots)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_a_table_is_read_as_its_arpa_file_is(order, tmp_path):
    arpa = write_random_arpa(tmp_path / "m.arpa", random_orders(5, order))
    expected, found = load_backoff_model(arpa), load_backoff_model(write_table_of(arpa))
    places, expected_places = map_ngrams_to_rows(found), map_ngrams_to_rows(expected)
    assert set(places) == set(expected_places)
    for ngram, row in expected_places.items():
        assert found.prob[places[ngram]] == pytest.approx(expected.prob[row], rel=1e-6)
        assert found.backoff[places[ngram]] == pytest.approx(expected.backoff[row], rel=1e-6)


def test_a_damaged_table_is_refused(tmp_path):
    model = read_ngram(write_random_arpa(tmp_path / "m.arpa", random_orders(5, 3)))
    records = model.table.orders[-1].records
    slot = int(np.flatnonzero(records[:, 0] != NO_KEY)[0])
    for context in (model.table.orders[0].hash.n_slots, 1 << 40):
        records[slot, 0] = context * model.table.n_words
        with (tmp_path / "m.ngram").open("wb") as stream:
            write_table(stream, model.content)
        with pytest.raises(BundleError, match="3-grams has a context that it lacks"):
            load_backoff_model(tmp_path / "m.ngram")


def test_commands_read_tables(run, tmp_path):
    arpa = train_small_model(tmp_path, FIRST_TEXT + SECOND_TEXT, 3)
    text, table = tmp_path / "valid.txt", write_table_of(arpa)
    text.write_text(SECOND_TEXT)
    written = {}
    for name, model in (("arpa", arpa), ("table", table)):
        output = tmp_path / f"small-{name}.arpa"
        command = ("prune", model, "-o", output, "--keep", 30, "--normaliser", "raw")
        code, _, err = run(*command, command=main)
        assert code == 0, err
        written[name] = len(output.read_text().splitlines())
    assert written["arpa"] == written["table"]
    command = ("interpolate", "--ngram", table, "--ngram", tmp_path / "small-arpa.arpa", text)
    code, out, err = run(
        *command, "--write", tmp_path / "mixed.arpa", "--json", "--normaliser", "raw", command=main
    )
    assert code == 0, err
    assert json.loads(out)["written"]
    assert read_ngram(tmp_path / "mixed.arpa").order == 3
