"""Read the pronunciations of the service's dictionary before requests need them."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import structlog

from rescorer.candidates.pronunciation import load_pronouncer
from rescorer.errors import ConfigError, FormatError

log = structlog.get_logger()


def read_sounds(path: Path) -> None:
    """Read a dictionary, and learn the rules for words that it lacks; rankers then find it in memory.

    Raises:
        ConfigError: the file is not a dictionary.
    """
    began = time.perf_counter()
    try:
        load_pronouncer(path).learn_letters()
    except FormatError as error:
        raise ConfigError(f"dictionary {error}") from None
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    load_ms = round((time.perf_counter() - began) * 1e3)
    log.info("dictionary read", file=str(path), sha256=digest, load_ms=load_ms)
