"""Simulated fleets: arrivals, the smallest fleet, the autoscaler and the commands."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import Hypothesis, NBestList
from rescorer.bench.load import (
    ServiceTimes,
    encode_calls,
    measure_service_times,
    read_service_times,
    write_service_times,
)
from rescorer.errors import ConfigError, FormatError, InvalidList
from tests.conftest import REPOSITORY
from tests.support.clients import make_list
from tests.support.servers import run_server
from tools.simulate_fleet.autoscaling import Autoscaler, AutoscalerSettings, simulate_autoscaling
from tools.simulate_fleet.fleet import ServerShape, draw_fleet_arrivals, find_replicas, route, simulate_fleet
from tools.simulate_fleet.replica import (
    Pattern,
    constant,
    draw_arrivals,
    exponential,
    lognormal,
    measured,
    parse_service_times,
)

TIMES = ServiceTimes({1: (0.01, 0.03), 4: (0.06, 0.04)}, {1: (0.002, 0.004), 4: (0.004, 0.008)})
STEADY, BURSTS = Pattern(), Pattern(3, 5, 20)


@pytest.mark.parametrize("pattern", [STEADY, BURSTS])
def test_arrivals_have_the_rate_and_the_spread_of_their_pattern(pattern):
    arrivals = draw_arrivals(50, 20_000, pattern, np.random.default_rng(1))
    assert len(arrivals) / 20_000 == pytest.approx(50, rel=0.05)
    assert (np.diff(arrivals) >= 0).all()
    counts = np.histogram(arrivals, np.arange(0, 20_001))[0]
    dispersion = counts.var() / counts.mean()
    assert dispersion == pytest.approx(1, abs=0.05) if pattern is STEADY else dispersion > 5


@settings(deadline=None)
@given(n_lists=st.integers(0, 500), replicas=st.integers(1, 20), seed=st.integers(0, 9))
def test_routes_lists_evenly(n_lists, replicas, seed):
    chosen = route(n_lists, replicas, np.random.default_rng(seed))
    counts = np.bincount(chosen, minlength=replicas)
    assert len(counts) == replicas
    assert counts.max() - counts.min() <= 16  # one for each caller


def test_finds_the_smallest_fleet_within_the_limit():
    times, shape = exponential(0.02), ServerShape(1, 1)
    best = find_replicas(times, shape, 200, STEADY, 200, 20_000)
    assert best is not None
    assert best.p99_ms <= 200
    arrivals = draw_fleet_arrivals(200, STEADY, 20_000, 0)
    assert simulate_fleet(times, shape, best.replicas, arrivals, 20_000, 1) == best
    assert simulate_fleet(times, shape, best.replicas - 1, arrivals, 20_000, 1).p99_ms > 200
    in_bursts = find_replicas(times, shape, 200, BURSTS, 200, 20_000)
    assert in_bursts is not None
    assert in_bursts.replicas > best.replicas
    assert find_replicas(constant(0.3), shape, 200, STEADY, 200, 2_000) is None


def test_some_replicas_of_a_large_fleet_stand_for_all():
    times, shape = exponential(0.02), ServerShape(1, 1)
    arrivals = draw_fleet_arrivals(1000, STEADY, 100_000, 0)
    some = simulate_fleet(times, shape, 40, arrivals, 30_000)
    assert some.p99_ms == pytest.approx(simulate_fleet(times, shape, 40, arrivals, 100_000).p99_ms, rel=0.1)


def test_autoscaler_follows_its_settings():
    limits = AutoscalerSettings(0.05, min_replicas=2, max_replicas=30, cool_down_s=60, down_period_s=30)
    autoscaler = Autoscaler(limits)
    assert autoscaler.decide(0, 4, 0.052) == 4  # within the tolerance
    assert autoscaler.decide(15, 4, 0.06) == 5
    assert autoscaler.decide(30, 5, 1.0) == 8  # at most twice as many as a minute ago
    assert autoscaler.decide(91, 8, 1.0) == 16
    assert autoscaler.decide(150, 16, 0.0) == 16  # the wish for more is still remembered
    assert autoscaler.decide(155, 16, 0.0) == 15
    assert autoscaler.decide(170, 15, 0.0) == 15
    assert autoscaler.decide(185, 15, 0.0) == 14
    assert autoscaler.decide(1000, 2, 0.0) == 2


def test_autoscaler_settings_are_those_of_the_deployment():
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    text = (REPOSITORY / "deploy" / "kubernetes" / "autoscaling.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    up, down = spec["behavior"]["scaleUp"], spec["behavior"]["scaleDown"]
    assert (
        spec["metrics"][0]["pods"]["target"]["averageValue"]
        == f"{1e3 * AutoscalerSettings().target_queue_s:g}m"
    )
    assert (spec["minReplicas"], spec["maxReplicas"]) == (
        AutoscalerSettings().min_replicas,
        AutoscalerSettings().max_replicas,
    )
    assert (up["policies"][0]["value"], up["policies"][0]["periodSeconds"]) == (
        100,
        AutoscalerSettings().up_period_s,
    )
    assert down["stabilizationWindowSeconds"] == AutoscalerSettings().cool_down_s
    assert down["policies"][0]["periodSeconds"] == AutoscalerSettings().down_period_s


def test_an_elastic_fleet_grows_when_the_load_does_and_loses_no_list():
    limits = AutoscalerSettings(0.02, max_replicas=50, cool_down_s=60, down_period_s=15)

    def rate_at(time_s: np.ndarray) -> np.ndarray:
        return np.where((time_s >= 600) & (time_s < 1500), 200.0, 20.0)

    ticks = simulate_autoscaling(exponential(0.02), ServerShape(1, 1), limits, rate_at, STEADY, 3600, seed=3)
    sizes = {tick.time_s: tick.replicas for tick in ticks}
    assert sizes[585] == 2
    assert max(sizes.values()) >= 5
    assert sizes[3585] < max(sizes.values())
    n_expected = 900 * 200 + 2700 * 20
    assert sum(len(tick.response_s) for tick in ticks) == pytest.approx(n_expected, rel=0.02)


def test_measured_times_are_drawn_and_batches_are_as_efficient_as_measured(tmp_path):
    write_service_times(TIMES, tmp_path / "times.json")
    assert read_service_times(tmp_path / "times.json") == ServiceTimes(
        {1: [0.01, 0.03], 4: [0.06, 0.04]}, {1: [0.002, 0.004], 4: [0.004, 0.008]}
    )
    model = parse_service_times(str(tmp_path / "times.json"))
    assert model.efficiency == pytest.approx({1: 1, 4: 0.625})
    assert (model.mean_s, model.front_s) == pytest.approx((0.02, 0.0015))
    assert set(model.draw(100, np.random.default_rng(0))) == {0.01, 0.03}
    assert measured(TIMES).capacity_per_s(1, 4) == pytest.approx(80)


def test_distributions_have_their_mean_and_variation():
    generator = np.random.default_rng(0)
    for text, variation in (("constant:20", 0), ("exponential:20", 1), ("lognormal:20:0.5", 0.5)):
        drawn = parse_service_times(text).draw(200_000, generator)
        assert drawn.mean() == pytest.approx(0.02, rel=0.02)
        assert drawn.std() == pytest.approx(0.02 * variation, rel=0.03)
    assert lognormal(1.0, 0.5).mean_s == 1


@pytest.mark.parametrize(
    "text", ["exponential", "exponential:x", "constant:-1", "lognormal:5", "constant:nan"]
)
def test_refuses_distributions_that_are_none(text):
    with pytest.raises(ConfigError, match="expected exponential:MS"):
        parse_service_times(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"worker_s": {"1": []}, "front_s": {"1": []}}',
        '{"worker_s": {"1": [0]}, "front_s": {"1": [1]}}',
        '{"worker_s": {"1": [-1]}, "front_s": {"1": [1]}}',
        '{"worker_s": {"1": [1e999]}, "front_s": {"1": [1]}}',
        '{"worker_s": {"2": [1]}, "front_s": {"2": [1]}}',
        '{"worker_s": {"1": [1], "2": [1]}, "front_s": {"1": [1]}}',
        '{"worker_s": 5, "front_s": 6}',
        "[" * 100_000,
    ],
)
def test_refuses_files_of_other_content(tmp_path, text):
    path = tmp_path / "times.json"
    path.write_text(text)
    with pytest.raises(FormatError, match="not a file of `rescorer load --service-times`"):
        read_service_times(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_service_times(tmp_path / "missing.json")


def run_command(*options: object) -> str:
    command = (sys.executable, "-m", "tools.simulate_fleet", *map(str, options))
    process = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_commands_print_tables_and_draw(tmp_path):
    plot = tmp_path / "plot.svg"
    rows = run_command(
        "replicas", "exponential:15", "--rates", "10,50", "--lists", 2000, "--plot", plot, "--json"
    )
    assert [json.loads(line)["arrivals"] for line in rows.splitlines()] == ["Poisson", "bursts"] * 2
    assert plot.read_text().lstrip().startswith("<?xml")
    table = run_command(
        "autoscale", "constant:15", "--hours", 0.1, "--high", 100, "--targets-ms", 20, "--plot", plot
    )
    assert table.splitlines()[2].startswith("| 20 | ")


@pytest.mark.slow
def test_compares_itself_with_a_real_server(ngram_bundle, tmp_path):
    lists = tmp_path / "lists.jsonl"
    lists.write_text(
        "".join(
            json.dumps({"id": f"u{i}", "hypotheses": [{"text": f"the mat {i}", "scores": {"acoustic": -i}}]})
            + "\n"
            for i in range(9)
        )
    )
    times = tmp_path / "times.json"
    table = run_command(
        "check", lists, "--bundle", ngram_bundle, "--seconds", 1, "--shares", 0.5, "-o", times
    )
    assert [float(cell) > 0 for cell in table.splitlines()[-1].split("|")[1:-1]] == [True] * 6
    assert set(read_service_times(times).worker_s) == {1, 2, 4, 8}


@pytest.mark.slow
def test_refuses_to_measure_lists_that_cannot_be_scored(ngram_bundle):
    calls = encode_calls([make_list("u1"), NBestList("unscored", (Hypothesis("the cat"),))], "default")
    with run_server(ngram_bundle) as server, pytest.raises(InvalidList, match=r"unscored.*acoustic"):
        measure_service_times(server.target, calls, 0.1)
