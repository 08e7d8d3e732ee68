"""Write the lock files in requirements/, or check that they satisfy pyproject.toml.

    python -m tools.release.locks             adds what pyproject.toml newly needs; keeps other versions
    python -m tools.release.locks --upgrade   takes the newest version of everything
    python -m tools.release.locks --check     fails if the locks do not satisfy pyproject.toml; works offline

Writing needs PyPI, and for a new version of torch also PyTorch's index of builds for CPUs. The files are
valid for every supported Python and platform. Lines for only some of these have markers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "requirements"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Versions of Python that the locks are for; the same as in ``requires-python``."""

PLATFORMS = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
"""Operating systems and processors that the locks are for."""

PROJECT = "project"
"""Name that stands for the dependencies of the project without an extra."""

CONTENTS: Mapping[str, tuple[str, ...]] = {
    "runtime": (PROJECT, "tracing"),
    "dev": (PROJECT, "dev"),
    "fuzz": (PROJECT, "fuzz"),
    "kenlm": ("kenlm",),
}
"""Extras that each lock file covers; torch is in a file of its own, one for CPUs and one for GPUs."""


@dataclass(frozen=True)
class LockedPackage:
    """One package of a lock file."""

    requirement: Requirement
    hashes: frozenset[str]
    """SHA-256 of every file that may be installed, in hexadecimal."""

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        return specifier.version

    def applies(self, environment: Mapping[str, str]) -> bool:
        marker = self.requirement.marker
        return marker is None or marker.evaluate(dict(environment))


def read_lock(path: Path) -> list[LockedPackage]:
    """Read a lock file.

    Raises:
        ValueError: a line is not ``name==version``, or has no hash.
    """
    packages = []
    for line in re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8")).splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "--find-links")):
            continue
        text, *hashes = line.split(" --hash=sha256:")
        requirement = Requirement(text)
        if [specifier.operator for specifier in requirement.specifier] != ["=="] or not hashes:
            raise ValueError(f"{path.name}: expected name==version with hashes, got {line[:100]!r}")
        packages.append(LockedPackage(requirement, frozenset(value.strip() for value in hashes)))
    return packages


def environments() -> Iterator[dict[str, str]]:
    """Yield the marker environment of every supported Python and platform."""
    for python in PYTHONS:
        for system, machine in PLATFORMS:
            yield {
                **{key: str(value) for key, value in default_environment().items()},
                "python_version": python,
                "python_full_version": f"{python}.9",
                "sys_platform": system,
                "platform_system": system.capitalize(),
                "platform_machine": machine,
                "os_name": "posix",
                "extra": "",
            }


