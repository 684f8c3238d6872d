"""Routes about the server itself: health, models, properties, slots, metrics."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from strata_plugin.engine.client import EngineState

from ..caller import CALLER
from ..errors import ApiError
from ..prometheus import render
from ..service import Service
from .body_schemas import TEXT
from .routes import get, json_reply, post


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the administrative routes to `router`."""

    async def health(_: Request) -> Response:
        if service.engine.state is EngineState.RESTARTING:
            raise ApiError(f"restarting: {service.engine.error}", "unavailable_error")
        return json_reply({"status": "ok"})

    async def models(_: Request) -> Response:
        return json_reply(model_list(service))

    async def props(_: Request) -> Response:
        return json_reply(properties(service))

    async def set_props(_: Request) -> Response:
        if not service.settings.endpoint_props:
            raise ApiError(
                "This server does not support changing global properties. Start it with `--props`",
                "not_supported_error",
            )
        return json_reply({"success": True})

    async def slots(request: Request) -> Response:
        if not service.settings.endpoint_slots:
            raise ApiError(
                "This server does not support slots endpoint. Start it with `--slots`",
                "not_supported_error",
            )
        found = await service.engine.slots()
        if request.query_params.get("fail_on_no_slot") and all(s["is_processing"] for s in found):
            raise ApiError("no slot available", "unavailable_error")
        return json_reply(found)

    async def queue(_: Request) -> Response:
        return json_reply(await service.engine.queue())

    async def cache(request: Request) -> Response:
        return json_reply(await service.engine.cache(request.scope[CALLER].tenant))

    async def explain(request: Request) -> Response:
        name = request.path_params["request_id"]
        found = await service.engine.explanation(request.scope[CALLER].tenant, name)
        if found is None:
            raise ApiError(f"there was no request '{name}' lately", "not_found_error")
        return json_reply(found)

    async def metrics(request: Request) -> Response:
        if not service.settings.endpoint_metrics:
            raise ApiError(
                "This server does not support metrics endpoint. Start it with `--metrics`",
                "not_supported_error",
            )
        # with ?peek=1 the averages since the last scrape go on: another one waits for them
        values = await service.engine.metrics(request.query_params.get("peek") != "1")
        return Response(
            render(values),
            headers={
                "content-type": "text/plain; version=0.0.4",
                "process-start-time-unix": str(STARTED),
            },
        )

    get(router, ("/health", "/v1/health"), health, "Whether requests are served")
    get(router, ("/v1/models", "/models"), models, "The loaded model")
    get(router, ("/props",), props, "Properties of the server and its model")
    post(router, ("/props",), set_props, "Change properties (accepted, changes nothing)", {})
    get(router, ("/slots",), slots, "What each slot does", {"fail_on_no_slot": TEXT})
    get(router, ("/queue",), queue, "Every request: where it stands and how long it may take")
    get(router, ("/cache",), cache, "What is kept of prompts: in the KV cache, in RAM, on disk")
    get(
        router,
        ("/cache/explain/{request_id:path}",),
        explain,
        "What of a request's prompt was found in the cache, and why the rest was not",
    )
    get(router, ("/metrics",), metrics, "Prometheus metrics", {"peek": TEXT})


STARTED = int(time.time())  # Unix time at which this process started


def model_list(service: Service) -> dict[str, Any]:
    """Body of GET /v1/models: Ollama's list and OpenAI's, as llama-server has both."""
    settings, ready = service.settings, service.ready
    name = settings.model_name
    return {
        "models": [
            {
                "name": name,
                "model": name,
                "modified_at": "",
                "size": "",
                "digest": "",
                "type": "model",
                "description": "",
                "tags": [""],
                "capabilities": ["completion"],
                "parameters": "",
                "details": {
                    "parent_model": "",
                    "format": "gguf",
                    "family": "",
                    "families": [""],
                    "parameter_size": "",
                    "quantization_level": "",
                },
            }
        ],
        "object": "list",
        "data": [
            {
                "id": name,
                "aliases": list(settings.aliases),
                "tags": list(settings.tags),
                "object": "model",
                "created": int(time.time()),
                "owned_by": "llamacpp",
                "meta": {
                    "vocab_type": ready.model.vocab_type,
                    "n_vocab": ready.model.n_vocab,
                    "n_ctx": ready.n_ctx_slot,
                    "n_ctx_train": ready.model.n_ctx_train,
                    "n_embd": ready.model.n_embd,
                    "n_params": ready.model.n_params,
                    "size": ready.model.size,
                    "ftype": ready.model.ftype,
                },
            }
        ],
    }


def properties(service: Service) -> dict[str, Any]:
    """Body of GET /props: llama-server's fields, and ours under "strata"."""
    settings, ready = service.settings, service.ready
    info, build = service.frontend_info, service.build_info
    reply: dict[str, Any] = {
        "default_generation_settings": {
            "params": info.get("default_params", {}),
            "n_ctx": ready.n_ctx_slot,
        },
        "total_slots": ready.n_slots,
        "model_alias": settings.model_name,
        "model_ftype": ready.model.ftype,
        "model_path": settings.model_path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": info.get("media_marker", ""),
        "endpoint_slots": settings.endpoint_slots,
        "endpoint_props": settings.endpoint_props,
        "endpoint_metrics": settings.endpoint_metrics,
        "ui": settings.ui,
        "ui_settings": settings.ui_settings,
        "chat_template": info.get("chat_template", ""),
        "chat_template_caps": info.get("chat_template_caps", {}),
        "bos_token": info.get("bos_token", ""),
        "eos_token": info.get("eos_token", ""),
        "build_info": build.get("build_info", ""),
        "is_sleeping": False,
        "cors_proxy_enabled": False,
        "strata": build.get("strata", {}),
    }
    tool_template = info.get("chat_template_tool_use")
    if settings.use_jinja and tool_template:
        reply["chat_template_tool_use"] = tool_template
    return reply
