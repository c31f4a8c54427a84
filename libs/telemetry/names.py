"""Every metric and span name of pdbus; attributes of spans are in `attributes.py`.

A metric is `pdbus.<service>.<what>` with a base unit (s, By, {token}, {request}, 1). Prometheus
shows it as `pdbus_<service>_<what>_<unit>`, and counters end in `_total`. Labels are closed sets;
an id is never a label. GenAI, messaging and HTTP names are those of the OpenTelemetry semantic
conventions (core 1.44, GenAI development schema), read 2026-11-29.
"""

from __future__ import annotations

from libs.telemetry.buckets import BUS, COUNT, FAST, RATIO, REQUEST, TOKENS, TPOT, TTFT
from libs.telemetry.kinds import Counter, Gauge, Histogram, Metric

# No `__all__`: every public name here is a name of the registry.

# Labels

_M = ("model_name",)
_GEN_AI = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
)
_MESSAGING = (
    "messaging.system",
    "messaging.operation.name",
    "messaging.destination.template",
    "messaging.consumer.group.name",
    "error.type",
)

# Conventional metrics

GEN_AI_REQUEST_DURATION = Histogram(
    "gen_ai.server.request.duration",
    "s",
    "Time from request to last token.",
    (*_GEN_AI, "error.type"),
    REQUEST,
)
GEN_AI_TIME_TO_FIRST_TOKEN = Histogram(
    "gen_ai.server.time_to_first_token", "s", "Time to the first token.", _GEN_AI, TTFT
)
GEN_AI_TIME_PER_OUTPUT_TOKEN = Histogram(
    "gen_ai.server.time_per_output_token", "s", "Mean time of later tokens.", _GEN_AI, TPOT
)
HTTP_REQUEST_DURATION = Histogram(
    "http.server.request.duration",
    "s",
    "Time of an HTTP exchange.",
    ("http.request.method", "http.route", "http.response.status_code", "error.type"),
    REQUEST,
)
MESSAGING_OPERATION_DURATION = Histogram(
    "messaging.client.operation.duration", "s", "Time of a bus operation.", _MESSAGING, BUS
)
MESSAGING_PROCESS_DURATION = Histogram(
    "messaging.process.duration", "s", "Time to handle a message.", _MESSAGING, BUS
)
MESSAGING_SENT = Counter(
    "messaging.client.sent.messages", "{message}", "Messages sent.", _MESSAGING
)
MESSAGING_CONSUMED = Counter(
    "messaging.client.consumed.messages", "{message}", "Messages received.", _MESSAGING
)

# Gateway

GATEWAY_REQUESTS = Counter(
    "pdbus.gateway.requests",
    "{request}",
    "Requests that ended.",
    (*_M, "endpoint", "outcome", "error_code", "streaming"),
)
GATEWAY_INFLIGHT = Gauge("pdbus.gateway.inflight_requests", "", "Requests that run now.")
GATEWAY_QUEUED = Gauge("pdbus.gateway.queued_requests", "", "Requests that wait for a place.")
GATEWAY_TTFT = Histogram(
    "pdbus.gateway.time_to_first_token", "s", "Time to the first token.", _M, TTFT
)
GATEWAY_ITL = Histogram(
    "pdbus.gateway.inter_token_latency", "s", "Time between two token chunks.", _M, TPOT
)
GATEWAY_DURATION = Histogram(
    "pdbus.gateway.request.duration",
    "s",
    "Time from request to its end.",
    (*_M, "outcome"),
    REQUEST,
)
GATEWAY_INPUT_TOKENS = Histogram(
    "pdbus.gateway.input_tokens", "", "Prompt tokens of a request.", _M, TOKENS
)
GATEWAY_OUTPUT_TOKENS = Histogram(
    "pdbus.gateway.output_tokens", "", "Answer tokens of a request.", _M, TOKENS
)
GATEWAY_REJECTED = Counter(
    "pdbus.gateway.rejected",
    "{request}",
    "Requests refused before a place was asked for.",
    ("endpoint", "error_code", "reason"),
)
GATEWAY_IGNORED_FIELDS = Counter(
    "pdbus.gateway.ignored_fields",
    "{field}",
    "Unknown fields of requests that were left out (--unknown-fields ignore).",
    ("endpoint",),
)
GATEWAY_DISCONNECTS = Counter(
    "pdbus.gateway.client_disconnects", "{request}", "Clients that left early.", ("stage",)
)
GATEWAY_ATTEMPTS = Counter(
    "pdbus.gateway.attempts", "{attempt}", "Attempts, by how they ended.", ("outcome", "error_code")
)
GATEWAY_REPLAYS = Counter("pdbus.gateway.replays", "{replay}", "Gaps closed by asking again.")
GATEWAY_DUPLICATES = Counter(
    "pdbus.gateway.duplicate_chunks", "{chunk}", "Token chunks that came twice and were dropped."
)
GATEWAY_STALE = Counter(
    "pdbus.gateway.stale_chunks", "{chunk}", "Stream messages of attempts that are over."
)
GATEWAY_KEY_RELOADS = Counter(
    "pdbus.gateway.key_reloads",
    "{read}",
    "Changes of the key file, taken or refused.",
    ("outcome",),
)
GATEWAY_LEDGER_CONFLICTS = Counter(
    "pdbus.gateway.ledger_conflicts", "{conflict}", "Compare-and-set writes that lost.", ("op",)
)

