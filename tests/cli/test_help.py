"""Help: options in groups, examples that run, and the pages of ``rescorer help``."""

from __future__ import annotations

import gzip
import json
import random
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from rescorer.cli.help import find_topics
from rescorer.cli.program import app
from rescorer.terminal.help import GENERAL, GROUPS
from rescorer_training.cli import main as train_main
from rescorer_training.cli.help import TRAINING_GROUPS, TrainingCommand
from rescorer_training.cli.program import app as training_app
from tests.conftest import REPOSITORY

MAX_GENERAL = 20
"""A longer first group hides the options that most people need."""


def leaf_commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands of a program, with their full names."""
    for part, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaf_commands(command, f"{name} {part}")
        else:
            yield f"{name} {part}", command


def all_commands() -> dict[str, Any]:
    return {
        name: command
        for program, program_app in (("rescorer", app), ("rescorer-train", training_app))
        for name, command in leaf_commands(typer.main.get_command(program_app), program)
    }


def test_help_shows_every_option_in_one_group():
    seen: set[str] = set()
    for name, command in all_commands().items():
        context = typer.Context(command, info_name=name)
        groups = command.grouped_options(context)
        shown = [option.name for options in groups.values() for option in options]
        options = [item for item in command.get_params(context) if item.param_type_name == "option"]
        assert sorted(shown) == sorted(option.name for option in options if not option.hidden), name
        assert len(groups[GENERAL]) <= MAX_GENERAL, f"{name}: put options into groups"
        seen |= {flag for option in options for flag in option.opts}
    tables = (GROUPS, TRAINING_GROUPS, TrainingCommand.groups)
    assert not {name for table in tables for names in table.values() for name in names} - seen


def test_help_has_the_groups_in_order(run):
    _, out, _ = run("rescore", "--help")
    headings = re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE)
    assert headings == [
        "Arguments", "Options", "Input", "Models and weights", "Deciding", "Shards", "Forecast", "Output",
        "Resources",
    ]  # fmt: skip
    first = out.partition("Input:")[0]
    assert "--bundle" in first
    assert "--output" in first


def test_help_prints_pages_and_commands(run):
    code, out, _ = run("help")
    assert code == 0
    topics = find_topics()
    assert set(re.findall(r"^  (\S+)  ", out, re.MULTILINE)) == topics.keys()
    pages = {path.relative_to(REPOSITORY / "docs") for path in topics.values()}
    assert pages == {
        path.relative_to(REPOSITORY / "docs")
        for path in (REPOSITORY / "docs").rglob("*.md")
        if path.name != "index.md"
    }
    for topic in ("lists", "how-to/lists", "docs/how-to/lists.md"):
        code, out, _ = run("help", topic)
        assert (code, out.splitlines()[0]) == (0, "# Bring lists from other toolkits")
        assert "`rescorer help formats`" in out
    code, _, err = run("help", "results/lists")  # a page of another folder
    assert (code, err) == (2, "rescorer: no page or command 'results/lists'; did you mean 'lists'?\n")
    code, out, _ = run("help", "seal")
    assert (code, "Usage: " in out) == (0, True)
    code, _, err = run("help", "lsts")
    assert (code, err) == (2, "rescorer: no page or command 'lsts'; did you mean 'lists'?\n")


def test_every_page_that_a_message_names_is_there():
    sources = [*(REPOSITORY / "rescorer").rglob("*.py"), *(REPOSITORY / "training").rglob("*.py")]
    named = {
        name: path
        for path in sources
        for name in re.findall(r"`rescorer help ([a-z/-]+)`", path.read_text(encoding="utf-8"))
    }
    assert {"formats", "lists"} <= named.keys() <= find_topics().keys()


NOT_RUN = {
    "rescorer serve": "runs until it is stopped",
    "rescorer health": "needs a server",
    "rescorer bench": "takes a minute",
    "rescorer load": "takes seconds of load",
    "rescorer candidates": "needs lists with phrases and their references",
    **dict.fromkeys(
        (
            "rescorer shards status",
            "rescorer shards verify",
            "rescorer shards merge",
            "rescorer shards clean",
        ),
        "needs shards",
    ),
}
"""Commands of ``rescorer`` whose examples are only parsed, with the reason."""
RUN_TRAINING = (
    "ngram", "neural", "perplexity", "interpolate", "prune", "bundle", "sample", "quantise", "average",
)  # fmt: skip
"""Commands of ``rescorer-train`` whose examples run, in this order; the others need more data, or minutes."""


def example_of(command: Any) -> str:
    """The example in a command's help, on one line."""
    found = re.search(r"Example: (.*?)(?:\n\s*\n|$)", command.help, re.DOTALL)
    assert found
    return " ".join(found[1].split())


