//! Classifies an upstream's refusal of a request, as far as another form of the request may be accepted.
//!
//! Servers follow no standard: each has its own codes and messages. Known ones are searched for in the fields for
//! error messages and nowhere else, because a refusal may quote what the client sent.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::dialect::Form;
use crate::raw::{Fields, elements, string};

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The conversation is too long for the model.
    Overflow(TokenCounts),
    /// The upstream rejects the sequence of messages or tool calls.
    Sequence,
    /// The upstream rejects reasoning in the messages, which is not what it has signed, or not where.
    Reasoning,
    /// The upstream asks for this form of messages, in these words.
    Form(Form, &'static [String]),
    /// The upstream accepts no tools, not these, or no tool choice.
    Tools,
}

/// The sizes in a refusal, in tokens.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TokenCounts {
    /// The context window of the model.
    pub window: Option<usize>,
    /// The prompt of the request.
    pub prompt: Option<usize>,
    /// The answer that the request asks for.
    pub answer: Option<usize>,
}

/// What refusals say, as the file explains it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Phrases {
    overflow_codes: Vec<String>,
    overflow: Vec<String>,
    windows: Vec<(String, usize)>,
    prompts: Vec<(String, usize)>,
    answers: Vec<(String, usize)>,
    rate_limit: Vec<String>,
    sequence: Vec<String>,
    forms: Vec<(Form, Vec<String>)>,
    reasoning: Vec<String>,
    form_words: Vec<String>,
    tool_params: Vec<String>,
}

/// Tests read the file.
static PHRASES: LazyLock<Phrases> =
    LazyLock::new(|| toml::from_str(include_str!("refusal/phrases.toml")).unwrap_or_default());

/// The code of reasoning that the upstream cannot decrypt: OpenAI's, for that of another key (openai/codex#8145).
const ENCRYPTED: &str = "invalid_encrypted_content";

/// How deeply nested refusals are read: gateways embed the refusals of their providers.
const MAX_DEPTH: usize = 4;

/// How much of a message is read, in characters; the reason is at the beginning.
const MAX_MESSAGE: usize = 4096;

/// Sizes that can be a window. Others were read wrong.
const PLAUSIBLE_WINDOW: RangeInclusive<usize> = 64..=100_000_000;

impl Refusal {
    /// Whether the upstream asks for fewer or smaller images.
    pub fn is_of_images(&self) -> bool {
        matches!(self, Self::Form(form, _) if form.is_of_images())
    }
}

/// Classifies the body of a refusal; `None` if the reason is unknown or no other form of the request would help.
pub fn classify(body: &[u8]) -> Option<Refusal> {
    let body: &RawValue = serde_json::from_slice(body).ok()?;
    let mut all = Vec::new();
    collect(body.get(), MAX_DEPTH, &mut all);
    if all.iter().any(RefusalText::is_rate_limit) {
        return None;
    }
    let overflow = all.iter().find_map(RefusalText::overflow).map(Refusal::Overflow);
    let reasoning = || all.iter().any(RefusalText::is_about_reasoning).then_some(Refusal::Reasoning);
    let form = || all.iter().find_map(RefusalText::form).map(|(form, words)| Refusal::Form(form, words));
    let sequence = || all.iter().any(RefusalText::is_about_sequence).then_some(Refusal::Sequence);
    let tools = || all.iter().any(RefusalText::is_about_tools).then_some(Refusal::Tools);
    // Images may be too large or too many, in the words of an overflow.
    let of_images = form().filter(Refusal::is_of_images);
    of_images.or(overflow).or_else(reasoning).or_else(form).or_else(sequence).or_else(tools)
}

/// Whether a refusal may be for a parameter of the request, or for its form, in words that [`classify`] does not know. It is
/// asked for requests that can be made again with next to nothing in them, so that one call is all that a mistake costs.
pub fn may_be_of_form(body: &[u8]) -> bool {
    let start = lowercase_start(&String::from_utf8_lossy(body));
    PHRASES.form_words.iter().any(|known| start.contains(known))
}

