"""Record the direction of an n-gram model next to its file, because no format of n-grams has a place for it.

The config of a network says its direction, and the manifest of a bundle that of each of its models.
"""

from __future__ import annotations

import json
from pathlib import Path

from rescorer.errors import BundleError
from rescorer.safe_input.files import Folder

SUFFIX = ".direction.json"


def record_direction(model: Path, *, backward: bool) -> None:
    """Write a record next to a backward model, and remove that of a model that was replaced."""
    file = _record_file(model)
    if backward:
        file.write_text(json.dumps({"backward": True}) + "\n", encoding="utf-8")
    else:
        file.unlink(missing_ok=True)


def is_backward(model: Path) -> bool:
    """Whether an n-gram model is recorded as a backward one; without a record it is not.

    Raises:
        BundleError: the record cannot be read, or has anything else than the key ``backward``.
    """
    file = _record_file(model)
    if not file.exists():
        return False
    values = Folder(file.parent).read_json(file.name)
    if set(values) != {"backward"} or not isinstance(values["backward"], bool):
        raise BundleError(f'{file}: expected {{"backward": true}} or {{"backward": false}}')
    return bool(values["backward"])


def _record_file(model: Path) -> Path:
    return model.with_name(f"{model.name}{SUFFIX}")
