"""The training benchmark runs and counts correctly; speed itself is not tested."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rescorer.bench.models import flops
from rescorer.errors import ConfigError
from rescorer.models.network_files import NetworkConfig
from rescorer_training.bench import (
    BenchmarkOptions,
    list_network_products,
    list_output_products,
    make_config,
    make_zipf_text,
)
from rescorer_training.cli import app

pytestmark = pytest.mark.slow

TINY = [f"--{name}={value}" for name, value in (
    ("size", 8), ("classes", 4), ("vocabulary-size", 40), ("batch-words", 64), ("noise-samples", 5),
    ("seconds", 0), ("rounds", 2), ("threads", 1),
)]  # fmt: skip


def test_measures_every_model_and_the_baseline():
    result = CliRunner().invoke(app, ["bench", *TINY, "--json"], catch_exceptions=False)
    facts = json.loads(result.stdout)
    names = [speed["name"] for speed in facts["speeds"]]
    assert names == ["plain PyTorch, LSTM, full softmax", *BenchmarkOptions().models]
    assert facts["speeds"][0]["ratio"] == 1
    for speed in facts["speeds"]:
        assert min(value for key, value in speed.items() if key != "name") > 0


def test_prints_a_table_for_a_text_file(tmp_path):
    (tmp_path / "t.txt").write_text("the cat sat\nthe dog ran off\n" * 40)
    result = CliRunner().invoke(
        app,
        ["bench", *TINY, "--text", str(tmp_path / "t.txt"), "--model", "lstm", "--processor-time"],
        catch_exceptions=False,
    )
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["model", "words/s"]
    assert [line.split()[0] for line in lines[1:]] == ["plain", "lstm", "9"]  # six words, </s>, <unk> and <s>


@pytest.mark.parametrize(("size", "heads"), [(200, 4), (100, 2), (6, 1)])
def test_heads_of_the_transformer_fit_any_even_size(size, heads):
    config = make_config("transformer", np.ones(300), BenchmarkOptions(size=size))
    assert (config.hidden_size, config.heads) == (size, heads)


def test_rejects_invalid_options(monkeypatch):
    with pytest.raises(ConfigError, match=r"--size is 101; expected an even number for the transformer"):
        BenchmarkOptions(size=101)
    assert BenchmarkOptions(size=101, models=["lstm"]).size == 101
    with pytest.raises(ConfigError, match="unknown model perceptron; expected some of lstm"):
        BenchmarkOptions(models=("perceptron",))
    with pytest.raises(ConfigError, match="rounds is 0"):
        BenchmarkOptions(rounds=0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(ConfigError, match="needs a single thread, got 2"):
        BenchmarkOptions(processor_time=True)


def test_counts_the_products_of_a_step():
    lstm = NetworkConfig(101, (40, 60), embedding_size=10, hidden_size=20, layers=2)
    per_word = 8 * 20 * (10 + 20) + 8 * 20 * (20 + 20) + 2 * 20 * 10
    assert flops(list_network_products(lstm, 5, 7)) == 35 * per_word
    words = torch.tensor([0, 1, 50, 50, 50])
    assert flops(list_output_products(lstm, words)) == 2 * 10 * (5 * 2 + 2 * 40 + 3 * 60)
    full = NetworkConfig(101, embedding_size=10, output="full")
    assert flops(list_output_products(full, words)) == 2 * 10 * 5 * 100
    assert flops(list_output_products(full, words, samples=7)) == 2 * 10 * 5 * 7
    feedforward = NetworkConfig(101, (100,), "feedforward", embedding_size=10, hidden_size=20, window=3)
    assert flops(list_network_products(feedforward, 5, 7)) == 35 * 2 * (30 * 20 + 20 * 10)


COUNT_PAGE_FAULTS = """
import resource, torch
from rescorer.runtime import keep_freed_memory
kept = keep_freed_memory()
for _ in range(40):  # the heap needs some rounds to settle
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16_000_000)
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_reusing_freed_memory_causes_no_page_faults():
    """Runs in a new process, because the setting applies to the whole process."""
    result = subprocess.run(
        [sys.executable, "-c", COUNT_PAGE_FAULTS], capture_output=True, text=True, check=True
    )
    kept, faults = map(int, result.stdout.split())
    assert not kept or faults < 100  # 64 MB are 15,625 pages


MEASURE_RELEASED_MEMORY = """
import resource
from pathlib import Path
from rescorer.runtime import release_freed_memory, keep_freed_memory
def rss_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
kept = keep_freed_memory()
blocks = [bytearray(1_000_000) for _ in range(100)]
before = blocks.pop(), rss_bytes()
del blocks
print(int(kept and release_freed_memory()), before[1] - rss_bytes())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_freed_memory_is_returned_on_request():
    result = subprocess.run(
        [sys.executable, "-c", MEASURE_RELEASED_MEMORY], capture_output=True, text=True, check=True
    )
    is_supported, released_bytes = map(int, result.stdout.split())
    assert not is_supported or released_bytes > 50_000_000


def test_zipf_text_follows_zipfs_law():
    text, size = make_zipf_text(1000)
    assert size == 1000
    counts = np.bincount(text.ids, minlength=size)
    assert counts[[1, size - 1]].tolist() == [0, 0]
    assert counts[2] / counts[11] == pytest.approx(10 / 1, rel=0.9)
    assert counts[0] == len(text.starts)
