"""Read the lock files in requirements/ and check them against pyproject.toml, without a network."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
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
"""Stands for the dependencies of the project without an extra."""

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
    """Return what is wrong with the lock files: a dependency missing, out of range, twice, or different."""
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
    """Yield packages that two files lock differently; files are installed into one environment."""
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
