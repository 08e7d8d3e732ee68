"""N-best lists as JSON lines, for the tests of commands."""

from __future__ import annotations

import json
from pathlib import Path


def record(list_id: str, *texts: str, **fields) -> str:
    """One list as a line, with an acoustic score that falls from hypothesis to hypothesis."""
    hypotheses = [{"text": text, "scores": {"acoustic": -1.0 - i}} for i, text in enumerate(texts)]
    return json.dumps({"id": list_id, "hypotheses": hypotheses, **fields})


GOOD = [record("u1", "the cat", "the mat", reference="the mat", group="s1", note="kept"),
        record("u2", "on the cat", "", reference="on the mat", group="s2")]  # fmt: skip


def write(path: Path, *lines: str) -> Path:
    """Write the lines to ``path`` and return it."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path