# Router

ROUTER_DECISIONS = Counter(
    "pdbus.router.decisions",
    "{decision}",
    "Answers to place.",
    ("policy", "decision", "mode", "error_code"),
)
ROUTER_DECISION_SECONDS = Histogram(
    "pdbus.router.decision", "s", "Time to decide, without waiting.", ("policy",), FAST
)
ROUTER_QUEUE_SECONDS = Histogram(
    "pdbus.router.queue", "s", "Time that requests wait for a slot.", ("outcome",), REQUEST
)
ROUTER_QUEUED = Gauge("pdbus.router.queued_requests", "", "Requests that wait for a slot.")
ROUTER_CANDIDATES = Histogram(
    "pdbus.router.candidates", "", "Pairs that were scored.", ("policy",), COUNT
)
ROUTER_PREFIX_HIT_RATIO = Histogram(
    "pdbus.router.prefix_hit_ratio", "", "Share of the prompt already cached.", (), RATIO
)
ROUTER_WORKERS = Gauge("pdbus.router.workers", "", "Live workers.", ("role", "state"))
ROUTER_STALE_WORKERS = Counter(
    "pdbus.router.stale_workers", "{worker}", "Workers whose heartbeat stopped.", ("role",)
)
ROUTER_REFUSED_PAIRS = Gauge("pdbus.router.refused_pairs", "", "Pairs that get no work.")
ROUTER_CLAIMS = Counter(
    "pdbus.router.claims", "{claim}", "Claims answered.", ("outcome", "error_code")
)
ROUTER_RESERVE_FAILURES = Counter(
    "pdbus.router.reserve_failures", "{failure}", "Reservations refused.", ("error_code",)
)

# Prefill

PREFILL_QUEUE_REQUESTS = Gauge(
    "pdbus.prefill.queue_requests", "", "Prompts that wait for the engine."
)
PREFILL_RUNNING = Gauge("pdbus.prefill.running_requests", "", "Prompts that are computed now.")
PREFILL_QUEUE_SECONDS = Histogram(
    "pdbus.prefill.queue", "s", "Time before the first forward pass.", _M, TTFT
)
PREFILL_FORWARD_SECONDS = Histogram(
    "pdbus.prefill.forward", "s", "Time to compute a prompt.", _M, TTFT
)
PREFILL_TOKENS = Counter("pdbus.prefill.tokens", "", "Prompt tokens computed.", _M)
PREFILL_CACHED_TOKENS = Counter("pdbus.prefill.cached_tokens", "", "Prompt tokens reused.", _M)
PREFILL_REQUESTS = Counter(
    "pdbus.prefill.requests", "{request}", "Prefill attempts that ended.", ("outcome", "error_code")
)
PREFILL_LEASES = Gauge("pdbus.prefill.leases", "", "Open leases of this prefill worker.")

