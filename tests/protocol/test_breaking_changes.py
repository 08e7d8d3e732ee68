"""Changes of the protocol that would break clients are found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "proto" / "published.binpb"
BUF = Path(sys.executable).with_name("buf")


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(BUF), "breaking", "--against", str(PUBLISHED)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(not BUF.exists(), reason="buf is not installed")
def test_a_field_that_is_taken_away_is_found(tmp_path):
    assert check(ROOT).stdout == ""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    path = tmp_path / "proto" / "rescorer" / "v1" / "rescorer.proto"
    lines = path.read_text(encoding="utf-8").splitlines()
    removed = next(line for line in lines if line.strip().startswith("string ") and "=" in line)
    path.write_text("\n".join(line for line in lines if line != removed), encoding="utf-8")
    result = check(tmp_path)
    assert result.returncode != 0
    assert "was deleted" in result.stdout


def test_lint_runs_it():
    assert "buf breaking --against proto/published.binpb" in (ROOT / "Makefile").read_text(encoding="utf-8")