@pytest.fixture
def examples(tmp_path, bundle, monkeypatch):
    """A working folder with small files by the names of the examples' inputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shutil.copytree(bundle, "models/starter/1")
    weights = {"name": "pocketsphinx", "streams": {"acoustic": 1.0}, "lm": {"mixture": 9.5}}
    Path("models/starter/1/weights/pocketsphinx.json").write_text(json.dumps(weights))
    Path("demo").mkdir()
    with gzip.open(REPOSITORY / "demo" / "lists.jsonl.gz", "rt", encoding="utf-8") as source:
        lists = [json.loads(next(source)) for _ in range(8)]
    for nbest in lists:
        nbest["hypotheses"] = nbest["hypotheses"][:5]
    text = "".join(json.dumps(nbest) + "\n" for nbest in lists)
    with gzip.open("demo/lists.jsonl.gz", "wt", encoding="utf-8") as target:
        target.write(text)
    for name in ("a.jsonl", "b.jsonl"):
        one_best = [
            {**nbest, "id": f"{i % 3}-{i}", "hypotheses": nbest["hypotheses"][:1]}
            for i, nbest in enumerate(lists)
        ]
        Path(name).write_text("".join(json.dumps(nbest) + "\n" for nbest in one_best))
    Path("service.toml").write_text('bundle = "models/starter/1"\n')
    chance = random.Random(1)
    words = [f"w{i}" for i in range(40)]
    for name in ("train.txt", "valid.txt", "test.txt"):
        sentences = [" ".join(chance.choices(words, k=chance.randint(3, 8))) for _ in range(200)]
        Path(name).write_text("\n".join(sentences) + "\n")
    with gzip.open("train.txt.gz", "wt") as target:
        target.write(Path("train.txt").read_text())
    return tmp_path


@pytest.mark.slow
def test_examples_of_help_run(run, examples, monkeypatch):
    commands = all_commands()
    programs = {"rescorer": None, "rescorer-train": train_main}
    first = ["rescorer seal"]  # which adds the weights that others name
    training = [f"rescorer-train {name}" for name in RUN_TRAINING]
    others = [name for name in commands if name.startswith("rescorer ") and name not in NOT_RUN]
    for name in dict.fromkeys([*first, *others, *training]):
        typed, _, line = example_of(commands[name]).rpartition(" | ")
        Path("typed").write_text((shlex.split(typed)[1] if typed else "") + "\n")
        program, *arguments = shlex.split(line.partition(" >> ")[0])
        with open("typed") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            code, _, err = run(*arguments, command=programs[program])
        assert code in (0, 1), f"{line}: {err}"
        if name == "rescorer-train ngram":
            for copy in ("kn5", "news", "talk", "books4", "mine"):
                shutil.copy("model.arpa.gz", f"{copy}.arpa.gz")
        if name == "rescorer-train neural":
            for copy in "abc":
                shutil.copytree("runs/lstm/best", f"runs/{copy}")


def test_examples_name_options_that_exist():
    for name, command in all_commands().items():
        line = example_of(command).rpartition(" | ")[2].partition(" >> ")[0]
        assert f"{line} ".startswith(f"{name} "), line
        options = {flag for item in command.params for flag in (*item.opts, *item.secondary_opts)}
        if "Settings" not in type(command).__name__:
            given = {word for word in shlex.split(line) if re.fullmatch(r"-\w|--[\w-]+", word)}
            assert given <= options, name
