"""``augment serve`` and ``augment work``: the gRPC service. It is a separate package, loaded by name on use."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import click

from augment.errors import UsageError


class Served(click.Command):
    """Stands in for a command of the service, which is loaded only when it is used."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the service's own command."""
        return self._brought().make_context(info_name, args, parent, **extra)

    def get_help(self, ctx: click.Context) -> str:
        """The help of the service's own command."""
        brought = self._brought()
        return brought.get_help(click.Context(brought, ctx.parent, info_name=ctx.info_name))

    def _brought(self) -> click.Command:
        """The service's own command.

        Raises:
            UsageError: the service or one of its requirements is not installed.
        """
        for package in ("augment_server", "grpc", "grpc_health", "grpc_reflection", "prometheus_client"):
            if importlib.util.find_spec(package) is None:
                raise UsageError(f"the service needs {package}: pip install 'kineto-augment[service]'")
        command: click.Command = getattr(importlib.import_module("augment_server.ops.main"), str(self.name))
        return command


command = Served("serve", short_help="Serve augmentation over gRPC.")
work = Served("work", short_help="Do the jobs of servers that share a catalog.")
