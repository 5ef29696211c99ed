//! The requests of gateways, and the answers to them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::admin::{RecallError, Recalled, percent_decoded};
use crate::dialect::{self, Dialect};
use crate::payload::hashes_in;
use crate::plan::{Change, Report};

/// Where nothing counts tokens, so many bytes are one.
const BYTES_PER_TOKEN: usize = 4;

/// The result of a request, besides its messages.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Why the messages were not edited.
    pub(super) skipped: Option<&'static str>,
    /// The repairs that a proxied request would get.
    pub(super) repairs: Vec<Change>,
}

#[derive(Serialize)]
struct Answer<'a> {
    messages: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a RawValue>,
    tokens_before: usize,
    tokens_after: usize,
    tokens_saved: usize,
    compression_ratio: f64,
    transforms_applied: Vec<&'a str>,
    ccr_hashes: BTreeSet<&'a str>,
    compression_skipped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    skip_reason: Option<&'a str>,
    abridge: Details<'a>,
}

/// The field `abridge`.
#[derive(Serialize)]
struct Details<'a> {
    request_id: &'a str,
    report: Option<&'a Report>,
    repairs: &'a [Change],
}

#[derive(Serialize)]
struct Original<'a> {
    hash: &'a str,
    #[serde(rename = "original_content")]
    content: Content<'a>,
    /// The bytes of an original that is not text.
    #[serde(rename = "original_base64", skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(rename = "original_tokens")]
    tokens: usize,
    tool_name: Option<&'a str>,
}

/// A text, or the JSON string of one that is not Unicode.
#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(Cow<'a, str>),
    Json(&'a RawValue),
}

/// The body of the answer, given the body as it came and as it was edited, with its rows in `input` or in `messages`. It has as
/// many rows as came: if the edited ones are fewer or more, they are those that came. None if the body that came cannot be read.
pub(super) fn write(
    sent: &[u8],
    edited: &[u8],
    is_input: bool,
    report: Option<&Report>,
    outcome: &Outcome,
    request_id: &str,
) -> Option<Vec<u8>> {
    let rows = |body| {
        let body: Body<'_> = serde_json::from_slice(body).ok()?;
        body.messages.or(body.input)
    };
    let (before, after) = (rows(sent)?, rows(edited));
    let n_rows = |rows: &RawValue| rows_of(rows).ok().map(|rows| rows.len());
    let is_dry = outcome.skipped.is_some();
    let messages = after.filter(|after| !is_dry && n_rows(after) == n_rows(before)).unwrap_or(before);
    let is_kept = std::ptr::eq(messages, before);
    let measured = report.and_then(|report| report.tokens_before.zip(report.tokens_after));
    let estimated = || (before.get().len() / BYTES_PER_TOKEN, messages.get().len() / BYTES_PER_TOKEN);
    let (tokens_before, tokens_after) = measured.unwrap_or_else(estimated);
    let tokens_after = if is_kept { tokens_before } else { tokens_after };
    let counts = report.filter(|_| !is_kept).map(Report::counts).unwrap_or_default();
    let empty: Box<RawValue> = RawValue::from_string("[]".to_owned()).ok()?;
    let answer = Answer {
        messages: if n_rows(messages).is_some() { messages } else { &empty },
        input: is_input.then_some(messages),
        tokens_before,
        tokens_after,
        tokens_saved: tokens_before.saturating_sub(tokens_after),
        compression_ratio: ratio(tokens_after, tokens_before),
        transforms_applied: counts.into_iter().map(|(label, _)| label).collect(),
        ccr_hashes: hashes_in(messages.get()).collect(),
        compression_skipped: outcome.skipped.is_some(),
        skip_reason: outcome.skipped,
        abridge: Details { request_id, report, repairs: &outcome.repairs },
    };
    serde_json::to_vec(&answer).ok()
}

#[expect(clippy::cast_precision_loss, reason = "no body has so many tokens")]
fn ratio(after: usize, before: usize) -> f64 {
    if before == 0 { 1.0 } else { after as f64 / before as f64 }
}

