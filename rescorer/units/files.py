"""Models in pieces of words as folders of a bundle.

A folder has ``config.json`` (the decoder, start and end, the form of texts, the result of the checks at
import, the model's origin), ``model.safetensors`` and a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rescorer.errors import BundleError, quote
from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.models.kernels import torch_device
from rescorer.models.network_files import CONFIG_FILE, WEIGHTS_FILE
from rescorer.runtime import apply_threads
from rescorer.safe_input import Folder, descriptor_path, read_tensor_header
from rescorer.units.automodel import AutoModelConfig, load_decoder
from rescorer.units.decoders import Decoder, DecoderConfig, check_tensors, set_precision
from rescorer.units.model import DecoderScorer, UnitDecoder, UnitLanguageModel
from rescorer.units.tokens import Tokenizer, WordDivider, read_tokenizer

Runtime = DecoderConfig | AutoModelConfig
RUNTIMES: Mapping[str, type[Runtime]] = {"native": DecoderConfig, "transformers": AutoModelConfig}
"""What runs a model: the decoders of this package, or transformers."""
TextForm = Literal["canonical", "upper"]
"""How words are written before they are divided into units: as the normaliser writes them, or upper case."""


@dataclass(frozen=True, slots=True)
class UnitConfig:
    """A model in pieces of words, without its tensors and tokenizer.

    Raises:
        BundleError: a value is invalid.
    """

    decoder: Runtime
    start: tuple[int, ...]
    """Units before every text, at least one."""
    end: int | None
    """Unit that ends a sentence; None: ends are not scored."""
    text: TextForm = "canonical"
    check: Mapping[str, Any] | None = None
    """Measurements at import, such as the perplexity per word."""
    source: Mapping[str, Any] | None = None
    """Origin of the model, and its licence."""

    def __post_init__(self) -> None:
        size = self.decoder.vocabulary_size
        for name, units in (("start", self.start), ("end", () if self.end is None else (self.end,))):
            if not all(isinstance(unit, int) and 0 <= unit < size for unit in units):
                raise BundleError(f"config of the model: {name} is {units}; expected units below {size:,}")
        if not self.start:
            raise BundleError("config of the model: start is empty; expected at least one unit")
        if self.text not in get_args(TextForm):
            known = ", ".join(get_args(TextForm))
            raise BundleError(
                f"config of the model: text is {quote(str(self.text))}; expected one of {known}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads back."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        runtime = next(name for name, kind in RUNTIMES.items() if isinstance(self.decoder, kind))
        return {"runtime": runtime, **plain, "decoder": self.decoder.to_dict(), "start": list(self.start)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], place: str) -> UnitConfig:
        """Read a configuration from plain data.

        Raises:
            BundleError: a value is missing or invalid.
        """
        runtime, values = values.get("runtime", "native"), {**values}
        values.pop("runtime", None)
        if runtime not in RUNTIMES:
            raise BundleError(
                f"{place}: runtime is {quote(str(runtime))}; expected one of {', '.join(RUNTIMES)}"
            )
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise BundleError(f"{place}: unknown {quote(unknown[0])}; expected some of {', '.join(known)}")
        decoder, start = values.get("decoder"), values.get("start")
        if not isinstance(decoder, dict) or not isinstance(start, list):
            raise BundleError(f"{place}: 'decoder' or 'start' is missing; expected an object and a list")
        try:
            changes = {"decoder": RUNTIMES[runtime].from_dict(decoder), "start": tuple(start)}
            return cls(**{"end": None, **values, **changes})
        except BundleError as error:
            raise BundleError(f"{place}: {error}") from None


def load_unit_model(
    folder: Path | Folder,
    name: str = "units",
    device: str = "cpu",
    dtype: str = "float32",
    context_cache_bytes: int = CONTEXT_CACHE_BYTES,
) -> UnitLanguageModel:
    """Load a model from its folder.

    On a CPU, weights in float32 stay in the file, which is mapped into memory and shared by processes.

    Args:
        dtype: precision of matrix products, see ``decoders.set_precision``.

    Raises:
        BundleError: a file is missing or damaged, or files do not fit together.
        ConfigError: the library of the tokenizer is not installed, or the dtype is not supported here.
    """
    apply_threads()
    place = torch_device(device)
    files = folder if isinstance(folder, Folder) else Folder(folder)
    config = UnitConfig.from_dict(files.read_json(CONFIG_FILE), str(files.path / CONFIG_FILE))
    tokenizer = read_tokenizer(files)
    with files.open(WEIGHTS_FILE) as stream:
        header = read_tensor_header(stream)
        if isinstance(config.decoder, DecoderConfig):
            check_tensors(stream.name, config.decoder, header)
        try:
            tensors = load_file(descriptor_path(stream))
        except (OSError, ValueError, SafetensorError):
            raise BundleError(f"{stream.name}: cannot be read as a safetensors file") from None
    for tensor_name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise BundleError(f"{files.path}: {tensor_name} has values that are not finite")
    tensors = {tensor_name: tensor.float().to(place) for tensor_name, tensor in tensors.items()}
    if isinstance(config.decoder, DecoderConfig):
        set_precision(tensors, dtype)
    return make_model(config, tensors, tokenizer, name, context_cache_bytes, dtype)


def make_model(
    config: UnitConfig,
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    name: str = "units",
    context_cache_bytes: int = CONTEXT_CACHE_BYTES,
    dtype: str = "float32",
) -> UnitLanguageModel:
    """Make a model of its parts.

    Args:
        dtype: precision of a model that transformers runs; that of other tensors is set already.
    """
    if tokenizer.size > config.decoder.vocabulary_size:
        raise BundleError(
            f"the tokenizer has {tokenizer.size:,} units, but the decoder only "
            f"{config.decoder.vocabulary_size:,}; expected the tokenizer that the model was trained with"
        )
    divider = WordDivider(tokenizer, str.upper if config.text == "upper" else str)
    if isinstance(config.decoder, AutoModelConfig):
        decoder: UnitDecoder = load_decoder(config.decoder, tensors, dtype)
    else:
        decoder = Decoder(config.decoder, tensors)
    scorer = DecoderScorer(
        decoder,
        config.start[0],
        config.start[0] if config.end is None else config.end,
        context_cache_bytes,
    )
    return UnitLanguageModel(scorer, divider, name, config.start[1:], scores_end=config.end is not None)
