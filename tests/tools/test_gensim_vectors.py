"""The comparison of word vectors with gensim's: both train, and the table has both."""

from __future__ import annotations

import pytest

from tools.gensim_vectors import main


@pytest.mark.slow
def test_prints_a_row_of_each_program(tmp_path, capsys):
    pytest.importorskip("gensim")
    (tmp_path / "text.txt").write_text("the red cat sat on the blue mat\nthe cat ate red fish\n" * 30)
    (tmp_path / "questions.txt").write_text(": colours\nred cat blue mat\n")
    sets = tmp_path / "sets"
    sets.mkdir()
    words = ["the", "red", "cat", "sat", "on", "mat", "ate"]
    pairs = (f"{word}\tblue\t{score}\n" for score, word in enumerate(words))
    (sets / "EN-MADE.txt").write_text("".join(pairs))
    arguments = [tmp_path / "text.txt", "--questions", tmp_path / "questions.txt", "--sets", sets]
    main([*map(str, arguments), "--dimensions", "4", "--model", "cbow", "--output-layer", "hierarchical"])
    header, ours, theirs, ratio = capsys.readouterr().out.splitlines()
    assert header.split() == ["words/s", "analogies", "%", "mean", "ρ"]
    assert ours.split()[0] == "rescorer-train"
    assert theirs.split()[0] == "gensim"
    assert len(ours.split()) == len(theirs.split()) == 6
    assert ratio.endswith("times gensim's")
