"""Record which texts a run was made from, and refuse to resume it with others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rescorer.errors import BundleError, ConfigError, FormatError
from rescorer.formats.io.targets import make_folder
from rescorer.text import Normaliser
from rescorer_training.data.normalisation import record_normaliser, recorded_normaliser
from rescorer_training.data.pipes import is_pipe
from rescorer_training.vectors.full_disk import report_full_disk

SOURCES_FILE = "sources.json"


@dataclass(frozen=True)
class SourceText:
    """A text as it was when the run was started.

    A pipe can be read only once: its size and hash are None, and it equals every text.
    """

    name: str
    n_bytes: int | None
    sha256: str | None

    @classmethod
    def describe(cls, path: Path) -> SourceText:
        """Hash the content of a text.

        Raises:
            FormatError: the text cannot be read.
        """
        try:
            if is_pipe(path) or (path.exists() and not path.is_file()):
                return cls(str(path), None, None)
            with open(path, "rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                return cls(str(path), stream.tell(), digest)
        except OSError as error:
            raise FormatError(f"cannot be read: {error.strerror or error}", file=str(path)) from None

    def differs(self, other: SourceText) -> bool:
        return None not in (self.sha256, other.sha256) and self.sha256 != other.sha256

    def __str__(self) -> str:
        return self.name if self.n_bytes is None else f"{self.name} ({self.n_bytes:,} bytes)"


def record_sources(folder: Path, texts: Sequence[Path], normaliser: Normaliser) -> None:
    """Create a run's folder with the names, sizes and hashes of its texts, and its normaliser.

    Raises:
        FormatError: a text cannot be read.
        ScoringError: the disk is full.
    """
    sources = [asdict(SourceText.describe(path)) for path in texts]
    with report_full_disk(folder, "files of the run"):
        make_folder(folder)
        (folder / SOURCES_FILE).write_text(json.dumps(sources, indent=2) + "\n", encoding="utf-8")
        record_normaliser(folder, normaliser)


def check_sources(folder: Path, texts: Sequence[Path], normaliser: Normaliser | None) -> None:
    """Compare texts and normaliser with those that a run was started with.

    Args:
        normaliser: None to accept the recorded one.

    Raises:
        FormatError: a text cannot be read.
        BundleError: a record is damaged.
        ConfigError: the folder has no run, or a text or the normaliser has changed; names what has changed.
    """
    path = folder / SOURCES_FILE
    if not path.exists():
        raise ConfigError(f"{folder} has no run of word vectors to resume; start without --resume")
    try:
        before = [SourceText(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (TypeError, ValueError) as error:
        raise BundleError(f"{path} is damaged: {error}") from None
    recorded = recorded_normaliser(folder)
    if normaliser is not None and recorded is not None and normaliser.settings != recorded.settings:
        raise ConfigError(
            f"{folder}: the run was started with another normaliser; leave --normaliser out, or start again "
            "in another folder"
        )
    now = [SourceText.describe(text) for text in texts]
    changes = _describe_changes(before, now)
    if changes:
        raise ConfigError(
            f"{folder}: the run was started with other texts: {changes}; start again in another folder"
        )


def _describe_changes(before: Sequence[SourceText], now: Sequence[SourceText]) -> str:
    """Describe the first difference; empty if there is none."""
    if len(before) != len(now):
        return f"there were {len(before)} texts, now {len(now)}"
    for number, (old, new) in enumerate(zip(before, now, strict=True), start=1):
        if old.differs(new):
            return f"text {number} was {old}, is {new}" + (
                " with another content" if str(old) == str(new) else ""
            )
    return ""
