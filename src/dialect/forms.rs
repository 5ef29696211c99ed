//! Forms that some upstreams require of a conversation, and the values that each form replaces.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::json::{beginning, field, fields_of, member, objects, value_of_key};
use super::{BytesAt, strings};
use crate::span::{Span, Splice, apart};

/// A form that an upstream may require.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
#[derive(strum::Display, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Form {
    /// The arguments of a call are a JSON object, in the type that the dialect has. Other arguments become `{}` and are stored.
    Arguments,
    /// No text is empty or white space. Such a text becomes `(empty)`, and an empty list of calls `null`.
    Filled,
    /// A message of Chat Completions with calls has a text: `(empty)`, where it has none.
    TextsBesideCalls,
    /// Each message of the model in Chat Completions has `reasoning_content`: a space, where it has none.
    ReasoningContent,
    /// Messages of Chat Completions have no `reasoning_content`, `reasoning` and `reasoning_details`. They are removed and stored.
    NoReasoningFields,
    /// The first call of each message of Gemini's model has a signature: Google's placeholder, where it has none.
    SignedCalls,
    /// Signatures of Gemini's model are Google's placeholder at calls, and are removed elsewhere.
    NewSignatures,
    /// Instructions are at the beginning. Later ones get the role of the user.
    LeadingSystem,
    /// A message of the user follows the model. After results, the model says `OK.` first.
    Bridge,
    /// Texts of the user and of the model alternate: the model says `OK.` between two of the user, and the user says `Go on.`
    /// between two of the model.
    Alternating,
    /// Ids are unique, and those of calls have at most 40 letters, digits, `_` and `-`. Another call gets a new one, and so does
    /// its result; another item has none.
    UniqueIds,
    /// Ids of calls have nine letters and digits. Other ids are replaced, and so are those of the results.
    NineIds,
    /// Each result of Chat Completions has the name of the tool.
    NamedResults,
    /// Each function of Chat Completions has parameters: those of an empty object, where it has none.
    ToolParameters,
    /// At most four marks for the prompt cache, those of an hour first. The first ones of the conversation are removed, and
    /// after one of five minutes, the others have five minutes too.
    FourCacheMarks,
    /// A result that reports an error has texts alone. Images in it become a text and are stored.
    TextOnlyErrors,
    /// A call that the server answers itself has its result, and each such result its call. Others become a text and are
    /// stored.
    PairedServerTools,
    /// Items have no ids by which the server would look for the reasoning before them, where there is none.
    NoItemIds,
    /// Images, files and sound of the user are in messages that the model has not answered. Others become a text and are
    /// stored.
    NewImages,
    /// No image has more than 5 MiB of base64, or a side of more than 8,000 pixels. Others become a text and are stored, whether
    /// the model has read them or not.
    SmallImages,
    /// At most 100 images, and of more than twenty none with a side of more than 2,000 pixels. The oldest in results are cleared.
    FewImages,
}

/// A call that the server answers itself, or its result.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServerBlock<'a> {
    /// All of it.
    pub span: Span,
    /// The id of the call.
    pub id: Cow<'a, str>,
    /// Whether it is the result.
    pub is_result: bool,
}

/// The span of an element that a form replaces, which may be empty, and the JSON that takes its place.
pub(super) type FormReplacement = (Span, &'static str);

/// The text in place of an empty one.
pub(super) const EMPTY: &str = r#""(empty)""#;

impl Form {
    /// All of them, in the order in which they are taken.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The forms that the API at a host is documented to require of every conversation.
    ///
    /// Mistral: <https://mistralai.github.io/mistral-common/usage/tools/>, and the order of roles that mistral-common checks. Google's
    /// endpoint for OpenAI's API: pydantic/pydantic-ai#1879, openclaw/openclaw#47857.
    pub fn required_by(host: &str) -> &'static [Self] {
        match host {
            "api.mistral.ai" => &[Self::LeadingSystem, Self::Bridge, Self::NineIds],
            "generativelanguage.googleapis.com" => &[Self::NamedResults],
            _ => &[],
        }
    }

    /// Whether it asks for fewer or smaller images, so that a shorter request is accepted too.
    pub fn is_of_images(self) -> bool {
        matches!(self, Self::SmallImages | Self::FewImages)
    }

    /// Its name, as the settings have it.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The forms that an upstream gets that asks for this one: also those that every upstream accepts, as a strict one is likely
    /// to ask for them next, and, if one kind of upstream alone asks for this form, the other forms of that kind.
    pub fn with_likely(self) -> Vec<Self> {
        const VALID: [Form; 6] = [
            Form::Arguments,
            Form::Filled,
            Form::UniqueIds,
            Form::FourCacheMarks,
            Form::TextOnlyErrors,
            Form::PairedServerTools,
        ];
        let likely: &[Self] = match self {
            Self::Bridge | Self::NineIds => &[Self::Bridge, Self::NineIds, Self::LeadingSystem],
            Self::Alternating => &[Self::LeadingSystem],
            _ => &[],
        };
        Self::ALL
            .iter()
            .copied()
            .filter(|form| *form == self || likely.contains(form) || VALID.contains(form))
            .collect()
    }
}

