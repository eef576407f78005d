"""A life as OpenTelemetry spans, sent over OTLP (HTTP, protobuf).

Role: the only module that knows OpenTelemetry; the extra `[otel]` brings it.
Data in: `Life`, and where to send it; absent: what `OTEL_EXPORTER_OTLP_ENDPOINT` and its companions say. Data out: one
span for the life, one inside it for each hop, each under the service `rlweave-STAGE`.
Invariants: ids follow from run, kind, id and hop alone, so the same life sent again is the same trace.
Failure: `TraceError` when the receiver does not take them.
Followed: OpenTelemetry trace data model and OTLP 1.x.
"""

from __future__ import annotations

from blake3 import blake3
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from ops.trace.life import Hop, Life
from ops.trace.target import TraceError
from pipeline.secrets import scrubbed

TIMEOUT_S = 10
_PATH = "/v1/traces"
_MOST_NS = 2**63 - 1
_SCOPE = InstrumentationScope("rlweave.trace")


def spans_of(life: Life) -> list[ReadableSpan]:
    """The life and its hops; the life first. A life without hops has no spans."""
    if not life.hops:
        return []
    root = _context(life, "life")
    whole = ReadableSpan(
        name=f"{life.kind} {life.id}",
        context=root,
        resource=Resource({"service.name": "rlweave", "rlweave.run": life.run}),
        attributes={"rlweave.end": life.end, **{f"rlweave.{name}": value for name, value in life.facts.items()}},
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if life.end.startswith("failed") else StatusCode.OK),
        start_time=_ns(min(hop.began_ms for hop in life.hops)),
        end_time=_ns(max(hop.ended_ms for hop in life.hops)),
        instrumentation_scope=_SCOPE,
    )
    return [whole, *(_span(life, hop, number=number, root=root) for number, hop in enumerate(life.hops))]


def export(life: Life, *, endpoint: str | None = None) -> int:
    """Send it; returns how many spans that were.

    Args:
        endpoint: base URL of an OTLP receiver, as in http://127.0.0.1:4318, or the whole one; None: as the environment
            says.

    Raises:
        TraceError: the receiver did not take them.
    """
    url = None if endpoint is None else _url(endpoint)
    exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S)
    spans = spans_of(life)
    try:
        result = exporter.export(spans)
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
    if result is not SpanExportResult.SUCCESS:
        where = scrubbed(url) if url is not None else "the receiver that the environment names"
        raise TraceError(
            f"{where} did not take the spans, in at most {TIMEOUT_S} s",
            hint="is it an OTLP receiver over HTTP? The log above says what it answered",
        )
    return len(spans)


def _span(life: Life, hop: Hop, *, number: int, root: SpanContext) -> ReadableSpan:
    attributes: dict[str, str | bool] = {"rlweave.stage": hop.stage, "rlweave.waits": hop.waits}
    if hop.note:
        attributes["rlweave.note"] = hop.note
    resource = {"service.name": f"rlweave-{hop.stage}", "rlweave.run": life.run}
    if hop.who:
        resource["service.instance.id"] = hop.who
    return ReadableSpan(
        name=hop.name,
        context=_context(life, f"{number} {hop.name}"),
        parent=root,
        resource=Resource(resource),
        attributes=attributes,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if "fails" in hop.name else StatusCode.UNSET),
        start_time=_ns(hop.began_ms),
        end_time=_ns(hop.ended_ms),
        instrumentation_scope=_SCOPE,
    )


def _context(life: Life, part: str) -> SpanContext:
    trace = blake3(f"{life.run} {life.kind} {life.id}".encode()).digest(16)
    span = blake3(trace + part.encode()).digest(8)
    return SpanContext(
        trace_id=int.from_bytes(trace),
        span_id=int.from_bytes(span),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _url(endpoint: str) -> str:
    base = endpoint.rstrip("/")
    return base if base.endswith(_PATH) else f"{base}{_PATH}"


def _ns(at_ms: float) -> int:
    """Within what the protocol holds: others may have written the time."""
    return min(_MOST_NS, max(0, round(at_ms * 1_000_000)))
