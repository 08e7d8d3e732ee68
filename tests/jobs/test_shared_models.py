"""Blocks of lines and shared models give the answers of one process, also if processes are killed."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.cli import app
from rescorer.errors import BundleError, FormatError, ScoringError
from rescorer.formats.io.text_io import CHUNK_BYTES, MAX_LINE_VARIABLE
from rescorer.jobs.files import LineBlock, LocalRescorer, RescorerLoader, cut_lines, rescore_batches
from rescorer.jobs.processes import ProcessPoolRescorer, open_shared_rescorer
from rescorer.jobs.shared_models import ModelProcess
from rescorer.pipeline import TrieScorer
from rescorer.scoring.options import RescoreOptions
from rescorer.terminal.list_options import ListInputOptions
from rescorer.types import Weights
from tests.support.sharding import make_lines, write_lines

HEADER = '{"format": "rescorer-nbest", "version": 1, "streams": {"acoustic": {"base": "10", "sign": "cost"}}}'
LIST = '{"id": "u1", "hypotheses": [{"text": "the cat", "scores": {"acoustic": 1}}, {"text": "the"}]}'
BROKEN = "[]", "{", LIST[:-3], f"{LIST} {LIST}", LIST[3:], "null", '{"id": 1}', "x" * 300
WHOLE = LIST, LIST.replace("u1", "u2"), "", LIST + "\r"
LONG = json.dumps(json.loads(LIST), indent=2), " " + LIST
"""Lists that take several lines, or are indented. After a broken one, these are explained line by line."""
LINES = st.lists(st.sampled_from(BROKEN + WHOLE), max_size=12) | st.lists(
    st.sampled_from(WHOLE + LONG), max_size=6
)
OPTIONS = ListInputOptions()


def describe(item) -> tuple:
    return (type(item), str(item), item.line) if isinstance(item, FormatError) else (type(item), str(item))


def read_blocks(path: Path, n_bytes: int) -> list:
    """Read a file in blocks of lines; errors and lists as one sequence."""
    header = OPTIONS.find_header(str(path))
    items = []
    for batch in cut_lines(str(path), header, OPTIONS.read_lines, n_bytes):
        items += batch.read() if isinstance(batch, LineBlock) else batch
    return items


@given(st.booleans(), LINES, st.integers(1, 400), st.booleans())
def test_blocks_have_the_lists_and_the_errors_of_the_file(tmp_path_factory, has_header, lines, n_bytes, ends):
    path = tmp_path_factory.mktemp("blocks") / "in.jsonl"
    content = "\n".join([*[HEADER] * has_header, LIST, *lines]) + "\n" * ends
    path.write_text(content)
    whole = [*OPTIONS.read(str(path), warn=False)]
    assert [*map(describe, read_blocks(path, n_bytes))] == [*map(describe, whole)]


def test_memory_is_bounded_by_long_lines_and_lines_that_are_no_lists(tmp_path, monkeypatch):
    monkeypatch.setenv(MAX_LINE_VARIABLE, "2000")
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join([LIST, "x" * 500_000, *["garbage " * 20] * 1500, LIST]))
    blocks = [*cut_lines(str(path), "", OPTIONS.read_lines, 1000)]
    largest = max(len(block.content) for block in blocks if isinstance(block, LineBlock))
    assert largest < 3 * CHUNK_BYTES
    whole = [*OPTIONS.read(str(path), warn=False)]
    assert [*map(describe, read_blocks(path, 1000))] == [*map(describe, whole)]


def test_the_lines_before_damage_are_read(tmp_path):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(f"{LIST}\n".encode() * 5000)[:-200])
    whole = [*OPTIONS.read(str(path), warn=False)]
    assert isinstance(whole[-1], FormatError)
    assert [*map(describe, read_blocks(path, 1000))] == [*map(describe, whole)]
    with pytest.raises(FormatError, match="No such file"):
        next(cut_lines(str(tmp_path / "none"), "", OPTIONS.read_lines, 1000))


def test_lists_that_are_numbered_are_not_divided(tmp_path):
    numbered = write_lines(tmp_path / "numbered.jsonl", ['{"hypotheses": ["a"]}'] * 2)
    array = write_lines(tmp_path / "array.jsonl", ["[", LIST, "]"])
    lists = write_lines(tmp_path / "lists.jsonl", [LIST] * 2)
    assert OPTIONS.divide([str(lists)], 100) is not None
    for sources, options in (
        *((path, OPTIONS) for path in (numbered, array, "-")),
        *((lists, replace(OPTIONS, **change)) for change in ({"groups": "(u)"}, {"join_pieces": True})),
    ):
        assert options.divide([str(sources)], 100) is None
    assert OPTIONS.divide([str(lists), str(numbered)], 100) is None


pytestmark = pytest.mark.slow


@pytest.fixture
def lists(tmp_path) -> Path:
    return write_lines(tmp_path / "in.jsonl", make_lines(60))


def rescore(rescorer, path: Path) -> tuple[list[str], list[str]]:
    """The lines that a job writes, and those of its rejects."""
    written: list[str] = []
    rejects: list[str] = []
    batches = cut_lines(str(path), "", OPTIONS.read_lines, 400)
    rescore_batches(rescorer, batches, written.append, rejects.append)
    return written, rejects


def load_ngrams(bundle: Path) -> RescorerLoader:
    return RescorerLoader(bundle, RescoreOptions(Weights()), batch_words=40)


@dataclass(frozen=True)
class MortalRescorer(LocalRescorer):
    """Kills its process at list u20: once, as ``flag`` says, or always without one."""

    flag: Path | None = None

    def rescore(self, lists):
        if any(nbest.id == "u20" for nbest in lists):
            die(self.flag)
        return super().rescore(lists)


class MortalScorer(TrieScorer):
    """Kills its process at a trie with many nodes; see ``MortalRescorer``."""

    flag: Path | None

    def score(self, trie, *args, **options):
        if trie.n_nodes > 20:
            die(self.flag)
        return super().score(trie, *args, **options)


def die(flag: Path | None) -> None:
    if flag is None or not flag.exists():
        if flag is not None:
            flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def load_mortal_rescorer(bundle: Path, flag: Path | None) -> LocalRescorer:
    return make_mortal(load_ngrams(bundle)(), flag)


def make_mortal(local: LocalRescorer, flag: Path | None) -> MortalRescorer:
    return MortalRescorer(local.rescorer, local.options, local.render, flag)


@dataclass(frozen=True)
class MortalLoader:
    """Loads models whose process is killed, or workers that are."""

    bundle: Path
    flag: Path | None
    kills_worker: bool = False

    def load_scorer(self):
        scorer = load_ngrams(self.bundle).load_scorer()
        if not self.kills_worker:
            scorer = MortalScorer(scorer.models, scorer.label)
            scorer.flag = self.flag
        return scorer

    def load_ranker(self, address):
        local = load_ngrams(self.bundle).load_ranker(address)
        return make_mortal(local, self.flag) if self.kills_worker else local


def test_a_killed_worker_loses_nothing(ngram_bundle, lists, tmp_path):
    expected = rescore(load_ngrams(ngram_bundle)(), lists)
    load = partial(load_mortal_rescorer, ngram_bundle, tmp_path / "killed")
    with ProcessPoolRescorer(load, 2, batch_words=40) as rescorer:
        assert rescore(rescorer, lists) == expected
    assert (tmp_path / "killed").exists()


def test_a_list_that_always_kills_its_worker_ends_the_job(ngram_bundle, lists):
    with (
        ProcessPoolRescorer(partial(load_mortal_rescorer, ngram_bundle, None), 2) as rescorer,
        pytest.raises(ScoringError, match="ended unexpectedly, 3 times with the same lists"),
    ):
        rescore(rescorer, lists)


@pytest.mark.parametrize("kills_worker", [False, True])
def test_shared_models_lose_nothing_if_a_process_is_killed(ngram_bundle, lists, tmp_path, kills_worker):
    expected = rescore(load_ngrams(ngram_bundle)(), lists)
    load = MortalLoader(ngram_bundle, tmp_path / "killed", kills_worker)
    with open_shared_rescorer(load, 2, 1, 40) as rescorer:
        assert rescore(rescorer, lists) == expected
        assert rescorer.models is not None
        folder = Path(rescorer.models.address).parent
        assert folder.exists()
    assert (tmp_path / "killed").exists()
    assert not folder.exists()


def test_models_that_always_end_their_process_end_the_job(ngram_bundle, lists):
    with (
        open_shared_rescorer(MortalLoader(ngram_bundle, None), 2, 1, 40) as rescorer,
        pytest.raises(ScoringError, match="process that holds the models ended unexpectedly 3 times"),
    ):
        rescore(rescorer, lists)


def test_a_process_that_cannot_be_started_is_an_error(monkeypatch):
    def refuse(process):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    message = "^cannot start the process that holds the models: Resource temporarily unavailable$"
    models = ModelProcess(partial(os._exit, 1), 1)
    folder = Path(models.address).parent
    wait([models.news])
    monkeypatch.setattr(BaseProcess, "start", refuse)
    with pytest.raises(ScoringError, match=message):
        models.heed()
    models.close()
    assert not folder.exists()
    with pytest.raises(ScoringError, match=message):
        ModelProcess(partial(os._exit, 1), 1)


def test_models_that_cannot_be_loaded_end_the_job(ngram_bundle, lists, tmp_path):
    load = replace(load_ngrams(ngram_bundle), device="cpu", dtype="none", bundle=tmp_path / "none")
    with open_shared_rescorer(load, 2, 1, 40) as rescorer, pytest.raises(BundleError, match="no such bundle"):
        rescore(rescorer, lists)


@pytest.mark.parametrize("to", ["jsonl", "trn"])
def test_the_command_shares_models(bundle, lists, tmp_path, to):
    with lists.open("a") as stream:
        stream.write(make_lines(1)[0] + "\n")  # an id twice, which trn does not take
    found = []
    for options in (["--workers", "1"], ["--workers", "2", "--share-models"]):
        out = tmp_path / f"out{len(options)}"
        command = ["rescore", str(lists), "-o", str(out), "--bundle", str(bundle), "--json", "--to", to]
        done = CliRunner().invoke(app, [*command, "--batch-words", "60", *options])
        assert done.exit_code == 1, done.output
        rejects = Path(f"{out}.rejects").read_text().replace(str(out), "")
        found.append((out.read_text(), rejects, done.stderr))
    assert found[0][1:] == found[1][1:]
    assert found[0][0] == found[1][0] or to == "jsonl"  # totals of networks differ in the last digits


def test_shards_do_not_share_models(bundle, lists, tmp_path):
    command = ["rescore", str(lists), "-o", str(tmp_path / "out"), "--bundle", str(bundle)]
    done = CliRunner().invoke(app, [*command, "--shards", "2", "--share-models"])
    assert done.exit_code != 0
    assert "--share-models is for one file" in done.output + str(done.exception)
