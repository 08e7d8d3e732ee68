"""Search for requests that take more processor time than a server admits them for.

Random requests of each kind come in: words that are new, repeated or made of punctuation, phrases, generated
hypotheses, conversations, decision rules, confidences, many streams and values. For each, three jobs are
timed: reading it, scoring its words, and writing its answer. A job is admitted for a number of tokens before
it begins. A token of an ordinary request takes a certain time in each job, so a token of any other request
should not take much longer.
"""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rescorer.errors import InputError
from rescorer.extensions import make_ranker
from rescorer.models.bundle import read_bundle
from rescorer.pipeline import TrieScorer
from rescorer.protocol.messages import write_ranking
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.runtime import use_threads
from rescorer.scoring.batch import Batch, ScoredPart, plan
from rescorer.scoring.components import PreparedList
from rescorer.scoring.ranker import ListRanker
from rescorer.service.api.rescoring import prepare_lists, search_cost
from rescorer.service.engine.census import VALUE_BYTES, count_reading
from rescorer.service.engine.request_bounds import check_request, check_response_size
from rescorer.service.settings import ServiceSettings, load_settings
from rescorer.sounds import load_pronouncer
from rescorer.text import split_units
from tools.fuzz.worst import score_with_zeros

MAX_EXCESS = 3.0
"""Largest time of a token, as a multiple of that of an ordinary request, which is no fault."""
LEAST_S = 0.02
"""Shorter jobs are not compared: they cost less than a refusal."""
LEAST_TOKENS = 4096
"""Smaller jobs count as this many tokens."""
N_CALIBRATIONS = 3
N_REPETITIONS = 2
"""Number of times that a request is timed again if one of its jobs took too long."""


def new_word(rng: random.Random, length: int = 6) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=length))


Words = Callable[[random.Random, int], str]
"""Makes a text of about so many words."""
SHARED = [f"shared{number}" for number in range(1000)]
TEXTS: Mapping[str, Words] = {
    "new words": lambda rng, n: " ".join(new_word(rng) for _ in range(n)),
    "one word": lambda rng, n: "rust " * n,
    "two words": lambda rng, n: " ".join(rng.choices(["rust", "a"], k=n)),
    "commas": lambda rng, n: "a," * n,
    "thousands": lambda rng, n: "1,234," * n,
    "variants": lambda rng, n: "a" + "(1)" * n,
    "marks": lambda rng, n: ("e" + "\u0301\u0323" * 400 + " ") * (n // 40 + 1),
    "joiners": lambda rng, n: "\u0915\u094d\u200d" * n,
    "characters": lambda rng, n: "".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(n)),
    "full width": lambda rng, n: "\uff41\uff42 " * n,
    "shuffled": lambda rng, n: " ".join(rng.sample(SHARED[: min(n, 1000)], min(n, 1000))),
    "slashes": lambda rng, n: "a/" * n,
    "punctuation": lambda rng, n: ".,!? " * n,
}


