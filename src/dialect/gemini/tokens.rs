//! The tokens of one content or one part, read where it lies.
//!
//! Google publishes no tokenizer for Gemini; how many tokens a text has is the gauge's matter. Its documentation says of images
//! that one of at most 384 × 384 pixels has 258 tokens, and a larger one 258 for each tile of 768 × 768
//! (<https://ai.google.dev/gemini-api/docs/tokens>). The rest are estimates: a signature counts by its length.

use super::Gemini;
use crate::dialect::chat_completions::tokens::any;
use crate::dialect::json::element_fields;
use crate::dialect::tokens::{TokenRules, usual};
use crate::raw::{Fields, compact, elements};
use crate::tokens::image::Dimensions;
use crate::tokens::{Countable, Gauge};

/// What begins and ends a content, a call, and a result.
const AROUND: usize = 3;
/// A tile of an image, and its side.
const TILE: usize = 258;
const TILE_SIDE: usize = 768;
const USUAL_TILES: usize = 4;
const BYTES_PER_TOKEN_OF_FILE: usize = 64;

impl TokenRules for Gemini {
    fn count(&self, gauge: &Gauge, what: Countable, json: &str) -> usize {
        match what {
            Countable::Element => element(gauge, json),
            Countable::Part | Countable::Call => one(gauge, json),
            Countable::Tools => gauge.text(&compact(json)),
            Countable::Instructions => {
                let parts = Fields::of(json).and_then(|fields| fields.get("parts"));
                parts.map_or_else(|| any(gauge, json), |parts| all(gauge, parts))
            }
            _ => usual(gauge, what, json),
        }
    }
}

/// A content, or a part of one.
fn element(gauge: &Gauge, json: &str) -> usize {
    let Some(fields) = element_fields(json) else { return gauge.text(json) };
    match fields.get("parts") {
        Some(parts) => AROUND + all(gauge, parts),
        None => part(gauge, &fields),
    }
}

fn all(gauge: &Gauge, parts: &str) -> usize {
    elements(parts).map_or_else(|| any(gauge, parts), |parts| parts.into_iter().map(|json| one(gauge, json)).sum())
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
            let tokens = read.map(|(key, json)| match key {
                "name" => any(gauge, json),
                "parts" => all(gauge, json),
                _ => gauge.text(&compact(json)),
            });
            AROUND + tokens.sum::<usize>()
        }
        "inlineData" | "inline_data" => data(json),
        "fileData" | "file_data" => TILE * USUAL_TILES,
        _ => gauge.text(&compact(json)),
    };
    fields.iter().map(member).sum()
}

fn data(json: &str) -> usize {
    let Some(fields) = Fields::of(json) else { return 0 };
    let data = fields.get("data").unwrap_or_default();
    let kind = fields.string("mimeType").or_else(|| fields.string("mime_type")).unwrap_or_default();
    if !kind.starts_with("image/") {
        return (data.len() / 4 * 3).div_ceil(BYTES_PER_TOKEN_OF_FILE);
    }
    let tiles = |Dimensions { width, height }| match width.max(height) {
        ..=384 => 1,
        _ => width.div_ceil(TILE_SIDE) * height.div_ceil(TILE_SIDE),
    };
    TILE * Dimensions::in_string(data).map_or(USUAL_TILES, tiles)
}
