"""The audit of lists: a warning for each thing that is wrong, none for lists that are sound."""

from __future__ import annotations

import io
import json
import math
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nbest_lists import nbest_lists
from rich.console import Console

from models import write_bundle
from rescorer.cli import main
from rescorer.errors import InvalidList
from rescorer.evaluation.audit import audit, errors_to_dict
from rescorer.evaluation.audit_report import render
from rescorer.evaluation.audit_streams import correlation
from rescorer.evaluation.counts import count_errors
from rescorer.formats.fields import parse_field_map
from rescorer.formats.jsonlines import nbest_line, read_lists
from rescorer.formats.registry import choose
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.types import Hypothesis, NBestList

WORDS = ("stone", "river", "window", "paper", "garden", "morning", "candle", "bridge", "winter", "silver")
LOG_10 = math.log(10.0)


def sound_lists(n: int = 40) -> list[NBestList]:
    """Lists whose better hypotheses have the better scores, of an acoustic and a language model."""
    draw = random.Random(7)
    lists = []
    for number in range(n):
        spoken = [draw.choice(WORDS) for _ in range(draw.randint(3, 12))]
        found = {}
        for _ in range(8):
            heard = [draw.choice(WORDS) if draw.random() < 0.15 else word for word in spoken]
            wrong = count_errors(spoken, heard).errors
            acoustic = -80.0 * len(heard) - 4.0 * wrong + draw.gauss(0, 3)
            lm = -6.0 * (len(heard) + 1) - 1.5 * wrong + draw.gauss(0, 1)
            found.setdefault(" ".join(heard), (acoustic, lm))
        order = sorted(found, key=lambda text: -(found[text][0] + found[text][1]))
        streams = {name: tuple(found[text][i] for text in order) for i, name in enumerate(("acoustic", "lm"))}
        lists.append(
            NBestList(f"u{number}", tuple(map(Hypothesis, order)), streams, reference=" ".join(spoken))
        )
    return lists


def one_stream(lists: list[NBestList]) -> list[NBestList]:
    """The same with the sum of both scores alone, which they are sorted by."""
    sums = [
        tuple(map(sum, zip(*(nbest.streams[name] for name in ("acoustic", "lm")), strict=True)))
        for nbest in lists
    ]
    return [replace(nbest, streams={"score": total}) for nbest, total in zip(lists, sums, strict=True)]


def with_scores(lists, name, change):
    return [
        replace(nbest, streams={**nbest.streams, name: tuple(map(change, nbest.streams[name]))})
        for nbest in lists
    ]


def with_texts(lists, change):
    """``change(list, texts)`` gives the new texts."""
    return [
        replace(
            nbest, hypotheses=tuple(Hypothesis(t) for t in change(nbest, [h.text for h in nbest.hypotheses]))
        )
        for nbest in lists
    ]


def reversed_lists(lists):
    return [
        replace(
            nbest,
            hypotheses=nbest.hypotheses[::-1],
            streams={name: values[::-1] for name, values in nbest.streams.items()},
        )
        for nbest in lists
    ]


def ranked(lists, ranks):
    return [
        replace(
            nbest,
            hypotheses=tuple(Hypothesis(h.text, {"rank": ranks(i)}) for i, h in enumerate(nbest.hypotheses)),
        )
        for nbest in lists
    ]


def with_empty(lists, below: float):
    """An empty hypothesis in each, so many nats below the best."""
    return [
        replace(
            nbest,
            hypotheses=(*nbest.hypotheses, Hypothesis("<sil>")),
            streams={"score": (*nbest.streams["score"], nbest.streams["score"][0] - below)},
        )
        for nbest in lists
    ]


def codes(lists, severity="warning", normaliser=None, **options) -> set[str]:
    found = audit(lists, normaliser or Normaliser(), **options)
    assert found.suspicious == any(each.severity == "warning" for each in found.findings)
    return {each.code for each in found.findings if each.severity == severity}


SOUND = sound_lists()
TOTAL = one_stream(SOUND)


