"""What lies in deploy/: valid by the schemas of those who read it, and in step with the server."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rescorer.cli import main
from rescorer.service.net.clients_file import hash_of
from rescorer.service.preflight import load_settings
from rescorer.service.settings import ServiceSettings
from tests.conftest import REPOSITORY
from tests.support.servers import run_server
from tests.support.tiny_models import write_bundle

yaml = pytest.importorskip("yaml")

DEPLOY = REPOSITORY / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
TOOLS = str(Path(sys.executable).parent)


def tool(name: str) -> str:
    path = shutil.which(name, path=TOOLS) or shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} here")
    return path


def checked_by(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def manifests() -> dict[str, dict]:
    """Every resource that kustomization.yaml names, by kind."""
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    found = [each for name in listed for each in yaml.safe_load_all((KUBERNETES / name).read_text())]
    by_kind = {each["kind"]: each for each in found}
    assert len(by_kind) == len(found)
    return by_kind


def pod() -> dict:
    return manifests()["Deployment"]["spec"]["template"]["spec"]


def valid_manifest(resource: dict) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    schemas.validate(resource, "1.32", strict=True)


@pytest.mark.parametrize("kind", sorted(manifests()))
def test_a_manifest_fits_the_schema_of_kubernetes(kind):
    valid_manifest(manifests()[kind])


def test_the_schema_would_tell_a_mistake():
    schemas = pytest.importorskip("kubernetes_validate")
    wrong = manifests()["Deployment"]
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, "1.32", strict=True)


def test_kustomize_builds_what_is_valid():
    built = list(yaml.safe_load_all(checked_by(tool("kubectl"), "kustomize", KUBERNETES)))
    assert {each["kind"] for each in built} == {*manifests(), "ConfigMap"}
    for each in built:
        valid_manifest(each)
    (deployment,) = (each for each in built if each["kind"] == "Deployment")
    (settings,) = (each for each in built if each["kind"] == "ConfigMap")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert settings["metadata"]["name"] in [each.get("configMap", {}).get("name") for each in volumes]


def test_selectors_find_the_pods_and_names_of_ports_are_theirs():
    every = manifests()
    labels = every["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selected in (
        every["Deployment"]["spec"]["selector"]["matchLabels"],
        every["Service"]["spec"]["selector"],
        every["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        every["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selected.items() <= labels.items()
    (container,) = pod()["containers"]
    ports = {each["name"] for each in container["ports"]}
    assert {each["targetPort"] for each in every["Service"]["spec"]["ports"]} == ports
    rules = every["NetworkPolicy"]["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == ports
    assert every["Service"]["spec"]["clusterIP"] == "None"
    target = every["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", every["Deployment"]["metadata"]["name"])


def test_the_settings_of_kubernetes_are_the_servers_and_fit_the_pods(tmp_path):
    written = tomllib.loads((KUBERNETES / "service.toml").read_text())
    (container,) = pod()["containers"]
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert str(Path(written["access"]).parent) in mounts
    assert written["repository"] in mounts
    access = tmp_path / "access.toml"
    access.write_text(f'[[client]]\nname = "a"\nroles = ["score"]\ntoken_sha256 = ["{hash_of("t")}"]\n')
    settings = load_settings(**(written | {"access": access, "repository": tmp_path}))
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": settings.port, "metrics": settings.metrics_port}
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["grpc"]["port"] == settings.port
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] >= settings.grace_s + pause_s + 5


def test_the_autoscaler_reads_a_metric_that_the_adapter_makes_of_one_that_is_exported():
    metric = manifests()["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    (rule,) = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert rule["name"]["as"] == metric
    named = set(re.findall(r"rescorer_\w+", rule["metricsQuery"] + rule["seriesQuery"]))
    documented = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert named == {"rescorer_queue_seconds_sum", "rescorer_queue_seconds_count"}
    assert "`rescorer_queue_seconds` | histogram" in documented


def test_compose_fits_its_specification_and_mounts_what_is_there():
    spec = pytest.importorskip("compose_spec")
    text = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", (DEPLOY / "compose.yaml").read_text())
    composed = yaml.safe_load(text)
    spec.PyCompose.from_yaml(text)
    spec.models.ComposeSpecification.model_validate(composed)
    for name, service in composed["services"].items():
        assert service.keys() <= spec.models.Service.model_fields.keys(), name  # unknown ones are let through
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
            else:
                assert source in composed["volumes"]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    read = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    scraped = [each for job in read for part in job["static_configs"] for each in part["targets"]]
    assert {each.split(":")[0] for each in scraped} <= composed["services"].keys()
    build = composed["services"]["rescorer"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert yaml.safe_load((DEPLOY / "grafana" / "datasource.yaml").read_text())["datasources"][0]["url"] == (
        "http://prometheus:9090"
    )


def variables_of_the_image() -> dict[str, str]:
    dockerfile = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return dict(re.findall(r"RESCORER_(\w+)=(\S+)", dockerfile))


def test_the_image_and_the_composition_start_with_settings_that_the_server_takes(monkeypatch):
    variables = variables_of_the_image()
    assert {name.lower() for name in variables} <= ServiceSettings.model_fields.keys()
    for name, value in variables.items():
        monkeypatch.setenv(f"RESCORER_{name}", value)
    command = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["rescorer"]["command"]
    options = ["config", *command[1:], "--repository", str(REPOSITORY / "models")]
    monkeypatch.setattr(sys, "argv", ["rescorer", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    settings = load_settings(repository=REPOSITORY / "models", allow_insecure=True)
    exposed = re.search(r"^EXPOSE (.*)$", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert exposed is not None
    assert exposed[1].split() == [str(settings.port), str(settings.metrics_port)]


def test_the_dockerfile_is_sound_and_copies_what_is_there():
    checked_by(tool("hadolint"), DEPLOY / "Dockerfile")
    text = (DEPLOY / "Dockerfile").read_text()
    sources = [part for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M) for part in line.split()[:-1]]
    let_in = {
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert set(sources) == let_in
    assert all((REPOSITORY / each).exists() for each in sources)
    last = text.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in last
    assert pod()["securityContext"]["runAsUser"] == 10001
    assert json.loads(re.search(r"HEALTHCHECK .*CMD (\[.*\])", last)[1])[:2] == ["rescorer", "health"]


def test_the_systemd_unit_is_sound(tmp_path):
    unit = DEPLOY / "systemd" / "rescorer.service"
    parsed = configparser.ConfigParser(strict=True, interpolation=None)
    parsed.optionxform = str
    parsed.read_string(unit.read_text())
    service = parsed["Service"]
    assert float(service["TimeoutStopSec"]) >= ServiceSettings.model_fields["grace_s"].default + 5
    command = service["ExecStart"].split()
    there = tmp_path / "rescorer.service"
    there.write_text(unit.read_text().replace(command[0], "/bin/true"))
    assert checked_by(tool("systemd-analyze"), "verify", there) == ""


def test_health_is_an_exit_code(tmp_path, unused_tcp_port, monkeypatch, capsys):
    def code(port: int) -> object:
        options = ["health", f"127.0.0.1:{port}", "--timeout-s", "1"]
        monkeypatch.setattr(sys, "argv", ["rescorer", *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    with run_server(write_bundle(tmp_path, neural=False), load=False) as server:
        assert code(server.port) == 5
        server.load()
        assert code(server.port) == 0
    assert code(unused_tcp_port) == 5
    assert "serves" in capsys.readouterr().out


@pytest.fixture
def unused_tcp_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