def direct_requirements(pyproject: Mapping, contents: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements of pyproject.toml's extras, with the extras that they refer to."""
    project = pyproject["project"]
    for part in contents:
        texts = project["dependencies"] if part == PROJECT else project["optional-dependencies"][part]
        for requirement in map(Requirement, texts):
            if requirement.name == project["name"]:
                yield from direct_requirements(pyproject, sorted(requirement.extras))
            else:
                yield requirement


def find_problems(folder: Path = FOLDER, pyproject_file: Path = REPOSITORY / "pyproject.toml") -> list[str]:
    """Describe what is wrong with lock files: dependencies missing, out of range, twice or different."""
    pyproject = tomllib.loads(pyproject_file.read_text(encoding="utf-8"))
    locks = {path.stem: read_lock(path) for path in sorted(folder.glob("*.txt"))}
    problems = []
    for environment in environments():
        target = f"Python {environment['python_version']}, {environment['sys_platform']}"
        for name, contents in CONTENTS.items():
            pins: dict[str, str] = {}
            for package in [*locks["torch-cpu"], *locks[name]]:
                if package.applies(environment):
                    if package.name in pins:
                        problems.append(f"{name}.txt: {package.name} is locked twice for {target}")
                    pins[package.name] = package.version
            for requirement in direct_requirements(pyproject, contents):
                if requirement.marker is not None and not requirement.marker.evaluate(dict(environment)):
                    continue
                version = pins.get(canonicalize_name(requirement.name))
                if version is None:
                    problems.append(f"{name}.txt: {requirement} is not locked for {target}")
                elif not requirement.specifier.contains(version, prereleases=True):
                    problems.append(f"{name}.txt: {requirement} is locked at {version} for {target}")
        if (
            len(
                {
                    pins_of(locks[name], environment).get("torch", "").split("+")[0]
                    for name in ("torch-cpu", "torch-cuda")
                }
            )
            > 1
        ):
            problems.append(f"torch-cpu.txt and torch-cuda.txt: different versions of torch for {target}")
    return [*dict.fromkeys([*problems, *_find_disagreements(locks)])]


def pins_of(packages: Iterable[LockedPackage], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the version of each package that is installed in an environment."""
    return {package.name: package.version for package in packages if package.applies(environment)}


def _find_disagreements(locks: Mapping[str, list[LockedPackage]]) -> Iterator[str]:
    """Yield packages that two files lock differently, although both are installed into one environment."""
    first: dict[tuple[str, str], tuple[str, LockedPackage]] = {}
    for name, packages in locks.items():
        if name.startswith("torch-"):
            continue
        for package in packages:
            key = (package.name, str(package.requirement.marker))
            other_name, other = first.setdefault(key, (name, package))
            if (other.version, other.hashes) != (package.version, package.hashes):
                yield (
                    f"{name}.txt: {package.name} {package.version} differs from "
                    f"{other.version} in {other_name}.txt"
                )


CPU_WHEELS = "https://download.pytorch.org/whl/cpu/torch/"
"""Page that lists torch's builds for CPUs; PyPI's build for Linux needs gigabytes of CUDA libraries."""

PYPI_WHEELS = "https://pypi.org/simple/torch/"
HEADER = "# Written by `make lock` from pyproject.toml. Do not edit.\n"
GPU_ONLY = re.compile(r"(nvidia|cuda)-.*|triton")
"""Dependencies of torch's build for GPUs."""

LINUX_WHEEL = "manylinux_2_28_(x86_64|aarch64)"
OTHER_WHEEL = r"(macosx_\w+|win_amd64)"


def write_locks(*, upgrade: bool) -> None:
    """Write all lock files.

    ``dev.txt`` comes first, because it contains nearly all packages. The other files keep its versions.
    """
    pyproject = REPOSITORY / "pyproject.toml"
    gpu_only = _lock_torch(upgrade=upgrade)
    left_out = ["torch", *gpu_only]
    torch = FOLDER / "torch-cuda.txt"
    constraints = [torch]
    for name in sorted(CONTENTS.keys() - {"kenlm"}, key=lambda name: name != "dev"):
        extras = [f"--extra={extra}" for extra in CONTENTS[name] if extra != PROJECT]
        _compile([pyproject, *extras], FOLDER / f"{name}.txt", constraints, left_out, upgrade=upgrade)
        constraints = [torch, FOLDER / "dev.txt"]
    for name in ("build", "kenlm"):
        _compile([FOLDER / f"{name}.in"], FOLDER / f"{name}.txt", constraints, left_out, upgrade=upgrade)


def _lock_torch(*, upgrade: bool) -> list[str]:
    """Write the locks of torch; return the names of packages that only the build for GPUs needs."""
    for_gpus = FOLDER / "torch-cuda.txt"
    _compile([FOLDER / "torch.in"], for_gpus, [], [], upgrade=upgrade)
    packages = {package.name: package for package in read_lock(for_gpus)}
    for_cpus = FOLDER / "torch-cpu.txt"
    version = packages["torch"].version
    if not covers_pythons(for_cpus, version):
        for_cpus.write_text(cpu_lock(version, _fetch(CPU_WHEELS), _fetch(PYPI_WHEELS)), encoding="utf-8")
    return [name for name in packages if GPU_ONLY.fullmatch(name)]


def covers_pythons(path: Path, version: str) -> bool:
    """Whether a lock of torch has this version, and wheels for two platforms and every supported Python."""
    return path.exists() and all(
        package.version.split("+")[0] == version and len(package.hashes) >= 2 * len(PYTHONS)
        for package in read_lock(path)
    )


def cpu_lock(version: str, cpu_page: str, pypi_page: str) -> str:
    """Return the lock of torch without CUDA, from the pages that list the wheels.

    Raises:
        SystemExit: a page lacks a wheel for a supported Python and platform.
    """
    linux = _find_hashes(cpu_page, f"{version}+cpu", LINUX_WHEEL, wheels_per_python=2)
    others = _find_hashes(pypi_page, version, OTHER_WHEEL, wheels_per_python=1)
    rows = [
        HEADER.rstrip("\n"),
        "# Linux: from PyTorch's index of builds for CPUs. Others: from PyPI, where theirs are for CPUs.",
        f"--find-links {CPU_WHEELS}",
        _format_row(f"torch=={version}+cpu ; sys_platform == 'linux'", linux),
        _format_row(f"torch=={version} ; sys_platform != 'linux'", others),
    ]
    return "\n".join(rows) + "\n"


def _find_hashes(page: str, version: str, platform: str, wheels_per_python: int) -> list[str]:
    hashes: list[str] = []
    text = urllib.parse.unquote(page)
    for python in PYTHONS:
        tag = "cp" + python.replace(".", "")
        wheel = rf"/torch-{re.escape(version)}-{tag}-{tag}-{platform}\.whl#sha256=([0-9a-f]{{64}})\""
        found = {match[-1] for match in re.findall(wheel, text)}
        if len(found) < wheels_per_python:
            raise SystemExit(f"torch {version}: no wheel with a hash for Python {python} and {platform}")
        hashes.extend(found)
    return sorted(hashes)


def _format_row(requirement: str, hashes: Iterable[str]) -> str:
    return " \\\n    ".join([requirement, *(f"--hash=sha256:{value}" for value in hashes)])


def _fetch(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, TimeoutError) as error:
        raise SystemExit(f"cannot read {address}, which lists the wheels of torch: {error}") from None


def _compile(
    sources: Sequence[Path | str],
    target: Path,
    constraints: Iterable[Path],
    left_out: Iterable[str],
    *,
    upgrade: bool,
) -> None:
    """Resolve requirements with uv into a lock file for all platforms, keeping the versions in the file."""
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--no-header",
        "--no-config", "--generate-hashes", "--no-annotate", f"--python-version={PYTHONS[0]}",
        f"--output-file={target}",
        *(f"--constraint={path}" for path in constraints),
        *(f"--no-emit-package={name}" for name in left_out),
        *(["--upgrade"] if upgrade else []),
        *map(str, sources),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    if subprocess.run(command, check=False, cwd=REPOSITORY, env=environment).returncode:
        raise SystemExit(f"{target.name}: uv found no solution")
    target.write_text(HEADER + target.read_text(encoding="utf-8"), encoding="utf-8")


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        if problems := find_problems():
            raise SystemExit("\n".join([*problems, "run: make lock"]))
    elif arguments in ([], ["--upgrade"]):
        write_locks(upgrade=bool(arguments))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
