//! Traces and metrics: a collector gets a trace of each edited request and its measures, and no request waits for it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message as _;
use tokio::sync::mpsc;

use crate::support::offloads::{long_text, with_results};
use crate::support::upstream::whole;
use crate::support::{Abridge, ClosedPort, Exchange, Setup, Upstream, chat, post, within};

/// A collector, with everything it has received.
struct Collector {
    origin: String,
    posts: mpsc::UnboundedReceiver<(String, Bytes)>,
}

impl Collector {
    /// Answers every post.
    async fn start() -> Self {
        Self::serving(Upstream::start().await)
    }

    fn serving(mut server: Upstream) -> Self {
        let origin = server.origin();
        let (told, posts) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(mut wire) = server.accept().await {
                let told = told.clone();
                tokio::spawn(async move {
                    while let Some((head, body)) = wire.next_whole().await {
                        assert_eq!(head.get("content-type"), Some("application/x-protobuf"));
                        // A test that has ended reads no more.
                        let _told = told.send((head.start, body));
                        wire.send(whole("200 OK", &["content-type: application/x-protobuf"], "")).await;
                    }
                });
            }
        });
        Self { origin, posts }
    }

    async fn next(&mut self) -> (String, Bytes) {
        within("a post", self.posts.recv()).await.unwrap()
    }

    /// The spans of the next posts of traces, through the span of a request, which ends last.
    async fn spans(&mut self) -> (Vec<Span>, Vec<u8>) {
        let (mut spans, mut bodies) = (Vec::new(), Vec::new());
        while !spans.iter().any(|span: &Span| span.kind() == SpanKind::Server) {
            let (target, body) = self.next().await;
            if target == "POST /v1/traces HTTP/1.1" {
                let read = ExportTraceServiceRequest::decode(body.clone()).unwrap();
                let of_service = read.resource_spans.into_iter().inspect(|of| {
                    let resource = of.resource.as_ref().unwrap();
                    assert_eq!(attributes(&resource.attributes)["service.name"], "abridge");
                });
                spans.extend(of_service.flat_map(|of| of.scope_spans).flat_map(|of| of.spans));
                bodies.extend_from_slice(&body);
            }
        }
        (spans, bodies)
    }

    /// The next post of metrics.
    async fn metrics(&mut self) -> (ExportMetricsServiceRequest, Bytes) {
        loop {
            let (target, body) = self.next().await;
            if target == "POST /v1/metrics HTTP/1.1" {
                return (ExportMetricsServiceRequest::decode(body.clone()).unwrap(), body);
            }
        }
    }
}

/// As text, to be compared.
fn attributes(attributes: &[KeyValue]) -> BTreeMap<&str, String> {
    let text = |value: &AnyValue| match value.value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(n) => n.to_string(),
        Value::DoubleValue(x) => x.to_string(),
        Value::ArrayValue(array) => format!("{:?}", array.values),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|of| (of.key.as_str(), text(of.value.as_ref().unwrap()))).collect()
}

/// abridge before an upstream, which sends what it has soon.
async fn abridge(upstream: &Upstream, collector: &str) -> Abridge {
    Setup::before(upstream)
        .with(format!("otel.endpoint = \"{collector}\""))
        .environment("OTEL_BSP_SCHEDULE_DELAY", "50")
        .environment("OTEL_METRIC_EXPORT_INTERVAL", "100")
        .start()
        .await
}

const ANSWER: &str = r#"{"choices":[{"finish_reason":"stop","message":{"content":"S3CRET-ANSWER"}}],"usage":{"prompt_tokens":31,"prompt_tokens_details":{"cached_tokens":7},"completion_tokens":2}}"#;

/// A request with a text to be truncated, sent and answered; returns it as the upstream has received it.
async fn sent(abridge: &Abridge, upstream: &mut Upstream, fields: &[&str]) -> Exchange {
    let mut client = abridge.connect().await;
    client.send(post("/v1/chat/completions", fields, with_results(&[format!("S3CRET-TEXT {}", long_text(1))]))).await;
    let mut call = upstream.request().await;
    call.bytes().await;
    call.answer("200 OK", &["content-type: application/json", "connection: close"], ANSWER).await;
    assert_eq!(client.reply().await.head.status(), 200);
    call
}

fn hex(id: &[u8]) -> String {
    id.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

fn span<'s>(spans: &'s [Span], name: &str) -> &'s Span {
    let names: Vec<_> = spans.iter().map(|span| &span.name).collect();
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span {name} in {names:?}"))
}

