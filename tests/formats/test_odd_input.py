"""What ``docs/formats.md`` says of odd input, format by format."""

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
from tools.fuzz.targets import CHOICES, PLACES, TARGETS

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
ROWS = {
    row[0]: row[1:] for row in re.findall(r"^\| `(\S+)` \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
}
Files = dict[str, str]
"""What a source holds, by place; ``u1`` alone is a source by itself."""
FILES: dict[str, Files] = {
    "jsonl": {"u1": '{"id": "ID", "hypotheses": [{"text": "a", "scores": {"am": SCORE}}]}\n'},
    "srilm": {"ID": "SCORE -2.5 1 a\n"},
    "nbestlist1": {"ID": "NBestList1.0\n(SCORE) a\n"},
    "nbestlist2": {"ID": "NBestList2.0\n(SCORE) a ( st: 0.00 et: 0.48 g: -1 a: -4 )\n"},
    "srinterp": {"ID": "am=SCORE a\n"},
    "kaldi": {"words_text": "ID-1 a\n", "acwt": "ID-1 SCORE\n"},
    "mlm": {"u1": '{"ID": {"hyp_1": {"text": "a", "score": SCORE}}}\n'},
    "espnet1": {"u1": '{"utts": {"ID": {"output": [{"rec_text": "a", "score": SCORE}]}}}\n'},
    "espnet2": {"1best_recog/text": "ID a\n", "1best_recog/score": "ID SCORE\n"},
    "alternatives": {"u1": '{"id": "ID", "alternatives": [{"text": "a", "score": SCORE}]}\n'},
    "nemo": {"u1": "a\tSCORE\nb\t-1\n"},
    "cued": {"u1": "ID SCORE -1 1 <s> a </s>\n"},
    "mikolov": {"u1": "ID a\n"},
    "htk": {"ID.slf": "VERSION=1.0\nN=2 L=1\nI=0 W=!NULL\nI=1 W=a\nJ=0 S=0 E=1 a=SCORE\n"},
    "kaldi-lattice": {"u1": "ID\n0 1 a SCORE,1,2\n1\n\n"},
    "trn": {"u1": "a (ID)\n"},
    "ctm": {"u1": "ID 1 0.5 0.25 a\n"},
    "stm": {"u1": "f 1 ID 0.5 0.75 a\n"},
}
"""One list called ID with one score."""
IN_MEMBERS = {"mlm": ("{", "}\n"), "espnet1": ('{"utts": {', "}}\n")}
"""Around the lists of formats whose lists are members of one object."""
JSON = ("jsonl", "mlm", "espnet1", "alternatives")
SCORED = [name for name in FILES if "SCORE" in "".join(FILES[name].values())]


def files(name: str, list_id: str = "u1", score: str = "-3.5") -> Files:
    return {
        place.replace("ID", list_id): text.replace("ID", list_id).replace("SCORE", score)
        for place, text in FILES[name].items()
    }


def joined(name: str, *lists: Files) -> Files:
    """Lists of one source; those of formats with a file a list in one folder."""
    if any("ID" in place for place in FILES[name]):
        return {place: text for each in lists for place, text in each.items()}
    before, after = IN_MEMBERS.get(name, ("", ""))
    end = -len(after) or None
    return {
        place: before + ", ".join(each[place][len(before) : end] for each in lists) + after
        if before
        else (("u3 1 0 1 x\n" if name == "ctm" else "").join(each[place] for each in lists))
        for place in lists[0]
    }


def read(
    name: str, contents: Files, folder: Path, encode: Callable[[str], bytes] = str.encode
) -> list[NBestList | InputError]:
    """What the reader answers; a fault that it raises comes last."""
    for place, text in contents.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(encode(text))
    whole = name in PLACES or contents.keys() != {"u1"}
    found: list[NBestList | InputError] = []
    try:
        found.extend(choose(CHOICES.get(name, name)).read(folder if whole else folder / "u1"))
    except InputError as fault:
        found.append(fault)
    return found


def test_the_page_and_these_tests_speak_of_every_format():
    assert ROWS.keys() == FILES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("before", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_marks_carriage_returns_and_compression_change_nothing(tmp_path, name, before, end, pack):
    plain = read(name, files(name), tmp_path / "plain")
    assert [isinstance(each, NBestList) for each in plain] == [True]
    encoded = read(
        name, files(name), tmp_path / "odd", lambda t: pack((before + t.replace("\n", end)).encode())
    )
    assert encoded == plain


@pytest.mark.parametrize("name", FILES)
def test_truncated_gzip_is_a_fault(tmp_path, name):
    *lists, fault = read(name, files(name), tmp_path, lambda text: gzip.compress(text.encode())[:-4])
    assert "damaged gzip data: the file ends early" in str(fault)
    assert isinstance(fault, FormatError)
    assert all(isinstance(each, NBestList) for each in lists)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("bad", ["\0", "\udcff"])
def test_nul_and_what_is_not_text_is_a_fault(tmp_path, name, bad):
    bad_files = {place: text.replace("a", f"a{bad}", 1) for place, text in files(name).items()}
    found = read(name, bad_files, tmp_path, lambda text: text.encode(errors="surrogateescape"))
    assert found
    assert not any(isinstance(each, NBestList) for each in found)
    assert any(isinstance(each, FormatError) and each.line for each in found)


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("score", ["NaN", "Infinity", "-Infinity"])
def test_a_score_that_is_not_finite_is_refused(tmp_path, name, score):
    (fault,) = read(name, files(name, score=score), tmp_path)
    assert isinstance(fault, InputError)
    assert re.search(r"nan|inf|finite", str(fault))
    assert str(tmp_path) in str(fault)


@pytest.mark.parametrize("name", FILES)
def test_a_printed_tensor(tmp_path, name):
    says = ROWS[name][0]
    assert (says == "no scores") == (name not in SCORED)
    if name in SCORED:
        score = '"tensor(-12.9)"' if name in JSON else "tensor(-12.9)"
        (found,) = read(name, files(name, score=score), tmp_path)
        if says == "read":
            assert isinstance(found, NBestList)
            assert found.streams == {"first_pass": (-12.9,)}
        else:
            assert "'tensor(-12.9" in str(found)


@pytest.mark.parametrize("name", FILES)
def test_an_id_for_the_second_time(tmp_path, name):
    says = ROWS[name][1]
    if says == "no ids":
        assert FORMATS[name].is_numbered
        return
    again = files(name)
    if any("ID" in place for place in FILES[name]):
        again = {f"{place}.gz": text for place, text in again.items()}
    between = files(name, "u2")
    first, *others = read(name, joined(name, files(name), between, again), tmp_path)
    assert isinstance(first, NBestList)
    faults = [each for each in others if not isinstance(each, NBestList)]
    assert len(faults) == (says == "refused")
    assert all(re.search("duplicate|second time|there twice|is in .* too", str(each)) for each in faults)


@pytest.mark.parametrize("name", FILES)
def test_an_id_with_a_space(tmp_path, name):
    says = ROWS[name][2]
    found = read(name, files(name, "u 1"), tmp_path)
    ids = [each.id for each in found if isinstance(each, NBestList)]
    if says == "refused":
        assert [type(each) for each in found] == [FormatError]
    elif says != "no ids":
        assert (ids == ["u 1"]) == (says == "kept")


LONG_LINES = """
import re, sys
from pathlib import Path
from rescorer.errors import InputError
from rescorer.formats.registry import choose
faults = []
try:
    faults += [each for each in choose(sys.argv[1]).read(sys.argv[2]) if isinstance(each, InputError)]
except InputError as fault:
    faults.append(fault)
print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1], *faults, sep="\\n")
"""


def long_line(name: str, folder: Path, size: int) -> Path:
    """A source whose last line, or only value, is ``size`` bytes longer than that of a good one."""
    source = folder if name in PLACES or files(name).keys() != {"u1"} else folder / "u1"
    for place, text in files(name).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(re.sub(r"\ba\b(?![=:])", "a" + " ab" * (size // 3), text, count=1))
    return source


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the process's own peak is asked of Linux")
@pytest.mark.parametrize("name", ["jsonl", "srilm", "kaldi", "mlm", "espnet1", "alternatives"])
def test_a_line_of_100_mb_is_refused_before_the_memory_grows(tmp_path, name):
    source = long_line(name, tmp_path, 100_000_000)
    command = [sys.executable, "-c", LONG_LINES, CHOICES.get(name, name), source]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    peak_kib, *faults = ran.stdout.splitlines()
    assert any("longer than 67108864" in fault for fault in faults)
    assert int(peak_kib) < 3 * (64 << 10) + (80 << 10)  # the longest that may be a line, thrice, and Python


@pytest.mark.parametrize("name", FILES)
def test_memory_is_a_multiple_of_the_longest_line(tmp_path, name):
    size = 300_000
    source = long_line(name, tmp_path, size)
    tracemalloc.start()
    try:
        found = list(choose(CHOICES.get(name, name)).read(source))
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found
    assert peak_bytes < TARGETS[name].memory_per_byte * size


@pytest.mark.parametrize("name", FILES)
def test_the_longest_line_can_be_told(tmp_path, name, monkeypatch):
    monkeypatch.setenv(MAX_LINE_VARIABLE, "1000")
    source = long_line(name, tmp_path, 200_000)
    with pytest.raises(InputError, match="longer than 1000"):
        raise next(each for each in choose(CHOICES.get(name, name)).read(source))


GROWING = {
    "scores that are nothing": (
        "jsonl",
        lambda n: (
            b'{"id": "u", "hypotheses": [%s]}'
            % b",".join(b'{"text": "a", "scores": {"s%d": null}}' % i for i in range(n))
        ),
    ),
    "a key twice among many": (
        "mlm",
        lambda n: b'{"u": {%s, "x": 1, "x": 2}}' % b",".join(b'"k%d":1' % i for i in range(n)),
    ),
    "a long path above many lists": (
        "alternatives",
        lambda n: b'[{"%s": [%s]}]' % (b"k" * 5 * n, b",".join([b'{"nbest": [{"text": "a"}]}'] * n)),
    ),
    "words beside alternations": ("alternations", lambda n: b"{ a / b } " * 4 + b"w " * n),
    "braces with one way": ("alternations", lambda n: b"{ a } " * n),
}


@pytest.mark.parametrize("case", GROWING)
def test_time_grows_as_the_input_does(tmp_path, case):
    name, make = GROWING[case]
    start = time.process_time()
    TARGETS[name].run(make(30_000), tmp_path)
    assert time.process_time() - start < 5  # with the square it would be a minute
