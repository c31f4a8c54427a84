"""SGLang's arguments and environment, chosen from facts by pure functions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from libs.engine.options import HostOptions
from libs.sglang_plugins import BACKEND, PLATFORM, PLUGIN
from proto.workers import Role

__all__ = [
    "BINDING",
    "Facts",
    "choose_arguments",
    "choose_environment",
    "count_accelerators",
    "trace_target",
]

BINDING = "SGLANG_CPU_OMP_THREADS_BIND"
"""Which cores each rank runs on, as SGLang wants it told."""

_MODES = {Role.PREFILL: "prefill", Role.DECODE: "decode", Role.AGGREGATED: "null"}
_OWN_ARCHITECTURES = frozenset({"LlamaForCausalLM"})
_OWN_MODELS = "libs.sglang_plugins.models"
_CPU_CHUNK_TOKENS = 512
"""About a second of work: an abort takes effect, and KV leaves, between two chunks."""
_HTTP = "http/protobuf"
_GUIDES = {"SGLANG_GRAMMAR_POLL_INTERVAL": "0.005", "SGLANG_GRAMMAR_MAX_POLL_ITERATIONS": "4000"}
"""While a guide is compiled, each step of the scheduler looks for it and waits so long; others go
on. The request is refused after so many looks, 20 s at least."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the choice depends on."""

    options: HostOptions
    cuda: bool
    """There is an accelerator and nobody asked for the CPU."""
    nccl_port: int
    label_port: int
    """SGLang wants a bootstrap port; nothing listens on it."""
    dtype: str | None = None
    """The dtype in which the model's weights are stored."""
    trace_endpoint: str | None = None
    """`host:port` of an OTLP collector."""


def choose_arguments(facts: Facts) -> dict[str, Any]:
    """Return the arguments of SGLang's engine.

    On a CPU every choice that spins or needs kernels is switched off. On CUDA, SGLang's own
    defaults stand. `engine_args` of the options override both.
    """
    options = facts.options
    arguments: dict[str, Any] = {
        "model_path": options.model_path,
        "served_model_name": options.served_model,
        "context_length": options.context_tokens,
        "page_size": options.page_size,
        "max_running_requests": options.slots,
        "max_total_tokens": options.kv_tokens,
        "incremental_streaming_output": True,
        "sleep_on_idle": True,
        # Small models, once they may, put out white space for ever. To allow none at all takes
        # minutes to compile where an object has a thousand properties.
        "constrained_json_max_whitespace_cnt": 2,
        "log_level": "warning",
        "nccl_port": facts.nccl_port,
        "trust_remote_code": False,
    }
    arguments |= _disaggregation(facts)
    if not facts.cuda:
        arguments |= {
            "device": "cpu",
            "attention_backend": "torch_native",
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
            "chunked_prefill_size": _CPU_CHUNK_TOKENS,
        }
        if facts.dtype is not None:
            # SGLang would turn float32 into float16, which is slow here and differs by batch.
            arguments["dtype"] = facts.dtype
    if facts.trace_endpoint is not None:
        arguments |= {
            "enable_trace": True,
            "otlp_traces_endpoint": facts.trace_endpoint,
            "otlp_service_name": f"pdbus-{options.role}-engine",
        }
    return arguments | dict(options.engine_args)


def choose_environment(
    *, cuda: bool, local_model: bool, architecture: str | None = None, ranks: int = 1
) -> dict[str, str]:
    """Return the variables to set before SGLang or torch is imported.

    One OpenMP thread a rank: with more, every matrix product waits for a core that another process
    holds, and a token takes ten times as long. SGLang would give each rank a NUMA node and not
    start with more ranks than nodes; here each may run on all cores.
    """
    variables = {
        "SGLANG_PLUGINS": PLUGIN if cuda else f"{PLATFORM},{PLUGIN}",
        "TOKENIZERS_PARALLELISM": "false",
    }
    variables |= _GUIDES
    if local_model:
        variables["HF_HUB_OFFLINE"] = "1"
    if architecture in _OWN_ARCHITECTURES:
        variables["SGLANG_EXTERNAL_MODEL_PACKAGE"] = _OWN_MODELS
    if not cuda:
        variables |= {
            "SGLANG_PLATFORM": PLATFORM,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
    if not cuda and ranks > 1:
        cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
        variables[BINDING] = "|".join([cores] * ranks)
    return variables


def trace_target(environment: Mapping[str, str]) -> str | None:
    """Return `host:port` of the OTLP collector that the standard variables name, if any."""
    url = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if not url:
        return None
    parts = urlsplit(url if "//" in url else f"//{url}")
    default = 4318 if environment.get("OTEL_EXPORTER_OTLP_PROTOCOL") == _HTTP else 4317
    return f"{parts.hostname}:{parts.port or default}" if parts.hostname else None


def count_accelerators() -> int:
    """Return how many CUDA devices this process can use; needs no torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _disaggregation(facts: Facts) -> dict[str, Any]:
    role = facts.options.role
    if role == Role.AGGREGATED:
        return {"disaggregation_mode": "null"}
    arguments: dict[str, Any] = {
        "disaggregation_mode": _MODES[role],
        "disaggregation_transfer_backend": BACKEND,
        "disaggregation_bootstrap_port": facts.label_port,
    }
    if role == Role.DECODE:
        arguments["disaggregation_decode_enable_radix_cache"] = facts.options.prefix_cache
        if not facts.cuda:
            arguments["disaggregation_decode_retraction_backup"] = "cpu_tensor"
    return arguments
