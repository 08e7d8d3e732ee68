"""Tests of the dependency audit, with a program that stands in for Python with pip-audit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


def run_audit(folder: Path, advisories: str, pip_audit_code: int, *options: str) -> tuple[int, str]:
    """Run the audit; return its exit code and output."""
    program = folder / "python"
    program.write_text(
        f"""#!/bin/sh
case "$1 $2" in
-c*) echo '{advisories}';;
"-m pip") echo torch==2.13.0+cpu;;
*) cat "$4"; exit {pip_audit_code};;
esac
"""
    )
    program.chmod(0o755)
    process = subprocess.run(
        [REPOSITORY / ".ci" / "audit", program, *options], capture_output=True, text=True, check=False
    )
    return process.returncode, process.stdout


@pytest.mark.parametrize("code", [0, 1])
def test_passes_on_the_result_of_pip_audit_for_public_versions(tmp_path, code):
    assert run_audit(tmp_path, '{"vulnerabilities": []}', code) == (code, "torch==2.13.0\n")


@pytest.mark.parametrize("advisories", ["", "{}"])
def test_says_that_advisories_are_missing_and_passes_unless_they_are_required(tmp_path, advisories):
    code, output = run_audit(tmp_path, advisories, 1)
    assert code == 0
    assert run_audit(tmp_path, advisories, 1, "--required") == (2, output)
    assert output.startswith("audit skipped: cannot fetch advisories from https://pypi.org/")
    assert len(output.splitlines()) == 1
