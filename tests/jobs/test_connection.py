"""What is known of a cluster before it runs anything, without Ray."""

from __future__ import annotations

import sys

import pytest

from rescorer.errors import ConfigError
from rescorer.jobs.cluster import Cluster, check_address, connect, import_ray


def node(cpus, gpus=0, alive=True):
    return {"Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus, "memory": 1e9}}


@pytest.mark.parametrize(
    ("asked", "nodes", "count"),
    [
        ({}, [node(2.0), node(3.0)], 5),
        ({"cpus": 2}, [node(3.0), node(5.0)], 3),
        ({}, [node(2.0), node(8.0, alive=False)], 2),
        ({"gpus": 0.25}, [node(16.0, 2.0), node(16.0)], 8),
        ({"gpus": 0.1}, [node(16.0, 1.0)], 10),
        ({"gpus": 0.4}, [node(16.0, 2.0)], 4),  # no worker gets parts of two GPUs
        ({"gpus": 0.5}, [node(1.0, 4.0)], 1),
        ({}, [], 0),
    ],
)
def test_counts_workers_that_fit(asked, nodes, count):
    assert Cluster(**asked).count_fitting(nodes) == count


@pytest.mark.parametrize(
    "address", ["", "auto", "head:6379", "10.0.0.1:6379", "[::1]:6379", "ray://head:10001"]
)
def test_accepts_addresses(address):
    check_address(address)


@pytest.mark.parametrize(
    "address", ["head", "http://head:6379", "head:", "ray://head", "a b:1", "head:1234567"]
)
def test_refuses_what_is_not_an_address(address):
    with pytest.raises(ConfigError, match="expected auto, HOST:PORT or ray://HOST:PORT"):
        check_address(address)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://localhost:{}"])
def test_says_that_nothing_answers(form, unused_port):
    with (
        pytest.raises(ConfigError, match="Connection refused: no Ray cluster answers there"),
        connect(Cluster(form.format(unused_port))),
    ):
        pass


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "no-such-host.invalid:6379"])
def test_says_that_an_address_cannot_be_one(address):
    with pytest.raises(ConfigError, match="no Ray cluster answers there"), connect(Cluster(address)):
        pass


def test_says_how_to_install_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'rescorer\[ray\]'"):
        import_ray()
