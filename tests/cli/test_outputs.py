"""No command overwrites what it reads, or puts a file or folder in the place of something else."""

from __future__ import annotations

import os
import stat
from threading import Thread
from typing import Any

import pytest
import typer

from rescorer.cli import app, main
from rescorer_training.cli import app as train_app
from rescorer_training.cli import main as train_main
from tests.support.list_lines import record, write

LISTS = [record(f"u{i}", "the cat", "the mat", reference="the cat") for i in range(3)]

OVERWRITE = {
    ("rescore", "-o"): "FILE -o FILE --bundle BUNDLE",
    ("rescore", "--rejects"): "FILE -o new --rejects FILE --bundle BUNDLE",
    ("evaluate", "--export"): "FILE --export FILE",
    ("compare", "--export"): "FILE ./FILE --export FILE",
    ("report", "-o"): "FILE -o FILE",
    ("tune", "-o"): "FILE --bundle BUNDLE -o FILE",
    ("calibrate", "-o"): "FILE --bundle BUNDLE -o FILE",
    ("calibrate", "--plot"): "FILE --bundle BUNDLE -o new --plot FILE",
    ("candidates", "-o"): "FILE --bundle BUNDLE -o FILE",
    ("combine", "-o"): "FILE ./FILE -o FILE",
    ("convert", "target"): "FILE FILE",
    ("convert", "--rejects"): "FILE new --rejects FILE",
    ("shards merge", "-o"): "FOLDER -o FOLDER/config.json",
    ("bench", "--json"): "FILE --json FILE",
    ("ngram", "-o"): "FILE -o FILE",
    ("interpolate", "--write"): "FILE --ngram FILE --ngram FILE --write FILE",
    ("prune", "-o"): "FILE -o FILE --keep 9",
    ("correct apply", "-o"): "FOLDER FILE -o FILE",
    ("lists text", "-o"): "FILE --like FILE -o FILE",
    ("lists speech", "-o"): "FILE -o FILE",
    ("vectors train", "-o"): "FILE -o FILE --run new",
    ("vectors phrases", "-o"): "FILE -o FILE",
    ("vectors glove", "-o"): "FILE -o FILE --run new",
    ("vectors lsa", "-o"): "FILE -o FILE",
    ("vectors svd", "-o"): "FILE -o FILE",
    ("vectors export", "-o"): "--neural FOLDER -o FOLDER/config.json",
    ("vectors convert", "output"): "FILE FILE --to glove",
    ("vectors plot", "-o"): "FILE -o FILE",
}
"""A call of each command that writes a file, in which the option names an input."""
NEXT_TO = [
    ("ngram", "FILE -o model --normaliser model.text.json"),
    ("ngram", "FILE -o model.bin --vocabulary model.words.txt"),
    ("ngram", "FILE model.direction.json -o model"),
    ("neural", "FILE --validation FILE --vocabulary run/vocabulary.txt -o run"),
    ("classify train", "a=FILE b=run/text.ids -o run"),
    ("vectors train", "run/vocabulary.json -o new --run run"),
    ("convert", "model.rejects model"),
    ("rescore", "model.rejects -o model --bundle BUNDLE"),
    ("reranker", "2.md --bundle BUNDLE -o 2"),
]
"""Calls in which an input is not an output, but one of the files that are written with it."""
FOLDERS = {
    ("neural", "-o"): "FILE --validation FILE -o PLACE",
    ("run", "-o"): "ptb --data . -o PLACE",
    ("bundle", "output"): "PLACE/1 --validation FILE --ngram FILE",
    ("adapt", "-o"): "BUNDLE --text FILE -o PLACE/1",
    ("tables", "-o"): "BUNDLE -o PLACE/1",
    ("precision", "-o"): "BUNDLE --text FILE -o PLACE/1",
    ("import", "-o"): "hf FOLDER -o PLACE --validation FILE",
    ("export", "-o"): "FOLDER -o PLACE",
    ("quantise", "-o"): "FOLDER -o PLACE",
    ("reranker", "-o"): "FILE --bundle BUNDLE -o PLACE/2",
    ("finetune", "-o"): "FILE --bundle BUNDLE -o PLACE/2",
    ("average", "-o"): "FOLDER FOLDER -o PLACE",
    ("correct train", "-o"): "FILE -o PLACE",
    ("tag train", "-o"): "FILE -o PLACE",
    ("classify train", "-o"): "a=FILE b=FILE -o PLACE",
    ("vectors train", "--run"): "FILE -o new --run PLACE",
    ("vectors glove", "--run"): "FILE -o new --run PLACE",
}
"""A call of each command that writes a folder."""
WRITTEN = {"-o", "--write", "--plot", "--export", "--rejects", "--run", "output"}
"""Options and arguments that name what a command writes; a few others are in the tables only."""
SUFFIXES = {"evaluate": ".md", "compare": ".md", "report": ".html", "vectors plot": ".html"}
PROGRAMS: tuple[Any, ...] = tuple(map(typer.main.get_command, (app, train_app)))


