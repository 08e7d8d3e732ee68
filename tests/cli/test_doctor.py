"""``rescorer doctor`` shows what the machine has, and what is missing for which feature."""

from __future__ import annotations

import json
import tomllib

from rescorer.cli import doctor
from tests.conftest import REPOSITORY


def test_shows_versions_devices_and_extras(run, tmp_path):
    code, out, _ = run("doctor")
    assert code == 0
    assert "torch 2" in out
    assert "devices:   cpu" in out
    code, out, _ = run("doctor", "--json")
    found = json.loads(out)
    assert (code, found["problems"], found["devices"][0]) == (0, [], "cpu")
    assert {extra["name"] for extra in found["extras"]} == set(doctor.EXTRAS)


def test_knows_every_extra_for_users():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"docs", "test", "dev", "fuzz", "demo-lists"}
    assert extras == set(doctor.EXTRAS)


def test_reads_instruction_sets_and_names_what_is_missing(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A processor\nflags\t\t: fpu avx2 avx512_vnni\n")
    monkeypatch.setitem(doctor.EXTRAS, "ray", (("no_such_module", "json"), "clusters"))
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    found = doctor.examine(info)
    assert (found.processor, found.instructions) == (
        "A processor",
        {"avx2": "float32", "avx512_vnni": "int8"},
    )
    lines = list(doctor.render(found))
    assert "ray       without no_such_module: clusters" in lines
    assert lines[-1] == "problem: no-such-package is missing: pip install rescorer again"
    assert "rescorer[" in lines[-2]
    assert not doctor.examine(tmp_path / "none").instructions
