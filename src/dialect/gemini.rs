//! Gemini's own API, as Google AI Studio and Vertex AI speak it: `generateContent` and `streamGenerateContent`.
//!
//! A content has many parts: calls are parts of the model's contents, results parts of the user's. So a content of the model is
//! one unit with a block for each call, and each part of a content of the user is its own unit. A result is an object, in
//! which the texts are the strings at any depth. A call without an id is known by the name of its function, and its results
//! answer in order.
//!
//! The model is in the path. Thought signatures are on parts: a content that has one leaves as a whole or not at all.

use std::borrow::Cow;

use bytes::Bytes;
use percent_encoding::percent_decode_str;

use super::answer::{Answer, AnswerFormat, InvalidAnswer, Members, has_value};
use super::canonical;
use super::forms::{EMPTY, FormReplacement};
use super::json::{Cursor, ReadResult, Unsupported, beginning, field, fields_of, member, objects, text_of, values};
use super::object::summary_request;
use super::{CallInput, Dialect, Entries, ErrorFields, Exchange, Facts, Form, TextPartNames, strings};
use crate::{conversation::CallId, raw, span::Span, string_index::PathFacts, tokens::Usage};

mod summary;
mod tokens;
mod view;

/// `POST …/models/MODEL:generateContent`.
#[derive(Debug)]
pub(super) struct Gemini;

const NAME: &str = "gemini";

/// How a path ends that only counts tokens.
const COUNTING: &str = ":countTokens";

/// The methods of a model, as a path names them after it.
const METHODS: [&str; 3] = [":generateContent", ":streamGenerateContent", COUNTING];

/// The path before its `/models`, and the model, as the path writes it.
fn base_and_model(path: &str) -> Option<(&str, &str)> {
    let place = METHODS.iter().find_map(|method| path.strip_suffix(method))?;
    place.rsplit_once("/models/").filter(|(_, model)| !model.is_empty() && !model.contains('/'))
}

/// The most texts that most of a response may be in.
const MOST_TEXTS: usize = 16;

/// How deep the response of a function is looked into.
const DEPTH: usize = 16;

static FACTS: Facts = Facts {
    name: NAME,
    provider: "gcp.gemini",
    tag: 3,
    path: "/v1beta/models/-:generateContent",
    counting_paths: &[COUNTING],
    compacting_path: None,
    key_field: "x-goog-api-key",
    version_field: None,
    begins_with_user: true,
    alternates: true,
    names_results: false,
    bridge: None,
    text_part: TextPartNames { kind: "text", mark: "cache_control" },
    opening: None,
    own_tool: None,
    joiner: None,
    read: view::read,
    canonical: canonical::gemini,
    summary: |source, prompt| summary_request(&Gemini, source, prompt),
};