/// The span of an object, and the JSON string of its text.
pub(super) fn quoted(body: &[u8], object: Span) -> Option<(Span, Bytes)> {
    let text = str::from_utf8(object.of(body)).ok().filter(|text| text.starts_with('{'))?;
    Some((object, serde_json::to_vec(text).ok()?.into()))
}

/// The name of a tool for a result that has none: where it goes, and what is written there.
pub fn result_name(body: &[u8], result: Span, name: &str) -> Option<(Span, Bytes)> {
    let [known] = fields_of(body, result, [b"name"])?;
    let name = strings::render(name);
    match known {
        Some(known) if matches!(known.of(body), b"null" | br#""""#) => Some((known, name)),
        Some(_) => None,
        None => Some((Span::empty(result.start + 1), [br#""name":"#, &*name, b","].concat().into())),
    }
}

/// Parameters for functions of Chat Completions that have none, and where they go.
pub fn missing_parameters(body: &[u8], tools: Span) -> Vec<BytesAt> {
    let bytes = Bytes::from_static(br#""parameters":{"type":"object","properties":{}},"#);
    let found = objects(body, tools, [b"function"], |_, [function]| {
        let Some(function) = beginning(body, function, b'{') else { return Some(None) };
        let [name, parameters] = fields_of(body, function, [b"name", b"parameters"])?;
        let at = (name.is_some() && parameters.is_none()).then_some(function.start + 1);
        Some(at.map(|at| BytesAt { at, bytes: bytes.clone() }))
    });
    found.unwrap_or_default()
}

/// The key of a mark for the prompt cache, as Anthropic's API and those that pass its marks on write it.
pub const CACHE_MARK: &[u8] = b"\"cache_control\"";

/// The most of them that a request may have, the automatic one included.
pub const MAX_CACHE_MARKS: usize = 4;

/// The marks for the prompt cache in an element, each a member with its comma.
pub fn cache_marks(body: &[u8], element: Span) -> Vec<Span> {
    let keys = memmem::find_iter(element.of(body), CACHE_MARK);
    let mark =
        |key: usize| member(body, element, CACHE_MARK, value_of_key(body, element.start + key + CACHE_MARK.len())?);
    keys.filter_map(mark).collect()
}

/// Whether a mark for the prompt cache asks for an hour.
pub fn marks_an_hour(body: &[u8]) -> bool {
    const TTL: &[u8] = b"\"ttl\"";
    let mut ttls = memmem::find_iter(body, TTL).filter_map(|at| value_of_key(body, at + TTL.len()));
    ttls.any(|ttl| ttl.of(body) == br#""1h""#)
}

/// Whether a result of Messages reports an error.
pub fn is_error_result(body: &[u8], result: Span) -> bool {
    field(body, result, b"is_error").is_some_and(|value| value.of(body) == b"true")
}

/// Replaces the role of instructions by that of the user.
pub(super) fn as_user(body: &[u8], element: Span) -> Option<FormReplacement> {
    let role = field(body, element, b"role")?;
    matches!(role.of(body), br#""system""# | br#""developer""#).then_some((role, r#""user""#))
}

/// Whether a value says nothing.
fn is_nothing(body: &[u8], value: Span) -> bool {
    matches!(value.of(body), b"null" | b"[]") || strings::is_blank(value.of(body))
}

/// Replaces the content of a message with calls, if it is missing or empty.
pub(super) fn text_beside_calls(body: &[u8], message: Span) -> Option<FormReplacement> {
    let [calls, content] = fields_of(body, message, [b"tool_calls", b"content"])?;
    calls.filter(|calls| !is_nothing(body, *calls))?;
    match content {
        None => Some((Span::empty(message.start + 1), r#""content":"(empty)","#)),
        Some(content) => is_nothing(body, content).then_some((content, EMPTY)),
    }
}

/// Gives the first call of a message Google's placeholder of a signature, if it has none. With `again`, it takes the place of all
/// signatures.
pub(super) fn signatures(body: &[u8], message: Span, again: bool) -> Option<Vec<FormReplacement>> {
    const MEMBER: &str = r#""extra_content":{"google":{"thought_signature":"skip_thought_signature_validator"}},"#;
    let (_, value) = MEMBER.trim_end_matches(',').split_once(':').unwrap_or_default();
    let [calls] = fields_of(body, message, [b"tool_calls"])?;
    let calls = objects(body, calls?, [b"extra_content"], |call, [extra]| Some([(call, extra)]))?;
    let is_signed = |extra: Span| memmem::find(extra.of(body), b"thought_signature").is_some();
    let mend = |(n, (call, extra)): (usize, &(Span, Option<Span>))| match *extra {
        Some(extra) if again && is_signed(extra) && extra.of(body) != value.as_bytes() => Some((extra, value)),
        Some(extra) if !again && n == 0 && !is_signed(extra) => Some((extra, value)),
        None if !again && n == 0 => Some((Span::empty(call.start + 1), MEMBER)),
        _ => None,
    };
    Some(calls.iter().enumerate().filter_map(mend).collect())
}

/// Replaces the reasoning of a message of the model, if it is missing or empty. DeepSeek's newest models refuse an empty one
/// (NousResearch/hermes-agent#18263).
pub(super) fn reasoning_content(body: &[u8], message: Span) -> Option<FormReplacement> {
    let [role, reasoning] = fields_of(body, message, [b"role", b"reasoning_content"])?;
    role.filter(|role| role.of(body) == br#""assistant""#)?;
    match reasoning {
        None => Some((Span::empty(message.start + 1), r#""reasoning_content":" ","#)),
        Some(empty) => matches!(empty.of(body), b"null" | br#""""#).then_some((empty, r#"" ""#)),
    }
}

/// The members of a message with reasoning in fields of one vendor, with their commas.
pub(super) fn reasoning_fields(body: &[u8], message: Span) -> Option<Vec<FormReplacement>> {
    const KEYS: [&[u8]; 3] = [b"reasoning_content", b"reasoning", b"reasoning_details"];
    let values = fields_of(body, message, KEYS)?;
    let quoted = |key: &[u8]| [b"\"", key, b"\""].concat();
    let members = KEYS.iter().zip(values).filter_map(|(key, value)| member(body, message, &quoted(key), value?));
    let mut members: Vec<Span> = members.collect();
    members.sort();
    let cuts = apart(body, members.into_iter().map(|span| Splice { span, with: Bytes::new() }));
    Some(cuts.into_iter().map(|cut| (cut.span, "")).collect())
}

/// Replaces empty texts of an element. `texts` finds the texts of a content; `calls` is the key of the list of calls.
pub(super) fn filled(
    body: &[u8],
    element: Span,
    calls: &[u8],
    texts: impl Fn(Span) -> Vec<Span>,
) -> Option<Vec<FormReplacement>> {
    let [role, content, calls] = fields_of(body, element, [b"role", b"content", calls])?;
    role?;
    let is_nothing = |value: Span| is_nothing(body, value);
    let no_calls = calls.filter(|calls| calls.of(body) == b"[]").map(|calls| (calls, "null"));
    let mut replacements: Vec<FormReplacement> = no_calls.into_iter().collect();
    let calls_nothing = calls.is_none_or(is_nothing);
    match content {
        Some(content) if is_nothing(content) => replacements.extend(calls_nothing.then_some((content, EMPTY))),
        Some(content) => {
            let empty = texts(content).into_iter().filter(|text| strings::is_blank(text.of(body)));
            replacements.extend(empty.map(|text| (text, EMPTY)));
        }
        None if calls_nothing => {
            replacements.push((Span::empty(element.start + 1), r#""content":"(empty)","#));
        }
        None => {}
    }
    replacements.sort_by_key(|(span, _)| span.start);
    Some(replacements)
}
