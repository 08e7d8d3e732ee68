"""Lists for tests of shards, and a job that runs them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from rescorer.jobs.files import LocalRescorer, RescorerLoader
from rescorer.jobs.plan import Division, ListSource, Plan, find_files, make_plan, read_plan
from rescorer.jobs.shards import Job, describe_bundle, load_planned, run_shard
from rescorer.jobs.store import PLAN, LocalStore, Store
from rescorer.scoring.options import RescoreOptions
from rescorer.terminal.list_options import ListInputOptions
from rescorer.types import Weights

WORDS = ("the", "cat", "sat", "on", "mat", "zebra", "dog")
BATCH_WORDS = 40
N_LISTS = 30
"""Number of lists of the plans of most tests."""
AnyStore = TypeVar("AnyStore", bound=Store)


def make_lines(n: int) -> list[str]:
    """Lines of lists of different sizes; every seventh is blank, every eleventh cannot be read."""
    lines = []
    for i in range(n):
        texts = [" ".join(WORDS[(i + j) % 7] for _ in range(1 + (i * j) % 6)) for j in range(1 + i % 4)]
        hypotheses = [{"text": text, "scores": {"acoustic": -j}} for j, text in enumerate(texts)]
        lines.append(json.dumps({"id": f"u{i}", "hypotheses": hypotheses}))
        if i % 7 == 3:
            lines.append("")
        if i % 11 == 5:
            lines.append('{"id": "broken')
    return lines


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def make_source(**options: object) -> ListSource:
    """How ``rescorer rescore`` reads lists for shards."""
    return ListInputOptions(**options).as_source()  # type: ignore[arg-type]


def make_job(bundle: Path, batch_words: int = BATCH_WORDS) -> Job:
    load = RescorerLoader(bundle, RescoreOptions(Weights()), batch_words=batch_words)
    return Job(load, make_source(), "jsonl")


def plan_into(folder: Path, inputs: Sequence[Path], job: Job, division: Division) -> LocalStore:
    """Write a plan into a folder, and return its store."""
    return plan_store(LocalStore(folder), list(map(str, inputs)), job, division)


def plan_store(store: AnyStore, inputs: Sequence[str], job: Job, division: Division) -> AnyStore:
    """Write a plan into a store, and return the store."""
    store.prepare()
    names = find_files(inputs, job.source)
    answers = {"bundle": describe_bundle(job.load().rescorer.bundle)}
    assert store.create(PLAN, make_plan(names, job.source, answers, division).encode())
    return store


def load(store: Store, job: Job) -> tuple[Plan, LocalRescorer]:
    """The plan of a store, and its models."""
    plan = read_plan(store)
    return plan, load_planned(plan, job.load)


def run_all(store: Store, job: Job) -> None:
    """Run all shards in this process."""
    plan, rescorer = load(store, job)
    for index in range(len(plan.shards)):
        run_shard(store, plan, index, job, rescorer)
