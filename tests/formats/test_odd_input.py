"""Every text format handles odd input as ``docs/formats.md`` describes; tables are in ``test_parquet.py``."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from rescorer.errors import FormatError, InputError
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE
from rescorer.formats.registry import FORMATS, choose
from rescorer.types import NBestList
from tools.fuzz.targets import CHOICES, FILE_NAMES, TARGETS

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
ROWS = {
    name: cells
    for names, *cells in re.findall(r"^\| (`.+`) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    for name in re.findall(r"`(\S+)`", names)
}
Files = dict[str, str]
"""Contents of a source by file name; a single file ``u1`` is a source by itself, not a folder."""
FILES: dict[str, Files] = {
    "jsonl": {"u1": '{"id": "ID", "hypotheses": [{"text": "a", "scores": {"am": SCORE}}]}\n'},
    "json": {"u1": '[{"id": "ID", "hypotheses": [{"text": "a", "scores": {"am": SCORE}}]}]\n'},
    "srilm": {"ID": "SCORE -2.5 1 a\n"},
    "nbestlist1": {"ID": "NBestList1.0\n(SCORE) a\n"},
    "nbestlist2": {"ID": "NBestList2.0\n(SCORE) a ( st: 0.00 et: 0.48 g: -1 a: -4 )\n"},
    "srinterp": {"ID": "am=SCORE a\n"},
    "kaldi": {"words_text": "ID-1 a\n", "acwt": "ID-1 SCORE\n"},
    "mlm": {"u1": '{"ID": {"hyp_1": {"text": "a", "score": SCORE}}}\n'},
    "espnet1": {"u1": '{"utts": {"ID": {"output": [{"rec_text": "a", "score": SCORE}]}}}\n'},
    "espnet2": {"1best_recog/text": "ID a\n", "1best_recog/score": "ID SCORE\n"},
    "alternatives": {"u1": '{"id": "ID", "alternatives": [{"text": "a", "score": SCORE}]}\n'},
    "whisper": {"u1": '{"id": "ID", "seek": 0, "text": "a", "avg_logprob": SCORE}\n'},
    "request": {
        "u1": '{"lists": [{"id": "ID", "hypotheses": [{"text": "a"}], "streams": [{"name": "am", '
        '"base": "LOG_BASE_E", "sign": "\\u0053CORE_SIGN_LOG_PROB", "values": [SCORE]}]}]}\n'
    },
    "manifest": {"u1": '{"audio_filepath": "ID.wav", "text": "a", "beams": [["a", SCORE]]}\n'},
    "nemo": {"u1": "a\tSCORE\nb\t-1\n"},
    "moses": {"u1": "0 ||| a ||| LM0= SCORE ||| -1\n"},
    "cued": {"u1": "ID SCORE -1 1 <s> a </s>\n"},
    "mikolov": {"u1": "ID a\n"},
    "htk": {"ID.slf": "VERSION=1.0\nN=2 L=1\nI=0 W=!NULL\nI=1 W=a\nJ=0 S=0 E=1 a=SCORE\n"},
    "kaldi-lattice": {"u1": "ID\n0 1 a SCORE,1,2\n1\n\n"},
    "table": {"u1": "id,text,score\nID,a,SCORE\n"},
    "icefall": {"u1": "ID:\thyp=['a']\n"},
    "fairseq": {"u1": "H-ID\tSCORE\ta\n"},
    "wenet": {"u1": "wav ID\ncandidate SCORE a\n"},
    "aps": {"u1": "1\nID\nSCORE\t1\ta\n"},
    "kaldi-text": {"u1": "ID a\n"},
    "lines": {"u1": "a\n"},
    "paragraphs": {"u1": "a\n\n"},
    "trn": {"u1": "a (ID)\n"},
    "ctm": {"u1": "ID 1 0.5 0.25 a\n"},
    "seglst": {"u1": '{"id": "ID", "session_id": "s", "words": "a"}\n'},
    "stm": {"u1": "f 1 ID 0.5 0.75 a\n"},
}
"""Templates of one list with the id ID and the score SCORE."""
OBJECT_FRAMES = {"mlm": ("{", "}\n"), "espnet1": ('{"utts": {', "}}\n")}
"""Text before and after the lists, for formats whose lists are members of one JSON object."""
JSON = ("jsonl", "json", "mlm", "espnet1", "alternatives", "whisper", "request", "manifest")
SCORED = [name for name in FILES if "SCORE" in "".join(FILES[name].values())]


def build_files(name: str, list_id: str = "u1", score: str = "-3.5") -> Files:
    return {
        file.replace("ID", list_id): text.replace("ID", list_id).replace("SCORE", score)
        for file, text in FILES[name].items()
    }


def join_lists(name: str, *lists: Files) -> Files:
    """Join lists to one source: a folder for formats with one file per list."""
    if any("ID" in file for file in FILES[name]):
        return {file: text for files in lists for file, text in files.items()}
    before, after = OBJECT_FRAMES.get(name, ("", ""))
    end = -len(after) or None
    return {
        file: before + ", ".join(files[file][len(before) : end] for files in lists) + after
        if before
        else (("u3 1 0 1 x\n" if name == "ctm" else "").join(files[file] for files in lists))
        for file in lists[0]
    }


def read_files(
    name: str, contents: Files, folder: Path, encode: Callable[[str], bytes] = str.encode
) -> list[NBestList | InputError]:
    """Write a source and read it; an error that the reader raises becomes the last outcome."""
    for file, text in contents.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(encode(text))
    is_folder = name in FILE_NAMES or contents.keys() != {"u1"}
    outcomes: list[NBestList | InputError] = []
    try:
        outcomes.extend(choose(CHOICES.get(name, name)).read(folder if is_folder else folder / "u1"))
    except InputError as error:
        outcomes.append(error)
    return outcomes


def test_page_and_tests_cover_every_format():
    assert ROWS.keys() == FORMATS.keys()
    assert FILES.keys() == {name for name, format_ in FORMATS.items() if not format_.is_binary}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_ignores_byte_order_mark_carriage_returns_and_compression(tmp_path, name, mark, line_end, pack):
    plain = read_files(name, build_files(name), tmp_path / "plain")
    assert [isinstance(outcome, NBestList) for outcome in plain] == [True]
    encoded = read_files(
        name, build_files(name), tmp_path / "odd", lambda t: pack((mark + t.replace("\n", line_end)).encode())
    )
    assert encoded == plain


@pytest.mark.parametrize("name", FILES)
def test_truncated_gzip_is_an_error(tmp_path, name):
    *lists, error = read_files(
        name, build_files(name), tmp_path, lambda text: gzip.compress(text.encode())[:-4]
    )
    assert "damaged gzip data: the file ends early" in str(error)
    assert isinstance(error, FormatError)
    assert all(isinstance(nbest, NBestList) for nbest in lists)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("byte", ["\0", "\udcff"])
def test_rejects_nul_and_bytes_that_are_not_utf8(tmp_path, name, byte):
    damaged = {file: text.replace("a", f"a{byte}", 1) for file, text in build_files(name).items()}
    outcomes = read_files(name, damaged, tmp_path, lambda text: text.encode(errors="surrogateescape"))
    assert outcomes
    assert not any(isinstance(outcome, NBestList) for outcome in outcomes)
    assert any(isinstance(outcome, FormatError) and outcome.line for outcome in outcomes)


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("score", ["NaN", "Infinity", "-Infinity"])
def test_rejects_scores_that_are_not_finite(tmp_path, name, score):
    (error,) = read_files(name, build_files(name, score=score), tmp_path)
    assert isinstance(error, InputError)
    assert re.search(r"nan|inf|finite", str(error))
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize("name", FILES)
def test_handles_printed_tensors_as_documented(tmp_path, name):
    documented = ROWS[name][0]
    assert (documented == "no scores") == (name not in SCORED)
    if name in SCORED:
        score = '"tensor(-12.9)"' if name in JSON else "tensor(-12.9)"
        (outcome,) = read_files(name, build_files(name, score=score), tmp_path)
        if documented == "read":
            assert isinstance(outcome, NBestList)
            assert outcome.streams == {"first_pass": (-12.9,)}
        else:
            assert "'tensor(-12.9" in str(outcome)


@pytest.mark.parametrize("name", FILES)
def test_handles_duplicate_ids_as_documented(tmp_path, name):
    documented = ROWS[name][1]
    if documented == "no ids":
        assert FORMATS[name].is_numbered
        return
    duplicate = build_files(name)
    if any("ID" in file for file in FILES[name]):
        duplicate = {f"{file}.gz": text for file, text in duplicate.items()}
    between = build_files(name, "u2")
    first, *others = read_files(name, join_lists(name, build_files(name), between, duplicate), tmp_path)
    assert isinstance(first, NBestList)
    errors = [outcome for outcome in others if not isinstance(outcome, NBestList)]
    assert len(errors) == (documented == "rejected")
    assert all("duplicate" in str(error) for error in errors)


@pytest.mark.parametrize("name", FILES)
def test_handles_ids_with_spaces_as_documented(tmp_path, name):
    documented = ROWS[name][2]
    outcomes = read_files(name, build_files(name, "u 1"), tmp_path)
    ids = [outcome.id for outcome in outcomes if isinstance(outcome, NBestList)]
    if documented == "rejected":
        assert [type(outcome) for outcome in outcomes] == [FormatError]
    elif documented != "no ids":
        assert (ids == ["u 1"]) == (documented == "kept")


READ_AND_PRINT_PEAK = """
import re, sys
from pathlib import Path
from rescorer.errors import InputError
from rescorer.formats.registry import choose
errors = []
try:
    errors += [item for item in choose(sys.argv[1]).read(sys.argv[2]) if isinstance(item, InputError)]
