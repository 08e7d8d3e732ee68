"""Commands for people who run a server: ``rescorer serve``, ``config``, ``health`` and ``token``."""

from __future__ import annotations

import inspect
import json
import os
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rescorer.errors import ConfigError
from rescorer.terminal.help import GENERAL, GroupedCommand

if TYPE_CHECKING:
    from rescorer.service.settings import Given, ServiceSettings


COLLECTED = "settings"
"""The key of ``ctx.meta`` under which the given options are collected."""
SHORT_FLAGS = {"bundle": "-b"}


FIRST_SETTINGS = {
    "Models": "repository",
    "Address, clients and logs": "host",
    "Limits of requests": "max_message_bytes",
    "Work in flight": "max_in_flight_lists",
    "Processes and batches": "max_batch_tokens",
    "Connections": "max_connection_age_s",
}
"""The first setting of each group of options of ``rescorer serve``; the groups follow the order of the
settings."""


class SettingsCommand(GroupedCommand):
    """A command with an option for each setting of the server. It imports the settings when it runs."""

    def grouped_options(self, ctx: Any) -> dict[str, list[Any]]:
        """Return the options in the order of the settings, by the heading of their group."""
        shown = [option for option in self.get_params(ctx) if option.param_type_name == "option"]
        headings = {first: heading for heading, first in FIRST_SETTINGS.items()}
        settings = {option.name for option in settings_options()}
        groups: dict[str, list[Any]] = {GENERAL: []}
        heading = GENERAL
        for option in shown:
            heading = headings.get(option.name, heading) if option.name in settings else GENERAL
            groups.setdefault(heading, []).append(option)
        return groups

    def get_params(self, ctx: Any) -> list[Any]:
        return [*settings_options(), *super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line. Keep unknown options, which are reported together with all other errors."""
        ctx.ignore_unknown_options = ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        unknown = [argument.partition("=") for argument in rest if argument.startswith("--")]
        if rest and not unknown:
            ctx.fail(f"no such option or argument: {' '.join(rest)}")
        ctx.meta.setdefault(COLLECTED, {}).update({name: value for name, _, value in unknown})
        return rest


@cache
def settings_options() -> tuple[Any, ...]:
    """Make an option for each setting.

    The values of options are strings, so that the settings can check them and report all errors together.
    """
    from rescorer.service.settings import ServiceSettings

    def command() -> None: ...

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [option_parameter(name, field) for name, field in ServiceSettings.model_fields.items()]
    )
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return tuple(typer.main.get_command(app).params)


def option_parameter(name: str, field: Any) -> inspect.Parameter:
    """Make the parameter of a typer command for one setting."""
    from rescorer.service.settings import flag_of

    flag = flag_of(name)
    is_flag = field.annotation is bool
    names = [f"{flag}/--no-{flag[2:]}" if is_flag else flag]
    names += [SHORT_FLAGS[name]] if name in SHORT_FLAGS else []
    description = " ".join((field.description or "").replace("``", "").split())
    has_default = field.default is not False and field.default not in (None, (), "")
    option = typer.Option(
        *names,
        help=description + (f" (default {field.default})" if has_default else ""),
        metavar=None if is_flag else "VALUE",
        expose_value=False,
        callback=_collect,
    )
    kind = bool if is_flag else str
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _collect(ctx: typer.Context, option: typer.CallbackParam, value: str) -> None:
    ctx.meta.setdefault(COLLECTED, {})[option.name] = value


def collected_options(ctx: typer.Context) -> dict[str, Any]:
    """Return the value of each setting's option, None if it was not given, and unknown options by flag."""
    return ctx.meta[COLLECTED]


ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file of settings, named like the options.")
]


def serve(ctx: typer.Context, config: ConfigOption = None) -> None:
    """Re-rank n-best lists over gRPC until SIGTERM or SIGINT.

    Example: rescorer serve --bundle models/starter/1 --port 50051

    Every option can also be set in the environment (RESCORER_BUNDLE, RESCORER_PORT, …) and in a TOML file
    (bundle = "models/starter/1"). Options take precedence over the environment, and the environment over the
    file. `rescorer config` shows the resulting settings.
    """
    from rescorer.service.settings import ServiceSettings, check_settings, gather

    options = collected_options(ctx)

    def read_settings() -> dict[str, list[Given]]:
        return gather(ServiceSettings, config, options)

    settings = check_settings(read_settings(), check_machine=True)
    if settings.front_ends > 1:
        from rescorer.service.front_ends import supervise

        supervise(settings, config, options)
    else:
        from rescorer.service.server import serve as run  # imports grpc, which other commands do not need

        run(settings, lambda: check_settings(read_settings()))


MAX_VALUE_WIDTH = 50
"""Largest width to which settings are padded with spaces, so that the comments after them line up."""


