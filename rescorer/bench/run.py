"""Run the benchmark of scoring.

Measures the phases of rescoring the lists as ``rescorer rescore`` does and, for comparison, the machine's
matrix products, a plain PyTorch scorer and KenLM's sentence call.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch

from rescorer.bench.baselines import make_plain_model, measure_plain_model
from rescorer.bench.matrix_products import flops, measure_gemm_rate
from rescorer.bench.ngrams import NgramSpeeds, load_twin, measure_ngrams
from rescorer.bench.workload import Workload, count_work
from rescorer.errors import ConfigError, InputError
from rescorer.files.parallel import ProcessPoolRescorer, spare_existing_objects
from rescorer.files.rescoring import LocalRescorer, rescore_lists
from rescorer.formats.rescored import JSON_LINES, rescored_writer
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.ngrams import NgramModel
from rescorer.options import RescoreOptions
from rescorer.pipeline import Rescorer
from rescorer.runtime.cpu_count import count_cpus
from rescorer.runtime.profiling import Phase, Stopwatch
from rescorer.types import NBestList

NEURAL_PHASES = (Phase.NETWORK, Phase.OUTPUT)
FILE_PHASES = (Phase.PARSE, Phase.WRITE, Phase.OTHER)
"""Phases outside the library."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Settings of the benchmark."""

    warm_up: int = 1
    """Number of runs before the measured ones."""
    repetitions: int = 3
    """Number of measured runs; the report gives the median of each phase."""
    single_lists: int = 50
    """Number of lists that are also scored one at a time, to measure the latency of a single list."""
    peer_seconds: float = 5.0
    """Time after which the plain scorer starts no further batch; 0 skips the plain scorer."""
    processor_time: bool = False
    """Measure processor time instead of wall time, so that other work on the machine does not distort the
    results; needs a single thread."""
    merge: bool = False
    """Merge equal hypotheses, as ``rescorer rescore --merge`` does."""
    drop_empty: bool = False
    """Drop empty hypotheses, as ``rescorer rescore --drop-empty`` does."""

    def __post_init__(self) -> None:
        for name, least in (("warm_up", 0), ("repetitions", 1), ("single_lists", 0), ("peer_seconds", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if self.processor_time and torch.get_num_threads() > 1:
            raise ConfigError(f"processor time needs one thread, but torch has {torch.get_num_threads()}")

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.processor_time else time.perf_counter


@dataclass(frozen=True, slots=True)
class Speed:
    """One line of the report."""

    name: str
    seconds: float
    words_per_second: float
    """Canonical words of all hypotheses, plus one ``</s>`` each."""
    prefixes_per_second: float
    """Distinct prefixes, which are edges of the tries."""
    floor_multiple: float | None = None
    """Time divided by the time that the line's matrix products would take at the machine's measured rate."""


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
    """Floating-point operations of the networks' products, in 10⁹."""
    gemm_gflops_per_second: float | None
    """The machine's rate for the median product."""
    plain_words_per_second: float | None
    ngram_words_per_second: float | None
    """The first n-gram alone on the CPU, with tries that are built beforehand."""
    ngram_device_words_per_second: float | None
    """The same on the device of the models; None if it is not there."""
    kenlm_loop_words_per_second: float | None
    """KenLM with the same n-gram and tries, an edge per call."""
    kenlm_words_per_second: float | None
    """KenLM with the same n-gram, a sentence per call."""
    single_list_ms: float | None
    """Median time that the library takes for a single list."""
    plain_network: str = "LSTM"
    """Kind of network of the plain PyTorch scorer."""
    processes: int = 1
    """Number of processes of the additional parallel run, which share the cores."""
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
    """Measure everything.

    Args:
        read: reads the lists from the start; called once per run.
        folder: where the runs write their results.
        processes: starts processes that do the same work, for an additional parallel run; None skips it.

    Raises:
        ConfigError: there are no valid lists.
    """
    rescorer = without_streams(rescorer)
    lists = [item for item in read() if isinstance(item, NBestList)]
    if not lists:
        raise ConfigError("no lists to benchmark")
    networks = [model for model in rescorer.models.values() if isinstance(model, NeuralLanguageModel)]
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
    """The same rescorer with default weights that need no streams, and so suit any list."""
    default = replace(rescorer.bundle.weights["default"], streams={})
    bundle = replace(rescorer.bundle, weights={"default": default})
    return Rescorer(bundle, rescorer.models, rescorer.max_batch_words)


def load_rescorer(load: Callable[[], Rescorer], options: BenchOptions) -> LocalRescorer:
    """Load a rescorer in a process of the parallel run."""
    return LocalRescorer(
        without_streams(load()), RescoreOptions(merge=options.merge, drop_empty=options.drop_empty)
    )


def time_run(
    rescorer: Rescorer,
    read: Callable[[], Iterable[NBestList | InputError]],
    folder: Path,
    options: BenchOptions,
) -> dict[Phase, float]:
    """Measure the seconds per phase of one run of the file command over all lists."""
    watch = Stopwatch(options.clock, torch.cuda.synchronize if uses_gpu(rescorer) else lambda: None)
    local = LocalRescorer(rescorer, RescoreOptions(merge=options.merge, drop_empty=options.drop_empty))
    with (
        rescored_writer(JSON_LINES, folder / "answers.jsonl") as write,
        spare_existing_objects(),
        watch.running(),
    ):
        rescore_lists(local, read(), write, io.StringIO())
    return watch.seconds


def uses_gpu(rescorer: Rescorer) -> bool:
    networks = [model for model in rescorer.models.values() if isinstance(model, NeuralLanguageModel)]
    return any(network.device.type == "cuda" for network in networks)


def summarise_runs(runs: list[dict[Phase, float]], workload: Workload, rate: float | None) -> list[Speed]:
    """Compute the median over the runs of each phase, and of sums of phases."""

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
    """Measure the parallel run: number of processes, and median seconds after the warm-up runs."""
    times = []
    with start() as processes:
        for _ in range(options.warm_up + options.repetitions):
            start_time = time.perf_counter()
            with rescored_writer(JSON_LINES, folder / "answers.jsonl") as write:
                rescore_lists(processes, read(), write, io.StringIO())
            times.append(time.perf_counter() - start_time)
    return processes.count, statistics.median(times[options.warm_up :])


def measure_baselines(
    rescorer: Rescorer,
    lists: list[NBestList],
    networks: list[NeuralLanguageModel],
    options: BenchOptions,
) -> tuple[float | None, NgramSpeeds | None]:
    """Measure the plain scorer's words per second (first network's sizes), and the first n-gram's.

    None if there is no such model, or if the options skip the plain scorer.
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


def measure_single_list_ms(rescorer: Rescorer, lists: list[NBestList], options: BenchOptions) -> float | None:
    """Measure the median milliseconds of rescoring a single list."""
    times = []
    for nbest in islice(lists, options.single_lists):
        start = options.clock()
        rescorer.rescore([nbest])
        times.append(options.clock() - start)
    return 1000 * statistics.median(times) if times else None