except InputError as error:
    errors.append(error)
print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1], *errors, sep="\\n")
"""


def write_long_line(name: str, folder: Path, size: int) -> Path:
    """Write a valid source, except that its last line or only value is ``size`` bytes longer."""
    source = folder if name in FILE_NAMES or build_files(name).keys() != {"u1"} else folder / "u1"
    for file, text in build_files(name).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(re.sub(r"\ba\b(?![=:])", "a" + " ab" * (size // 3), text, count=1))
    return source


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc, on Linux")
@pytest.mark.parametrize("name", ["jsonl", "srilm", "kaldi", "mlm", "espnet1", "alternatives", "whisper"])
def test_rejects_line_of_100_mb_in_bounded_memory(tmp_path, name):
    source = write_long_line(name, tmp_path, 100_000_000)
    command = [sys.executable, "-c", READ_AND_PRINT_PEAK, CHOICES.get(name, name), source]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    peak_kib, *errors = completed.stdout.splitlines()
    assert any("longer than 67108864" in error for error in errors)
    assert int(peak_kib) < 3 * (64 << 10) + (80 << 10)  # three times the longest line, and Python


@pytest.mark.parametrize("name", FILES)
def test_memory_is_proportional_to_longest_line(tmp_path, name):
    size = 300_000
    source = write_long_line(name, tmp_path, size)
    tracemalloc.start()
    try:
        outcomes = list(choose(CHOICES.get(name, name)).read(source))
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert outcomes
    assert peak_bytes < TARGETS[name].memory_per_byte * size


@pytest.mark.parametrize("name", FILES)
def test_environment_variable_limits_line_length(tmp_path, name, monkeypatch):
    monkeypatch.setenv(MAX_LINE_VARIABLE, "1000")
    source = write_long_line(name, tmp_path, 200_000)
    with pytest.raises(InputError, match="longer than 1000"):
        raise next(item for item in choose(CHOICES.get(name, name)).read(source))


GROWING = {
    "scores that are null": (
        "jsonl",
        lambda n: (
            b'{"id": "u", "hypotheses": [%s]}'
            % b",".join(b'{"text": "a", "scores": {"s%d": null}}' % i for i in range(n))
        ),
    ),
    "a duplicate key among many": (
        "mlm",
        lambda n: b'{"u": {%s, "x": 1, "x": 2}}' % b",".join(b'"k%d":1' % i for i in range(n)),
    ),
    "a long path to many lists": (
        "alternatives",
        lambda n: b'[{"%s": [%s]}]' % (b"k" * 5 * n, b",".join([b'{"nbest": [{"text": "a"}]}'] * n)),
    ),
    "words next to alternations": ("alternations", lambda n: b"{ a / b } " * 4 + b"w " * n),
    "braces with one alternative": ("alternations", lambda n: b"{ a } " * n),
}


@pytest.mark.parametrize("case", GROWING)
def test_time_is_linear_in_size_of_input(tmp_path, case):
    name, make = GROWING[case]
    start = time.process_time()
    TARGETS[name].run(make(30_000), tmp_path)
    assert time.process_time() - start < 5  # quadratic time would be a minute
