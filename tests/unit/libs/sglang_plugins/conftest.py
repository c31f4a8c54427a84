"""The plugin's ends without SGLang: its base classes have no behaviour, so empty ones stand in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from libs.sglang_plugins import encode_address
from libs.transfer.api import RoomState, TransferFailure
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import PeerAddress

SOURCE = PeerAddress(incarnation="b" * 16, host="h", workers={"tcp": b"x"})


class TransferError(Exception):
    """Stands for SGLang's error, whose text SGLang logs."""

    def __init__(self, room: int, reason: str) -> None:
        super().__init__(reason)
        self.room = room


@dataclass
class Handle:
    """One end of a room whose state a test sets."""

    room: Room
    state: RoomState = RoomState.WAITING
    failure: TransferFailure | None = None
    report: Any = None
    skip_pages: int = 0
    pushed: list[tuple[list[int], int, bool, int | None]] = field(default_factory=list)

    def push(self, pages: Any, *, first_page: int, last: bool, row: int | None = None) -> None:
        self.pushed.append(([int(page) for page in pages], first_page, last, row))

    def abort(self, detail: str) -> None:
        if self.state not in (RoomState.DONE, RoomState.FAILED):
            self.state = RoomState.FAILED
            self.failure = TransferFailure(ErrorCode.CANCELLED, detail)


class Plane:
    """Keeps what was asked of it."""

    def __init__(self) -> None:
        self.connected: list[PeerAddress] = []
        self.asked: list[dict[str, Any]] = []
        self.handles: list[Handle] = []
        self.askers: list[str] = []

    def connect(self, source: PeerAddress) -> bool:
        self.connected.append(source)
        return False

    def offer(self, room: Room, asker: str = "") -> Handle:
        self.askers.append(asker)
        self.handles.append(Handle(room))
        return self.handles[-1]

    def fetch(self, source: PeerAddress, room: Room, pages: Any, **more: Any) -> Handle:
        self.asked.append({"source": source, "pages": [int(page) for page in pages], **more})
        self.handles.append(Handle(room))
        return self.handles[-1]


class Backend(SimpleNamespace):
    """What sender and receiver need of the backend."""

    def __init__(self) -> None:
        super().__init__(
            plane=Plane(),
            page_size=16,
            want_timeout_s=60.0,
            rest_s=0.0,
            looks=0,
            rank=0,
            ranks=1,
            linked="",
            asked=[],
            concluded=[],
            held=[],
            refused=[],
        )

    def conclude(self, handle: Handle, held_tokens: int) -> None:
        self.concluded.append(handle.room)
        self.held.append(held_tokens)

    def may_begin(self, room: int, asker: str) -> bool:
        return asker == self.linked

    def look_again(self) -> None:
        self.looks += 1

    def was_asked(self, room: int) -> None:
        self.asked.append(room)

    def refuse(self, room: int, code: ErrorCode, detail: str) -> None:
        self.refused.append((room, code))


@pytest.fixture
def backend() -> Backend:
    """Return a backend with a plane that moves nothing."""
    return Backend()


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of the plugin as it is inside SGLang."""
    empty = type("Empty", (), {})
    bases = ("BaseKVManager", "BaseKVSender", "BaseKVReceiver")
    modules = {
        "sglang.srt.disaggregation.base": dict.fromkeys(bases, empty),
        "sglang.srt.disaggregation.base.conn": {"KVTransferMetric": SimpleNamespace},
        "sglang.srt.disaggregation.common.conn": {"KVTransferError": TransferError},
    }
    for name, content in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in modules or path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        vars(sys.modules[name]).update(content)
    loaded = [f"libs.sglang_plugins.{end}" for end in ("backend", "sender", "receiver")]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield lambda end: import_module(f"libs.sglang_plugins.{end}")
    for name in loaded:
        sys.modules.pop(name, None)


@pytest.fixture
def peer() -> str:
    """Return a prefill engine's address as SGLang hands it to a receiver."""
    return f"{encode_address(SOURCE)}:1"
