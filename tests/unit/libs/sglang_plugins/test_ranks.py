from __future__ import annotations

import pytest

from libs.sglang_plugins.address import decode_address, encode_address
from libs.sglang_plugins.ranks import address_of, gather, incarnation_of
from proto.kv import PeerAddress


def _ranks(size: int) -> list[PeerAddress]:
    return [
        PeerAddress(
            incarnation=incarnation_of("a" * 16, rank), host="h", workers={"tcp": bytes([rank])}
        )
        for rank in range(size)
    ]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_rank_meets_its_like(size: int) -> None:
    """One address travels; each rank of decode takes its own peer out of it."""
    ranks = _ranks(size)
    engine = decode_address(f"{encode_address(gather(ranks))}:1")
    assert engine.incarnation == "a" * 16
    assert [address_of(engine, rank, size) for rank in range(size)] == ranks


def test_unequal_sizes_do_not_meet() -> None:
    """Pages of another degree hold other heads."""
    engine = gather(_ranks(2))
    with pytest.raises(ValueError, match="tensor parallel size 4 in decode, 2 in prefill"):
        address_of(engine, 0, 4)


def test_ranks_of_two_engines_are_no_engine() -> None:
    """An address that was put together wrongly is found before it is published."""
    first, second = _ranks(2)
    with pytest.raises(ValueError, match="rank 1"):
        gather([second, first])
