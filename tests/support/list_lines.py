"""N-best lists as JSON lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rescorer.errors import InputError
from rescorer.formats.fields import FieldMap
from rescorer.formats.jsonlines import read_lists
from rescorer.types import NBestList


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


def read(*records: object, names: FieldMap = FieldMap(), group_of=None) -> list[NBestList | InputError]:  # noqa: B008
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    return list(read_lists(io.BytesIO("\n".join(lines).encode()), names, group_of))


def read_one(record: object, **options) -> NBestList:
    (outcome,) = read(record, **options)
    assert isinstance(outcome, NBestList), outcome
    return outcome
