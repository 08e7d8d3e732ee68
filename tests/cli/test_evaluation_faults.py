"""What the commands of evaluation do with outputs that cannot be written, and with odd lists and options."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rescorer.formats.io.text_io import open_output
from tests.support.list_lines import GOOD, record, write

FULL = Path("/dev/full")
TEXTS = ("the cat", "the mat")


@pytest.fixture
def source(tmp_path):
    """Ten lists whose references differ."""
    lists = [record(f"u{i}", *TEXTS, reference="the cat sat on the mat"[: 5 + i]) for i in range(10)]
    return write(tmp_path / "in.jsonl", *lists)


def arguments(command, source, bundle, output):
    """A call of a command that writes a file."""
    if command == "combine":
        return (command, source, f"{source.parent}/./{source.name}", "-o", output)
    if command in ("evaluate", "compare"):
        other = f"{source.parent}/./{source.name}"
        return (command, source, other, "--export", output)
    return (command, source, "--bundle", bundle, "-o", output)


@pytest.mark.parametrize("command", ["tune", "calibrate", "combine", "evaluate", "compare", "report"])
def test_checks_its_output_before_it_works(run, ngram_bundle, source, tmp_path, monkeypatch, command):
    """Nothing is read, and nothing left behind, if the output cannot be written."""
    name = {"evaluate": "a.md", "compare": "a.md", "report": "a.html"}.get(command, "a.json")
    (tmp_path / "folder" / name).mkdir(parents=True)
    before = sorted(tmp_path.iterdir())
    missing = tmp_path / "no.jsonl"  # would be the first error if the lists were read before the check
    call = arguments(command, missing, ngram_bundle, tmp_path / "folder" / name)
    code, out, err = run(*call)
    assert (code, out) == (2, "")
    assert err.endswith(f"{name}: cannot be written: Is a directory\n")
    long = tmp_path / f"{'x' * 300}{Path(name).suffix}"
    code, _, err = run(*arguments(command, missing, ngram_bundle, long))
    assert (code, "cannot be written" in err) == (2, True)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["tune", "calibrate", "combine"])
def test_a_full_disk_is_one_line(run, ngram_bundle, source, command):
    code, _, err = run(*arguments(command, source, ngram_bundle, FULL))
    assert (code, "Traceback" in err) == (3, False)
    assert "/dev/full: cannot be written: No space left on device" in err


def run_in_shell(redirection, *arguments):
    """Run a command with its standard output redirected by a shell; return exit code and stderr."""
    command = shlex.join([sys.executable, "-m", "rescorer.cli", *map(str, arguments)])
    done = subprocess.run(
        ["bash", "-c", f"{command} {redirection}"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_under_standard_output_is_one_line(source):
    message = "rescorer: the output cannot be written: No space left on device\n"
    assert run_in_shell(f">{FULL}", "evaluate", source) == (3, message)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_closed_standard_output_is_one_line(source, options):
    message = "rescorer: the output cannot be written: standard output is closed\n"
    assert run_in_shell(">&-", "evaluate", source, *options) == (3, message)


def test_a_closed_standard_output_does_not_matter_to_commands_that_print_nothing(source, tmp_path):
    code, err = run_in_shell(">&-", "convert", source, tmp_path / "out.jsonl")
    assert (code, err.splitlines()[-1]) == (0, "10 lists written as jsonl; 0 rejected")
    assert (tmp_path / "out.jsonl").read_text().count("\n") == 10


def test_a_closed_standard_error_keeps_messages_from_standard_output(source, tmp_path):
    assert run_in_shell(f"2>&- >{tmp_path}/out", "evaluate", tmp_path / "no.jsonl") == (3, "")
    assert (tmp_path / "out").read_text() == ""


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_closed_pipe_ends_silently_with_the_code_of_sigpipe(source, options):
    """A pipe to ``head`` ends like this; here it is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rescorer.cli", "evaluate", str(source), *options]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_keeps_the_old_file_if_the_disk_is_full(tmp_path, monkeypatch):
    from rescorer.errors import FormatError

    path = write(tmp_path / "w.json", "old")

    def fill_the_disk():
        with open_output(path) as stream:
            stream.write("new")
            raise OSError(28, os.strerror(28))

    with pytest.raises(FormatError, match="No space left"):
        fill_the_disk()
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old\n", [path])


@pytest.mark.parametrize("command", ["tune", "calibrate", "combine"])
def test_does_not_overwrite_the_lists(run, ngram_bundle, source, command):
    content = source.read_text()
    code, _, err = run(*arguments(command, source, ngram_bundle, source))
    assert (code, "would overwrite an input file" in err) == (2, True)
    assert source.read_text() == content


def test_standard_output_is_for_the_tables(run, ngram_bundle, source):
    for command in ("tune", "calibrate", "combine"):
        code, out, err = run(*arguments(command, source, ngram_bundle, "-"))
        assert (code, out, "expected the name of a file" in err) == (2, "", True)


