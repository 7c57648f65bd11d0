"""``doctor``: what is wrong where Spark runs, and what to do."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from connector.cli.output import FOUND_WRONG, JsonOption, show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT_PORT = 15002
_ANSWERS_WITHIN_S = 10


def doctor(
    master: Annotated[
        str | None,
        typer.Option(help="Master of the session; by default what Spark is configured with."),
    ] = None,
    remote: Annotated[
        str | None, typer.Option(help="URL of a Spark Connect server, such as sc://host:15002.")
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(help="Directory or URI that driver and executors are to share."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Setting of the session; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a Spark session, and find what is wrong with driver, executors and storage.

    Exit status 1 where a problem was found.
    """
    if master is not None and remote is not None:
        msg = "--master and --remote exclude each other"
        raise typer.BadParameter(msg)
    settings = dict(_setting(text) for text in conf or ())

    def start() -> SparkSession:
        from pyspark.sql import SparkSession

        if server.startswith("sc:"):
            _check_answers(server)
        builder = SparkSession.builder.appName("arrow-shuffle doctor")
        if master is not None:
            builder = builder.master(master)
        if remote is not None:
            builder = builder.remote(remote)
        else:
            quiet = {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
            settings.update(quiet | settings)
        for name, value in settings.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    from connector.environment.report import check_before_session

    server = remote or (os.environ.get("SPARK_REMOTE", "") if master is None else "")
    report = check_before_session(start, path, is_remote=server.startswith("sc:"))
    show(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(FOUND_WRONG)


def _check_answers(url: str) -> None:
    """Raise ConnectionError where nothing listens, for which a client waits minutes."""
    if any(os.environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _CONNECT_PORT
    try:
        socket.create_connection((host, port), _ANSWERS_WITHIN_S).close()
    except OSError as error:
        msg = f"{host}:{port} does not answer ({error})"
        raise ConnectionError(msg) from error


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        msg = f"--conf {text}: expected NAME=VALUE"
        raise typer.BadParameter(msg)
    return name, value