def test_sound_lists_give_no_finding():
    assert audit(SOUND, Normaliser(), first_pass={"acoustic": 1, "lm": 1}).findings == ()
    assert audit(TOTAL, Normaliser(), known=frozenset(WORDS)).findings == ()
    assert audit(ranked(TOTAL, lambda i: i), Normaliser()).findings == ()
    assert audit(ranked(TOTAL, lambda i: i + 1), Normaliser()).findings == ()


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([], {"nothing"}),
        ([*TOTAL, TOTAL[0]], {"same_id"}),
        (with_texts(TOTAL, lambda nbest, texts: [f"{nbest.id} {t}" for t in texts]), {"id_in_text"}),
        (
            with_texts(TOTAL, lambda nbest, texts: [" ".join(t.split()[1:]) for t in texts]),
            {"first_word"},
        ),
        (with_texts(TOTAL, lambda nbest, texts: [*texts[:-2], texts[0], texts[0]]), {"duplicates"}),
        (with_empty(TOTAL, 2.0), {"empty_near_best"}),
        (ranked(TOTAL, lambda i: i + 2), {"missing_1best"}),
        ([*ranked(TOTAL, lambda i: i), *ranked([replace(TOTAL[0], id="x")], lambda i: i + 1)],
         {"missing_1best"}),
        (with_scores(TOTAL, "score", lambda s: -s), {"backwards", "cost", "error_sign"}),
        (reversed_lists(TOTAL), {"backwards", "worse_than_random"}),
        ([replace(each, streams={"score": (*each.streams["score"][1:], each.streams["score"][0])})
          for each in TOTAL], {"unsorted"}),
        (with_scores(SOUND, "lm", lambda s: s / LOG_10), {"base"}),
        (with_scores(SOUND, "lm", lambda s: -s), {"cost", "error_sign"}),
        (with_scores(SOUND, "lm", lambda s: 9.5 * s), {"scale"}),
        (with_scores(SOUND, "acoustic", lambda s: round(s / math.log(1.0001))), {"scale"}),
        (with_scores(SOUND, "acoustic", math.exp), {"probability"}),
        (with_scores(SOUND, "acoustic", lambda s: 0.0), {"constant"}),
        ([replace(SOUND[0], streams={"lm": SOUND[0].streams["lm"]}), *SOUND[1:]], {"stream_missing"}),
    ],
)  # fmt: skip
def test_each_fault_gives_its_warning(lists, expected):
    assert codes(lists) == expected


def test_what_is_only_worth_knowing_is_a_note():
    assert codes([replace(each, streams={}) for each in TOTAL], "note") == {"no_streams"}
    assert codes(with_texts(TOTAL, lambda nbest, t: [t[0] + " <sil>", *t[:-1]]), "note") >= {
        "duplicates_normalised"
    }
    assert codes(with_empty(TOTAL, 50.0), "note") == {"empty"}
    assert codes(ranked(TOTAL, lambda i: 3 * i), "note") == {"rank_gaps"}
    firsts = [
        replace(n, hypotheses=n.hypotheses[:1], streams={"score": n.streams["score"][:1]}) for n in TOTAL
    ]
    assert codes(firsts, "note") == {"single", "no_gain"}


def test_densities_above_one_are_no_cost_where_order_or_errors_say_so():
    positive = [
        replace(
            nbest,
            streams={
                "acoustic": tuple(
                    score + 200.0 * len(h.text.split())
                    for score, h in zip(nbest.streams["score"], nbest.hypotheses, strict=True)
                )
            },
        )
        for nbest in TOTAL
    ]
    assert min(min(each.streams["acoustic"]) for each in positive) > 0
    assert codes(positive) == set()
    assert codes([replace(each, reference=None) for each in positive]) == set()


def test_a_wrong_base_of_one_stream_shows_in_the_order_of_the_first_pass():
    wrong = with_scores(SOUND, "acoustic", lambda s: 0.1 * s)
    (finding,) = audit(wrong, Normaliser(), first_pass={"acoustic": 1.0, "lm": 1.0}).findings
    assert (finding.code, finding.stream) == ("unsorted", "first pass")
    assert "base and sign" in finding.advice


