//! What an upstream's refusal of a request is about, as far as another form of the request may help.
//!
//! There is no standard for this: each server has codes and sentences of its own. Known ones are looked for in the fields
//! that are there to say what is wrong, and nowhere else, since a refusal may quote what the client sent.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::value::RawValue;

/// What a refusal is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The conversation is too long for the model.
    Overflow(Numbers),
    /// Messages or tool calls do not follow each other as the upstream wants them to.
    Sequence,
    /// The upstream takes no tools, not these, or no choice among them.
    Tools,
}

/// What a refusal says of sizes, in tokens.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Numbers {
    /// What the model takes.
    pub window: Option<usize>,
    /// What the request has.
    pub prompt: Option<usize>,
    /// What is asked for as its answer.
    pub answer: Option<usize>,
}

/// What a number is.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    Window,
    Prompt,
    Answer,
}

use Meaning::{Answer, Prompt, Window};

/// Codes and types that mean an overflow by themselves.
const CODES: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "exceed_context_size_error",
    "model_context_window_exceeded",
    "tokens_limit_reached",
];

/// Words of an overflow, in lower case and with `#` for every number.
const OVERFLOW: &[&str] = &[
    "maximum context length is #",
    "maximum context length of # tokens",
    "# maximum context length",
    "exceeds model's maximum context length",
    "exceeds the model's maximum context length",
    "maximum prompt length is #",
    "exceeds the available context size",
    "exceeds the context length",
    "exceeds the context window",
    "exceed context limit",
    "exceeded max context length",
    "exceeded model token limit",
    "exceeds the maximum number of tokens allowed",
    "exceeds the maximum allowed input length",
    "exceeds the maximum allowed length (# tokens)",
    "longer than the model's context length",
    "longer than the maximum model length of #",
    "input tokens exceed the configured limit of #",
    "the configured context size is #",
    "prompt is too long: # tokens",
    "prompt token count of # exceeds the limit of #",
    "range of input length should be [#, #]",
    "input is too long for requested model",
    "is greater than the context length",
    "context window exceeds limit",
    "reduce the length of the messages",
    "`inputs` tokens + `max_new_tokens` must be <= #",
    "max_tokens must be at least #, got -#",
];

/// What the numbers of an overflow are: the words with the number, and how many numbers stand before it in them.
const NUMBERS: &[(&str, usize, Meaning)] = &[
    ("maximum context length is #", 0, Window),
    ("maximum context length of #", 0, Window),
    ("too large for model with # maximum context length", 0, Window),
    ("maximum context length (#)", 0, Window),
    ("maximum prompt length is #", 0, Window),
    ("available context size (# tokens)", 0, Window),
    ("context limit: # + # > #", 2, Window),
    ("model token limit: #", 0, Window),
    ("maximum number of tokens allowed (#)", 0, Window),
    ("maximum number of tokens allowed #", 0, Window),
    ("maximum allowed input length of (#)", 0, Window),
    ("maximum allowed length (# tokens)", 0, Window),
    ("model's context length (# tokens)", 0, Window),
    ("maximum model length of #", 0, Window),
    ("configured limit of # tokens", 0, Window),
    ("configured context size is # tokens", 0, Window),
    ("# tokens > # maximum", 1, Window),
    ("exceeds the limit of #", 0, Window),
    ("range of input length should be [#, #]", 1, Window),
    ("max size: # tokens", 0, Window),
    ("`max_new_tokens` must be <= #", 0, Window),
    ("# in the messages", 0, Prompt),
    ("# in the functions", 0, Prompt),
    ("# in your prompt", 0, Prompt),
    ("# of text input", 0, Prompt),
    ("# of tool input", 0, Prompt),
    ("messages resulted in # tokens", 0, Prompt),
    ("# input tokens", 0, Prompt),
    ("# tokens > #", 0, Prompt),
    ("request (# tokens)", 0, Prompt),
    ("the input (# tokens)", 0, Prompt),
    ("context limit: # + #", 0, Prompt),
    ("input token count (#)", 0, Prompt),
    ("the request contains # tokens", 0, Prompt),
    ("# tokens from the input", 0, Prompt),
    ("prompt token count of #", 0, Prompt),
    ("input length (#", 0, Prompt),
    ("(requested: #)", 0, Prompt),
    ("given: # `inputs`", 0, Prompt),
    ("# in the completion", 0, Answer),
    ("# for the completion", 0, Answer),
    ("# in the output", 0, Answer),
    ("# output tokens", 0, Answer),
    ("# tokens for the completion", 0, Answer),
    ("and # `max_new_tokens`", 0, Answer),
    ("context limit: # + #", 1, Answer),
];

/// Words of limits that pass with time, and not with another form of the request.
const RATES: &[&str] = &["per minute", "per day", "rate limit", "too many requests"];

/// Words of a refusal for the sequence of messages, in the same form.
const SEQUENCE: &[&str] = &[
    "tool_call",
    "tool call",
    "tool_use",
    "tool_result",
    "tool message",
    "tool result",
    "role 'tool'",
    "role \"tool\"",
    "role tool",
    "function call",
    "must alternate",
    "alternate between",
    "unexpected role",
    "expected last role",
    "messages with role",
    "'messages'",
    "messages:",
    "messages[#",
    "messages.#",
    "messages.[#",
    "message[#",
];

/// The fields of a request that are about tools.
const TOOLS: &[&str] = &["tool", "parallel_tool_calls", "function"];

/// Refusals in refusals are opened so deep: gateways pack what their providers say into theirs.
const DEPTH: usize = 4;

/// More of a message is not looked at, in characters: it says at its beginning what is wrong, or not at all.
const MOST_SAID: usize = 4096;

