"""Models in pieces of words as folders of a bundle.

A folder has ``config.json`` (the decoder, start and end, the form of texts, the result of the checks at
import, the model's origin), ``model.safetensors`` and a tokenizer. The configuration of a recurrent network
has its ``kind``, and that of a model that transformers runs its ``runtime``; that of a decoder has neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rescorer.errors import BundleError, quote
from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.models.contexts import BOOKKEEPING_BYTES
from rescorer.models.kernels import check_finite, torch_device
from rescorer.models.network_files import CONFIG_FILE, WEIGHTS_FILE
from rescorer.runtime import apply_threads
from rescorer.safe_input import Folder, descriptor_path, read_tensor_header
from rescorer.units.automodel import AutoModelConfig, load_decoder
from rescorer.units.decoders import Decoder, DecoderConfig, check_tensors, set_precision
from rescorer.units.model import DecoderScorer, TreeDecoder, UnitLanguageModel
from rescorer.units.prompts import Prompt, read_before
from rescorer.units.recurrent import RecurrentConfig, RecurrentDecoder
from rescorer.units.tokens import Tokenizer, WordDivider, change_of, read_divider

TextForm = Literal["canonical", "upper", "surface"]
"""How texts are written before they are divided into units: as the normaliser writes their words, these in
upper case, or as the recogniser wrote them."""


@dataclass(frozen=True, slots=True)
class UnitConfig:
    """A model in pieces of words, without its tensors and tokenizer.

    Raises:
        BundleError: a value is invalid.
    """

    decoder: DecoderConfig | RecurrentConfig | AutoModelConfig
    start: tuple[int, ...]
    """Units before every text. Without any, the first unit of a text is not scored."""
    end: int | None
    """Unit that ends a sentence; None: ends are not scored."""
    text: TextForm = "canonical"
    whole: bool = False
    """Whether texts are divided as a whole, because words by themselves are divided otherwise."""
    units: tuple[str, ...] = ()
    """Names of the units in the order of the decoder's numbers, if the tokenizer numbers them otherwise."""
    prompt: Prompt | None = None
    """What is read before a sentence; None: only its context."""
    check: Mapping[str, Any] | None = None
    """Measurements at import, such as the perplexity per word."""
    source: Mapping[str, Any] | None = None
    """Origin of the model, and its licence."""

    def __post_init__(self) -> None:
        size = self.decoder.vocabulary_size
        for name, units in (("start", self.start), ("end", () if self.end is None else (self.end,))):
            if not all(isinstance(unit, int) and 0 <= unit < size for unit in units):
                raise BundleError(f"config of the model: {name} is {units}; expected units below {size:,}")
        if not self.start and isinstance(self.decoder, RecurrentConfig):
            raise BundleError("config of the model: start is empty; a recurrent network reads a unit first")
        for name in ("check", "source"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise BundleError(f"config of the model: {name} is not an object")
        if not isinstance(self.whole, bool):
            raise BundleError(f"config of the model: whole is {self.whole!r}; expected true or false")
        if self.units and len(self.units) != size:
            raise BundleError(f"config of the model: {len(self.units):,} units; expected {size:,}")
        if self.text not in get_args(TextForm):
            known = ", ".join(get_args(TextForm))
            raise BundleError(
                f"config of the model: text is {quote(str(self.text))}; expected one of {known}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads back."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain |= {"decoder": self.decoder.to_dict(), "start": list(self.start), "units": list(self.units)}
        plain["prompt"] = self.prompt and self.prompt.to_dict()
        optional = {"units", "prompt"}
        return {name: value for name, value in plain.items() if value or name not in optional}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], place: str) -> UnitConfig:
        """Read a configuration from plain data.

        Raises:
            BundleError: a value is missing or invalid.
        """
        known = [field.name for field in fields(cls)]
        if "model_type" in values and "decoder" not in values:
            raise BundleError(
                f"{place} is that of a model of the library transformers; import it first by "
                "`rescorer-train import hf`"
            )
        if unknown := sorted(set(values) - set(known)):
            raise BundleError(f"{place}: unknown {quote(unknown[0])}; expected some of {', '.join(known)}")
        decoder, start, units = values.get("decoder"), values.get("start"), values.get("units", [])
        if not isinstance(decoder, dict) or not isinstance(start, list):
            raise BundleError(f"{place}: 'decoder' or 'start' is missing; expected an object and a list")
        if not isinstance(units, list) or not all(isinstance(unit, str) for unit in units):
            raise BundleError(f"{place}: 'units' is invalid; expected a list of names")
        try:
            kinds: Mapping[str, Any] = {"kind": RecurrentConfig, "runtime": AutoModelConfig}
            kind = next((kinds[key] for key in kinds if key in decoder), DecoderConfig)
            changes: dict[str, Any] = {"decoder": kind.from_dict(decoder), "start": tuple(start)}
            changes["units"] = tuple(units)
            if values.get("prompt") is not None:
                changes["prompt"] = Prompt.from_dict(values["prompt"])
            return cls(**{"end": None, **values, **changes})
        except BundleError as error:
            raise BundleError(f"{place}: {error}") from None


