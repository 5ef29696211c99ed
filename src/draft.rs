//! The working copy that edits write on.
//!
//! A draft holds decisions, not bytes: which messages leave their place, and what stands behind which place. It keeps
//! what must hold whatever an edit asks for: leading `system` and `developer` messages are not touched, and of two
//! edits that claim one message the first has it. [`Draft::finish`] turns the decisions into splices.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    conversation::{BlockKind, Conversation, Message},
    dialect::Dialect,
    payload::{Caller, Keys},
    plan::{Action, Change, Plan, Report, Sizes},
    span::{Span, Splice},
    tokens::Meter,
};

/// What an edit may know beside the conversation.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Counts tokens.
    pub meter: &'a Meter,
    /// Make the names of payloads.
    pub keys: &'a Keys,
    /// Whose conversation it is.
    pub caller: Caller,
    /// Whether what is taken out can be stored.
    pub offload: Offload,
}

/// Whether what is taken out can be stored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Offload {
    /// There is a store.
    Possible,
    /// There is none, or it has failed for this request: no change is made that needs it, and the report says so.
    Impossible,
}

/// One request while edits write on it.
#[derive(Debug)]
pub struct Draft<'a> {
    dialect: &'a dyn Dialect,
    body: &'a Bytes,
    conversation: &'a Conversation<'a>,
    /// How many messages at the beginning are instructions, which no edit touches.
    n_leading: usize,
    /// For each message, whether it still stands in its place.
    in_place: Vec<bool>,
    /// What has been put behind places, in the order it was put there.
    added: Vec<Added>,
    changes: Vec<Change>,
}

/// A message put behind a place.
#[derive(Debug)]
struct Added {
    /// The index of the message that is, or was, at that place.
    behind: usize,
    /// The message.
    bytes: Bytes,
}

impl<'a> Draft<'a> {
    /// The draft of `conversation`, which `dialect` has read from `body`.
    pub fn new(dialect: &'a dyn Dialect, body: &'a Bytes, conversation: &'a Conversation<'a>) -> Self {
        let in_place = vec![true; conversation.messages.len()];
        let n_leading = conversation.n_leading_instructions();
        Self { dialect, body, conversation, n_leading, in_place, added: Vec::new(), changes: Vec::new() }
    }

    /// What the edits work on, as it came.
    pub fn conversation(&self) -> &'a Conversation<'a> {
        self.conversation
    }

    /// Leaves a result out. False if the message is not to be touched.
    pub fn drop_result(&mut self, edit: &'static str, message: usize) -> bool {
        self.take(message) && self.change(edit, Action::Drop { message }, message)
    }

    /// Moves a result behind the place of another message, and behind what has been put there before. False if the
    /// message is not to be touched.
    pub fn move_result(&mut self, edit: &'static str, message: usize, behind: usize) -> bool {
        let Some(moved) = self.conversation.messages.get(message) else { return false };
        if behind >= self.in_place.len() || !self.take(message) {
            return false;
        }
        let bytes = self.body.slice(moved.span.start..moved.span.end);
        self.added.push(Added { behind, bytes });
        self.change(edit, Action::Move { message, behind }, message)
    }

    /// Puts a result that says `text` in answer to the call that is block `call` behind the place of a message, and
    /// behind what has been put there before. False if the block is no call.
    pub fn insert_result(&mut self, edit: &'static str, call: usize, behind: usize, text: &str) -> bool {
        let block = self.conversation.blocks.get(call).map(|block| &block.kind);
        let Some(BlockKind::ToolCall { id, name }) = block else { return false };
        if behind >= self.in_place.len() {
            return false;
        }
        self.added.push(Added { behind, bytes: self.dialect.render_tool_result(self.body, id, text) });
        self.changes.push(Change {
            edit,
            action: Action::Insert { behind },
            call_id: id.text.clone().into_owned(),
            tool_name: name.clone().map(Cow::into_owned),
            bytes: Sizes::default(),
            tokens: None,
            handles: Vec::new(),
        });
        true
    }

    /// Takes a message out of its place, if it is still there and no instruction at the beginning.
    fn take(&mut self, message: usize) -> bool {
        if message < self.n_leading {
            return false;
        }
        self.in_place.get_mut(message).is_some_and(std::mem::take)
    }

