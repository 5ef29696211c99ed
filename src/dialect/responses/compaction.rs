//! Compactions that a client asks for: by `POST …/responses/compact`, which is answered by the items that the client goes on with,
//! or in a turn whose `input` ends in an item `compaction_trigger`.
//!
//! Clients read the items of the first as those of a response, whose messages have parts and are never strings. The answer to a
//! turn is a response with one item `compaction`, which the client sends back in place of its conversation. No upstream
//! can read what abridge writes into it, so abridge puts the items back that it represents before anything else reads a
//! request. Nothing is stored: the items are in the item.

use bytes::Bytes;
use memchr::memmem;

use crate::dialect::object::{ObjectWriter, fields};
use crate::dialect::{Compaction, CompactionTrigger};
use crate::raw::{Fields, elements};
use crate::span::{Span, Splice, joined, splice};

/// The beginning of the `encrypted_content` of an item of abridge; after it is an array of the items that it represents.
const MARK: &str = "abridge.compaction.1:";

/// What represents a conversation in which nothing was said.
const NOTHING: &str = r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"(empty)"}]}"#;

/// The body without its trigger, if it ends in one.
pub(super) fn trigger(body: &Bytes) -> Option<CompactionTrigger> {
    memmem::find(body, b"compaction_trigger")?;
    let request = fields(body)?;
    let items = elements(request.get("input")?)?;
    let (last, before) = items.split_last()?;
    Fields::of(last)?.string("type").filter(|kind| kind == "compaction_trigger")?;
    let end = span(body, last).end;
    let cut = Span { start: before.last().map_or(end - last.len(), |item| span(body, item).end), end };
    let conversation = joined(splice(body, &[Splice { span: cut, with: Bytes::new() }]));
    Some(CompactionTrigger { conversation, streams: request.get("stream") == Some("true") })
}

/// The body with the items that compactions of abridge represent in their places, if there is such a compaction.
pub(super) fn restored(body: &Bytes) -> Option<Bytes> {
    memmem::find(body, MARK.as_bytes())?;
    let request = fields(body)?;
    let splices: Vec<_> = elements(request.get("input")?)?
        .into_iter()
        .filter_map(|item| Some(Splice { span: span(body, item), with: stood_for(item)?.into() }))
        .collect();
    (!splices.is_empty()).then(|| joined(splice(body, &splices)))
}

/// The response to a request with a trigger; none if the body has no items.
pub(super) fn response(compaction: &Compaction<'_>, trigger: &CompactionTrigger) -> Option<Bytes> {
    let request = fields(compaction.body)?;
    let items = elements(request.get("input")?)?;
    let mut stays = in_parts(items.into_iter().filter(|item| !is_sent_again(item)));
    if stays.is_empty() {
        stays.push_str(NOTHING); // an item that represents nothing could not be replaced
    }
    let (id, made_at, model) = (compaction.id, compaction.made_at, request.get("model").unwrap_or("null"));
    let content = serde_json::to_string(&format!("{MARK}[{stays}]")).ok()?;
    let item = format!(r#"{{"type":"compaction","id":"cmp_{id}","encrypted_content":{content}}}"#);
    let whole = |status: &str, output: &str, usage: &str| {
        let head = format!(r#"{{"id":"resp_{id}","object":"response","created_at":{made_at},"status":"{status}""#);
        let absent = r#""error":null,"incomplete_details":null"#;
        format!(r#"{head},{absent},"model":{model},"output":[{output}],"store":false,"usage":{usage}}}"#)
    };
    let completed = whole("completed", &item, &usage(compaction));
    if !trigger.streams {
        return Some(completed.into());
    }
    let at = format!(r#""output_index":0,"item":{item}"#);
    let events = [
        ("response.created", format!(r#""response":{}"#, whole("in_progress", "", "null"))),
        ("response.output_item.added", at.clone()),
        ("response.output_item.done", at),
        ("response.completed", format!(r#""response":{completed}"#)),
    ];
    let event = |(n, (name, rest)): (usize, (&str, String))| {
        format!("event: {name}\ndata: {{\"type\":\"{name}\",\"sequence_number\":{n},{rest}}}\n\n")
    };
    Some(events.into_iter().enumerate().map(event).collect::<String>().into())
}

/// The items, with commas between them, that an item of abridge represents.
fn stood_for(item: &str) -> Option<String> {
    let fields = Fields::of(item)?;
    fields.string("type").filter(|kind| kind == "compaction" || kind == "compaction_summary")?;
    let content = fields.string("encrypted_content")?;
    let items = elements(content.strip_prefix(MARK)?)?;
    (!items.is_empty() && items.iter().all(|item| Fields::of(item).is_some())).then(|| items.join(","))
}

/// Whether the client sends an item with each request, whatever it has compacted: instructions and tools.
fn is_sent_again(item: &str) -> bool {
    let Some(fields) = Fields::of(item) else { return false };
    matches!(fields.string("role").as_deref(), Some("system" | "developer"))
        || fields.string("type").as_deref() == Some("additional_tools")
}

/// Where a part of the body is.
fn span(body: &Bytes, part: &str) -> Span {
    let start = part.as_ptr().addr().saturating_sub(body.as_ptr().addr());
    Span { start, end: start + part.len() }
}

/// The answer; none if the body has no items.
pub(super) fn answer(compaction: &Compaction<'_>) -> Option<Bytes> {
    let Compaction { body, id, made_at, .. } = *compaction;
    let request = fields(body)?;
    let input = request.get("input")?;
    let output = match elements(input) {
        Some(items) => in_parts(items.into_iter()),
        None if input.starts_with('"') => with_part(&[("role", r#""user""#)], "input_text", input),
        None => return None,
    };
    let head = format!(r#"{{"id":"{id}","object":"response.compaction","created_at":{made_at}"#);
    Some(format!(r#"{head},"output":[{output}],"usage":{}}}"#, usage(compaction)).into())
}

/// Items with commas between them, each message in the form that has parts.
fn in_parts<'i>(items: impl Iterator<Item = &'i str>) -> String {
    items.map(|item| message(item).unwrap_or_else(|| item.to_owned())).collect::<Vec<_>>().join(",")
}

/// The tokens before and after, as the API tells what an answer took.
fn usage(compaction: &Compaction<'_>) -> String {
    let (before, after) = compaction.tokens;
    format!(
        r#"{{"input_tokens":{before},"input_tokens_details":{{"cached_tokens":0}},"output_tokens":{after},"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{}}}"#,
        before.saturating_add(after)
    )
}

/// A message whose content is a string, in the form that has parts; none if an item is no such message.
fn message(item: &str) -> Option<String> {
    let fields = Fields::of(item)?;
    let role = fields.string("role")?;
    let is_message = fields.get("type").is_none() || fields.string("type").as_deref() == Some("message");
    let text = fields.get("content").filter(|content| is_message && content.starts_with('"'))?;
    let rest: Vec<_> = fields.iter().filter(|(key, _)| !matches!(*key, "type" | "content")).collect();
    Some(with_part(&rest, if role == "assistant" { "output_text" } else { "input_text" }, text))
}

/// A message with one part, whose text is a JSON string.
fn with_part(rest: &[(&str, &str)], kind: &str, text: &str) -> String {
    let mut message = ObjectWriter::default();
    message.text("type", "message");
    message.members(rest.iter().copied());
    message.json("content", &format!(r#"[{{"type":"{kind}","text":{text}}}]"#));
    String::from_utf8_lossy(&message.end()).into_owned()
}

#[cfg(test)]
mod tests;
