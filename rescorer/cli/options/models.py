"""Options for choosing a bundle, and the device and precision of its models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BundleOption = Annotated[
    Path,
    typer.Option(
        "--bundle",
        "-b",
        help="Folder of a model bundle: one version, such as models/starter/1, or all versions, such as "
        "models/starter, for the newest.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="Device of the models: cpu, cuda, cuda:1, …")]
DtypeOption = Annotated[
    str,
    typer.Option(
        help="Precision of matrix products: float32, or bfloat16 or int8, which are slightly less exact and "
        "faster on processors that support them."
    ),
]
