"""Place n-gram tables on the device of the other models, where tries are then looked up by torch."""

from __future__ import annotations

from rescorer.lm.ngrams.model import NgramModel
from rescorer.lm.ngrams.table_model import TableNgram

TORCH_DEVICES = frozenset({"cuda"})
"""Types of devices on which torch looks up large tries. On a CPU, NumPy does it from the mapped file, whose
pages all processes share."""
MAX_SHARE_OF_FREE_MEMORY = 0.25
"""The rest is for networks, for their batches, and for other processes on the device."""


def place_ngram(model: NgramModel, device: str) -> None:
    """Let a table be copied to a device where there is room for it; models in KenLM stay on the CPU.

    Scores are the same to the last bit. Only large tries are looked up on the device, and the first of them
    copies the table; everything else is looked up in the mapped file.

    Args:
        device: torch name of a device.

    Raises:
        ConfigError: torch does not have the device.
    """
    if device.partition(":")[0] not in TORCH_DEVICES or not isinstance(model, TableNgram):
        return
    from rescorer.lm.device import memory_bytes, torch_device  # imports torch, which takes seconds
    from rescorer.lm.ngrams.torch_arrays import TorchArrays

    place, memory = torch_device(device), memory_bytes(device)
    if not memory or model.table.n_bytes <= MAX_SHARE_OF_FREE_MEMORY * (memory["total"] - memory["used"]):
        model.use_for_tries(TorchArrays(place))