    fn change(&mut self, edit: &'static str, action: Action, message: usize) -> bool {
        let blocks = self.conversation.messages.get(message).map(|message| self.conversation.blocks_of(message));
        let call_id = match blocks.and_then(<[_]>::first).map(|block| &block.kind) {
            Some(BlockKind::ToolResult { call_id }) => call_id.text.clone().into_owned(),
            _ => String::new(),
        };
        self.changes.push(Change {
            edit,
            action,
            call_id,
            tool_name: None,
            bytes: Sizes::default(),
            tokens: None,
            handles: Vec::new(),
        });
        true
    }

    /// The plan that makes it so.
    pub fn finish(mut self) -> Plan {
        self.added.sort_by_key(|added| added.behind); // stable: what was put first stays first
        let n_in_place = self.in_place.iter().filter(|in_place| **in_place).count();
        let messages_after = n_in_place + self.added.len();
        let splices =
            Seams { messages: &self.conversation.messages, splices: Vec::new() }.sew(&self.in_place, &self.added);
        let bytes_after =
            splices.iter().fold(self.body.len(), |length, splice| length + splice.with.len() - splice.span.len());
        let report = Report {
            model: self.conversation.model.clone().map(Cow::into_owned),
            changes: self.changes,
            messages_before: self.in_place.len(),
            messages_after,
            bytes_before: self.body.len(),
            bytes_after,
            ..Report::default()
        };
        Plan { splices, offloads: Vec::new(), report }
    }
}

/// Turns decisions about array elements into splices. Commas and white space of the client stay where an element stays:
/// a dropped element takes along what stands between it and the element before it, the first ones of the array what
/// stands behind them.
struct Seams<'a> {
    messages: &'a [Message],
    splices: Vec<Splice>,
}

impl Seams<'_> {
    fn sew(mut self, in_place: &[bool], added: &[Added]) -> Vec<Splice> {
        let mut added = added.iter().peekable();
        // The seam that is open: how far the output is written, and what comes there.
        let mut kept_before = None;
        let mut dropped_to = None;
        let mut coming: Vec<&Bytes> = Vec::new();
        for (index, (message, &in_place)) in self.messages.iter().zip(in_place).enumerate() {
            if in_place {
                self.seam(kept_before, dropped_to.take(), Some(message.span), &coming);
                coming.clear();
                kept_before = Some(message.span);
            } else {
                dropped_to = Some(message.span);
            }
            while let Some(item) = added.next_if(|item| item.behind == index) {
                coming.push(&item.bytes);
            }
        }
        self.seam(kept_before, dropped_to, None, &coming);
        self.splices
    }

    /// What lies between two messages that stay, one of which may be the edge of the array: `dropped_to` is the last
    /// that leaves there, `coming` what comes there.
    fn seam(&mut self, before: Option<Span>, dropped_to: Option<Span>, behind: Option<Span>, coming: &[&Bytes]) {
        if dropped_to.is_none() && coming.is_empty() {
            return;
        }
        let first = self.messages.first().map_or(0, |first| first.span.start);
        let cut = match (before, dropped_to, behind) {
            (Some(before), dropped, _) => {
                Span { start: before.end, end: dropped.map_or(before.end, |dropped| dropped.end) }
            }
            (None, _, Some(behind)) => Span { start: first, end: behind.start },
            (None, dropped, None) => Span { start: first, end: dropped.map_or(first, |dropped| dropped.end) },
        };
        let (comma_before, comma_behind) = (before.is_some(), before.is_none() && behind.is_some());
        self.splices.extend(pieces(cut, comma_before, coming, comma_behind));
    }
}

/// The splices that replace `cut` by array elements. Small elements are copied together; a large one, which is a moved
/// result, stays a slice of the body.
fn pieces(cut: Span, comma_before: bool, elements: &[&Bytes], comma_behind: bool) -> Vec<Splice> {
    const LARGE: usize = 4096;
    let mut pieces = Vec::new();
    let mut text = BytesMut::new();
    for (n, &element) in elements.iter().enumerate() {
        if n > 0 || comma_before {
            text.put_u8(b',');
        }
        if element.len() < LARGE {
            text.put_slice(element);
        } else {
            pieces.push(text.split().freeze());
            pieces.push(element.clone());
        }
    }
    if comma_behind && !elements.is_empty() {
        text.put_u8(b',');
    }
    pieces.push(text.freeze());
    let behind = Span::empty(cut.end);
    let spans = std::iter::once(cut).chain(std::iter::repeat(behind));
    spans.zip(pieces).map(|(span, with)| Splice { span, with }).filter(Splice::does_something).collect()
}

#[cfg(test)]
mod tests;
