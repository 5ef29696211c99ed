//! The tokens of one message, read where it lies.
//!
//! The rule is that of OpenAI's cookbook: [`MESSAGE`] for a message, then the role, then the contents, one more with a
//! name. The cookbook leaves the rest open; it is counted like this:
//!
//! | what | tokens |
//! |---|---|
//! | a tool call | [`CALL`], its name, its arguments |
//! | an image | 85 with `"detail": "low"`, else by its size ([`Dimensions::in_tiles`]); 765 if that is not known |
//! | sound | one for each 100 ms, the time taken from the length of the data and the format |
//! | a file or a film | one for 64 bytes of its data, as a page of text takes some kilobytes of PDF |
//! | reasoning, refusals, and keys that no one knows | their text, or their JSON if they are none |
//! | ids, and marks for the cache | none: the model does not read them |
//!
//! For functions with plain parameters it is the rule of the cookbook, too. What that leaves open (parameters within parameters,
//! `anyOf`, tools that are not functions) is counted as its JSON without white space.
//!
//! What cannot be read as a message is counted as the text that it is. Data in base64 is never counted as text.

use memchr::memmem;

use super::ChatCompletions;
use crate::dialect::json::element_fields;
use crate::dialect::tokens::{TokenRules, usual};
use crate::raw::{Fields, compact, elements, string};
use crate::tokens::image::{Dimensions, LOW_DETAIL, USUAL_IN_TILES};
use crate::tokens::tiktoken::Encoding;
use crate::tokens::{Countable, Gauge};

/// What begins and ends a message.
const MESSAGE: usize = 3;
/// What parts a call from its neighbours.
const CALL: usize = 3;
/// 100 ms of 24 kHz and 16 bits.
const BYTES_PER_TOKEN_OF_WAVE: usize = 4800;
/// 100 ms at 128 kbit/s.
const BYTES_PER_TOKEN_OF_SOUND: usize = 1600;
const BYTES_PER_TOKEN_OF_FILE: usize = 64;

impl TokenRules for ChatCompletions {
    fn count(&self, gauge: &Gauge, what: Countable, json: &str) -> usize {
        match what {
            Countable::Element => {
                MESSAGE + element_fields(json).map_or_else(|| gauge.text(json), |fields| message(gauge, &fields))
            }
            Countable::Part => part(gauge, json),
            Countable::Call => count_call(gauge, json),
            Countable::Tools => count_tools(gauge, json, count_tool),
            _ => usual(gauge, what, json),
        }
    }
}

fn message(gauge: &Gauge, fields: &Fields<'_>) -> usize {
    sum(fields.iter(), |(key, value)| field(gauge, key, value))
}

fn field(gauge: &Gauge, key: &str, value: &str) -> usize {
    match key {
        "tool_call_id" | "id" | "cache_control" => 0,
        "content" | "images" => each_part(gauge, value),
        "tool_calls" => each(gauge, value, count_call),
        "function_call" => count_call(gauge, value),
        "name" => match any(gauge, value) {
            0 => 0,
            n => n + 1,
        },
        _ => any(gauge, value),
    }
}

/// All parts of a content.
pub(in crate::dialect) fn each_part(gauge: &Gauge, json: &str) -> usize {
    each(gauge, json, part)
}

/// All elements of an array; the value itself if it is none.
pub(in crate::dialect) fn each(gauge: &Gauge, json: &str, count: impl Fn(&Gauge, &str) -> usize) -> usize {
    let elements = json.starts_with('[').then(|| elements(json)).flatten();
    elements.map_or_else(|| any(gauge, json), |elements| sum(elements, |element| count(gauge, element)))
}

/// One part of a content that is an array.
pub(in crate::dialect) fn part(gauge: &Gauge, json: &str) -> usize {
    let Some(fields) = Fields::of(json) else { return any(gauge, json) };
    let text = |key| fields.get(key).filter(|text| text.starts_with('"')).map(|text| any(gauge, text));
    let kind = fields.get("type").filter(|kind| *kind != "null").map(|kind| string(kind).unwrap_or_default());
    let counted = match kind.as_deref() {
        kind if is_text_part(kind) => text("text"),
        Some("refusal") => text("refusal"),
        Some("image_url" | "image" | "input_image") => Some(image(&fields)),
        Some("input_audio" | "audio") => fields.object("input_audio").as_ref().and_then(sound),
        Some("file" | "input_file" | "document" | "video_url" | "video" | "input_video") => file(json),
        _ => None,
    };
    counted.unwrap_or_else(|| any(gauge, json))
}

/// Whether a part of a content, of a type, is a text: to be counted as one here, and one to edits. A part without a type
/// is, if it has a text.
pub(super) fn is_text_part(kind: Option<&str>) -> bool {
    matches!(kind, None | Some("text" | "input_text" | "output_text"))
}

/// The tokens of an image: `image_url` is its URL, or an object with that.
pub(in crate::dialect) fn image(part: &Fields<'_>) -> usize {
    let within = part.object("image_url");
    let detail = within.as_ref().and_then(|image| image.string("detail")).or_else(|| part.string("detail"));
    if detail.as_deref() == Some("low") {
        return LOW_DETAIL;
    }
    let url = within.as_ref().and_then(|image| image.get("url")).or_else(|| part.get("image_url"));
    url.and_then(Dimensions::in_string).map_or(USUAL_IN_TILES, Dimensions::in_tiles)
}

