from __future__ import annotations

import os
from typing import Any

import pytest

from libs.engine.options import EngineKind, HostOptions
from libs.engine.sgl.arguments import (
    BINDING,
    Facts,
    choose_arguments,
    choose_environment,
    trace_target,
)
from proto.ids import Incarnation
from proto.workers import Role


def _facts(role: Role, *, cuda: bool = False, **more: Any) -> Facts:
    options = HostOptions(
        kind=EngineKind.SGLANG,
        role=role,
        incarnation=Incarnation("a" * 16),
        served_model="m",
        model_path="/m",
        engine_args=more.pop("engine_args", {}),
        prefix_cache=more.pop("prefix_cache", False),
    )
    return Facts(options=options, cuda=cuda, nccl_port=1111, label_port=2222, **more)


@pytest.mark.parametrize(("role", "mode"), [(Role.PREFILL, "prefill"), (Role.DECODE, "decode")])
def test_a_split_role_takes_our_backend(role: Role, mode: str):
    """Mode and backend are explicit, and nothing listens on SGLang's bootstrap port."""
    chosen = choose_arguments(_facts(role))
    assert chosen["disaggregation_mode"] == mode
    assert chosen["disaggregation_transfer_backend"] == "ucx"
    assert chosen["disaggregation_bootstrap_port"] == 2222


def test_an_aggregated_engine_has_no_backend():
    """It is SGLang without disaggregation."""
    chosen = choose_arguments(_facts(Role.AGGREGATED))
    assert chosen["disaggregation_mode"] == "null"
    assert "disaggregation_transfer_backend" not in chosen


def test_on_a_cpu_nothing_spins_and_nothing_needs_kernels():
    """Every choice that the measurements ask for is made."""
    chosen = choose_arguments(_facts(Role.DECODE, dtype="float32"))
    assert chosen["device"] == "cpu"
    assert chosen["attention_backend"] == "torch_native"
    assert chosen["disable_cuda_graph"]
    assert chosen["disable_overlap_schedule"]
    assert chosen["sleep_on_idle"]
    assert chosen["dtype"] == "float32"
    assert chosen["disaggregation_decode_retraction_backup"] == "cpu_tensor"


def test_on_cuda_sglang_decides():
    """Device, attention, graphs, overlap, dtype and retraction stay SGLang's own."""
    chosen = choose_arguments(_facts(Role.DECODE, cuda=True, dtype="bfloat16"))
    ours = {
        "device",
        "attention_backend",
        "disable_cuda_graph",
        "disable_overlap_schedule",
        "dtype",
        "disaggregation_decode_retraction_backup",
    }
    assert not ours & set(chosen)
    assert chosen["disaggregation_transfer_backend"] == "ucx"


def test_the_user_has_the_last_word():
    """Arguments by SGLang's own names override ours."""
    chosen = choose_arguments(
        _facts(Role.PREFILL, engine_args={"page_size": 1, "chunked_prefill_size": 256})
    )
    assert (chosen["page_size"], chosen["chunked_prefill_size"]) == (1, 256)


@pytest.mark.parametrize("wanted", [False, True])
def test_only_decode_is_told_whether_it_keeps_prefixes(wanted: bool):
    """Prefill and aggregated engines always do, and know no such argument."""
    name = "disaggregation_decode_enable_radix_cache"
    assert choose_arguments(_facts(Role.DECODE, prefix_cache=wanted))[name] is wanted
    assert name not in choose_arguments(_facts(Role.PREFILL, prefix_cache=wanted))


def test_traces_are_on_only_with_a_collector():
    """Without an endpoint SGLang is not asked to trace."""
    assert "enable_trace" not in choose_arguments(_facts(Role.DECODE))
    chosen = choose_arguments(_facts(Role.DECODE, trace_endpoint="c:4317"))
    assert (chosen["enable_trace"], chosen["otlp_traces_endpoint"]) == (True, "c:4317")


def test_the_cpu_platform_is_selected_by_name():
    """Both plugins are named, one OpenMP thread, and no hub for a local model."""
    chosen = choose_environment(cuda=False, local_model=True, architecture="LlamaForCausalLM")
    assert chosen["SGLANG_PLATFORM"] == "pdbus_cpu"
    assert chosen["SGLANG_PLUGINS"] == "pdbus_cpu,pdbus_ucx"
    assert chosen["OMP_NUM_THREADS"] == "1"
    assert chosen["HF_HUB_OFFLINE"] == "1"
    assert chosen["SGLANG_EXTERNAL_MODEL_PACKAGE"] == "libs.sglang_plugins.models"


def test_on_cuda_the_stock_platform_stands():
    """No platform is named, and only the KV plugin is let in."""
    chosen = choose_environment(cuda=True, local_model=False, architecture="Qwen3ForCausalLM")
    guides = {name for name in chosen if name.startswith("SGLANG_GRAMMAR_")}
    rest = {name: text for name, text in chosen.items() if name not in guides}
    assert rest == {"SGLANG_PLUGINS": "pdbus_ucx", "TOKENIZERS_PARALLELISM": "false"}


def test_a_guide_that_compiles_for_ever_is_given_up():
    """The looks for a compiled guide are bounded, and each is short beside a step."""
    chosen = choose_environment(cuda=True, local_model=False)
    looks = int(chosen["SGLANG_GRAMMAR_MAX_POLL_ITERATIONS"])
    pause = float(chosen["SGLANG_GRAMMAR_POLL_INTERVAL"])
    assert 10 <= looks * pause <= 30
    assert pause <= 0.005


@pytest.mark.parametrize(
    ("variables", "target"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}, "collector:4317"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector"}, "collector:4317"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:9"}, "collector:9"),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
            "collector:4318",
        ),
    ],
)
def test_the_collector_is_taken_from_the_standard_variables(
    variables: dict[str, str], target: str | None
):
    """SGLang wants host and port instead of a URL."""
    assert trace_target(variables) == target


def test_ranks_on_a_cpu_share_the_cores():
    """SGLang would refuse more ranks than NUMA nodes; one rank is left as it is."""
    chosen = choose_environment(cuda=False, local_model=True, ranks=2)
    first, second = chosen[BINDING].split("|")
    assert first == second
    assert {int(core) for core in first.split(",")} == os.sched_getaffinity(0)
    assert BINDING not in choose_environment(cuda=False, local_model=True)
    assert BINDING not in choose_environment(cuda=True, local_model=True, ranks=2)