# Decode

DECODE_RUNNING = Gauge("pdbus.decode.running_requests", "", "Answers that are generated now.")
DECODE_WAITING = Gauge("pdbus.decode.waiting_requests", "", "Attempts that wait for their KV.")
DECODE_WAIT_KV_SECONDS = Histogram(
    "pdbus.decode.wait_kv", "s", "Time until the KV was usable.", _M, TTFT
)
DECODE_STEP_SECONDS = Histogram(
    "pdbus.decode.step", "s", "Time between two engine outputs of a request.", _M, TPOT
)
DECODE_TOKENS = Counter("pdbus.decode.tokens", "", "Answer tokens generated.", _M)
DECODE_BATCH_TOKENS = Gauge("pdbus.decode.batch_tokens", "", "Tokens in the running batch.")
DECODE_PREEMPTIONS = Counter("pdbus.decode.preemptions", "{request}", "Answers that were paused.")
DECODE_REQUESTS = Counter(
    "pdbus.decode.requests", "{request}", "Decode attempts that ended.", ("outcome", "error_code")
)
DECODE_CLAIMS = Counter("pdbus.decode.claims", "{claim}", "Claims asked.", ("outcome",))
DECODE_REPLAYED_CHUNKS = Counter("pdbus.decode.replayed_chunks", "{chunk}", "Chunks sent again.")
DECODE_RESERVED_TOKENS = Gauge("pdbus.decode.reserved_tokens", "", "KV tokens promised to starts.")
DECODE_RESERVATIONS_EXPIRED = Counter(
    "pdbus.decode.reservations_expired", "{reservation}", "Reservations whose start never came."
)
DECODE_LEASES = Gauge("pdbus.decode.leases", "", "Open leases of this decode worker.")

# Workers of either role

WORKER_TOMBSTONES = Gauge(
    "pdbus.worker.tombstones", "", "Attempts that will be refused.", ("role",)
)
WORKER_ABORTS = Counter("pdbus.worker.aborts", "{abort}", "Aborts obeyed.", ("role", "reason"))
WORKER_CANCELS = Counter("pdbus.worker.cancels", "{cancel}", "Cancel events that hit.", ("role",))
WORKER_STALE_STARTS = Counter(
    "pdbus.worker.stale_starts", "{start}", "Starts refused as too late or fenced.", ("role",)
)
LEASES_OPENED = Counter("pdbus.lease.opened", "{lease}", "Leases opened.", ("side",))
LEASES_ENDED = Counter("pdbus.lease.ended", "{lease}", "Leases ended.", ("side", "reason"))
LEASE_AGE_SECONDS = Histogram(
    "pdbus.lease.age", "s", "Age of leases at their end.", ("side",), REQUEST
)

STAGE_SECONDS = Histogram(
    "pdbus.stage", "s", "Time of each stage of an attempt.", ("stage",), REQUEST
)
STREAM_UNSENT = Counter(
    "pdbus.stream.unsent", "{message}", "Stream messages that the bus did not take.", ("role",)
)

# Engine hosts

ENGINE_STARTS = Counter("pdbus.engine.starts", "{start}", "Engine hosts started.", ("outcome",))
ENGINE_LOST = Counter("pdbus.engine.lost", "{engine}", "Engines that died.", ("reason",))
ENGINE_START_SECONDS = Histogram(
    "pdbus.engine.start", "s", "Time until an engine was ready.", ("engine",), REQUEST
)
ENGINE_LOAD_AGE = Gauge("pdbus.engine.load_age", "s", "Age of the engine's own figures.")

# KV memory and its transfers

