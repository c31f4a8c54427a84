"""What is told of models, and to whom."""

from __future__ import annotations

from typing import Any

from proto.errors import ErrorCode, PdbusError
from proto.ids import RequestId
from services.gateway.edge.exchange import Exchange
from services.gateway.edge.visitor import Anybody
from services.gateway.openai import ModelEndpoint, ModelsEndpoint, Texts
from tests.support.checked import spec
from tests.support.reference import needed
from tests.unit.services.gateway.rig import ABLE, MODEL, Rig, Visit


class Stranger(Anybody):
    """Holds a key that allows no model."""

    def allows(self, model: str) -> bool:
        return False

    def check_model(self, model: str) -> None:
        raise PdbusError(ErrorCode.MODEL_NOT_ALLOWED, param="model")


async def test_a_model_tells_what_it_can(rig: Rig):
    """The entry has OpenAI's fields, the context, and what the workers can do."""
    needed("openai_openapi.yaml")
    (model,) = (await rig.get("/v1/models")).json["data"]
    assert (model["id"], model["root"], model["parent"]) == (MODEL, MODEL, None)
    assert model["features"] == []
    rig.fleet.served = (ABLE,)
    body = (await rig.get("/v1/models")).json
    assert body["data"][0]["features"] == ["guides", "logprobs", "tools", "reasoning"]
    spec.validator("ListModelsResponse").validate(body)
    spec.validator("Model").validate((await rig.get(f"/v1/models/{MODEL}")).json)


async def test_a_key_sees_its_own_models(rig: Rig):
    """Models that a key does not allow are not listed to it, and refused by name."""
    exchange = Exchange(RequestId("r" * 26), "x", 0.0, visitor=Stranger())
    texts = Texts({MODEL: rig.text}, rig.fleet)

    async def ask(app: Any) -> Any:
        visit = Visit(app, "GET", "/", b"", {})
        visit.scope |= {"pdbus.exchange": exchange, "path_params": {"model": MODEL}}
        return (await visit.run()).json

    assert (await ask(ModelsEndpoint(texts, created=1)))["data"] == []
    refused = await ask(ModelEndpoint(texts, created=1))
    assert refused["error"]["code"] == "model_not_allowed"
