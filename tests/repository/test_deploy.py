"""Check the files in deploy/ against the schemas of the programs that read them, and against the server."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rescorer.cli import main
from rescorer.protocol.messages import LIVENESS
from rescorer.service.access import hash_token
from rescorer.service.settings import ServiceSettings, load_settings
from tests.conftest import REPOSITORY
from tests.support.servers import run_server
from tests.support.tiny_models import write_bundle

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")

DEPLOY = REPOSITORY / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
ENVIRONMENT_PROGRAMS = str(Path(sys.executable).parent)


def find_program(name: str) -> str:
    """Find a program in this environment or on the PATH; skip the test if it is not installed."""
    path = shutil.which(name, path=ENVIRONMENT_PROGRAMS) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def run_program(*command: str | Path) -> str:
    """Run a program that must succeed; return its output."""
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def read_manifests() -> dict[str, dict]:
    """Read all resources that kustomization.yaml names, by kind."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    resources = [
        resource for name in names for resource in yaml.safe_load_all((KUBERNETES / name).read_text())
    ]
    by_kind = {resource["kind"]: resource for resource in resources}
    assert len(by_kind) == len(resources)
    return by_kind


def read_pod_spec() -> dict:
    return read_manifests()["Deployment"]["spec"]["template"]["spec"]


def validate_manifest(resource: dict) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    schemas.validate(resource, "1.32", strict=True)


@pytest.mark.parametrize("kind", sorted(read_manifests()))
def test_manifest_is_valid(kind):
    validate_manifest(read_manifests()[kind])


