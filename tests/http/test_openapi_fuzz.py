"""Requests made up from the server's own OpenAPI document, good and bad: each gets an answer, and
none is the server's fault. Always the same requests: a failure can be repeated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from strata_server.app import create_api
from tests.http.calling import calling_server
from tests.http.server_process import ServerProcess, need_native_library
from tests.models import tiny_model
from tests.unit.fake_backend import FakeEngine, fake_service

if not os.environ.get("STRATA_FUZZ"):
    pytest.skip("takes minutes: run with STRATA_FUZZ=1", allow_module_level=True)

DOCUMENTED = (501, 503)  # what the server was started without; what it waits for
EXAMPLES = 15  # random ones for each route, beside one for each border of each field
LONGEST_S = 10.0
EMBEDDING = ("/v1/embeddings", "/embeddings", "/v1/rerank")


def document() -> dict[str, Any]:
    """The OpenAPI document without aliases: they are the same handlers."""
    found: dict[str, Any] = create_api(fake_service(FakeEngine())).openapi()
    found["paths"] = {
        path: routes
        for path, routes in found["paths"].items()
        if not any("(alias of" in route["summary"] for route in routes.values())
    }
    return found


UNABLE = ("POST /infill", "POST /slots/{id_slot}", "POST /props", "GET /metrics")  # 501 here
seen: set[str] = set()  # routes that were asked
answered: set[str] = set()  # and those of them that took at least one request

schema = schemathesis.openapi.from_dict(document())
of_generation = schema.exclude(path=list(EMBEDDING))
of_embedding = schema.include(path=list(EMBEDDING))
bounded = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Answers end with its small context, whatever a request says."""
    need_native_library()
    with calling_server(tmp_path_factory.mktemp("templates"), n_ctx=1024) as server:
        yield server
        assert server.process.poll() is None


@pytest.fixture(scope="module")
def ranker() -> Iterator[ServerProcess]:
    """It ranks, and answers what is asked of embeddings."""
    need_native_library()
    with ServerProcess("-m", str(tiny_model("ranker")), "--reranking", "-t", "1") as server:
        yield server
        assert server.process.poll() is None


@of_generation.parametrize()
@bounded
def test_a_generating_server_answers_anything(
    case: schemathesis.Case, generator: ServerProcess
) -> None:
    check_answer(case, generator)


@of_embedding.parametrize()
@bounded
def test_an_embedding_server_answers_anything(
    case: schemathesis.Case, ranker: ServerProcess
) -> None:
    check_answer(case, ranker)


def test_each_route_takes_some_of_what_the_document_describes() -> None:
    every = {result.ok().label for result in schema.get_all_operations()}
    if seen != every:
        pytest.skip("not all routes were asked in this run")
    assert every - answered == {*UNABLE, "GET /cache/explain/{request_id}", "GET /v1/stream"}


def check_answer(case: schemathesis.Case, server: ServerProcess) -> None:
    """Send it: the answer comes in time, and an error is the client's, in the right form."""
    began = time.monotonic()
    reply = case.call(base_url=server.url, timeout=60)
    assert time.monotonic() - began < LONGEST_S
    status = reply.status_code
    seen.add(case.operation.label)
    if status < 300 and case.method.lower() == case.operation.method.lower():
        answered.add(case.operation.label)
    assert status < 500 or status in DOCUMENTED, reply.text
    if status >= 400:
        assert reply.headers["content-type"] == ["application/json; charset=utf-8"]
        error = reply.json()["error"]
        assert (error["code"] == status or isinstance(error["code"], str)) and error["message"]
        if "/messages" in case.path:
            assert reply.json()["type"] == "error"
