"""The admin port of a process, over HTTP: `/metrics` for Prometheus, `/health` for people and probes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import prometheus_client

from .runtime import Runtime
from .startup import StartupError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


@asynccontextmanager
async def serving_admin(address: str, runtime: Runtime) -> AsyncIterator[int]:
    """Serves the admin port while the body runs; yields its number.

    Args:
        address: `HOST:PORT`; port 0 takes a free one.
        runtime: whose metrics and health are shown.

    Raises:
        StartupError: the address cannot be taken.
    """
    host, _, port = address.rpartition(":")
    prometheus_client.ProcessCollector(registry=runtime.metrics)
    prometheus_client.PlatformCollector(registry=runtime.metrics)
    try:
        server, thread = prometheus_client.start_http_server(int(port), host or "127.0.0.1", registry=runtime.metrics)
    except (OSError, OverflowError, ValueError) as error:
        raise StartupError(
            "admin port", f"cannot listen on {address}: {error}", "set REACH_ADMIN_ADDRESS to HOST:PORT"
        ) from error
    server.set_app(_with_health(prometheus_client.make_wsgi_app(runtime.metrics), runtime))
    try:
        yield server.server_port
    finally:
        # It looks for its end twice a second; the event loop has better things to do than to wait for that.
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


def _with_health(metrics: WSGIApplication, runtime: Runtime) -> WSGIApplication:
    """Adds `/health`: 200 while the service takes calls, else 503, and a line from each part that has something to say."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/health":
            return metrics(environ, start_response)
        serving = runtime.serving
        details = {name: tell() for name, tell in runtime.details.copy().items()}
        body = json.dumps({"status": "serving" if serving else "not serving", "details": details}).encode() + b"\n"
        start_response(
            "200 OK" if serving else "503 Service Unavailable",
            [("Content-Type", "application/json"), ("Content-Length", str(len(body)))],
        )
        return [body]

    return application