@pytest.fixture
def call(run, ngram_bundle, tmp_path, monkeypatch):
    """Return a function that runs a command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "run").mkdir()

    def call(command, line, file="FILE"):
        words = line.replace("BUNDLE", str(ngram_bundle)).replace("FILE", file).split()
        program = main if command.split()[0] in PROGRAMS[0].commands else train_main
        return run(*command.split(), *words, command=program)

    return call


def written_options(group, prefix=()):
    """The options and arguments of all commands of a program that name what is written."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from written_options(command, (*prefix, name))
            continue
        for parameter in command.params:
            for option in WRITTEN & set(parameter.opts):
                yield " ".join((*prefix, name)), option


@pytest.mark.slow
def test_every_output_is_tried():
    found = {option for program in PROGRAMS for option in written_options(program)}
    assert found - OVERWRITE.keys() - FOLDERS.keys() == set()


@pytest.mark.parametrize(("command", "option"), OVERWRITE)
def test_does_not_overwrite_an_input(call, tmp_path, command, option):
    file = f"in{SUFFIXES.get(command, '')}"
    content = write(tmp_path / file, *LISTS).read_text()
    (tmp_path / "FOLDER" / "config.json").write_text(content)
    code, _, err = call(command, OVERWRITE[command, option], file)
    named = option in err or "--output" in err
    assert (code, named, "would overwrite" in err) == (2, True, True), err
    assert (tmp_path / file).read_text() == (tmp_path / "FOLDER" / "config.json").read_text() == content


@pytest.mark.parametrize(("command", "line"), NEXT_TO)
def test_does_not_overwrite_an_input_by_a_file_next_to_the_output(call, tmp_path, command, line):
    write(tmp_path / "FILE", "the cat")
    name = [word.split("=")[-1] for word in line.split() if "." in word][-1]
    (tmp_path / name).write_text("{}")
    code, _, err = call(command, line)
    assert (code, f"{name} would overwrite" in err) == (2, True), err
    assert (tmp_path / name).read_text() == "{}"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option"), FOLDERS)
def test_does_not_put_a_folder_in_the_place_of_something_else(call, tmp_path, command, option):
    write(tmp_path / "FILE", "the cat")
    (tmp_path / "ptb").mkdir()
    for part in ("train", "valid", "test"):
        write(tmp_path / "ptb" / f"ptb.{part}.txt", "the cat")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    for place in ("pipe", "file", "link"):
        write(tmp_path / "file", "content")
        code, _, err = call(command, FOLDERS[command, option].replace("PLACE", place))
        assert (code, place in err, "Traceback" in err) == (2, True, False), err
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
        assert (tmp_path / "file").read_text() == "content\n"
        assert (tmp_path / "link").is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("convert", "FILE OUT"),
        ("combine", "FILE ./FILE -o OUT"),
        ("ngram", "TEXT -o OUT --order 2"),
        ("prune", "MODEL -o OUT --threshold 1e-9"),
        ("interpolate", "TEXT --ngram MODEL --ngram MODEL --write OUT"),
        ("vectors lsa", "TEXT -o OUT --dimensions 2 --min-count 1"),
    ],
)
def test_writes_the_same_to_files_links_and_pipes(call, tmp_path, command, line):
    write(tmp_path / "FILE", *LISTS)
    write(tmp_path / "TEXT", "the cat sat", "the mat", "a cat")
    assert call("ngram", "TEXT -o MODEL --order 2")[0] == 0
    assert call(command, line.replace("OUT", "plain"))[0] == 0
    (tmp_path / "link").symlink_to("FOLDER/real")
    assert call(command, line.replace("OUT", "link"))[0] == 0
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    received: list[bytes] = []
    reader = Thread(target=lambda: received.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    assert call(command, line.replace("OUT", "pipe"))[0] == 0
    reader.join(10)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    expected = (tmp_path / "plain").read_bytes()
    assert [(tmp_path / "FOLDER" / "real").read_bytes(), *received] == [expected] * 2
    assert not list(tmp_path.glob("pipe.*"))
