"""Record the direction of an n-gram model next to its file, because no format of n-grams has a place for it.

The config of a network says its direction, and the manifest of a bundle that of each of its models.
"""

from __future__ import annotations

import json
from pathlib import Path

from rescorer.errors import BundleError
from rescorer.formats.io.targets import remove_file
from rescorer.formats.io.text_io import write_text
from rescorer.safe_input.files import Folder

SUFFIX = ".direction.json"


def record_direction(model: Path, *, backward: bool) -> None:
    """Write a record next to a backward model, and remove that of a model that was replaced."""
    file = direction_file(model)
    if backward:
        write_text(file, json.dumps({"backward": True}) + "\n")
    else:
        remove_file(file)


def is_backward(model: Path) -> bool:
    """Whether an n-gram model is recorded as a backward one; without a record it is not.

    Raises:
        BundleError: the record cannot be read, or has anything else than the key ``backward``.
    """
    file = direction_file(model)
    if not file.exists():
        return False
    values = Folder(file.parent).read_json(file.name)
    if set(values) != {"backward"} or not isinstance(values["backward"], bool):
        raise BundleError(f'{file}: expected {{"backward": true}} or {{"backward": false}}')
    return bool(values["backward"])


def direction_file(model: Path) -> Path:
    """The file next to an n-gram model that says its direction."""
    return model.with_name(f"{model.name}{SUFFIX}")
