"""Bringing SGLang up in this process, and proof that it took our extensions."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from libs.engine.api import EngineDead
from libs.engine.options import HostOptions
from libs.engine.parse import Parsers, load_parsers
from libs.engine.sgl.arguments import (
    BINDING,
    Facts,
    choose_arguments,
    choose_environment,
    count_accelerators,
    trace_target,
)
from libs.engine.sgl.card import compat_facts, make_card, model_hashes
from libs.engine.sgl.guides import GuideCheck
from libs.engine.sgl.leftovers import free_port, remove_dead_segments
from libs.engine.sgl.link import BackendLink
from libs.lifecycle.turns import ask_for_short_turns
from libs.models.hashes import Hashes
from libs.sglang_plugins import BACKEND, PLATFORM, PLUGIN, BackendOptions
from proto.workers import CompatCard, Feature, Role

__all__ = ["ChildFailed", "Started", "start"]

_CPU_CHUNK_S = 120.0
_CPU_CLASS = "PlainCpuPlatform"


class ChildFailed(RuntimeError):
    """A process below the engine reported a failure while the engine started."""


@dataclass(slots=True)
class Started:
    """SGLang, running."""

    engine: Any
    link: BackendLink
    card: CompatCard
    slots: int
    kv_total_tokens: int
    max_request_tokens: int
    request_class: Any
    parsers: Parsers
    guides: GuideCheck | None
    """None where there can be no guides."""
    features: tuple[Feature, ...]
    refusals: tuple[type[Exception], ...]
    """What SGLang raises for a request that it does not take."""


def start(options: HostOptions) -> Started:
    """Start SGLang and return when the model is loaded; blocks for seconds to minutes.

    Raises:
        EngineDead: it could not start.
    """
    cuda = count_accelerators() > 0 and options.engine_args.get("device") != "cpu"
    model = _model_config(options)
    os.environ.update(
        choose_environment(
            cuda=cuda,
            local_model=Path(options.model_path).is_dir(),
            architecture=next(iter(model.get("architectures", ())), None),
            # What the operator has bound stays so.
            ranks=1 if BINDING in os.environ else int(options.engine_args.get("tp_size", 1)),
        )
    )
    hashes = model_hashes(options)
    link = BackendLink()
    backend = _backend_options(options, link.path, compat_facts(hashes, version("sglang")), cuda)
    os.environ.update(backend.to_environment())
    remove_dead_segments()
    # It logs the guides of requests; the forked scheduler takes this over.
    logging.getLogger("sglang.srt.constrained").setLevel(logging.CRITICAL + 1)
    try:
        with _without_collection():
            _assert_extensions(cuda=cuda)
            importlib.import_module("sglang.srt.entrypoints.engine")
        engine = _engine(options, dtype=model.get("torch_dtype", model.get("dtype")), cuda=cuda)
    except (RuntimeError, ValueError, TypeError, OSError, ImportError, AssertionError) as error:
        raise EngineDead(f"SGLang did not start: {error}") from error
    link.drain()
    link.hide()
    if options.role is not Role.AGGREGATED:
        try:
            link.put_together(int(engine.server_args.tp_size))
        except ValueError as error:
            raise EngineDead(f"SGLang started without the ucx backend: {error}") from error
    if not cuda:
        # Where the computing is done by the same cores, a token must not wait for its turn to end.
        children = engine.get_all_child_pids()
        schedulers = children[: engine.server_args.tp_size * engine.server_args.pp_size]
        ask_for_short_turns((os.getpid(), *children), spare=schedulers)
    return _started(options, engine, link, hashes)


def _started(options: HostOptions, engine: Any, link: BackendLink, hashes: Hashes) -> Started:
    info = engine._scheduler_init_result.scheduler_infos[0]  # noqa: SLF001 - told nowhere else
    arguments = engine.server_args
    manager = engine.tokenizer_manager
    parsers = _parsers(options, manager.tokenizer)
    guides = _guides(arguments, manager)
    return Started(
        engine=engine,
        link=link,
        card=make_card(
            options,
            hashes,
            version("sglang"),
            model=manager.model_config,
            arguments=arguments,
            opened=link.opened,
        ),
        slots=options.slots,
        kv_total_tokens=int(info["max_total_num_tokens"]),
        max_request_tokens=_longest(options.role, info, arguments),
        request_class=importlib.import_module("sglang.srt.managers.io_struct").GenerateReqInput,
        parsers=parsers,
        guides=guides,
        features=(*_own_features(guides), *parsers.features),
        refusals=(ValueError, importlib.import_module("fastapi").HTTPException),
    )


def _parsers(options: HostOptions, tokenizer: Any) -> Parsers:
    try:
        return load_parsers(options.tool_parser, options.reasoning_parser, tokenizer=tokenizer)
    except ValueError as error:
        raise EngineDead(str(error)) from error


def _guides(arguments: Any, manager: Any) -> GuideCheck | None:
    if arguments.grammar_backend == "none" or arguments.skip_tokenizer_init:
        return None

    def vocabulary() -> list[bytes]:
        xgrammar = importlib.import_module("xgrammar")
        size = manager.model_config.vocab_size
        known = xgrammar.TokenizerInfo.from_huggingface(manager.tokenizer, vocab_size=size)
        return known.decoded_vocab

    return GuideCheck(
        vocabulary,
        any_whitespace=not arguments.constrained_json_disable_any_whitespace,
        max_whitespace_cnt=arguments.constrained_json_max_whitespace_cnt,
    )


def _own_features(guides: GuideCheck | None) -> tuple[Feature, ...]:
    return (Feature.LOGPROBS,) if guides is None else (Feature.GUIDES, Feature.LOGPROBS)


def _longest(role: Role, info: dict[str, Any], arguments: Any) -> int:
    """Return how many tokens of prompt and answer one request may have."""
    longest = int(info["max_req_input_len"])
    if role is not Role.DECODE:
        return longest
    # Decode admits a request only if this many tokens stay free beside it.
    reserved = int(arguments.num_reserved_decode_tokens) + int(arguments.page_size)
    return max(1, min(longest, int(info["max_total_num_tokens"]) - reserved))


def _backend_options(
    options: HostOptions, socket_path: str, facts: dict[str, str], cuda: bool
) -> BackendOptions:
    return BackendOptions(
        incarnation=options.incarnation,
        host_socket=socket_path,
        facts=facts,
        fork=not cuda,
        lanes=options.lanes,
        required=options.required,
        interface=options.interface,
        chunk_bytes=options.chunk_bytes,
        checksum_every=options.checksum_every,
        credits=options.credits,
        connect_timeout_s=options.connect_timeout_s,
        want_timeout_s=options.want_timeout_s,
        # A chunk of a long prompt may take that long to compute where there is no accelerator.
        transfer_timeout_s=max(options.transfer_timeout_s, 0.0 if cuda else _CPU_CHUNK_S),
    )


@contextmanager
def _without_collection() -> Generator[None]:
    """Import without the garbage collector, which would take a third of the time.

    What has been imported stays for ever, and forked children share it unwritten.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _assert_extensions(*, cuda: bool) -> None:
    """SGLang only logs a plugin that fails; an engine without ours must not start."""
    plugins = importlib.import_module("sglang.srt.plugins")
    plugins.load_plugins()
    utils = importlib.import_module("sglang.srt.disaggregation.utils")
    if BACKEND not in {member.value for member in utils.TransferBackend}:
        raise RuntimeError(f"the plugin {PLUGIN} is not registered: run `make setup`")
    if cuda:
        return
    platform = importlib.import_module("sglang.srt.platforms").current_platform
    if type(platform).__name__ != _CPU_CLASS:
        raise RuntimeError(f"the platform {PLATFORM} was not taken, but {type(platform).__name__}")


def _model_config(options: HostOptions) -> dict[str, Any]:
    file = Path(options.model_path) / "config.json"
    return json.loads(file.read_bytes()) if file.is_file() else {}


def _engine(options: HostOptions, *, dtype: str | None, cuda: bool) -> Any:
    facts = Facts(
        options=options,
        cuda=cuda,
        nccl_port=free_port(),
        label_port=free_port(),
        dtype=dtype,
        trace_endpoint=trace_target(os.environ),
    )
    sglang = importlib.import_module("sglang")
    return sglang.Engine(custom_sigquit_handler=_child_failed, **choose_arguments(facts))


def _child_failed(number: int, frame: object) -> NoReturn:
    # SGLang's default kills the whole process tree, this process first, without a word.
    raise ChildFailed("a scheduler process failed; its log says why")
