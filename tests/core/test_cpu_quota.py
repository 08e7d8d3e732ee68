"""Cores that a process may use: its affinity and the CPU quotas of its control groups, versions 1 and 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rescorer.runtime import count_cpus

UNIFIED = "25 23 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
MEMORY = "34 25 0:30 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory"
JOB = "0::/system.slice/job.service\n"
V1_JOB = "5:memory:/other\n4:cpu,cpuacct:/pod/job\n1:name=systemd:/pod\n"


@pytest.fixture
def count(tmp_path, monkeypatch):
    """A function that counts the cores of a machine with 64 cores and the given files."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)

    def count(group: str | None, mounts: str | None, files: dict[str, str | bytes]) -> int:
        own = {"proc/self/cgroup": group, "proc/self/mountinfo": mounts}
        for name, content in {**own, **files}.items():
            if content is not None:
                file = tmp_path / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content if isinstance(content, bytes) else os.fsencode(content))
        return count_cpus(tmp_path)

    return count


def quota_v1(folder: str, allowed: str, period: str = "100000") -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{allowed}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("50000 100000", 1),
        ("100000 100000", 1),
        ("150000 100000", 2),
        ("9900000 100000", 64),
        (f"{10**400} 1", 64),
        ("1 100000", 1),
        ("max 100000", 64),
        ("0 100000", 64),
        ("-5 100000", 64),
        ("100000 0", 64),
        ("100000", 64),
        ("1 2 3", 64),
        ("", 64),
        (b"\xff\x00", 64),
    ],
)
def test_reads_the_quota_of_a_container(cpu_max, expected, count):
    assert count("0::/", UNIFIED, {"sys/fs/cgroup/cpu.max": cpu_max}) == expected


def test_reads_the_quota_of_a_container_without_proc(count):
    assert count(None, None, {"sys/fs/cgroup/cpu.max": "300000 100000"}) == 3


@pytest.mark.parametrize(("inner", "outer", "expected"), [("2", "4", 2), ("4", "2", 2), ("max", "3", 3)])
def test_the_smallest_quota_of_nested_groups_counts(inner, outer, expected, count):
    files = {
        "sys/fs/cgroup/system.slice/job.service/cpu.max": f"{inner} 1",
        "sys/fs/cgroup/system.slice/cpu.max": f"{outer} 1",
        "sys/fs/cgroup/system.slice/other.service/cpu.max": "1 1",
        "sys/fs/cgroup/user.slice/cpu.max": "1 1",
    }
    assert count(JOB, UNIFIED, files) == expected


def test_groups_that_are_gone_or_unreadable_are_skipped(count, tmp_path):
    (tmp_path / "sys/fs/cgroup/system.slice/job.service/cpu.max").mkdir(parents=True)
    assert (
        count(JOB.replace("\n", "/gone (deleted)\n"), UNIFIED, {"sys/fs/cgroup/system.slice/cpu.max": "5 1"})
        == 5
    )


def test_reads_quotas_of_version_1(count):
    files = {
        **quota_v1("sys/fs/cgroup/cpu,cpuacct/pod/job", "-1"),
        **quota_v1("sys/fs/cgroup/cpu,cpuacct/pod", "350000"),
        **quota_v1("sys/fs/cgroup/cpu,cpuacct/other", "100000"),
        **quota_v1("sys/fs/cgroup/memory/other", "100000"),
    }
    assert count(V1_JOB, f"{V1}\n{MEMORY}\n", files) == 4


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
def test_knows_the_usual_folders_of_version_1(folder, count):
    assert count(None, None, quota_v1(f"sys/fs/cgroup/{folder}", "200000")) == 2


def test_a_quota_of_version_1_needs_both_files(count):
    files = quota_v1("sys/fs/cgroup/cpu", "200000")
    del files["sys/fs/cgroup/cpu/cpu.cfs_period_us"]
    assert count(None, None, files) == 64


def test_finds_a_group_of_which_only_a_part_is_mounted_elsewhere(count):
    mount = V1.replace("0:29 / /sys/fs/cgroup/cpu,cpuacct", r"0:29 /pod /my\040groups")
    assert count(V1_JOB, mount, quota_v1("my groups/job", "200000")) == 2


def test_the_smaller_quota_of_both_versions_counts(count):
    mounts = f"{V1}\n{UNIFIED.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')}"
    files = {
        **quota_v1("sys/fs/cgroup/cpu,cpuacct/pod/job", "500000"),
        "sys/fs/cgroup/unified/system.slice/job.service/cpu.max": "3 1",
    }
    assert count(V1_JOB + JOB, mounts, files) == 3


def test_does_not_leave_the_mounted_groups(count):
    files = {"sys/fs/cgroup/cpu.max": "9 1", "sys/fs/neighbour/cpu.max": "1 1"}
    assert count("0::/../neighbour", UNIFIED, files) == 9


@pytest.mark.parametrize(
    "garbled", ["", ":", "0:", "\n\n::", "0::/\0", "- cgroup2 x y", " / / - cgroup2", "\udcff"]
)
def test_garbled_descriptions_are_ignored(garbled, count):
    assert count(garbled, garbled, {}) == 64
    files = {"sys/fs/cgroup/cpu.max": "7 1", "sys/fs/cgroup/system.slice/cpu.max": "6 1"}
    assert count(None, UNIFIED, files) == 7
    assert count(f"{garbled}\n{JOB}", f"{garbled}\n{UNIFIED}\n{garbled}", files) == 6


def test_counts_at_most_the_cores_of_the_affinity(count, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert count("0::/", UNIFIED, {"sys/fs/cgroup/cpu.max": "4 1"}) == 2


def test_counts_the_cores_of_this_machine():
    assert 1 <= count_cpus() <= count_cpus(Path("/nowhere"))
