"""Run the benchmark of scoring: times of phases, compared with matrix products, plain PyTorch and KenLM.

Lists are rescored as ``rescorer rescore`` does, and the time of each phase, such as parsing or the output
layer, is measured. The work in the lists is counted in the tries that scoring uses: words, distinct prefixes,
and the networks' matrix products.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from rescorer.bench.models import (
    GATE_COUNTS,
    NgramSpeeds,
    Product,
    flops,
    load_twin,
    make_plain_model,
    measure_gemm_rate,
    measure_ngrams,
    measure_peer_command,
    measure_plain_model,
)
from rescorer.errors import ConfigError, InputError
from rescorer.formats.rescored import JSON_LINES, rescored_writer
from rescorer.jobs.files import LocalRescorer, rescore_lists
from rescorer.jobs.processes import ProcessPoolRescorer, spare_existing_objects
from rescorer.models.contexts import distinct_rows, node_windows
from rescorer.models.network_files import WINDOWED_KINDS, NetworkConfig, feedforward_size
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.ngrams import NgramModel
from rescorer.pipeline import Rescorer
from rescorer.runtime import Phase, Stopwatch, count_cpus
from rescorer.scoring.options import RescoreOptions
from rescorer.trie import EdgeScores, HypothesisTrie
from rescorer.types import Hypothesis, NBestList, Weights

ALTERNATIVES = 4
"""Number of alternative words at each position where the hypotheses of a list differ."""
POSITION_EXPONENT = 1.2
"""Generated hypotheses are changed at the relative position u^POSITION_EXPONENT in a sentence, with u uniform
in [0, 1]. With this exponent, 100 hypotheses of 20 words have 2.2 words per distinct prefix, as the 100-best
lists of a real recogniser do."""
DISTINCT_WORDS = 10_000


@dataclass(frozen=True, slots=True)
class ListShape:
    """Number of lists, hypotheses per list, and words per hypothesis."""

    lists: int
    hypotheses: int
    words: int

    @classmethod
    def parse(cls, text: str) -> ListShape:
        """Parse a shape such as ``1000x100x20``.

        Raises:
            ConfigError: the text is not three positive integers separated by ``x``.
        """
        match = re.fullmatch(r"([1-9]\d*)[x×]([1-9]\d*)[x×]([1-9]\d*)", text)
        if not match:
            raise ConfigError(f"{text!r}: expected LISTSxHYPOTHESESxWORDS, such as 1000x100x20")
        return cls(*map(int, match.groups()))


def synthetic_lists(shape: ListShape, seed: int = 1) -> Iterator[NBestList]:
    """Generate lists of words that follow Zipf's law.

    Each hypothesis is made from an earlier one of its list, by substituting, deleting or inserting one word.
    """
    random = np.random.default_rng(seed)
    probs = 1 / np.arange(1, DISTINCT_WORDS + 1)
    probs /= probs.sum()
    names = [f"w{rank}" for rank in range(1, DISTINCT_WORDS + 1)]
    for number in range(shape.lists):
        ranks = random.choice(DISTINCT_WORDS, p=probs, size=(shape.words + 1, ALTERNATIVES))
        alternatives = [[names[rank] for rank in row] for row in ranks.tolist()]
        hypotheses = [[row[0] for row in alternatives[: shape.words]]]
        while len(hypotheses) < shape.hypotheses:
            earlier = hypotheses[int(random.integers(len(hypotheses)))]
            position = int(len(earlier) * random.random() ** POSITION_EXPONENT)
            word = alternatives[min(position, shape.words)][int(random.integers(ALTERNATIVES))]
            edit = int(random.choice([0, 1, 2], p=[0.1, 0.8, 0.1]))  # insertion, substitution, deletion
            hypotheses.append(earlier[:position] + [word] * (edit < 2) + earlier[position + (edit > 0) :])
        scores = -np.sort(random.gamma(2.0, 50.0, size=shape.hypotheses))
        yield NBestList(
            id=f"synthetic-{number:06}",
            hypotheses=tuple(Hypothesis(" ".join(words)) for words in hypotheses),
            streams={"acoustic": tuple(np.sort(scores)[::-1].round(4).tolist())},
        )


COUNTER_NAME = "counter"


@dataclass(slots=True)
class Workload:
    """The work in some lists, if they are batched as in the pipeline."""

    lists: int = 0
    hypotheses: int = 0
    words: int = 0
    """Number of normalised words of all hypotheses, plus one ``</s>`` for each hypothesis."""
    prefixes: int = 0
    """Number of distinct prefixes in each batch, including ``</s>``: the edges of the tries."""
    network: list[Product] = field(default_factory=list)
    """Matrix products of all layers before the output layer, without the input projection of the first
    recurrent layer: this depends only on the word, and could be looked up in a table."""
    output: list[Product] = field(default_factory=list)
    """Matrix products of the output layers."""


def count_work(lists: Sequence[NBestList], rescorer: Rescorer) -> Workload:
    """Rescore the lists with a model that counts work in place of the rescorer's models."""
    counter = WorkCounter(networks_of(rescorer))
    weights = {"default": Weights(mixture={COUNTER_NAME: 1.0})}
    bundle = replace(rescorer.bundle, model_kinds={COUNTER_NAME: "neural"}, weights=weights)
    counting = Rescorer(bundle, {COUNTER_NAME: counter}, rescorer.max_batch_words)
    counting.rescore(lists)
    counter.workload.lists = len(lists)
    return counter.workload


