"""``augment serve`` and ``augment work``: their flags. Only the module ``serving``, which does the work, loads gRPC."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from augment.errors import UsageError
from augment_server.ops.flags import grace, limit_options, limits_from, limits_of_work, origins, public_url

if TYPE_CHECKING:
    from augment_server.ops.serving import Settings

HELP = """Serve augmentation over gRPC: uploads, jobs, artifacts (docs/service.md).

Accepted work is kept in the state directory and survives crashes and restarts; one server uses it at a time.
Other machines can connect only with TLS, or if --insecure-listen says that something else protects the port. SIGTERM
ends the server: running jobs finish within --grace, others run again after the next start.
The address is printed on stdout, logs go to stderr.
"""
WORK_HELP = """Do the jobs of servers that share a catalog; serve nobody (docs/service.md).

Start any number, on any machine that reaches the database and the store. SIGTERM lets running jobs finish within
--grace. What a worker leaves when it is killed, another one does again.
"""
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_HELP = {"help_option_names": ["-h", "--help"]}
#: the options of ``augment work``, beside the limits of the work itself
_OF_WORK = {"state_dir", "catalog", "store", "roots", "prefixes", "outputs", "metrics_listen", "insecure_listen"}
_OF_WORK |= {"otlp_endpoint", "log_format", "grace_s", "debug", *limits_of_work()}


@click.command("serve", help=HELP, context_settings=_HELP)
@click.option(
    "--listen",
    default="127.0.0.1:50051",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0: any free port.",
)
@click.option(
    "--state-dir",
    type=_FOLDER,
    metavar="DIR",
    help="Folder for uploads and jobs.  [default: in the user's state directory; to work with --store a new one]",
)
@click.option(
    "--catalog",
    default="",
    metavar="URL",
    help="Keep jobs in PostgreSQL, such as postgresql://HOST/DATABASE, for several servers (extra [postgres]).",
)
@click.option(
    "--store",
    default="",
    metavar="URL",
    help="Keep uploads and artifacts in s3://BUCKET/PREFIX, gs://… or az://… instead (extra [store]).",
)
@click.option(
    "--role",
    type=click.Choice(["both", "front", "work"]),
    default="both",
    show_default=True,
    help="With --catalog: serve clients and do jobs; only serve clients (front); or only do jobs, as augment work.",
)
@click.option(
    "--allow-root",
    "roots",
    type=_FOLDER,
    multiple=True,
    metavar="DIR",
    help="Let jobs read traces below this folder of the server; repeatable.",
)
@click.option(
    "--allow-prefix",
    "prefixes",
    multiple=True,
    metavar="URL",
    help="Let jobs read traces below s3://BUCKET/PREFIX, gs://… or az://… (extra [store]); repeatable.",
)
@click.option(
    "--allow-output",
    "outputs",
    multiple=True,
    metavar="URL",
    help="Let jobs write outputs below this URL of a bucket; repeatable.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="If the state directory's database is lost or damaged, move all its content aside and start empty.",
)
@click.option(
    "--network-state",
    is_flag=True,
    help="Allow a state directory on a network file system, which one machine alone may use.",
)
@click.option(
    "--migrate-to",
    nargs=2,
    default=None,
    metavar="URL URL",
    help="Instead of serving: copy a state directory to an empty PostgreSQL database and a new store, and end.",
)
@click.option("--insecure-listen", is_flag=True, help="Allow addresses beyond this machine without TLS.")
@click.option("--tls-cert", type=_FILE, metavar="FILE", help="The server's certificate and its chain, PEM.")
@click.option("--tls-key", type=_FILE, metavar="FILE", help="The certificate's key, PEM.")
@click.option(
    "--tls-client-ca",
    type=_FILE,
    metavar="FILE",
    help="Require client certificates signed by one of these authorities, PEM.",
)
@click.option("--token-file", type=_FILE, metavar="FILE", help="Require one of the tokens in this file, one per line.")
@click.option(
    "--oidc-file",
    type=_FILE,
    metavar="FILE",
    help="Also take tokens of the identity providers in this TOML file (extra [oidc]).",
)
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    help="Serve Prometheus metrics on this address, with TLS if the service has it.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Also serve the calls over HTTP in JSON, with the same protection as --listen (extra [http]).",
)
@click.option(
    "--http-url",
    default="",
    callback=public_url,
    metavar="URL",
    help="Where people reach --http, such as https://traces.example.com: clients print links.  [default: --http, where "
    "that is on this machine alone]",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    callback=origins,
    metavar="URL",
    help="Let web pages of this server read over HTTP, such as https://ui.perfetto.dev; repeatable.",
)
@click.option("--otlp-endpoint", metavar="URL", help="Send traces of calls and jobs to OpenTelemetry (extra [otel]).")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--grace",
    "grace_s",
    default="25s",
    callback=grace,
    show_default=True,
    metavar="TIME",
    help="How long running jobs may continue after SIGTERM.",
)
@limit_options
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def serve(**values: Any) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    return _run({**values, "idle_exit_s": math.inf})


@click.command("work", help=WORK_HELP, context_settings=_HELP)
@click.option(
    "--idle-exit",
    "idle_exit_s",
    default=None,
    callback=grace,
    metavar="TIME",
    help="End when there was no job for this long, such as 5m.  [default: never]",
)
def work(**values: Any) -> int:
    """Do jobs until SIGTERM, Ctrl-C or --idle-exit."""
    idle_exit_s = math.inf if values["idle_exit_s"] is None else values["idle_exit_s"]
    return _run({**serve.make_context("serve", []).params, **values, "role": "work", "idle_exit_s": idle_exit_s})


work.params += [option for option in serve.params if option.name in _OF_WORK]


def _run(values: dict[str, Any]) -> int:
    if target := values.pop("migrate_to"):
        return _migrate(values, *target)
    settings = _settings(values)
    from augment_server.ops import serving

    return serving.serve(settings)


def _migrate(values: dict[str, Any], catalog: str, store: str) -> int:
    from augment.cli.terminal import emit, say
    from augment_server.ops.migrating import migrate

    if values["catalog"] or values["store"]:
        raise UsageError("--migrate-to: leave --catalog and --store out; it names both")
    _expect_catalog(catalog, "--migrate-to")
    if not (state := values["state_dir"]):
        raise UsageError("--migrate-to: name the --state-dir")
    migrate(state, catalog, store, lambda text: say(f"augment: {text}"))
    command = ["augment", "serve", "--catalog", catalog, "--store", store, "--state-dir", str(state.with_name("NEW"))]
    emit(shlex.join(command))
    return 0


def _expect_catalog(url: str, option: str) -> None:
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError(f"{option}: must be a URL such as postgresql://HOST/DATABASE")
    if "@" in url and ":" in url.partition("://")[2].partition("@")[0]:
        raise UsageError(f"{option}: leave the password out, others could read it; PGPASSFILE or PGSERVICE name a file")


def _settings(values: dict[str, Any]) -> Settings:
    """The settings that the flags give.

    Raises:
        UsageError: the flags contradict each other.
    """
    from augment_server.base.oidc import Issuers
    from augment_server.base.security import TlsFiles, Tokens, address, expect_safe
    from augment_server.ops.serving import Settings

    limits = limits_from(values)
    if values["catalog"]:
        _expect_catalog(values["catalog"], "--catalog")
    if values["role"] != "both" and not values["catalog"]:
        raise UsageError("--catalog: is missing; it says what other servers accept and do")
    cert, key, client_ca = (values.pop(name) for name in ("tls_cert", "tls_key", "tls_client_ca"))
    if bool(cert) != bool(key) or (client_ca and not cert):
        raise UsageError("--tls-cert and --tls-key need each other, and --tls-client-ca needs both")
    tls = TlsFiles(cert, key, client_ca) if cert else None
    insecure, token_file, oidc_file = (values.pop(name) for name in ("insecure_listen", "token_file", "oidc_file"))
    issuers = Issuers(oidc_file) if oidc_file else None
    listen = address(values.pop("listen"), "--listen")
    metrics = values.pop("metrics_listen")
    metrics_listen = address(metrics, "--metrics-listen") if metrics else None
    expect_safe(listen, "--listen", tls=bool(tls), insecure=insecure)
    http = address(given, "--http") if (given := values.pop("http")) else None
    if values["origins"] and not http:
        raise UsageError("--allow-origin needs --http: web pages speak no gRPC")
    if values["http_url"] and not http:
        raise UsageError("--http-url needs --http: it says where people reach that")
    for where, option in ((metrics_listen, "--metrics-listen"), (http, "--http")):
        if where:
            expect_safe(where, option, tls=bool(tls), insecure=insecure)
    return Settings(
        listen=listen,
        state=values.pop("state_dir") or _default_state(values),
        limits=limits,
        tls=tls,
        tokens=Tokens(token_file, issuers) if token_file or issuers else None,
        metrics_listen=metrics_listen,
        http=http,
        **values,
    )


def _default_state(values: dict[str, Any]) -> Path | None:
    if values["role"] == "work":
        if not values["store"]:
            raise UsageError("--state-dir: name the folder with the bytes that all servers share, or their --store")
        return None
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "kineto-augment"
