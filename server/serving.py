"""The life of the server: HTTP first, then the model, then serving until a signal or the engine
ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn

from strata_plugin import kernels
from strata_plugin.build.ui import built_ui
from strata_plugin.engine.client import EngineClient, EngineGone, EngineState
from strata_plugin.engine.config import EngineConfig

from .app import create_app
from .banner import ready_text
from .information import native_build, version
from .service import Service
from .settings import ServerSettings
from .sockets import BACKLOG, Listener
from .turns import Turns, pieces_of

log = logging.getLogger("strata.server")

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they close them first
GRACE_S = 1.0  # how long replies may take to end when the server stops


def serve(
    settings: ServerSettings,
    config: EngineConfig,
    engine: EngineClient,
    listeners: Sequence[Listener],
) -> int:
    """Run until stopped; returns the exit code."""
    life = Life(settings, config, engine, listeners)
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(life.run())
    code: int = uvloop.run(life.run())
    return code


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `Life`."""
        yield


class Life:
    """Everything that runs, and how it ends."""

    def __init__(
        self,
        settings: ServerSettings,
        config: EngineConfig,
        engine: EngineClient,
        listeners: Sequence[Listener],
    ):
        self._settings = settings
        self._config = config
        self._engine = engine
        self._listeners = listeners
        self._service = Service(settings, engine)
        self._stop = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Serve until a signal comes or the engine ends; returns the exit code."""
        await self._engine.start()
        http = HttpServer(
            uvicorn.Config(
                create_app(self._service, built_ui()),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=1,
                backlog=BACKLOG,
                ssl_certfile=self._settings.ssl_cert_file or None,
                ssl_keyfile=self._settings.ssl_key_file or None,
                ssl_ciphers=None,  # OpenSSL's own choice
            )
        )
        self._handle_signals()
        sockets = [listener.socket for listener in self._listeners]
        serving = asyncio.ensure_future(http.serve(sockets=sockets))
        loading = asyncio.ensure_future(self._load_and_watch())
        await asyncio.wait(
            {serving, loading, asyncio.ensure_future(self._stop.wait())},
            return_when=asyncio.FIRST_COMPLETED,
        )
        if serving.done():  # nothing of ours ends it
            self._fail(f"the HTTP server has ended: {serving.exception()}")
        loading.cancel()
        if self._engine.state in (EngineState.READY, EngineState.RESTARTING):
            await self._service.drain(self._settings.drain_s)
        self._service.close()
        http.should_exit = True
        patience = GRACE_S if self._engine.state is EngineState.READY else 0.1
        await asyncio.gather(serving, self._engine.stop(patience), return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        return self._exit_code

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            os._exit(1)  # the second time: at once; the engine sees its socket close and ends
        log.info("stopping")
        self._stop.set()

    async def _load_and_watch(self) -> None:
        """Open the doors when everything is loaded; then return only when that has failed, or the
        server stops.
        """
        try:
            await self._load()
        except EngineGone as error:
            self._fail(str(error))
            return
        except Exception as error:
            log.debug("loading failed", exc_info=True)
            self._fail(getattr(error, "message", "") or str(error) or type(error).__name__)
            return
        for listener in self._listeners:
            print(ready_text(listener.url, self._settings, self._service.ready), flush=True)
        await self._engine.wait_ended()
        if self._engine.state is EngineState.FAILED:
            self._fail(self._engine.error)
            log.error("requests are answered with 503 until the server is started again")
            await self._stop.wait()

    async def _load(self) -> None:
        """Vocabulary and engine side by side, then the frontend, which needs both."""
        from strata_plugin.runtime.library import log_to_stderr
        from strata_plugin.runtime.model import VocabularyModel
        from strata_plugin.runtime.native import Frontend

        log_to_stderr(min(self._settings.verbosity, 2))  # the rest is the engine's to tell

        service, config = self._service, self._config
        vocabulary = asyncio.ensure_future(service.beside(VocabularyModel, config.model.path))
        try:
            ready = await self._engine.wait_ready()
        except EngineGone:
            vocabulary.cancel()
            raise
        model = await vocabulary
        fields = {**config.frontend, "n_ctx_slot": ready.n_ctx_slot, "templates": True}
        frontend = await service.beside(Frontend, model.handle, fields)
        service.build_info = build_info()
        service.open_doors(frontend, Turns(pieces_of(model)))
        gc.collect()
        gc.freeze()  # what was loaded stays: keep the collector's pauses short

    def _fail(self, reason: str) -> None:
        print(f"strata-server: {reason}", file=sys.stderr)
        self._exit_code = 1


def build_info() -> dict[str, Any]:
    """What GET /props tells about the build: llama-server's `build_info` and our own object."""
    build = native_build()
    return {
        "build_info": f"b{build['build_number']}-{build['llama_commit']}",
        "strata": {
            "version": version(),
            "patches": build["patches"],
            "llama_commit": build["llama_commit"],
            "kernels": kernels.states(build["patches"]),
        },
    }
