"""Owns the tree of faults and what they suggest; gRPC and exit codes are mapped once each, where used.

RescorerError
├── InputError            what the caller sent is wrong; the message says which part, and what was expected
│   ├── FormatError       a file or a line of it cannot be read
│   ├── InvalidList       one n-best list cannot be scored; other lists are not affected
│   └── LimitExceeded     a request is larger than a stated limit
├── ConfigError           options, weights or settings contradict themselves or the models
├── ModelError
│   ├── BundleError       a bundle is missing, incomplete or corrupt
│   └── ModelNotFound     no such model is served
├── ScoringError          the models failed on good input (a fault of ours or of the machine)
└── ServiceError          a service gave no answer, though the request may be good
    ├── Overloaded        too much is in flight; try again later
    ├── Unavailable       it cannot be reached, is loading its models or shutting down
    ├── Unauthenticated   it does not know who calls
    ├── PermissionDenied  it knows who calls, and who may not do this
    └── DeadlineExceeded  the time allowed is over
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class RescorerError(Exception):
    """Base of every fault this project raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as it is: the base class would give the whole message to ``__init__`` again."""
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(kind: type[RescorerError], args: tuple[Any, ...], values: dict[str, Any]) -> RescorerError:
    fault = kind.__new__(kind)
    fault.args = args
    fault.__dict__.update(values)
    return fault


class InputError(RescorerError):
    """What the caller sent is wrong."""


class FormatError(InputError):
    """A file cannot be read as the format it was said to be.

    Args:
        message: what is wrong, and what was expected.
        file: the file's name as the user gave it.
        line: 1-based line number, where there is one.
        field: the offending field, where there is one.
    """

    def __init__(self, message: str, *, file: str = "", line: int | None = None, field: str = "") -> None:
        self.file, self.line, self.field = file, line, field
        place = ":".join(str(part) for part in (file, line) if part not in ("", None))
        super().__init__(": ".join(part for part in (place, field, message) if part))


class InvalidList(InputError):
    """One n-best list cannot be scored.

    Args:
        message: what is wrong, and what was expected.
        list_id: the list's id.
        hypothesis: 0-based index of the offending hypothesis, where there is one.
        field: path of the offending field inside the list, such as ``streams["acoustic"]``.
        file: the file it was read from, as the user gave it, where there is one.
        line: 1-based line number, where there is one.
    """

    def __init__(
        self,
        message: str,
        *,
        list_id: str = "",
        hypothesis: int | None = None,
        field: str = "",
        file: str = "",
        line: int | None = None,
    ) -> None:
        self.message, self.list_id, self.hypothesis, self.field = message, list_id, hypothesis, field
        self.file, self.line = file, line
        place = [":".join(str(part) for part in (file, line) if part not in ("", None))] if file else []
        place.append(f"list {list_id!r}")
        if hypothesis is not None:
            place.append(f"hypothesis {hypothesis}")
        if field:
            place.append(field)
        super().__init__(f"{', '.join(place)}: {message}")


class LimitExceeded(InputError):
    """A request is larger than a stated limit.

    Args:
        message: what was sent, and what the limit is.
        field: path of the offending field.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        self.message, self.field = message, field
        super().__init__(f"{field}: {message}" if field else message)


class ConfigError(RescorerError):
    """Options, weights or settings contradict themselves or the models."""


class ModelError(RescorerError):
    """A model cannot be used."""


class BundleError(ModelError):
    """A model bundle is missing, incomplete or corrupt."""


class ModelNotFound(ModelError):
    """No such model is served."""


class ScoringError(RescorerError):
    """The models failed on good input."""


class ServiceError(RescorerError):
    """A service gave no answer, though the request may be good."""


class Overloaded(ServiceError):
    """Too much is in flight; try again later.

    Args:
        retry_after_s: how much later; 0: not known.
    """

    def __init__(self, message: str = "", *, retry_after_s: float = 0.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class Unavailable(ServiceError):
    """The service cannot be reached, is loading its models or shutting down."""


class Unauthenticated(ServiceError):
    """The service does not know who calls."""


class PermissionDenied(ServiceError):
    """The service knows who calls, and who may not do this."""


class DeadlineExceeded(ServiceError):
    """The time allowed is over."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one that is nearest, where one is near."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near and near[0] != name else ""
