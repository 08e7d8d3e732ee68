"""Save and restore a run of GloVe exactly, in one file that is replaced atomically."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rescorer.errors import BundleError, ConfigError
from rescorer_training.state_files import check_options, read_state_file, write_state_file
from rescorer_training.vectors.glove.model import GloveParameters
from rescorer_training.vectors.glove.options import GloveOptions
from rescorer_training.vectors.saved_state import check_progress, check_tensors

STATE_FILE = "state.safetensors"


@dataclass
class GloveState:
    """Everything that changes in training, and the size of what it reads."""

    parameters: GloveParameters
    n_entries: int
    """Number of entries of the matrix of co-occurrences."""
    n_parts: int = 0
    """Number of parts trained on, over all epochs."""
    losses: list[float] = field(default_factory=list)
    """Mean loss per entry of each epoch; the last one may be incomplete."""
    seconds: float = 0.0


def save_state(folder: Path, state: GloveState, options: GloveOptions) -> None:
    """Write the state and the options to ``folder``; raises the errors of ``write_state_file``."""
    progress = {
        "n_entries": state.n_entries,
        "n_parts": state.n_parts,
        "losses": state.losses,
        "seconds": state.seconds,
    }
    metadata = {"options": json.dumps(asdict(options)), "progress": json.dumps(progress)}
    position = f"part {state.n_parts} of the co-occurrences"
    write_state_file(folder / STATE_FILE, state.parameters.tensors(), metadata, position)


def load_state(folder: Path, n_words: int, options: GloveOptions) -> GloveState:
    """Restore a saved state.

    Raises:
        ConfigError: there is no saved state, or the run was started with other options; the number of epochs
            may change.
        BundleError: the state is damaged or belongs to another vocabulary.
    """
    path = folder / STATE_FILE
    if not path.exists():
        raise ConfigError(f"{folder} has no run of GloVe to resume; start without --resume")
    metadata, tensors = read_state_file(path)
    try:
        saved, progress = json.loads(metadata["options"]), json.loads(metadata["progress"])
        state = GloveState(GloveParameters(**tensors), **progress)
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path} is not the state of a run of GloVe: {error!r}") from None
    check_options(path, saved, asdict(options))
    check_progress(path, progress)
    check_tensors(path, tensors, GloveParameters.shapes(n_words, options.dimensions))
    return state
