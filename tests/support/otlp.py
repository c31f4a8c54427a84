"""A collector in memory: takes OTLP over HTTP and keeps the spans for a test to look at."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

__all__ = ["Collector", "Received", "Tree", "collecting"]

POLL_S = 0.02

KINDS = {
    trace_pb2.Span.SPAN_KIND_INTERNAL: "internal",
    trace_pb2.Span.SPAN_KIND_SERVER: "server",
    trace_pb2.Span.SPAN_KIND_PRODUCER: "producer",
    trace_pb2.Span.SPAN_KIND_CONSUMER: "consumer",
}


@dataclass(frozen=True, slots=True)
class Received:
    """One span as it came over the wire; ids are hex."""

    service: str
    instance: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    """Empty for a root."""
    state: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, Any] = field(hash=False)
    links: tuple[str, ...] = ()
    """Trace ids of the links."""

    @property
    def place(self) -> tuple[str, str]:
        """Service and name: what tells spans of one request apart."""
        return self.service, self.name


class Tree:
    """The spans of one trace."""

    def __init__(self, spans: list[Received]) -> None:
        self.spans = spans
        self._by_id = {span.id: span for span in spans}

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def edges(self) -> set[tuple[tuple[str, str], tuple[str, str]]]:
        """Child and parent of every span that has a parent in this process family."""
        pairs = ((span, self._by_id.get(span.parent)) for span in self.spans)
        return {(child.place, parent.place) for child, parent in pairs if parent is not None}

    @property
    def roots(self) -> list[Received]:
        """Spans whose parent is not ours: there is none, or it is the caller's."""
        return [span for span in self.spans if span.parent not in self._by_id]

    def all(self, name: str) -> list[Received]:
        """Return the spans of a name, by start."""
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.start_ns)

    def one(self, name: str) -> Received:
        """Return the only span of a name."""
        (found,) = self.all(name)
        return found

    def parent_of(self, span: Received) -> Received | None:
        """Return the span above."""
        return self._by_id.get(span.parent)

    def count(self) -> Counter[tuple[str, str]]:
        """Return how often each place occurs."""
        return Counter(span.place for span in self.spans)

    def __str__(self) -> str:
        lines: list[str] = []
        for root in self.roots:
            lines += self._drawn(root, 0)
        return "\n".join(lines)

    def _drawn(self, span: Received, depth: int) -> list[str]:
        lines = [f"{'  ' * depth}{span.service}: {span.name} {span.attributes}"]
        below = [child for child in self.spans if child.parent == span.id]
        for child in sorted(below, key=lambda child: child.start_ns):
            lines += self._drawn(child, depth + 1)
        return lines


class Collector:
    """Everything that was exported so far."""

    def __init__(self) -> None:
        self._spans: list[Received] = []
        self._lock = threading.Lock()
        self.raw: list[bytes] = []
        """All bodies, whatever the signal."""
        self.endpoint = ""

    def take(self, path: str, body: bytes) -> None:
        """Keep one export; called on threads of the server."""
        spans: list[Received] = []
        if path == "/v1/traces":
            spans = list(_spans(ExportTraceServiceRequest.FromString(body)))
        with self._lock:
            self.raw.append(body)
            self._spans += spans

    @property
    def spans(self) -> list[Received]:
        """All spans, in the order of their arrival."""
        with self._lock:
            return list(self._spans)

    def trace(self, trace: str) -> Tree:
        """Return one trace, as far as it has arrived."""
        return Tree([span for span in self.spans if span.trace == trace])

    def traces(self) -> dict[str, Tree]:
        """Return all traces, as far as they have arrived."""
        found: dict[str, list[Received]] = {}
        for span in self.spans:
            found.setdefault(span.trace, []).append(span)
        return {trace: Tree(spans) for trace, spans in found.items()}

    async def until(
        self, done: Callable[[], object], timeout_s: float = 10.0, what: str = "spans"
    ) -> None:
        """Wait until a condition on what has arrived is true."""
        try:
            async with asyncio.timeout(timeout_s):
                while not done():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            text = "\n".join(f"{trace}\n{tree}" for trace, tree in self.traces().items())
            raise AssertionError(f"{what} did not arrive\n{text[-8000:]}") from None


@contextmanager
def collecting() -> Iterator[Collector]:
    """Listen on a free port of the loopback interface for the length of the context."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for resource in request.resource_spans:
        facts = _facts(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    service=facts["service.name"],
                    instance=facts["service.instance.id"],
                    name=span.name,
                    kind=KINDS.get(span.kind, str(span.kind)),
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    state=span.trace_state,
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
                    attributes=_facts(span.attributes),
                    links=tuple(link.trace_id.hex() for link in span.links),
                )


def _facts(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in _each(pairs)}


def _each(pairs: Any) -> Iterator[KeyValue]:
    yield from pairs


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return getattr(value, kind) if kind is not None else None
