"""Train vectors of texts, in the folder of a run that can be resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rescorer.errors import ConfigError
from rescorer.lm.malloc import keep_freed_memory
from rescorer.text import Normaliser
from rescorer_training.vectors.encoded_text import load_text, prepare_text
from rescorer_training.vectors.sources import record_sources
from rescorer_training.vectors.word2vec.options import Word2VecOptions
from rescorer_training.vectors.word2vec.state import STATE_FILE, initialise_state, load_state, save_state
from rescorer_training.vectors.word2vec.training import Word2VecTrainer
from rescorer_training.vectors.word_vectors import WordVectors

REPORT_FILE = "training.json"


def start_run(texts: Sequence[Path], normaliser: Normaliser, folder: Path, options: Word2VecOptions) -> None:
    """Prepare the text and the first state of a run.

    Raises:
        FormatError: a text cannot be read or has no words.
        ConfigError: the folder has a run, or the text has too few frequent words.
        ScoringError: the disk is full.
    """
    if (folder / STATE_FILE).exists():
        raise ConfigError(f"{folder} has a run already: continue it with --resume, or choose another folder")
    record_sources(folder, texts, normaliser)
    text = prepare_text(texts, normaliser, folder, options.min_count)
    save_state(folder, initialise_state(len(text.words), options), options)


def run(folder: Path, options: Word2VecOptions, threads: int) -> tuple[WordVectors, dict[str, Any]]:
    """Train the run of a folder from its saved state to the end, and write a report to the folder.

    Returns:
        The vectors, and the report: sizes of text and vocabulary, time and speed.

    Raises:
        ConfigError: the folder has no run, or one with other options.
        BundleError: the run's files are damaged.
        ScoringError: training diverges, or a file cannot be written.
    """
    keep_freed_memory()
    text = load_text(folder)
    state = load_state(folder, len(text.words), options)
    n_parts_before, seconds_before = state.n_parts, state.seconds
    trainer = Word2VecTrainer(text, options, state)
    trainer.train(threads, lambda: save_state(folder, state, options))
    n_words = trainer.count_words(range(n_parts_before, trainer.n_parts))
    seconds = state.seconds - seconds_before
    report = {
        "vocabulary": len(text.words),
        "words": text.n_words,
        "seconds": round(state.seconds, 1),
        "words_per_second": round(n_words / seconds) if seconds else None,
    }
    (folder / REPORT_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return WordVectors(text.words, state.inputs[:-1].numpy()), report
