//! Answers in which the model may call the tool that abridge has added. abridge answers such calls itself and asks the model
//! again, so that one answer for the client is joined from several rounds: the dialects say how.
#![expect(clippy::disallowed_types, reason = "answers of a model that calls abridge, of which another answer is made")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use bytes::Bytes;
use serde_json::{Map, Number, Value};

use crate::raw;
use crate::recall::own_tools::is_added as is_own;

/// Joins the rounds of one answer. Nothing is changed before the first call of the tool.
pub trait Joiner: Debug + Send + Sync {
    /// Reads the next event of a round: all its lines, and its data. Returns what the client gets in its place: the event as it
    /// came, others, or nothing.
    fn event(&mut self, event: &Bytes, data: &[u8]) -> Bytes;

    /// Reads a round that is not streamed. False if it goes to the client as it came.
    fn whole(&mut self, answer: &[u8]) -> bool;

    /// The calls of a round that has ended. Those of abridge are not among them if no other round may follow.
    fn calls(&self) -> RoundCalls;

    /// What answers these calls, in their order.
    fn results(&self, texts: &[String]) -> Vec<Bytes>;

    /// The elements in which the model has called, and reads these texts.
    fn exchange(&self, texts: &[String]) -> Vec<Bytes>;

    /// Begins the next round.
    fn next_round(&mut self);

    /// Returns what is held back, for the client, because no other round follows.
    fn rest(&mut self) -> Bytes;

    /// Ends an answer in which abridge alone is called without another round. None if it would say nothing.
    fn close(&mut self) -> Option<Bytes>;

    /// Whether the answer is not the upstream's any more.
    fn is_changed(&self) -> bool;
}

/// The calls and the text of a round.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RoundCalls {
    /// The calls of abridge.
    pub own: Vec<OwnCall>,
    /// The ids of the calls that the client gets.
    pub others: Vec<String>,
    /// Whether abridge is called, and the client has nothing to do.
    pub is_alone: bool,
    /// The text that the client gets.
    pub said: String,
    /// The id that the client has of a response that the server keeps, and the id of its last round.
    pub ids: Option<[String; 2]>,
}

/// A call of abridge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnCall {
    /// The tool.
    pub name: String,
    /// Its arguments, as the model has written them.
    pub arguments: String,
    /// All of it, as a request has it, after the reasoning that leads to it.
    pub json: Bytes,
    /// How many calls of the client's tools are before it.
    pub n_before: usize,
}

/// The member of a usage that has the sum over all rounds of an answer.
pub(super) const ALL_ROUNDS: &str = "abridge_all_rounds";

/// The member of a usage that has the usage of the first of several rounds.
pub(super) const FIRST_ROUND: &str = "abridge_first_round";

/// The most that is held back until it is known whom it is for, in bytes.
pub(super) const MAX_HELD: usize = 512 << 10;

/// An object.
pub(super) type Object = Map<String, Value>;

/// A value that is an object, with U+FFFD for each half of a surrogate pair: servers cut texts in the middle of one.
pub(super) fn object(json: &[u8]) -> Option<Object> {
    let mended = || serde_json::from_str(&raw::without_halves(raw::utf8(json)?)?).ok();
    serde_json::from_slice(json).ok().or_else(mended)
}

/// The text of a member; empty if it has none.
pub(super) fn text<'a>(of: &'a Object, key: &str) -> &'a str {
    of.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The id that a member is: a text, or a number, as text.
pub(super) fn id(of: &Object, key: &str) -> String {
    match of.get(key) {
        Some(Value::Number(number)) => number.to_string(),
        _ => text(of, key).to_owned(),
    }
}

/// The number of a member.
pub(super) fn number(of: &Object, key: &str) -> Option<u64> {
    of.get(key).and_then(Value::as_u64)
}

/// The objects in an array that is a member.
pub(super) fn objects(of: &mut Object, key: &str) -> Vec<Object> {
    let Some(Value::Array(values)) = of.remove(key) else { return Vec::new() };
    let object = |value| if let Value::Object(object) = value { Some(object) } else { None };
    values.into_iter().filter_map(object).collect()
}

/// Adds text to a member.
pub(super) fn append(to: &mut Object, key: &str, more: &str) {
    match to.get_mut(key) {
        Some(Value::String(text)) => text.push_str(more),
        _ => drop(to.insert(key.to_owned(), more.into())),
    }
}

/// Adds the numbers of `more` to those of the same name, at any depth.
fn add(to: &mut Object, more: &Object) {
    for (key, more) in more {
        match (to.get_mut(key), more) {
            (Some(Value::Object(to)), Value::Object(more)) => add(to, more),
            (Some(Value::Number(to)), Value::Number(more)) => {
                if let (Some(a), Some(b)) = (to.as_u64(), more.as_u64()) {
                    *to = Number::from(a.saturating_add(b));
                }
            }
            (None | Some(Value::Null), more) => drop(to.insert(key.clone(), more.clone())),
            _ => {}
        }
    }
}