def test_schema_detects_a_misspelt_field():
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    invalid = read_manifests()["Deployment"]
    invalid["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(invalid, "1.32", strict=True)


def test_kustomize_builds_valid_manifests():
    resources = list(yaml.safe_load_all(run_program(find_program("kubectl"), "kustomize", KUBERNETES)))
    assert {resource["kind"] for resource in resources} == {*read_manifests(), "ConfigMap"}
    for resource in resources:
        validate_manifest(resource)
    (deployment,) = (resource for resource in resources if resource["kind"] == "Deployment")
    (settings,) = (resource for resource in resources if resource["kind"] == "ConfigMap")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert settings["metadata"]["name"] in [volume.get("configMap", {}).get("name") for volume in volumes]


def test_selectors_and_ports_match_the_pods():
    manifests = read_manifests()
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        manifests["Deployment"]["spec"]["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    (container,) = read_pod_spec()["containers"]
    port_names = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in manifests["Service"]["spec"]["ports"]} == port_names
    rules = manifests["NetworkPolicy"]["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == port_names
    assert manifests["Service"]["spec"]["clusterIP"] == "None"
    target = manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", manifests["Deployment"]["metadata"]["name"])


def test_kubernetes_settings_are_valid_and_match_the_pods(tmp_path):
    file_settings = tomllib.loads((KUBERNETES / "service.toml").read_text())
    (container,) = read_pod_spec()["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(Path(file_settings["access"]).parent) in mounts
    assert file_settings["repository"] in mounts
    access = tmp_path / "access.toml"
    access.write_text(f'[[client]]\nname = "a"\nroles = ["score"]\ntoken_sha256 = ["{hash_token("t")}"]\n')
    settings = load_settings(**(file_settings | {"access": access, "repository": tmp_path}))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": settings.port, "metrics": settings.metrics_port}
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["grpc"]["port"] == settings.port
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert read_pod_spec()["terminationGracePeriodSeconds"] >= settings.grace_s + pause_s + 5


def test_probes_wait_for_models_to_load_and_notice_a_server_that_hangs():
    (container,) = read_pod_spec()["containers"]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    file_settings = tomllib.loads((KUBERNETES / "service.toml").read_text())
    load_timeout_s = file_settings.get(
        "load_timeout_s", ServiceSettings.model_fields["load_timeout_s"].default
    )
    assert startup["periodSeconds"] * startup["failureThreshold"] >= load_timeout_s
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    assert liveness["grpc"]["service"] == LIVENESS  # a server that hangs still accepts connections
    assert all("timeoutSeconds" in container[f"{name}Probe"] for name in ("startup", "readiness", "liveness"))


def test_secrets_are_not_readable_by_everybody_and_a_publisher_can_write_models():
    secrets = [volume["secret"] for volume in read_pod_spec()["volumes"] if "secret" in volume]
    assert len(secrets) == 2
    assert not any(secret.get("defaultMode", 0o644) & 0o007 for secret in secrets)
    assert read_manifests()["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_systemd_restarts_for_five_minutes_and_keeps_a_server_that_loses_a_worker():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / "systemd" / "rescorer.service")
    starts, pause_s = int(unit["Unit"]["StartLimitBurst"]), int(unit["Service"]["RestartSec"])
    start_s = 5  # a failing start takes one or two seconds
    assert starts * pause_s >= 300
    assert starts * (pause_s + start_s) <= int(unit["Unit"]["StartLimitIntervalSec"])
    assert unit["Service"]["OOMPolicy"] == "continue"


def test_containers_of_compose_reap_processes_and_rotate_logs():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert service["init"]
        assert service["pids_limit"]
        assert {"max-size", "max-file"} <= set(service["logging"]["options"])


def test_autoscaler_uses_a_metric_that_the_adapter_derives_from_an_exported_one():
    metric = read_manifests()["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    (rule,) = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert rule["name"]["as"] == metric
    metric_names = set(re.findall(r"rescorer_\w+", rule["metricsQuery"] + rule["seriesQuery"]))
    documented = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert metric_names == {"rescorer_queue_seconds_sum", "rescorer_queue_seconds_count"}
    assert "`rescorer_queue_seconds` | histogram" in documented


def test_training_job_is_valid_and_its_command_is_understood():
    from torch.distributed.run import get_args_parser

    service, job = yaml.safe_load_all((DEPLOY / "training" / "job.yaml").read_text())
    validate_manifest(service)
    validate_manifest(job)
    pod = job["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["spec"]["volumes"]
    }
    launch = shlex.split(container["args"][0].replace("\\\n", " "))
    arguments = get_args_parser().parse_args(launch[launch.index("torchrun") + 1 :])
    assert (arguments.module, arguments.training_script) == (True, "rescorer_training")
    assert int(arguments.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
    first_pod = f"{job['metadata']['name']}-0.{pod['spec']['subdomain']}"
    assert arguments.rdzv_endpoint.partition(":")[0] == first_pod
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    command, *options = arguments.training_script_args
    reference = (REPOSITORY / "docs" / "reference" / "rescorer-train.md").read_text()
    section = reference.partition(f"## rescorer-train {command}\n")[2].partition("\n## ")[0]
    assert section
    assert {option for option in options if option.startswith("--")} <= set(re.findall(r"--[a-z-]+", section))
    folder = options[options.index("-o") + 1]
    assert f"{folder}/state.safetensors" in launch


def test_pods_of_the_ray_job_are_valid_and_its_command_is_understood():
    """The schema of the RayJob itself comes with KubeRay, and is not checked."""
    job = yaml.safe_load((DEPLOY / "ray" / "rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    for template in (cluster["headGroupSpec"]["template"], workers["template"]):
        validate_manifest({"apiVersion": "v1", "kind": "Pod", **template})
        (container,) = template["spec"]["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in template["spec"]["volumes"]
        }
    program, command, source, *arguments = shlex.split(job["spec"]["entrypoint"])
    reference = (REPOSITORY / "docs" / "reference" / "rescorer.md").read_text()
    section = reference.partition(f"## {program} {command}\n")[2].partition("\n## ")[0]
    names = [argument for argument in arguments if argument.startswith("-")]
    assert set(names) <= set(re.findall(r"(?<![a-z-])--?[a-z][a-z-]*", section))
    options = {name: arguments[arguments.index(name) + 1] for name in names if name != "--resume"}
    n_cpus = int(workers["rayStartParams"]["num-cpus"])
    assert container["resources"]["requests"]["cpu"] == str(n_cpus)
    assert int(options["--workers"]) * int(options["--threads"]) == workers["replicas"] * n_cpus
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    for path in (source, options["-o"], options["--bundle"]):
        assert any(path.startswith(f"{place}/") for place in places)


def test_compose_file_is_valid_and_mounts_existing_files():
    compose_spec = pytest.importorskip("compose_spec", reason="compose-spec is not installed")
    text = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", (DEPLOY / "compose.yaml").read_text())
    compose = yaml.safe_load(text)
    compose_spec.PyCompose.from_yaml(text)
    compose_spec.models.ComposeSpecification.model_validate(compose)
    for name, service in compose["services"].items():
        # The schema accepts unknown keys.
        assert service.keys() <= compose_spec.models.Service.model_fields.keys(), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
            else:
                assert source in compose["volumes"]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for config in job["static_configs"] for target in config["targets"]]
    assert {target.split(":")[0] for target in targets} <= compose["services"].keys()
    build = compose["services"]["rescorer"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert yaml.safe_load((DEPLOY / "grafana" / "datasource.yaml").read_text())["datasources"][0]["url"] == (
        "http://prometheus:9090"
    )


def read_image_variables() -> dict[str, str]:
    dockerfile = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return dict(re.findall(r"RESCORER_(\w+)=(\S+)", dockerfile))


def test_server_accepts_the_settings_of_the_image_and_the_compose_file(monkeypatch):
    variables = read_image_variables()
    assert {name.lower() for name in variables} <= ServiceSettings.model_fields.keys()
    for name, value in variables.items():
        monkeypatch.setenv(f"RESCORER_{name}", value)
    command = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["rescorer"]["command"]
    options = ["config", *command[1:], "--repository", str(REPOSITORY / "models")]
    monkeypatch.setattr(sys, "argv", ["rescorer", *options])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    settings = load_settings(repository=REPOSITORY / "models", allow_insecure=True)
    exposed = re.search(r"^EXPOSE (.*)$", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert exposed is not None
    assert exposed[1].split() == [str(settings.port), str(settings.metrics_port)]


def test_dockerfile_is_valid_and_copies_existing_files():
    run_program(find_program("hadolint"), DEPLOY / "Dockerfile")
    text = (DEPLOY / "Dockerfile").read_text()
    sources = [part for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M) for part in line.split()[:-1]]
    included = {
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert set(sources) == included
    assert all((REPOSITORY / source).exists() for source in sources)
    final_stage = text.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in final_stage
    assert read_pod_spec()["securityContext"]["runAsUser"] == 10001
    probe = json.loads(re.search(r"HEALTHCHECK [^\[]*CMD (\[.*\])", final_stage)[1])
    assert probe == ["rescorer", "health"]  # which finds the port as the server does


ACCEPTED_FINDINGS = {
    "CKV_DOCKER_7": "the base image is an argument of the build",
    "CKV_K8S_11": "a limit of processor time makes calls late; requests share the cores",
    "CKV_K8S_14": "the tag is that of kustomization.yaml, or of the image that you build",
    "CKV_K8S_21": "the namespace is that of kustomization.yaml, or of `kubectl apply -n`",
    "CKV_K8S_43": "a digest needs a registry",
    "CKV2_K8S_6": "a training has no network policy, since its data may be anywhere",
}
"""What checkov says of files alone, and why it stays."""


@pytest.mark.parametrize("framework", ["dockerfile", "kubernetes"])
def test_checkov_finds_nothing_but_what_is_accepted(framework):
    command = find_program("checkov"), "-d", DEPLOY, "--framework", framework
    report = json.loads(run_program(*command, "--skip-download", "--soft-fail", "-o", "json"))
    found = {finding["check_id"] for finding in report["results"]["failed_checks"]}
    assert report["summary"]["passed"] > 0
    assert found <= ACCEPTED_FINDINGS.keys()


def test_systemd_unit_is_valid(tmp_path):
    unit = DEPLOY / "systemd" / "rescorer.service"
    parsed = configparser.ConfigParser(strict=True, interpolation=None)
    parsed.optionxform = str
    parsed.read_string(unit.read_text())
    service = parsed["Service"]
    assert float(service["TimeoutStopSec"]) >= ServiceSettings.model_fields["grace_s"].default + 5
    command = service["ExecStart"].split()
    checked_unit = tmp_path / "rescorer.service"
    checked_unit.write_text(unit.read_text().replace(command[0], "/bin/true"))
    assert run_program(find_program("systemd-analyze"), "verify", checked_unit) == ""


def test_health_command_returns_an_exit_code(tmp_path, unused_tcp_port, monkeypatch, capsys):
    def check_health(port: int, *more: str) -> object:
        options = ["health", f"127.0.0.1:{port}", "--timeout-s", "1", *more]
        monkeypatch.setattr(sys, "argv", ["rescorer", *options])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code

    with run_server(write_bundle(tmp_path, neural=False), load=False) as server:
        assert check_health(server.port) == 5
        assert check_health(server.port, "--alive") == 0
        server.load()
        assert check_health(server.port) == 0
    assert check_health(unused_tcp_port) == check_health(unused_tcp_port, "--alive") == 5
    assert "serves" in capsys.readouterr().out


@pytest.fixture
def unused_tcp_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
