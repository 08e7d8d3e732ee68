"""Measure the first n-gram model of a benchmark alone, beside KenLM with the same file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from rescorer.bundle import Bundle
from rescorer.lm.base import LanguageModel
from rescorer.lm.files.word_list import read_words
from rescorer.lm.ngrams import table_model
from rescorer.lm.ngrams.kenlm_model import KenlmNgram, load_kenlm
from rescorer.lm.ngrams.table_file import is_table_file
from rescorer.lm.ngrams.table_model import TableNgram
from rescorer.scoring.batch import plan_batches
from rescorer.trie import HypothesisTrie, Words, build_trie


@dataclass(frozen=True, slots=True)
class NgramSpeeds:
    """Words per second, counting ``</s>``; tries are built beforehand."""

    ngram: float
    """The bundle's n-gram on the CPU, a trie per call."""
    on_device: float | None = None
    """The same on the device of the models; None if it is not there, or no trie is large enough for it."""
    kenlm_loop: float | None = None
    """KenLM's Python binding, an edge per call."""
    kenlm: float | None = None
    """KenLM's Python binding, a sentence per call."""


def measure_ngrams(
    model: LanguageModel,
    twin: KenlmNgram | None,
    sentences: Sequence[Words],
    batch_words: int,
    clock: Callable[[], float] = time.perf_counter,
) -> NgramSpeeds:
    """Measure an n-gram model on the tries of some sentences, and KenLM on the same tries and sentences.

    A model on a device is also measured there, if a trie is large enough for that. Its scores come back to
    the CPU with every trie, so that no work is left to wait for when the clock is read.

    Args:
        twin: the same model, loaded by KenLM; None if there is none.
        batch_words: number of words per trie.
    """
    plans = plan_batches(sentences, [()] * len(sentences), batch_words)
    tries = [build_trie([sentences[i] for i in plan.indices]) for plan in plans]
    n_words = sum(len(sentence) + 1 for sentence in sentences)
    on_device = None
    is_large = max(trie.n_edges for trie in tries) >= table_model.MIN_DEVICE_EDGES
    if is_large and isinstance(model, TableNgram) and model.trie_table is not model.table:
        on_device = n_words / _time_tries(model, tries, clock)
        model = TableNgram(model.content, model.name)
    ngram = n_words / _time_tries(model, tries, clock)
    if twin is None:
        return NgramSpeeds(ngram, on_device)
    loop = n_words / _time_tries(twin, tries, clock)
    texts = [" ".join(sentence) for sentence in sentences]
    score, start = twin.kenlm.score, clock()
    for text in texts:
        score(text)
    return NgramSpeeds(ngram, on_device, loop, n_words / (clock() - start))


def _time_tries(model: LanguageModel, tries: Iterable[HypothesisTrie], clock: Callable[[], float]) -> float:
    start = clock()
    for trie in tries:
        model.score(trie)
    return clock() - start


def load_twin(bundle: Bundle) -> KenlmNgram | None:
    """Load the bundle's first n-gram with KenLM; None if it is not installed or cannot read such a file."""
    entry = bundle.manifest.get("models", {}).get(bundle.ngram, {"kind": "neural"})
    if entry["kind"] != "ngram" or find_spec("kenlm") is None:
        return None
    with bundle.files.open(entry["path"]) as stream:
        if is_table_file(stream):
            return None
        words = frozenset(read_words(bundle.files, entry["words"])) if "words" in entry else frozenset()
        return load_kenlm(stream, words)