def test_a_warning_says_what_the_scores_would_be():
    found = audit(with_scores(SOUND, "lm", lambda s: s / LOG_10), Normaliser())
    (finding,) = found.findings
    lm = next(each for each in found.streams if each.name == "lm")
    assert finding.stream == "lm"
    assert f"{lm.per_word_as('10'):.3g}" in finding.message
    sound = next(each for each in audit(SOUND, Normaliser()).streams if each.name == "lm")
    assert lm.per_word_as("10") == pytest.approx(sound.per_word)
    assert "10" in finding.advice


@pytest.mark.parametrize(
    ("token", "settings", "kind"),
    [
        ("<noise>", NormaliserSettings(drop=(), keep=()), "filler"),
        ("[laughs]", NormaliserSettings(), "filler"),
        ("(cough)", NormaliserSettings(), "filler"),
        ("%um", NormaliserSettings(keep=()), "filler"),
        ("river(2)", NormaliserSettings(variants=False), "variant"),
        ("river#2", NormaliserSettings(), "variant"),
        ("river_bank", NormaliserSettings(multiwords=""), "multiword"),
        ("river+bank", NormaliserSettings(), "multiword"),
        ("River", NormaliserSettings(case="keep"), "case"),
        ("<sil>", NormaliserSettings(), None),
        ("<noise>", NormaliserSettings(), None),
        ("%um", NormaliserSettings(), None),
        ("river(2)", NormaliserSettings(), None),
        ("river_bank", NormaliserSettings(), None),
        ("River", NormaliserSettings(), None),
        ("Zanzibar", NormaliserSettings(case="keep"), None),  # a name: never seen in lower case
        ("well-known", NormaliserSettings(), None),
        ("wo-", NormaliserSettings(), None),
    ],
)
def test_tokens_that_the_settings_do_not_cover(token, settings, kind):
    lists = [*TOTAL, NBestList("odd", (Hypothesis(f"{token} river"), Hypothesis("river")))]
    found = audit(lists, Normaliser(settings)).words.uncovered
    assert {name: each.examples for name, each in found.items()} == ({kind: ((token, 1),)} if kind else {})


def test_a_mark_that_the_bundle_knows_is_a_word():
    lists = with_texts(TOTAL, lambda nbest, texts: [f"%um {t}" for t in texts])
    assert codes(lists, known=frozenset({*WORDS, "%um"})) == set()
    assert codes(lists, known=frozenset(WORDS)) == {"filler"}
    assert codes(lists) == set()


def test_unknown_words():
    found = audit(TOTAL, Normaliser(), known=frozenset(set(WORDS) - {"stone"})).words.unknown
    stones = sum(hypothesis.text.split().count("stone") for nbest in TOTAL for hypothesis in nbest.hypotheses)
    assert found.unknown.examples == (("stone", stones),)
    assert found.rate == stones / sum(len(h.text.split()) for nbest in TOTAL for h in nbest.hypotheses)
    spoken = [word for nbest in TOTAL for word in nbest.reference.split()]
    assert found.reference_rate == spoken.count("stone") / len(spoken)
    upper = Normaliser(NormaliserSettings(case="upper"))
    wrong_case = audit(TOTAL, upper, known=frozenset(WORDS))
    assert [each.code for each in wrong_case.findings] == ["oov"]
    assert "another case" in wrong_case.findings[0].message


def test_a_list_that_cannot_be_audited_is_told_and_counts_nowhere():
    told = []
    bad = [
        replace(TOTAL[0], id="bad", reference="a { b / c"),
        replace(TOTAL[0], id="nan", streams={"score": ()}),
    ]
    found = audit([*TOTAL, *bad, InvalidList("broken")], Normaliser(), told=told.append)
    assert replace(found.facts, rejected=0) == audit(TOTAL, Normaliser()).facts
    assert (found.facts.rejected, len(told)) == (3, 3)
    assert "'bad'" in str(told[0])
    huge = replace(TOTAL[0], streams={"score": (1e308,) * len(TOTAL[0].hypotheses)})
    assert audit([huge], Normaliser(), first_pass={"score": 10.0}).facts.rejected == 1


