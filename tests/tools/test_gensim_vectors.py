"""The comparison of word vectors with gensim's: both train, and the table has both."""

from __future__ import annotations

import pytest

from tools.gensim_vectors import describe_difference, main


@pytest.mark.slow
def test_prints_a_row_of_each_program(tmp_path, capsys):
    pytest.importorskip("gensim", reason="gensim is not installed")
    (tmp_path / "text.txt").write_text("the red cat sat on the blue mat\nthe cat ate red fish\n" * 30)
    (tmp_path / "questions.txt").write_text(": colours\nred cat blue mat\n")
    sets = tmp_path / "sets"
    sets.mkdir()
    words = ["the", "red", "cat", "sat", "on", "mat", "ate"]
    pairs = (f"{word}\tblue\t{score}\n" for score, word in enumerate(words))
    (sets / "EN-MADE.txt").write_text("".join(pairs))
    arguments = [tmp_path / "text.txt", "--questions", tmp_path / "questions.txt", "--sets", sets]
    main(
        [*map(str, arguments), "--dimensions", "4", "--model", "cbow", "--seeds", "1", "2", "--threads", "2"]
    )
    header, *rows, ratio, analogies, similarity = capsys.readouterr().out.splitlines()
    assert header.split() == ["seed", "words/s", "analogies", "%", "covered", "mean", "ρ"]
    assert [row.split()[:2] for row in rows] == [
        ["rescorer-train", "1"], ["gensim", "1"], ["rescorer-train", "2"], ["gensim", "2"]
    ]  # fmt: skip
    assert all(len(row.split()) == 8 for row in rows)
    assert ratio.endswith("times gensim's")
    assert analogies.endswith("points from gensim's")
    assert " to " in analogies
    assert similarity.startswith("mean ρ: ")
    assert " to " in similarity


def test_one_seed_has_no_interval():
    assert describe_difference([12.0], [11.5], 1) == "+0.5 (one seed)"


def test_the_interval_of_a_difference_is_welchs():
    # by hand: variances 1 and 4 of three values each, t(2.94; 0.975) = 3.22, standard error 1.291
    assert describe_difference([9.0, 10.0, 11.0], [6.0, 8.0, 10.0], 1) == "+2.0 (-2.2 to +6.2)"
