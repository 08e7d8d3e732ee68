"""Every block of the README runs: commands in a scratch folder that sees the project, in their order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rescorer.cli import EXIT_CODES
from rescorer.formats.nbest.jsonlines import read_lists
from rescorer.protocol.status import BUG, KINDS
from rescorer_training.recipe.config import read_recipe
from rescorer_training.recipe.report import MeasuredModel, Report, table

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
ITSELF = "make test\n"
"""Is running when this test does."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    """A folder where everything of the project is at hand and nothing of it can be overwritten."""
    folder = tmp_path_factory.mktemp("readme")
    for entry in ROOT.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("language", "block"), BLOCKS, ids=[b.splitlines()[0][:40] for _, b in BLOCKS])
def test_a_block_runs(language, block, scratch):
    if block == ITSELF:
        return
    if language == "json":
        for line in block.splitlines():
            json.loads(line)
        return
    # What make sets up belongs to the place it was set up in.
    folder = ROOT if block.startswith("make ") else scratch
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = (
        [sys.executable, "-c", block] if language == "python" else ["bash", "-euo", "pipefail", "-c", block]
    )
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_list_is_read(tmp_path):
    header, example = (next(b for _, b in BLOCKS if b.startswith(start)) for start in ('{"format"', '{"id"'))
    (tmp_path / "a.jsonl").write_text(header + example)
    (nbest,) = read_lists(tmp_path / "a.jsonl")
    assert nbest.streams["acoustic"][0] == pytest.approx(310.2 * 2.302585, rel=1e-6)


def test_the_tables_of_codes_are_those_of_the_code():
    rows = [line.split("|") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row[1:-1]] for row in rows]
    for kind in (*KINDS, BUG):
        assert any(row[0] == kind.code.name and kind.reason in row[1].split(", ") for row in cells), kind
    for _, code, meaning in EXIT_CODES:
        assert [str(code), meaning] in cells


def test_the_table_of_networks_is_the_recipes_report():
    facts = json.loads((ROOT / "docs" / "ptb" / "report.json").read_text(encoding="utf-8"))
    report = Report(
        **facts | {"texts": facts["texts"][1:], "models": [MeasuredModel(**m) for m in facts["models"]]}
    )
    assert set(read_recipe("ptb").networks) == {model.name for model in report.models[1:]}
    assert "\n".join(table(report)) in (ROOT / "README.md").read_text(encoding="utf-8")