@given(st.lists(nbest_lists(["am"], references=True), min_size=1, max_size=6))
def test_sums_are_those_of_the_lists(lists):
    """Against the obvious: every list looked at whole."""
    words = Normaliser().words
    found = audit(lists, Normaliser())
    texts = [[words(hypothesis.text) for hypothesis in nbest.hypotheses] for nbest in lists]
    assert found.facts.rejected == 0
    assert found.facts.words == sum(len(text) for each in texts for text in each)
    assert found.facts.duplicates_normalised == sum(len(each) - len(set(each)) for each in texts)
    prefixes = {
        (i, text[:n]) for i, each in enumerate(texts) for text in each for n in range(1, len(text) + 1)
    }
    ends = {(i, text) for i, each in enumerate(texts) for text in each}
    assert found.facts.prefixes == len(prefixes) + len(ends)
    (am,) = found.streams
    scores = [score for nbest in lists for score in nbest.streams["am"]]
    assert (am.minimum, am.maximum) == (min(scores), max(scores))
    n_words = [len(text) for each in texts for text in each]
    assert am.per_word == pytest.approx(sum(scores) / (sum(n_words) + len(n_words)), rel=1e-9, abs=1e-6)
    sorted_ = [n for n in lists if len(set(n.streams["am"])) > 1 and list(n.streams["am"])
               == sorted(n.streams["am"], reverse=True)]  # fmt: skip
    assert am.descending == len(sorted_)
    errors = [
        [count_errors(words(nbest.reference), text).errors for text in each]
        for nbest, each in zip(lists, texts, strict=True)
        if nbest.reference is not None
    ]
    if not errors:
        assert found.errors is None
        return
    deepest = max(map(len, errors))
    depths = [sum(min(each[: depth + 1]) for each in errors) for depth in range(deepest)]
    assert list(found.errors.errors_at_depth) == depths
    assert found.errors.random_errors == pytest.approx(sum(sum(each) / len(each) for each in errors))
    assert found.errors.totals.oracle.errors == depths[-1]
    depth = found.errors.depth_for(0.9)
    assert depths[0] - depths[depth - 1] >= 0.9 * (depths[0] - depths[-1]) - 1e-9
    assert errors_to_dict(found.errors)["with_reference"] == len(errors)


@example([(1.5252708675362328e-279, 0.0)] * 2 + [(1.5252708675362328e-279, 1.0)])
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=2, max_size=9))
def test_correlation_is_numpys(pairs):
    x, y = np.array(pairs).T
    r = correlation(x, y)
    assert r is None or -1.0 <= r <= 1.0
    if np.ptp(x) > 1e-3 and np.ptp(y) > 1e-3:
        assert r == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)
    if np.ptp(x) == 0:
        assert r is None


