"""The settings of the service: options override the environment and files, and all errors are reported at
once."""

from __future__ import annotations

import asyncio
import re
import socket
import tomllib

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from rescorer import BundleError, ConfigError
from rescorer.cli import app, exit_code
from rescorer.cli.serve import settings_options
from rescorer.service.server import Server
from rescorer.service.settings import ServiceSettings, describe_expected, load_settings, unknown_variables
from tests.conftest import REPOSITORY
from tools.docs import settings_page


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Write a settings file; the environment of the test run is cleared."""
    for name in ServiceSettings.model_fields:
        monkeypatch.delenv(f"RESCORER_{name.upper()}", raising=False)

    def write(text: str):
        path = tmp_path / "service.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def run_config(*arguments) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(app, ["config", *(str(argument) for argument in arguments)])
    return done.exit_code, done.stdout, done.exception


def test_options_override_the_environment_which_overrides_the_file(config, monkeypatch):
    path = config('bundle = "a"\nport = 1\nmax_lists = 2\ngrace_s = 3\n')
    monkeypatch.setenv("RESCORER_PORT", "11")
    monkeypatch.setenv("RESCORER_MAX_LISTS", "12")
    settings = load_settings(path, port="21", device=None)
    assert (settings.port, settings.max_lists, settings.grace_s) == (21, 12, 3.0)
    assert (str(settings.bundle), settings.device) == ("a", "cpu")
    monkeypatch.setenv("RESCORER_CONFIG", str(path))
    assert load_settings().max_lists == 12


def test_models_are_a_list_in_the_file_and_comma_separated_elsewhere(config, monkeypatch):
    path = config('repository = "r"\nmodels = ["a", "b/2"]\n')
    assert load_settings(path).models == ("a", "b/2")
    monkeypatch.setenv("RESCORER_MODELS", "c/1, d")
    assert load_settings(path).models == ("c/1", "d")


def test_reports_every_error_at_once_with_its_origin(config, monkeypatch):
    monkeypatch.setenv("RESCORER_MAX_WORDS", "none")
    path = config('prot = 5\ngrace_s = -1\nhost = "0.0.0.0"\nmodels = ["a"]\n')
    with pytest.raises(ConfigError) as caught:
        load_settings(path, port="x")
    message = str(caught.value)
    for part in (
        "port (option --port): ",
        "max_words (environment RESCORER_MAX_WORDS): ",
        f"grace_s (file {path}): ",
        f"prot (file {path}): no such setting; did you mean 'port'?",
        "bundle: expected either the bundle or the repository",
        "models: a given, but there is no repository",
        "allow_insecure",
    ):
        assert part in message
    with pytest.raises(ConfigError, match=r"port [^\n]*\n(.*\n)*  nowhere: no such bundle folder"):
        load_settings(bundle="nowhere", port="x")
    with pytest.raises(ConfigError, match="not both"):
        load_settings(bundle="a", repository="b")


@pytest.mark.parametrize(
    ("variable", "near"),
    [("MAX_BATCH_TOKNES", "max_batch_tokens"), ("acess", "access"), ("MODEL", "models"), ("PROT", "port")],
)
def test_misspelt_variables_are_errors(config, monkeypatch, variable, near):
    monkeypatch.setenv(f"RESCORER_{variable}", "1")
    _, out, error = run_config("--bundle", "a", "--port", "x")
    assert (out, exit_code(error)) == ("", 2)
    assert f"(environment RESCORER_{variable.upper()}): no such setting; did you mean {near!r}?" in str(error)
    assert "port (option --port)" in str(error)


@pytest.mark.parametrize(
    ("former", "name"), [("scorers", "workers"), ("scorer_timeout_s", "worker_timeout_s")]
)
def test_former_names_are_errors_that_name_the_new_ones(config, monkeypatch, former, name):
    flag = "--" + former.replace("_", "-")
    monkeypatch.setenv(f"RESCORER_{former.upper()}", "2")
    _, out, error = run_config("--bundle", "a", flag, "2")
    assert (out, exit_code(error)) == ("", 2)
    assert f"(environment RESCORER_{former.upper()}): no such setting; it is now called {name!r}" in str(
        error
    )
    assert f"no such option; it is now called '--{name.replace('_', '-')}'" in str(error)
    monkeypatch.delenv(f"RESCORER_{former.upper()}")
    with pytest.raises(ConfigError, match=f"no such setting; it is now called {name!r}"):
        load_settings(config(f'bundle = "a"\n{former} = 2\n'))


def test_unknown_variables_are_only_reported(config, monkeypatch, bundle):
    monkeypatch.setenv("RESCORER_IMAGE", "registry/rescorer:1")
    monkeypatch.setenv("RESCORER_CERTIFICATE", "a.pem")
    monkeypatch.setenv("RESCORER_MAX_LINE_BYTES", "5")
    done = CliRunner().invoke(app, ["config", "--bundle", str(bundle)])
    assert done.exit_code == 0
    assert sorted(done.stderr.splitlines()) == [
        "warning: environment RESCORER_CERTIFICATE: no such setting; did you mean 'tls_certificate'?",
        "warning: environment RESCORER_IMAGE: no such setting",
    ]


def test_kubernetes_service_variables_are_not_settings(config, monkeypatch):
    """Services called rescorer, rescorer-metrics and rescorer-envoy, with named ports."""
    links = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "50051",
        "SERVICE_PORT_GRPC": "50051",
        "PORT": "tcp://10.0.0.1:50051",
        "PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "PORT_50051_TCP_PROTO": "tcp",
        "PORT_50051_TCP_PORT": "50051",
        "PORT_50051_TCP_ADDR": "10.0.0.1",
        "METRICS_SERVICE_HOST": "10.0.0.2",
        "METRICS_PORT": "tcp://10.0.0.2:9464",
        "ENVOY_PORT_53_UDP": "udp://10.0.0.3:53",
    }
    for name, value in links.items():
        monkeypatch.setenv(f"RESCORER_{name}", value)
    assert list(unknown_variables(ServiceSettings)) == []
    settings = load_settings(bundle="a")
    assert (settings.port, settings.metrics_port) == (50051, None)
    monkeypatch.setenv("RESCORER_PORT", "many")
    with pytest.raises(ConfigError, match="RESCORER_PORT"):
        load_settings(bundle="a")


@pytest.mark.parametrize("text", ["port = ", "port: 5", "\xff"])
def test_names_a_file_that_is_not_toml(config, text):
    path = config(text)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"service\.toml: cannot be read as TOML"):
        load_settings(path)
    with pytest.raises(ConfigError, match="no such settings file"):
        load_settings(path.with_name("other.toml"))


def test_config_command_prints_a_usable_file_with_origins(config, monkeypatch, bundle, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'a "b"').symlink_to(bundle)
    path = config('bundle = "a \\"b\\""\nport = 1\n')
    monkeypatch.setenv("RESCORER_PORT", "11")
    code, out, _ = run_config("--config", path, "--allow-insecure", "--max-lists", 9)
    assert code == 0
    lines = dict(line.split("  # ") for line in out.splitlines() if not line.startswith("#"))
    whys = {key.split(" = ")[0]: why for key, why in lines.items()}
    assert whys["port"] == f"environment RESCORER_PORT; takes precedence over file {path} (1)"
    assert whys["max_lists"] == "option --max-lists"
    assert whys["bundle"] == f"file {path}"
    assert whys["device"] == "default"
    assert set(tomllib.loads(out)) <= set(ServiceSettings.model_fields)
    monkeypatch.delenv("RESCORER_PORT")
    expected = load_settings(path, port=11, allow_insecure=True, max_lists=9)
    assert load_settings(config(out)) == expected


def test_config_command_fails_with_the_errors(config):
    _, out, error = run_config("--port", "many", "--grace-s", "-1")
    assert out == ""
    assert isinstance(error, ConfigError)
    assert exit_code(error) == 2
    assert "port (option --port)" in str(error)
    assert "grace_s (option --grace-s)" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (("--bundle", "nowhere"), BundleError, "bundles: nowhere: no such bundle folder"),
        (("--repository", "."), BundleError, "bundles: .: no bundles; expected folders NAME/VERSION"),
        (("--repository", "..", "--models", "tiny,a/7"), BundleError, "bundles: ..: has no bundle a/7"),
        (("--bundle", "1", "--device", "foo"), ConfigError, "service settings: device 'foo' is not"),
        (
            ("--bundle", "nowhere", "--device", "foo", "--port", "x"),
            ConfigError,
            "service settings:\n  port (option --port): 'x'; expected an integer\n"
            "  device 'foo' is not available; torch has: cpu\n  nowhere: no such bundle folder",
        ),
    ],
)
def test_config_command_checks_bundles_and_device(config, monkeypatch, bundle, options, kind, message):
    monkeypatch.chdir(bundle.parent)
    _, out, error = run_config(*options)
    assert (out, type(error)) == ("", kind)
    assert str(error).startswith(message)


def test_unknown_options_are_reported_with_all_other_errors(config):
    _, out, error = run_config(
        "--bundel", "b", "--max_lists=5", "--admin", "--confg", "c", "--prot", "--port", "x"
    )
    assert (out, exit_code(error)) == ("", 2)
    assert str(error).splitlines() == [
        "service settings:",
        "  port (option --port): 'x'; expected an integer",
        "  --bundel (command line): no such option; did you mean '--bundle'?",
        "  --max_lists (command line): no such option; did you mean '--max-lists'?",
        "  --confg (command line): no such option; did you mean '--config'?",
        "  --prot (command line): no such option; did you mean '--port'?",
        "  bundle: expected either the bundle or the repository to serve",
        "  admin: expected access as well, a file that says which clients have the role admin",
    ]


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--listen", "; use '--host' and '--port'"),
        ("--bind", "; use '--host' and '--port'"),
        ("--address", "; use '--host' and '--port'"),
        ("--cert", "; use '--tls-certificate'"),
        ("--gpus", ""),
        ("--verbose", ""),
    ],
)
def test_suggests_only_near_options_and_those_with_other_names_elsewhere(config, flag, hint):
    _, _, error = run_config("--bundle", "a", flag, "x")
    assert f"  {flag} (command line): no such option{hint}" in str(error).splitlines()


@pytest.mark.parametrize("rest", [("models/starter/1",), ("-x",)])
def test_rejects_positional_and_short_arguments(config, rest):
    done = CliRunner().invoke(app, ["config", "--admin", *rest])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"no such option or argument: {rest[0]}" in done.stderr


def test_every_setting_is_an_explained_option():
    made = {option.name: option for option in settings_options()}
    assert list(made) == list(ServiceSettings.model_fields)
    for name, option in made.items():
        assert "--" + name.replace("_", "-") in option.opts
        assert option.help


def test_page_of_settings_is_up_to_date():
    page = (REPOSITORY / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert page == settings_page(), "run `make docs`"
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(ServiceSettings.model_fields)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": "many"}, "port (option --port): 'many'; expected an integer"),
        ({"port": 80_000}, "port (option --port): 80000; expected 65535 or less"),
        ({"grace_s": "-1"}, "grace_s (option --grace-s): '-1'; expected 0 or more"),
        ({"max_wait_s": "soon"}, "max_wait_s (option --max-wait-s): 'soon'; expected a number"),
        ({"max_wait_s": 0}, "max_wait_s (option --max-wait-s): 0; expected more than 0"),
        ({"dtype": "int9"}, "'int9'; expected 'float32', 'bfloat16', 'int8' or 'auto'"),
        ({"admin": "perhaps"}, "'perhaps'; expected true or false"),
        ({"access": {"a": 1}}, "{'a': 1}; expected a path, as text"),
        ({"host": 5}, "host (option --host): 5; expected text"),
        ({"models": 5}, "models (option --models): 5; expected names"),
        ({"trace_endpoint": "collector:4317"}, "'collector:4317'; expected text that begins with http://"),
        ({"port_file": "/no/such/port"}, "port_file: /no/such/port: expected an existing folder"),
        ({"dictionary": "/no/such/file"}, "dictionary: /no/such/file: expected a file of words and"),
    ],
)
def test_errors_state_the_value_and_what_was_expected(config, values, message):
    with pytest.raises(ConfigError) as caught:
        load_settings(bundle="x", **values)
    assert message in str(caught.value)


def test_every_kind_of_error_is_described_in_our_own_words(config):
    odd = [None, True, -1, 1.5, float("nan"), "", "x", [], [1], {"a": 1}, 10**30]
    for name in ServiceSettings.model_fields:
        for value in odd:
            try:
                ServiceSettings(**{name: value})
            except ValidationError as error:
                (finding, *_) = error.errors()
                assert describe_expected(finding).startswith("expected "), finding


def test_reports_an_address_that_is_not_available(bundle):
    async def start(**values) -> None:
        await Server(load_settings(bundle=bundle, **values)).start()

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError) as caught:
        asyncio.run(start(port=taken.getsockname()[1]))
    assert str(caught.value).startswith("the service cannot listen on 127.0.0.1:")
    assert str(caught.value).endswith(
        "another process does already; choose another port, or 0 for any free one"
    )
    for host in ("192.0.2.1", "nobody.invalid"):
        with pytest.raises(ConfigError, match=f"{host}:0: this machine has no such address$"):
            asyncio.run(start(port=0, host=host, allow_insecure=True))
