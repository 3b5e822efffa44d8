"""``--server`` and the options for its connection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from augment.cli.options import Function
from augment.cli.terminal import say
from augment.errors import UsageError

if TYPE_CHECKING:
    from augment.client import Client

_FILE = click.Path(dir_okay=False, path_type=Path)


def server_options(function: Function) -> Function:
    """``--server``, ``--forget``, ``--patience``, ``--token-file``, ``--tls`` and its files."""
    for option in (
        click.option("--tls-key", type=_FILE, metavar="FILE", help="The key of the client certificate, PEM."),
        click.option("--tls-cert", type=_FILE, metavar="FILE", help="Client certificate, if the server requires one."),
        click.option("--tls-ca", type=_FILE, metavar="FILE", help="Use TLS with this certificate authority, PEM."),
        click.option("--tls", is_flag=True, help="Use TLS with the system's certificate authorities."),
        click.option("--token-file", type=_FILE, metavar="FILE", help="A file with the token for the server."),
        click.option(
            "--patience",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help="How long to wait for a server that is full, busy or being restarted.  [default: 600]",
        ),
        click.option("--forget", is_flag=True, help="Have the server remove each trace as soon as its job is done."),
        click.option("--server", metavar="HOST:PORT", help="Run on this server (augment serve)."),
    ):
        function = option(function)
    return function


@contextlib.contextmanager
def client_of(
    server: str | None,
    forget: bool,
    patience: float | None,
    token_file: Path | None,
    tls: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> Iterator[Client | None]:
    """The client for the given options; None without ``--server``.

    Raises:
        UsageError: an option without ``--server``, an unusable file, or gRPC is not installed.
    """
    if server is None:
        files = {"--token-file": token_file, "--tls-ca": tls_ca, "--tls-cert": tls_cert, "--tls-key": tls_key}
        for name, value in {"--forget": forget, "--patience": patience is not None, "--tls": tls, **files}.items():
            if value:
                raise UsageError(f"{name}: needs --server HOST:PORT")
        yield None
        return
    try:
        from augment.client import PATIENCE_S, Client, Tls
    except ImportError as error:
        raise UsageError(f"--server: {error}") from error
    secured = Tls(tls_ca, tls_cert, tls_key) if tls or tls_ca or tls_cert or tls_key else False
    patience_s, said = PATIENCE_S if patience is None else patience, set[str]()

    def waiting(what: str) -> None:
        if what not in said:
            said.add(what)
            say(f"augment: {server}: {what}; waiting for up to {patience_s:g} s")

    token = _token(token_file)
    with Client(server, token=token, tls=secured, patience_s=patience_s, waiting=waiting, forget=forget) as client:
        yield client


def _token(file: Path | None) -> str | None:
    """The first non-empty line of the file.

    Raises:
        UsageError: there is none.
    """
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from error
    for line in lines:
        if line.strip() and not line.startswith("#"):
            return line.strip()
    raise UsageError(f"--token-file {file}: the file contains no token")
