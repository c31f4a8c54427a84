"""The operations of the API: one row each, from which the document is made."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from proto.errors import ERRORS, ErrorCode
from proto.openai.chat import ChatCompletion, ChatRequest
from proto.openai.completions import Completion, CompletionChunk, CompletionRequest
from proto.openai.models import ModelInfo, ModelList
from proto.openai.responses.answer import ResponseBody
from proto.openai.responses.events import EVENTS
from proto.openai.responses.request import ResponseRequest
from proto.openai.stream import ChatChunk
from proto.openai.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from services.gateway.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldTable
from services.gateway.openai.responses import FIELDS as RESPONSE_FIELDS
from services.gateway.openai.tokenize.fields import DETOKENIZE_FIELDS, TOKENIZE_FIELDS

__all__ = ["GENERATING", "OPERATIONS", "Body", "Operation"]

_C = ErrorCode
_CLIENT_LEFT = 499

_EVERYWHERE = frozenset({_C.INVALID_API_KEY, _C.RATE_LIMIT_EXCEEDED, _C.INTERNAL})
_MODEL = frozenset({_C.MODEL_NOT_FOUND, _C.MODEL_NOT_ALLOWED, _C.NO_WORKER})
_BODY = frozenset(
    {
        *(_C.INVALID_REQUEST, _C.INVALID_VALUE, _C.UNSUPPORTED_PARAMETER, _C.BODY_TIMEOUT),
        *(_C.UNSUPPORTED_MEDIA_TYPE, _C.REQUEST_TOO_LARGE),
    }
)
_NOBODY_HEARS = frozenset(
    {
        *(_C.NOT_FOUND, _C.METHOD_NOT_ALLOWED, _C.UNKNOWN_REQUEST, _C.HEADERS_TOO_LARGE),
        *(code for code, row in ERRORS.items() if row.http == _CLIENT_LEFT),
    }
)
"""Errors that no operation answers with."""

GENERATING = frozenset(ERRORS) - _NOBODY_HEARS
"""Errors of operations that ask workers."""


@dataclass(frozen=True, slots=True)
class Body:
    """What is sent to an operation.

    Args:
        kind: the fields that are carried out.
        table: what becomes of all fields.
    """

    kind: type[msgspec.Struct]
    table: FieldTable


@dataclass(frozen=True, slots=True)
class Operation:
    """One path and method of the API.

    Args:
        name: the operation's id.
        events: types of the data of a stream's events; empty where there is no stream.
        done: whether a whole stream ends with `[DONE]`.
    """

    path: str
    method: str
    name: str
    summary: str
    answer: type[msgspec.Struct]
    errors: frozenset[ErrorCode]
    body: Body | None = None
    events: tuple[type[msgspec.Struct], ...] = ()
    done: bool = False


OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        method="post",
        name="createChatCompletion",
        summary="Answer a conversation, whole or as a stream.",
        answer=ChatCompletion,
        errors=GENERATING,
        body=Body(ChatRequest, CHAT_FIELDS),
        events=(ChatChunk,),
        done=True,
    ),
    Operation(
        path="/v1/completions",
        method="post",
        name="createCompletion",
        summary="Go on with one prompt or several, whole or as a stream.",
        answer=Completion,
        errors=GENERATING,
        body=Body(CompletionRequest, COMPLETION_FIELDS),
        events=(CompletionChunk,),
        done=True,
    ),
    Operation(
        path="/v1/responses",
        method="post",
        name="createResponse",
        summary="Answer a conversation of items, whole or as named events. Nothing is stored.",
        answer=ResponseBody,
        errors=GENERATING,
        body=Body(ResponseRequest, RESPONSE_FIELDS),
        events=EVENTS,
    ),
    Operation(
        path="/v1/models",
        method="get",
        name="listModels",
        summary="List the models that can be asked now.",
        answer=ModelList,
        errors=_EVERYWHERE,
    ),
    Operation(
        path="/v1/models/{model}",
        method="get",
        name="retrieveModel",
        summary="Describe one model.",
        answer=ModelInfo,
        errors=_EVERYWHERE | _MODEL,
    ),
    Operation(
        path="/tokenize",
        method="post",
        name="tokenize",
        summary="Return the token ids of a text or a conversation.",
        answer=Tokenized,
        errors=_EVERYWHERE | _MODEL | _BODY,
        body=Body(TokenizeRequest, TOKENIZE_FIELDS),
    ),
    Operation(
        path="/detokenize",
        method="post",
        name="detokenize",
        summary="Return the text of token ids.",
        answer=Detokenized,
        errors=_EVERYWHERE | _MODEL | _BODY,
        body=Body(DetokenizeRequest, DETOKENIZE_FIELDS),
    ),
)
"""All operations that need a key where keys are on."""
