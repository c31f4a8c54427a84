"""Every attribute name of spans: upstream conventions first, else `pdbus.<noun>.<prop>`."""

from __future__ import annotations

__all__ = [
    "ATTEMPT",
    "ERROR_TYPE",
    "GEN_AI_CACHED_TOKENS",
    "GEN_AI_FINISH_REASONS",
    "GEN_AI_INPUT_TOKENS",
    "GEN_AI_OPERATION",
    "GEN_AI_OUTPUT_TOKENS",
    "GEN_AI_PROVIDER",
    "GEN_AI_REQUEST_MAX_TOKENS",
    "GEN_AI_REQUEST_MODEL",
    "GEN_AI_REQUEST_STREAM",
    "GEN_AI_REQUEST_TEMPERATURE",
    "GEN_AI_REQUEST_TOP_P",
    "GEN_AI_RESPONSE_ID",
    "GEN_AI_RESPONSE_MODEL",
    "GEN_AI_TIME_TO_FIRST_CHUNK",
    "HTTP_METHOD",
    "HTTP_ROUTE",
    "HTTP_STATUS",
    "KV_BYTES",
    "KV_CHUNKS",
    "KV_COPY_S",
    "KV_EXPECTED_BYTES",
    "KV_HELD_TOKENS",
    "KV_LANE",
    "KV_QUEUE_S",
    "KV_RETRIES",
    "KV_TOKENS",
    "KV_WIRE_S",
    "LEASE_AGE_S",
    "LEASE_SIDE",
    "MESSAGING_BODY_SIZE",
    "MESSAGING_CLIENT",
    "MESSAGING_CONVERSATION",
    "MESSAGING_DESTINATION",
    "MESSAGING_GROUP",
    "MESSAGING_OPERATION_NAME",
    "MESSAGING_OPERATION_TYPE",
    "MESSAGING_SYSTEM",
    "MESSAGING_TEMPLATE",
    "MODE",
    "PREFILL_CHUNKS",
    "RECLAIM_OUTCOME",
    "REQUEST_ID",
    "ROLE",
    "ROUTE_CANDIDATES",
    "ROUTE_DECISION",
    "ROUTE_DECODE",
    "ROUTE_POLICY",
    "ROUTE_PREFILL",
    "ROUTE_PREFIX_HIT_TOKENS",
    "ROUTE_QUEUED_S",
    "URL_PATH",
    "WORKER_INCARNATION",
    "WORKER_INSTANCE",
]

ERROR_TYPE = "error.type"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION_NAME = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
MESSAGING_DESTINATION = "messaging.destination.name"
MESSAGING_TEMPLATE = "messaging.destination.template"
MESSAGING_GROUP = "messaging.consumer.group.name"
MESSAGING_CLIENT = "messaging.client.id"
MESSAGING_CONVERSATION = "messaging.message.conversation_id"
MESSAGING_BODY_SIZE = "messaging.message.body.size"
GEN_AI_OPERATION = "gen_ai.operation.name"
GEN_AI_PROVIDER = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
GEN_AI_REQUEST_STREAM = "gen_ai.request.stream"
GEN_AI_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
GEN_AI_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GEN_AI_CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REQUEST_ID = "pdbus.request.id"
ATTEMPT = "pdbus.attempt"
ROLE = "pdbus.role"
MODE = "pdbus.mode"
WORKER_INSTANCE = "pdbus.worker.instance"
WORKER_INCARNATION = "pdbus.worker.incarnation"
ROUTE_POLICY = "pdbus.route.policy"
ROUTE_CANDIDATES = "pdbus.route.candidates"
ROUTE_DECISION = "pdbus.route.decision"
ROUTE_PREFILL = "pdbus.route.prefill"
ROUTE_DECODE = "pdbus.route.decode"
ROUTE_QUEUED_S = "pdbus.route.queued_s"
ROUTE_PREFIX_HIT_TOKENS = "pdbus.route.prefix_hit_tokens"
PREFILL_CHUNKS = "pdbus.prefill.chunks"
KV_BYTES = "pdbus.kv.bytes"
KV_EXPECTED_BYTES = "pdbus.kv.expected_bytes"
KV_TOKENS = "pdbus.kv.tokens"
KV_HELD_TOKENS = "pdbus.kv.held_tokens"
KV_CHUNKS = "pdbus.kv.chunks"
KV_LANE = "pdbus.kv.lane"
KV_WIRE_S = "pdbus.kv.wire_s"
KV_COPY_S = "pdbus.kv.copy_s"
KV_QUEUE_S = "pdbus.kv.queue_s"
KV_RETRIES = "pdbus.kv.retries"
LEASE_AGE_S = "pdbus.lease.age_s"
LEASE_SIDE = "pdbus.lease.side"
RECLAIM_OUTCOME = "pdbus.reclaim.outcome"
