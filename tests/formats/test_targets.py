"""Files are replaced when the new ones are complete; links, devices and pipes stay what they are."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from threading import Thread

import pytest

from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io.text_io import (
    check_not_input,
    check_target,
    make_folder,
    open_binary_output,
    remove_file,
    replace_file,
    write_text,
)


def write_at_once(target, text):
    write_text(target, text)


def write_bytes(target, text):
    with open_binary_output(target) as stream:
        stream.write(text.encode())


def write_by_name(target, text):
    with replace_file(target) as partial:
        assert partial.suffix == Path(target).suffix
        partial.write_text(text)


writers = pytest.mark.parametrize("write", [write_at_once, write_bytes, write_by_name])


def make_device(path: Path, minor: int) -> Path:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        path.open("wb").close()
    except OSError as error:
        pytest.skip(f"no device can be made: {error.strerror}")
    return path


@writers
def test_a_link_stays_and_its_file_is_replaced(write, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "link.txt").symlink_to("store/real.txt")
    for text in ("new", "newer"):  # at first, the link leads to no file
        write(tmp_path / "link.txt", text)
        assert (tmp_path / "link.txt").readlink() == Path("store/real.txt")
        assert (tmp_path / "store" / "real.txt").read_text() == text
        (tmp_path / "store" / "real.txt").chmod(0o600)
    assert stat.S_IMODE((tmp_path / "store" / "real.txt").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link.txt", "real.txt", "store"]


@writers
def test_an_error_keeps_the_old_file(write, tmp_path, monkeypatch):
    target = tmp_path / "out.txt"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write(target, "\udc80")
    assert (target.read_text(), list(tmp_path.iterdir())) == ("old", [target])


@writers
def test_a_pipe_is_written_to(write, tmp_path):
    pipe, received = tmp_path / "pipe.txt", []
    os.mkfifo(pipe)
    reader = Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    write(pipe, "text")
    reader.join(10)
    assert (received, pipe.is_fifo()) == (["text"], True)


@writers
def test_a_device_is_written_to(write, tmp_path):
    null, full = make_device(tmp_path / "null", 3), make_device(tmp_path / "full", 7)
    (tmp_path / "link").symlink_to("null")
    write(null, "text")
    write(tmp_path / "link", "text")
    with pytest.raises(FormatError, match="full: cannot be written: No space left on device"):
        write(full, "text")
    remove_file(tmp_path / "link")
    assert (null.is_char_device(), full.is_char_device(), (tmp_path / "link").is_symlink()) == (True,) * 3


@writers
def test_an_open_descriptor_goes_on_where_it_is(write, tmp_path):
    """Like ``-o /dev/stdout >> file``: neither replaced nor cut."""
    with open(tmp_path / "out.txt", "w") as stream:
        stream.write("before\n")
        stream.flush()
        write(f"/dev/fd/{stream.fileno()}", "text\n")
        stream.write("after\n")
    assert (tmp_path / "out.txt").read_text() == "before\ntext\nafter\n"


@writers
def test_names_what_cannot_be_written(write, tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name, reason in (
            ("", "Is a directory"),
            ("circle", "Too many levels of symbolic links"),
            ("no/file", "No such file or directory"),
            ("socket", "socket|No such device"),
        ):
            with pytest.raises(FormatError, match=f"cannot be written: .*({reason})"):
                check_target(tmp_path / name)
            if write is not write_by_name or name in ("", "circle"):
                with pytest.raises(FormatError, match=f"cannot be written: .*({reason})"):
                    write(tmp_path / name, "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "socket"]


def test_a_folder_is_made_only_where_nothing_else_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert make_folder(tmp_path / "a" / "b").is_dir()
    with pytest.raises(FormatError, match="pipe: is not a folder"):
        make_folder(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_recognises_an_input_by_any_name(tmp_path, monkeypatch):
    text = tmp_path / "text"
    text.write_text("text")
    (tmp_path / "link").symlink_to("text")
    os.link(text, tmp_path / "hard")
    for name in ("text", "link", "hard", "./text"):
        with pytest.raises(ConfigError, match=f"-o .*{name} would overwrite an input file, .*text; choose"):
            check_not_input("-o", f"{tmp_path}/{name}", [tmp_path / "other", text])
    check_not_input("-o", tmp_path / "new", [text, "s3://bucket/text", ""])
    check_not_input("-o", "/dev/null", ["/dev/null"])


@pytest.mark.parametrize(
    ("hold", "write"), [(open_binary_output, write_at_once), (replace_file, write_by_name)]
)
def test_only_one_process_at_a_time_writes_a_file(hold, write, tmp_path):
    target = tmp_path / "out.txt"
    target.write_text("old")
    with hold(target), pytest.raises(FormatError, match=r"out\.txt: cannot be written: another process is"):
        write(target, "refused")
    assert target.read_text() == ""  # what the first one wrote
    write(target, "later")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.txt", "later")]


@pytest.mark.parametrize(
    ("write", "name"), [(write_at_once, ".out.txt.partial"), (write_by_name, ".partial-out.txt")]
)
def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(write, name, tmp_path):
    (tmp_path / "victim").write_text("content")
    (tmp_path / name).symlink_to("victim")
    with pytest.raises(FormatError, match=r"out\.txt: cannot be written: Too many levels of symbolic links"):
        write(tmp_path / "out.txt", "new")
    assert (tmp_path / "victim").read_text() == "content"


@pytest.mark.parametrize(
    ("write", "name"), [(write_at_once, ".out.txt.partial"), (write_by_name, ".partial-out.txt")]
)
def test_what_a_killed_process_left_does_not_stay(write, name, tmp_path):
    (tmp_path / name).write_text("more text than the next one")
    write(tmp_path / "out.txt", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.txt", "new")]
