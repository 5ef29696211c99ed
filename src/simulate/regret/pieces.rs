//! Pieces: the texts of a conversation that an edit may take out, with the units in each.

use std::sync::Arc;

use serde::Serialize;

use super::units::units;
use crate::conversation::{Block, BlockIndex, BlockKind, CallId, Conversation, Pairing, Unit, UnitIndex};
use crate::dialect::{Dialect, ParseError, strings};
use crate::raw::leaves;
use crate::span::Span;

/// A text of a conversation.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) place: Place,
    pub(super) text: Arc<str>,
    /// The hashes of its units, in order and each once.
    pub(super) units: Arc<[u64]>,
}

/// Where a text stands.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Place {
    /// Its kind.
    pub kind: PieceKind,
    /// The index of the message or item in its segment of the transcript.
    pub message: usize,
    /// The id of the call that it is of, or answers.
    pub call_id: Option<String>,
    /// The tool that is called.
    pub tool: Option<String>,
}

/// The kinds of texts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PieceKind {
    /// The answer of a tool.
    Result,
    /// The arguments of a call.
    Arguments,
    /// What anyone has said.
    Message,
}

// === impl Piece ===

impl Piece {
    pub(super) fn new(place: Place, text: &str) -> Self {
        let mut hashes: Vec<u64> = units(text).map(|unit| unit.hash()).collect();
        hashes.sort_unstable();
        hashes.dedup();
        Self { place, text: text.into(), units: hashes.into() }
    }

    pub(super) fn has(&self, unit: u64) -> bool {
        self.units.binary_search(&unit).is_ok()
    }
}

/// A conversation whose elements are taken apart into pieces.
pub(super) struct Anatomy<'a> {
    dialect: &'a dyn Dialect,
    body: &'a [u8],
    pub(super) conversation: Conversation<'a>,
    pairing: Pairing,
}

impl<'a> Anatomy<'a> {
    pub(super) fn new(dialect: &'a dyn Dialect, body: &'a [u8]) -> Result<Self, ParseError> {
        let conversation = dialect.parse(body)?;
        Ok(Self { dialect, body, pairing: Pairing::of(&conversation), conversation })
    }

    /// The JSON of an element.
    pub(super) fn element(&self, n: usize) -> &'a [u8] {
        self.conversation.elements.get(n).map(|element| element.span.of(self.body)).unwrap_or_default()
    }

    /// The pieces of an element.
    pub(super) fn pieces(&self, element: usize) -> Vec<Piece> {
        let Some(of) = self.conversation.elements.get(element) else { return Vec::new() };
        let units = UnitIndex::each(&of.units).zip(self.conversation.unit_range(&of.units));
        units.flat_map(|(n, unit)| self.pieces_of(n, unit)).collect()
    }

    fn pieces_of(&self, n_unit: UnitIndex, unit: &Unit) -> Vec<Piece> {
        let blocks = BlockIndex::each(&unit.blocks).zip(self.conversation.blocks_of(unit));
        let mut kind = PieceKind::Message;
        let (mut call_id, mut tool) = (None, None);
        let mut pieces = Vec::new();
        for (n, block) in blocks {
            match &block.kind {
                BlockKind::ToolCall { id, .. } => pieces.extend(self.arguments(unit, n, block, id)),
                BlockKind::ToolResult { call_id: id, .. } => {
                    kind = PieceKind::Result;
                    call_id = named(&id.text);
                    let call = self.pairing.answered_block(n_unit);
                    tool = call.and_then(|call| named(self.conversation.tool_name(call)));
                }
            }
        }
        let text = self.text(unit.content);
        if !text.is_empty() {
            pieces.insert(0, Piece::new(Place { kind, message: unit.element.get(), call_id, tool }, &text));
        }
        pieces
    }

    fn arguments(&self, unit: &Unit, n: BlockIndex, block: &Block<'_>, id: &CallId<'_>) -> Option<Piece> {
        let input = self.dialect.input(self.body, block.span)?;
        let json = strings::text_or_json(self.body, input.span)?;
        let place = Place {
            kind: PieceKind::Arguments,
            message: unit.element.get(),
            call_id: named(&id.text),
            tool: named(self.conversation.tool_name(n)),
        };
        let texts: Vec<String> = leaves(&json).into_iter().map(|leaf| leaf.text).collect();
        Some(Piece::new(place, &texts.join("\n")))
    }

    fn text(&self, content: Option<Span>) -> String {
        let spans = content.map(|content| self.dialect.texts(self.body, content)).unwrap_or_default();
        let texts: Vec<_> = spans.into_iter().filter_map(|text| strings::text(self.body, text)).collect();
        texts.join("\n")
    }

    /// The hashes of the units outside the array: of the tools and of the instructions.
    pub(super) fn units_outside(&self) -> Vec<u64> {
        let values = [self.conversation.tools, self.conversation.instructions, self.conversation.format];
        let json = values.into_iter().flatten().filter_map(|value| str::from_utf8(value.of(self.body)).ok());
        json.flat_map(leaves).flat_map(|leaf| units(&leaf.text).map(|unit| unit.hash()).collect::<Vec<_>>()).collect()
    }
}

fn named(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_owned())
}
