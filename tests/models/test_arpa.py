"""What may stand around an ARPA file's model, and what is said of files that are none."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import pytest

from rescorer.errors import BundleError
from rescorer.models import arpa, compressed_text
from rescorer.models.arpa import MAX_BEFORE_BYTES, has_arpa_header, read_arpa, read_arpa_counts
from tests.support.tiny_models import ARPA

PAGE = """\
This model was made by a toolkit that explains its format first.

Beginning of data mark: \\data\\
ngram 1=nr            # number of 1-grams
\\1-grams:
p_1     wd_1 bo_wt_1

end of data mark: \\end\\
\\data\\
ngram 1=nr

\\1-grams:

"""


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path) -> str:
    with path.open("rb") as stream:
        assert not has_arpa_header(stream)
        with pytest.raises(BundleError) as caught:
            read_arpa(stream)
    return str(caught.value)


def test_a_page_about_the_format_may_precede_the_model(tmp_path, monkeypatch):
    for block_bytes in (1 << 16, 64):
        monkeypatch.setattr(compressed_text, "BLOCK_BYTES", block_bytes)
        with write(tmp_path / "m", PAGE + ARPA).open("rb") as stream:
            assert has_arpa_header(stream)
            assert read_arpa(stream).words[:4] == ("<unk>", "<s>", "</s>", "the")


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_wrong_line_is_named_by_its_number(tmp_path, line_end):
    text = PAGE + ARPA.replace("-0.5\tthe cat", "-0.5\tthe dog")
    number = text[: text.index("the dog")].count("\n") + 1
    with (
        write(tmp_path / "m", text.replace("\n", line_end)).open("rb") as stream,
        pytest.raises(BundleError, match=f"m:{number}: 2-gram 2: expected"),
    ):
        read_arpa(stream)


def test_the_text_before_a_model_is_bounded(tmp_path):
    filler = "This line says nothing.\n"
    with write(tmp_path / "m", filler * 1000 + ARPA).open("rb") as stream:
        assert read_arpa_counts(stream) == [9, 6, 2]
    path = write(tmp_path / "m", filler * (1 + MAX_BEFORE_BYTES // len(filler)) + "\n" * (1 << 17) + ARPA)
    assert refusal(path).endswith(
        "no line that is \\data\\ in its first 1,048,576 bytes; expected an ARPA file"
    )


def test_compressed_models_are_read_within_bounds(tmp_path, monkeypatch):
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    for name, function in compress.items():
        half = len(ARPA) // 2
        members = function(ARPA[:half].encode()) + function(ARPA[half:].encode())
        with write(tmp_path / name, members + b"\0" * 8).open("rb") as stream:
            assert read_arpa(stream).orders[0].values.shape == (9, 2)
        damaged = members[:-20] if name == "gz" else members[:40] + b"damage" + members[46:]
        with (
            write(tmp_path / name, damaged).open("rb") as stream,
            pytest.raises(BundleError, match=r"compressed data (are damaged|end too early)"),
        ):
            read_arpa(stream)
    for module in (arpa, compressed_text):
        monkeypatch.setattr(module, "max_text_bytes", lambda stream: 100_000)
    for name, function in compress.items():
        bomb = function(ARPA.replace("\\end\\", "\n" * 200_000 + "\\end\\").encode())
        with (
            write(tmp_path / name, bomb).open("rb") as stream,
            pytest.raises(BundleError, match="holds more than 100,000 bytes of text"),
        ):
            read_arpa(stream)


def make_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("m.arpa", ARPA)
    return buffer.getvalue()


OTHER_FILES = {
    "empty": ("", "is empty"),
    "utf-16": (ARPA.encode("utf-16"), "is text in UTF-16; .* iconv -f UTF-16"),
    "utf-16 without a mark": (ARPA.encode("utf-16-be"), "is text in UTF-16BE; .* iconv -f UTF-16BE"),
    "utf-32": (ARPA.encode("utf-32"), "is text in UTF-32"),
    "zip": (make_zip(), "is compressed with zip; decompress it, or use gzip, bzip2 or xz"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(40), "is compressed with zstd"),
    "kenlm": (b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(99), "is a KenLM binary"),
    "html": ("\n<!DOCTYPE html>\n<html><body>Not found</body></html>\n", r"is a web page \(HTML\)"),
    "lfs": ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
    "pfsg": ("name lm\nnodes 3 NULL the cat\ninitial 0\nfinal 2\n", "is a PFSG"),
    "fst": (b"\xd6\xfd\xb2\x7e\x06\0\0\0vector", "is an automaton of OpenFst"),
    "fst as text": ("0 1 the the 0.5\n1 2 cat cat 1.5\n2 0.25\n", "is an automaton as text"),
    "srilm": (b"SRILM_BINARY_NGRAM_001\n\0\1", "ngram -lm FILE -write-lm NEW.arpa"),
    "counts": ("the cat\t12\ncat\t3\nthe\t4\n", "looks like a table of n-gram counts"),
    "json": ('{"id": "u1"}\n', "is JSON"),
    "iarpa": ("iARPA\n" + ARPA, "is a model in IRSTLM's own form .* compile-lm FILE --text=yes"),
    "binary": (bytes(range(256)) * 4, "is a binary file of an unknown kind; expected an ARPA file"),
    "text": ("to be or\nnot to be\n", r"no line that is \\data\\; expected an ARPA file"),
    "prose": ("The mark is \\data\\ here.\n", r"line that is \\data\\ \(line 1 has other text next to it\)"),
    "start missing": (ARPA[ARPA.index("\n") + 1 :], r"line that is \\data\\; the start of the model is m"),
    "no counts": (ARPA.replace("ngram ", "n-gram "), r"no line 'ngram 1=COUNT' after its line \\data\\"),
    "no unigrams": ("\\data\\\nngram 1=3\n", r"no unigram section after its line \\data\\"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_FILES)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_file_that_is_no_model_is_named(tmp_path, kind, compress):
    content, reason = OTHER_FILES[kind]
    path = write(tmp_path / "m.arpa", compress(content.encode() if isinstance(content, str) else content))
    with path.open("rb") as stream, pytest.raises(BundleError, match=reason) as caught:
        read_arpa(stream)
    assert str(caught.value).startswith(f"{path}: ")
