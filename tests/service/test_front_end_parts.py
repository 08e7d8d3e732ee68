"""Parts of a server of several front ends: merged metrics, the reserved port, divided limits."""

from __future__ import annotations

import socket

import pytest
from prometheus_client import Metric

from rescorer import ConfigError
from rescorer.service.front_ends import derive_front_end_settings, merge_metrics
from rescorer.service.listener import check_free, keep_port
from rescorer.service.settings import load_settings


def test_merges_metrics_of_front_ends():
    first = """
# HELP rescorer_lists_total Lists.
# TYPE rescorer_lists_total counter
rescorer_lists_total{model="m/1",code="OK"} 3
# TYPE rescorer_models_refused gauge
rescorer_models_refused 1
# TYPE rescorer_workers_alive gauge
rescorer_workers_alive 2
"""
    second = first.replace("} 3", "} 4").replace("refused 1", "refused 0")
    up = Metric("rescorer_front_ends_up", "Front ends that respond.", "gauge")
    up.add_sample(up.name, {}, 2)
    merged = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in merge_metrics({0: first, 2: second}, [up])
        for sample in family.samples
    }
    labels = ("code", "OK"), ("model", "m/1")
    assert merged == {
        ("rescorer_lists_total", labels[0], ("front_end", "0"), labels[1]): 3,
        ("rescorer_lists_total", labels[0], ("front_end", "2"), labels[1]): 4,
        ("rescorer_models_refused",): 1,
        ("rescorer_workers_alive",): 2,
        ("rescorer_front_ends_up",): 2,
    }


def test_a_reserved_port_is_refused_to_others():
    with keep_port("127.0.0.1", 0) as kept:
        address = kept.getsockname()
        for _ in range(2):
            with pytest.raises(ConfigError, match="cannot listen"):
                check_free(*address)
            with pytest.raises(ConfigError, match="cannot listen"):
                keep_port(*address)
            # gRPC listens like this in a front end.
            with socket.create_server(address, reuse_port=True), pytest.raises(ConfigError):
                check_free(*address)
    check_free(*address)


def test_front_ends_divide_the_limits_but_accept_a_full_message():
    defaults = derive_front_end_settings(load_settings(bundle="b", front_ends=2), 7)
    assert (defaults.max_in_flight_lists, defaults.max_streams, defaults.port) == (256, 128, 7)
    assert defaults.max_in_flight_tokens == 524_288  # as many as one message may hold
    settings = load_settings(bundle="b", front_ends=7, max_in_flight_tokens=7_000_000)
    many = derive_front_end_settings(settings, 7)
    assert (many.max_in_flight_lists, many.max_in_flight_tokens) == (128, 1_000_000)


@pytest.mark.parametrize(
    ("given", "message"), [({"workers": 0}, "cannot share a thread"), ({"shadow": "./s"}, "its own shadow")]
)
def test_rejects_settings_that_need_a_single_front_end(given, message):
    with pytest.raises(ConfigError, match=message):
        load_settings(bundle="b", front_ends=2, **given)
