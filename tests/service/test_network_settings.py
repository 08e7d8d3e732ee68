"""How a server's networks score is set: products in other types, and the memory for contexts."""

from __future__ import annotations

import re

import pytest

from rescorer import ConfigError, Hypothesis, NBestList, Rescorer
from rescorer.client import Client
from rescorer.models.kernels import is_int8_exact
from rescorer.service.settings import ServiceSettings, load_settings
from tests.conftest import REPOSITORY
from tests.support.servers import run_server

pytestmark = pytest.mark.slow

CONTEXT = "the cat sat on the mat " * 3
LISTS = [
    NBestList("u1", (Hypothesis("the dog ran"), Hypothesis("the dog")), {"acoustic": (-1.0, -2.0)}, CONTEXT),
    NBestList(
        "u2", (Hypothesis("fast"), Hypothesis("")), {"acoustic": (-1.0, -2.0)}, CONTEXT + "the dog ran"
    ),
]
needs_int8 = pytest.mark.skipif(not is_int8_exact(), reason="this CPU has no exact 8-bit products")


def components(answers: list) -> list[float]:
    return [each.components["neural"] for answer in answers for each in answer.hypotheses]


@pytest.mark.parametrize(("dtype", "workers"), [("bfloat16", 1), pytest.param("int8", 0, marks=needs_int8)])
def test_a_server_scores_in_the_type_it_was_told(bundle, library, dtype, workers):
    expected = components(Rescorer.load(bundle, dtype=dtype).rescore(LISTS))
    exact = components(library.rescore(LISTS))
    with run_server(bundle, dtype=dtype, workers=workers) as server, Client(server.target) as client:
        for _ in range(2):  # the second time the contexts are known
            assert components(client.rescore(LISTS)) == pytest.approx(expected, abs=1e-6)
    assert max(abs(a - b) for a, b in zip(expected, exact, strict=True)) > 1e-4


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
def test_a_servers_networks_have_the_memory_it_was_told(bundle, library, max_bytes):
    with run_server(bundle, context_cache_bytes=max_bytes) as server, Client(server.target) as client:
        for _ in range(2):
            assert components(client.rescore(LISTS)) == pytest.approx(
                components(library.rescore(LISTS)), abs=1e-4
            )
        contexts = server.scorer.models["neural"].context_cache
        assert (contexts.max_bytes, len(contexts)) == (max_bytes, 2 if max_bytes else 0)


def test_settings_that_no_network_could_follow_are_refused():
    with pytest.raises(ConfigError, match=r"dtype is int8, which is for CPUs; expected .* on cuda"):
        load_settings(bundle="b", dtype="int8", device="cuda")
    with pytest.raises(
        ConfigError, match=r"dtype \(option --dtype\): .*'float32', 'bfloat16', 'int8' or 'auto'"
    ):
        load_settings(bundle="b", dtype="float16")


def test_the_table_of_networks_has_their_defaults():
    text = (REPOSITORY / "docs/how-to/serve.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| how networks score \|.*?\n\n", text, re.DOTALL)
    told = {name: value.strip('"') for name, value in re.findall(r"`(\w+) = ([^`]+)`", table)}
    names = ("device", "dtype", "context_cache_bytes")
    assert told == {name: str(ServiceSettings.model_fields[name].default) for name in names}
