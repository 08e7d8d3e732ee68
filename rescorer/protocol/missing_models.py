"""Metadata of health checks: the models that a server serves from memory although its disk lacks them.

The message of a health check has no field for details, so they come as trailing metadata of ``Check``.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib import parse

MISSING_MODELS = "rescorer-models-missing"
"""Key of the metadata; absent if no model is missing."""
MAX_VALUE_CHARS = 500
"""Longest value; names that do not fit are replaced by ``MORE``."""
MORE = "..."


def encode_missing_models(labels: Iterable[str]) -> str:
    """Encode labels, such as ``name/version``, as printable ASCII: percent-encoded, separated by commas."""
    value = ""
    for label in labels:
        longer = f"{value}, {parse.quote(label)}" if value else parse.quote(label)
        if len(longer) + len(f", {MORE}") > MAX_VALUE_CHARS:
            return f"{value}, {MORE}" if value else MORE
        value = longer
    return value


def decode_missing_models(metadata: Iterable[tuple[str, str | bytes]] | None) -> tuple[str, ...]:
    """Return the labels in the trailing metadata of a health check; ``MORE`` at the end if some were cut."""
    values = [str(value) for key, value in metadata or () if key == MISSING_MODELS]
    return tuple(parse.unquote(label) for value in values for label in value.split(", "))
