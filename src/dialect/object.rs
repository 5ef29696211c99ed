//! Requests that ask for a summary are made of a client's own, member by member: its members, and what writes others.
//!
//! Messages go into them as they are, to the byte: [`PromptMode::Cached`] is the request that the client would have made, so that
//! the provider finds its beginning in its prompt cache. [`PromptMode::Fresh`] has abridge's system line, what is summarised
//! without the client's instructions, and no tools; it has few of the client's keys, and none but its messages if it asks
//! another model than the client does. [`PromptMode::Plain`] is one message of the user, for servers that refuse the others.

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;

use super::Dialect;
use super::strings::push_string;
use crate::raw::{Fields, elements};
use crate::summary::{InputElement, Prompt, PromptMode, SummaryInput};

/// A message as a model that summarises may read it; none if it may not.
pub(super) type Shown<'p> = Option<Cow<'p, [u8]>>;

/// The parts of a request for a summary that differ between dialects.
pub(super) trait SummaryRequest: Dialect {
    /// The key of the messages.
    const LIST: &'static str;

    /// The keys of a client's request that shape its answer, one a line: some are written anew, the others would spoil a summary.
    const SHAPING: &'static str;

    /// The keys that say who asks, what may be done with the request, and where it goes. They stay in every request to the
    /// client's own model.
    const ROUTING: &'static [&'static str];

    /// The keys that stay in a fresh request to that model, too: they say how long it thinks.
    const THINKING: &'static [&'static str] = &[];

    /// Whether the body names the model and asks for a stream, and not the path.
    const NAMES_MODEL: bool = true;

    /// Whether a stream tells the usage only if it is asked for.
    const ASKS_FOR_USAGE: bool = false;

    /// None if the client's request cannot ask for a summary.
    fn accepts(&self, fields: &Fields<'_>) -> Option<()> {
        fields.get(Self::LIST).map(drop)
    }

    /// Writes the system line of a request of our own, where that is not the first message.
    fn begin(&self, _request: &mut ObjectWriter, _fields: &Fields<'_>, _prompt: &Prompt<'_>) {}

    /// The system line of a fresh request, where that is the first message.
    fn first(&self, _prompt: &Prompt<'_>) -> Option<Bytes> {
        None
    }

    /// A message as the model may read it; none if it may not. The calls of programs are noted in `by_program`.
    fn message<'p>(&self, json: &'p [u8], _: &Prompt<'_>, _by_program: &mut HashSet<String>) -> Shown<'p> {
        Some(json.into())
    }

    /// The task of the model, as the last message.
    fn instruction(&self, text: &str) -> Bytes {
        self.render_user_message(text)
    }

    /// Writes a member of the client's into a cached request. None if that cannot be done.
    fn member(&self, request: &mut ObjectWriter, key: &str, value: &str) -> Option<()> {
        request.json(key, value);
        Some(())
    }

    /// Writes the limit of the answer, and what else follows the client's members.
    fn end(&self, request: &mut ObjectWriter, fields: &Fields<'_>, prompt: &Prompt<'_>);
}

