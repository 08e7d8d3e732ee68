"""Causal language models that transformers runs itself, for families without a runtime of our own.

A model is read in one of three ways, of which import takes the first one that gives the scores of one text
at a time:

tree     Each distinct prefix is computed once. Nodes in preorder are one sequence, in which a mask lets each
         attend to its own path, and positions are depths. A block of nodes is read together with the path to
         its first node, so that memory is bounded by the size of a block and the longest path.
padded   One text after another, in batches of about equal length: for models whose attention knows the order
         of units by other means than positions (ALiBi), and for those with states or convolutions.
alone    The same without padding, in batches of equal length.

Masks are added to the products of attention, 0 or the smallest number: some implementations would add a
boolean mask as 1 and 0. A mask also replaces a model's sliding window, and is therefore cut by depth here.
What transformers makes of such masks depends on the architecture and has changed between versions, so nothing
is taken for granted: each model is checked at import, its windows narrowed until they matter, and once more
when it is loaded by other versions of transformers or torch.

Weights and configuration are used only with the code of the installed transformers, never with code of their
own, and without network.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from rescorer.errors import BundleError, ConfigError, quote
from rescorer.models.contexts import RowCache
from rescorer.models.kernels import linear, multiply_in_int8, to_device
from rescorer.models.precision import check_precision
from rescorer.models.tree_attention import PrefixTree
from rescorer.progress import track
from rescorer.safe_input import Folder
from rescorer.trie import build_trie
from rescorer.units.decoders import MAX_POSITIONS, MAX_SIZE, check_count, score_edges
from rescorer.units.huggingface import CONFIG_FILE, read_config, read_safetensors
from rescorer.units.model import MAX_DIFFERENCE, DecoderScorer
from rescorer.units.tokens import MAX_UNITS

OLDEST = (4, 57)
"""Oldest version of transformers whose masks are understood."""
Reading = Literal["tree", "padded", "alone"]
BLOCK_NODES = {"cpu": 512, "cuda": 4096}
"""Nodes of a tree that are computed at once, besides the path to the first one."""
BATCH_UNITS = {"cpu": 1024, "cuda": 32_768}
"""Units of a batch of texts that are computed at once."""
MAX_PARTS = 1 << 14
"""Largest number of layers, heads or experts, and largest size of one."""
MAX_BUFFERS = 1 << 28
"""Largest number of values that a model computes besides its weights, such as rotations."""
NARROW = 4
"""Window, in units, with which models with windows are checked."""
WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Kinds of layers with windows, and the names of the windows' sizes in configurations."""


