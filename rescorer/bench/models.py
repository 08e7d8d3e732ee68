"""Models for the benchmark: random ones of a given shape, plain baselines, and the machine's matrix products.

Random models take as much work as trained ones of the same sizes. The plain PyTorch scorer is what a user
might write without this package: ``nn.Embedding``, ``nn.LSTM`` or transformer layers, ``nn.Linear`` over the
whole vocabulary, ``log_softmax``, and padded batches of 64 hypotheses in the order of the input.
"""

from __future__ import annotations

import math
import os
import resource
import shlex
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.errors import ConfigError, quote
from rescorer.models import ngrams
from rescorer.models.bundle import Bundle, ModelKind
from rescorer.models.kernels import linear
from rescorer.models.language_model import LanguageModel
from rescorer.models.network_files import (
    END,
    SPECIAL_TOKENS,
    START,
    UNKNOWN,
    WINDOWED_KINDS,
    NetworkConfig,
    Vocabulary,
    feedforward_size,
)
from rescorer.models.neural import NeuralLanguageModel, NeuralModel
from rescorer.models.ngram_files import (
    KenlmNgram,
    is_table_file,
    load_kenlm,
    place_ngram,
    read_ngram,
    read_words,
)
from rescorer.models.ngrams import TableNgram, align_vocabularies
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer
from rescorer.safe_input import Folder
from rescorer.scoring.batch import plan_batches
from rescorer.text import Normaliser
from rescorer.trie import HypothesisTrie, Words, build_trie
from rescorer.types import NBestList, Weights

Product = tuple[int, int, int]
"""The sizes (n, k, m) of the matrix product (n, k) × (k, m)."""

GATE_COUNTS = {"lstm": 4, "gru": 3, "elman": 1}
"""Number of gates of each kind of recurrent layer."""


def flops(products: Iterable[Product]) -> int:
    """The number of floating-point operations of matrix products."""
    return sum(2 * n * k * m for n, k, m in products)


def measure_products(
    products: Iterable[Product],
    clock: Callable[[], float] = time.perf_counter,
    min_seconds: float = 0.003,
) -> float:
    """Measure how many seconds ``torch.mm`` takes for all products together.

    A fused kernel, such as that of torch's LSTM, may be faster.

    Args:
        min_seconds: smallest time to measure products of the same sizes, which are repeated for so long.
    """
    total = 0.0
    for (n, k, m), count in Counter(products).items():
        a, b, out = torch.randn(n, k), torch.randn(k, m), torch.empty(n, m)
        total += count * measure_call(partial(torch.mm, a, b, out=out), clock, min_seconds)
    return total


def measure_call(call: Callable[[], object], clock: Callable[[], float], min_seconds: float) -> float:
    """Measure the mean seconds of ``call``, which is called once untimed, then repeated for
    ``min_seconds``."""
    call()
    count, start = 0, clock()
    while (seconds := clock() - start) < min_seconds:
        call()
        count += 1
    return seconds / count


def median_product(products: Iterable[Product]) -> Product:
    """Find the product of median size: it and all smaller ones together make up half of all operations."""
    by_size = sorted(products, key=lambda product: flops([product]))
    half, total = flops(by_size) / 2, 0
    for product in by_size:
        total += flops([product])
        if total >= half:
            break
    return product


def measure_gemm_rate(
    products: Iterable[Product],
    clock: Callable[[], float] = time.perf_counter,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> float:
    """Measure the operations per second of the median product, with the faster of ``torch.mm`` and
    ``linear``."""
    n, k, m = median_product(products)
    x, weight, out = (torch.randn(shape, device=device).to(dtype) for shape in ((n, k), (m, k), (n, m)))
    synchronise = torch.cuda.synchronize if x.is_cuda else lambda: None
    with torch.inference_mode():
        kernels = (lambda: torch.mm(x, weight.t(), out=out), lambda: linear(x, weight))
        seconds = [measure_call(lambda run=run: (run(), synchronise()), clock, 0.2) for run in kernels]  # type: ignore[misc]
    return flops([(n, k, m)]) / min(seconds)


BATCH_SENTENCES = 64


class PlainLstm(nn.Module):
    """One LSTM layer and a full softmax."""

    def __init__(self, vocabulary_size: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, size)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.decoder = nn.Linear(size, vocabulary_size)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(words))
        return self.decoder(hidden)  # (B, T, V)


