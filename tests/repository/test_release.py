"""What a release consists of: versions, bill of materials, wheel and source distribution."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from typer.testing import CliRunner

from rescorer.cli import app as rescorer_app
from rescorer.cli.help import find_topics
from rescorer_training.cli import app as training_app
from tests.conftest import REPOSITORY
from tools.__main__ import app as tools_app
from tools.release.locks import FOLDER, environments, pins_of, read_lock

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
COMMANDS = {name: f"{name} {VERSION}\n" for name in PROJECT["scripts"]}


def run(*command: str | Path, cwd: Path = REPOSITORY) -> str:
    """Run a program that must succeed, without the paths of this process; return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-5000:]
    return process.stdout


def torch_lock() -> str:
    """The lock file that has the build of torch of this environment."""
    import torch

    return "torch-cuda" if torch.version.cuda else "torch-cpu"


@pytest.mark.parametrize(
    ("app", "program"),
    [(rescorer_app, "rescorer"), (training_app, "rescorer-train"), (tools_app, "python -m tools")],
)
def test_programs_show_their_version(app, program):
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"{program} {VERSION}\n")


def test_the_changelog_has_the_version_or_what_is_not_released():
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings
    assert headings[0].split()[0] in ("Unreleased", VERSION)


@pytest.mark.slow
def test_the_bill_of_materials_names_every_locked_package(tmp_path):
    pytest.importorskip("cyclonedx.validation.json", reason="cyclonedx-python-lib is not installed")
    if torch_lock() != "torch-cpu":
        pytest.skip("the bill of materials is that of the environment for CPUs, and torch here is for GPUs")
    # Writing validates it against the schema of CycloneDX.
    target = tmp_path / "new folder" / "rescorer.cdx.json"
    run(sys.executable, "-m", "tools.release.sbom", target)
    bom = json.loads(target.read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert (bom["metadata"]["component"]["name"], bom["metadata"]["component"]["version"]) == (
        "rescorer",
        VERSION,
    )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    environment = next(
        candidate
        for candidate in environments()
        if (candidate["python_version"], candidate["sys_platform"]) == (python, "linux")
    )
    packages = [*read_lock(FOLDER / "torch-cpu.txt"), *read_lock(FOLDER / "runtime.txt")]
    components = {component["name"]: component for component in bom["components"]}
    assert {name: component["version"] for name, component in components.items()} == pins_of(
        packages, environment
    )
    for package in packages:
        if package.applies(environment):
            component = components[package.name]
            (files,) = component["externalReferences"]
            assert {value["content"] for value in files["hashes"]} == package.hashes
            assert component["purl"].startswith(f"pkg:pypi/{package.name}@")
    needs = {dependency["ref"]: dependency.get("dependsOn", []) for dependency in bom["dependencies"]}
    assert any(ref.startswith("numpy==") for ref in needs[f"rescorer=={VERSION}"])
    assert any(ref.startswith("sympy==") for ref in needs[f"torch=={components['torch']['version']}"])
    reached, queue = set(), [f"rescorer=={VERSION}"]
    while queue:
        reached.add(ref := queue.pop())
        queue.extend(set(needs[ref]) - reached)
    assert len(reached) == len(components) + 1, "every package is needed by something"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it with the locked build tools."""
    pytest.importorskip("build", reason="build is not installed")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


@pytest.mark.slow
def test_the_wheel_has_the_packages_and_nothing_of_tests_or_tools(distributions):
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {
        "rescorer",
        "rescorer_training",
        f"rescorer-{VERSION}.dist-info",
    }
    modules = {name for name in names if name.endswith(".py")}
    for folder, root in (("rescorer", REPOSITORY), ("rescorer_training", REPOSITORY / "training")):
        files = {str(path.relative_to(root)) for path in (root / folder).rglob("*.py")}
        assert {name for name in modules if name.startswith(f"{folder}/")} == files
    # What is not Python code but is read at run time.
    assert any(name.startswith("rescorer_training/recipes/") and name.endswith(".toml") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    pages = {path.relative_to(REPOSITORY / "docs") for path in find_topics().values()}
    installed = {Path(name).relative_to("rescorer/pages") for name in names if name.endswith(".md")}
    assert pages == {path for path in installed if path.name != "index.md"}


@pytest.mark.slow
def test_the_source_distribution_has_what_the_wheel_is_built_from(distributions):
    with tarfile.open(distributions[0]) as source:
        names = [member.name.partition("/")[2] for member in source.getmembers()]
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        "rescorer", "training", "docs", "proto", "requirements", "pyproject.toml",
        "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore",
    }  # fmt: skip
    locks = {f"requirements/{path.name}" for path in FOLDER.iterdir()}
    assert locks <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".so")]


def link_locked(site_packages: Path, names: Sequence[str]) -> None:
    """Link what lock files name, and nothing else, from this environment, which was installed from them."""
    packages = [package for name in names for package in read_lock(FOLDER / f"{name}.txt")]
    for name, version in pins_of(packages, {**default_environment(), "extra": ""}).items():
        distribution = metadata.distribution(name)
        assert distribution.version == version, f"{name} is not installed from the lock"
        for file in distribution.files or ():
            source, target = Path(distribution.locate_file(file)), site_packages / file
            if ".." not in file.parts and source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(distributions, tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment")
    programs = tmp_path / "environment" / "bin"
    python = programs / "python"
    site_packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    link_locked(site_packages, ["build", torch_lock(), "runtime"])
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", distributions[1])
    run(python, "-m", "pip", "check")

    for name, version in COMMANDS.items():
        assert run(programs / name, "--version", cwd=tmp_path) == version
        assert "Usage:" in run(programs / name, "--help", cwd=tmp_path)
    assert run(programs / "rescorer", "help", "lists", cwd=tmp_path).startswith("# Bring lists")
    with gzip.open(REPOSITORY / "demo" / "lists.jsonl.gz", "rt", encoding="utf-8") as lists:
        (tmp_path / "lists.jsonl").write_text("".join(next(lists) for _ in range(4)))
    bundle = REPOSITORY / "models" / "starter" / "1"
    run(
        programs / "rescorer", "rescore", "lists.jsonl", "-o", "out.jsonl", "--bundle", bundle,
        "--weights", "pocketsphinx", cwd=tmp_path,
    )  # fmt: skip
    assert len((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    assert "out.jsonl" in run(programs / "rescorer", "evaluate", "out.jsonl", cwd=tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\nthe dog sat\n" * 20)
    run(programs / "rescorer-train", "ngram", text, "-o", "model.arpa", "--order", "2", cwd=tmp_path)
    assert (tmp_path / "model.arpa").stat().st_size > 0
