//! Any proxy by the same measure: the requests that it sends on to an upstream of the judge.
#![expect(clippy::disallowed_types, reason = "bodies are compared, and go nowhere")]

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::conversation::{Conversation, Pairing, Role, UnitIndex};
use crate::dialect::{self, Dialect};
use crate::raw;
use crate::span::Span;

/// Sends a request through the proxy under test. The error says why nothing of it arrived.
pub type Judged = dyn Fn(&Bytes) -> Result<Arrival, String> + Send + Sync;

/// What arrives of a request.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The body.
    pub body: Bytes,
    /// The bodies of further requests that the proxy sent meanwhile, such as for summaries.
    pub further: Vec<Bytes>,
    /// How long the proxy took until the answer, which comes at once.
    pub within: Duration,
}

/// What only an upstream sees of a proxy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sightings {
    /// The number of requests.
    pub requests: usize,
    /// The number of requests of which nothing arrived. In all other columns they count as unchanged.
    pub lost: usize,
    /// The reason of the first lost request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The number of requests that an API refuses, though it would have taken the client's: no request at all, a call without its
    /// result, or a result without its call.
    pub refused: usize,
    /// The number of requests without a text of the user or of the instructions that the client's has.
    pub words_changed: usize,
    /// The bytes changed without need: of messages, tools, a form and instructions that say the same in other bytes, for
    /// which no prompt cache may serve them.
    pub bytes_rewritten: usize,
    /// The requests of the proxy's own.
    pub further: usize,
    /// How long the proxy took, in microseconds, in order. In JSON, the median in milliseconds.
    #[serde(rename = "median_ms", serialize_with = "median_only")]
    pub micros: Vec<u64>,
}

// === impl Sightings ===

impl Sightings {
    /// Enters what became of a request, and returns what counts as sent, and the further requests.
    pub(super) fn enter(&mut self, original: &Bytes, judged: &Judged) -> (Bytes, Vec<Bytes>) {
        self.requests += 1;
        let Arrival { body, further, within } = match judged(original) {
            Ok(arrival) => arrival,
            Err(reason) => {
                self.lost += 1;
                self.reason.get_or_insert(reason);
                return (original.clone(), Vec::new());
            }
        };
        self.further += further.len();
        self.micros.push(u64::try_from(within.as_micros()).unwrap_or(u64::MAX));
        if body == *original {
            return (body, further);
        }
        let Some(arrived) = Reading::of(&body) else {
            self.refused += 1;
            return (original.clone(), further);
        };
        if let Some(sent) = Reading::of(original) {
            self.refused += usize::from(arrived.is_broken() && !sent.is_broken());
            let (before, after) = (sent.words(), arrived.words());
            self.words_changed += usize::from(before.iter().any(|words| !after.contains(words)));
            self.bytes_rewritten += sent.rewritten_in(&arrived);
        }
        (body, further)
    }

    /// The sum of two.
    pub(super) fn plus(mut self, other: Self) -> Self {
        self.requests += other.requests;
        self.lost += other.lost;
        self.refused += other.refused;
        self.words_changed += other.words_changed;
        self.bytes_rewritten += other.bytes_rewritten;
        self.further += other.further;
        self.reason = self.reason.or(other.reason);
        self.micros.extend(other.micros);
        self.micros.sort_unstable();
        self
    }
}

/// The median, in milliseconds, of microseconds in order.
pub(super) fn median_ms(micros: &[u64]) -> f64 {
    let micros = micros.get(micros.len() / 2).copied().unwrap_or_default();
    Duration::from_micros(micros).as_secs_f64() * 1000.0
}

fn median_only<S: Serializer>(micros: &[u64], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(median_ms(micros))
}

/// A body, read.
struct Reading<'b> {
    body: &'b Bytes,
    dialect: &'static dyn Dialect,
    conversation: Conversation<'b>,
}

impl<'b> Reading<'b> {
    fn of(body: &'b Bytes) -> Option<Self> {
        let dialect = dialect::of_body(body);
        Some(Self { body, dialect, conversation: dialect.parse(body).ok()? })
    }

    /// Whether a call has no result, or a result no call. A call at the end waits for its result.
    fn is_broken(&self) -> bool {
        let pairing = Pairing::of(&self.conversation);
        pairing.calls.iter().any(|call| !call.answered && call.answerable)
            || pairing.results.iter().any(|result| result.answers.is_none())
    }

    /// The texts of the user and of the instructions.
    fn words(&self) -> HashSet<Cow<'b, str>> {
        let (body, conversation): (&'b Bytes, _) = (self.body, &self.conversation);
        let is_said = |role| matches!(role, Role::System | Role::Developer | Role::User);
        let said = conversation.units.iter().filter(|unit| is_said(unit.role)).filter_map(|unit| unit.content);
        let texts = said.chain(conversation.instructions).flat_map(|content| self.dialect.texts(body, content));
        texts.filter_map(|text: Span| raw::string(raw::utf8(text.of(body))?)).collect()
    }

