"""The FastAPI application: routes, error handlers and the gate around them."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Scope

from strata_plugin.engine.client import EngineGone

from .api import (
    absent,
    admin,
    anthropic,
    embeddings,
    lora,
    native,
    openai,
    responses,
    slots,
    streams,
)
from .errors import NOT_FOUND, ApiError, form_of
from .failure import error_response
from .gate import Gate
from .service import Service
from .ui.pages import Pages

MODULES = (
    admin,
    native,
    openai,
    responses,
    anthropic,
    embeddings,
    lora,
    slots,
    streams,
    absent,
)


def create_app(service: Service, built_page: Path | None = None) -> ASGIApp:
    """The whole ASGI application for `service`; usable at once, serving 503 until
    `service.is_ready`. `built_page` is the folder of llama-server's own page, where there is one.
    """
    api = create_api(service)

    def is_route(scope: Scope) -> bool:
        return any(route.matches(scope)[0] is Match.FULL for route in api.routes)

    return Gate(api, service, Pages(service.settings, built_page, is_route))


def create_api(service: Service) -> FastAPI:
    """The routes alone (for the OpenAPI document)."""
    prefix = service.settings.api_prefix
    app = FastAPI(
        title="Strata",
        description="An engine with llama-server's API.",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        openapi_url=prefix + "/openapi.json",
        redirect_slashes=False,
    )
    router = APIRouter(prefix=prefix)
    for module in MODULES:
        module.add_routes(router, service)
    app.include_router(router)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(EngineGone, _engine_gone)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _bug)
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _told(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):  # llama-server looks routes up by method and path together
        return _told(request, NOT_FOUND)
    other = ApiError(str(error.detail))
    other.code = error.status_code
    return _told(request, other)


async def _engine_gone(request: Request, error: Exception) -> Response:
    return _told(request, ApiError(str(error), "unavailable_error"))


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _bug(request: Request, _: Exception) -> Response:
    # uvicorn logs the traceback: Starlette raises the exception again after this
    return _told(request, ApiError("Internal server error", "server_error"))


def _told(request: Request, error: ApiError) -> Response:
    return error_response(error, form_of(request.url.path))
