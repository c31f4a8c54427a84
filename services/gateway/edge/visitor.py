"""Who is behind an exchange, as far as HTTP and the API need to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from proto.ids import TenantHash, tenant_hash
from services.gateway.api import Call, Recover, Slo

__all__ = ["ANYBODY", "Anybody", "Visitor", "admitted"]


class Visitor(Protocol):
    """The holder of a key, and what the key allows."""

    @property
    def tenant(self) -> TenantHash:
        """Scope of ids, keys and answers."""
        ...

    @property
    def priority(self) -> int:
        """Who is served first where requests wait: the higher one."""
        ...

    @property
    def recover(self) -> Recover | None:
        """Whether answers go on with another decode; None leaves that to the gateway."""
        ...

    @property
    def slo(self) -> Slo | None:
        """What the tenant aims for."""
        ...

    def salt(self, given: str) -> str:
        """Return the cache salt of a request that names `given` (or nothing) itself."""
        ...

    def check_model(self, model: str) -> None:
        """Refuse a model that the key does not allow.

        Raises:
            PdbusError: model_not_allowed.
        """
        ...

    def allows(self, model: str) -> bool:
        """Return whether the key allows a model."""
        ...

    def charge(self, prompt_tokens: int) -> None:
        """Count the prompt of a request that is about to be carried out; once a request.

        Raises:
            PdbusError: rate_limit_exceeded, or request_too_large for what can never be admitted.
        """
        ...

    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Return what an answer tells of the limits."""
        ...


class Anybody:
    """The one visitor of a gateway without keys."""

    tenant = tenant_hash("anonymous")
    priority = 0
    recover = None
    slo = None

    def salt(self, given: str) -> str:
        """Return the client's own: everybody is one tenant."""
        return given

    def check_model(self, model: str) -> None:
        """Allow every model."""

    def allows(self, model: str) -> bool:
        """Allow every model."""
        return True

    def charge(self, prompt_tokens: int) -> None:
        """Count nothing."""

    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Tell nothing."""
        return ()


ANYBODY = Anybody()
"""Has no state, so one is enough."""


def admitted(
    visitor: Visitor, calls: Sequence[Call], *, choices_a_prompt: int = 1
) -> tuple[Call, ...]:
    """Return the calls of one request as the visitor may make them, and count their prompts.

    Args:
        visitor: who asks.
        calls: one a choice; they ask one model.
        choices_a_prompt: so many calls in a row have one prompt, whose tokens count once.

    Raises:
        PdbusError: model_not_allowed, rate_limit_exceeded, request_too_large.
    """
    if visitor is ANYBODY:
        return tuple(calls)
    visitor.check_model(calls[0].model)
    visitor.charge(sum(call.prompt_tokens for call in calls[::choices_a_prompt]))
    alone = len(calls) == 1
    return tuple(
        msgspec.structs.replace(
            call,
            # Several choices never move: what made them so knows why.
            recover=visitor.recover if alone and visitor.recover is not None else call.recover,
            cache_salt=visitor.salt(call.cache_salt),
            priority=visitor.priority + call.priority,
            slo=visitor.slo,
        )
        for call in calls
    )
