"""The lock files hold for every supported Python and platform, and satisfy pyproject.toml."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from tests.conftest import REPOSITORY
from tools.release.locks import (
    CONTENTS,
    CPU_WHEELS,
    FOLDER,
    GPU_ONLY,
    PYTHONS,
    covers_pythons,
    cpu_lock,
    environments,
    find_problems,
    pins_of,
    read_lock,
)

PYPROJECT = REPOSITORY / "pyproject.toml"


@pytest.fixture
def folder(tmp_path):
    """A copy of the lock files."""
    return shutil.copytree(FOLDER, tmp_path / "requirements")


def test_locks_satisfy_pyproject():
    assert find_problems() == []


def test_locks_are_for_the_supported_versions_of_python():
    supported = SpecifierSet(tomllib.loads(PYPROJECT.read_text())["project"]["requires-python"])
    assert tuple(f"3.{minor}" for minor in range(30) if f"3.{minor}" in supported) == PYTHONS


@pytest.mark.parametrize("name", [path.name for path in sorted(FOLDER.glob("*.txt"))])
def test_every_package_has_one_version_and_sha256_hashes(name):
    for package in read_lock(FOLDER / name):
        assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in package.hashes), package.name


@pytest.mark.parametrize("name", ["build", *CONTENTS])
def test_environments_for_cpus_have_no_cuda_libraries(name):
    for environment in environments():
        packages = [*read_lock(FOLDER / "torch-cpu.txt"), *read_lock(FOLDER / f"{name}.txt")]
        pins = pins_of(packages, environment)
        assert not [package for package in pins if GPU_ONLY.fullmatch(package)]
        assert pins["torch"].endswith("+cpu") == (environment["sys_platform"] == "linux")


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("runtime.txt", r"^numpy==\S+", "numpy==1.20.0", "numpy>=1.26 is locked at 1.20.0"),
        ("runtime.txt", r"^orjson==\S+", "unknown==1.0", "orjson>=3.10 is not locked for Python 3.11, linux"),
        ("dev.txt", r"^ruff==(\S+)", r"ruff==\1 ; python_version == '3.11'", "ruff>=0.12 is not locked"),
        ("dev.txt", r"^tqdm==\S+", "tqdm==4.66.1", "differs"),
        ("runtime.txt", r"^tqdm==\S+", "numpy==2.0.0", "numpy is locked twice"),
    ],
)  # fmt: skip
def test_finds_a_lock_that_does_not_satisfy_pyproject(folder, file, old, new, problem):
    path = folder / file
    path.write_text(re.sub(old, new, path.read_text(), count=1, flags=re.MULTILINE))
    assert any(problem in line for line in find_problems(folder)), find_problems(folder)


def test_a_package_without_hash_is_refused(folder):
    (folder / "runtime.txt").write_text("numpy==2.0.0\n")
    with pytest.raises(
        ValueError, match=r"runtime.txt: expected name==version with hashes, got 'numpy==2.0.0'"
    ):
        find_problems(folder)


def test_locks_name_no_index_but_pytorchs():
    for path in FOLDER.glob("*.txt"):
        assert set(re.findall(r"\w+://\S+", path.read_text())) <= {CPU_WHEELS}
        assert set(re.findall(r"^--\S+", path.read_text(), re.MULTILINE)) <= {"--find-links"}


def page_of(version: str, *platforms: str) -> str:
    return "".join(
        f'<a href="/whl/torch-{version.replace("+", "%2B")}-{tag}-{tag}-{platform}.whl#sha256='
        f'{hashlib.sha256(f"{tag}{platform}".encode()).hexdigest()}">…</a>'
        for platform in platforms
        for tag in ("cp310", *(f"cp{python.replace('.', '')}" for python in PYTHONS), "cp312t")
    )


def test_the_lock_of_torch_has_the_wheels_of_supported_platforms_only(tmp_path):
    linux = page_of("9.8.7+cpu", "manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "win_amd64")
    others = page_of("9.8.7", "macosx_14_0_arm64", "manylinux_2_28_x86_64")
    (tmp_path / "torch-cpu.txt").write_text(cpu_lock("9.8.7", linux, others))
    packages = read_lock(tmp_path / "torch-cpu.txt")
    assert [(package.version, len(package.hashes)) for package in packages] == [
        ("9.8.7+cpu", 2 * len(PYTHONS)),
        ("9.8.7", len(PYTHONS)),
    ]
    with pytest.raises(
        SystemExit, match=r"torch 9.8.7\+cpu: no wheel with a hash for Python 3.11 and manylinux"
    ):
        cpu_lock("9.8.7", page_of("9.8.7+cpu", "manylinux_2_28_x86_64"), others)


def test_the_lock_of_torch_has_wheels_for_every_python():
    (version,) = {
        package.version for package in read_lock(FOLDER / "torch-cuda.txt") if package.name == "torch"
    }
    assert covers_pythons(FOLDER / "torch-cpu.txt", version)
    assert not covers_pythons(FOLDER / "torch-cpu.txt", "9.8.7")


def test_only_the_extra_needs_kenlm():
    for path in FOLDER.glob("*.txt"):
        assert ("kenlm" in {package.name for package in read_lock(path)}) == (path.stem == "kenlm"), path.name


def test_the_command_checks(folder):
    command = [sys.executable, "-m", "tools.release.locks", "--check"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
