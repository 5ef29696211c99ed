//! Classifies an upstream's refusal of a request, as far as another form of the request may be accepted.
//!
//! There is no standard for this: each server has its own codes and messages. Known ones are searched for in the fields for
//! error messages and nowhere else, because a refusal may quote what the client sent.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::dialect::Form;

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The conversation is too long for the model.
    Overflow(TokenCounts),
    /// The upstream rejects the sequence of messages or tool calls.
    Sequence,
    /// The upstream rejects reasoning in the messages, which is not what it has signed, or not where.
    Reasoning,
    /// The upstream asks for this form of messages.
    Form(Form),
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

/// Which size a number is.
#[derive(Clone, Copy, Debug)]
enum CountKind {
    Window,
    Prompt,
    Answer,
}

use CountKind::{Answer, Prompt, Window};

/// Codes and types that always mean an overflow.
const OVERFLOW_CODES: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "exceed_context_size_error",
    "model_context_window_exceeded",
    "tokens_limit_reached",
    "request_too_large",
    "badrequest.toolarge",
];

/// Phrases of an overflow, in lower case and with `#` for every number.
const OVERFLOW_PHRASES: &[&str] = &[
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
    // Of the whole body, and of images in it: Anthropic's API (claude-code#6380, #49720).
    "request size exceeds model context window",
    "image dimensions exceed max allowed size",
    "too many images",
];

/// The sizes in an overflow: a phrase, the index of the number in it, and which size that is.
const COUNT_PHRASES: &[(&str, usize, CountKind)] = &[
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

/// Phrases of rate limits, which another form of the request cannot satisfy.
const RATE_LIMIT_PHRASES: &[&str] = &["per minute", "per day", "rate limit", "too many requests"];

/// Phrases of a refused sequence of messages, in the same form.
const SEQUENCE_PHRASES: &[&str] = &[
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
    "no tool output found",
    "without its required",
    "duplicate item found",
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

/// Phrases of refusals that ask for a form, in the same form, all of which a message has. The sources: Anthropic's API
/// (anthropics/claude-code#59812, #23440, #21317), OpenAI's (openai-python#2061, agno#5116), `DashScope`'s (nanobot#1487),
/// `MiniMax`'s (nanobot#2858, GCMP#120), Mistral's (mistral-vibe#578), Qwen's templates (moltis#317).
const FORM_PHRASES: &[(Form, &[&str])] = &[
    (Form::Arguments, &["arguments", "json"]),
    (Form::Arguments, &["arguments", "expected a string"]),
    (Form::Arguments, &["tool_use.input", "valid dictionary"]),
    (Form::Filled, &["content blocks must be non-empty"]),
    (Form::Filled, &["must contain non-whitespace text"]),
    (Form::Filled, &["must have non-empty content"]),
    (Form::Filled, &["tool_call", "empty array. expected an array"]),
    (Form::Filled, &["empty tool_call"]),
    (Form::LeadingSystem, &["system message must be at the beginning"]),
    (Form::LeadingSystem, &["unexpected role \"system\""]),
    (Form::Bridge, &["unexpected role 'user' after role 'tool'"]),
    (Form::UniqueIds, &["ids must be unique"]),
    (Form::UniqueIds, &["duplicate value for 'tool_call"]),
    (Form::UniqueIds, &["duplicate tool_call"]),
    (Form::UniqueIds, &["duplicate call_ids"]),
];

/// The code of reasoning that the upstream cannot decrypt: OpenAI's, for that of another key (openai/codex#8145).
const ENCRYPTED: &str = "invalid_encrypted_content";

/// Phrases of refused reasoning, in the same form.
const REASONING_PHRASES: &[&str] = &[
    "`thinking` or `redacted_thinking` blocks",
    "expected `thinking` or `redacted_thinking`",
    "invalid `signature` in `thinking`",
    "bound to a different conversation",
    "encrypted content could not be",
];

/// Words of refusals of a parameter or a form: OpenAI's and Anthropic's types and codes, those of pydantic in vLLM and at
/// Mistral, and what servers say of limits and of budgets for thinking.
const FORM_WORDS: &[&str] = &[
    "invalid_request",
    "invalid_parameter",
    "unsupported",
    "not support",
    "unrecognized",
    "unknown",
    "not permitted",
    "must be",
    "greater than",
    "max_tokens",
    "unexpected",
    "validation",
];

/// The beginnings of `param` that concern tools.
const TOOL_PARAMS: &[&str] = &["tool", "parallel_tool_calls", "function"];

/// How deeply nested refusals are read: gateways embed the refusals of their providers.
const MAX_DEPTH: usize = 4;

/// How much of a message is read, in characters; the reason is at the beginning.
const MAX_MESSAGE: usize = 4096;

/// Sizes that can be a window. Others were read wrong.
const PLAUSIBLE_WINDOW: RangeInclusive<usize> = 64..=100_000_000;

/// Classifies the body of a refusal; `None` if the reason is unknown or no other form of the request would help.
pub fn classify(body: &[u8]) -> Option<Refusal> {
    let body: &RawValue = serde_json::from_slice(body).ok()?;
    let mut all = Vec::new();
    collect(body, MAX_DEPTH, &mut all);
    if all.iter().any(RefusalText::is_rate_limit) {
        return None;
    }
    let overflow = all.iter().find_map(RefusalText::overflow).map(Refusal::Overflow);
    let reasoning = || all.iter().any(RefusalText::is_about_reasoning).then_some(Refusal::Reasoning);
    let form = || all.iter().find_map(RefusalText::form).map(Refusal::Form);
    let sequence = || all.iter().any(RefusalText::is_about_sequence).then_some(Refusal::Sequence);
    let tools = || all.iter().any(RefusalText::is_about_tools).then_some(Refusal::Tools);
    overflow.or_else(reasoning).or_else(form).or_else(sequence).or_else(tools)
}

/// Whether a refusal may be for a parameter of the request, or for its form, in words that [`classify`] does not know. It is
/// asked for requests that can be made again with next to nothing in them, so that one call is all that a mistake costs.
pub fn may_be_of_form(body: &[u8]) -> bool {
    let start = lowercase_start(&String::from_utf8_lossy(body));
    FORM_WORDS.iter().any(|known| start.contains(known))
}

/// Classifies the data of an event by which a streamed answer fails: a refusal, or an answer with one in it.
pub fn classify_event(data: &[u8]) -> Option<Refusal> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow)]
        response: Failed<'a>,
    }
    #[derive(Deserialize)]
    struct Failed<'a> {
        #[serde(borrow)]
        error: &'a RawValue,
    }
    match serde_json::from_slice(data) {
        // The rest of the answer repeats what the client sent.
        Ok(Event { response }) => classify(response.error.get().as_bytes()),
        Err(_) => classify(data),
    }
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