impl Dialect for Gemini {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn path_of(&self, model: &str) -> Cow<'static, str> {
        format!("/v1beta/models/{}:streamGenerateContent?alt=sse", model.trim_start_matches("models/")).into()
    }

    fn base_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        base_and_model(path).filter(|_| !path.ends_with(COUNTING)).map(|(base, _)| base)
    }

    fn path_facts(&self, path: &str) -> PathFacts {
        let model = base_and_model(path).filter(|_| path != self.path());
        let model = model.map(|(_, model)| percent_decode_str(model).decode_utf8_lossy().into());
        PathFacts { model, is_framed: false }
    }

    /// A string as the whole content, the texts of an array of parts, or all strings in the response of a function; that itself
    /// if most of it is something else, or in many small strings, which could not be cut. The API reads such a response as the
    /// value of its `output`.
    fn texts(&self, body: &[u8], content: Span) -> Vec<Span> {
        if !content.of(body).starts_with(b"[") {
            let mut found = Vec::new();
            let read = strings(&mut Cursor::starting(body, content.start), body, DEPTH, &mut found);
            let long = found.iter().map(|text| text.len()).filter(|len| len * MOST_TEXTS >= content.len());
            let is_text = read.is_ok() && long.sum::<usize>() > content.len() / 2;
            return if is_text { found } else { vec![content] };
        }
        let texts = objects(body, content, THOUGHT, |_, [text, thought]| {
            Some(beginning(body, text, b'"').filter(|_| !is_true(body, thought)))
        });
        texts.unwrap_or_default()
    }

    fn input(&self, body: &[u8], call: Span) -> Option<CallInput> {
        let [call, call_] = fields_of(body, call, [b"functionCall", b"function_call"])?;
        let args = field(body, call.or(call_)?, b"args");
        beginning(body, args, b'{').map(|span| CallInput { span, emptied: "{}" })
    }

    /// The parts of a content.
    fn entries(&self, body: &[u8], content: Span) -> Option<Entries> {
        let parts = beginning(body, field(body, content, b"parts"), b'[')?;
        let reasoning = objects(body, parts, THOUGHT, |span, part| Some(thought(body, part).map(|_| span)))?;
        Some(Entries { spans: values(body, parts)?, reasoning, key: None })
    }

    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>> {
        let keys: [&[u8]; 2] = [b"functionDeclarations", b"function_declarations"];
        let lists = objects(body, tools, keys, |_, [functions, functions_]| Some(functions.or(functions_)));
        let names = |functions| objects(body, functions, [b"name"], |_, [name]| Some(text_of(body, name)));
        let names: Option<Vec<_>> = lists.into_iter().flatten().map(names).collect();
        names.into_iter().flatten().flatten().collect()
    }

    fn form_replacements(&self, body: &[u8], content: Span, form: Form) -> Vec<(Span, &'static str)> {
        let found = match form {
            Form::Filled => filled(body, content),
            Form::SignedCalls => signed(body, content).map(|signature| vec![signature]),
            Form::NewSignatures => resigned(body, content),
            _ => None,
        };
        found.unwrap_or_default()
    }

    fn render_user_message(&self, text: &str) -> Bytes {
        [br#"{"role":"user","parts":["#, &*self.render_user_entry(text), b"]}"].concat().into()
    }

    fn render_user_entry(&self, text: &str) -> Bytes {
        [br#"{"text":"#, &*strings::render(text), b"}"].concat().into()
    }

    fn render_tool_result(&self, body: &[u8], id: &CallId<'_>, name: Option<&str>, text: &str) -> Bytes {
        response(id.raw.map(|raw| raw.of(body)), name.unwrap_or_default(), "error", text).into()
    }

    fn render_text_part(&self, _: &[u8], _: Span, text: &str) -> Bytes {
        [br#"{"output":"#, &*strings::render(text), b"}"].concat().into()
    }

    fn result_elements(&self, results: Vec<Bytes>) -> Vec<Bytes> {
        vec![[br#"{"role":"user","parts":["#, &*results.join(&b','), b"]}"].concat().into()]
    }

    fn reasoning_text(&self, body: &[u8], entry: Span) -> Option<Span> {
        thought(body, fields_of(body, entry, THOUGHT)?)
    }

    fn render_exchange(&self, exchange: &Exchange<'_>) -> [Bytes; 2] {
        let [id, name] = [exchange.id, exchange.name].map(strings::render);
        let call = [br#"{"functionCall":{"id":"#, &*id, br#","name":"#, &name, br#","args":"#].concat();
        let result = response(Some(&id), exchange.name, "output", exchange.result);
        [
            [br#"{"role":"model","parts":["#, &*call, exchange.arguments.as_bytes(), b"}}]}"].concat().into(),
            [br#"{"role":"user","parts":["#, &*result, b"]}"].concat().into(),
        ]
    }

    fn error_body(&self, error: &ErrorFields<'_>) -> Bytes {
        let (code, status) = if error.is_client_error { (400, "INVALID_ARGUMENT") } else { (503, "UNAVAILABLE") };
        let message = strings::render(error.message);
        let head = format!(r#"{{"error":{{"code":{code},"status":"{status}","message":"#);
        [head.as_bytes(), &*message, b"}}"].concat().into()
    }
}

/// A result of this function that has `text` under `key`.
fn response(id: Option<&[u8]>, name: &str, key: &str, text: &str) -> Vec<u8> {
    let id = id.map(|id| [br#""id":"#, id, b","].concat()).unwrap_or_default();
    let said = [br#","response":{""#, key.as_bytes(), br#"":"#, &*strings::render(text)].concat();
    [br#"{"functionResponse":{"#, &*id, br#""name":"#, &strings::render(name), &said, b"}}}"].concat()
}

/// Adds the strings in a value to those that were found.
fn strings(cursor: &mut Cursor<'_>, body: &[u8], depth: usize, found: &mut Vec<Span>) -> ReadResult {
    let deeper = depth.checked_sub(1).ok_or(Unsupported);
    match cursor.peek() {
        Some(b'{') => {
            let depth = deeper?;
            cursor.members(|cursor, _| strings(cursor, body, depth, found)).map(drop)
        }
        Some(b'[') => {
            let depth = deeper?;
            cursor.elements(|cursor| strings(cursor, body, depth, found)).map(drop)
        }
        _ => {
            let value = cursor.value()?;
            found.extend(Some(value).filter(|value| value.of(body).starts_with(b"\"")));
            Ok(())
        }
    }
}

/// The keys of a part that say whether it is a thought.
const THOUGHT: [&[u8]; 2] = [b"text", b"thought"];

/// The text of a part with these values of [`THOUGHT`], if it is a thought.
fn thought(body: &[u8], [text, thought]: [Option<Span>; 2]) -> Option<Span> {
    beginning(body, text, b'"').filter(|_| is_true(body, thought))
}

fn is_true(body: &[u8], value: Option<Span>) -> bool {
    value.is_some_and(|value| value.of(body) == b"true")
}

/// Replaces empty parts and empty texts. A text beside a signature may be empty.
fn filled(body: &[u8], content: Span) -> Option<Vec<FormReplacement>> {
    let [role, parts] = fields_of(body, content, [b"role", b"parts"])?;
    let Some(parts) = parts else {
        let missing = (Span::empty(content.start + 1), r#""parts":[{"text":"(empty)"}],"#);
        return role.map(|_| vec![missing]);
    };
    let is_empty = |part: Span| part.of(body).iter().all(|byte| b"[]{} \t\r\n".contains(byte));
    if parts.of(body) == b"null" || parts.of(body).starts_with(b"[") && !parts.of(body).contains(&b'{') {
        return Some(vec![(parts, r#"[{"text":"(empty)"}]"#)]);
    }
    objects(body, parts, [b"text", b"thoughtSignature", b"thought_signature"], |part, [text, signature, signature_]| {
        let blank = text.filter(|text| strings::is_blank(text.of(body)) && signature.or(signature_).is_none());
        let nothing = is_empty(part).then_some((part, r#"{"text":"(empty)"}"#));
        Some(blank.map(|text| (text, EMPTY)).or(nothing))
    })
}

/// Gives the first call of a content a signature by which its check is left out, if it has none
/// (<https://ai.google.dev/gemini-api/docs/thought-signatures>).
fn signed(body: &[u8], content: Span) -> Option<FormReplacement> {
    const SIGNATURE: &str = r#""thoughtSignature":"skip_thought_signature_validator","#;
    let [role, parts] = fields_of(body, content, [b"role", b"parts"])?;
    role.filter(|role| role.of(body) == br#""model""#)?;
    let keys: [&[u8]; 4] = [b"functionCall", b"function_call", b"thoughtSignature", b"thought_signature"];
    let calls = objects(body, parts?, keys, |part, [call, call_, signature, signature_]| {
        Some(call.or(call_).map(|_| (part, signature.or(signature_))))
    })?;
    let (first, _) = calls.first().filter(|(_, signature)| signature.is_none())?;
    Some((Span::empty(first.start + 1), SIGNATURE))
}

/// Takes the signatures out of a content. A call gets the one by which its check is left out.
fn resigned(body: &[u8], content: Span) -> Option<Vec<FormReplacement>> {
    const SIGNATURE: &str = r#""skip_thought_signature_validator""#;
    let keys: [&[u8]; 5] = [b"functionCall", b"function_call", b"thoughtSignature", b"thought_signature", b"text"];
    objects(body, field(body, content, b"parts")?, keys, |part, [call, call_, signature, signature_, text]| {
        let Some(value) = signature.or(signature_) else { return Some(None) };
        if call.or(call_).is_some() {
            return Some((value.of(body) != SIGNATURE.as_bytes()).then_some((value, SIGNATURE)));
        }
        if text.is_some_and(|text| strings::is_blank(text.of(body))) {
            return Some(Some((part, r#"{"text":"(empty)"}"#)));
        }
        let key: &[u8] = if signature.is_some() { br#""thoughtSignature""# } else { br#""thought_signature""# };
        Some(member(body, part, key, value).map(|member| (member, "")))
    })
}

// === answers ===

/// An answer of the model, one event of a streamed one, or an array of such events.
impl AnswerFormat for Gemini {
    fn reports(&self, json: &[u8]) -> bool {
        has_value(json, b"\"usageMetadata\"", b'{') || has_value(json, b"\"finishReason\"", b'"')
    }

    fn read_answer(&self, json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
        let text = raw::utf8(json).ok_or(InvalidAnswer)?.trim_start();
        if !text.starts_with('[') {
            return read_event(text.as_bytes(), answer);
        }
        let events = raw::elements(text).ok_or(InvalidAnswer)?;
        events.into_iter().try_for_each(|event| read_event(event.as_bytes(), answer))
    }
}

fn read_event(json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
    let event = Members::of(json)?;
    answer.is_error |= event.get("error").is_some();
    if let Some(feedback) = event.object("promptFeedback")? {
        answer.stop_reason = feedback.string("blockReason")?.or(answer.stop_reason.take());
    }
    let first = event.objects("candidates")?.into_iter().next();
    if let Some(candidate) = first {
        answer.stop_reason = candidate.string("finishReason")?.or(answer.stop_reason.take());
        let content = if answer.text.is_some() { candidate.object("content")? } else { None };
        for part in content.map_or(Ok(Vec::new()), |content| content.objects("parts"))? {
            answer.calls_tool |= part.get("functionCall").is_some();
            let said = part.string("text")?.filter(|_| part.get("thought") != Some("true"));
            if let Some(text) = &mut answer.text {
                text.extend(said);
            }
        }
    }
    if let Some(usage) = event.object("usageMetadata")? {
        let number = |key| usage.number(key).map(Option::unwrap_or_default);
        let input = number("promptTokenCount")?.saturating_add(number("toolUsePromptTokenCount")?);
        let output = number("candidatesTokenCount")?.saturating_add(number("thoughtsTokenCount")?);
        let cached = number("cachedContentTokenCount")?.min(input);
        answer.usage = Some(Usage { input, cached, written: 0, written_hour: 0, output });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