@dataclass(frozen=True, slots=True)
class AutoModelConfig:
    """A model that transformers runs.

    Raises:
        BundleError: a value is of the wrong type or out of range.
    """

    model: Mapping[str, Any]
    """The configuration that transformers wrote."""
    vocabulary_size: int
    embedding_size: int
    """Length of a context vector: what the output layer reads."""
    context_length: int = MAX_POSITIONS
    """Largest number of units that it can read, with the start symbol."""
    positions: Literal["table", "none"] = "none"
    """``table``: texts beyond ``context_length`` cannot be read."""
    reading: Reading = "tree"
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of transformers and torch with which the model was checked."""
    runtime: Literal["transformers"] = "transformers"

    def __post_init__(self) -> None:
        limits = {"vocabulary_size": MAX_UNITS, "embedding_size": MAX_SIZE, "context_length": MAX_POSITIONS}
        problems = [
            text for name, most in limits.items() for text in check_count(name, getattr(self, name), most)
        ]
        if self.reading not in get_args(Reading):
            problems.append(f"reading is {self.reading!r}; expected one of {', '.join(get_args(Reading))}")
        if self.runtime != "transformers":
            problems.append(f"runtime is {self.runtime!r}; expected 'transformers'")
        for name in ("model", "versions"):
            if not isinstance(getattr(self, name), Mapping):
                problems.append(f"{name} is not an object")
        if problems:
            raise BundleError(f"config of the model: {problems[0]}")
        check_values(self.model)

    def describe(self) -> str:
        """Say what runs the model, and how."""
        how = {
            "tree": "each distinct prefix of a list is computed once",
            "padded": "this model is scored one hypothesis after another, padded: slower",
            "alone": "this model is scored one hypothesis after another, by equal lengths: slower",
        }
        return f"run by transformers {self.versions.get('transformers', '')}: {how[self.reading]}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads back."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AutoModelConfig:
        """Read a configuration from plain data.

        Raises:
            BundleError: a key is unknown or missing, or a value is invalid.
        """
        try:
            return cls(**values)
        except TypeError as error:
            raise BundleError(f"config of the model: {error}") from None


SETTINGS = {
    "return_dict": True,
    "use_cache": False,
    "output_router_logits": False,
    "use_mamba_kernels": False,  # which other packages have
    "rescale_every": 0,  # RWKV would change its weights in place
}
"""Settings of what a network returns, keeps and uses."""
IGNORED = re.compile(
    r"implementation|^(auto_map|quantization_config|kernel_config|use_kernels|_name_or_path|(torch_)?dtype)$"
)
"""Names of settings that choose code, places or types rather than describe a network."""


def clean_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the settings of a configuration that say how a network is run, at all levels."""
    return {
        name: clean_values(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if not IGNORED.search(name)
    }


def decode_values(values: Any) -> Any:
    """Replace the objects by which transformers writes infinite numbers, at all levels."""
    if isinstance(values, Mapping):
        number = values.get("__float__") if len(values) == 1 else None
        if number in ("Infinity", "-Infinity", "NaN"):
            return float(number)
        return {name: decode_values(value) for name, value in values.items()}
    return [decode_values(value) for value in values] if isinstance(values, list) else values


def check_values(values: Mapping[str, Any]) -> None:
    """Check the numbers of a configuration, before a network is made of it.

    Raises:
        BundleError: a number is too large, or a setting is one of ``IGNORED``.
    """
    for name, value in values.items():
        if IGNORED.search(name):
            raise BundleError(f"config of the model: {quote(name)} is not expected")
        _check_value(name, value)


def _check_value(name: str, value: Any) -> None:
    largest = MAX_PARTS if re.search("layer|head|expert|attention", name) else MAX_POSITIONS
    if isinstance(value, int) and abs(value) > largest and "theta" not in name:
        raise BundleError(f"config of the model: {quote(name)} is {value:,}; expected at most {largest:,}")
    if isinstance(value, Mapping):
        check_values(value)
    if isinstance(value, list):
        for part in value:
            _check_value(name, part)


def is_installed() -> bool:
    """Whether there is a transformers, of whatever version."""
    return find_spec("transformers") is not None


@cache
def import_transformers() -> Any:
    """Import transformers, quiet and without network.

    Raises:
        ConfigError: it is not installed, or too old.
    """
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    cure = "pip install 'rescorer[hf]'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = import_module("transformers")
    except ImportError:
        raise ConfigError(f"this model is run by the package transformers: {cure}") from None
    version = tuple(int(part) for part in re.findall(r"\d+", library.__version__)[:2])
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"transformers {library.__version__} takes masks in another way; expected {oldest} or newer: "
            f"{cure}"
        )
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    return library


def installed_versions() -> dict[str, str]:
    """Versions of what runs models, by name."""
    return {"transformers": import_transformers().__version__, "torch": str(torch.__version__)}


