"""What is kept in JetStream: declared streams, the ledger of records, lifecycle events."""

from libs.bus.jetstream.events import Emitter, event_stream, events_in, read_events
from libs.bus.jetstream.kv import BucketSpec, NatsStore

__all__ = ["BucketSpec", "Emitter", "NatsStore", "event_stream", "events_in", "read_events"]