/// Numbers that can be a window. What is smaller or larger was read wrong.
const PLAUSIBLE: RangeInclusive<usize> = 64..=100_000_000;

/// What a refusal is about; `None` if no other form of the request would help, or nobody knows.
pub fn refusal(body: &[u8]) -> Option<Refusal> {
    let body: &RawValue = serde_json::from_slice(body).ok()?;
    let mut all = Vec::new();
    collect(body, DEPTH, &mut all);
    if all.iter().any(Said::is_rate) {
        return None;
    }
    let overflow = all.iter().find_map(Said::overflow).map(Refusal::Overflow);
    let sequence = || all.iter().any(Said::is_sequence).then_some(Refusal::Sequence);
    let tools = || all.iter().any(Said::is_tools).then_some(Refusal::Tools);
    overflow.or_else(sequence).or_else(tools)
}

/// What one refusal says, in lower case.
#[derive(Debug, Default)]
struct Said {
    message: String,
    codes: [String; 2],
    param: String,
    n_ctx: Option<usize>,
    n_prompt_tokens: Option<usize>,
}

/// A refusal, or an object that has one below `error`.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow)]
    param: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    raw: Option<&'a RawValue>,
    #[serde(borrow)]
    n_ctx: Option<&'a RawValue>,
    #[serde(borrow)]
    n_prompt_tokens: Option<&'a RawValue>,
}

/// All that a body says: its own words, and those of the refusals in it.
fn collect(json: &RawValue, depth: usize, all: &mut Vec<Said>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    if let Ok(list) = serde_json::from_str::<[&RawValue; 1]>(json.get()) {
        let [only] = list;
        return collect(only, depth, all);
    }
    if let Some(text) = string(Some(json)) {
        return collect_text(&text, depth, all);
    }
    let Ok(fields) = serde_json::from_str::<Fields<'_>>(json.get()) else { return };
    for inner in [fields.error, fields.metadata].into_iter().flatten() {
        collect(inner, depth, all);
    }
    if let Some(raw) = string(fields.raw) {
        collect_text(&raw, depth, all);
    }
    let lower = |field| string(field).map(|text| text.to_ascii_lowercase()).unwrap_or_default();
    let message = string(fields.message).or_else(|| string(fields.detail)).unwrap_or_default();
    let said = Said {
        codes: [lower(fields.code), lower(fields.r#type)],
        param: lower(fields.param),
        n_ctx: number(fields.n_ctx),
        n_prompt_tokens: number(fields.n_prompt_tokens),
        ..Said::default()
    };
    match embedded(&message) {
        Some(inner) => collect(inner, depth, all),
        None => all.push(Said { message: beginning(&message), ..said }),
    }
}

/// A refusal that is only words, or has another one in it.
fn collect_text(text: &str, depth: usize, all: &mut Vec<Said>) {
    match embedded(text) {
        Some(inner) => collect(inner, depth, all),
        None => all.push(Said { message: beginning(text), ..Said::default() }),
    }
}

/// What a message says first, in lower case.
fn beginning(message: &str) -> String {
    message.chars().take(MOST_SAID).flat_map(char::to_lowercase).collect()
}

/// The JSON object in a text.
fn embedded(text: &str) -> Option<&RawValue> {
    let object = text.get(text.find("{\"")?..)?;
    serde_json::Deserializer::from_str(object).into_iter().next()?.ok()
}

fn string(field: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(field?.get()).ok()
}

fn number(field: Option<&RawValue>) -> Option<usize> {
    serde_json::from_str(field?.get()).ok()
}

// === impl Said ===

impl Said {
    fn is_rate(&self) -> bool {
        self.codes.iter().any(|code| code.starts_with("rate_limit"))
            || RATES.iter().any(|words| self.message.contains(words))
    }

    fn overflow(&self) -> Option<Numbers> {
        let (words, numbers) = numbered(&unquoted(&self.message));
        let by_code = self.codes.iter().any(|code| CODES.contains(&code.as_str()));
        if !by_code && !OVERFLOW.iter().any(|known| words.contains(known)) {
            return None;
        }
        let mut said = Numbers::default();
        for (known, nth, meaning) in NUMBERS {
            let Some(at) = words.find(known) else { continue };
            let before = words.get(..at).map_or(0, |before| before.matches('#').count());
            let Some(&number) = numbers.get(before + nth) else { continue };
            match meaning {
                Window => said.window = said.window.or(Some(number)),
                // Parts of a prompt are told one by one.
                Prompt => said.prompt = Some(said.prompt.unwrap_or(0).saturating_add(number)),
                Answer => said.answer = said.answer.or(Some(number)),
            }
        }
        said.window = self.n_ctx.or(said.window).filter(|window| PLAUSIBLE.contains(window));
        said.prompt = self.n_prompt_tokens.or(said.prompt);
        Some(said)
    }

    fn is_sequence(&self) -> bool {
        let about_messages = self.param.starts_with("messages") || self.param.starts_with("tool_call");
        // A refusal that names another field is about that one, whatever words it has.
        let (words, _) = numbered(&self.message);
        about_messages || self.param.is_empty() && SEQUENCE.iter().any(|known| words.contains(known))
    }

    fn is_tools(&self) -> bool {
        let about_tools = TOOLS.iter().any(|field| self.param.starts_with(field));
        about_tools || self.param.is_empty() && self.message.contains("tool")
    }
}

/// A text without what it quotes. An apostrophe is no quote.
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
            words.push(','); // it ended a clause
        }
        numbers.push(number);
    }
    (words, numbers)
}

#[cfg(test)]
mod tests;