KV_USAGE_RATIO = Gauge("pdbus.kv.cache_usage_ratio", "", "KV tokens in use of all.", ("role",))
KV_USED_TOKENS = Gauge("pdbus.kv.used_tokens", "", "KV tokens held by requests.", ("role",))
KV_TOTAL_TOKENS = Gauge("pdbus.kv.total_tokens", "", "KV tokens of the pool.", ("role",))
KV_TRANSFER_SECONDS = Histogram(
    "pdbus.kv.transfer", "s", "Time from the ask until the pages were usable.", ("lane",), FAST
)
KV_TRANSFER_QUEUE_SECONDS = Histogram(
    "pdbus.kv.transfer_queue", "s", "Time from the ask until bytes could move.", ("lane",), FAST
)
KV_TRANSFER_WIRE_SECONDS = Histogram(
    "pdbus.kv.transfer_wire", "s", "Time from the first chunk to the last one.", ("lane",), FAST
)
KV_TRANSFER_COPY_SECONDS = Histogram(
    "pdbus.kv.transfer_copy", "s", "Time of copies from or into pages.", ("role", "lane"), FAST
)
KV_TRANSFER_CHUNKS = Counter("pdbus.kv.transfer_chunks", "{chunk}", "Chunks moved.", ("lane",))
KV_TRANSFER_RETRIES = Counter(
    "pdbus.kv.transfer_retries", "{transfer}", "Transfers of requests that had one before."
)
KV_EXPECTED_BYTES = Counter(
    "pdbus.kv.expected_bytes", "By", "KV bytes that transfers should have moved.", ("role", "lane")
)
KV_TRANSFER_BYTES = Counter("pdbus.kv.transfer_bytes", "By", "KV bytes moved.", ("role", "lane"))
KV_TRANSFERS = Counter(
    "pdbus.kv.transfers", "{transfer}", "Transfers that ended.", ("role", "lane")
)
KV_TRANSFER_FAILURES = Counter(
    "pdbus.kv.transfer_failures", "{transfer}", "Transfers that failed.", ("lane", "reason")
)
KV_INFLIGHT_TRANSFERS = Gauge(
    "pdbus.kv.inflight_transfers", "", "Transfers that are open now.", ("role",)
)
KV_DROPPED_CHUNKS = Gauge(
    "pdbus.kv.dropped_chunks", "", "Chunks for rooms unknown or closed, since start.", ("role",)
)
KV_UNSHARED_LINKS = Gauge(
    "pdbus.kv.unshared_links",
    "",
    "Links on one host that got no shared memory, since start: twice the CPU time.",
    ("role",),
)
KV_BYTE_MISMATCHES = Counter(
    "pdbus.kv.byte_mismatches", "{transfer}", "Transfers that moved more or less than expected."
)
KV_PAIRS = Gauge(
    "pdbus.kv.pairs", "", "Ways to prefill engines, by the last probe.", ("state", "lane")
)
KV_PAIR_LATENCY = Gauge(
    "pdbus.kv.pair_latency", "s", "Slowest small answer of a pair, by the last probe.", ("lane",)
)
KV_PAIR_BANDWIDTH = Gauge(
    "pdbus.kv.pair_bandwidth", "By/s", "Slowest pair, in bytes a second of its probe.", ("lane",)
)
KV_PAIR_REFUSALS = Counter(
    "pdbus.kv.pair_refusals", "{pair}", "Pairs refused.", ("lane", "error_code")
)

# Cleanup

CLEANUP_LEASES = Gauge("pdbus.cleanup.leases", "", "Open leases seen in heartbeats.", ("side",))
CLEANUP_RECLAIMED = Counter(
    "pdbus.cleanup.reclaimed",
    "{lease}",
    "Leases proved free after an order.",
    ("outcome", "reason"),
)
CLEANUP_RECLAIM_DELAY = Histogram(
    "pdbus.cleanup.reclaim_delay", "s", "Time from the end of a request to freed.", (), REQUEST
)
CLEANUP_ORPHANS = Counter(
    "pdbus.cleanup.orphans", "{lease}", "Leases that no living request owns.", ("reason",)
)
CLEANUP_ORDERS = Counter(
    "pdbus.cleanup.orders", "{order}", "Release orders sent.", ("outcome", "role")
)
CLEANUP_FREED = Counter("pdbus.cleanup.freed", "{lease}", "Leases proved free.", ("evidence",))
CLEANUP_REQUESTS_CLOSED = Counter(
    "pdbus.cleanup.requests_closed", "{request}", "Requests ended for a lost gateway.", ("state",)
)
CLEANUP_SWEEP_SECONDS = Histogram("pdbus.cleanup.sweep", "s", "Time of one sweep.", (), REQUEST)
CLEANUP_LEADER = Gauge("pdbus.cleanup.leader", "", "1 while this process leads.")