/// The fields of a refusal, or of an object with one below `error`.
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

/// Collects the texts of a refusal and of all refusals in it.
fn collect(json: &RawValue, depth: usize, all: &mut Vec<RefusalText>) {
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
    let text = RefusalText {
        codes: [lower(fields.code), lower(fields.r#type)],
        param: lower(fields.param),
        n_ctx: number(fields.n_ctx),
        n_prompt_tokens: number(fields.n_prompt_tokens),
        ..RefusalText::default()
    };
    match embedded(&message) {
        Some(inner) => collect(inner, depth, all),
        None => all.push(RefusalText { message: lowercase_start(&message), ..text }),
    }
}

/// Collects a refusal that is a plain text, or the refusal that is embedded in it.
fn collect_text(text: &str, depth: usize, all: &mut Vec<RefusalText>) {
    match embedded(text) {
        Some(inner) => collect(inner, depth, all),
        None => all.push(RefusalText { message: lowercase_start(text), ..RefusalText::default() }),
    }
}

/// The first [`MAX_MESSAGE`] characters of a message, in lower case.
fn lowercase_start(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).flat_map(char::to_lowercase).collect()
}

/// The first JSON object in a text.
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

// === impl RefusalText ===

impl RefusalText {
    fn is_rate_limit(&self) -> bool {
        self.codes.iter().any(|code| code.starts_with("rate_limit"))
            || RATE_LIMIT_PHRASES.iter().any(|words| self.message.contains(words))
    }

    fn overflow(&self) -> Option<TokenCounts> {
        let (words, numbers) = numbered(&unquoted(&self.message));
        let by_code = self.codes.iter().any(|code| OVERFLOW_CODES.contains(&code.as_str()));
        if !by_code && !OVERFLOW_PHRASES.iter().any(|known| words.contains(known)) {
            return None;
        }
        let mut counts = TokenCounts::default();
        for (known, nth, kind) in COUNT_PHRASES {
            let Some(at) = words.find(known) else { continue };
            let before = words.get(..at).map_or(0, |before| before.matches('#').count());
            let Some(&number) = numbers.get(before + nth) else { continue };
            match kind {
                Window => counts.window = counts.window.or(Some(number)),
                // Parts of a prompt are listed separately.
                Prompt => counts.prompt = Some(counts.prompt.unwrap_or(0).saturating_add(number)),
                Answer => counts.answer = counts.answer.or(Some(number)),
            }
        }
        counts.window = self.n_ctx.or(counts.window).filter(|window| PLAUSIBLE_WINDOW.contains(window));
        counts.prompt = self.n_prompt_tokens.or(counts.prompt);
        Some(counts)
    }

    fn is_about_sequence(&self) -> bool {
        let about_messages = self.param.starts_with("messages") || self.param.starts_with("tool_call");
        // A refusal that names another field concerns that one, whatever its message says.
        let (words, _) = numbered(&self.message);
        let may_be = self.param.is_empty() || self.param.starts_with("input");
        about_messages || may_be && SEQUENCE_PHRASES.iter().any(|known| words.contains(known))
    }

    fn is_about_reasoning(&self) -> bool {
        self.codes.iter().any(|code| code == ENCRYPTED)
            || REASONING_PHRASES.iter().any(|known| self.message.contains(known))
    }

    fn form(&self) -> Option<Form> {
        let fits = |phrases: &[&str]| phrases.iter().all(|known| self.message.contains(known));
        FORM_PHRASES.iter().find(|(_, phrases)| fits(phrases)).map(|(form, _)| *form)
    }

    fn is_about_tools(&self) -> bool {
        let about_tools = TOOL_PARAMS.iter().any(|field| self.param.starts_with(field));
        about_tools || self.param.is_empty() && self.message.contains("tool")
    }
}

/// A text without quoted parts. An apostrophe inside a word is no quote.
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