fn sound(sound: &Fields<'_>) -> Option<usize> {
    let bytes = sound.get("data")?.len() / 4 * 3;
    let wave = matches!(sound.string("format").as_deref(), Some("wav" | "pcm16"));
    Some(bytes.div_ceil(if wave { BYTES_PER_TOKEN_OF_WAVE } else { BYTES_PER_TOKEN_OF_SOUND }))
}

/// None if the file is not in the message, but only named there.
fn file(json: &str) -> Option<usize> {
    memmem::find(json.as_bytes(), b"base64").map(|_| data(json))
}

/// The tokens of a file in base64.
pub(in crate::dialect) fn data(base64: &str) -> usize {
    (base64.len() / 4 * 3).div_ceil(BYTES_PER_TOKEN_OF_FILE)
}

/// A call of a function or of a custom tool, also in the form that stands by itself as `function_call`.
fn count_call(gauge: &Gauge, json: &str) -> usize {
    let Some(fields) = Fields::of(json) else { return any(gauge, json) };
    let called = fields.object("function").or_else(|| fields.object("custom")).unwrap_or(fields);
    if called.get("name").is_none() {
        return any(gauge, json);
    }
    CALL + sum(["name", "arguments", "input"], |key| called.get(key).map_or(0, |value| any(gauge, value)))
}

/// The text of a string, the JSON of anything else, and nothing for what says nothing.
pub(in crate::dialect) fn any(gauge: &Gauge, json: &str) -> usize {
    match json {
        "null" | "[]" | "{}" => 0,
        _ => gauge.text(string(json).as_deref().unwrap_or(json)),
    }
}

/// The sum of what is counted of each.
pub(in crate::dialect) fn sum<T>(all: impl IntoIterator<Item = T>, count: impl Fn(T) -> usize) -> usize {
    all.into_iter().map(count).sum()
}

// === tools ===

/// Once, if there is a tool at all.
pub(in crate::dialect) const TOOLS: usize = 12;
/// What begins a function, and what did with GPT-4 and before.
const FUNCTION: usize = 7;
const FUNCTION_BEFORE_O200K: usize = 10;
/// What begins the parameters of a function.
const PARAMETERS: usize = 3;
const PARAMETER: usize = 3;
/// A parameter that is a choice begins with less.
const CHOICES_LESS: usize = 3;
const CHOICE: usize = 3;

/// The tokens of an array of tools, each of which `count` counts.
pub(in crate::dialect) fn count_tools(gauge: &Gauge, json: &str, count: fn(&Gauge, &str) -> usize) -> usize {
    match elements(json) {
        None => any(gauge, json),
        Some(tools) if tools.is_empty() => 0,
        Some(tools) => TOOLS + sum(tools, |tool| count(gauge, tool)),
    }
}

fn count_tool(gauge: &Gauge, json: &str) -> usize {
    let function = Fields::of(json).and_then(|tool| tool.object("function"));
    function.and_then(|function| count_function(gauge, &function)).unwrap_or_else(|| gauge.text(&compact(json)))
}

/// A function; none if it has no name.
pub(in crate::dialect) fn count_function(gauge: &Gauge, function: &Fields<'_>) -> Option<usize> {
    let name = function.string("name")?;
    let begins = match gauge.encoding {
        Encoding::O200kBase | Encoding::O200kHarmony => FUNCTION,
        Encoding::Cl100kBase => FUNCTION_BEFORE_O200K,
    };
    let line = format!("{name}:{}", description(function));
    let parameters = function.object("parameters").map_or(0, |schema| count_parameters(gauge, &schema));
    Some(begins + gauge.text(&line) + parameters)
}

fn count_parameters(gauge: &Gauge, schema: &Fields<'_>) -> usize {
    let parameters = schema.object("properties");
    let of_each = |parameters: &Fields<'_>| match parameters.iter().count() {
        0 => 0,
        _ => PARAMETERS + parameters.iter().map(|(name, json)| count_parameter(gauge, name, json)).sum::<usize>(),
    };
    let open =
        |key: &str| !matches!(key, "type" | "properties" | "required" | "additionalProperties" | "title" | "$schema");
    parameters.as_ref().map_or(0, of_each) + count_rest(gauge, schema, open)
}

fn count_parameter(gauge: &Gauge, name: &str, json: &str) -> usize {
    let Some(schema) = Fields::of(json) else { return PARAMETER + gauge.text(&format!("{name}:{}", compact(json))) };
    let kind =
        schema.get("type").map(|kind| string(kind).map_or_else(|| compact(kind), Into::into)).unwrap_or_default();
    let line = format!("{name}:{kind}:{}", description(&schema));
    let open = |key: &str| !matches!(key, "type" | "description" | "title" | "enum");
    let choices = schema.get("enum").and_then(elements);
    let begins = if choices.is_some() { PARAMETER - CHOICES_LESS } else { PARAMETER };
    let choices: usize = choices.unwrap_or_default().into_iter().map(|choice| CHOICE + any(gauge, choice)).sum();
    begins + gauge.text(&line) + choices + count_rest(gauge, &schema, open)
}

/// Returns what the cookbook leaves open, as JSON.
fn count_rest(gauge: &Gauge, schema: &Fields<'_>, open: fn(&str) -> bool) -> usize {
    let rest = schema.iter().filter(|(key, _)| open(key));
    rest.map(|(key, value)| gauge.text(&format!("\"{key}\":{}", compact(value)))).sum()
}

/// The description, without the full stop at its end.
fn description(of: &Fields<'_>) -> String {
    let text = of.string("description").unwrap_or_default();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests;
