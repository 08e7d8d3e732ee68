"""Checkpoints and settings of other toolkits: pickles by torch, and YAML.

A checkpoint is unpickled by ``torch.load(weights_only=True)``, which makes only tensors, plain containers and
paths, and runs no code. Its archive is checked first: nothing in it is compressed, so that what is read is
never larger than the file. YAML is read with plain values only; what has a tag of HyperPyYAML, such as
``!name:torch.nn.GELU``, is kept as ``Tagged`` and never looked up.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from rescorer.errors import BundleError, quote
from rescorer.safe_input import descriptor_path, open_regular
from rescorer.units.tokens import import_library

MAX_TENSORS = 20_000
"""Largest number of tensors in a checkpoint, and of files in its archive."""
PATHS: list[Any] = [(PurePosixPath, f"{module}.PosixPath") for module in ("pathlib", "pathlib._local")]
"""Objects in checkpoints besides tensors and containers: icefall's have the paths of its options."""
MAX_SETTINGS_BYTES = 4 << 20
"""Largest file of settings; ESPnet's contain the list of all units."""
MAX_LINE = 4096
MAX_BRACKETS = 2000
"""Largest length of a line, and number of opening brackets, of a file of settings: they bound how deeply
values can be nested, for libyaml does not."""


class Checkpoint:
    """The tensors of a checkpoint, by name. Each is checked when it is taken.

    Args:
        path: a file of tensors by name, or with such under the key ``model``.

    Raises:
        BundleError: the file is damaged, too old, compressed, contains Python objects, or has no tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        values = _load(path)
        if isinstance(values, Mapping) and isinstance(values.get("model"), Mapping):
            values = values["model"]
        if not isinstance(values, Mapping) or len(values) > MAX_TENSORS:
            raise BundleError(
                f"{path}: expected the weights of a model by name, at most {MAX_TENSORS:,} tensors"
            )
        self._tensors = {
            name: tensor
            for name, tensor in values.items()
            if isinstance(name, str) and isinstance(tensor, Tensor)
        }

    def strip_prefix(self, marker: str) -> bool:
        """Find the tensor whose name ends in ``marker``, and leave out what comes before from all names.

        Returns:
            Whether there is such a tensor.
        """
        name = min((name for name in self._tensors if name.endswith(marker)), key=len, default=None)
        if name is not None:
            prefix = name.removesuffix(marker)
            self._tensors = {
                name.removeprefix(prefix): tensor
                for name, tensor in self._tensors.items()
                if name.startswith(prefix)
            }
        return name is not None

    def has(self, name: str) -> bool:
        """Whether there is a tensor of a name, or of a layer of a name."""
        return name in self._tensors or any(other.startswith(f"{name}.") for other in self._tensors)

    def count(self, prefix: str) -> int:
        """Number of layers: of numbers that follow a prefix in names, from 0 on without a gap."""
        rests = (name.removeprefix(prefix) for name in self._tensors if name.startswith(prefix))
        numbers = {rest.partition(".")[0] for rest in rests}
        return next(number for number in range(len(numbers) + 1) if str(number) not in numbers)

    def take(self, name: str, n_dimensions: int | None = None) -> Tensor:
        """A tensor in float32.

        Raises:
            BundleError: it is missing, is not of floating-point numbers, or has another number of dimensions.
        """
        place = f"{self.path}: the tensor {quote(name)}"
        if name not in self._tensors:
            raise BundleError(f"{place} is missing")
        tensor = self._tensors[name]
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not is_plain or not tensor.is_floating_point() or not tensor.numel():
            raise BundleError(
                f"{place} is empty or of the type {tensor.dtype}; expected floating-point numbers"
            )
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise BundleError(f"{place} claims more values than the file has")
        if n_dimensions is not None and tensor.dim() != n_dimensions:
            raise BundleError(f"{place} has {tensor.dim()} dimensions; expected {n_dimensions}")
        return tensor.detach().to(torch.float32).contiguous()


def _load(path: Path) -> Any:
    with open_regular(path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
            raise BundleError(
                f"{path}: is not an archive of torch 1.6 or later, or is damaged; an older checkpoint can be "
                "written again: torch.save(torch.load(FILE), FILE)"
            ) from None
        is_stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        n_bytes = sum(entry.file_size for entry in entries)
        if not is_stored or len(entries) > MAX_TENSORS or n_bytes > stream.seek(0, 2):
            raise BundleError(
                f"{path}: its archive is compressed, or has more than {MAX_TENSORS:,} files; expected a file "
                "that torch.save wrote"
            )
        try:
            with torch.serialization.safe_globals(PATHS):
                return torch.load(descriptor_path(stream), map_location="cpu", mmap=True, weights_only=True)
        except pickle.UnpicklingError:
            raise BundleError(
                f"{path}: contains Python objects besides weights, which are not read; write the weights "
                "alone: torch.save(model.state_dict(), FILE)"
            ) from None
        except Exception as error:  # a damaged pickle can raise anything
            reason = str(error).partition("\n")[0][:200]
            raise BundleError(f"{path}: cannot be read as a checkpoint of torch: {reason}") from None


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value of YAML with a tag of an application."""

    tag: str
    value: Any


def read_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top level has names.

    Raises:
        BundleError: the file is missing, too large, or not such a file.
        ConfigError: the package that reads YAML is not installed.
    """
    yaml = import_library("yaml")
    with open_regular(path) as stream:
        data = stream.read(MAX_SETTINGS_BYTES + 1)
    if len(data) > MAX_SETTINGS_BYTES:
        raise BundleError(f"{path}: has more than {MAX_SETTINGS_BYTES:,} bytes; expected a file of settings")
    brackets = data.count(b"[") + data.count(b"{")
    if brackets > MAX_BRACKETS or max(map(len, data.split(b"\n"))) > MAX_LINE:
        raise BundleError(
            f"{path}: has {brackets:,} brackets, or a line of more than {MAX_LINE:,} bytes; expected at most "
            f"{MAX_BRACKETS:,}, and one setting on a line"
        )

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Reads tags of applications as ``Tagged``."""

        def flatten_mapping(self, node: Any) -> None:
            """Merge nothing: merges of merges would grow without bounds."""

    def construct(loader: Any, suffix: str, node: Any) -> Tagged:
        if isinstance(node, yaml.MappingNode):
            return Tagged(suffix, loader.construct_mapping(node, deep=True))
        if isinstance(node, yaml.SequenceNode):
            return Tagged(suffix, loader.construct_sequence(node, deep=True))
        return Tagged(suffix, loader.construct_scalar(node))

    Loader.add_multi_constructor("!", construct)
    try:
        values = yaml.load(data, Loader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BundleError(f"{path}: cannot be read as YAML: {reason}") from None
    if not isinstance(values, dict):
        raise BundleError(f"{path}: expected settings by name")
    return values
