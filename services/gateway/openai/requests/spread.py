"""One call a choice, each with an id and a key of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from proto.ids import RequestId, TenantHash, new_request_id
from proto.output import Parsing
from proto.sampling import SamplingParams
from services.gateway.api import Call, Recover
from services.gateway.openai.requests.asking import Asker
from services.gateway.prompt import PromptIds

__all__ = ["Prompt", "Wish", "digest_of", "spread"]

_SEEDS = 1 << 63


class Prompt(msgspec.Struct, frozen=True):
    """Token ids, and how their answers are drawn."""

    ids: PromptIds
    sampling: SamplingParams


class Wish(msgspec.Struct, frozen=True):
    """What all calls of a request share."""

    model: str
    digest: str
    choices: int = 1
    """For each prompt."""
    parsing: Parsing | None = None
    cache_salt: str = ""
    priority: int = 0


def digest_of(request: msgspec.Struct, tenant: TenantHash) -> str:
    """Return the identity of what was asked: fields in a fixed order, whoever wrote the JSON."""
    return hashlib.sha256(tenant.encode() + b"\n" + msgspec.json.encode(request)).hexdigest()


def spread(asker: Asker, wish: Wish, prompts: Sequence[Prompt]) -> tuple[Call, ...]:
    """Return the calls of all choices, those of the first prompt first."""
    return tuple(_calls(asker, wish, prompts))


def _calls(asker: Asker, wish: Wish, prompts: Sequence[Prompt]) -> Iterator[Call]:
    now_ms = asker.clock.unix_ms()
    several = len(prompts) * wish.choices > 1
    for index in range(len(prompts) * wish.choices):
        prompt = prompts[index // wish.choices]
        yield Call(
            rid=_rid(asker, index),
            tenant=asker.tenant,
            model=wish.model,
            prompt=prompt.ids,
            sampling=_drawn(prompt.sampling, index % wish.choices),
            digest=wish.digest,
            deadline_ms=now_ms + round(asker.rules.request_timeout_s * 1000),
            mode=asker.mode,
            key=_key(asker, index),
            # Of several choices one alone is not worth a second prefill of its prompt.
            recover=Recover.NEVER if several else asker.rules.recover,
            parsing=wish.parsing,
            cache_salt=wish.cache_salt,
            priority=wish.priority,
        )


def _rid(asker: Asker, index: int) -> RequestId:
    if index == 0:
        return asker.rid
    return new_request_id(asker.clock.unix_ms(), asker.clock.entropy)


def _key(asker: Asker, index: int) -> str | None:
    """Return the key of a choice; clients cannot send one with a space in it."""
    return f"{asker.key} {index}" if asker.key is not None and index else asker.key


def _drawn(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Return the sampling of a choice: one seed for all would make all choices the same."""
    if sampling.seed is None or choice == 0:
        return sampling
    seed = (sampling.seed + choice + _SEEDS) % (2 * _SEEDS) - _SEEDS
    return msgspec.structs.replace(sampling, seed=seed)
