"""Tests of the dependency audit, with programs that stand in for curl and for Python with pip-audit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


def run_audit(folder: Path, advisories: str, pip_audit_code: int) -> tuple[int, str]:
    """Run the audit; return its exit code and output."""
    programs = {
        "curl": f"echo '{advisories}'",
        "python": f'case "$2" in pip) echo torch==2.13.0+cpu;; *) cat "$4"; exit {pip_audit_code};; esac',
    }
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    process = subprocess.run(
        [REPOSITORY / ".ci" / "audit", folder / "python"],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return process.returncode, process.stdout


@pytest.mark.parametrize("code", [0, 1])
def test_passes_on_the_result_of_pip_audit_for_public_versions(tmp_path, code):
    assert run_audit(tmp_path, '{"vulnerabilities": []}', code) == (code, "torch==2.13.0\n")


@pytest.mark.parametrize("advisories", ["", "{}"])
def test_says_that_advisories_are_missing_and_passes(tmp_path, advisories):
    code, output = run_audit(tmp_path, advisories, 1)
    assert code == 0
    assert output.startswith("audit skipped: cannot fetch advisories from https://pypi.org/")
    assert len(output.splitlines()) == 1
