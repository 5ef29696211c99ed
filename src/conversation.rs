//! The neutral, read-only view of one request's conversation. It borrows from the body and knows no field names.
//!
//! The array of a request has *elements*. What one speaker says in one JSON value is a *unit*: an element, or an entry of
//! the array inside an element, such as a tool result in a user message. A *turn* is a run of units of one speaker; the
//! dialect says which units continue one. *Blocks* are what edits address: tool calls and tool results.

use std::{borrow::Cow, cell::OnceCell, ops::Range};

use crate::{payload::Fingerprint, span::Span};

mod fold;
pub(crate) mod index;
mod pairing;
mod turns;

pub use fold::Fold;
pub use index::{BlockIndex, CallIndex, ElementIndex, UnitIndex};
pub use pairing::{PairedCall, PairedResult, Pairing};
pub use turns::{TurnUnit, unread_from};

/// More elements, or more blocks, than this are not looked at: what the view takes in memory stays a small multiple of
/// what honest bodies need, also when a body is 64 MiB of `{},{},…`.
pub const MAX_ELEMENTS: usize = 250_000;

/// How many elements are allocated for when the first one is added.
const USUAL_ELEMENTS: usize = 16;

/// One request, read where it lies.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Conversation<'a> {
    /// The model that is asked, if the request names one.
    pub model: Option<Cow<'a, str>>,
    /// The JSON value of the tools that it offers, unless that is absent or null.
    pub tools: Option<Span>,
    /// The same of the tools that elements offer.
    pub more_tools: Vec<Span>,
    /// The JSON value of the form that it asks the answer to have, unless that is absent or null.
    pub format: Option<Span>,
    /// The JSON value of the instructions that stand outside the array, unless that is absent or null.
    pub instructions: Option<Span>,
    /// The elements of the array, in order.
    pub elements: Vec<Element>,
    /// The units of all elements, in order.
    pub units: Vec<Unit>,
    /// The tool calls and tool results of all units, in order.
    pub blocks: Vec<Block<'a>>,
    /// The properties of the conversation as a whole.
    pub traits: Traits,
}

/// The properties of a conversation as a whole.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traits {
    /// How many units at the beginning a compaction replaces, that itself included: the model does not read what is
    /// before it, and nothing of all this is edited.
    pub n_compacted: usize,
    /// Calls and results without an id are paired by position.
    pub pairs_by_position: bool,
    /// A call may have several results.
    pub repeats_results: bool,
    /// All results of a batch have to be in one element.
    pub gathers_results: bool,
    /// The server has more of the conversation than the request shows.
    pub history_elsewhere: bool,
    /// The server keeps this request under a name by which a later one continues it.
    pub is_kept: bool,
    /// No call of the model can be answered by abridge: the answer comes in frames, in an array, or as several choices.
    pub answers_no_calls: bool,
    /// The server is asked to drop reasoning that does not fit what precedes it.
    pub drops_reasoning: bool,
    /// The model thinks within a budget, and the server refuses calls of the running turn without their reasoning.
    pub thinks_by_budget: bool,
    /// The server summarises the conversation itself.
    pub compacts_itself: bool,
    /// The server clears tool results itself.
    pub clears_itself: bool,
    /// The most tokens that the answer may have, where the request says so.
    pub max_answer_tokens: Option<usize>,
}

/// One element of the array.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Element {
    /// Its JSON value, without the white space and the comma around it.
    pub span: Span,
    /// Where its units are in [`Conversation::units`].
    pub units: Range<UnitIndex>,
}

/// The words of one speaker in one JSON value.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Unit {
    /// The index of the element that it is, or is in.
    pub element: ElementIndex,
    /// Its JSON value: that of the element, or an entry of the array inside that.
    pub span: Span,
    /// Who speaks.
    pub role: Role,
    /// The number of its turn; numbers go up, and units of one turn stand together.
    pub turn: usize,
    /// The JSON value of its content, unless that is absent or null.
    pub content: Option<Span>,
    /// Where its blocks are in [`Conversation::blocks`].
    pub blocks: Range<BlockIndex>,
    /// What else is known of it.
    pub flags: Flags,
    /// Its hash, once it was asked for: see [`Unit::fingerprint`].
    pub fingerprint: OnceCell<Fingerprint>,
    /// That of its content: see [`Unit::content_fingerprint`].
    pub content_fingerprint: OnceCell<Fingerprint>,
}