/// Classifies the data of an event by which a streamed answer fails: a refusal, or an answer with one in it.
pub fn classify_event(data: &[u8]) -> Option<Refusal> {
    let response = str::from_utf8(data).ok().and_then(Fields::of).and_then(|event| event.object("response"));
    classify(response.and_then(|response| response.get("error")).map_or(data, str::as_bytes))
}

/// The texts of one refusal, in lower case.
#[derive(Debug, Default)]
struct RefusalText {
    message: String,
    codes: [String; 2],
    param: String,
    n_ctx: Option<usize>,
    n_prompt_tokens: Option<usize>,
}

/// Collects the texts of a refusal and of all refusals in it.
fn collect(json: &str, depth: usize, all: &mut Vec<RefusalText>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    if let Some([only]) = elements(json).as_deref() {
        return collect(only, depth, all);
    }
    if let Some(text) = string(json) {
        return collect_text(&text, RefusalText::default(), depth, all);
    }
    let Some(fields) = Fields::of(json) else { return };
    let said = fields.get("message").filter(|message| message.starts_with('{'));
    for inner in ["error", "errors", "metadata"].into_iter().filter_map(|key| fields.get(key)).chain(said) {
        collect(inner, depth, all);
    }
    if let Some(raw) = fields.string("raw") {
        collect_text(&raw, RefusalText::default(), depth, all);
    }
    for list in ["detail", "message"].into_iter().filter_map(|key| fields.get(key)) {
        all.extend(elements(list).unwrap_or_default().into_iter().filter_map(of_field));
    }
    let lower = |key| fields.string(key).map(|text| text.to_ascii_lowercase()).unwrap_or_default();
    let number = |key| fields.get(key)?.parse().ok();
    let message = fields.string("message").or_else(|| fields.string("detail")).unwrap_or_default();
    let text = RefusalText {
        codes: [lower("code"), lower("type")],
        param: lower("param"),
        n_ctx: number("n_ctx"),
        n_prompt_tokens: number("n_prompt_tokens"),
        ..RefusalText::default()
    };
    collect_text(&message, text, depth, all);
}

/// A fault that pydantic reports in one field: the path of the field, and the message. The client's value is in another member.
fn of_field(json: &str) -> Option<RefusalText> {
    let fields = Fields::of(json)?;
    let path = elements(fields.get("loc")?)?.into_iter().map(|name| string(name).unwrap_or(name.into()));
    let message = format!("{}: {}", path.collect::<Vec<_>>().join("."), fields.string("msg")?);
    Some(RefusalText { message: lowercase_start(&message), ..RefusalText::default() })
}

/// Collects a refusal with this message, or the refusal that is embedded in it.
fn collect_text(message: &str, text: RefusalText, depth: usize, all: &mut Vec<RefusalText>) {
    match embedded(message) {
        Some(inner) => collect(inner, depth, all),
        None => all.push(RefusalText { message: lowercase_start(message), ..text }),
    }
}

/// The first [`MAX_MESSAGE`] characters of a message, in lower case.
fn lowercase_start(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).flat_map(char::to_lowercase).collect()
}

/// The first JSON object in a text.
fn embedded(text: &str) -> Option<&str> {
    let object = text.get(text.find("{\"")?..)?;
    serde_json::Deserializer::from_str(object).into_iter().next()?.ok().map(RawValue::get)
}

// === impl RefusalText ===

impl RefusalText {
    fn is_rate_limit(&self) -> bool {
        self.codes.iter().any(|code| code.starts_with("rate_limit"))
            || PHRASES.rate_limit.iter().any(|words| self.message.contains(words))
    }