#[tokio::test]
async fn an_edited_request_is_a_trace_with_its_edits_its_steps_and_its_tokens() {
    let (mut upstream, mut collector) = (Upstream::start().await, Collector::start().await);
    let abridge = abridge(&upstream, &collector.origin).await;
    let call = sent(&abridge, &mut upstream, &["authorization: Bearer S3CRET-KEY"]).await;

    let (spans, body) = collector.spans().await;
    let request = span(&spans, "POST /v1/chat/completions");
    let call_span = span(&spans, "chat gpt-4o");
    assert_eq!(spans.len(), 5, "{spans:?}");
    assert!(request.parent_span_id.is_empty() && request.kind() == SpanKind::Server);
    assert_eq!((call_span.kind(), &call_span.parent_span_id), (SpanKind::Client, &request.span_id));
    for step in ["read", "plan", "store"] {
        let step = span(&spans, step);
        assert_eq!((&step.trace_id, &step.parent_span_id), (&request.trace_id, &request.span_id));
        assert!(request.start_time_unix_nano <= step.start_time_unix_nano);
        assert!(step.start_time_unix_nano <= step.end_time_unix_nano);
        assert!(step.end_time_unix_nano <= call_span.start_time_unix_nano, "{step:?}");
    }
    let of_request = attributes(&request.attributes);
    assert_eq!(of_request["abridge.edits.truncate"], "1");
    assert_eq!(of_request["abridge.outcome"], "edited");
    let bytes = |name: &str| of_request[name].parse::<usize>().unwrap();
    assert!(bytes("abridge.bytes.after") < bytes("abridge.bytes.before"), "{of_request:?}");
    let of_call = attributes(&call_span.attributes);
    for (name, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "openai"),
        ("gen_ai.request.model", "gpt-4o"),
        ("gen_ai.usage.input_tokens", "31"),
        ("gen_ai.usage.cache_read.input_tokens", "7"),
        ("gen_ai.usage.output_tokens", "2"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(of_call.get(name).map(String::as_str), Some(value), "{name}");
    }
    let named = format!("00-{}-{}-01", hex(&call_span.trace_id), hex(&call_span.span_id));
    assert_eq!(
        call.head.get("traceparent"),
        Some(named.as_str()),
        "spans of the upstream are children of that of the call"
    );
    assert_eq!(call.head.get("tracestate"), None);
    assert!(memchr::memmem::find(&body, b"S3CRET").is_none(), "neither texts nor keys are sent");
}

#[tokio::test]
async fn tokens_and_times_are_measured_by_the_conventions() {
    let (mut upstream, mut collector) = (Upstream::start().await, Collector::start().await);
    let abridge = abridge(&upstream, &collector.origin).await;
    sent(&abridge, &mut upstream, &[]).await;
    loop {
        let (read, body) = collector.metrics().await;
        assert!(memchr::memmem::find(&body, b"S3CRET").is_none());
        let metrics: Vec<_> = read.resource_metrics.into_iter().flat_map(|of| of.scope_metrics).collect();
        let metrics: BTreeMap<_, _> =
            metrics.into_iter().flat_map(|of| of.metrics).map(|metric| (metric.name, metric.data.unwrap())).collect();
        // The first posts may be older than the answer's end.
        let Some(Data::Histogram(tokens)) = metrics.get("gen_ai.client.token.usage") else { continue };
        let by_type = |kind: &str| {
            let is = |point: &KeyValue| point.key == "gen_ai.token.type";
            let of = tokens.data_points.iter().find(|point| {
                attributes(&point.attributes.iter().filter(|of| is(of)).cloned().collect::<Vec<_>>())
                    .values()
                    .any(|value| value == kind)
            });
            of.map(|point| (point.count, point.sum)).unwrap()
        };
        assert_eq!([by_type("input"), by_type("output")], [(1, Some(31.0)), (1, Some(2.0))]);
        let Some(Data::Histogram(duration)) = metrics.get("gen_ai.client.operation.duration") else {
            panic!("{metrics:?}")
        };
        assert_eq!(duration.data_points.len(), 1);
        assert!(duration.data_points[0].sum.is_some_and(|sum| sum > 0.0 && sum < 20.0), "in seconds: {duration:?}");
        return;
    }
}

#[tokio::test]
async fn the_trace_of_a_client_goes_on_and_its_decision_counts() {
    let (mut upstream, mut collector) = (Upstream::start().await, Collector::start().await);
    let abridge = abridge(&upstream, &collector.origin).await;
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let unsampled = format!("traceparent: 00-{trace}-{parent}-00");
    let call = sent(&abridge, &mut upstream, &[&unsampled, "tracestate: vendor=1"]).await;
    let named = call.head.get("traceparent").unwrap();
    assert!(named.starts_with(&format!("00-{trace}-")) && named.ends_with("-00"), "{named}");
    assert_eq!(call.head.get("tracestate"), Some("vendor=1"));

    let sampled = format!("traceparent: 00-{trace}-{parent}-01");
    sent(&abridge, &mut upstream, &[&sampled]).await;
    let (spans, _) = collector.spans().await;
    let request = span(&spans, "POST /v1/chat/completions");
    assert_eq!((hex(&request.trace_id), hex(&request.parent_span_id)), (trace.to_owned(), parent.to_owned()));
    assert_eq!(spans.len(), 5, "of the request that was not sampled there is none");
}