/// The properties of a unit besides its text.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags {
    /// It says something beside its calls, so that it stays when they leave.
    pub speaks: bool,
    /// It is reasoning, or is bound to some: it is removed with its whole turn, or not at all.
    pub bound: bool,
    /// It has reasoning of the model, which can be left out of it.
    pub thinks: bool,
    /// No summary replaces it, and it is not removed with its calls.
    pub stays: bool,
    /// No result is moved across it.
    pub barrier: bool,
    /// It makes tools known: it is sent beside a summary, and is not removed with its calls.
    pub loads: bool,
    /// A program calls it, or gets it as a result: the model reads neither.
    pub for_program: bool,
    /// A program that the model has written calls in it, so its calls are not removed.
    pub runs_program: bool,
    /// Such a program runs: no summary ends directly before it.
    pub in_program: bool,
    /// It must follow something that the user or a tool says, and precede the model if it is not the last.
    pub follows_user: bool,
}

/// Who speaks in a unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, by their newer name.
    Developer,
    /// The person, or the program in their place.
    User,
    /// The model.
    Assistant,
    /// A tool: the unit is a tool result.
    Tool,
    /// Anything else. Such a unit stays where it is.
    #[default]
    Other,
}

/// The smallest thing that an edit may touch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Block<'a> {
    /// The index of the unit that it is, or is in.
    pub unit: UnitIndex,
    /// Its JSON value: an entry of the array inside an element, or the unit.
    pub span: Span,
    /// Its kind.
    pub kind: BlockKind<'a>,
}

/// The kinds of blocks that edits ask for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BlockKind<'a> {
    /// The model calls a tool.
    ToolCall {
        /// The id that the result is to name.
        id: CallId<'a>,
        /// The tool.
        name: Option<Cow<'a, str>>,
        /// Whether a text can answer it that the client has not sent.
        answerable: bool,
    },
    /// The answer of a tool.
    ToolResult {
        /// The id of the call it answers.
        call_id: CallId<'a>,
        /// Whether it may leave if it answers no call.
        may_leave: bool,
    },
}

/// The id of a call as a call or a result gives it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CallId<'a> {
    /// The kind of call; a result answers calls of one kind. Empty in dialects that have one kind only.
    pub kind: &'static str,
    /// Its JSON string; none where it is absent or null.
    pub raw: Option<Span>,
    /// The decoded text; empty where there is none.
    pub text: Cow<'a, str>,
}

impl<'a> Conversation<'a> {
    /// Adds an element that is one unit. Its blocks are those that were added since the unit before it.
    pub fn push_element(&mut self, unit: Unit) {
        let first = self.next_unit();
        if self.elements.is_empty() {
            self.elements.reserve(USUAL_ELEMENTS);
            self.units.reserve(USUAL_ELEMENTS);
        }
        self.elements.push(Element { span: unit.span, units: first..first.next() });
        self.units.push(unit);
    }

    /// The next unit, of which nothing is known but its place: it is, or is in, the next element, has the blocks that were added
    /// since the unit before it, and is in the turn of that if it `continues` it.
    pub fn following(&self, continues: bool) -> Unit {
        let turn = self.units.last().map_or(0, |last| last.turn + usize::from(!continues));
        let blocks =
            self.units.last().map_or(BlockIndex::default(), |last| last.blocks.end)..BlockIndex::new(self.blocks.len());
        Unit { element: self.next_element(), turn, blocks, ..Unit::default() }
    }

    /// The elements with which the user begins, up to the first answer.
    pub fn opening(&self) -> impl Iterator<Item = &Element> {
        let is_user = |element: &&Element| self.unit_range(&element.units).iter().any(|unit| unit.role == Role::User);
        self.elements.iter().skip_while(move |element| !is_user(element)).take_while(is_user)
    }

    /// The blocks of one unit.
    pub fn blocks_of(&self, unit: &Unit) -> &[Block<'a>] {
        self.blocks.get(BlockIndex::numbers(&unit.blocks)).unwrap_or_default()
    }

    /// An element.
    pub fn element(&self, element: ElementIndex) -> Option<&Element> {
        self.elements.get(element.get())
    }

    /// The index that the next element has.
    pub fn next_element(&self) -> ElementIndex {
        ElementIndex::new(self.elements.len())
    }

    /// A unit.
    pub fn unit(&self, unit: UnitIndex) -> Option<&Unit> {
        self.units.get(unit.get())
    }

    /// Units that stand together.
    pub fn unit_range(&self, units: &Range<UnitIndex>) -> &[Unit] {
        self.units.get(UnitIndex::numbers(units)).unwrap_or_default()
    }

    /// The units, each with its index.
    pub fn indexed_units(&self) -> impl Iterator<Item = (UnitIndex, &Unit)> {
        self.units.iter().enumerate().map(|(index, unit)| (UnitIndex::new(index), unit))
    }

    /// The index that the next unit has.
    pub fn next_unit(&self) -> UnitIndex {
        UnitIndex::new(self.units.len())
    }

