"""Made archives: the same by seed, each list with an id of its own, and copies far from one another."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.types import Hypothesis, NBestList
from tools.archive.lists import ListMaker, order_copies, write_archive

WORDS = ("the", "cat", "sat", "on", "mat", "zebra", "dog", "<sil>")


def make_real(n: int) -> list[NBestList]:
    """Lists of 1 to 4 hypotheses, the first of them empty."""
    lists = []
    for i in range(n):
        texts = [" ".join(WORDS[(i + j + k) % 8] for k in range(i % 7)) for j in range(1 + i % 4)]
        lists.append(
            NBestList(
                f"u{i}",
                tuple(map(Hypothesis, texts)),
                {"acoustic": tuple(-1.0 * j for j in range(len(texts)))},
            )
        )
    return lists


@given(st.integers(2, 9), st.integers(0, 3))
def test_copies_are_apart_and_all_lists_are_used_alike(n, seed):
    order = order_copies(n, random.Random(seed))
    drawn = [next(order) for _ in range(6 * n)]
    last: dict[int, int] = {}
    for place, number in enumerate(drawn):
        assert place - last.get(number, -n) > n // 2
        last[number] = place
    assert all(drawn.count(number) == 6 for number in range(n))


def test_copies_have_all_hypotheses_and_ids_of_their_own():
    copies = list(ListMaker(make_real(8), 10, seed=1).make(200))
    assert len({nbest.id for nbest in copies}) == 200
    assert {len(nbest.hypotheses) for nbest in copies} == {10}
    assert (
        len({str(nbest.hypotheses) for nbest in copies}) > 150
    )  # those of the shortest lists are often alike
    for nbest in copies:
        assert len(nbest.streams["acoustic"]) == 10
        assert nbest.streams["acoustic"][-1] < nbest.streams["acoustic"][0]
        assert {word for item in nbest.hypotheses for word in item.text.split()} <= set(WORDS)


def test_longer_lists_are_cut():
    (nbest,) = ListMaker(make_real(8), 1, seed=1).make(1)
    assert len(nbest.hypotheses) == len(nbest.streams["acoustic"]) == 1


def test_the_seed_decides_the_bytes_of_all_files(tmp_path):
    def write(seed: int, name: str):
        maker = ListMaker(make_real(8), 5, seed)
        return list(write_archive(maker, 20, tmp_path / name, 3))

    first, again, other = write(1, "first"), write(1, "again"), write(2, "other")
    assert [file.sha256 for file in first] == [file.sha256 for file in again]
    assert not {file.sha256 for file in first} & {file.sha256 for file in other}
    assert [file.lists for file in first] == [6, 7, 7]
    for file in first:
        lines = file.path.read_text().splitlines()
        assert (len(lines), file.path.stat().st_size) == (file.lists, file.n_bytes)
        assert sum(len(json.loads(line)["hypotheses"]) for line in lines) == file.hypotheses


def test_refuses_lists_of_which_no_archive_can_be_made():
    one, other = make_real(7)[5:]
    with pytest.raises(ConfigError, match="some lack one of acoustic, lm"):
        ListMaker([one, NBestList("v", one.hypotheses, {"lm": (0.0, 0.0)})], 5, seed=1)
    with pytest.raises(ConfigError, match="at least two lists with words"):
        ListMaker([other], 5, seed=1)
