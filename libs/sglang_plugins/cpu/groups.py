"""Process groups of one: SGLang makes nine of them where one process computes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

__all__ = ["lone_groups"]

_GLOO = "gloo"


def lone_groups() -> Callable[..., Any]:
    """Return a hook around `torch.distributed.new_group` that shares one gloo group of one process.

    Each gloo group has a thread that wakes a hundred times a second, also between two matrix
    products, and a group of one has nobody to hear from.
    """
    shared: list[Any] = []

    def new_group(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if dist.get_world_size() > 1 or named.get("backend") != _GLOO:
            return original(*arguments, **named)
        if not shared:
            whole = dist.get_backend() == _GLOO
            shared.append(dist.group.WORLD if whole else original(*arguments, **named))
        return shared[0]

    return new_group
