//! What became of each message of a request: the array as it came and as it went on, laid side by side.
//!
//! This is content, so it is kept only where `[inspect]` says so. What is kept is bounded: a long text is cut, and its length stays.

use std::{borrow::Cow, collections::HashSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::conversation::{BlockKind, Conversation, Pairing, Role, Unit};
use crate::dialect::{Dialect, strings};
use crate::plan::{Action, Layout, Report};
use crate::raw;

mod changes;

pub use changes::{ChangeEntry, Changes, SkippedEntry, short};

/// `[inspect]` of `proxy.toml`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Of how many edited requests, the newest ones, the messages are kept in the store, as they came and as they went
    /// on. This is content; 0 keeps none, and removes what was kept before. Allowed: 0 to 10000.
    pub keep: usize,
}

/// More requests than this are not kept.
pub const MAX_REQUESTS: usize = 10_000;

/// What `/abridge/requests/{id}` answers, which is also what the store keeps.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Document<R> {
    /// The entry of the request.
    pub request: R,
    /// Its changes.
    #[serde(flatten)]
    pub changes: Changes,
    /// Its messages, if they are kept.
    pub content: Option<Content>,
    /// Why they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The messages of a request.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Content {
    /// In the order in which they went on.
    pub messages: Vec<Message>,
}

/// What became of one message. Those that an edit has put in are among them.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Message {
    /// Its index in the array as it came; for one that was put in, that of the message that it was put behind.
    pub index: usize,
    /// Its index in the array as it went on, if it is there.
    pub at: Option<usize>,
    /// Who speaks.
    pub role: Cow<'static, str>,
    /// For a result, the tool.
    pub name: Option<String>,
    /// What became of it.
    pub state: State,
    /// Its text as it came; none for one that was put in.
    pub before: Option<String>,
    /// Its text as it went on; none if that is the same, or if it is not there.
    pub after: Option<String>,
    /// The length of what it said, of which `before` may be the beginning only.
    pub before_bytes: Option<usize>,
    /// The length of what it says, of which `after` may be the beginning only.
    pub after_bytes: Option<usize>,
}

/// What became of a message. Where there is more than one answer it is the last one in this list.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It went on as it came.
    #[default]
    Same,
    /// Something in it has changed.
    Patched,
    /// It was put in.
    Inserted,
    /// It stands elsewhere.
    Moved,
    /// Its middle was cut out.
    Cut,
    /// Its text, or the arguments of a call, were replaced.
    Cleared,
    /// It was left out.
    Dropped,
    /// It was left out, or calls of it were, because they are too long ago.
    Filtered,
    /// A summary replaces it, or it is that summary.
    Summarised,
}

/// The longest text that is kept: of a message that was changed, and of one that was not.
const MAX_TEXT: usize = 1 << 20;
const MAX_UNCHANGED_TEXT: usize = 16 << 10;

/// All texts of a request together. Beyond that, of each only its first [`HEAD`] bytes are kept.
const MAX_BYTES: usize = 4 << 20;
const HEAD: usize = 200;

/// More messages than this are not looked at.
const MAX_MESSAGES: usize = 20_000;

/// The name of the newest request.
pub const LAST: &str = "last";

/// The beginning of every id, and how many digits after it name a request, as in the log.
const ID: &str = "req_";
const MIN_NAME: usize = 4;

/// Whether a name is that of the request with this id: the id or its beginning, with or without `req_`, or [`LAST`], which
/// names any request: look at the newest first.
pub fn names(name: &str, id: &str) -> bool {
    let beginning = name.strip_prefix(ID).unwrap_or(name);
    let begins = beginning.len() >= MIN_NAME && id.strip_prefix(ID).is_some_and(|id| id.starts_with(beginning));
    name == id || name == LAST || begins
}

/// The label of the edit whose changes are [`State::Filtered`].
const FILTER: &str = "filter";

/// A message on one of the two sides, or on both.
#[derive(Clone, Copy, Debug)]
struct MessagePair {
    before: Option<usize>,
    /// The message that it follows, if it was put in.
    behind: usize,
    state: State,
    is_there: bool,
}