def run(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["rescorer", "inspect", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command(monkeypatch, capsys, tmp_path):
    sound, odd = tmp_path / "sound.jsonl", tmp_path / "odd.jsonl"
    sound.write_text("".join(nbest_line(each) + "\n" for each in TOTAL), encoding="utf-8")
    broken = [nbest_line(each) for each in with_scores(TOTAL, "score", lambda s: -s)]
    odd.write_text("\n".join([*broken, "{broken"]), encoding="utf-8")

    code, out, err = run(monkeypatch, capsys, sound)
    assert (code, err) == (0, "")
    assert "Nothing looks wrong" in out
    assert max(map(len, out.splitlines())) <= 120

    code, out, err = run(monkeypatch, capsys, sound, odd, "--bundle", write_bundle(tmp_path))
    assert (code, out.count("WARNING"), "odd.jsonl:41" in err) == (1, 5, True)
    assert "--stream NAME=FIELD:e:cost" in out

    code, out, _ = run(monkeypatch, capsys, odd, "--json")
    record = json.loads(out)
    assert (code, record["rejected"], record["suspicious"]) == (1, 1, True)
    assert record["streams"]["score"]["per_word_if_cost"] < 0
    assert {each["code"] for each in record["findings"]} == {"backwards", "cost", "error_sign"}

    spoken = tmp_path / "spoken.trn"
    spoken.write_text("".join(f"river ({each.id})\n" for each in TOTAL), encoding="utf-8")
    _, out, _ = run(monkeypatch, capsys, sound, odd, "--json", "--reference", spoken)
    assert [each["reference_words"] for each in json.loads(out)["files"].values()] == [40, 40]


def test_tables_line_up_on_a_narrow_screen():
    lists = with_scores(with_scores(SOUND, "acoustic", lambda s: 300.0 * s), "lm", lambda s: -s)
    found = audit(lists, Normaliser(), known=frozenset(), first_pass={"acoustic": 1.0, "lm": 9.5})
    screen = Console(width=80, file=io.StringIO())
    screen.print(render({"lists.jsonl": found}))
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("  stream")) :][:4]
    assert [line.split()[0] for line in table] == ["stream", "acoustic", "lm", "first"]
    assert len({len(line.rstrip()) for line in table}) == 1  # the last column ends in one place
    huge = audit(with_scores(SOUND, "acoustic", lambda s: 1e300 * s), Normaliser())
    screen.print(render({"lists.jsonl": huge}))
    json.dumps(huge.to_dict(), allow_nan=False)


def test_a_bad_option_is_a_fault_of_the_options(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, capsys, tmp_path / "none.jsonl")[0] == 3
    assert run(monkeypatch, capsys, tmp_path / "none.jsonl", "--first-pass", "am")[0] == 2


NAMES = ["hypotheses=hyps,reference=ref"]


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "names", "streams", "options", "lists", "expected"),
    [
        ("dstc2/rank-only-dev.jsonl", NAMES, [], {}, 3560, set()),
        ("switchboard/rank-only-tenbest.jsonl", NAMES, [], {}, 1622, set()),
        ("switchboard/scored-dev.jsonl", NAMES, ["acoustic=am_log2:2"], {}, 80, None),
        ("read-speech/moonshine-20best.jsonl.gz", NAMES, ["am=am"], {}, 143, {"empty_near_best"}),
        ("read-speech/moonshine-20best-cased.jsonl.gz", NAMES, ["am=am"], {}, 143, {"empty_near_best"}),
        ("read-speech/pocketsphinx-100best.jsonl.gz", NAMES, ["am=am", "lm=lm"],
         {"first_pass": {"am": 1.0, "lm": 9.5}}, 143, set()),
        ("read-speech/pocketsphinx-100best-tagged.jsonl.gz", NAMES, ["am=am", "lm=lm"],
         {"first_pass": {"am": 1.0, "lm": 9.5}}, 143, set()),
        ("read-speech/pocketsphinx-native.jsonl.gz", NAMES, ["score=score"], {}, 143,
         {"duplicates", "unsorted", "scale"}),
    ],
)  # fmt: skip
def test_real_lists(data_dir, file, names, streams, options, lists, expected):
    items = read_lists(data_dir / "nbest" / file, parse_field_map(names, streams))
    found = audit(items, Normaliser(), **options)
    assert (found.facts.lists, found.facts.rejected) == (lists, 0)
    warnings = {each.code for each in found.findings if each.severity == "warning"}
    assert expected is None or warnings == expected


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "format_", "lists"),
    [
        ("read-speech/lattices", "htk:depth=5", 40),
        ("dstc10/logs-no-references.json", "alternatives:text=hyp,score=score,base=e,sign=log_prob", 1376),
    ],
)
def test_real_lists_of_other_formats(data_dir, file, format_, lists):
    found = audit(choose(format_).read(data_dir / "nbest" / file), Normaliser())
    assert (found.facts.lists, found.facts.rejected, found.errors) == (lists, 0, None)
    assert not found.suspicious
