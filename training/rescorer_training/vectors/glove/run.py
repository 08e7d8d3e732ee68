"""Train GloVe from texts to a file of vectors, in the folder of a run that can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rescorer.errors import ConfigError
from rescorer.text import Normaliser
from rescorer_training.vectors.cooccurrences.counting import check_memory, count_cooccurrences
from rescorer_training.vectors.encoded_text import load_text, prepare_text
from rescorer_training.vectors.glove.entries import open_entries
from rescorer_training.vectors.glove.model import GloveParameters
from rescorer_training.vectors.glove.options import GloveOptions
from rescorer_training.vectors.glove.shuffle import shuffle_entries
from rescorer_training.vectors.glove.state import STATE_FILE, GloveState, load_state, save_state
from rescorer_training.vectors.glove.training import GloveTrainer
from rescorer_training.vectors.sources import record_sources
from rescorer_training.vectors.word_vectors import WordVectors

ENTRIES_FILE = "entries"


def start_run(
    texts: Sequence[Path],
    normaliser: Normaliser,
    folder: Path,
    options: GloveOptions,
    *,
    memory_mb: int,
) -> None:
    """Count and shuffle the co-occurrences of texts, and save the first state of a run.

    Raises:
        FormatError: a text cannot be read or has no words.
        ConfigError: the folder has a run, an option is out of range, the vocabulary has fewer words than
            vectors have dimensions, or no two words occur together.
        ScoringError: the disk is full.
    """
    if (folder / STATE_FILE).exists():
        raise ConfigError(f"{folder} has a run already: continue it with --resume, or choose another folder")
    check_memory(memory_mb)
    record_sources(folder, texts, normaliser)
    text = prepare_text(texts, normaliser, folder, options.min_count)
    if options.dimensions > len(text.words):
        raise ConfigError(
            f"dimensions: {options.dimensions} are more than the {len(text.words):,} words in "
            "the vocabulary: give more text, or fewer dimensions"
        )
    cells = folder / "cells"
    count_cooccurrences(text, cells, window=options.window, by_distance=True, memory_mb=memory_mb)
    n_entries = shuffle_entries(
        cells, folder / ENTRIES_FILE, n_words=len(text.words), memory_mb=memory_mb, seed=options.seed
    )
    cells.unlink()
    parameters = GloveParameters.initialise(len(text.words), options.dimensions, options.seed)
    save_state(folder, GloveState(parameters, n_entries), options)


def run(folder: Path, options: GloveOptions, threads: int) -> tuple[WordVectors, GloveState]:
    """Train the run of a folder from its saved state to the end.

    Returns:
        The sums of each word's two vectors, and the last state.

    Raises:
        ConfigError: the folder has no run, or one with other options.
        BundleError: the run's files are damaged.
        ScoringError: training diverges, or the state cannot be written.
    """
    text = load_text(folder)
    state = load_state(folder, len(text.words), options)
    entries = open_entries(folder / ENTRIES_FILE, len(text.words), state.n_entries)
    GloveTrainer(folder, entries, options, state).train(threads)
    return WordVectors(text.words, state.parameters.summed_vectors().numpy()), state
