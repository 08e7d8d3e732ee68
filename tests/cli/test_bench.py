"""``rescorer bench``: it runs, and its counts are right. No test depends on how fast anything is."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys

import pytest
import torch
from typer.testing import CliRunner

from rescorer.bench.models import (
    ModelSpec,
    PlainLstm,
    build_rescorer,
    estimate_arpa,
    flops,
    measure_peer_command,
    median_product,
    score_padded_batch,
)
from rescorer.bench.scoring import BenchOptions, ListShape, count_work, synthetic_lists
from rescorer.cli import app
from rescorer.errors import ConfigError
from rescorer.formats.jsonlines import writer
from rescorer.models import ngram_files, ngrams
from rescorer.models.network_files import KINDS, OUTPUTS
from rescorer.models.ngram_files import read_ngram
from rescorer.runtime import Phase, Stopwatch, phase, time_items
from rescorer.trie import build_trie
from rescorer.types import Hypothesis, NBestList
from tests.support.kenlm_twin import has_kenlm
from tests.support.tiny_models import random_network, write_arpa

pytestmark = pytest.mark.slow

TINY = [f"--{name}={value}" for name, value in (
    ("hidden", 8), ("vocabulary", 40), ("threads", 1), ("repetitions", 2), ("peer-seconds", 0.001),
)]  # fmt: skip


def bench(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["bench", *TINY, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


PEER = "import sys; lines = [*(open(sys.argv[1]) if sys.argv[1:] else sys.stdin)]; sys.exit(len(lines) != 15)"


@pytest.mark.parametrize("texts", ["", " {texts}"])
@pytest.mark.parametrize("clock", [[], ["--processor-time"]])
def test_times_another_program_on_the_same_sentences(texts, clock, tmp_path):
    """The program fails if it does not get one line per hypothesis."""
    peer = ["--peer-command", shlex.join([sys.executable, "-c", PEER]) + texts, *clock]
    shown = bench("--synthetic", "3x5x4", *peer, "--json", str(tmp_path / "b.json"))
    assert "peer, with its start:" in shown
    assert json.loads((tmp_path / "b.json").read_text())["peer_words_per_second"] > 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-program", "cannot start 'no-such-program'"),
        ("'", "No closing quotation"),
        ("", "empty; expected a program and its arguments"),
        (
            f"{sys.executable} -c 'import sys; sys.exit(\"no model\")'",
            "exit code 1; its last messages: 'no model'",
        ),
    ],
)
def test_says_why_another_program_cannot_be_timed(command, message, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(message)):
        measure_peer_command(command, [("a", "cat")], tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_measures_every_kind_of_network(kind, output, tmp_path):
    bench("--synthetic", "3x5x4", "--network", kind, "--output", output, "--json", str(tmp_path / "b.json"))
    report = json.loads((tmp_path / "b.json").read_text())
    names = [speed["name"] for speed in report["speeds"]]
    assert names == [*Phase, "neural", "the rest of the library", "library", "end to end"]
    assert report["hypotheses"] == 15
    assert all(speed["seconds"] > 0 for speed in report["speeds"])
    assert min(report[f"{rate}_words_per_second"] for rate in ("plain", "ngram")) > 0
    assert report["ngram_device_words_per_second"] is None
    for baseline in ("kenlm", "kenlm_loop"):
        assert (report[f"{baseline}_words_per_second"] is not None) == has_kenlm()
    assert report["single_list_ms"] > 0


def test_measures_bundle_and_file_in_processor_time(bundle, tmp_path):
    path = tmp_path / "lists.jsonl"
    with writer(path) as write:
        write(
            NBestList("a", (Hypothesis("the cat sat"), Hypothesis("the cat ran"), Hypothesis("the cat sat")))
        )
    lines = bench(str(path), "--bundle", str(bundle), "--processor-time").splitlines()
    assert lines[0].split()[:3] == ["phase", "seconds", "share"]
    assert lines[14].startswith("1 list, 3 hypotheses, 12 words, 6 distinct prefixes (2.00 words per prefix)")
    assert lines[-1].endswith("processor time")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_measures_an_ngram_on_the_device_and_on_the_cpu(device, bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(ngram_files, "TORCH_DEVICES", frozenset({"cpu", "cuda"}))
    path = tmp_path / "b.json"
    bench("--synthetic", "3x5x4", "--device", device, "--json", str(path))
    assert json.loads(path.read_text())["ngram_device_words_per_second"] is None  # too few edges
    monkeypatch.setattr(ngrams, "MIN_DEVICE_EDGES", 0)
    for models in ([], ["--bundle", str(bundle)]):
        path = tmp_path / "b.json"
        lines = bench("--synthetic", "3x5x4", "--device", device, *models, "--json", str(path)).splitlines()
        report = json.loads(path.read_text())
        assert min(report[f"{rate}_words_per_second"] for rate in ("ngram", "ngram_device")) > 0
        assert sum(line.startswith("the same on the models' device:") for line in lines) == 1


def test_rejects_invalid_options(tmp_path, monkeypatch):
    for arguments in ([], ["lists.jsonl", "--synthetic", "1x1x1"]):
        with pytest.raises(ConfigError, match="expected either"):
            CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)
    with pytest.raises(ConfigError, match="'100x20': expected LISTSxHYPOTHESESxWORDS"):
        ListShape.parse("100x20")
    with pytest.raises(ConfigError, match="repetitions is 0"):
        BenchOptions(repetitions=0)
    with pytest.raises(ConfigError, match="classes is 40"):
        ModelSpec(classes=40, vocabulary=40)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match="no lists to benchmark"):
        CliRunner().invoke(app, ["bench", str(tmp_path / "empty.jsonl"), *TINY], catch_exceptions=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(ConfigError, match="needs one thread, but torch has 2"):
        BenchOptions(processor_time=True)


def test_phases_add_up_to_the_whole_run():
    now = iter(range(100))
    watch = Stopwatch(lambda: next(now))
    with watch.running():
        for _ in time_items([1, 2], Phase.PARSE):
            with phase(Phase.NETWORK), phase(Phase.OUTPUT):
                pass
    with phase(Phase.TRIE):  # not measured: the stopwatch has stopped
        pass
    assert watch.seconds[Phase.OUTPUT] == 2
    assert watch.seconds[Phase.NETWORK] == 4
    assert watch.seconds[Phase.PARSE] == 3  # two items, and the end of the iteration
    assert sum(watch.seconds.values()) == next(now) - 1


def test_counts_work_of_a_network(tmp_path):
    lists = [NBestList("a", (Hypothesis("a b"), Hypothesis("a c"), Hypothesis("a")))]
    spec = ModelSpec(hidden=10, vocabulary=41, classes=4)
    workload = count_work(lists, build_rescorer(spec, lists, tmp_path))
    assert (workload.words, workload.prefixes) == (8, 6)  # a, b, c and three ends
    assert flops(workload.network) == 4 * 8 * 10 * 10  # states after "", "a", "a b" and "a c"
    within_classes = workload.output[1:]
    assert workload.output[0] == (4, 10, 4)
    assert all(size == 10 and width == 10 for _, size, width in within_classes)
    assert 4 <= sum(n for n, _, _ in within_classes) <= 6  # edges sharing vector and class are scored once


def test_median_product_is_weighted_by_size():
    assert median_product([(1, 1, 1), (5, 5, 5), (2, 2, 2)]) == (5, 5, 5)


def test_synthetic_lists_share_prefixes_like_real_ones():
    lists = list(synthetic_lists(ListShape(10, 100, 20)))
    assert lists == list(synthetic_lists(ListShape(10, 100, 20)))
    sentences = [tuple(hypothesis.text.split()) for nbest in lists for hypothesis in nbest.hypotheses]
    words = sum(len(sentence) + 1 for sentence in sentences)
    assert 2.0 < words / build_trie(sentences).n_edges < 2.4
    assert all(len(nbest.hypotheses) == 100 == len(nbest.streams["acoustic"]) for nbest in lists)


def test_the_estimated_ngram_is_a_model(tmp_path):
    (tmp_path / "m.arpa").write_text(estimate_arpa([("a", "b"), ("a", "c"), ()], 3), encoding="utf-8")
    model = read_ngram(tmp_path / "m.arpa")
    assert model.order == 3
    assert model.vocabulary() == {"a", "b", "c"}
    assert model.next_log_probs((), ["a"]) == pytest.approx(math.log(2 / 4), abs=1e-5)  # 2 / (3 + 1)
    assert read_ngram(write_arpa(tmp_path)).order == 3


def test_plain_scorer_ignores_padding():
    torch.manual_seed(0)
    _, vocabulary = random_network()
    model = PlainLstm(len(vocabulary), 6)
    inputs, targets = torch.tensor([[10, 2, 3], [10, 4, 0]]), torch.tensor([[2, 3, 0], [4, 0, -1]])
    padded = score_padded_batch(model, inputs, targets)
    unpadded = score_padded_batch(model, inputs[1:, :2], targets[1:, :2])
    torch.testing.assert_close(padded[1:], unpadded)
