"""Makes right what a description by fields cannot say: that fields depend on each other.

Cases that are right by the description are mostly refused for what they have together.
With this done to most, the rest of the gateway is reached too.
"""

from __future__ import annotations

from typing import Any

__all__ = ["mended"]

_FEW = 64


def mended(path: str, body: Any, model: str) -> Any:
    """Return a body that is likely to be carried out."""
    body = _whole(body)
    if not isinstance(body, dict):
        return body
    body["model"] = model
    if not body.get("stream"):
        body.pop("stream_options", None)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(name), int):
            body[name] = body[name] % _FEW + 1
    if not body.get("tools"):
        body.pop("tool_choice", None)
        body.pop("tools", None)
    if body.get("messages"):
        body["messages"] = [_message(one) for one in body["messages"]]
    if path in _BY_PATH:
        _BY_PATH[path](body)
    return body


def _message(message: dict[str, Any]) -> dict[str, Any]:
    message.pop("annotations", None)
    message["content"] = message.get("content") or "x"
    if message["role"] != "assistant":
        message.pop("tool_calls", None)
    if message["role"] == "tool":
        message["tool_call_id"] = message.get("tool_call_id") or "call_1"
    return message


def _item(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type") or "message"
    if kind == "message":
        item |= {"role": item.get("role") or "user", "content": item.get("content") or "x"}
    elif kind.startswith("function_call"):
        item["call_id"] = item.get("call_id") or "call_1"
        item["name"] = item.get("name") or "f"
        item["arguments"] = "{}"
        item["output"] = item.get("output") or "x"
    return item


def _completion(body: dict[str, Any]) -> None:
    body.pop("best_of", None)
    prompt = body["prompt"]
    if isinstance(prompt, list):
        texts = [one for one in prompt if isinstance(one, str)]
        ids = [one % 200 for one in prompt if isinstance(one, int)]
        body["prompt"] = texts or ids or "x"
    else:
        body["prompt"] = prompt or "x"


def _tokenize(body: dict[str, Any]) -> None:
    if body.get("messages"):
        body.pop("prompt", None)
        body.pop("add_special_tokens", None)
    else:
        for name in set(body) - {"model", "prompt", "add_special_tokens"}:
            body.pop(name)
        body["prompt"] = body.get("prompt") or "x"


def _whole(value: Any) -> Any:
    """Return a value whose whole numbers are written as such; JSON Schema takes 3.0 for one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value


def _detokenize(body: dict[str, Any]) -> None:
    body["tokens"] = [token % 200 for token in body["tokens"]]


def _response(body: dict[str, Any]) -> None:
    if isinstance(body["input"], list):
        body["input"] = [{"role": "user", "content": "x"}, *map(_item, body["input"])]


_BY_PATH = {
    "/v1/completions": _completion,
    "/v1/responses": _response,
    "/tokenize": _tokenize,
    "/detokenize": _detokenize,
}