/// The answer to a request for an original that a recall has found, or not.
pub(super) fn original(hash: &str, found: Result<Recalled, RecallError>) -> (StatusCode, Vec<u8>) {
    let found = match found {
        Ok(found) => found,
        Err(RecallError(StatusCode::NOT_FOUND | StatusCode::GONE, _)) => {
            return (StatusCode::NOT_FOUND, error("not_found", "no original has this hash, or it has expired"));
        }
        Err(RecallError(status, why)) => return (status, error("not_retrieved", why.trim_end())),
    };
    let (size, content) = (found.size, &found.part.body);
    let text = str::from_utf8(content).ok();
    let json = text.filter(|_| found.part.is_json).and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
    let content_type = text.is_none().then(|| found.content_type());
    let left_out = size.saturating_sub(content.len());
    let end = format!("[the last {left_out} of {size} bytes are left out here: an answer has at most 16 MiB]");
    let shown = match (json, text) {
        (Some(json), _) => Content::Json(json),
        (None, Some(text)) if left_out > 0 => Content::Text([text, "\n", &end].concat().into()),
        (None, Some(text)) => Content::Text(text.into()),
        // For the model: a gateway shows it this text alone.
        (None, None) => {
            let of = content_type.unwrap_or_default();
            let end = if left_out > 0 { &*end } else { "" };
            Content::Text(format!("[{size} bytes of {of}, which are not text; original_base64 has them]{end}").into())
        }
    };
    let base64 = text.is_none().then(|| STANDARD.encode(content));
    let tokens = content.len() / BYTES_PER_TOKEN;
    let answer = Original { hash, content: shown, base64, content_type, tokens, tool_name: None };
    (StatusCode::OK, serde_json::to_vec(&answer).unwrap_or_default())
}

/// The body of an error.
pub(super) fn error(kind: &str, message: &str) -> Vec<u8> {
    serde_json::json!({ "error": { "type": kind, "message": message } }).to_string().into_bytes()
}

/// The most characters of a session's name.
const MAX_SESSION: usize = 256;

/// A request to shorten messages.
pub(super) struct CompressRequest {
    pub(super) dialect: &'static dyn Dialect,
    pub(super) readback: Readback,
    pub(super) session: Option<String>,
    /// So many rows at the beginning stay as they are.
    pub(super) n_frozen: usize,
    pub(super) n_rows: usize,
    /// Whether the rows are in `input`.
    pub(super) is_input: bool,
}

/// How the model reads originals.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Readback {
    /// By its hash, with the tool that the gateway adds.
    ByHash,
    /// As the settings say, without the gateway.
    BySettings,
}

/// The fields of the body that no dialect reads, and its messages as they are written.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Body<'b> {
    #[serde(borrow)]
    pub(super) messages: Option<&'b RawValue>,
    #[serde(borrow)]
    pub(super) input: Option<&'b RawValue>,
    config: Option<RequestConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
struct RequestConfig {
    mode: Option<String>,
    session_id: Option<String>,
    frozen_message_count: Option<usize>,
}

/// A request for an original.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct RetrieveRequest {
    pub(super) hash: String,
    pub(super) session_id: Option<String>,
}

impl CompressRequest {
    /// Reads a body; the error says why it is not a request.
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let read: Body<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let RequestConfig { mode, session_id, frozen_message_count } = read.config.unwrap_or_default();
        let is_input = read.messages.is_none();
        let rows = read.messages.or(read.input).ok_or("`messages` is missing")?;
        // The `input` of Responses may be one text.
        let n_rows = if is_input && rows.get().starts_with('"') { 0 } else { rows_of(rows)?.len() };
        let readback = match mode.as_deref() {
            Some("ccr") => Readback::ByHash,
            // Modes of other compressors, for which the settings decide.
            None | Some("lossy_inline" | "lossless_then_lossy") => Readback::BySettings,
            Some(_) => return Err("`config.mode` is not known; leave it out, or ask for \"ccr\"".to_owned()),
        };
        if session_id.as_ref().is_some_and(|session| session.chars().count() > MAX_SESSION) {
            return Err(format!("`config.session_id` has more than {MAX_SESSION} characters"));
        }
        Ok(Self {
            dialect: dialect::of_body(body),
            readback,
            session: session_id.filter(|session| !session.is_empty()),
            n_frozen: frozen_message_count.unwrap_or_default(),
            n_rows,
            is_input,
        })
    }
}

impl RetrieveRequest {
    /// The request for this hash with a query, in which the session may be.
    pub(super) fn of_query(hash: String, query: &str) -> Self {
        let session = query.split('&').find_map(|part| part.strip_prefix("session_id="));
        let decoded = session.map(|session| String::from_utf8_lossy(&percent_decoded(session)).into_owned());
        Self { hash, session_id: decoded.filter(|session| !session.is_empty()) }
    }
}

/// The rows of an array of objects.
pub(super) fn rows_of(rows: &RawValue) -> Result<Vec<&RawValue>, String> {
    let rows: Vec<&RawValue> = serde_json::from_str(rows.get()).map_err(|_| "`messages` is not an array".to_owned())?;
    let are_objects = rows.iter().all(|row| row.get().starts_with('{'));
    are_objects.then_some(rows).ok_or_else(|| "a message is not an object".to_owned())
}
