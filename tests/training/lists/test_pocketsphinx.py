"""Check PocketSphinx' lattices and scores; the recogniser itself only where it is installed."""

from __future__ import annotations

import gzip
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from rescorer.errors import ConfigError
from rescorer.formats.lattices import read_lattice
from rescorer_training.lists.speech import (
    SCALES,
    PocketSphinx,
    PocketSphinxTrigram,
    import_pocketsphinx,
    prune_links,
)
from rescorer_training.lists.text import find_candidates

needs_pocketsphinx = pytest.mark.skipif(
    find_spec("pocketsphinx") is None, reason="the package pocketsphinx is not installed"
)
READ_SPEECH = Path(os.environ.get("RESCORER_DATA", "../shared/data")) / "nbest" / "read-speech"
SLF = """VERSION=1.0
N=3 L=3
I=0 t=0.9 W=!SENT_END v=1
J=0	S=1	E=0	a=-40.75	p=0.0530164
J=1	S=2	E=0	a=-25.80	p=1e-07
J=2	S=2	E=1	a=-16.17	p=0.348873
"""


def test_removes_links_with_small_posteriors() -> None:
    pruned = prune_links(SLF, 1e-5)
    assert pruned == SLF.replace("L=3", "L=2").replace("J=1	S=2	E=0	a=-25.80	p=1e-07\n", "")
    assert prune_links(SLF, 0.0) == SLF


def test_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    with pytest.raises(ConfigError, match="pip install pocketsphinx"):
        import_pocketsphinx()


@needs_pocketsphinx
def test_recognition_does_not_depend_on_earlier_utterances(tmp_path: Path) -> None:
    recogniser = PocketSphinx()
    random = np.random.default_rng(1)
    envelope = np.abs(np.sin(np.arange(16_000) / 900))
    first, second = ((random.normal(0, size, 16_000) * envelope).astype(np.int16) for size in (3000.0, 200.0))
    alone = recogniser.recognise(first, 5, tmp_path)
    recogniser.recognise(second, 5, tmp_path)
    assert recogniser.recognise(first, 5, tmp_path) == alone
    totals = [candidate.total(SCALES) for candidate in alone]
    assert totals == sorted(totals, reverse=True)


@needs_pocketsphinx
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("utterance", ["LJ001-0001", "2033-164914-0002"])
def test_finds_the_hypotheses_and_scores_of_shared_lists(utterance: str) -> None:
    import pocketsphinx

    with gzip.open(READ_SPEECH / "pocketsphinx-100best.jsonl.gz", "rt") as stream:
        lists = map(json.loads, stream)
        expected = next(nbest["hyps"] for nbest in lists if nbest["id"] == utterance)
    lattice, _ = read_lattice(READ_SPEECH / "lattices" / f"{utterance}.slf.gz")
    model = PocketSphinxTrigram(pocketsphinx.Decoder(loglevel="FATAL"))
    found = {" ".join(c.words): c for c in find_candidates(lattice, model, SCALES, 100)}
    assert set(found) == {hypothesis["text"] for hypothesis in expected}
    for hypothesis in expected:
        assert found[hypothesis["text"]].acoustic == pytest.approx(hypothesis["am"], abs=1e-3)
        assert found[hypothesis["text"]].lm == pytest.approx(hypothesis["lm"], abs=5e-3)