/// The tokens that were billed for the rounds before, and for this one.
#[derive(Debug, Default)]
pub(super) struct Billed {
    first: Object,
    before: Object,
    pub(super) now: Object,
}

impl Billed {
    /// Notes the usage of an event or an answer. Later ones may lack what earlier ones have said.
    pub(super) fn note(&mut self, of: &Object) {
        if let Some(Value::Object(usage)) = of.get("usage") {
            self.now.extend(usage.clone().into_iter().filter(|(_, n)| !n.is_null()));
        }
    }

    /// Tells in the usage of the last round, which has the whole prompt, what all rounds were billed together.
    pub(super) fn tell(&self, of: &mut Object) {
        if let Some(Value::Object(usage)) = of.get_mut("usage").filter(|_| !self.before.is_empty()) {
            let mut all = usage.clone();
            add(&mut all, &self.before);
            usage.insert(ALL_ROUNDS.to_owned(), all.into());
            usage.insert(FIRST_ROUND.to_owned(), self.first.clone().into());
        }
    }

    pub(super) fn next_round(&mut self) {
        let now = std::mem::take(&mut self.now);
        if self.before.is_empty() {
            self.first.clone_from(&now);
        }
        add(&mut self.before, &now);
    }
}

/// The blocks of Messages, or the items of Responses, in the rounds of an answer.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Parts {
    /// Those of this round by their places, and those of them that the client does not get.
    pub(super) now: BTreeMap<u64, Object>,
    pub(super) hidden: BTreeSet<u64>,
    /// Those of earlier rounds that the client has, or is to get.
    before: Vec<Object>,
    /// Whether this is not the first round.
    pub(super) is_later: bool,
    /// Whether abridge is called, and whether the client is, or the round has failed.
    pub(super) calls_own: bool,
    pub(super) calls_others: bool,
    pub(super) billed: Billed,
    /// Whether answers are not streamed.
    pub(super) is_whole: bool,
    /// The end of a round in which abridge is called, or all of an answer that is not streamed.
    pub(super) end: Vec<Object>,
}

impl Parts {
    /// The calls of a round, which has ended if its end is held.
    pub(super) fn settled(&self, mut calls: RoundCalls) -> RoundCalls {
        if self.end.is_empty() || !self.calls_own {
            calls.own.clear();
        }
        calls.is_alone = !calls.own.is_empty() && !self.calls_others;
        calls
    }

    /// Those that the client gets of all rounds so far.
    pub(super) fn shown(&self) -> impl Iterator<Item = Value> {
        let shown = self.now.iter().filter(|(at, _)| !self.hidden.contains(at)).map(|(_, part)| part);
        self.before.iter().chain(shown).cloned().map(Value::Object)
    }

    /// The place that a part of this round has for the client.
    pub(super) fn place(&self, at: u64) -> u64 {
        self.before.len() as u64 + at - self.hidden.range(..at).count() as u64
    }

    /// What answers the calls of abridge, in their order, as `result` writes it.
    pub(super) fn results(&self, texts: &[String], result: impl Fn(&Object, &str) -> Value) -> Vec<Bytes> {
        let own = self.now.values().filter(|part| is_own_call(part));
        own.zip(texts).map(|(call, text)| result(call, text).to_string().into()).collect()
    }

    /// Whether the answer is not the upstream's any more.
    pub(super) fn is_changed(&self) -> bool {
        self.is_later || self.calls_own
    }

    pub(super) fn next_round(&mut self) {
        let hidden = std::mem::take(&mut self.hidden);
        let shown = std::mem::take(&mut self.now).into_iter().filter(|(at, _)| !hidden.contains(at));
        self.before.extend(shown.map(|(_, part)| part));
        self.end.clear();
        self.billed.next_round();
        (self.is_later, self.calls_own) = (true, false);
    }
}

/// Whether a block or an item is a call of abridge.
pub(super) fn is_own_call(part: &Object) -> bool {
    matches!(text(part, "type"), "tool_use" | "function_call") && is_own(text(part, "name"))
}

/// An event with this data, with its type as its name if it has one.
pub(super) fn write_event(out: &mut Vec<u8>, data: &Object) {
    if let Some(name) = data.get("type").and_then(Value::as_str) {
        out.extend([b"event: ", name.as_bytes(), b"\n"].concat());
    }
    out.extend(b"data: ");
    out.extend(write(data));
    out.extend(b"\n\n");
}

/// Returns what was held back: an answer that is not streamed, or events.
pub(super) fn held(back: &[Object], is_whole: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for object in back {
        if is_whole {
            out.extend(write(object));
        } else {
            write_event(&mut out, object);
        }
    }
    out
}

/// An object as JSON.
pub(super) fn write(object: &Object) -> Vec<u8> {
    serde_json::to_vec(object).unwrap_or_default()
}
