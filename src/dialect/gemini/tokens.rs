//! The tokens of one content or one part, read where it lies.
//!
//! Google publishes no tokenizer for Gemini; how many tokens a text has is the gauge's matter. Its documentation says of images
//! that one of at most 384 × 384 pixels has 258 tokens, and a larger one 258 for each tile of 768 × 768
//! (<https://ai.google.dev/gemini-api/docs/tokens>). The rest are estimates: a signature counts by its length.

use super::Gemini;
use crate::dialect::chat_completions::tokens::{any, data, each, sum};
use crate::dialect::json::element_fields;
use crate::dialect::tokens::{TokenRules, usual};
use crate::raw::{Fields, compact};
use crate::tokens::image::Dimensions;
use crate::tokens::{Countable, Gauge};

/// What begins and ends a content, a call, and a result.
const AROUND: usize = 3;
/// A tile of an image, and its side.
const TILE: usize = 258;
const TILE_SIDE: usize = 768;
const USUAL_TILES: usize = 4;

impl TokenRules for Gemini {
    fn count(&self, gauge: &Gauge, what: Countable, json: &str) -> usize {
        match what {
            Countable::Element => element(gauge, json),
            Countable::Part | Countable::Call => one(gauge, json),
            Countable::Tools => gauge.text(&compact(json)),
            Countable::Instructions => {
                let parts = Fields::of(json).and_then(|fields| fields.get("parts"));
                each(gauge, parts.unwrap_or(json), one)
            }
            _ => usual(gauge, what, json),
        }
    }
}

/// A content, or a part of one.
fn element(gauge: &Gauge, json: &str) -> usize {
    let Some(fields) = element_fields(json) else { return gauge.text(json) };
    match fields.get("parts") {
        Some(parts) => AROUND + each(gauge, parts, one),
        None => part(gauge, &fields),
    }
}

fn one(gauge: &Gauge, json: &str) -> usize {
    Fields::of(json).map_or_else(|| any(gauge, json), |fields| part(gauge, &fields))
}

fn part(gauge: &Gauge, fields: &Fields<'_>) -> usize {
    let member = |(key, json): (&str, &str)| match key {
        "text" => any(gauge, json),
        "thought" => 0,
        "thoughtSignature" | "thought_signature" => gauge.sealed(json.len().saturating_sub(2)),
        "functionCall" | "function_call" | "functionResponse" | "function_response" => {
            let Some(function) = Fields::of(json) else { return any(gauge, json) };
            let read = function.iter().filter(|(key, _)| matches!(*key, "name" | "args" | "response" | "parts"));
            AROUND
                + sum(read, |(key, json)| match key {
                    "name" => any(gauge, json),
                    "parts" => each(gauge, json, one),
                    _ => gauge.text(&compact(json)),
                })
        }
        "inlineData" | "inline_data" => inline_data(json),
        "fileData" | "file_data" => TILE * USUAL_TILES,
        _ => gauge.text(&compact(json)),
    };
    sum(fields.iter(), member)
}

fn inline_data(json: &str) -> usize {
    let Some(fields) = Fields::of(json) else { return 0 };
    let base64 = fields.get("data").unwrap_or_default();
    let kind = fields.string("mimeType").or_else(|| fields.string("mime_type")).unwrap_or_default();
    if !kind.starts_with("image/") {
        return data(base64);
    }
    let tiles = |Dimensions { width, height }| match width.max(height) {
        ..=384 => 1,
        _ => width.div_ceil(TILE_SIDE) * height.div_ceil(TILE_SIDE),
    };
    TILE * Dimensions::in_string(base64).map_or(USUAL_TILES, tiles)
}
