"""Save and restore a run of CBOW or skip-gram exactly, in one file that is replaced atomically."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from rescorer.errors import BundleError, ConfigError
from rescorer_training.state_files import check_options, read_state_file, write_state_file
from rescorer_training.vectors.saved_state import check_progress, check_tensors
from rescorer_training.vectors.word2vec.options import Word2VecOptions

STATE_FILE = "state.safetensors"


@dataclass
class TrainingState:
    """Everything that changes in training.

    Random numbers are drawn from generators that are seeded by the position in the text, so that they need
    not be saved.
    """

    inputs: Tensor
    """(V + 1, D) vectors of context words, which are the result; the last row is for padding."""
    outputs: Tensor
    """(V + 1, D) vectors of predicted words, or of the nodes of the Huffman tree."""
    n_parts: int = 0
    """Number of parts of the text trained on, over all epochs."""
    seconds: float = 0.0
    """Time spent in training."""


def initialise_state(n_words: int, options: Word2VecOptions) -> TrainingState:
    """Return random input vectors in ±1/(2D) and output vectors of zero, as in the original program."""
    random = torch.Generator().manual_seed(options.seed)
    inputs = torch.rand(n_words + 1, options.dimensions, generator=random)
    inputs = inputs.sub_(0.5).div_(options.dimensions)
    return TrainingState(inputs, torch.zeros(n_words + 1, options.dimensions))


def save_state(folder: Path, state: TrainingState, options: Word2VecOptions) -> None:
    """Write the state and the options to ``folder``; raises the errors of ``write_state_file``."""
    progress = {"n_parts": state.n_parts, "seconds": state.seconds}
    metadata = {"options": json.dumps(asdict(options)), "progress": json.dumps(progress)}
    tensors = {"inputs": state.inputs, "outputs": state.outputs}
    write_state_file(folder / STATE_FILE, tensors, metadata, f"part {state.n_parts} of the text")


def load_state(folder: Path, n_words: int, options: Word2VecOptions) -> TrainingState:
    """Restore a saved state.

    Raises:
        ConfigError: there is no saved state, or the run was started with other options.
        BundleError: the state is damaged or belongs to another vocabulary.
    """
    path = folder / STATE_FILE
    if not path.exists():
        raise ConfigError(f"{folder} has no run of word vectors to resume; start without --resume")
    metadata, tensors = read_state_file(path)
    try:
        saved, progress = json.loads(metadata["options"]), json.loads(metadata["progress"])
        state = TrainingState(tensors["inputs"], tensors["outputs"], **progress)
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path} is not the state of a run of word vectors: {error!r}") from None
    check_options(path, saved, asdict(options))
    check_progress(path, progress)
    check_tensors(path, tensors, dict.fromkeys(("inputs", "outputs"), (n_words + 1, options.dimensions)))
    return state