# Bus

BUS_RECONNECTS = Counter("pdbus.bus.reconnects", "{reconnect}", "Connections regained.")
BUS_DISCONNECTS = Counter("pdbus.bus.disconnects", "{disconnect}", "Connections lost.")
BUS_DECODE_ERRORS = Counter(
    "pdbus.bus.decode_errors",
    "{message}",
    "Messages that were not what they should be.",
    ("template",),
)
BUS_PERMISSION_ERRORS = Counter(
    "pdbus.bus.permission_errors", "{error}", "Subjects that the server denied.", ("operation",)
)
BUS_ERRORS = Counter("pdbus.bus.errors", "{error}", "Other asynchronous errors.", ("error_type",))
BUS_EVENT_OVERFLOW = Counter("pdbus.bus.event_overflow", "{event}", "Events that found no room.")
BUS_EVENTS_PUBLISHED = Counter(
    "pdbus.bus.events_published", "{event}", "Events stored.", ("outcome",)
)
BUS_HANDLER_ERRORS = Counter(
    "pdbus.bus.handler_errors", "{error}", "Handlers that failed without a code.", ("template",)
)
BUS_REFUSED = Counter(
    "pdbus.bus.refused_requests", "{request}", "Requests over an endpoint's limit.", ("template",)
)
BUS_TOO_LARGE = Counter("pdbus.bus.too_large", "{message}", "Messages too large.", ("template",))
BUS_PENDING_BYTES = Gauge("pdbus.bus.pending_bytes", "By", "Bytes that wait to be sent.")
BUS_CONNECTED = Gauge("pdbus.bus.connected", "", "1 while connected.")

# Every process

BUILD_INFO = Gauge("pdbus.build_info", "", "Always 1.", ("version", "service"))
READY = Gauge("pdbus.ready", "", "1 while ready.", ("service",))
EVENT_LOOP_LAG = Histogram(
    "pdbus.event_loop_lag", "s", "How late the loop wakes a timer.", (), FAST
)
TASKS = Gauge("pdbus.tasks", "", "Tasks of the event loop.")
TASK_FAILURES = Counter("pdbus.task_failures", "{task}", "Tasks that failed.", ("task",))
INVARIANT_VIOLATIONS = Counter(
    "pdbus.invariant_violations", "{violation}", "Promises found broken.", ("name",)
)

# Spans of work (a caller waits: child; nobody waits: new root with a link)

SPAN_GATEWAY_PLACE = "gateway.place"
SPAN_GATEWAY_WARM_UP = "gateway.warm_up"
SPAN_GATEWAY_STREAM = "gateway.stream"
SPAN_ROUTER_PLAN = "router.plan"
SPAN_ROUTER_QUEUE = "router.queue"
SPAN_PREFILL_QUEUE = "prefill.queue"
SPAN_PREFILL_FORWARD = "prefill.forward"
SPAN_KV_EXPORT = "kv.export"
SPAN_KV_TRANSFER = "kv.transfer"
SPAN_KV_IMPORT = "kv.import"
SPAN_DECODE_WAIT_KV = "decode.wait_kv"
SPAN_DECODE_FIRST_TOKEN = "decode.first_token"  # noqa: S105 - a name
SPAN_DECODE_LOOP = "decode.loop"
SPAN_CLEANUP_RECLAIM = "cleanup.reclaim"

METRICS: tuple[Metric, ...] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""Every metric above."""

METRICS_BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
"""The same, by OpenTelemetry name."""


def span_send(template: str) -> str:
    """Return the name of the span of sending to a subject template."""
    return f"send {template}"


def span_process(template: str) -> str:
    """Return the name of the span of handling a message from a subject template."""
    return f"process {template}"
