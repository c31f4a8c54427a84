"""Paths, methods, identity headers, health, and the shape of every error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from proto.errors import ErrorCode
from services.gateway.api import Readiness, ServedModel
from tests.unit.services.gateway.rig import CHAT, CONTEXT, MODEL, Rig


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", CHAT, 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("BREW", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/nope", 404, "model_not_found"),
    ],
)
async def test_wrong_paths_and_methods_have_the_one_shape(
    rig: Rig, method: str, path: str, status: int, code: str
):
    """Whatever is asked for, an error is nested JSON with all four keys."""
    reply = await rig.visit(method, path).run()
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert reply.error["code"] == code
    assert reply.error["type"] == "invalid_request_error"
    assert reply.headers["x-request-id"]
    if status == 405:
        assert reply.headers["allow"]


async def test_a_bug_is_a_500_without_details(rig: Rig):
    """An unexpected exception tells the client nothing but that it happened."""

    def broken() -> Readiness:
        raise RuntimeError("secret path")

    rig.fleet.readiness = broken
    visit = rig.post()
    with pytest.raises(RuntimeError, match="secret path"):
        await visit.run()
    reply = visit.reply
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["x-request-id"]
    assert "secret" not in reply.body.decode()


@pytest.mark.parametrize("given", ["abc", "a b", "~" * 128, "0"])
async def test_a_request_id_is_echoed(rig: Rig, given: str):
    """Up to 128 printable ASCII characters come back, on answers and on errors."""
    for path in ("/v1/models", "/nowhere"):
        reply = await rig.get(path, **{"x-request-id": given})
        assert reply.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "é", "a\tb", "a\x7f"])
async def test_an_unusable_request_id_is_replaced(rig: Rig, given: str):
    """What could spoil a header or a log line is replaced by an id of ours."""
    reply = await rig.ask(headers={"x-request-id": given})
    assert reply.headers["x-request-id"] == rig.calls.opened[0].rid


async def test_models_are_listed_while_they_are_served(rig: Rig):
    """Only models with usable workers are listed, with the context that they have."""
    (model,) = (await rig.get("/v1/models")).json["data"]
    assert model["id"] == MODEL
    assert model["object"] == "model"
    assert model["max_model_len"] == CONTEXT
    assert (await rig.get(f"/v1/models/{MODEL}")).json == model
    rig.fleet.served = (ServedModel(MODEL, 100), ServedModel("stranger", 5))
    (model,) = (await rig.get("/v1/models")).json["data"]
    assert model["max_model_len"] == 100
    rig.fleet.served = ()
    assert (await rig.get("/v1/models")).json == {"object": "list", "data": []}
    gone = await rig.get(f"/v1/models/{MODEL}")
    assert (gone.status, gone.error["code"]) == (503, "no_worker")


async def test_model_names_may_have_slashes(rig: Rig):
    """Names like `owner/model` are asked for as they are."""
    reply = await rig.get("/v1/models/owner/model")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert "owner/model" in reply.error["message"]


@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_readiness_tells_why_not(rig: Rig, path: str):
    """503 with a reason until requests can be served, then 200."""
    rig.fleet.state = Readiness(ok=False, reason="no router", code=ErrorCode.NO_ROUTER)
    reply = await rig.get(path)
    assert reply.status == 503
    assert reply.json == {"status": "no_router", "reason": "no router"}
    rig.fleet.state = Readiness(ok=True)
    assert (await rig.get(path)).json == {"status": "ready"}
    assert (await rig.get("/livez")).status == 200


async def test_version_tells_what_runs(rig: Rig):
    """Version, protocol and instance."""
    assert (await rig.get("/version")).json == {
        "version": "1.2.3",
        "protocol": 1,
        "instance": "gateway-1",
    }


async def test_metrics_are_text(rig: Rig):
    """Prometheus can read them."""
    reply = await rig.get("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_paths_from_outside_are_no_labels(rig: Rig, metric):
    """Random paths, models and methods share one series."""
    common = {"http.request.method": "GET", "error.type": "not_found"}
    labels = {**common, "http.route": "other", "http.response.status_code": 404}
    before = metric("http.server.request.duration", **labels)
    for number in range(20):
        await rig.get(f"/random-{number}?query={number}")
    assert metric("http.server.request.duration", **labels) - before == 20


def test_the_gateway_is_light():
    """Loading the whole gateway brings neither an engine nor a model library with it."""
    code = (
        "import sys, services.gateway.app;"
        "heavy = {'torch', 'transformers', 'sglang', 'ucxx', 'numpy', 'pydantic', 'yaml'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
