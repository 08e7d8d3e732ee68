"""Generate the page of settings, docs/reference/settings.md."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from rescorer.service.config_sources import PREFIX, flag_of
from rescorer.service.settings import ServiceSettings

UNITS = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_bytes": "bytes",
    "_share": "share, 0 to 1",
    "_lists": "lists",
    "_hypotheses": "hypotheses",
    "_words": "words",
    "_tokens": "words",
    "_streams": "streams",
    "threads": "threads",
    "workers": "processes",
    "front_ends": "processes",
    "port": "port",
}
"""Unit of a setting, by the end of its name."""
KINDS = {bool: "true, false", int: "number", float: "number", str: "text", Path: "path", tuple: "names"}
HEAD = """# Settings

Every setting is an option of `rescorer serve`, an environment variable and a key in a TOML file.
[Serve](../how-to/serve.md#settings) says which of them takes precedence. This page is generated from the code
by `make docs`.

| setting | meaning | default | unit | option, environment variable |
|---|---|---|---|---|
"""


def settings_page() -> str:
    """Return the page: one row per setting, in the order of ``--help``."""
    rows = [row(name, field) for name, field in ServiceSettings.model_fields.items()]
    return HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def row(name: str, field: Any) -> tuple[str, ...]:
    value = f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()
    default = "none" if field.default in (None, ()) else f"`{value}`"
    meaning = " ".join((field.description or "").replace("``", "`").split())
    names = f"`{flag_of(name)}`<br>`{PREFIX}{name.upper()}`"
    return f"`{name}`", meaning, default, unit(name, field.annotation), names


def unit(name: str, annotation: Any) -> str:
    """Return the unit of a setting, or the kind of its values if they have none."""
    for end, words in UNITS.items():
        if name.endswith(end):
            return words
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if isinstance(annotation, types.UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not types.NoneType)
    return KINDS[get_origin(annotation) or annotation]
