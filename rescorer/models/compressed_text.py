"""Read the text of model files within bounds, plain or compressed with gzip, bzip2 or xz.

The size of a compressed file on disk bounds the text that is read from it, so that a small file cannot fill
the memory or keep a worker busy for hours. Users give files from many toolkits, archives and downloads: if a
file is something else, the message says what it is and what to do.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from rescorer.errors import BundleError

BLOCK_BYTES = 1 << 16  # bytes of text that are read at once
MAX_COMPRESSION = 50
"""Largest accepted ratio of text to compressed bytes. Compressed n-grams have a ratio of 3 to 10."""
FREE_TEXT_BYTES = 1 << 20  # text that a compressed file may always have, whatever its ratio
XZ_MEMORY_BYTES = 1 << 27  # most memory for xz's dictionary; ``xz -9`` needs half of it
GZIP_MAGIC = b"\x1f\x8b"
BZIP2_MAGIC = b"BZh"
BZIP2_BLOCKS = b"1AY&SY", b"\x17rE8P\x90"
"""The bytes that follow ``BZh`` and a digit: the mark of a block or, in an empty file, of the end."""
XZ_MAGIC = b"\xfd7zXZ\0"
MAGIC_BYTES = 10


class _GzipMember:
    """A decompressor of gzip with the interface of those in ``bz2`` and ``lzma``."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._member.decompress(self._member.unconsumed_tail + data, max_length)


_Member = bz2.BZ2Decompressor | lzma.LZMADecompressor | _GzipMember


def text_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the decompressed text of a file in blocks of ``BLOCK_BYTES``; only the last may be shorter.

    Raises:
        BundleError: the compressed data are damaged, or hold more text than a file of this size may have.
    """
    new_member = _find_compression(stream)
    if new_member is None:
        while block := stream.read(BLOCK_BYTES):
            yield block
        return
    left = max_text_bytes(stream)
    pending = bytearray()
    for part in _decompress(stream, new_member):
        left -= len(part)
        if left < 0:
            raise BundleError(
                f"{stream.name}: holds more than {max_text_bytes(stream):,} bytes of text; expected at most "
                f"{MAX_COMPRESSION} times its size"
            )
        pending += part
        while len(pending) >= BLOCK_BYTES:
            yield bytes(pending[:BLOCK_BYTES])
            del pending[:BLOCK_BYTES]
    if pending:
        yield bytes(pending)


def max_text_bytes(stream: BinaryIO) -> int:
    """The largest number of bytes of text that a file may hold, given its size on disk."""
    size = os.fstat(stream.fileno()).st_size
    return MAX_COMPRESSION * size + FREE_TEXT_BYTES if _find_compression(stream) else size


def _find_compression(stream: BinaryIO) -> Callable[[], _Member] | None:
    """Return the constructor of a file's decompressor, chosen by its first bytes; None for a plain file."""
    head = os.pread(stream.fileno(), MAGIC_BYTES, 0)
    if head.startswith(GZIP_MAGIC):
        return _GzipMember
    if head.startswith(BZIP2_MAGIC) and head[3:4].isdigit() and head[4:] in BZIP2_BLOCKS:
        return bz2.BZ2Decompressor
    if head.startswith(XZ_MAGIC):
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
    return None


def _decompress(stream: BinaryIO, new_member: Callable[[], _Member]) -> Iterator[bytes]:
    """Yield the text of all members of a compressed file, at most ``BLOCK_BYTES`` at a time."""
    data = _skip_padding(stream, b"")
    while data:
        member = new_member()
        while not member.eof:
            try:
                part = member.decompress(data, BLOCK_BYTES)
            except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError):
                raise BundleError(f"{stream.name}: the compressed data are damaged") from None
            if part:
                yield part
            is_hungry = member.needs_input and not member.eof
            data = stream.read(BLOCK_BYTES) if is_hungry else b""
            if is_hungry and not data and not part:
                raise BundleError(f"{stream.name}: the compressed data end too early")
        data = _skip_padding(stream, member.unused_data)


def _skip_padding(stream: BinaryIO, data: bytes) -> bytes:
    """Skip zeros between members; return the bytes that begin the next member, or ``b""`` at the end."""
    while not (data := data.lstrip(b"\0")):
        if not (data := stream.read(BLOCK_BYTES)):
            return b""
    return data