def build_model(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """Make transformers' network of a configuration and tensors, in float32.

    Raises:
        BundleError: transformers does not know the family, or configuration and tensors do not fit together.
        ConfigError: transformers is not installed, or too old.
    """
    library, kind = import_transformers(), str(values.get("model_type"))
    version = library.__version__
    if kind not in library.CONFIG_MAPPING:
        raise BundleError(f"{CONFIG_FILE}: model_type {quote(kind)} is not known to transformers {version}")
    options = {"dtype": torch.float32, "trust_remote_code": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = library.CONFIG_MAPPING[kind].from_dict(decode_values(values))
            for name, value in SETTINGS.items():
                if hasattr(config, name):
                    setattr(config, name, value)
            layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
            if layers > len(tensors):
                raise BundleError(
                    f"{CONFIG_FILE} describes {layers:,} layers; there are {len(tensors):,} tensors"
                )
            with torch.device("meta"):
                empty = library.AutoModelForCausalLM.from_config(config, **options)
            empty.tie_weights()
            _check_sizes(empty, tensors)
            model, found = type(empty).from_pretrained(
                None, config=empty.config, state_dict=dict(tensors), output_loading_info=True, **options
            )
    except BundleError:
        raise
    except Exception as error:  # whatever an architecture's code raises
        reason = str(error).strip().split("\n")[0][:200]
        raise BundleError(f"transformers {version} cannot read this {kind} model: {reason}") from None
    unread = [name for name in found["unexpected_keys"] if not _is_computed(name, tensors)]
    for role, names in (("are missing", found["missing_keys"]), ("are not read", unread)):
        if names:
            first = quote(sorted(names)[0])
            raise BundleError(f"transformers {version}: {len(names)} tensors {role}, such as {first}")
    return model.eval().requires_grad_(False)


def _check_sizes(empty: Any, tensors: Mapping[str, Tensor]) -> None:
    """Compare the size of a network without weights with that of the tensors, before memory is taken."""
    needed = sum(parameter.numel() for parameter in empty.parameters())
    found = sum(tensor.numel() for tensor in tensors.values())
    if needed > found:
        raise BundleError(
            f"{CONFIG_FILE} describes {needed:,} parameters, but the file of weights has only {found:,}"
        )
    if (computed := sum(buffer.numel() for buffer in empty.buffers())) > max(MAX_BUFFERS, found):
        raise BundleError(
            f"{CONFIG_FILE} describes {computed:,} computed values; expected at most {MAX_BUFFERS:,}"
        )


def _is_computed(name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is one that older versions stored though they computed it: rotations, causal masks."""
    tensor = tensors.get(name)
    return name.endswith("inv_freq") or (tensor is not None and tensor.dim() in (0, 4))


class _Linear(nn.Linear):
    """A layer that multiplies by the fastest kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.dtype == torch.float64 else linear(x, self.weight, self.bias)


class _Given(nn.Module):
    """Stands for the part of a network below the output layer, whose result is given."""

    def __init__(self, body: nn.Module, vectors: Tensor) -> None:
        super().__init__()
        self.__dict__["body"] = body  # not a module of this one
        self.result = _Result((vectors,))

    def forward(self, *arguments: Any, **options: Any) -> _Result:
        return self.result

    def __getattr__(self, name: str) -> Any:
        """Settings are those of the part; a module of it, which some networks call instead, is this one."""
        found = getattr(self.__dict__["body"], name)
        return self if isinstance(found, nn.Module) else found


class _Result(tuple[Tensor]):
    """Context vectors as a network returns them; everything else that it may return is absent."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


def find_body(model: Any) -> tuple[str, Any]:
    """The part of a network below its output layer, and its name."""
    names = (model.base_model_prefix, "model", "transformer", "backbone")
    name = next((name for name in names if hasattr(model, name)), None)
    if name is None:
        raise BundleError(f"{type(model).__name__}: the network has no part below its output layer")
    return name, getattr(model, name)


class AutoDecoder:
    """A network of transformers that reads trees of units, or one sequence at a time.

    Args:
        model: a network of transformers with an output layer, in float32; it is changed.
    """

    def __init__(self, config: AutoModelConfig, model: Any) -> None:
        self.config, self.model = config, model
        self.output_size = config.embedding_size  # D, length of a context vector
        self._body_name, self._body = find_body(model)
        self._accepted = set(inspect.signature(self._body.forward).parameters)
        self._linear = [module for module in model.modules() if type(module) in (nn.Linear, _Linear)]
        for module in self._linear:
            module.__class__ = _Linear

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def n_positions(self) -> int:
        """Number of units of a text that it can read."""
        return self.config.context_length

    def set_precision(self, dtype: str) -> None:
        """Convert the matrices of linear layers; everything else stays in float32.

        Raises:
            ConfigError: the dtype is unknown, or not supported by this model or device.
        """
        check_precision(dtype, str(self.device))
        if dtype == "int8":
            multiply_in_int8(module.weight for module in self._linear)
        if dtype == "bfloat16":
            for module in self._linear:
                module.weight = nn.Parameter(module.weight.bfloat16(), requires_grad=False)
        try:
            with torch.inference_mode():
                self._vectors(torch.zeros(1, 1, dtype=torch.int64, device=self.device))
        except RuntimeError:
            raise ConfigError(f"dtype {dtype} is not supported by this model; use float32") from None

    @torch.inference_mode()
    def read_tree(
        self, tree: PrefixTree, cache: RowCache, *, leaves: bool = True, root: bool = True
    ) -> tuple[Tensor, np.ndarray]:
        """See ``tree_attention.tree_vectors``; nothing is cached.

        Nodes beyond the length that the network can read have zeros; their scores are not used.
        """
        kept = np.ones(len(tree.parent), dtype=bool) if leaves else tree.last > tree.first
        kept &= tree.position < self.config.context_length
        kept[0] &= root
        vectors = torch.zeros(len(kept), self.output_size, device=self.device)
        read = self._read_blocks if self.config.reading == "tree" else self._read_texts
        with track("reading a batch", "units", int(kept.sum())) as task:
            is_read = np.zeros(len(kept), dtype=bool)
            for nodes, found in read(tree, kept):
                vectors[to_device(tree.first[nodes], self.device)] = found.float()
                task.advance(len(np.unique(nodes[~is_read[nodes]])))
                is_read[nodes] = True
        return vectors, tree.first

    def _read_blocks(self, tree: PrefixTree, kept: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Nodes in blocks of preorder, and their vectors."""
        rest = np.argsort(tree.first)
        rest = rest[kept[rest]]
        while len(rest):
            path = find_path(tree, rest[0])[:-1]
            # some networks have masks and rotations for as many units as their longest text has
            size = min(BLOCK_NODES[self.device.type], max(1, self.config.context_length - len(path)))
            block, rest = rest[:size], rest[size:]
            nodes = np.concatenate([path, block])
            found = self._vectors(
                to_device(tree.word[nodes][None], self.device),
                attention_mask=self._masks(tree, nodes),
                position_ids=to_device(tree.position[nodes][None], self.device),
            )
            yield block, found[0, len(path) :]

    def _read_texts(self, tree: PrefixTree, kept: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Nodes of whole texts in batches of about or exactly equal length, and their vectors."""
        for leaves in self._batches(tree, kept):
            paths = [find_path(tree, leaf) for leaf in leaves]
            lengths = tree.position[leaves] + 1
            nodes = np.stack([np.pad(path, (0, lengths[-1] - len(path)), mode="edge") for path in paths])
            is_read = np.arange(lengths[-1]) < lengths[:, None]
            options = {}
            if self.config.reading == "padded":
                options["attention_mask"] = to_device(is_read.astype(np.int64), self.device)
            found = self._vectors(to_device(tree.word[nodes], self.device), **options)
            yield nodes[is_read], found[to_device(is_read, self.device)]

    def _batches(self, tree: PrefixTree, kept: np.ndarray) -> Iterator[np.ndarray]:
        """The last nodes of texts, the shortest texts first."""
        is_last = kept.copy()
        is_last[tree.parent[1:][kept[1:]]] = False
        leaves = np.flatnonzero(is_last)
        leaves = leaves[np.argsort(tree.position[leaves], kind="stable")]
        lengths = tree.position[leaves] + 1
        start = 0
        for end in range(1, len(leaves) + 1):
            is_full = end == len(leaves) or lengths[end] * (end + 1 - start) > BATCH_UNITS[self.device.type]
            if is_full or (self.config.reading == "alone" and lengths[end] > lengths[start]):
                yield leaves[start:end]
                start = end

    def _vectors(self, units: Tensor, **options: Any) -> Tensor:
        """Context vectors of sequences, (B, T) → (B, T, D).

        Raises:
            BundleError: a tree cannot be read, because the network takes no mask or no positions.
        """
        if "position_ids" in options and (lacking := sorted(set(options) - self._accepted)):
            raise BundleError(f"the network does not take {lacking[0]}")
        given = {name: value for name, value in options.items() if name in self._accepted}
        vectors: Tensor = self._body(input_ids=units, **given)[0]
        return vectors

    @cached_property
    def _spans(self) -> tuple[str, ...]:
        """Kinds of the layers, of which each needs a mask; one kind if all layers take the same mask."""
        config = self.model.config.get_text_config()
        kinds = sorted(set(getattr(config, "layer_types", None) or ()))
        if kinds in ([], ["full_attention"]):
            window = getattr(config, "sliding_window", None)
            has_window = window and not kinds and getattr(config, "use_sliding_window", True)
            return ("sliding_attention",) if has_window else ("full_attention",)
        if unknown := set(kinds) - {"full_attention", *WINDOWS}:
            raise BundleError(f"its layers of the kind {min(unknown)} read no masks")
        return tuple(kinds)

    def _masks(self, tree: PrefixTree, nodes: np.ndarray) -> Tensor | dict[str, Tensor]:
        """Numbers to add to products of attention, (1, 1, n, n); by kind of layer if these differ."""
        config = self.model.config.get_text_config()
        first, last, position = (
            to_device(values[nodes], self.device) for values in (tree.first, tree.last, tree.position)
        )
        is_above = (first <= first.unsqueeze(1)) & (first.unsqueeze(1) <= last)
        masks = {}
        for kind in self._spans:
            seen = is_above
            if kind == "sliding_attention":
                seen = seen & (position.unsqueeze(1) - position < config.sliding_window)
            if kind == "chunked_attention":
                chunk = position // config.attention_chunk_size
                seen = seen & (chunk.unsqueeze(1) == chunk)
            mask = torch.zeros(seen.shape, device=self.device)
            masks[kind] = mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)[None, None]
        has_kinds = bool(getattr(config, "layer_types", None)) and self._spans != ("full_attention",)
        return masks if has_kinds else masks[self._spans[0]]

    @torch.inference_mode()
    def scores(self, vectors: Tensor) -> Tensor:
        """Scores of all units, (n, D) → (n, V), as the network's own code computes them from vectors."""
        head = object.__new__(type(self.model))  # the same network, except for what is below the output layer
        head.__dict__ |= self.model.__dict__
        head._modules = {**self.model._modules, self._body_name: _Given(self._body, vectors[None])}
        units = torch.zeros(1, len(vectors), dtype=torch.int64, device=vectors.device)
        scores: Tensor = head(input_ids=units).logits[0]
        return scores.float()

    def log_probs(
        self, vectors: Tensor, rows: Tensor, units: Tensor, together: Tensor | None = None
    ) -> Tensor:
        """ln P(units[e] | vectors[rows[e]]) of every edge e, (E,) float64; see ``score_edges``."""
        return score_edges(self.scores, self.config.vocabulary_size, vectors, rows, units, together)

    @cached_property
    def _exact(self) -> Any:
        """A copy of the network in float64."""
        model = copy.deepcopy(self.model).double()
        if hasattr(model, "set_experts_implementation"):  # other products of experts are for float32 only
            model.set_experts_implementation("eager")
        return model

    @torch.inference_mode()
    def sequence_log_probs(self, units: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """ln P of each unit after the first given those before it, (T - 1,): the slow twin of reading trees.

        The network reads the sequence at once, as its own code does it: without masks, positions, or a
        separate output layer.
        """
        ids = torch.tensor([units], dtype=torch.int64, device=self.device)
        model, usual = self._exact if dtype == torch.float64 else self.model, torch.get_default_dtype()
        torch.set_default_dtype(dtype)  # in which some networks make their smallest number
        try:
            scores: Tensor = model(input_ids=ids[:, :-1]).logits[0].to(dtype)
        finally:
            torch.set_default_dtype(usual)
        return scores.log_softmax(dim=1).gather(1, ids[0, 1:, None]).squeeze(1)


def find_path(tree: PrefixTree, node: int) -> np.ndarray:
    """The path to a node, from the root, or without a start from the root's child; both ends are included."""
    path = np.empty(tree.position[node] + 1, dtype=np.int64)
    for place in range(len(path) - 1, -1, -1):
        path[place] = node
        node = tree.parent[node]
    return path


CHECKED_TEXTS, CHECKED_UNITS = 6, 24  # number and length of random texts by which readings are checked


def measure_difference(decoder: AutoDecoder, dtype: torch.dtype = torch.float64) -> float:
    """Largest difference per unit, in nats, between reading random texts at once and one at a time."""
    config, random = decoder.config, np.random.default_rng(1)
    length = max(2, min(CHECKED_UNITS, config.context_length - 1))
    words = random.integers(config.vocabulary_size, size=(CHECKED_TEXTS, length)).astype(str).tolist()
    texts: list[tuple[str, ...]] = []
    for own, other in zip(words, reversed(words), strict=True):  # which share prefixes of different lengths
        cut = int(random.integers(1, length))
        texts += [tuple(own), tuple(own[:cut]), (*own[:cut], *other[cut:]), (*own[: cut // 2], *other[cut:])]
    start, end = 0, 1
    trie = build_trie(texts)
    found = DecoderScorer(decoder, start, end, 0).score(trie).sum_paths(trie)
    largest = 0.0
    for text, log_prob in zip(texts, found.tolist(), strict=True):
        expected = float(decoder.sequence_log_probs([start, *map(int, text), end], dtype).double().sum())
        difference = abs(expected - log_prob) / (len(text) + 1)
        largest = max(largest, difference) if difference == difference else float("inf")
    return largest


def read_automodel(folder: Path) -> tuple[AutoModelConfig, dict[str, Tensor]]:
    """Read a folder of a family that transformers runs, and choose how it is read.

    The check needs memory for the model in float32 and float64.

    Raises:
        BundleError: a file is missing or damaged, transformers does not know the family, or no reading gives
            the scores of one text at a time.
        ConfigError: transformers is too old.
    """
    files = Folder(folder)
    values = clean_values(read_config(files))
    check_values(values)
    tensors = {name: tensor.float() for name, tensor in read_safetensors(files).items()}
    model = build_model(values, tensors)
    config = _describe(values, model)
    problems = []
    for reading in get_args(Reading):
        config = replace(config, reading=reading)
        if not (problem := _find_problem(config, model, tensors)):
            return config, tensors
        problems.append(f"{reading}: {problem}")
    raise BundleError(
        f"{folder}: {values['model_type']}: no way of reading many texts gives the scores of one at a time "
        f"within {MAX_DIFFERENCE:g} nats; {'; '.join(problems)}: this model cannot be used"
    )


@torch.inference_mode()
def _describe(values: Mapping[str, Any], model: Any) -> AutoModelConfig:
    """Describe a network, by running it."""
    unit = torch.zeros(1, 1, dtype=torch.int64)
    try:
        vectors = find_body(model)[1](input_ids=unit)[0]
        scores = model(input_ids=unit).logits
    except Exception as error:  # whatever an architecture's code raises
        reason = str(error).strip().split("\n")[0][:200]
        raise BundleError(f"{values['model_type']}: the network reads no text by itself: {reason}") from None
    config = AutoModelConfig(values, scores.shape[-1], vectors.shape[-1], versions=installed_versions())
    limit = _find_limit(model)
    return replace(config, context_length=limit, positions="table") if limit else config


def _find_limit(model: Any) -> int | None:
    """Number of units beyond which a network reads nothing, or reads differently; None if there is none."""
    config = model.config.get_text_config()
    for name in ("max_position_embeddings", "max_seq_len", "n_positions"):
        if isinstance(limit := getattr(config, name, None), int) and limit > 0:
            break
    else:
        return None
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for part in (scaling, *(part for part in scaling.values() if isinstance(part, Mapping))):
        if (part.get("rope_type") or part.get("type")) in ("dynamic", "longrope", "su"):
            original = getattr(config, "original_max_position_embeddings", None)
            return part.get("original_max_position_embeddings") or original or limit
    body, unit = find_body(model)[1], torch.zeros(1, 1, dtype=torch.int64)
    if "position_ids" not in inspect.signature(body.forward).parameters:
        return limit
    try:
        body(input_ids=unit, position_ids=unit + limit)
    except Exception:  # the position is outside a table
        return limit
    return None


def _find_problem(config: AutoModelConfig, model: Any, tensors: Mapping[str, Tensor]) -> str:
    """Say why a network cannot be read in the way of its configuration; empty if it can."""
    try:
        difference = measure_difference(AutoDecoder(config, model))
        narrowed = narrow_windows(config.model, model.config)
        if difference <= MAX_DIFFERENCE and narrowed and config.reading == "tree":
            narrow = replace(config, model=narrowed)
            difference = measure_difference(AutoDecoder(narrow, build_model(narrowed, tensors)))
    except Exception as error:  # whatever an architecture's code raises
        return str(error).strip().split("\n")[0][:200] or type(error).__name__
    return "" if difference <= MAX_DIFFERENCE else f"differs by {difference:.2g} nats per unit"


def narrow_windows(values: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """The same configuration with windows of ``NARROW`` units; empty if it has none that are wider."""
    text = config.get_text_config()
    changes = {name: NARROW for name in WINDOWS.values() if (getattr(text, name, None) or 0) > NARROW}
    if not changes or text is config:
        return {**values, **changes} if changes else {}
    return {**values, "text_config": {**values.get("text_config", {}), **changes}}


def load_decoder(
    config: AutoModelConfig, tensors: Mapping[str, Tensor], dtype: str = "float32"
) -> AutoDecoder:
    """Make a decoder of a configuration and tensors, on the device of the tensors.

    Raises:
        BundleError: they do not fit together, or the installed transformers reads the model otherwise than
            the one that imported it.
        ConfigError: transformers is not installed, or too old; or the dtype is not supported.
    """
    device = next(iter(tensors.values())).device
    decoder = AutoDecoder(config, build_model(config.model, tensors).to(device))
    if config.versions != (versions := installed_versions()):
        difference = measure_difference(decoder, torch.float32)
        if not difference <= MAX_DIFFERENCE:
            now, then = (
                ", ".join(f"{name} {version}" for name, version in pair.items())
                for pair in (versions, config.versions)
            )
            raise BundleError(
                f"with {now}, scores differ by {difference:.2g} nats per unit from those of one text at a "
                f"time, unlike with {then}: install these, or import the model again"
            )
    decoder.set_precision(dtype)
    return decoder