def read_unit_config(files: Folder) -> UnitConfig:
    """Read the configuration of a model from its folder; raises BundleError if it is missing or invalid."""
    return UnitConfig.from_dict(files.read_json(CONFIG_FILE), str(files.path / CONFIG_FILE))


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
    config = read_unit_config(files)
    divider = read_divider(files, config.text, config.units, whole=config.whole)
    with files.open(WEIGHTS_FILE) as stream:
        header = read_tensor_header(stream)
        if not isinstance(config.decoder, AutoModelConfig):  # which are compared when the network is made
            check_tensors(stream.name, config.decoder, header)
        try:
            tensors = load_file(descriptor_path(stream))
        except (OSError, ValueError, SafetensorError):
            raise BundleError(f"{stream.name}: cannot be read as a safetensors file") from None
    check_finite(str(files.path), tensors)
    tensors = {tensor_name: tensor.float().to(place) for tensor_name, tensor in tensors.items()}
    if not isinstance(config.decoder, AutoModelConfig):
        set_precision(tensors, dtype)
    return _assemble(config, tensors, divider, name, context_cache_bytes, dtype)


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
        dtype: precision of a model that transformers runs; other tensors have theirs.

    Raises:
        BundleError: the tokenizer does not fit the decoder.
    """
    divider = WordDivider(tokenizer, change_of(config.text), whole=config.whole)
    return _assemble(config, tensors, divider, name, context_cache_bytes, dtype)


def _assemble(
    config: UnitConfig,
    tensors: Mapping[str, Tensor],
    divider: WordDivider,
    name: str,
    context_cache_bytes: int,
    dtype: str,
) -> UnitLanguageModel:
    tokenizer = divider.tokenizer
    if tokenizer.size > config.decoder.vocabulary_size:
        raise BundleError(
            f"the tokenizer has {tokenizer.size:,} units, but the decoder only "
            f"{config.decoder.vocabulary_size:,}; expected the tokenizer that the model was trained with"
        )
    if isinstance(config.decoder, RecurrentConfig):
        decoder: TreeDecoder | RecurrentDecoder = RecurrentDecoder(config.decoder, tensors)
    elif isinstance(config.decoder, AutoModelConfig):
        decoder = load_decoder(config.decoder, tensors, dtype)
    else:
        decoder = Decoder(config.decoder, tensors)
    if config.prompt is not None and isinstance(decoder, Decoder) and context_cache_bytes:
        context_cache_bytes = max(context_cache_bytes, _size_cache(decoder, divider, config.prompt))
    scorer = DecoderScorer(decoder, next(iter(config.start), None), config.end, context_cache_bytes)
    return UnitLanguageModel(scorer, divider, name, config.start[1:], config.prompt)


CONVERSATIONS = 4
"""Number of conversations for which the cache of a decoder that reads them has room."""


def _size_cache(decoder: Decoder, divider: WordDivider, prompt: Prompt) -> int:
    """Size in bytes of the cache that a decoder needs for ``CONVERSATIONS``."""
    row_values = decoder.output_size + 2 * decoder.config.layers * decoder.key_size
    n_rows = len(read_before(divider, (), prompt).units) + prompt.max_units
    return CONVERSATIONS * n_rows * (4 * row_values + BOOKKEEPING_BYTES)