#[tokio::test]
async fn a_request_without_an_answer_is_a_trace_with_an_error() {
    let (upstream, mut collector) = (ClosedPort::new(), Collector::start().await);
    let abridge = Setup::to(upstream.url())
        .with(format!("otel.endpoint = \"{}\"", collector.origin))
        .environment("OTEL_BSP_SCHEDULE_DELAY", "50")
        .start()
        .await;
    let mut client = abridge.connect().await;
    client.send(chat(with_results(&[long_text(1)]))).await;
    assert_eq!(client.reply().await.head.status(), 502);
    let (spans, _) = collector.spans().await;
    let request = span(&spans, "POST /v1/chat/completions");
    let status = request.status.as_ref().unwrap();
    assert_eq!((status.code(), status.message.as_str()), (StatusCode::Error, "unanswered"));
}

#[tokio::test]
async fn a_collector_that_is_away_delays_no_request_and_is_logged_once() {
    let (mut upstream, collector) = (Upstream::start().await, ClosedPort::new());
    let origin = format!("http://{}", collector.address());
    let abridge = abridge(&upstream, &origin).await;
    for _ in 0..5 {
        sent(&abridge, &mut upstream, &[]).await;
    }
    let said = abridge.says("traces and metrics cannot be sent to otel.endpoint", 0).await;
    assert!(said.contains("no connection to it") && !said.contains("upstream"), "{said}");
    let mut collector = Collector::serving(collector.open());
    sent(&abridge, &mut upstream, &[]).await;
    collector.spans().await;
    abridge.says("traces and metrics are sent to otel.endpoint again", 0).await;
    let warnings = abridge.stderr().iter().filter(|line| line.contains("cannot be sent")).count();
    assert_eq!(warnings, 1);
}

#[tokio::test]
async fn a_collector_that_hangs_delays_no_request_and_the_end_by_seconds() {
    let (mut upstream, collector) = (Upstream::start().await, Upstream::start().await);
    let abridge = abridge(&upstream, &collector.origin()).await;
    let began = Instant::now();
    for _ in 0..5 {
        sent(&abridge, &mut upstream, &[]).await;
    }
    // A post may take five seconds, and none of the five has waited for one.
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    let began = Instant::now();
    abridge.signal("TERM");
    abridge.exit().await;
    // Each of the two exporters waits for as long. The rest is what a busy machine adds.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    abridge.says("not sent to otel.endpoint", 0).await;
}

#[tokio::test]
async fn what_went_wrong_with_an_answer_is_the_type_of_its_error() {
    let (mut upstream, mut collector) = (Upstream::start().await, Collector::start().await);
    let abridge = abridge(&upstream, &collector.origin).await;
    let begun = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let refused = "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    for (answer, error) in [(begun, "cut"), (refused, "400"), (begun, "client_gone")] {
        let mut client = abridge.connect().await;
        client.send(chat(with_results(&[long_text(1)]))).await;
        let mut call = upstream.request().await;
        call.bytes().await;
        let mut answering = call.into_wire();
        answering.send(answer).await;
        client.head().await;
        // The one that stays is dropped when the span is there.
        let _stays: Box<dyn Send> = if error == "client_gone" {
            client.reset();
            Box::new(answering)
        } else {
            drop(answering);
            Box::new(client)
        };
        let (spans, _) = collector.spans().await;
        let call_span = span(&spans, "chat gpt-4o");
        assert_eq!(attributes(&call_span.attributes)["error.type"], error);
        assert_eq!(call_span.status.as_ref().unwrap().code(), StatusCode::Error);
    }
}

#[tokio::test]
async fn the_last_spans_are_sent_at_the_end() {
    let (mut upstream, mut collector) = (Upstream::start().await, Collector::start().await);
    let abridge = Setup::before(&upstream)
        .with(format!("otel.endpoint = \"{}\"", collector.origin))
        .environment("OTEL_BSP_SCHEDULE_DELAY", "600000")
        .start()
        .await;
    sent(&abridge, &mut upstream, &[]).await;
    abridge.signal("TERM");
    let (spans, _) = collector.spans().await;
    assert_eq!(spans.len(), 5);
    assert!(abridge.exit().await.success());
}

#[tokio::test]
async fn without_a_collector_the_header_of_a_trace_goes_on_as_it_came() {
    let mut upstream = Upstream::start().await;
    let abridge = Abridge::before(&upstream).await;
    assert_eq!(sent(&abridge, &mut upstream, &[]).await.head.get("traceparent"), None);
    let came = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let call = sent(&abridge, &mut upstream, &[&format!("traceparent: {came}")]).await;
    assert_eq!(call.head.get("traceparent"), Some(came));
}
