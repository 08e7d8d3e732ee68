"""Where a server's own work is done, and on how many cores its networks run."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rescorer.cpu_count import count_cpus
from rescorer.profiling import Phase, phase
from rescorer.service.assembly import NICENESS, niceness_of, threads_of
from rescorer.service.engine.offload import SMALL_TOKENS, Offloader
from rescorer.service.preflight import load_settings


def thread_and_phase() -> int:
    with phase(Phase.TRIE):
        return threading.get_ident()


def test_only_large_jobs_leave_the_event_loop_and_all_are_timed():
    async def done(tokens: int) -> bool:
        with ThreadPoolExecutor(1) as threads:
            where, timings = await Offloader(threads).run(thread_and_phase, tokens)
        assert "trie" in {timing.phase for timing in timings}
        return where == threading.get_ident()

    assert asyncio.run(done(SMALL_TOKENS))
    assert not asyncio.run(done(SMALL_TOKENS + 1))


@pytest.mark.parametrize("size", [1, SMALL_TOKENS + 1])
def test_a_job_that_fails_fails_for_who_asked(size):
    async def fail() -> None:
        with ThreadPoolExecutor(1) as threads:
            await Offloader(threads).run(lambda: 1 // 0, size)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())


@pytest.mark.parametrize(
    ("here", "workers", "threads", "expected"),
    [(2, 0, 0, 1), (2, 1, 0, 1), (2, 2, 0, 1), (8, 1, 0, 7), (8, 3, 0, 2), (1, 1, 0, 1), (8, 8, 3, 3)],
)
def test_cores_but_one_are_shared_out_among_scorers(monkeypatch, here, workers, threads, expected):
    monkeypatch.setattr("rescorer.service.assembly.count_cpus", lambda: here)
    assert threads_of(load_settings(bundle="x", workers=workers, threads=threads)) == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("50000 100000", 1),
        ("100000 100000", 1),
        ("150000 100000", 2),
        ("max 100000", None),
        ("", None),
        (None, None),
    ],
)
def test_a_container_has_the_cores_of_its_quota(told, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    quota = tmp_path / "cpu.max"
    if told is not None:
        quota.write_text(told)
    assert count_cpus(quota) == (expected or 64)


def test_there_is_a_core():
    assert count_cpus() >= 1


@pytest.mark.parametrize(
    ("here", "workers", "threads", "device", "niceness"),
    [(2, 1, 0, "cpu", 0), (2, 2, 0, "cpu", NICENESS), (8, 4, 2, "cpu", NICENESS), (2, 2, 0, "cuda", 0)],
)
def test_scorers_that_take_all_cores_let_who_answers_go_first(
    monkeypatch, here, workers, threads, device, niceness
):
    monkeypatch.setattr("rescorer.service.assembly.count_cpus", lambda: here)
    settings = load_settings(bundle="x", workers=workers, threads=threads, device=device)
    assert niceness_of(settings) == niceness
