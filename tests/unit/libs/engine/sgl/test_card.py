from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from libs.engine.options import EngineKind, HostOptions
from libs.engine.sgl.card import compat_facts, make_card, model_hashes
from libs.models.hashes import Hashes
from libs.sglang_plugins import draft_of
from proto.backend import PlaneOpened
from proto.ids import Incarnation
from proto.kv import PeerAddress
from proto.workers import CompatCard, Role

MODEL = SimpleNamespace(
    dtype="torch.bfloat16",
    num_hidden_layers=30,
    head_dim=64,
    context_len=8192,
    get_num_kv_heads=lambda _tp: 3,
)
ARGUMENTS = SimpleNamespace(
    kv_cache_dtype="auto", page_size=16, tp_size=1, pp_size=1, attention_backend="torch_native"
)


def _options(path: str = "/none") -> HostOptions:
    return HostOptions(
        kind=EngineKind.SGLANG,
        role=Role.DECODE,
        incarnation=Incarnation("a" * 16),
        served_model="m",
        model_path=path,
    )


def _opened(**changes: Any) -> PlaneOpened:
    facts = {
        "address": PeerAddress(incarnation="a" * 16, host="h"),
        "kv_dtype": "bfloat16",
        "kv_layout": "nhd",
        "page_size": 16,
        "page_bytes": 1,
        "row_bytes": 1,
        "buffers": 60,
    }
    return PlaneOpened(**(facts | changes))


def _card(opened: PlaneOpened | None) -> CompatCard:
    return make_card(
        _options(),
        Hashes("r", "t"),
        "0.5.23",
        model=MODEL,
        arguments=ARGUMENTS,
        opened=opened,
    )


def test_the_scheduler_knows_the_memory_best():
    """Page size and KV dtype are those that the scheduler resolved."""
    card = _card(_opened(kv_dtype="fp8_e4m3", page_size=64))
    assert (card.kv_dtype, card.page_size) == ("fp8_e4m3", 64)
    assert (card.dtype, card.layers, card.kv_heads, card.head_dim) == ("bfloat16", 30, 3, 64)


@pytest.mark.parametrize("opened", [None, _opened(kv_dtype="auto")])
def test_an_unresolved_dtype_is_that_of_the_model(opened: PlaneOpened | None):
    """`auto` never reaches a card: two engines with it could differ."""
    assert _card(opened).kv_dtype == "bfloat16"


def test_the_split_pair_and_the_baseline_have_one_card():
    """An aggregated engine of the same shape is comparable with the pair."""
    assert _card(None).digest == _card(_opened()).digest


def test_bytes_per_token_follow_from_the_card():
    """SmolLM2 in bfloat16 takes 23040 bytes a token."""
    assert _card(_opened()).kv_bytes_per_token == 30 * 2 * 3 * 64 * 2


def test_a_model_without_a_folder_is_known_by_name():
    """A hub id that SGLang loads itself has no local content to hash."""
    assert model_hashes(_options("owner/model")) == Hashes("owner/model", "owner/model")


def test_a_local_model_is_known_by_content(tmp_path: Path):
    """The hashes are of the files."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert model_hashes(_options(str(tmp_path / "m"))).revision.startswith("sha256:")


def test_another_version_is_another_compat():
    """Two SGLang versions never exchange KV."""
    hashes = Hashes("r", "t")
    here, there = (compat_facts(hashes, version) for version in ("0.5.23", "0.5.24"))
    assert {name for name in here if here[name] != there[name]} == {"engine_version"}


def test_drafting_is_part_of_the_card():
    """An engine that drafts ahead differs from one that does not, and by how it drafts."""
    assert draft_of(SimpleNamespace(speculative_algorithm=None)) is None
    drafts = [
        draft_of(SimpleNamespace(speculative_algorithm="EAGLE", speculative_num_steps=steps))
        for steps in (3, 5)
    ]
    assert None not in drafts
    assert drafts[0] != drafts[1]
