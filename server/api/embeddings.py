"""Embeddings (llama-server's form and OpenAI's) and ranks (Jina's form and TEI's).

Sources: https://platform.openai.com/docs/api-reference/embeddings, https://jina.ai/reranker,
https://huggingface.github.io/text-embeddings-inference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from strata_plugin.engine.messages import Embed, Failed

from ..bodies import read_body
from ..caller import CALLER
from ..dialects.fields import Object, expect, read_object
from ..errors import ApiError
from ..failure import failed
from ..lifetime import wait
from ..own_fields import OwnFields
from ..service import Service
from ..vectors import Vectors, in_base64, normalised
from . import body_schemas
from .routes import json_body, json_reply, post


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""

    async def openai(request: Request) -> Response:
        body = await _body(service, request)
        if service.ready.pooling == "none" and "content" not in body:
            raise ApiError(
                "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
            )
        return await _answer(_embeddings(service, request, body), request)

    async def native(request: Request) -> Response:
        body = await _body(service, request)
        return await _answer(_native_embeddings(service, request, body), request)

    async def rank(request: Request) -> Response:
        if service.ready.pooling != "rank":
            raise ApiError(
                "This server does not support reranking. Start it with `--reranking`",
                "not_supported_error",
            )
        body = await _body(service, request)
        return await _answer(_ranks(service, request, body), request)

    post(
        router,
        ("/v1/embeddings",),
        openai,
        "Embed texts (OpenAI's form)",
        json_body("input", fields=body_schemas.EMBEDDINGS),
    )
    post(
        router,
        ("/embeddings", "/embedding"),
        native,
        "Embed texts (llama-server's form)",
        json_body("content", fields=body_schemas.EMBEDDINGS),
    )
    post(
        router,
        ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking"),
        rank,
        "Rank documents by how well they answer a query",
        json_body("query", "documents", fields=body_schemas.RERANK),
    )


async def _body(service: Service, request: Request) -> Object:
    if not service.settings.embeddings:
        raise ApiError(
            "This server does not support embeddings. Start it with `--embeddings`",
            "not_supported_error",
        )
    raw = await read_body(request, service.settings.timeout)
    body = await service.native_call(read_object, raw, size=len(raw))
    body[OwnFields.__name__] = await service.own_fields(raw, request.scope[CALLER].tenant)
    return body


async def _answer(work: Awaitable[Any], request: Request) -> Response:
    """The JSON reply; a client that leaves stops the work."""
    worker = asyncio.ensure_future(work)
    try:
        if not await wait(worker, request.receive):
            return Response(status_code=499)  # nobody reads it
        return json_reply(worker.result())
    finally:
        worker.cancel()


# ---- embeddings ----------------------------------------------------------------------------------


async def _embeddings(service: Service, request: Request, body: Object) -> Any:
    if "input" not in body:
        return await _native_embeddings(service, request, body)
    vectors, n_tokens = await _vectors(service, request, body)
    base64 = _format(body) == "base64"
    data = []
    for index, found in enumerate(vectors):
        shown: Object = {
            "embedding": in_base64(found[0]) if base64 else _numbers(found[0]),
            "index": index,
            "object": "embedding",
        }
        data.append({**shown, "encoding_format": "base64"} if base64 else shown)
    return {
        "model": body.get("model", service.settings.model_name),
        "object": "list",
        "usage": {"prompt_tokens": sum(n_tokens), "total_tokens": sum(n_tokens)},
        "data": data,
    }


async def _native_embeddings(service: Service, request: Request, body: Object) -> Any:
    vectors, _ = await _vectors(service, request, body)
    return [
        {"index": index, "embedding": [_numbers(row) for row in found]}
        for index, found in enumerate(vectors)
    ]


def _format(body: Object) -> str:
    wanted = body.get("encoding_format", "float")
    if wanted not in ("float", "base64"):
        raise ApiError(
            "The format to return the embeddings in. Can be either float or base64"
        )
    return str(wanted)


async def _vectors(
    service: Service, request: Request, body: Object
) -> tuple[list[Vectors], list[int]]:
    """What each input becomes, and how many tokens it had."""
    _format(body)
    given = body.get("input", body.get("content"))
    if given is None:
        raise ApiError('"input" or "content" must be provided')
    how = expect(
        body.get("embd_normalize", service.settings.embd_normalize), int, "embd_normalize"
    )
    if service.ready.pooling == "none":
        how = -1
    width = expect(body.get("dimensions", 0), int, "dimensions")
    raw = orjson.dumps(given)
    found = await service.native_call(service.frontend.embedding_inputs, raw, size=len(raw))
    inputs = _read_inputs(found)
    if not inputs:
        raise ApiError('"input" must not be empty')
    if not all(inputs):
        raise ApiError("Input content cannot be empty")
    vectors = await _compute(service, request, body, inputs)
    largest = vectors[0].shape[1]
    if not 0 <= width <= largest:
        raise ApiError(f"dimensions: expected 1 to {largest}")
    if width:
        vectors = [v[:, :width] for v in vectors]
    return [normalised(v, how) for v in vectors], [len(ids) for ids in inputs]


def _read_inputs(found: bytes) -> list[list[int]]:
    inputs: list[list[int]] = orjson.loads(found)
    return inputs


async def _compute(
    service: Service, request: Request, body: Object, inputs: list[list[int]]
) -> list[Vectors]:
    caller = request.scope[CALLER]
    own: OwnFields = body[OwnFields.__name__]
    work = Embed(
        request_id=service.engine.next_id(),
        inputs=tuple(np.array(ids, "<i4").tobytes() for ids in inputs),
        tenant=caller.tenant,
        priority=own.priority,
        dialect="embeddings",
        client=caller.client,
        name=caller.request_id,
    )
    answer = await service.engine.embed(work)
    if isinstance(answer, Failed):
        raise failed(answer)
    none = service.ready.pooling == "none"
    return [
        np.frombuffer(data, "<f4").reshape(len(ids) if none else 1, -1)
        for data, ids in zip(answer.vectors, inputs, strict=True)
    ]


def _numbers(vector: Vectors) -> list[float]:
    """As llama-server shows them: every digit of the float32."""
    numbers: list[float] = vector.astype(np.float64).tolist()
    return numbers


# ---- ranks ---------------------------------------------------------------------------------------


async def _ranks(service: Service, request: Request, body: Object) -> Any:
    if "query" not in body:
        raise ApiError('"query" must be provided')
    if not isinstance(body["query"], str):
        raise ApiError('"query" must be a string')
    tei = "texts" in body
    documents = _documents(body.get("documents", body.get("texts")))
    most = expect(body.get("top_n", len(documents)), int, "top_n")
    raw = orjson.dumps({"query": body["query"], "documents": documents})
    found = await service.native_call(service.frontend.rerank_inputs, raw, size=len(raw))
    inputs = _read_inputs(found)
    vectors = await _compute(service, request, body, inputs)
    label = "score" if tei else "relevance_score"
    results: list[Object] = [
        {"index": index, label: float(vector[0, 0])} for index, vector in enumerate(vectors)
    ]
    if body.get("return_text" if tei else "return_documents"):
        for result in results:
            text = documents[result["index"]]
            result.update({"text": text} if tei else {"document": {"text": text}})
    results.sort(key=lambda result: -result[label])
    results = results[: max(0, most)]
    if tei:
        return results
    n_tokens = sum(len(ids) for ids in inputs)
    return {
        "model": body.get("model", service.settings.model_name),
        "object": "list",
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        "results": results,
    }


def _documents(given: Any) -> list[str]:
    """Texts; Jina's clients may send them as objects with a text in them."""
    if isinstance(given, list):
        found = [d.get("text") if isinstance(d, dict) else d for d in given]
        texts = [text for text in found if isinstance(text, str)]
        if texts and len(texts) == len(given):
            return texts
    raise ApiError('"documents" must be a non-empty string array')
