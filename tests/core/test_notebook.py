"""Objects show themselves in one line, as bounded and harmless tables, as data frames, and in help()."""

from __future__ import annotations

import copy
import pickle
import pydoc
import sys
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rescorer
from rescorer import ConfigError, Hypothesis, NBestList, RescoredHypothesis, RescoredList, Weights
from rescorer.evaluation.error_rate import DEFAULT_COUNTING
from rescorer.evaluation.list_errors import Selection
from rescorer.evaluation.run import Evaluation
from rescorer.evaluation.systems import Comparison
from rescorer.notebook import LIBRARIES, MAX_ROWS, Table, read_field_texts
from rescorer.text import Normaliser

EVIL = "</td><script>alert(1)</script>\x1b[2J\u202e"
WEIGHTS = Weights(
    "tuned", {"acoustic": 1.0}, {"mixture": 9.5}, word=-0.6, held_out={"wer": 44.51, "start_wer": 46.0}
)


def make_answer(n: int = 3, text: str = "the sea was calm") -> RescoredList:
    components = {"acoustic": -310.25, "words": 4.0, "total": 1.0}
    hypotheses = tuple(
        RescoredHypothesis(text, n - 1 - rank, -1616.9 - rank, -0.5, components) for rank in range(n)
    )
    return RescoredList("u1", hypotheses, WEIGHTS, "starter/1")


def make_list(n: int = 3, text: str = "the sea was calm") -> NBestList:
    return NBestList("u1", (Hypothesis(text),) * n, {"acoustic": (-1.5,) * n, "text": (0.0,) * n})


def test_one_line_says_what_it_is():
    assert repr(make_answer()) == (
        "RescoredList('u1', 'the sea was calm' of 3 hypotheses, total -1,616.90, weights 'tuned')"
    )
    assert (
        repr(make_list()) == "NBestList('u1', 3 hypotheses from 'the sea was calm', streams acoustic, text)"
    )
    assert repr(NBestList("u1", ())) == "NBestList('u1', 0 hypotheses, no scores)"
    assert repr(WEIGHTS) == "Weights('tuned', acoustic=1, lm:mixture=9.5, word=-0.6)"


def test_lines_of_invalid_objects_raise_nothing():
    assert repr(NBestList("u1", None)) == "NBestList(with fields of wrong types)"
    assert repr(RescoredList("u1", (), WEIGHTS, "")) == "RescoredList(with fields of wrong types)"


@given(st.text(), st.text(), st.lists(st.text(max_size=300), max_size=9))
def test_lines_are_bounded_and_printable(name, text, streams):
    nbest = NBestList(name, (Hypothesis(text),), dict.fromkeys(streams, (0.0,)))
    line = repr(nbest)
    assert len(line) < 3000
    assert "\n" not in line
    assert line == rescorer.escapes.escape_controls(line)
    assert "<script" not in Table(name, {text: [text]}).to_html().replace("&lt;", "")


@pytest.mark.parametrize("make", [make_answer, make_list])
def test_tables_are_bounded_and_escaped(make):
    page = make(1000, EVIL * 100)._repr_html_()
    assert page.count("<tr>") == MAX_ROWS + 1
    assert "… 980 more rows; to_dataframe() has them all" in page
    assert "<script" not in page
    assert "\x1b" not in page
    assert len(page) < 20_000


def test_tables_have_ranks_totals_and_components():
    page = make_answer()._repr_html_()
    names = ["rank", "was", "text", "total", "acoustic", "words", "components.total"]
    assert "".join(f"<th>{name}</th>" for name in names) in page
    assert '<td style="text-align:right">-1,616.90</td>' in page
    assert "44.51 % errors on held-out lists, 46 % before tuning" in WEIGHTS._repr_html_()
    wide = Table("a", {str(n): [n] for n in range(40)}).to_html()
    assert wide.count("<th>") == 16
    assert "… 24 more columns" in wide


@pytest.mark.parametrize("library", LIBRARIES)
def test_data_frames_have_all_rows(library, monkeypatch):
    pytest.importorskip(library, reason=f"{library} is not installed")
    for other in {*LIBRARIES} - {library}:
        monkeypatch.setitem(sys.modules, other, None)
    frame = make_answer(1000).to_dataframe()
    assert type(frame).__module__.startswith(library)
    assert frame.shape == (1000, 7)
    assert list(frame["was"])[:2] == [1000, 999]
    assert list(WEIGHTS.to_dataframe()["value"])[:2] == [1.0, 9.5]


def test_without_a_library_the_error_names_both(monkeypatch):
    for library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match="pip install pandas, or pip install polars"):
        make_list().to_dataframe()


def test_a_comparison_shows_its_systems(compared: Comparison):
    assert repr(compared) == (
        "Comparison(2 systems on 1 list, best 'lists' with 33.33 %, first pass 33.33 %)"
    )
    page = compared._repr_html_()
    assert "<th>error rate, %</th>" in page
    assert "oracle" in page


@pytest.fixture
def compared() -> Comparison:
    evaluation = Evaluation(DEFAULT_COUNTING, Normaliser(), Selection(), None)
    nbest = NBestList("u1", (Hypothesis("a b"), Hypothesis("a b c")), reference="a b c")
    evaluation.add_file("lists", [nbest], is_only_file=True)
    evaluation.compare(own_lists=False)
    return evaluation.parts[0].comparison


def test_help_teaches_every_field_of_public_classes():
    for name in rescorer.__all__:
        cls = getattr(rescorer, name)
        if not hasattr(cls, "__dataclass_fields__"):
            continue
        help_text = pydoc.render_doc(cls, renderer=pydoc.plaintext)
        texts = read_field_texts(cls)
        for field in fields(cls):
            if field.name in ("text", "word", "unit", "kind", "fields") and field.name not in texts:
                continue  # the name says it
            assert texts[field.name].split("\n")[0] in help_text, f"{name}.{field.name}"


def test_objects_are_copied_and_pickled_as_before():
    for value in (make_list(), make_answer(), WEIGHTS):
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