/// The request in the form that the prompt asks for. None if it cannot be made of what the client sent.
pub(super) fn summary_request<D: SummaryRequest>(of: &D, source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
    let fields = fields(&source.body)?;
    of.accepts(&fields)?;
    let mut request = ObjectWriter::default();
    let model = prompt.model.filter(|_| D::NAMES_MODEL);
    if prompt.input == PromptMode::Cached {
        source.split()?;
        for (key, value) in fields.iter().filter(|(key, _)| D::SHAPING.lines().all(|shaping| shaping != *key)) {
            match (key, model) {
                ("model", Some(model)) => request.text(key, model),
                _ if key == D::LIST => request.list(of, None, &source.messages, prompt),
                _ => of.member(&mut request, key, value)?,
            }
        }
        if let (Some(model), None) = (model, fields.get("model")) {
            request.text("model", model);
        }
    } else {
        match (model, fields.get("model").filter(|_| D::NAMES_MODEL)) {
            (Some(model), _) => request.text("model", model),
            (None, Some(model)) => request.json("model", model),
            (None, None) => {}
        }
        of.begin(&mut request, &fields, prompt);
        if prompt.input == PromptMode::Fresh {
            let (_, region) = source.split()?;
            request.list(of, of.first(prompt).as_deref(), region, prompt);
        } else {
            request.list(of, None, &[], prompt);
        }
        let thinks = |key| prompt.input == PromptMode::Fresh && D::THINKING.contains(&key);
        for (key, value) in fields.iter().filter(|(key, _)| D::ROUTING.contains(key) || thinks(key)) {
            if prompt.model.is_none() {
                request.json(key, value);
            }
        }
    }
    of.end(&mut request, &fields, prompt);
    let is_plain = prompt.input == PromptMode::Plain;
    // A plain request is streamed as the client's is, or always by a model of the settings.
    if D::NAMES_MODEL && (!is_plain || model.is_some() || fields.get("stream") == Some("true")) {
        request.json("stream", "true");
        if D::ASKS_FOR_USAGE && !is_plain {
            request.json("stream_options", r#"{"include_usage":true}"#);
        }
    }
    Some(request.end())
}

/// Whether the client sends a key, and not as `null`.
pub(super) fn sends(fields: &Fields<'_>, key: &str) -> bool {
    fields.get(key).is_some_and(|value| value != "null")
}

/// Whether the client offers tools under this key.
pub(super) fn offers(fields: &Fields<'_>, key: &str) -> bool {
    fields.get(key).and_then(elements).is_some_and(|tools| !tools.is_empty())
}

/// The keys and values of a body; none if it is not an object, or if a key is there twice.
pub(super) fn fields(body: &[u8]) -> Option<Fields<'_>> {
    let fields = Fields::of(str::from_utf8(body).ok()?)?;
    let mut keys = HashSet::new();
    fields.iter().all(|(key, _)| keys.insert(key)).then_some(())?;
    drop(keys);
    Some(fields)
}

/// The least limit of a client's answer that leaves room for a summary, in tokens.
const LEAST_LIMIT: usize = 1024;

/// The limit of a summary's answer: no more than the client's own, which the model is known to accept, unless that is too low.
pub(super) fn limit_within(fields: &Fields<'_>, key: &str, max_tokens: usize) -> usize {
    let own = fields.get(key).and_then(|own| own.parse().ok()).filter(|own| *own >= LEAST_LIMIT);
    own.map_or(max_tokens, |own: usize| own.min(max_tokens))
}

/// An object while it is written.
#[derive(Debug, Default)]
pub(super) struct ObjectWriter(Vec<u8>);

impl ObjectWriter {
    /// A list of the element before the messages, the messages, and the instruction.
    fn list<D: SummaryRequest>(
        &mut self,
        of: &D,
        first: Option<&[u8]>,
        messages: &[InputElement],
        prompt: &Prompt<'_>,
    ) {
        self.0.reserve(messages.iter().map(|message| message.json.len() + 1).sum());
        self.key(D::LIST);
        self.raw(b"[");
        let mut by_program = HashSet::new();
        let messages = messages.iter().filter_map(|message| of.message(&message.json, prompt, &mut by_program));
        for element in first.map(Cow::Borrowed).into_iter().chain(messages) {
            self.raw(&element);
            self.raw(b",");
        }
        self.raw(&of.instruction(prompt.instruction));
        self.raw(b"]");
    }

    /// Members as they are.
    pub(super) fn members<'f>(&mut self, members: impl Iterator<Item = (&'f str, &'f str)>) {
        members.for_each(|(key, value)| self.json(key, value));
    }

    /// An object with another value of one member.
    pub(super) fn replaced(object: &Fields<'_>, key: &str, with: &str) -> Bytes {
        let mut written = Self::default();
        written.members(object.iter().map(|(name, value)| (name, if name == key { with } else { value })));
        written.end()
    }

    /// A key, and the colon after it.
    pub(super) fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        push_string(&mut self.0, key);
        self.0.push(b':');
    }

    /// A member whose value is JSON.
    pub(super) fn json(&mut self, key: &str, value: &str) {
        self.key(key);
        self.raw(value.as_bytes());
    }

    /// A member whose value is a string that says `value`.
    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        push_string(&mut self.0, value);
    }

    /// Bytes as they are: a part of a value.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Whether no member has been written.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The object.
    pub(super) fn end(mut self) -> Bytes {
        self.0.push(b'}');
        self.0.into()
    }
}
