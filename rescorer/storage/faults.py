"""Explain the faults of storage services in one line each, as errors of the operating system.

The libraries of the services are optional, so their errors are recognised by name.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from rescorer.errors import FormatError
from rescorer.storage.urls import protocol_of

LIBRARIES = frozenset(
    {"aiobotocore", "aiohttp", "asyncio", "botocore", "fsspec", "gcsfs", "google", "requests"}
)
NO_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError"}
)
REFUSED_CREDENTIALS = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired"}
)
NO_ANSWER = frozenset(
    {
        "ConnectionError",
        "HTTPClientError",
        "TimeoutError",
        "FSTimeoutError",
        "ClientConnectionError",
        "Timeout",
    }
)
CHANGED = "FileExpired"
HOW_TO_LOG_IN = {
    "gs": "log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role",
}


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn the faults of a storage into OSErrors whose ``strerror`` says what happened and what to do.

    Raises:
        FileNotFoundError: there is no such object or bucket.
        FileExistsError: an object that should be created exists.
        OSError: access is denied, the storage does not answer, or it fails.
    """
    try:
        yield
    except Exception as error:
        if (fault := explain(error, url)) is None:
            raise
        raise fault from error


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn faults while an object is read into FormatErrors, except that there is no such object.

    A reader of lists would take an OSError for the damaged end of a file, and go on without the rest.
    """
    try:
        with explained(url):
            yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=url) from error


def explain(error: Exception, url: str) -> OSError | None:
    """The error of the operating system for a fault of a storage; None for any other error."""
    names = {kind.__name__ for kind in type(error).__mro__}
    code, family = error_code(error), "gs" if protocol_of(url) in ("gs", "gcs") else "s3"
    if isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, "exists already")
    if code == "NoSuchBucket":
        return FileNotFoundError(errno.ENOENT, "there is no such bucket")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object")
    if names & NO_CREDENTIALS:
        return PermissionError(errno.EACCES, f"no credentials: {HOW_TO_LOG_IN[family]}")
    if code in REFUSED_CREDENTIALS or code == "401":
        return PermissionError(errno.EACCES, f"the credentials are refused: {_first_line(error)}")
    if isinstance(error, PermissionError) or code in ("403", "AccessDenied") or "Forbidden" in str(error):
        return PermissionError(
            errno.EACCES, "access denied: these credentials need permission to list, read and write here"
        )
    if CHANGED in names:
        return OSError(errno.EBUSY, "changed while it was read")
    if names & NO_ANSWER:
        return OSError(errno.ETIMEDOUT, f"the storage does not answer: {_first_line(error)}")
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in LIBRARIES:
        return OSError(errno.EPROTO, f"the storage fails: {_first_line(error)}")  # EIO is that of a disk
    return None


def error_code(error: BaseException) -> str:
    """The code that a service gave an error or its cause; an empty string if there is none."""
    for fault in (error, error.__cause__, getattr(error.__cause__, "__cause__", None)):
        response = getattr(fault, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        if (code := getattr(fault, "code", None)) is not None:
            return str(code)
    return ""


def _first_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().partition("\n")[0] or type(error).__name__
