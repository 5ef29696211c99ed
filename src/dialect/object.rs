//! Requests that ask for a summary are made of a client's own, member by member: its members, and what writes others.

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;

use super::strings::push_string;
use crate::raw::Fields;
use crate::summary::InputElement;

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

/// Whether a plain request asks for a stream: always of a model of the settings, else as the client does.
pub(super) fn is_streamed(fields: &Fields<'_>, model: Option<&str>) -> bool {
    model.is_some() || fields.get("stream") == Some("true")
}

/// An object while it is written.
#[derive(Debug, Default)]
pub(super) struct ObjectWriter(Vec<u8>);

impl ObjectWriter {
    /// A request that names the model: the one that is asked, or that of the client.
    pub(super) fn of_model(fields: &Fields<'_>, model: Option<&str>) -> Self {
        let mut request = Self::default();
        match (model, fields.get("model")) {
            (Some(model), _) => request.text("model", model),
            (None, Some(model)) => request.json("model", model),
            (None, None) => {}
        }
        request
    }

    /// The client's request without the members that shape its answer, to the model that is asked. `write` writes what is
    /// to be otherwise, and says whether it has.
    pub(super) fn of_client(
        fields: &Fields<'_>,
        shaping: &HashSet<&str>,
        model: Option<&str>,
        mut write: impl FnMut(&mut Self, &str, &str) -> Option<bool>,
    ) -> Option<Self> {
        let mut request = Self::default();
        for (key, value) in fields.iter().filter(|(key, _)| !shaping.contains(key)) {
            match (key, model) {
                ("model", Some(model)) => request.text(key, model),
                _ if write(&mut request, key, value)? => {}
                _ => request.json(key, value),
            }
        }
        if let (Some(model), None) = (model, fields.get("model")) {
            request.text("model", model);
        }
        Some(request)
    }

    /// A list of the elements before the messages, the messages as `of` has them, and the instruction.
    pub(super) fn list<'p>(
        &mut self,
        key: &str,
        before: Option<&[u8]>,
        messages: &'p [InputElement],
        mut of: impl FnMut(&'p [u8]) -> Option<Cow<'p, [u8]>>,
        instruction: &[u8],
    ) {
        self.0.reserve(messages.iter().map(|message| message.json.len() + 1).sum());
        self.key(key);
        self.raw(b"[");
        let messages = messages.iter().filter_map(|message| of(&message.json));
        for element in before.map(Cow::Borrowed).into_iter().chain(messages) {
            self.raw(&element);
            self.raw(b",");
        }
        self.raw(instruction);
        self.raw(b"]");
    }

    /// The client's members with these keys, in a request to the client's own model.
    pub(super) fn keep(&mut self, fields: &Fields<'_>, keys: &[&str], model: Option<&str>) {
        for (key, value) in fields.iter().filter(|(key, _)| model.is_none() && keys.contains(key)) {
            self.json(key, value);
        }
    }

    /// A key, and the colon after it.
    pub(super) fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        self.string(key);
        self.0.push(b':');
    }

    /// A text as a JSON string.
    pub(super) fn string(&mut self, text: &str) {
        push_string(&mut self.0, text);
    }

    /// A member whose value is JSON.
    pub(super) fn json(&mut self, key: &str, value: &str) {
        self.key(key);
        self.raw(value.as_bytes());
    }

    /// A member whose value is a string that says `value`.
    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.string(value);
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
