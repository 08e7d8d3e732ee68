"""A job, and a folder with a plan of three shards."""

from __future__ import annotations

import pytest

from rescorer.jobs.plan import Division
from tests.support.sharding import N_LISTS, make_job, make_lines, plan_into, write_lines


@pytest.fixture
def job(ngram_bundle):
    return make_job(ngram_bundle)


@pytest.fixture
def store(job, tmp_path):
    """A plan of three shards."""
    lists = write_lines(tmp_path / "in.jsonl", make_lines(N_LISTS))
    return plan_into(tmp_path / "out", [lists], job, Division(3, "shards", None))
