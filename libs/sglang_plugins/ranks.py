"""Tensor-parallel ranks: each has a plane of its own, and meets the same rank of its peer.

The address of an engine is that of its first rank; it carries those of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proto.kv import PeerAddress, RankAddress

__all__ = ["address_of", "gather", "incarnation_of", "rank_of"]


def incarnation_of(incarnation: str, rank: int) -> str:
    """Return the name of one rank's plane; the first has that of the engine."""
    return f"{incarnation}.{rank}" if rank else incarnation


def rank_of(incarnation: str) -> int:
    """Return which rank has a plane of that name.

    Raises:
        ValueError: it is no such name.
    """
    return int(incarnation.partition(".")[2] or 0)


def gather(addresses: Sequence[PeerAddress]) -> PeerAddress:
    """Return an engine's address, made of those of its ranks in order.

    Raises:
        ValueError: they are not the ranks of one engine.
    """
    first, *others = addresses
    for rank, address in enumerate(others, 1):
        if address.incarnation != incarnation_of(first.incarnation, rank):
            raise ValueError(f"rank {rank} is {address.incarnation} of {first.incarnation}")
        if address.host != first.host:
            raise ValueError(f"rank {rank} is on another host")
    ranks = tuple(
        RankAddress(incarnation=one.incarnation, workers=one.workers, secret=one.secret)
        for one in others
    )
    return msgspec.structs.replace(first, ranks=ranks)


def address_of(engine: PeerAddress, rank: int, size: int) -> PeerAddress:
    """Return the address that rank `rank` of `size` fetches from.

    Raises:
        ValueError: the peer has another number of ranks, whose pages have another shape.
    """
    theirs = 1 + len(engine.ranks)
    if theirs != size:
        raise ValueError(f"tensor parallel size {size} in decode, {theirs} in prefill")
    if not rank:
        return msgspec.structs.replace(engine, ranks=())
    mine = engine.ranks[rank - 1]
    return PeerAddress(
        incarnation=mine.incarnation, host=engine.host, workers=mine.workers, secret=mine.secret
    )