/// What became of each message, in the order in which they went on; those that did not are where they were. None if the two
/// bodies are not what the report is about, or are too long for this.
pub fn messages(dialect: &dyn Dialect, before: &Bytes, after: &Bytes, report: &Report) -> Option<Vec<Message>> {
    let (one, other) = (dialect.parse(before).ok()?, dialect.parse(after).ok()?);
    if one.elements.len() > MAX_MESSAGES || other.elements.len() > MAX_MESSAGES {
        return None;
    }
    let pairs = pairs(one.elements.len(), report);
    if pairs.iter().filter(|pair| pair.is_there).count() != other.elements.len() {
        return None;
    }
    let mut left = MAX_BYTES;
    let (one, other) = (RequestView::new(dialect, before, &one), RequestView::new(dialect, after, &other));
    let mut at = 0..other.conversation.elements.len();
    Some(pairs.into_iter().map(|pair| pair.show(&one, &other, at.by_ref(), &mut left)).collect())
}

/// The messages of both sides, found by what the report says.
fn pairs(n_messages: usize, report: &Report) -> Vec<MessagePair> {
    let Layout { gone, placed } = &report.layout;
    let gone: HashSet<_> = gone.iter().copied().collect();
    let moved: HashSet<_> = placed.iter().filter_map(|(_, moved)| *moved).collect();
    let (mut states, mut summarised) = (vec![State::Same; n_messages], Vec::new());
    for change in &report.changes {
        let filtered = change.edit == FILTER;
        let (message, state) = match change.action {
            Action::Insert { .. } | Action::InsertText { .. } => continue,
            Action::Move { message, .. } => (message, State::Moved),
            Action::Drop { message } => (message, if filtered { State::Filtered } else { State::Dropped }),
            Action::DropCall { message } => (message, if filtered { State::Filtered } else { State::Patched }),
            Action::Truncate { message } | Action::Deduplicate { message } => (message, State::Cut),
            Action::Strip { message } | Action::Mend { message } => (message, State::Patched),
            Action::Clear { message } | Action::ClearInput { message } => (message, State::Cleared),
            Action::Summarize { from, to } => {
                summarised.push(from..to);
                continue;
            }
        };
        // What was left out of an element that stays has changed it.
        let is_changed = state == State::Dropped && !gone.contains(&message);
        let state = if is_changed { State::Patched } else { state };
        if let Some(known) = states.get_mut(message) {
            *known = state.max(*known);
        }
    }
    let mut placed = placed.iter().copied().peekable();
    let state = |message: usize| states.get(message).copied().unwrap_or_default();
    let pair = |before, behind, state, is_there| MessagePair { before, behind, state, is_there };
    let mut pairs = Vec::with_capacity(n_messages);
    for message in 0..n_messages {
        if summarised.iter().any(|summarised| summarised.contains(&message)) {
            pairs.push(pair(Some(message), message, State::Summarised, false));
            // The summary is where the first stretch is that it replaces.
            if let Some(first) = summarised.first().filter(|first| first.end == message + 1) {
                pairs.push(pair(None, first.start, State::Summarised, true));
            }
        } else if !moved.contains(&message) {
            pairs.push(pair(Some(message), message, state(message), !gone.contains(&message)));
        }
        while let Some((behind, before)) = placed.next_if(|(behind, _)| *behind <= message) {
            pairs.push(pair(before, behind, before.map_or(State::Inserted, state), true));
        }
    }
    pairs
}

// === one message ===

impl MessagePair {
    fn show(
        self,
        one: &RequestView<'_>,
        other: &RequestView<'_>,
        at: &mut impl Iterator<Item = usize>,
        left: &mut usize,
    ) -> Message {
        let at = if self.is_there { at.next() } else { None };
        let same = self.before.zip(at).is_some_and(|(before, at)| one.json(before) == other.json(at));
        let state = if self.state == State::Same && !same { State::Patched } else { self.state };
        let longest = if state == State::Same { MAX_UNCHANGED_TEXT } else { MAX_TEXT };
        let mut text = |text: String| {
            let bytes = text.len();
            let text = cut(text, longest.min((*left).max(HEAD)));
            *left = left.saturating_sub(text.len());
            (text, bytes)
        };
        let (before, before_bytes) = self.before.map(|message| text(one.text(message))).unzip();
        let (after, after_bytes) = at.filter(|_| !same).map(|at| text(other.text(at))).unzip();
        let (view, message) = self.before.map_or((other, at.unwrap_or(usize::MAX)), |message| (one, message));
        let index = self.before.unwrap_or(self.behind);
        Message {
            index,
            at,
            role: view.role(message).into(),
            name: view.name(message),
            state,
            before,
            after,
            before_bytes,
            after_bytes,
        }
    }
}

