"""Exceptions of the library and its clients. gRPC status and exit codes are assigned where they are used.

RescorerError
├── InputError            the input is invalid; the message says which part, and what was expected
│   ├── FormatError       a file, or a line of it, cannot be read
│   ├── InvalidList       an n-best list cannot be scored; other lists are not affected
│   └── LimitExceeded     a request exceeds a limit
├── ConfigError           options, weights or settings are invalid or do not fit the models
├── ModelError
│   ├── BundleError       a bundle is missing, incomplete or corrupt
│   ├── ModelRefused      the server has this model, but cannot load it
│   └── ModelNotFound     the server does not have this model
├── ScoringError          scoring failed on valid input because of a bug or the machine
└── ServiceError          the service did not answer, although the request may be valid
    ├── Overloaded        too many requests are in flight; try again later
    ├── Unavailable       the service is unreachable, loading its models or shutting down
    ├── Unauthenticated   the service could not identify the caller
    ├── PermissionDenied  the caller is not permitted to make this call
    └── DeadlineExceeded  the call took longer than permitted
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

MAX_QUOTED_CHARS = 100
"""Longest name or id that a message quotes in full, so that the rest of the message stays readable."""
MAX_MESSAGE_CHARS = 1000
"""Longest message about a part of the input. It may quote longer texts than names."""


def shorten(text: str, max_chars: int) -> str:
    """Cut a text from outside to a length at which it can be quoted."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def quote(text: str, max_chars: int = MAX_QUOTED_CHARS) -> str:
    """Return a text from outside in quotation marks, cut, and without control characters."""
    quoted = repr(text[: max_chars + 1])
    return quoted if len(quoted) <= max_chars + 2 else f"{quoted[:max_chars]}…{quoted[0]}"


class RescorerError(Exception):
    """Base class of all errors that this project raises deliberately."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes too. Otherwise unpickling would call ``__init__`` with the whole message."""
        return _unpickle_error, (type(self), self.args, self.__dict__)


def _unpickle_error(
    error_type: type[RescorerError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> RescorerError:
    error = error_type.__new__(error_type)
    error.args = args
    error.__dict__.update(attributes)
    return error


class InputError(RescorerError):
    """The input is invalid."""


class FormatError(InputError):
    """A file, or a line of it, is not valid in its format.

    Args:
        message: what is wrong, and what was expected.
        file: file name as the user gave it.
        line: 1-based line number, if known.
        field: name of the invalid field, if any.
    """

    def __init__(self, message: str, *, file: str = "", line: int | None = None, field: str = "") -> None:
        self.message = shorten(message, MAX_MESSAGE_CHARS)
        self.file, self.line, self.field = file, line, field
        place = ":".join(str(part) for part in (file, line) if part not in ("", None))
        parts = place, shorten(field, MAX_QUOTED_CHARS), self.message
        super().__init__(": ".join(part for part in parts if part))


class InvalidList(InputError):
    """An n-best list cannot be read, scored or written.

    Args:
        message: what is wrong, and what was expected.
        list_id: id of the list.
        hypothesis: 0-based index of the invalid hypothesis, if any.
        field: path of the invalid field inside the list, such as ``streams["acoustic"]``.
        file: name of the file that contains the list, as the user gave it, if any.
        line: 1-based line number, if known.
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
        self.message = shorten(message, MAX_MESSAGE_CHARS)
        self.list_id, self.hypothesis, self.field = list_id, hypothesis, field
        self.file, self.line = file, line
        place = [":".join(str(part) for part in (file, line) if part not in ("", None))] if file else []
        place.append(f"list {quote(list_id)}")
        if hypothesis is not None:
            place.append(f"hypothesis {hypothesis}")
        if field:
            place.append(shorten(field, MAX_QUOTED_CHARS))
        super().__init__(f"{', '.join(place)}: {self.message}")


class LimitExceeded(InputError):
    """A request exceeds a limit.

    Args:
        message: what was sent, and what the limit is.
        field: path of the field that exceeds the limit.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        self.message, self.field = message, field
        super().__init__(f"{field}: {message}" if field else message)


class ConfigError(RescorerError):
    """Options, weights or settings are invalid or do not fit the models."""


class ModelError(RescorerError):
    """A model cannot be used."""


class BundleError(ModelError):
    """A model bundle is missing, incomplete or corrupt."""


class LoaderDied(BundleError):
    """The process that loaded a bundle has died."""


class ModelRefused(ModelError):
    """The server has this model, but cannot load it; trying again does not help."""


class ModelNotFound(ModelError):
    """The server does not have this model."""


class ScoringError(RescorerError):
    """Scoring failed on valid input because of a bug or the machine."""


class ServiceError(RescorerError):
    """The service did not answer, although the request may be valid."""


class Overloaded(ServiceError):
    """Too many requests are in flight; try again later.

    Args:
        retry_after_s: seconds to wait before trying again; 0 if unknown.
    """

    def __init__(self, message: str = "", *, retry_after_s: float = 0.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class Unavailable(ServiceError):
    """The service is unreachable, loading its models or shutting down."""


class Unauthenticated(ServiceError):
    """The service could not identify the caller."""


class PermissionDenied(ServiceError):
    """The caller is not permitted to make this call."""


class DeadlineExceeded(ServiceError):
    """The call took longer than permitted."""


def pluralise(count: int, noun: str, plural: str = "") -> str:
    """Return a count and its noun.

    >>> pluralise(1, "list"), pluralise(1200, "list"), pluralise(2, "hypothesis", "hypotheses")
    ('1 list', '1,200 lists', '2 hypotheses')

    Args:
        plural: the plural of the noun; empty to add an s.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


MAX_SHORT_NAME = 4
"""Longest name, in characters, that counts as short: after two typing errors it cannot be recognised."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to the error about an unknown name; empty if no known name is similar."""
    similar = find_similar(name, known)
    return f"; did you mean {similar!r}?" if similar not in ("", name) else ""


def find_similar(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to a name; empty if none is similar.

    Names of up to ``MAX_SHORT_NAME`` characters are similar only if they differ by one typing error.

    >>> find_similar("wrod", ["word", "oov"]), find_similar("foo", ["word", "oov"])
    ('word', '')
    """
    from rapidfuzz.distance import OSA  # needed only for an error

    similar = next(iter(difflib.get_close_matches(name, list(known), 1)), "")
    is_short = max(len(name), len(similar)) <= MAX_SHORT_NAME
    return "" if is_short and OSA.distance(name, similar) > 1 else similar
