//! A compaction that a client asks for in a turn: `input` ends in an item `compaction_trigger`.
//!
//! The answer is a response with one item `compaction`, which the client sends back in place of its conversation. No upstream
//! can read what abridge writes into it, so abridge puts the items back that it represents before anything else reads a
//! request. Nothing is stored: the items are in the item.

use bytes::Bytes;
use memchr::memmem;

use super::compact;
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
    let stays = items.into_iter().filter(|item| !is_sent_again(item)).map(|item| match compact::message(item) {
        Some(message) => String::from_utf8_lossy(&message).into_owned(),
        None => item.to_owned(),
    });
    let mut stays: Vec<_> = stays.collect();
    if stays.is_empty() {
        stays.push(NOTHING.to_owned()); // an item that represents nothing could not be replaced
    }
    let mut item = ObjectWriter::default();
    item.text("type", "compaction");
    item.text("id", &format!("cmp_{}", compaction.id));
    item.text("encrypted_content", &format!("{MARK}[{}]", stays.join(",")));
    let item = item.end();
    let item = str::from_utf8(&item).ok()?;
    let whole = |status: &str, output: &str, usage: &str| {
        let mut response = ObjectWriter::default();
        response.text("id", &format!("resp_{}", compaction.id));
        response.text("object", "response");
        response.json("created_at", &compaction.made_at.to_string());
        response.text("status", status);
        for absent in ["error", "incomplete_details"] {
            response.json(absent, "null");
        }
        response.json("model", request.get("model").unwrap_or("null"));
        response.json("output", &format!("[{output}]"));
        response.json("store", "false");
        response.json("usage", usage);
        String::from_utf8_lossy(&response.end()).into_owned()
    };
    let completed = whole("completed", item, &compact::usage(compaction));
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

#[cfg(test)]
mod tests;