    fn overflow(&self) -> Option<TokenCounts> {
        let (words, numbers) = numbered(&unquoted(&self.message));
        let by_code = self.codes.iter().any(|code| PHRASES.overflow_codes.contains(code));
        if !by_code && !PHRASES.overflow.iter().any(|known| words.contains(known)) {
            return None;
        }
        let count = |(known, nth): &(String, usize)| {
            let before = words.get(..words.find(known)?)?.matches('#').count();
            numbers.get(before + nth).copied()
        };
        let window = self.n_ctx.or_else(|| PHRASES.windows.iter().find_map(count));
        let parts = || PHRASES.prompts.iter().filter_map(count).reduce(usize::saturating_add);
        Some(TokenCounts {
            window: window.filter(|window| PLAUSIBLE_WINDOW.contains(window)),
            prompt: self.n_prompt_tokens.or_else(parts),
            answer: PHRASES.answers.iter().find_map(count),
        })
    }

    fn is_about_sequence(&self) -> bool {
        let about_messages = self.param.starts_with("messages") || self.param.starts_with("tool_call");
        // A refusal that names another field concerns that one, whatever its message says.
        let (words, _) = numbered(&self.message);
        let may_be = self.param.is_empty() || self.param.starts_with("input");
        about_messages || may_be && PHRASES.sequence.iter().any(|known| words.contains(known))
    }

    fn is_about_reasoning(&self) -> bool {
        self.codes.iter().any(|code| code == ENCRYPTED)
            || PHRASES.reasoning.iter().any(|known| self.message.contains(known))
    }

    fn form(&self) -> Option<(Form, &'static [String])> {
        let fits = |phrases: &[String]| phrases.iter().all(|known| self.message.contains(known));
        PHRASES.forms.iter().find(|(_, phrases)| fits(phrases)).map(|(form, words)| (*form, &**words))
    }

    fn is_about_tools(&self) -> bool {
        let about_tools = PHRASES.tool_params.iter().any(|field| self.param.starts_with(field));
        about_tools || self.param.is_empty() && self.message.contains("tool")
    }
}

/// A text without quoted parts. An apostrophe inside a word is not a quote.
fn unquoted(text: &str) -> String {
    let mut rest = text;
    let mut without = String::with_capacity(text.len());
    while let Some(open) = rest.find(['\'', '"']) {
        let (before, from) = rest.split_at(open);
        let quote = if from.starts_with('"') { '"' } else { '\'' };
        let behind = from.get(1..).unwrap_or_default();
        let inside_a_word = before.ends_with(char::is_alphanumeric);
        let close = behind.match_indices(quote).map(|(at, _)| at).find(|at| {
            let next = behind.get(at + 1..).and_then(|next| next.chars().next());
            next.is_none_or(|next| !next.is_alphanumeric())
        });
        without.push_str(before);
        if let Some(close) = close.filter(|_| !inside_a_word) {
            rest = behind.get(close + 1..).unwrap_or_default();
        } else {
            without.push(quote);
            rest = behind;
        }
    }
    without.push_str(rest);
    without
}

/// A text with `#` for each number, and the numbers. `1,048,576` is one.
fn numbered(text: &str) -> (String, Vec<usize>) {
    let mut words = String::with_capacity(text.len());
    let mut numbers = Vec::new();
    let mut chars = text.chars().filter(|c| *c != '#').peekable();
    while let Some(c) = chars.next() {
        let Some(digit) = c.to_digit(10) else {
            words.push(c);
            continue;
        };
        let mut number = digit as usize;
        let mut comma = false;
        while let Some(next) = chars.peek().copied() {
            match next.to_digit(10) {
                Some(digit) => number = number.saturating_mul(10).saturating_add(digit as usize),
                None if next == ',' && !comma => {}
                None => break,
            }
            comma = next == ',';
            chars.next();
        }
        words.push('#');
        if comma {
            words.push(','); // the comma ended a clause
        }
        numbers.push(number);
    }
    (words, numbers)
}

#[cfg(test)]
mod tests;
