"""Owns the page of settings, made from the code: ``make docs`` writes it, and a test holds it to that."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from rescorer.service.config_sources import flag_of
from rescorer.service.environment import PREFIX
from rescorer.service.settings import ServiceSettings

SETTINGS = Path(__file__).parent / "settings.md"
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
    "scorers": "processes",
    "front_ends": "processes",
    "port": "port",
}
"""By the end of a setting's name."""
KINDS = {bool: "true, false", int: "number", float: "number", str: "text", Path: "path", tuple: "names"}
HEAD = """# Settings

Each is an option of `rescorer serve`, a variable of the environment and a name in a TOML file;
[service.md](service.md) says which goes before which, and what they are for. This page is made from the code,
by `make docs`.

| setting | environment | option | default | unit | meaning |
|---|---|---|---|---|---|
"""


def settings_page() -> str:
    """A row a setting, in the order of ``--help``."""
    rows = [row(name, field) for name, field in ServiceSettings.model_fields.items()]
    return HEAD + "".join(f"| {' | '.join(each)} |\n" for each in rows)


def row(name: str, field: Any) -> tuple[str, ...]:
    value = f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()
    default = "none" if field.default in (None, ()) else f"`{value}`"
    meaning = " ".join((field.description or "").replace("``", "`").split())
    flag = f"`{flag_of(name)}`"
    return f"`{name}`", f"`{PREFIX}{name.upper()}`", flag, default, unit(name, field.annotation), meaning


def unit(name: str, annotation: Any) -> str:
    """Of its values, or their kind where they have none."""
    for end, words in UNITS.items():
        if name.endswith(end):
            return words
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if isinstance(annotation, types.UnionType):
        annotation = next(each for each in get_args(annotation) if each is not types.NoneType)
    return KINDS[get_origin(annotation) or annotation]


if __name__ == "__main__":
    SETTINGS.write_text(settings_page(), encoding="utf-8")