    /// The length of what `other` says in other bytes.
    fn rewritten_in(&self, other: &Self) -> usize {
        let written: HashSet<_> = other.messages().map(|(message, _)| message).chain(other.others()).collect();
        let meant: HashSet<_> = written.iter().filter_map(|value| meaning(value)).collect();
        let is_meant =
            |value: &&[u8]| !written.contains(value) && meaning(value).is_some_and(|value| meant.contains(&value));
        // A mark for a cache, or a text in an array, changes the JSON of a message and not what the model reads; reasoning
        // that has left does.
        let said: HashSet<_> =
            other.messages().map(|(message, thoughts)| (other.canonical(message), thoughts)).collect();
        let is_said = |(message, thoughts): &(&[u8], usize)| {
            !written.contains(message) && said.contains(&(self.canonical(message), *thoughts))
        };
        let messages = self.messages().filter(|message| is_said(message) || is_meant(&message.0));
        messages.map(|(message, _)| message).chain(self.others().filter(is_meant)).map(<[u8]>::len).sum()
    }

    /// The canonical form of a message, which is without its reasoning.
    fn canonical(&self, message: &[u8]) -> Vec<u8> {
        self.dialect.canonical(message).concat()
    }

    /// The messages, each with how many of its parts have reasoning.
    fn messages(&self) -> impl Iterator<Item = (&'b [u8], usize)> {
        let (body, of): (&'b Bytes, _) = (self.body, &self.conversation);
        of.elements.iter().map(move |element| {
            let units = UnitIndex::each(&element.units).filter_map(|unit| of.unit(unit));
            (element.span.of(body), units.filter(|unit| unit.flags.thinks).count())
        })
    }

    /// The parts that the model reads besides the messages.
    fn others(&self) -> impl Iterator<Item = &'b [u8]> {
        let (body, of): (&'b Bytes, _) = (self.body, &self.conversation);
        [of.tools, of.format, of.instructions].into_iter().flatten().map(move |span: Span| span.of(body))
    }
}

/// A JSON value, which is the same in every spelling: with other white space, escapes and order of keys. Half a surrogate is U+FFFD.
fn meaning(json: &[u8]) -> Option<Value> {
    let json = raw::lossy(json);
    serde_json::from_str(&json).ok().or_else(|| serde_json::from_str(&raw::without_halves(&json)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: &str = r#""tools":[{"type":"function"}],"#;

    const CHAT: &str = r#"{"model":"m","tools":[{"type":"function"}],"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"a\nb"},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"t","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"r"}]}"#;

    fn sightings(arrives: Result<String, String>) -> Sightings {
        let mut seen = Sightings::default();
        let judged = move |_: &Bytes| {
            let body = arrives.clone()?.into();
            Ok(Arrival { body, further: Vec::new(), within: Duration::from_micros(1500) })
        };
        seen.enter(&CHAT.into(), &judged);
        seen
    }

    #[test]
    fn each_kind_of_change_has_its_column() {
        let seen = |from: &str, to: &str| {
            let seen = sightings(Ok(CHAT.replace(from, to)));
            [seen.refused, seen.words_changed, seen.bytes_rewritten]
        };
        assert_eq!(seen("", ""), [0, 0, 0]);
        assert_eq!(seen(r#""content":"r""#, r#""content":"shorter""#), [0, 0, 0], "an edit");
        assert_eq!(seen("be kind", "be brief"), [0, 1, 0]);
        assert_eq!(seen("tool_call_id\":\"c\"", "tool_call_id\":\"d\""), [1, 0, 0]);
        let message = r#"{"role":"user","content":"a\nb"}"#;
        assert_eq!(seen(r#"{"role":"user",""#, r#"{"role": "user", ""#), [0, 0, message.len()]);
        let rewritten = |from, to| seen(from, to)[2];
        assert_eq!(seen("a\\nb", "a\\u000ab"), [0, 0, message.len()], "an escape");
        let (call, turned) = (r#"{"id":"c","type":"function","#, r#"{"type":"function","id":"c","#);
        assert!(rewritten(call, turned) > call.len(), "an order");
        assert_eq!(rewritten(TOOLS, r#""tools":[ {"type":"function"}],"#), TOOLS.len() - 9, "what is not a message");
        assert_eq!(sightings(Ok("no JSON".to_owned())).refused, 1);
        let thoughts = r#"{"system":"s","messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"a"}]}]}"#;
        let of_thoughts = |from: &str, to: &str| {
            let [sent, arrived] = [thoughts.to_owned(), thoughts.replace(from, to)].map(Bytes::from);
            Reading::of(&sent).unwrap().rewritten_in(&Reading::of(&arrived).unwrap())
        };
        assert_eq!(of_thoughts(r#"{"type":"thinking","thinking":"t","signature":"s"},"#, ""), 0, "reasoning that left");
        assert!(of_thoughts("{\"type\":\"text\"", "{ \"type\":\"text\"") > 0);
        let half = meaning(br#"["\ud83d"]"#);
        assert!(half.is_some() && half == meaning(br#"[ "\uD83D" ]"#), "half a surrogate");
    }

    #[test]
    fn what_does_not_arrive_is_lost_and_counts_as_unchanged() {
        let one = sightings(Err("502: no".to_owned())).plus(sightings(Ok(CHAT.to_owned())));
        assert_eq!((one.requests, one.lost, one.refused, one.reason.as_deref()), (2, 1, 0, Some("502: no")));
        assert!((median_ms(&one.micros) - 1.5).abs() < 0.01);
    }
}
