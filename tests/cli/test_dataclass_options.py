"""Dataclasses as options of commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from rescorer.terminal.options import argument, expand_options, option


@dataclass(frozen=True)
class SizeOptions:
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of pictures.")]
    unit: Annotated[str, typer.Option(help="Unit of length.")]
    width: Annotated[int, typer.Option("--width", "-w", help="Width in pixels.")] = 640
    is_square: bool = field(
        default=False, metadata={"help": "Ignore the height.", "flags": ("--square/--any",), "metavar": None}
    )
    copies: int = field(default=1, metadata={"help": "Number of copies.", "min": 1})


@dataclass(frozen=True)
class FileOptions:
    output: Annotated[str, typer.Option("-o")]
    force: Annotated[bool, typer.Option("--force")] = False


@pytest.fixture
def app():
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @expand_options
    def resize(
        file: Annotated[str, typer.Argument()],
        *,
        first: Annotated[int, typer.Option(help="First option.")] = 1,
        size: SizeOptions,
        last: Annotated[int, typer.Option(help="Last option.")] = 2,
    ) -> None:
        """Resize a picture."""
        typer.echo(f"{file} {first} {size} {last}")

    return app


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["b", "--unit", "mm"], f"a.png 1 {SizeOptions(['b'], 'mm')} 2"),
        (
            ["b", "c", "-w", "8", "--square", "--unit", "mm", "--last", "3"],
            f"a.png 1 {SizeOptions(['b', 'c'], 'mm', 8, True)} 3",
        ),
    ],
)
def test_builds_the_dataclass_from_options_and_arguments(app, arguments, expected):
    assert CliRunner().invoke(app, ["a.png", *arguments]).stdout == expected + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["b"], "Missing option '--unit'"),
        (["--unit", "mm"], "Missing argument 'NAME...'"),
        (["b", "--unit", "mm", "--copies", "0"], "Invalid value for '--copies'"),
    ],
)
def test_fields_without_a_default_are_required_and_bounds_hold(app, arguments, message):
    result = CliRunner().invoke(app, ["a.png", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_help_lists_fields_at_the_place_of_their_dataclass(app):
    text = CliRunner().invoke(app, ["--help"]).stdout
    positions = [text.index(flag) for flag in ("--first", "-w, --width", "--square / --any", "--last")]
    assert positions == sorted(positions)
    assert "Width in pixels.  [default: 640]" in text
    assert "Resize a picture." in text


def test_a_field_without_a_default_is_required():
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @expand_options
    def copy(files: FileOptions) -> None:
        typer.echo(files.output)

    assert CliRunner().invoke(app, ["-o", "b.png"]).stdout == "b.png\n"
    assert "Missing option '-o'" in CliRunner().invoke(app, []).output


@dataclass(frozen=True)
class CropOptions:
    margin: int = option(0, "Pixels to keep around the picture.", min=0)
    keep_ratio: bool = option(False, "Keep the ratio of the sides.")


def test_options_and_arguments_are_declared_by_their_default(app):
    @app.command()
    @expand_options
    def crop(
        *,
        files: list[str] = argument("Names of pictures.", "NAME..."),
        output: str = option(..., "Name of the result.", "-o"),
        crop: CropOptions,
    ) -> None:
        typer.echo(f"{files} {output} {crop}")

    run = CliRunner().invoke
    given = run(app, ["crop", "a.png", "b.png", "-o", "c.png", "--keep-ratio", "--margin", "3"])
    assert given.stdout == f"['a.png', 'b.png'] c.png {CropOptions(3, True)}\n"
    assert "Missing option '-o'" in run(app, ["crop", "a.png"]).output
    assert "Missing argument 'NAME...'" in run(app, ["crop", "-o", "c.png"]).output
    assert "--no-keep-ratio" not in run(app, ["crop", "--help"]).stdout