class WorkCounter:
    """A ``LanguageModel`` that counts the work of networks and gives every word probability 1."""

    name, backward = COUNTER_NAME, False

    def __init__(self, networks: Sequence[NeuralLanguageModel]) -> None:
        self.workload = Workload()
        self._networks = networks

    def vocabulary(self) -> frozenset[str]:
        return frozenset()

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        pass

    def log_share(self, word: str) -> float:
        return 0.0

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        whole = trie
        path_lengths = trie.sum_paths(np.ones(trie.n_edges))
        self.workload.hypotheses += len(path_lengths)
        self.workload.words += int(path_lengths.sum())
        self.workload.prefixes += trie.n_edges
        for network in self._networks:
            config = network.model.config
            trie = whole.in_direction(network.backward)
            if config.kind in WINDOWED_KINDS:
                windows = node_windows(trie, config.window, start_word=len(trie.words))
                distinct, row_of_node = distinct_rows(windows, len(trie.words) + 1)
                self.workload.network += windowed_products(config, len(trie.words) + 1, len(distinct))
            elif config.kind == "transformer":
                row_of_node = np.arange(trie.n_nodes)
                self.workload.network += transformer_products(config, trie.n_nodes)
            else:
                row_of_node = np.arange(trie.n_nodes)
                self.workload.network += recurrent_products(config, np.diff(trie.level_bounds).tolist())
            words = np.append(network.words.encode(trie.words), network.words.end)[trie.edge_word]
            self.workload.output += output_products(config, row_of_node[trie.edge_parent], words)
        return EdgeScores(np.zeros(whole.n_edges), np.zeros(whole.n_edges, dtype=bool))


def recurrent_products(config: NetworkConfig, level_sizes: Iterable[int]) -> list[Product]:
    """The matrix products that compute the states of the nodes, level by level of a trie."""
    hidden, gates = config.hidden_size, GATE_COUNTS[config.kind] * config.hidden_size
    products: list[Product] = []
    for n in level_sizes:
        products += [(n, hidden, gates)] * (2 * config.layers - 1)
        products += projection_products(config, n)
    return products


def windowed_products(config: NetworkConfig, n_words: int, n_contexts: int) -> list[Product]:
    """The matrix products of a feed-forward network.

    The first layer is computed for each distinct word at each position, the other layers for each context.
    """
    hidden = config.hidden_size
    first = (n_words, config.embedding_size, config.window * hidden)
    deeper = [(n_contexts, hidden, hidden)] * (config.layers - 1)
    return [first, *deeper, *projection_products(config, n_contexts)]


def transformer_products(config: NetworkConfig, n: int) -> list[Product]:
    """The matrix products of a transformer for n words.

    The products of queries with keys, and of attention weights with values, are not counted: they depend on
    the lengths of the hypotheses, and amount to a few per cent of the others.
    """
    hidden, units = config.hidden_size, feedforward_size(config.hidden_size)
    layer = [(n, hidden, 3 * hidden), (n, hidden, hidden), (n, hidden, 2 * units), (n, units, hidden)]
    return layer * config.layers + projection_products(config, n)


