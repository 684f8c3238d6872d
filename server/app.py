"""The FastAPI application: routes, error handlers and the gate around them."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from strata_plugin.engine.client import EngineGone

from .api import absent, admin, native, openai, slots
from .errors import NOT_FOUND, ApiError
from .failure import error_response
from .gate import Gate
from .service import Service
from .ui import page


def create_app(service: Service) -> ASGIApp:
    """The whole ASGI application for `service`; usable at once, serving 503 until
    `service.is_ready`.
    """
    return Gate(create_api(service), service)


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
    for module in (admin, native, openai, slots, absent):
        module.add_routes(router, service)
    if service.settings.ui:
        page.add_routes(router)
    app.include_router(router)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(EngineGone, _engine_gone)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _bug)
    return app


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):  # llama-server looks routes up by method and path together
        return error_response(NOT_FOUND)
    other = ApiError(str(error.detail))
    other.code = error.status_code
    return error_response(other)


async def _engine_gone(_: Request, error: Exception) -> Response:
    return error_response(ApiError(str(error), "unavailable_error"))


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _bug(_: Request, __: Exception) -> Response:
    # uvicorn logs the traceback: Starlette raises the exception again after this
    return error_response(ApiError("Internal server error", "server_error"))