KENLM_MAGIC = b"mmap lm http://kheafield.com/code format version "
WIDE_BOMS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""Byte order marks and their encodings. Of two marks that start alike, the longer one comes first."""
UTF8_BOM = b"\xef\xbb\xbf"
GIVE_ARPA = "give the ARPA file that it was made from"

_COMPRESSIONS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress",
    b"\x5d\0\0": "lzma",
}
_BINARIES = {
    KENLM_MAGIC: f"is a KenLM binary, which does not contain its words; {GIVE_ARPA}",
    **dict.fromkeys(
        (b"\xd6\xfd\xb2\x7e", b"\x7e\xb2\xfd\xd6"),
        f"is an automaton of OpenFst (such as G.fst); {GIVE_ARPA}",
    ),
    b"SRILM_BINARY_NGRAM": "is SRILM's binary format; write an ARPA file with: "
    "ngram -lm FILE -write-lm NEW.arpa",
    b"Trie Language Model": "is PocketSphinx's binary format; write an ARPA file with: "
    "pocketsphinx_lm_convert -i FILE -o NEW.arpa -ofmt arpa",
    **dict.fromkeys(
        (b"blmt", b"Qblmt"),
        "is IRSTLM's binary format; write an ARPA file with: compile-lm FILE --text=yes NEW.arpa",
    ),
    b"PAR1": "is a parquet table; expected an ARPA file",
    **dict.fromkeys(
        (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
        "is a pickle of Python or torch; expected an ARPA file",
    ),
}
_INSIDE = {
    b"<ConstArpaLm>": f"is a ConstArpaLm of Kaldi (G.carpa); {GIVE_ARPA}",
    b"Darpa Trigram LM": "is PocketSphinx's DMP format; write an ARPA file with: "
    "pocketsphinx_lm_convert -i FILE -o NEW.arpa -ofmt arpa",
    b"ustar": "is a tar archive; unpack the ARPA file in it",
}
"""Kinds of files, by bytes that may be anywhere in the first ``INSIDE_BYTES``."""
INSIDE_BYTES = 512
FIRST_LINES = 20  # lines of a text that are looked at
MAX_CONTROL_SHARE = 0.02  # share of control characters above which bytes are not those of a text


_TEXTS = {
    rb"<(!doctype\s+html|html|head|script)\b": "is a web page (HTML); the download of the model has failed, "
    "or is behind another link",
    rb"<(\?xml|error|!doctype)\b": "is an XML document; expected an ARPA file",
    rb"version https://git-lfs\.github\.com/spec/": "is a pointer of Git LFS in place of the file; fetch the "
    "file with: git lfs pull",
    rb"name \S+\s+nodes \d+\s": f"is a PFSG, a graph of words of SRILM; {GIVE_ARPA}",
    rb"(#JSGF|grammar\s)": "is a grammar (JSGF); expected an ARPA file",
    rb"(#.*\n)*VERSION=\d": "is an HTK lattice; expected an ARPA file",
    rb"[{\[]\s*[\"{\[\]}\d]": "is JSON; expected an ARPA file",
}
"""Kinds of text, by patterns that the beginning matches; upper and lower case are the same."""
_ARC = re.compile(rb"\d+[ \t]+\d+[ \t]+\S+([ \t]+\S+){0,2}|\d+([ \t]+[-+.\deE]+)?")
_COUNT = re.compile(rb"\S+([ \t]+\S+)*[ \t]+\d+")


def explain_content(head: bytes, what: str = "an ARPA file") -> str:
    """Say what a file is, by its first bytes after decompression, and what to do; empty if this is unknown.

    Args:
        what: the expected kind of file, for the message.
    """
    if not head.strip():
        return f"is empty; expected {what}"
    if compression := _find(_COMPRESSIONS, head.startswith):
        return f"is compressed with {compression}; decompress it, or use gzip, bzip2 or xz"
    if message := _find(_BINARIES, head.startswith) or _find(_INSIDE, head[:INSIDE_BYTES].__contains__):
        return message.replace("an ARPA file", what) if message.endswith("expected an ARPA file") else message
    if encoding := find_wide_encoding(head):
        return f"is text in {encoding}; write it in UTF-8 with: iconv -f {encoding} -t UTF-8 FILE > NEW"
    # not those of a text in any encoding that extends ASCII
    controls = sum(head.count(byte) for byte in range(32) if byte not in b"\t\n\v\f\r\x1a\x1b")
    if b"\0" in head or controls > MAX_CONTROL_SHARE * len(head):
        return f"is a binary file of an unknown kind; expected {what}"
    text = head.removeprefix(UTF8_BOM)
    if kind := _find(_TEXTS, lambda start: re.match(rb"\s*" + start, text, re.IGNORECASE) is not None):
        return kind
    lines = [line.strip() for line in text.splitlines()[:FIRST_LINES] if line.strip()]
    lines = lines[:-1] or lines  # the last may be cut
    if any(len(line.split()) > 2 for line in lines) and all(map(_ARC.fullmatch, lines)):
        return f"is an automaton as text (AT&T's format, as fstprint writes it); {GIVE_ARPA}"
    if all(map(_COUNT.fullmatch, lines)):
        return (
            "looks like a table of n-gram counts; estimate a model from them with SRILM "
            "(ngram-count -read FILE -lm NEW.arpa), or from the text with rescorer-train ngram"
        )
    return ""


def find_wide_encoding(head: bytes) -> str:
    """The name of a text's encoding if its ASCII characters have several bytes, as in UTF-16; else empty."""
    if marked := _find(WIDE_BOMS, head.startswith):
        return marked
    some = head[:200]
    zeros = [some[place::2].count(0) / max(1, len(some[place::2])) for place in (0, 1)]
    if max(zeros) > 0.7 and min(zeros) < 0.3:  # nearly all of one byte of two: ASCII as UTF-16
        return "UTF-16BE" if zeros[0] > zeros[1] else "UTF-16LE"
    return ""


def _find(table: dict[bytes, str], matches: Callable[[bytes], bool]) -> str:
    return next((value for key, value in table.items() if matches(key)), "")
