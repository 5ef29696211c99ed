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
//! What cannot be read as a message is counted as the text that it is. Data in base64 is never counted as text.

use memchr::memmem;

use super::ChatCompletions;
use crate::dialect::json::element_fields;
use crate::dialect::tokens::{TokenRules, usual};
use crate::raw::{Fields, elements, string};
use crate::tokens::image::{Dimensions, LOW_DETAIL, USUAL_IN_TILES};
use crate::tokens::{Countable, Gauge};

pub(in crate::dialect) mod tools;

pub(in crate::dialect) use tools::{count_function, count_tools};

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
            Countable::Tools => count_tools(gauge, json, tools::count_tool),
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
fn each(gauge: &Gauge, json: &str, count: fn(&Gauge, &str) -> usize) -> usize {
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
    memmem::find(json.as_bytes(), b"base64").map(|_| (json.len() / 4 * 3).div_ceil(BYTES_PER_TOKEN_OF_FILE))
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

#[cfg(test)]
mod tests;