@dataclass
class RandomRequest:
    """Makes a random request, whose size in words is about ``10 ** magnitude``."""

    rng: random.Random
    magnitude: float
    kinds: list[str] = field(default_factory=list)

    def make(self) -> pb.RescoreRequest:
        rng = self.rng
        n_words = int(10**self.magnitude)
        n_lists = min(rng.choice((1, 1, 2, 16, 128)), n_words)
        n_hypotheses = max(1, min(2000, int((n_words / n_lists) ** rng.uniform(0, 1))))
        length = max(1, n_words // (n_lists * n_hypotheses))
        name = rng.choice([*TEXTS])
        self.kinds.append(name)
        request = pb.RescoreRequest()
        for _ in range(n_lists):
            nbest = request.lists.add(id="x")
            shared = TEXTS[name](rng, length)
            place = rng.choice(("first", "last", "all"))
            for index in range(n_hypotheses):
                text = TEXTS[name](rng, length) if place == "all" else shared
                nbest.hypotheses.add(text=f"w{index} {text}" if place == "first" else f"{text} w{index}")
            nbest.streams.add(name="acoustic", base=1, sign=1, values=[-1.0] * n_hypotheses)
        request.weights.lm["mixture"] = 1
        for add in rng.sample(self.features(), rng.choice((0, 1, 1, 2))):
            self.kinds.append(add.__name__.replace("_", " "))
            add(request)
        return request

    def features(self) -> list[Callable[[pb.RescoreRequest], None]]:
        """Return what can be added to a request."""
        return [
            self.phrases,
            self.generation,
            self.conversation,
            self.bayes_risk,
            self.characters,
            self.confusion_network,
            self.confidences,
            self.merging,
            self.streams,
            self.values,
            self.times,
        ]

    def phrases(self, request: pb.RescoreRequest) -> None:
        rng, n_words = self.rng, self.rng.choice((1, 2, 16))
        owner: pb.RescoreRequest | pb.NBestList = request.lists[0] if rng.random() < 0.5 else request
        for index in range(rng.choice((1, 16, 500, 4_000))):
            words = ["rust"] * (index % n_words) + [rng.choice(["rust", new_word(rng, 3)])]
            owner.phrases.add(text=" ".join(words))

    def generation(self, request: pb.RescoreRequest) -> None:
        rng, request.generate = self.rng, True
        for _ in range(rng.choice((1, 20, 600, 1_000))):
            phrase = request.phrases.add(text=f"rus{new_word(rng, rng.choice((1, 3, 40)))}")
            phrase.spellings.extend(f"rus{new_word(rng, 2)}" for _ in range(rng.choice((0, 0, 1))))

    def conversation(self, request: pb.RescoreRequest) -> None:
        weights = request.weights
        weights.cache, weights.neural_cache = self.rng.choice(
            ((0.2, 0.0), (0.0, 0.2), (0.2, 0.2), (0.0, 0.0))
        )
        for nbest in request.lists:
            for _ in range(self.rng.choice((1, 50, 500))):
                text = TEXTS[self.rng.choice(["new words", "one word", "punctuation"])](self.rng, 20)
                nbest.previous.add(text=text, confidence=0.5)

    def bayes_risk(self, request: pb.RescoreRequest) -> None:
        request.decision.kind = pb.DECISION_KIND_MINIMUM_BAYES_RISK

    def characters(self, request: pb.RescoreRequest) -> None:
        self.bayes_risk(request)
        request.decision.unit = self.rng.choice((pb.ERROR_UNIT_CHARACTER, pb.ERROR_UNIT_MIXED))

    def confusion_network(self, request: pb.RescoreRequest) -> None:
        request.decision.kind = pb.DECISION_KIND_CONFUSION_NETWORK
        request.decision.unit = pb.ERROR_UNIT_WORD  # other units are refused
        request.decision.temperature = 1e6

    def confidences(self, request: pb.RescoreRequest) -> None:
        points = pb.ConfidenceMap(temperature=1, posteriors=[0, 1], confidences=[0.1, 0.9])
        request.weights.calibration.word.CopyFrom(points)
        request.weights.calibration.utterance.CopyFrom(points)

    def merging(self, request: pb.RescoreRequest) -> None:
        request.merge = request.drop_empty = True

    def streams(self, request: pb.RescoreRequest) -> None:
        for nbest in request.lists:
            values = [0.5] * len(nbest.hypotheses)
            for index in range(self.rng.choice((10, 900))):
                nbest.streams.add(name=f"s{index}", base=1, sign=1, values=values)

    def values(self, request: pb.RescoreRequest) -> None:
        for nbest in request.lists:
            for hypothesis in nbest.hypotheses[:2]:
                value = self.rng.choice(({"y": [None] * 3}, {"y": None}, [None], None))
                hypothesis.fields["x"] = [value] * self.rng.choice((10, 1_000))

    def times(self, request: pb.RescoreRequest) -> None:
        for nbest in request.lists:
            for hypothesis in nbest.hypotheses:
                words = hypothesis.text.split()
                hypothesis.fields["words"] = [
                    {"word": word, "start_s": place, "duration_s": 1} for place, word in enumerate(words)
                ]


class Job(NamedTuple):
    """A job of a server for a request."""

    name: str
    tokens: int
    """What it is admitted for."""
    seconds: float
    """Processor time."""

    @property
    def pace(self) -> float:
        """Seconds per token."""
        return self.seconds / max(self.tokens, LEAST_TOKENS)


def time_jobs(
    data: bytes, ranker: ListRanker, scorer: TrieScorer | None, settings: ServiceSettings
) -> Iterator[Job]:
    """Yield the jobs of a request until it is answered or refused.

    Args:
        scorer: the models; None: all words have the probability 1, and scoring is not timed.
    """
    began = time.process_time()
    tokens = count_reading(data)
    try:
        request = pb.RescoreRequest.FromString(data)
        n_values = check_request(request, settings)
        response_bytes = check_response_size(request, len(data), ranker, settings.max_response_bytes)
        response_bytes += VALUE_BYTES * n_values
        tokens += search_cost(ranker, request)
        prepared_request = prepare_lists(ranker, request, settings)
    except InputError:
        yield Job("read", tokens, time.process_time() - began)
        return
    yield Job("read", tokens, time.process_time() - began)
    began, lists = time.process_time(), prepared_request.valid_lists
    if scorer is None:
        scored = [[score_with_zeros(prepared, ranker.bundle)] for prepared in lists]
    else:
        scored = _score(lists, ranker, scorer, settings)
        yield Job("score", prepared_request.tokens, time.process_time() - began)
    began, response = time.process_time(), pb.RescoreResponse()
    for prepared, parts in zip(lists, scored, strict=True):
        try:
            write_ranking(ranker.rank(prepared, parts), response.lists.add())
        except InputError:
            continue
    response.SerializeToString()
    yield Job("write", prepared_request.response_tokens(response_bytes), time.process_time() - began)


def _score(
    lists: Sequence[PreparedList], ranker: ListRanker, scorer: TrieScorer, settings: ServiceSettings
) -> list[list[ScoredPart]]:
    """Score lists in batches, as a server without other calls would; return the parts of each."""
    found: dict[int, list[ScoredPart]] = {id(prepared): [] for prepared in lists}
    for parts in plan(lists, settings.max_batch_tokens, backward=bool(ranker.bundle.backward)):
        batch = Batch(parts)
        asked = batch.advance()
        while asked is not None:
            scores = scorer.score(
                asked.trie, asked.models, asked.encoders, surface=asked.surface, words=asked.words
            )
            asked = batch.advance(scores)
        for index, part in enumerate(parts):
            found[id(part.prepared)].append(batch.part(index))
    return list(found.values())


def ordinary_request(rng: random.Random) -> pb.RescoreRequest:
    """Make a request of 20 lists of 50 hypotheses of 15 words, a quarter of which are new."""
    request = pb.RescoreRequest()
    known = [new_word(rng) for _ in range(300)]
    for _ in range(20):
        nbest = request.lists.add(id="x")
        for _ in range(50):
            words = [new_word(rng) if rng.random() < 0.25 else rng.choice(known) for _ in range(15)]
            nbest.hypotheses.add(text=" ".join(words))
        nbest.streams.add(name="acoustic", base=1, sign=1, values=[-1.0] * 50)
    request.weights.lm["mixture"] = 1
    return request


@dataclass(frozen=True, slots=True)
class Excess:
    """A job that took longer than it was admitted for."""

    kind: str
    """What the request has."""
    job: str
    request_bytes: int
    tokens: int
    seconds: float
    times: float
    """Time of a token, as a multiple of that of an ordinary request."""


@dataclass
class CostReport:
    """What a search found."""

    requests: int = 0
    jobs: dict[str, int] = field(default_factory=dict)
    worst: list[Excess] = field(default_factory=list)
    """The job with the largest excess of each kind, the largest first."""
    faults: list[str] = field(default_factory=list)
    """Jobs that took more than ``MAX_EXCESS`` times as long as they were admitted for."""


def search_costs(
    folder: Path,
    requests: int,
    seed: int,
    seconds: float,
    dictionary: Path | None = None,
    *,
    models: bool = True,
    shown: int = 10,
) -> CostReport:
    """Time random requests, and report the jobs that took longest for what they were admitted for.

    Args:
        folder: the bundle with whose models they are scored.
        requests: number of requests.
        seconds: end after this time.
        models: whether the models score the requests; without, many more requests take the same time.
        shown: number of jobs in the report.
    """
    use_threads(1)
    rng, report = random.Random(seed), CostReport()
    ranker, scorer = make_ranker(read_bundle(folder), dictionary), TrieScorer.load(folder) if models else None
    settings = load_settings(bundle=folder)
    load_pronouncer(dictionary).learn_letters()  # once a process, not for every request
    split_units(("é",), "mixed")  # compiles patterns
    ordinary: dict[str, float] = {}
    for _ in range(N_CALIBRATIONS):  # the first one fills caches
        data = ordinary_request(rng).SerializeToString()
        ordinary = {job.name: job.pace for job in time_jobs(data, ranker, scorer, settings)}
    worst: dict[tuple[str, str], Excess] = {}
    began = time.monotonic()
    while report.requests < requests and time.monotonic() - began < seconds:
        made = RandomRequest(rng, rng.uniform(1, 5.5))
        data = made.make().SerializeToString()
        if len(data) > settings.max_message_bytes:
            continue
        report.requests += 1
        kind = ", ".join(made.kinds)
        jobs = {job.name: job for job in time_jobs(data, ranker, scorer, settings)}
        if any(job.pace > MAX_EXCESS * ordinary[name] for name, job in jobs.items()):
            for _ in range(N_REPETITIONS):  # what takes long only once, such as an import, is no fault
                again = time_jobs(data, ranker, scorer, settings)
                jobs |= {job.name: min(job, jobs[job.name], key=lambda one: one.seconds) for job in again}
        for job in jobs.values():
            report.jobs[job.name] = report.jobs.get(job.name, 0) + 1
            times = job.pace / ordinary[job.name]
            found = Excess(kind, job.name, len(data), job.tokens, job.seconds, times)
            key = kind, job.name
            if job.seconds >= LEAST_S and (key not in worst or worst[key].times < times):
                worst[key] = found
    report.worst = sorted(worst.values(), key=lambda one: -one.times)[:shown]
    report.faults = [
        f"{one.kind}: {one.job} took {one.seconds:.2f} s for {one.tokens:,} tokens, {one.times:.1f} times as "
        "long as those of ordinary requests"
        for one in worst.values()
        if one.times > MAX_EXCESS
    ]
    return report
