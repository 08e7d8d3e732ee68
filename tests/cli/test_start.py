"""A command imports only what it needs, so that probes and short commands start fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rescorer import Hypothesis, NBestList, RescoredList
from rescorer.bench.load import process_tree
from rescorer.cli.program import Commands
from rescorer.terminal.program import LazyGroup, first_paragraph
from rescorer_training.cli.program import Commands as TrainingCommands
from tests.support.serve_command import run_serve_command

NUMERIC = {"numpy", "scipy", "torch", "kenlm"}
INTERFACE = {"rich", "jinja2", "matplotlib", "tqdm"}
SERVICE = {"grpc", "google.protobuf", "pydantic_settings", "structlog", "prometheus_client"}
PROGRAM = """
import sys
from {package}.cli import main
sys.argv[0] = "program"
try:
    main()
except SystemExit as end:
    status = end.code
else:
    status = 0
print(status or 0, *sys.modules, file=sys.stderr)
"""


def modules_after(*arguments: object, package: str = "rescorer") -> set[str]:
    """The modules that a command has imported, which succeeds."""
    command = [sys.executable, "-c", PROGRAM.format(package=package), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    status, *modules = done.stderr.splitlines()[-1].split()
    assert status == "0", done.stderr
    return set(modules)


@pytest.mark.parametrize("package", ["rescorer", "rescorer_training"])
def test_help_imports_no_command(package):
    modules = modules_after("--help", package=package)
    assert not modules & {*NUMERIC, *SERVICE, "rich", "jinja2", "rescorer.types", "rescorer.cli.rescore"}


HELP_OF_ALL = """
import sys
from rescorer.cli import main
for name in {names}:
    sys.argv = ["rescorer", name, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code
print(*sys.modules, file=sys.stderr)
"""


def test_the_help_of_commands_imports_no_models():
    program = HELP_OF_ALL.format(names=list(Commands.lazy))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = {*done.stderr.split()}
    assert "rescorer.cli.tune" in modules
    assert not modules & {"torch", "scipy", "kenlm", "pyarrow", "jinja2", "matplotlib", "sklearn", "ray"}


@pytest.mark.parametrize("group", [Commands, TrainingCommands])
def test_the_help_of_a_program_has_the_summaries_of_its_commands(group: type[LazyGroup]):
    commands = group(name="program").commands
    assert {name: entry.summary for name, entry in group.lazy.items()} == {
        name: first_paragraph(command.help) for name, command in commands.items()
    }


@pytest.mark.slow
def test_health_imports_no_numeric_library(server):
    modules = modules_after("health", server.target)
    assert "grpc" in modules
    assert not modules & {*NUMERIC, *INTERFACE, *SERVICE} - {"grpc", "google.protobuf"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rescore", "score", "evaluate"])
def test_a_bundle_of_n_grams_needs_no_torch(ngram_bundle, tmp_path, name):
    lists, text = tmp_path / "lists.jsonl", tmp_path / "text"
    hypotheses = [{"text": words, "scores": {"acoustic": -1.0}} for words in ("the cat", "a cat")]
    lists.write_text(json.dumps({"id": "u", "hypotheses": hypotheses, "reference": "the cat"}) + "\n")
    text.write_text("the cat sat\n")
    arguments = {
        "rescore": (lists, "-o", tmp_path / "out.jsonl", "--threads", "1"),
        "score": (text,),
        "evaluate": (lists,),
    }
    modules = modules_after(name, *arguments[name], "--bundle", ngram_bundle)
    unneeded = {"torch", "grpc", "pydantic_settings"} | ({"scipy"} if name != "evaluate" else set())
    assert "rescorer.pipeline" in modules
    assert not modules & unneeded


@pytest.mark.slow
def test_a_server_of_n_grams_needs_no_torch(ngram_bundle, tmp_path):
    nbest = NBestList("u", (Hypothesis("the cat"),), {"acoustic": (-1.0,)})
    with run_serve_command(ngram_bundle, tmp_path, "--workers", "1") as (process, client):
        assert isinstance(client.rescore([nbest])[0], RescoredList)
        pids = process_tree(process.pid)
        loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in pids]
    assert len(loaded) == 2
    assert not any("libtorch" in libraries for libraries in loaded)


def test_the_package_names_what_it_exports():
    import rescorer

    assert {*rescorer.__all__} <= {*dir(rescorer)}
    assert all(getattr(rescorer, name) is not None for name in rescorer.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Recorder'"):
        rescorer.Recorder  # noqa: B018


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "rescorer", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "rescorer"), done.stderr
