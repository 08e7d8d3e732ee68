"""Parse the texts of classes, which the commands take as NAME=FILE."""

from __future__ import annotations

from pathlib import Path

from rescorer.errors import ConfigError
from rescorer_training.cli.options import parse_pairs


def parse_texts(values: list[str]) -> dict[str, Path]:
    """Parse NAME=FILE arguments into the text of each class.

    Raises:
        ConfigError: an argument has no name or no file, or a name occurs twice.
    """
    texts: dict[str, Path] = {}
    for name, file in parse_pairs(values):
        if not name or not file:
            raise ConfigError(f"expected NAME=FILE, got {name + '=' + file!r}")
        if name in texts:
            raise ConfigError(f"class {name!r} is given twice; expected one text per class")
        texts[name] = Path(file)
    return texts


def find_model(run: Path) -> Path:
    """Return the folder of a classifier: ``best`` in the folder of a run, or the given folder itself."""
    return run / "best" if (run / "best").is_dir() else run