    /// A block.
    pub fn block(&self, block: BlockIndex) -> Option<&Block<'a>> {
        self.blocks.get(block.get())
    }

    /// Says that no result may leave: its call may be out of sight.
    pub(crate) fn keep_results(&mut self) {
        for block in &mut self.blocks {
            if let BlockKind::ToolResult { may_leave, .. } = &mut block.kind {
                *may_leave = false;
            }
        }
    }

    /// The name of the tool that block `call` calls; empty if it names none, or is not a call.
    pub fn tool_name(&self, call: BlockIndex) -> &str {
        match self.block(call).map(|block| &block.kind) {
            Some(BlockKind::ToolCall { name, .. }) => name.as_deref().unwrap_or_default(),
            _ => "",
        }
    }

    /// The unit of the model that calls in block `call`.
    pub fn caller(&self, call: BlockIndex) -> Option<UnitIndex> {
        self.block(call).map(|block| block.unit)
    }

    /// The blocks of units that stand together.
    pub fn block_range(
        &self,
        units: Range<UnitIndex>,
    ) -> impl ExactSizeIterator<Item = BlockIndex> + DoubleEndedIterator + use<> {
        let units = self.unit_range(&units);
        let ends = units.first().zip(units.last());
        BlockIndex::each(&ends.map_or_else(Range::default, |(first, last)| first.blocks.start..last.blocks.end))
    }

    /// The elements that units are in.
    pub fn elements_of(&self, units: Range<UnitIndex>) -> Range<ElementIndex> {
        let units = self.unit_range(&units);
        let ends = units.first().zip(units.last());
        ends.map_or_else(Range::default, |(first, last)| first.element..last.element.next())
    }

    /// The first unit of an element; one after the last of all for an element after the last.
    pub fn first_unit(&self, element: ElementIndex) -> UnitIndex {
        self.element(element).map_or(self.next_unit(), |element| element.units.start)
    }

    /// Whether a unit is all of its element, and not an entry in it.
    pub fn is_element(&self, unit: &Unit) -> bool {
        self.element(unit.element).is_some_and(|element| element.span == unit.span)
    }

    /// The identity of an element, as it is written.
    pub fn element_fingerprint(&self, element: &Element, body: &[u8]) -> Fingerprint {
        match self.unit_range(&element.units) {
            [unit] if unit.span == element.span => unit.fingerprint(body),
            _ => Fingerprint::of(element.span.of(body)),
        }
    }

    /// The bytes from the first to the last of the elements that some units are in.
    pub fn span_of(&self, units: Range<UnitIndex>) -> Span {
        let elements = self.elements.get(ElementIndex::numbers(&self.elements_of(units))).unwrap_or_default();
        let ends = elements.first().zip(elements.last());
        ends.map_or_else(Span::default, |(first, last)| Span { start: first.span.start, end: last.span.end })
    }

    /// The first unit that edits may touch: those before it are instructions, or are replaced by a compaction.
    pub fn first_editable(&self) -> UnitIndex {
        let rest = self.units.get(self.traits.n_compacted..).unwrap_or_default();
        let instructions = rest.iter().take_while(|unit| matches!(unit.role, Role::System | Role::Developer)).count();
        UnitIndex::new(self.traits.n_compacted + instructions)
    }
}

impl Role {
    /// The role that wire formats call `name`.
    pub fn named(name: &str) -> Self {
        name.parse().unwrap_or_default()
    }
}

/// From this length on, in bytes, the content of a unit is hashed once, for itself and for the unit. For shorter ones, to hash
/// it twice is quicker than to hash what is around it.
const HASH_ONCE_FROM: usize = 512;

impl Unit {
    /// The hash of all of it, as it is written in the body that it was read from.
    pub fn fingerprint(&self, body: &[u8]) -> Fingerprint {
        *self.fingerprint.get_or_init(|| {
            let (Span { start, end }, whole) = (self.content_or_end(), self.span);
            if whole.len() < HASH_ONCE_FROM {
                return Fingerprint::of(whole.of(body)).mixed(start - whole.start, end - whole.start);
            }
            let of = |start, end| Fingerprint::of(Span { start, end }.of(body));
            of(whole.start, start).then(self.content_fingerprint(body)).then(of(end, whole.end))
        })
    }

    /// The hash of its content; that of nothing where it has none.
    pub fn content_fingerprint(&self, body: &[u8]) -> Fingerprint {
        *self.content_fingerprint.get_or_init(|| Fingerprint::of(self.content_or_end().of(body)))
    }

    /// Takes over the hash of its content, so that it is not computed again.
    pub fn set_content_fingerprint(&self, content: Fingerprint) {
        self.content_fingerprint.get_or_init(|| content);
    }

    fn content_or_end(&self) -> Span {
        self.content.unwrap_or(Span::empty(self.span.end))
    }
}

#[cfg(test)]
mod tests;
