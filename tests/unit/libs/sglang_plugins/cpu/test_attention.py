from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from libs.sglang_plugins.cpu.attention import decode_attention, extend_attention  # noqa: E402

HEADS, KV_HEADS, DIM, SCALE = 6, 2, 16, 0.3
PREFIXES, COUNTS = (0, 50, 7), (30, 20, 1)
RULES = {"scaling": SCALE, "enable_gqa": True, "is_cross_attn": False, "sliding_window_size": None}


def _refuse(*_arguments: Any, **_named: Any) -> Any:
    pytest.fail("SGLang's own function was called")


@pytest.fixture
def memory() -> dict[str, Any]:
    """Return KV memory whose tokens lie in random slots, and three requests in it."""
    source = torch.Generator().manual_seed(1)
    return {
        "k_cache": torch.randn(400, KV_HEADS, DIM, generator=source),
        "v_cache": torch.randn(400, KV_HEADS, DIM, generator=source),
        "req_to_token": torch.stack([torch.randperm(400, generator=source)[:90] for _ in range(4)]),
        "req_pool_indices": torch.tensor([2, 0, 3]),
        "seq_lens": torch.tensor([p + c for p, c in zip(PREFIXES, COUNTS, strict=True)]),
    }


def _one(memory: dict[str, Any], place: int, query: Any, seen: int) -> Any:
    """Attend from one token to the first `seen` tokens, head by head, as the formula says."""
    tokens = memory["req_to_token"][memory["req_pool_indices"][place], :seen]
    rows = []
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        keys, values = memory["k_cache"][tokens, shared], memory["v_cache"][tokens, shared]
        rows.append(torch.softmax(keys @ query[head] * SCALE, dim=0) @ values)
    return torch.stack(rows)


def test_each_new_token_sees_its_prefix_and_itself(memory: dict[str, Any]):
    """Chunks with and without a prefix give the numbers of the formula."""
    query = torch.randn(sum(COUNTS), HEADS, DIM)
    output = torch.empty_like(query)
    extend_attention(
        _refuse,
        None,
        query,
        output,
        **memory,
        extend_prefix_lens=torch.tensor(PREFIXES),
        extend_seq_lens=torch.tensor(COUNTS),
        causal=True,
        **RULES,
    )
    at = 0
    for place, (prefix, count) in enumerate(zip(PREFIXES, COUNTS, strict=True)):
        for step in range(count):
            expected = _one(memory, place, query[at], prefix + step + 1)
            torch.testing.assert_close(output[at], expected, atol=1e-5, rtol=1e-5)
            at += 1


def test_a_decoded_token_sees_all(memory: dict[str, Any]):
    """The newest token of each request attends to every token of it."""
    query = torch.randn(3, HEADS, DIM)
    output = torch.empty_like(query)
    decode_attention(_refuse, None, query, output, **memory, causal=False, **RULES)
    for place in range(3):
        expected = _one(memory, place, query[place], int(memory["seq_lens"][place]))
        torch.testing.assert_close(output[place], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "rule", [{"is_cross_attn": True}, {"sliding_window_size": 8}, {"encoder_lens": "x"}]
)
def test_what_is_not_plain_is_left_to_sglang(memory: dict[str, Any], rule: dict[str, Any]):
    """Windows and encoders go to SGLang's own function, with all that was given."""
    query = torch.randn(3, HEADS, DIM)
    seen: list[dict[str, Any]] = []

    def original(_backend: Any, *_given: Any, **named: Any) -> str:
        seen.append(named)
        return "theirs"

    result = decode_attention(
        original, None, query, torch.empty_like(query), **memory, causal=False, **RULES | rule
    )
    assert result == "theirs"
    assert seen[0]["scaling"] == SCALE