/// The first bytes of a text, up to where a character begins.
fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text.shrink_to_fit();
    text
}

/// One of the two bodies.
struct RequestView<'a> {
    dialect: &'a dyn Dialect,
    body: &'a [u8],
    conversation: &'a Conversation<'a>,
    pairing: Pairing,
}

impl<'a> RequestView<'a> {
    fn new(dialect: &'a dyn Dialect, body: &'a [u8], conversation: &'a Conversation<'a>) -> Self {
        Self { dialect, body, conversation, pairing: Pairing::of(conversation) }
    }

    fn json(&self, message: usize) -> &'a [u8] {
        self.conversation.elements.get(message).map_or(&[], |element| element.span.of(self.body))
    }

    fn units(&self, message: usize) -> &'a [Unit] {
        let element = self.conversation.elements.get(message);
        element.map(|element| self.conversation.unit_range(&element.units)).unwrap_or_default()
    }

    fn role(&self, message: usize) -> &'static str {
        self.units(message).first().map_or(Role::Other, |unit| unit.role).into()
    }

    /// The tool that a result is of.
    fn name(&self, message: usize) -> Option<String> {
        let unit = self.conversation.elements.get(message)?.units.start;
        let call = self.pairing.answered_block(unit)?;
        Some(self.conversation.tool_name(call).to_owned()).filter(|name| !name.is_empty())
    }

    /// The texts of a unit.
    fn texts(&self, unit: &Unit) -> Vec<Cow<'a, str>> {
        let texts = unit.content.map(|content| self.dialect.texts(self.body, content)).unwrap_or_default();
        texts.iter().filter_map(|text| strings::text(self.body, *text)).collect()
    }

    /// A message as a person reads it: its texts, and a line for each call. All of its JSON, if it has neither.
    fn text(&self, message: usize) -> String {
        let mut lines: Vec<Cow<'_, str>> = Vec::new();
        let mut n_texts = 0;
        for unit in self.units(message) {
            lines.extend(self.texts(unit));
            n_texts = lines.len();
            for block in self.conversation.blocks_of(unit) {
                let BlockKind::ToolCall { id, name, .. } = &block.kind else { continue };
                let arguments = self.dialect.input(self.body, block.span).map(|input| plain(input.span.of(self.body)));
                let name = name.as_deref().unwrap_or("?");
                lines.push(format!("[call {}] {name} {}", id.text, arguments.unwrap_or_default()).into());
            }
        }
        if n_texts == 1 && lines.len() > 1 {
            lines.retain(|line| !line.is_empty());
        }
        if lines.is_empty() { String::from_utf8_lossy(self.json(message)).into_owned() } else { lines.join("\n") }
    }
}

/// A JSON value as text: a string without its escapes.
fn plain(json: &[u8]) -> String {
    let json = String::from_utf8_lossy(json);
    raw::string(&json).map_or_else(|| json.to_string(), Cow::into_owned)
}

// === titles ===

/// The longest title, in characters.
const MAX_TITLE: usize = 80;

/// The title of a conversation; `None` if the user says nothing in words.
///
/// Clients put reminders and facts about the machine before the words, in sections with tags or in separate messages. So the title
/// is the last text before the first answer, without such sections.
pub fn title(dialect: &dyn Dialect, body: &Bytes) -> Option<String> {
    let conversation = dialect.parse(body).ok()?;
    let view = RequestView::new(dialect, body, &conversation);
    let texts: Vec<_> = conversation
        .opening()
        .flat_map(|element| conversation.unit_range(&element.units))
        .flat_map(|unit| view.texts(unit))
        .collect();
    texts.iter().rev().find_map(|text| words(text))
}

fn words(text: &str) -> Option<String> {
    let mut text = text.trim_start();
    while let Some(rest) = after_section(text) {
        text = rest.trim_start();
    }
    let words = text.split_whitespace().take(MAX_TITLE).map(|word| word.chars().take(MAX_TITLE).collect::<String>());
    let title: String = words.collect::<Vec<_>>().join(" ").chars().take(MAX_TITLE).collect();
    (!title.is_empty()).then_some(title)
}

/// The text after a section `<name>…</name>` that it begins with.
fn after_section(text: &str) -> Option<&str> {
    let (name, _) = text.strip_prefix('<')?.split_once('>')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    text.split_once(&format!("</{name}>")).map(|(_, rest)| rest)
}

#[cfg(test)]
mod tests;