def projection_products(config: NetworkConfig, n: int) -> list[Product]:
    """The matrix product that projects n hidden states to the embedding size; none if the sizes are equal."""
    same = config.hidden_size == config.embedding_size
    return [] if same else [(n, config.hidden_size, config.embedding_size)]


def output_products(config: NetworkConfig, rows: np.ndarray, words: np.ndarray) -> list[Product]:
    """The matrix products of the output layer for the edges of a trie.

    Args:
        rows: (E,) row of each edge's context vector in the matrix of context vectors.
        words: (E,) id of the word that each edge predicts.
    """
    size, n_vectors = config.embedding_size, len(np.unique(rows))
    if config.output == "full":
        return [(n_vectors, size, config.n_words)]
    if config.output == "tree":
        return [(len(words), size, int(np.ceil(np.log2(config.n_words))))]
    sizes = np.array(config.class_sizes)
    classes = np.repeat(np.arange(len(sizes)), sizes)[words]
    class_of_pair = np.unique(rows * len(sizes) + classes) % len(sizes)  # of distinct (vector, class) pairs
    counts = np.bincount(class_of_pair, minlength=len(sizes))
    within = [(int(n), size, int(width)) for n, width in zip(counts, sizes, strict=True) if n and width > 1]
    return [(n_vectors, size, len(sizes)), *within]