def test_rejected_lists_are_in_the_exit_code_and_the_json(run, ngram_bundle, source, tmp_path):
    """All commands that go on without some lists say so in the same way."""
    lines = source.read_text().splitlines()
    write(source, *lines, record("bad", *TEXTS))
    for command in ("tune", "calibrate"):
        code, out, _ = run(*arguments(command, source, ngram_bundle, tmp_path / "w.json"), "--json")
        data = json.loads(out)
        assert (code, data["rejected"]) == (1, 1)
        assert "'bad'" in data["rejected_lists"][0]
    other = write(tmp_path / "other.jsonl", *lines, "{broken")
    code, out, _ = run("combine", source, other, "-o", tmp_path / "c.jsonl", "--json")
    assert (code, json.loads(out)["rejected"]) == (1, 1)


def test_combine_prints_json_without_references(run, tmp_path):
    files = [write(tmp_path / name, record("u1", *TEXTS)) for name in ("a.jsonl", "b.jsonl")]
    code, out, _ = run("combine", *files, "-o", tmp_path / "c.jsonl", "--json")
    data = json.loads(out)
    assert (code, data["utterances"], data["systems"], data["gain"]) == (0, 1, [], None)


@pytest.mark.parametrize(
    ("option", "message"),
    [(("--system-weights", "0,1"), "--system-weights '0,1': expected finite numbers above 0"),
     (("--temperatures", "nan,1"), "--temperatures 'nan,1': expected finite numbers above 0"),
     (("--null-weight", "-1"), "--null-weight '-1.0': expected finite numbers above 0"),
     (("--to", "trm"), "--to 'trm': expected jsonl or trn; did you mean 'trn'?")],
)  # fmt: skip
def test_errors_of_a_combination_name_the_option(run, source, tmp_path, option, message):
    _, _, err = run(*arguments("combine", source, None, tmp_path / "c.jsonl"), *option)
    assert err == f"rescorer: {message}\n"


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_options_without_effect_are_errors(run, ngram_bundle, source, tmp_path, command):
    """Weights need models, and letters a known alphabet."""
    output = ("-o", tmp_path / "r.md") if command == "report" else ()
    for options, message in (
        (("-w", "acoustic=2"), "--weights and -w choose the weights of a --bundle"),
        (("--weights", "mine.json"), "--weights and -w choose the weights of a --bundle"),
        (("--bundle", ngram_bundle, "--letters", "ipa"), "--letters: expected one of"),
    ):
        code, _, err = run(command, source, *options, *output)
        assert (code, message in err) == (2, True)


def test_errors_of_options_name_the_option(run, source):
    assert "--groups '(('" in run("evaluate", source, "--groups", "((")[2]
    assert "--first-pass 'acoustic=nan'" in run("evaluate", source, "--first-pass", "acoustic=nan")[2]


def test_a_row_that_equals_an_earlier_one_does_not_cost_the_table(run, source):
    code, out, err = run("evaluate", source, "--errors", "--system", "empty left out")
    assert (code, "--system 'empty left out'" in err, "first pass" in out) == (2, True, True)


def test_references_without_words_have_no_error_rate(run, tmp_path):
    lists = [record(f"u{i}", *TEXTS, reference="") for i in range(8)]
    swapped = [record(f"u{i}", *TEXTS, "the", reference="") for i in range(8)]
    files = [write(tmp_path / name, *part) for name, part in (("a.jsonl", lists), ("b.jsonl", swapped))]
    write(files[1], *(record(f"u{i}", "the", reference="") for i in range(8)))
    code, out, err = run("compare", *files, "--json")
    assert (code, "Warning" in err) == (0, False)
    (pair,) = json.loads(out)["pairs"]
    assert (pair["gain"], pair["p_value"]) == (None, None)
    code, _, err = run("report", files[0], "-o", tmp_path / "r.html")
    assert (code, err) == (
        3,
        f"rescorer: {files[0]}: no reference has words: there are no error rates to report\n",
    )


def test_rejections_count_in_good_english(run, tmp_path):
    lists = write(tmp_path / "in.jsonl", *GOOD, *(record(f"n{i}", *TEXTS) for i in range(4)))
    assert "rejected: 1 more list for their reference" in run("evaluate", lists)[2]


def test_only_near_names_are_suggested_for_a_stream(run, ngram_bundle, source):
    """A short name that shares letters with another is not a slip of the keys."""
    for name, hint in (
        ("foo", "`-w foo=0` leaves it out"),
        ("wrod", "did you mean 'word'?"),
        ("acustic", "'acoustic'?"),
    ):
        code, _, err = run("evaluate", source, "--bundle", ngram_bundle, "-w", f"{name}=1")
        assert (code, err.endswith(f"{hint}\n"), "'oov'?" in err) == (2, True, False)


def test_the_only_stream_is_suggested_whatever_its_name(run, ngram_bundle, source):
    source.write_text(source.read_text().replace('"acoustic"', '"ctc"'))
    code, _, err = run("evaluate", source, "--bundle", ngram_bundle)
    assert (code, "`-w acoustic=0 -w ctc=1 -w lm:mixture=0" in err) == (2, True)


def test_one_list_is_singular(run, tmp_path):
    files = [
        write(tmp_path / name, record("u1", *TEXTS, reference="the cat")) for name in ("a.jsonl", "b.jsonl")
    ]
    for command in (("evaluate", files[0]), ("compare", *files)):
        _, out, _ = run(*command)
        assert "bootstrap of 1 list;" in out
