"""Warnings about weights that were never tuned, on scores like those of an end-to-end model."""

from __future__ import annotations

import gzip
import json
import math

import pytest

from rescorer import Hypothesis, NBestList, Weights
from rescorer.unread_scores import MAX_NATS_PER_WORD, find_untuned_weights
from tests.support.list_lines import write

TEXTS = ("the cat sat on", "the cat sat", "zork zork on")
UNTUNED = Weights("mine", {"acoustic": 1.0})


def make_lists(*scores: float, count: int = 6) -> list[NBestList]:
    hypotheses = tuple(map(Hypothesis, TEXTS))
    return [NBestList(f"u{i}", hypotheses, {"acoustic": tuple(scores)}) for i in range(count)]


def make_lines(*scores: float, count: int = 6) -> list[str]:
    return [
        json.dumps({
            "id": f"u{i}",
            "reference": TEXTS[i % 2],
            "hypotheses": [
                {"text": text, "scores": {"acoustic": score - 0.01 * i}}
                for text, score in zip(TEXTS, scores, strict=True)
            ],
        })
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "weights", "expected"),
    [
        ((-0.4, -1.5, -4.0), UNTUNED, True),
        ((-8.0, -9.0, -9.5), UNTUNED, True),
        ((-400.0, -404.0, -409.0), UNTUNED, False),  # sums over frames
        ((-22.0, -23.0, -24.0), UNTUNED, False),  # a language model's
        ((0.4, -1.5, -4.0), UNTUNED, False),  # no log-probability
        ((0.0, -math.log(2), -math.log(3)), UNTUNED, False),  # ranks
        ((-0.4, -1.5, -4.0), Weights("mine", {"acoustic": 1.0}, tuned_on=("f",)), False),
        ((-0.4, -1.5, -4.0), Weights("mine", {"acoustic": 1.0}, {"mixture": 0.1}), False),
        ((-0.4, -1.5, -4.0), Weights("mine", {"acoustic": 10.0}), False),
        ((-0.4, -1.5, -4.0), Weights("mine"), False),
        ((-0.4, -1.5, -4.0), Weights("mine", {"other": 1.0}), False),
    ],
)
def test_judges_scores_and_weights(scores, weights, expected):
    assert (find_untuned_weights(make_lists(*scores), weights) is not None) == expected
    assert find_untuned_weights(make_lists(*scores, count=4), weights) is None


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "field", "factor", "expected"),
    [
        ("read-speech/moonshine-20best.jsonl.gz", "am", 1.0, -0.37),
        ("read-speech/moonshine-20best-cased.jsonl.gz", "am", 1.0, -0.38),
        ("read-speech/pocketsphinx-100best.jsonl.gz", "am", 1.0, None),
        ("read-speech/pocketsphinx-100best.jsonl.gz", "lm", 1.0, None),
        ("switchboard/scored-dev.jsonl", "am_log2", math.log(2), None),
        ("dstc10/logs-no-references.json", "score", 1.0, -2.3),
    ],
)
def test_tells_real_recognisers_apart(data_dir, name, field, factor, expected):
    path = data_dir / "nbest" / name
    if name.startswith("dstc10"):
        dialogues = json.loads(path.read_text())
        columns = [turn["nbest"] for dialogue in dialogues for turn in dialogue if turn.get("nbest")]
    else:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        columns = [json.loads(line)["hyps"] for line in data.splitlines()]
    lists = [
        NBestList(
            str(i),
            tuple(Hypothesis(one.get("text", one.get("hyp"))) for one in column),
            {"acoustic": tuple(factor * one[field] for one in column)},
        )
        for i, column in enumerate(columns)
    ]
    for some in (lists, lists[:10]):
        found = find_untuned_weights(some, UNTUNED)
        assert (found is not None) == (expected is not None)
    if expected is not None:
        found = find_untuned_weights(lists, UNTUNED)
        assert found.nats_per_word == pytest.approx(expected, abs=0.05)
        assert -found.nats_per_word < MAX_NATS_PER_WORD


def test_commands_warn_once_and_in_their_json(run, ngram_bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *make_lines(-0.4, -1.5, -4.0))
    other = write(tmp_path / "other.jsonl", *make_lines(-0.5, -1.5, -4.0))
    tuned = tmp_path / "tuned.json"
    tuned.write_text(json.dumps({"streams": {"acoustic": 1}, "lm": {"mixture": 1}, "tuned_on": ["f"]}))
    bundle = ("--bundle", ngram_bundle)
    commands = {
        "rescore": ("rescore", source, "-o", tmp_path / "out.jsonl", "--quiet"),
        "evaluate": ("evaluate", source, other),
        "tune": ("tune", source, "-o", tmp_path / "mine.json"),
    }
    for name, command in commands.items():
        out, err = run(*command, *bundle, "--json")[1:]
        assert err.count("were never tuned, and the scores 'acoustic' look like those of an end-to-end") == (
            2 if name == "rescore" else 1  # its JSON is on stderr, too
        )
        assert "`-w lm:mixture=0`; `rescorer tune` with the same options" in err
        data = json.loads(err.splitlines()[-1] if name == "rescore" else out)
        assert len(data["warnings"]) == 1
        for weights in (("--weights", tuned), ("-w", "lm:mixture=0")):
            if name != "tune":
                assert "never tuned" not in "".join(run(*command, *bundle, *weights)[1:])
    acoustic = write(tmp_path / "acoustic.jsonl", *make_lines(-400.0, -405.0, -409.0))
    assert "never tuned" not in run("rescore", acoustic, *bundle, "--quiet")[2]
    code, out, _ = run("inspect", source, *bundle, "--json")
    assert (code, "untuned_weights" in out) == (1, True)
    assert "untuned_weights" not in run("inspect", source, *bundle, "--weights", tuned, "--json")[1]
