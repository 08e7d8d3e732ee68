"""Convert tables of a TOML file to dataclasses, with errors that name table and option."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rescorer.errors import ConfigError, did_you_mean


def parse_table(kind: type, table: dict[str, Any], location: str) -> Any:
    """Convert a table to a dataclass; raises ConfigError, which names the table, if a value is invalid."""
    check_keys(table, [item.name for item in fields(kind)], location)
    try:
        return TypeAdapter(kind).validate_python(table)
    except ValidationError as error:
        details = (f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
        raise ConfigError(f"{location} {'; '.join(details)}") from None
    except ConfigError as error:
        raise ConfigError(f"{location} {error}") from None


def check_keys(table: Mapping[str, Any], known: Collection[str], location: str) -> None:
    """Raise ConfigError if a table has an unknown option."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{location} is {table!r}; expected a table of options")
    unknown = sorted(set(table) - set(known))
    if unknown:
        hint = did_you_mean(unknown[0], known) or f"; expected some of {', '.join(known)}"
        raise ConfigError(f"{location} unknown {', '.join(unknown)}{hint}")
