//! `abridge diff`: prints what the edits changed in one request, message by message.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow};
use serde::Deserialize;

use crate::cli::client::{ClientError, ProxyArgs};
use crate::cli::{Exit, escape, print, refuse, store, wants_colour};
use crate::config::{Config, Sources};
use crate::inspect::{ChangeEntry, Changes, Content, Document, Message, SkippedEntry, State};
use crate::payload::PayloadKey;

pub(super) mod render;

use render::DiffWriter;

/// Arguments of `diff`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The request's id, from the header x-abridge-request-id, the log or the page; its first four digits, or last for the
    /// newest request that was edited
    request_id: String,
    /// Print long texts in full
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    at: ProxyArgs,
}

/// The printed part of the entry of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Request {
    id: String,
    outcome: String,
    model: Option<String>,
    edits: BTreeMap<String, usize>,
    bytes_before: u64,
    bytes_after: u64,
    tokens_before: Option<u64>,
    tokens_after: Option<u64>,
    status: Option<u16>,
}

/// Why a store without a proxy has no such request.
const NOT_KEPT: &str = "the store of these settings has the messages of no such request; they are kept while inspect.keep is not 0, as by \
                        ABRIDGE__INSPECT__KEEP=20 abridge run --keep -- COMMAND";

/// Prints the changes. Prints an error if the texts of the messages are not available.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let id = &args.request_id;
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Ok(refuse(&anyhow!(
            "{:?} is not a request id: an id looks like req_0123456789abcdef; 0123, or last, is short for it",
            escape::to_single_line(id, 80)
        )));
    }
    let proxy = args.at.proxy(sources, config)?;
    let out = DiffWriter { colour: wants_colour(sources)?, full: args.full, ..DiffWriter::default() };
    let answer = match proxy.get(&format!("/abridge/requests/{id}")) {
        Err(error @ ClientError::NotListening(..)) if args.at.is_default() => {
            let kept = store::read(sources, config, async |store| store.inspected(id.clone()).await)?.flatten();
            let document = kept.and_then(|document| serde_json::from_slice::<Document<Request>>(&document).ok());
            return print([document.ok_or_else(|| anyhow!(error).context(NOT_KEPT))?.to_text(out)]);
        }
        answer => answer?,
    };
    let document: Option<Document<Request>> = serde_json::from_slice(&answer.body).ok();
    let why = match (answer.status, document) {
        (200, Some(document)) => {
            let printed = print([document.to_text(out)])?;
            if document.content.is_some() {
                return Ok(printed);
            }
            document.reason.unwrap_or_else(|| "the texts of its messages are not kept".to_owned())
        }
        (200, None) => {
            return Err(anyhow!("the response is not in a format that this version can read")).context(proxy.name);
        }
        (_, Some(Document { reason: Some(reason), .. })) => reason,
        _ => return Ok(refuse(&proxy.refused(&answer))),
    };
    Ok(refuse(&anyhow!("{}", escape::to_single_line(&why, 400))))
}

impl Document<Request> {
    fn to_text(&self, mut out: DiffWriter) -> String {
        let Changes { changes, n_changes, left_out } = &self.changes;
        out.write_title(&self.request.to_text());
        match &self.content {
            None => {
                for change in changes {
                    out.write_note(&change.to_text());
                }
                if let Some(n_more @ 1..) = n_changes.checked_sub(changes.len()) {
                    out.write_note(&format!("and {n_more} changes more"));
                }
            }
            Some(Content { messages }) => {
                let (same, changed): (Vec<_>, Vec<_>) =
                    messages.iter().partition(|message| message.state == State::Same);
                for message in changed {
                    self.write_message(message, &mut out);
                }
                out.write_note(&format!("{} messages went on as they came", same.len()));
            }
        }
        for SkippedEntry { message, label, why, .. } in left_out {
            let message = message.map(|message| format!(" to message {message}")).unwrap_or_default();
            out.write_note(&format!("{label}: not done{message}: {why}"));
        }
        out.text
    }

    fn write_message(&self, message: &Message, out: &mut DiffWriter) {
        let here =
            self.changes.changes.iter().filter(|change| change.message == message.index && message.before.is_some());
        let handles: Vec<_> = here.flat_map(ChangeEntry::handles).collect();
        out.write_message_header(&message.title(&handles));
        match (&message.before, &message.after) {
            (Some(before), Some(after)) => out.write_change(before, after),
            // A moved message with the same text.
            (Some(_), None) if message.at.is_some() => {}
            (Some(before), None) => out.write_removed(before),
            (None, Some(after)) => out.write_added(after),
            (None, None) => {}
        }
        for (kept, bytes) in [(&message.before, message.before_bytes), (&message.after, message.after_bytes)] {
            if let (Some(kept), Some(bytes)) = (kept, bytes)
                && kept.len() < bytes
            {
                out.write_note(&format!("  only the first {} of {bytes} bytes are kept", kept.len()));
            }
        }
    }
}

impl Request {
    fn to_text(&self) -> String {
        let mut parts = vec![self.id.clone(), self.outcome.replace('_', " ")];
        parts.extend(self.model.clone());
        if !self.edits.is_empty() {
            parts.push(self.edits.iter().map(|(edit, n)| format!("{edit}={n}")).collect::<Vec<_>>().join(" "));
        }
        parts.push(format!("bytes {} -> {}", self.bytes_before, self.bytes_after));
        if let (Some(before), Some(after)) = (self.tokens_before, self.tokens_after) {
            parts.push(format!("tokens {before} -> {after}"));
        }
        parts.extend(self.status.map(|status| format!("status {status}")));
        parts.join(", ")
    }
}

impl ChangeEntry {
    fn to_text(&self) -> String {
        let Self { message, action, label, to, tool, call_id, bytes_before, bytes_after, .. } = self;
        let stored = self.handles().map(|handle| format!(", stored as {handle}"));
        let parts = [
            Some(format!("{label}: {} message {message}", action.replace('_', " "))),
            to.map(|to| format!(" to {to}")),
            Some(call_id).filter(|id| !id.is_empty()).map(|id| format!(", call {id}")),
            tool.as_ref().map(|tool| format!(" of tool {tool}")),
            Some(format!(", bytes {bytes_before} -> {bytes_after}")),
        ];
        parts.into_iter().flatten().chain(stored).collect()
    }

    fn handles(&self) -> impl Iterator<Item = &PayloadKey> {
        self.handle.iter().chain(&self.more_handles)
    }
}

impl Message {
    fn title(&self, handles: &[&PayloadKey]) -> String {
        let place = match (&self.before, self.at) {
            (None, Some(at)) => format!("new message {at}"),
            (Some(_), Some(at)) if at != self.index => format!("message {} -> {at}", self.index),
            _ => format!("message {}", self.index),
        };
        let name = self.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        let sizes = match (self.before_bytes, self.after_bytes) {
            (Some(before), Some(after)) => format!(", {before} -> {after} bytes"),
            (Some(bytes), None) | (None, Some(bytes)) => format!(", {bytes} bytes"),
            (None, None) => String::new(),
        };
        let handles: Vec<_> = handles.iter().map(|handle| format!(", abridge show {handle}")).collect();
        // The names of the states are single words.
        let state = format!("{:?}", self.state).to_lowercase();
        format!("{place}, {}{name}: {state}{sizes}{}", self.role, handles.concat())
    }
}

#[cfg(test)]
mod tests;