def config(ctx: typer.Context, config: ConfigOption = None) -> None:
    """Show the settings that `rescorer serve` would run with, and where each of them comes from.

    Example: rescorer config --config service.toml --port 0

    Takes the same options, environment variables and file as `rescorer serve`, but does not start a server.
    Prints the settings as a TOML file, or all errors, one per line, including bundles and devices that this
    machine lacks.
    """
    from rescorer.service.settings import ServiceSettings, check_settings, gather, unknown_variables
    from rescorer.terminal.program import warn

    for variable, message in unknown_variables(ServiceSettings):
        warn(f"environment {variable}: {message}")
    values = gather(ServiceSettings, config, collected_options(ctx))
    for line in render_settings(check_settings(values, check_machine=True), values):
        typer.echo(line)


def render_settings(settings: ServiceSettings, values: dict[str, list[Given]]) -> list[str]:
    """Format each setting as a line: its value, where this comes from, and the values that it overrides."""
    texts = {name: to_toml(name, getattr(settings, name)) for name in type(settings).model_fields}
    width = min(max(len(text) for text in texts.values()), MAX_VALUE_WIDTH)
    lines = []
    for name, text in texts.items():
        sources = values.get(name, [])
        origin = sources[0].origin if sources else "default"
        if len(sources) > 1:
            others = ", ".join(f"{source.origin} ({source.value})" for source in sources[1:])
            origin += f"; takes precedence over {others}"
        lines.append(f"{text:{width}}  # {origin}")
    return lines


def to_toml(name: str, value: Any) -> str:
    """Format a setting as ``name = value``, or as the comment ``# name =`` if it has no value.

    The value is written as JSON, since strings, numbers and lists look the same in TOML.
    """
    if value is None:
        return f"# {name} ="
    plain = str(value) if isinstance(value, Path) else value
    return f"{name} = {json.dumps(plain, ensure_ascii=False)}"


DEFAULT_PORT = 50051


def find_target() -> str:
    """Return the address on this machine of a server with the settings of this environment.

    The port is that of RESCORER_PORT, or of the file that RESCORER_CONFIG names. Only this setting is read,
    without checks, because probes must be quick.

    Raises:
        ConfigError: the file cannot be read.
    """
    port: object = os.environ.get("RESCORER_PORT")
    if not port and (file := os.environ.get("RESCORER_CONFIG")):
        try:
            port = tomllib.loads(Path(file).read_text(encoding="utf-8")).get("port")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: cannot be read as TOML: {error}") from None
    return f"127.0.0.1:{port or DEFAULT_PORT}"


def health(
    target: Annotated[
        str | None,
        typer.Argument(
            help="Address of the server, as host:port; default: this machine, at RESCORER_PORT, or at the "
            "port in the file RESCORER_CONFIG, or at 50051."
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds to wait for the server to be ready.")
    ] = 2.0,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS; implied by the options below.")] = False,
    ca: Annotated[
        Path | None, typer.Option(help="PEM file of the authorities that may sign the server's certificate.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file of the client certificate to present.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="PEM file of the client certificate's private key.")
    ] = None,
    server_name: Annotated[str, typer.Option(help="Expected name in the server's certificate.")] = "",
    alive: Annotated[
        bool,
        typer.Option(
            "--alive",
            help="Only check that the server answers, ready or not; for probes that restart it otherwise.",
        ),
    ] = False,
) -> None:
    """Check that a server is ready, for probes: exit code 0, or 5 if this is not confirmed in time.

    Example: rescorer health 127.0.0.1:50051

    Prints the reason if the server is not ready, and which models serve although its repository has lost
    them. No token is needed.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our own message says what gRPC's log would
    from rescorer.client import NO_RETRY, Client, Tls

    target = target or find_target()
    use_tls = tls or ca is not None or certificate is not None or bool(server_name)
    identity = Tls(ca, certificate, key, server_name) if use_tls else None
    with Client(target, tls=identity, retry=NO_RETRY, only_ready=not alive) as client:
        if alive:
            client.check_alive(timeout_s)
            typer.echo(f"{target} answers")
            return
        client.wait_ready(timeout_s)
        missing = client.missing_models(timeout_s)
    typer.echo(f"{target} serves")
    if missing:
        typer.echo(f"from memory only, because they are missing on its disk: {', '.join(missing)}")


def token(
    name: Annotated[str, typer.Argument(help="Name of the client in logs.")],
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", help="Role of the client: score or admin; may be repeated. (default score)"),
    ] = None,
) -> None:
    """Create a token for a client of the service; the server's clients file only gets its hash.

    Example: rescorer token captions --role score >> access.toml

    The token itself is printed once, on stderr.
    """
    from rescorer.service.access import hash_token, new_token, parse_clients

    new = new_token()
    quoted = ", ".join(f'"{role}"' for role in roles or ["score"])
    entry = f'[[client]]\nname = "{name}"\nroles = [{quoted}]\ntoken_sha256 = ["{hash_token(new)}"]\n'
    parse_clients(entry, "the new entry")
    typer.echo(entry)
    typer.echo(f"token: {new}", err=True)