NEURAL_PHASES = (Phase.NETWORK, Phase.OUTPUT)
FILE_PHASES = (Phase.PARSE, Phase.WRITE, Phase.OTHER)
"""The phases that only ``rescorer rescore`` has, not the library."""
SINGLE_LISTS = 50
"""Number of lists that are also scored one by one, for the latency of a single list."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Settings of the benchmark."""

    warm_up: int = 1
    """Number of runs before the measured ones."""
    repetitions: int = 3
    """Number of measured runs. The report has the median of each phase."""
    peer_seconds: float = 5.0
    """Seconds after which the plain PyTorch scorer starts no further batch; 0 skips this scorer."""
    peer_command: str | None = None
    """Another program to time on the same sentences; see ``measure_peer_command``."""
    processor_time: bool = False
    """Measure processor time instead of elapsed time, because other work on the machine does not change it;
    needs a single thread."""
    merge: bool = False
    """Merge equal hypotheses, as ``rescorer rescore --merge`` does."""
    drop_empty: bool = False
    """Drop empty hypotheses, as ``rescorer rescore --drop-empty`` does."""

    def __post_init__(self) -> None:
        for name, least in (("warm_up", 0), ("repetitions", 1), ("peer_seconds", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if self.processor_time and torch.get_num_threads() > 1:
            raise ConfigError(f"processor time needs one thread, but torch has {torch.get_num_threads()}")

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.processor_time else time.perf_counter


@dataclass(frozen=True, slots=True)
class Speed:
    """One line of the report: the speed of a phase, or of several phases together."""

    name: str
    seconds: float
    words_per_second: float
    """Normalised words per second, with one ``</s>`` for each hypothesis."""
    prefixes_per_second: float
    """Distinct prefixes, which are the edges of the tries, per second."""
    floor_multiple: float | None = None
    """The measured time divided by the time that the matrix products alone take at
    ``gemm_gflops_per_second``."""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Results of a benchmark."""

    lists: int
    hypotheses: int
    words: int
    prefixes: int
    speeds: tuple[Speed, ...]
    """One line per phase, then ``neural``, ``the rest of the library``, ``library`` and ``end to end``."""
    floor_gflops: float | None
    """Number of floating-point operations of the networks' matrix products, in 10⁹."""
    gemm_gflops_per_second: float | None
    """The rate at which the machine computes the median matrix product."""
    plain_words_per_second: float | None
    """Speed of the plain PyTorch scorer."""
    peer_words_per_second: float | None
    """Speed of the peer's command, including its start."""
    ngram_words_per_second: float | None
    """Speed of the first n-gram alone on the CPU; see ``NgramSpeeds`` for this and the next three."""
    ngram_device_words_per_second: float | None
    kenlm_loop_words_per_second: float | None
    kenlm_words_per_second: float | None
    single_list_ms: float | None
    """Median time in which the library rescores a single list."""
    plain_network: str = "LSTM"
    """Kind of network in the plain PyTorch scorer, for the report."""
    processes: int = 1
    """Number of processes, which share the cores, in the additional parallel run."""
    in_processes: Speed | None = None
    """End-to-end speed of the parallel run."""
    machine: dict[str, object] = field(default_factory=dict)

    def speed(self, name: str) -> Speed:
        """Return the line with this name."""
        return next(speed for speed in self.speeds if speed.name == name)


def run_benchmark(
    rescorer: Rescorer,
    read: Callable[[], Iterable[NBestList | InputError]],
    folder: Path,
    options: BenchOptions,
    processes: Callable[[], ProcessPoolRescorer] | None = None,
) -> BenchReport:
    """Run the benchmark: time phases, baselines, single lists and, if wanted, a parallel run.

    Args:
        read: reads all lists; called once per run.
        folder: folder to which the runs write their results.
        processes: starts processes that do the same work, for the additional parallel run; None skips this
            run.

    Raises:
        ConfigError: there are no valid lists.
    """
    rescorer = without_streams(rescorer)
    lists = [item for item in read() if isinstance(item, NBestList)]
    if not lists:
        raise ConfigError("no lists to benchmark")
    networks = networks_of(rescorer)
    workload = count_work(lists, rescorer)
    for _ in range(options.warm_up):
        time_run(rescorer, read, folder, options)
    runs = [time_run(rescorer, read, folder, options) for _ in range(options.repetitions)]
    rate = None
    if networks:
        weight = networks[0].model.output.word_weight
        products = workload.network + workload.output
        rate = measure_gemm_rate(products, options.clock, weight.dtype, weight.device)
    is_transformer = bool(networks) and networks[0].model.config.kind == "transformer"
    plain, ngrams = measure_baselines(rescorer, lists, networks, options)
    single_ms = measure_single_list_ms(rescorer, lists, options)
    count, seconds = time_in_processes(processes, read, folder, options) if processes else (1, 0.0)
    return BenchReport(
        lists=workload.lists,
        hypotheses=workload.hypotheses,
        words=workload.words,
        prefixes=workload.prefixes,
        speeds=tuple(summarise_runs(runs, workload, rate)),
        floor_gflops=flops(workload.network + workload.output) / 1e9 if rate else None,
        gemm_gflops_per_second=rate / 1e9 if rate else None,
        plain_words_per_second=plain,
        peer_words_per_second=measure_peer(rescorer, lists, folder, options),
        ngram_words_per_second=ngrams.ngram if ngrams else None,
        ngram_device_words_per_second=ngrams.on_device if ngrams else None,
        kenlm_loop_words_per_second=ngrams.kenlm_loop if ngrams else None,
        kenlm_words_per_second=ngrams.kenlm if ngrams else None,
        single_list_ms=single_ms,
        plain_network="transformer" if is_transformer else "LSTM",
        processes=count,
        in_processes=make_speed(f"in {count} processes", seconds, workload, rate) if processes else None,
        machine={
            "threads": torch.get_num_threads(),
            "cores": count_cpus(),
            "torch": torch.__version__,
            "clock": "processor" if options.processor_time else "wall",
        },
    )


def without_streams(rescorer: Rescorer) -> Rescorer:
    """The same rescorer with default weights that use no streams, so that it can rank all lists."""
    default = replace(rescorer.bundle.weights["default"], streams={})
    bundle = replace(rescorer.bundle, weights={"default": default})
    return Rescorer(bundle, rescorer.models, rescorer.max_batch_words)


def load_rescorer(load: Callable[[], Rescorer], options: BenchOptions) -> LocalRescorer:
    """Load a rescorer in a process of the parallel run."""
    return make_local(without_streams(load()), options)


def make_local(rescorer: Rescorer, options: BenchOptions) -> LocalRescorer:
    return LocalRescorer(rescorer, RescoreOptions(merge=options.merge, drop_empty=options.drop_empty))


def time_run(
    rescorer: Rescorer,
    read: Callable[[], Iterable[NBestList | InputError]],
    folder: Path,
    options: BenchOptions,
) -> dict[Phase, float]:
    """Rescore all lists to a file once; return the seconds of each phase."""
    uses_gpu = any(network.device.type == "cuda" for network in networks_of(rescorer))
    watch = Stopwatch(options.clock, torch.cuda.synchronize if uses_gpu else lambda: None)
    local = make_local(rescorer, options)
    with (
        rescored_writer(JSON_LINES, folder / "answers.jsonl") as write,
        spare_existing_objects(),
        watch.running(),
    ):
        rescore_lists(local, read(), write)
    return watch.seconds


def networks_of(rescorer: Rescorer) -> list[NeuralLanguageModel]:
    return [model for model in rescorer.models.values() if isinstance(model, NeuralLanguageModel)]


def summarise_runs(runs: list[dict[Phase, float]], workload: Workload, rate: float | None) -> list[Speed]:
    """Make a line for each phase, and for sums of phases, from the median time of the runs."""

    def line(name: str, phases: Iterable[Phase], floor_flops: int = 0) -> Speed:
        seconds = statistics.median(sum(run[phase] for phase in phases) for run in runs)
        return make_speed(name, seconds, workload, rate, floor_flops)

    floors = {Phase.NETWORK: flops(workload.network), Phase.OUTPUT: flops(workload.output)}
    both = sum(floors.values())
    rest = [phase for phase in Phase if phase not in (*NEURAL_PHASES, *FILE_PHASES)]
    return [
        *(line(phase.value, [phase], floors.get(phase, 0)) for phase in Phase),
        line("neural", NEURAL_PHASES, both),
        line("the rest of the library", rest),
        line("library", [phase for phase in Phase if phase not in FILE_PHASES], both),
        line("end to end", list(Phase), both),
    ]


def make_speed(
    name: str, seconds: float, workload: Workload, rate: float | None, floor_flops: int = 0
) -> Speed:
    rates = [count / seconds if seconds else 0.0 for count in (workload.words, workload.prefixes)]
    multiple = seconds * rate / floor_flops if rate and floor_flops else None
    return Speed(name, seconds, rates[0], rates[1], multiple)


def time_in_processes(
    start: Callable[[], ProcessPoolRescorer],
    read: Callable[[], Iterable[NBestList | InputError]],
    folder: Path,
    options: BenchOptions,
) -> tuple[int, float]:
    """Measure the parallel run.

    Returns:
        The number of processes, and the median seconds of the measured runs.
    """
    times = []
    with start() as processes:
        for _ in range(options.warm_up + options.repetitions):
            start_time = time.perf_counter()
            with rescored_writer(JSON_LINES, folder / "answers.jsonl") as write:
                rescore_lists(processes, read(), write)
            times.append(time.perf_counter() - start_time)
    return processes.count, statistics.median(times[options.warm_up :])


def measure_baselines(
    rescorer: Rescorer,
    lists: list[NBestList],
    networks: list[NeuralLanguageModel],
    options: BenchOptions,
) -> tuple[float | None, NgramSpeeds | None]:
    """Measure baselines: the plain scorer with the sizes of the first network, and n-grams by themselves.

    The first result, in words per second, is None without a network, or if the options skip the plain scorer.
    The second result is None without an n-gram.
    """
    normaliser, clock = rescorer.bundle.normaliser, options.clock
    sentences = [normaliser.normalise(hypothesis.text) for nbest in lists for hypothesis in nbest.hypotheses]
    models = [model for model in rescorer.models.values() if isinstance(model, NgramModel)]
    twin = load_twin(rescorer.bundle)
    ngrams = measure_ngrams(models[0], twin, sentences, rescorer.max_batch_words, clock) if models else None
    if not networks or not options.peer_seconds:
        return None, ngrams
    network = networks[0]
    model = make_plain_model(network.model.config)
    plain = measure_plain_model(model, sentences, network.words, network.device, options.peer_seconds, clock)
    return plain, ngrams


def measure_peer(
    rescorer: Rescorer, lists: list[NBestList], folder: Path, options: BenchOptions
) -> float | None:
    """Measure the peer's command on the normalised sentences of the lists; None without a command."""
    if options.peer_command is None:
        return None
    normalise = rescorer.bundle.normaliser.normalise
    sentences = [normalise(hypothesis.text) for nbest in lists for hypothesis in nbest.hypotheses]
    return measure_peer_command(
        options.peer_command, sentences, folder, options.repetitions, options.processor_time
    )


def measure_single_list_ms(rescorer: Rescorer, lists: list[NBestList], options: BenchOptions) -> float | None:
    """Measure the median milliseconds of rescoring a single list."""
    times = []
    for nbest in lists[:SINGLE_LISTS]:
        start = options.clock()
        rescorer.rescore([nbest])
        times.append(options.clock() - start)
    return 1000 * statistics.median(times) if times else None