class PlainTransformer(nn.Module):
    """Transformer layers like those of ``TransformerNetwork``, and a full softmax."""

    def __init__(self, vocabulary_size: int, size: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, size)
        self.layers = nn.ModuleList(PlainTransformerLayer(size, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(size)
        self.decoder = nn.Linear(size, vocabulary_size)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.decoder(self.norm(x))  # (B, T, V)


class PlainTransformerLayer(nn.Module):
    """A layer: causal attention with rotary positions, then SwiGLU, and normalisation before each."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        units = feedforward_size(size)
        self.heads, self.head_size = heads, size // heads
        self.attention_norm, self.feedforward_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.projection = nn.Linear(size, 3 * size, bias=False)
        self.attention_output = nn.Linear(size, size, bias=False)
        self.gate, self.up = nn.Linear(size, units, bias=False), nn.Linear(size, units, bias=False)
        self.down = nn.Linear(units, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.projection(self.attention_norm(x)).unflatten(2, (3, self.heads, self.head_size))
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)  # (B, heads, T, d) each
        attended = functional.scaled_dot_product_attention(
            self._rotate(queries), self._rotate(keys), values, is_causal=True
        )
        x = x + self.attention_output(attended.transpose(1, 2).flatten(2))
        normalised = self.feedforward_norm(x)
        return x + self.down(functional.silu(self.gate(normalised)) * self.up(normalised))

    def _rotate(self, x: Tensor) -> Tensor:
        frequencies = 10_000.0 ** (-torch.arange(0, self.head_size, 2, device=x.device) / self.head_size)
        angles = torch.arange(x.shape[2], device=x.device).unsqueeze(1) * frequencies
        cos, sin = angles.cos(), angles.sin()
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def make_plain_model(config: NetworkConfig) -> PlainLstm | PlainTransformer:
    """Make the plain network to compare with.

    For a transformer, it is a transformer of the same shape; for all other networks, an LSTM of the same
    hidden size.
    """
    if config.kind == "transformer":
        return PlainTransformer(config.vocabulary_size, config.hidden_size, config.layers, config.heads)
    return PlainLstm(config.vocabulary_size, config.hidden_size)


@torch.inference_mode()
def score_padded_batch(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Compute ln P of each sentence of a padded batch, (B,).

    Args:
        inputs, targets: (B, T) word ids; targets are -1 where padded.
    """
    log_probs = model(inputs).log_softmax(dim=2)
    target_log_probs = log_probs.gather(2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (target_log_probs * (targets >= 0)).sum(dim=1)


def measure_plain_model(
    model: nn.Module,
    sentences: Sequence[Words],
    vocabulary: Vocabulary,
    device: str | torch.device = "cpu",
    seconds: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measure the words per second of the plain scorer, counting ``</s>`` as a word, but not padding.

    Args:
        seconds: time after which no further batch is started.
    """
    model = model.to(device).eval()
    words, start = 0, clock()
    for first in range(0, len(sentences), BATCH_SENTENCES):
        batch = sentences[first : first + BATCH_SENTENCES]
        inputs = torch.full((len(batch), max(map(len, batch)) + 1), vocabulary.end)
        targets = torch.full_like(inputs, -1)
        for row, sentence in enumerate(batch):
            ids = vocabulary.encode(sentence).tolist()
            inputs[row, : len(ids) + 1] = torch.tensor([vocabulary.start, *ids])
            targets[row, : len(ids) + 1] = torch.tensor([*ids, vocabulary.end])
        score_padded_batch(model, inputs.to(device), targets.to(device)).tolist()
        words += sum(len(sentence) + 1 for sentence in batch)
        if clock() - start >= seconds:
            break
    return words / (clock() - start)


TEXTS = "{texts}"
"""Stands in the command of a peer for the file of sentences."""
MAX_PEER_MESSAGE = 500  # bytes of a failing peer's standard error that are shown


def measure_peer_command(
    command: str, sentences: Sequence[Words], folder: Path, runs: int = 1, processor_time: bool = False
) -> float:
    """Measure the words per second of another program that scores the sentences, counting ``</s>`` as a word.

    The time is that of the whole program, including its start. Its output is discarded.

    Args:
        command: a command without a shell's syntax. It reads the sentences, one per line, from standard
            input, or from the file whose path replaces ``{texts}``.
        folder: where that file is written.
        runs: number of runs, of which the median counts.
        processor_time: measure the processor time of the program instead of elapsed time.

    Raises:
        ConfigError: the command cannot be parsed or started, or fails.
    """
    texts, messages = folder / "texts.txt", folder / "messages.txt"
    texts.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences), encoding="utf-8")
    try:
        words = [word.replace(TEXTS, str(texts)) for word in shlex.split(command)]
    except ValueError as error:
        raise ConfigError(f"--peer-command {quote(command)}: {error}") from None
    if not words:
        raise ConfigError("--peer-command is empty; expected a program and its arguments")
    times = []
    for _ in range(runs):
        start = _child_seconds() if processor_time else time.perf_counter()
        try:
            with texts.open("rb") as stdin, messages.open("wb") as stderr:
                code = subprocess.run(
                    words, stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr, check=False
                ).returncode
        except OSError as error:
            raise ConfigError(f"--peer-command: cannot start {quote(words[0])}: {error.strerror}") from None
        times.append((_child_seconds() if processor_time else time.perf_counter()) - start)
        if code:
            end = messages.read_bytes()[-MAX_PEER_MESSAGE:].decode(errors="replace").strip()
            raise ConfigError(f"--peer-command ended with exit code {code}; its last messages: {quote(end)}")
    return sum(len(sentence) + 1 for sentence in sentences) / max(statistics.median(times), 1e-9)


def _child_seconds() -> float:
    """Processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


ORDER = 4
"""Order of the n-gram."""
CONTEXT_WORDS, ATTENTION_WORDS, HEADS = 4, 128, 4
"""Number of previous words that feed-forward and log-bilinear networks read; number of words to which each
layer of a transformer attends; and number of a transformer's attention heads."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes of a random network."""

    network: str = "lstm"
    hidden: int = 200
    """Size of embeddings and hidden states."""
    classes: int = 0
    """Number of classes of the class-factored softmax; 0: the square root of ``vocabulary``."""
    vocabulary: int = 10_000
    """Number of words of the network, including ``<s>``, ``</s>`` and ``<unk>``."""
    output: str = "classes"
    layers: int = 1

    def __post_init__(self) -> None:
        if self.vocabulary < len(SPECIAL_TOKENS) + 2:
            raise ConfigError(f"vocabulary is {self.vocabulary}; expected at least {len(SPECIAL_TOKENS) + 2}")
        if not 0 <= self.classes < self.vocabulary:
            raise ConfigError(
                f"classes is {self.classes}; expected fewer classes than the vocabulary has words"
            )

    def config(self) -> NetworkConfig:
        """The configuration of the network, with classes of equal size."""
        classes = self.classes or math.isqrt(self.vocabulary)
        n_words = self.vocabulary - 1
        windows = dict.fromkeys(WINDOWED_KINDS, CONTEXT_WORDS) | {"transformer": ATTENTION_WORDS}
        class_sizes = tuple(len(part) for part in np.array_split(np.arange(n_words), classes))
        return NetworkConfig(
            self.vocabulary,
            class_sizes if self.output == "classes" else (),
            self.network,
            embedding_size=self.hidden,
            hidden_size=self.hidden,
            layers=self.layers,
            output=self.output,
            tied=self.output != "tree",
            window=windows.get(self.network, 0),
            activation="linear" if self.network == "lbl" else "tanh",
            heads=HEADS if self.network == "transformer" else 1,
        )


def build_rescorer(
    spec: ModelSpec,
    lists: Sequence[NBestList],
    folder: Path,
    device: str = "cpu",
    dtype: str = "float32",
    batch_words: int = MAX_BATCH_WORDS,
) -> Rescorer:
    """Build a rescorer whose models know the words of the lists. The same arguments give the same models in
    every process.

    Args:
        folder: where the n-gram's file is written.

    Raises:
        ConfigError: there are no lists.
    """
    if not lists:
        raise ConfigError("no lists to benchmark")
    normaliser = Normaliser()
    sentences = [normaliser.normalise(hypothesis.text) for nbest in lists for hypothesis in nbest.hypotheses]
    arpa = folder / f"model-{os.getpid()}.arpa"
    arpa.write_text(estimate_arpa(sentences, ORDER), encoding="utf-8")
    torch.manual_seed(1)
    network = NeuralLanguageModel(
        NeuralModel(spec.config()),
        build_vocabulary(spec, sentences),
        device=device,
        dtype=dtype,
        context_cache_bytes=0,
    )
    ngram = read_ngram(arpa)
    place_ngram(ngram, device)
    models: dict[str, LanguageModel] = {"ngram": ngram, "neural": network}
    align_vocabularies(list(models.values()))
    weights = Weights("default", mixture={"ngram": 0.5, "neural": 0.5})
    manifest = {"models": {"ngram": {"kind": "ngram", "path": arpa.name}}}
    kinds: dict[str, ModelKind] = {"ngram": "ngram", "neural": "neural"}
    bundle = Bundle(Folder(folder), "spec", 0, manifest, normaliser, kinds, {"default": weights})
    return Rescorer(bundle, models, batch_words)


def build_vocabulary(spec: ModelSpec, sentences: Iterable[Words]) -> Vocabulary:
    """Make a vocabulary of the most frequent words of the sentences, filled up with invented words.

    The order is random, so that frequent words are in all classes, as in trained models.
    """
    counts = Counter(word for words in sentences for word in words if word not in SPECIAL_TOKENS)
    n = spec.vocabulary - len(SPECIAL_TOKENS)
    known = [word for word, _ in counts.most_common(n)]
    known += [f"unheard {i}" for i in range(n - len(known))]
    words = [END, UNKNOWN, *known]
    order = np.random.default_rng(1).permutation(len(words))
    return Vocabulary((*(words[i] for i in order), START))


def estimate_arpa(sentences: Iterable[Words], order: int) -> str:
    """Estimate an n-gram model of all sentences with P = c(h, w) / (c(h) + 1), as ARPA text.

    The remaining probability goes to back-off. The probabilities add up to 1 only approximately, which does
    not matter for the speed of look-ups.
    """
    counts = [Counter[Words]() for _ in range(order + 1)]
    for sentence in sentences:
        marked = (START, *sentence, END)
        for n in range(1, order + 1):
            counts[n].update(zip(*(marked[i:] for i in range(n)), strict=False))
    history_counts = [Counter[Words]() for _ in range(order + 1)]
    for n in range(1, order + 1):
        for words, count in counts[n].items():
            history_counts[n - 1][words[:-1]] += count
    counts[1][UNKNOWN,] = 1
    lines = ["\\data\\", *(f"ngram {n}={len(counts[n])}" for n in range(1, order + 1))]
    for n in range(1, order + 1):
        lines += ["", f"\\{n}-grams:"]
        for words, count in counts[n].items():
            log10_prob = math.log10(count / (history_counts[n - 1][words[:-1]] + 1))
            back_off = f"\t{-math.log10(history_counts[n][words] + 1):.6f}" if n < order else ""
            lines.append(f"{log10_prob:.6f}\t{' '.join(words)}{back_off}")
    return "\n".join([*lines, "", "\\end\\", ""])


@dataclass(frozen=True, slots=True)
class NgramSpeeds:
    """Speeds in words per second, without the time to build tries; ``</s>`` counts as a word."""

    ngram: float
    """Speed of the bundle's n-gram on the CPU, with one call per trie."""
    on_device: float | None = None
    """Speed of the bundle's n-gram on the device of the models; None if the n-gram is not on a device, or all
    tries are too small for it."""
    kenlm_loop: float | None = None
    """Speed of KenLM's Python binding with one call per edge of the tries."""
    kenlm: float | None = None
    """Speed of KenLM's Python binding with one call per sentence."""


def measure_ngrams(
    model: LanguageModel,
    twin: KenlmNgram | None,
    sentences: Sequence[Words],
    batch_words: int,
    clock: Callable[[], float] = time.perf_counter,
) -> NgramSpeeds:
    """Measure an n-gram model on the tries of some sentences, and KenLM on the same tries and sentences.

    A model that is on a device is also measured there, if a trie is large enough. Each call copies the scores
    to the CPU, so that all work is done when the clock is read.

    Args:
        twin: the same model, loaded by KenLM; None if KenLM cannot load it.
        batch_words: number of words per trie.
    """
    plans = plan_batches(sentences, [()] * len(sentences), batch_words)
    tries = [build_trie([sentences[i] for i in plan.indices]) for plan in plans]
    n_words = sum(len(sentence) + 1 for sentence in sentences)
    on_device = None
    is_large = max(trie.n_edges for trie in tries) >= ngrams.MIN_DEVICE_EDGES
    if is_large and isinstance(model, TableNgram) and model.trie_table is not model.table:
        on_device = n_words / _time_tries(model, tries, clock)
        model = TableNgram(model.content, model.name)
    ngram = n_words / _time_tries(model, tries, clock)
    if twin is None:
        return NgramSpeeds(ngram, on_device)
    loop = n_words / _time_tries(twin, tries, clock)
    texts = [" ".join(sentence) for sentence in sentences]
    score, start = twin.kenlm.score, clock()
    for text in texts:
        score(text)
    return NgramSpeeds(ngram, on_device, loop, n_words / (clock() - start))


def _time_tries(model: LanguageModel, tries: Iterable[HypothesisTrie], clock: Callable[[], float]) -> float:
    start = clock()
    for trie in tries:
        model.score(trie)
    return clock() - start


def load_twin(bundle: Bundle) -> KenlmNgram | None:
    """Load the bundle's first n-gram with KenLM; None if KenLM is not installed or cannot read the file."""
    entry = bundle.manifest.get("models", {}).get(bundle.ngram, {"kind": "neural"})
    if entry["kind"] != "ngram" or find_spec("kenlm") is None:
        return None
    with bundle.files.open(entry["path"]) as stream:
        if is_table_file(stream):
            return None
        words = frozenset(read_words(bundle.files, entry["words"])) if "words" in entry else frozenset()
        return load_kenlm(stream, words)
