//! The neutral, read-only view of one request's conversation. It borrows from the body and knows no field names.
//!
//! The array of a request has *elements*. What one speaker says in one JSON value is a *unit*: an element, or an entry of
//! the array inside an element, such as a tool result in a user message. A *turn* is a run of units of one speaker; the
//! dialect says which units continue one. *Blocks* are what edits address: tool calls and tool results.

use std::{borrow::Cow, cell::OnceCell, ops::Range};

use crate::{payload::Fingerprint, span::Span};

mod fold;
mod pairing;

pub use fold::Fold;
pub use pairing::{Answer, Call, Pairing};

/// More elements, or more blocks, than this are not looked at: what the view takes in memory stays a small multiple of
/// what honest bodies need, also when a body is 64 MiB of `{},{},…`.
pub const MAX_ELEMENTS: usize = 250_000;

/// One request, read where it lies.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Conversation<'a> {
    /// The model that is asked, if the request names one.
    pub model: Option<Cow<'a, str>>,
    /// The JSON value of the tools that it offers, unless that is absent or null.
    pub tools: Option<Span>,
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
    /// What is true of the conversation as a whole.
    pub traits: Traits,
}

/// What is true of a conversation as a whole.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traits {
    /// How many units at the beginning a compaction stands for, that itself included: the model does not read what is
    /// before it, and nothing of all this is edited.
    pub n_compacted: usize,
    /// Calls and results without an id are paired by position.
    pub pairs_by_position: bool,
    /// The server has more of the conversation than the request shows.
    pub history_elsewhere: bool,
    /// The server summarises the conversation itself.
    pub compacts_itself: bool,
    /// The server clears tool results itself.
    pub clears_itself: bool,
}

/// One element of the array.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Element {
    /// Its JSON value, without the white space and the comma around it.
    pub span: Span,
    /// Where its units are in [`Conversation::units`].
    pub units: Range<usize>,
}

/// What one speaker says in one JSON value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unit {
    /// The index of the element that it is, or is in.
    pub element: usize,
    /// Its JSON value: that of the element, or an entry of the array inside that.
    pub span: Span,
    /// Who speaks.
    pub role: Role,
    /// The number of its turn; numbers go up, and units of one turn stand together.
    pub turn: usize,
    /// The JSON value of its content, unless that is absent or null.
    pub content: Option<Span>,
    /// Where its blocks are in [`Conversation::blocks`].
    pub blocks: Range<usize>,
    /// What else is known of it.
    pub flags: Flags,
    /// What it is known by, once somebody has asked: see [`Unit::prints`].
    pub known: OnceCell<Prints>,
}

/// What is known of a unit beside what it says.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags {
    /// It says something beside its calls, so that it stays when they leave.
    pub speaks: bool,
    /// It is reasoning, or is bound to some: it leaves with its whole turn, or not at all.
    pub bound: bool,
    /// No summary stands for it, and it does not leave with its calls.
    pub stays: bool,
    /// No result is moved across it.
    pub parts: bool,
}

/// What a unit is known by.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Prints {
    /// All of it, as it is written.
    pub unit: Fingerprint,
    /// Its content; that of nothing where it has none.
    pub content: Fingerprint,
}

/// Who speaks in a unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
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
    pub unit: usize,
    /// Its JSON value: an entry of the array inside an element, or the unit.
    pub span: Span,
    /// What it is.
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
        let first = self.units.len();
        self.elements.push(Element { span: unit.span, units: first..first + 1 });
        self.units.push(unit);
    }

    /// The number of the turn that the next unit is in: that of the unit before it, if it `continues` that one's.
    pub fn next_turn(&self, continues: bool) -> usize {
        self.units.last().map_or(0, |last| last.turn + usize::from(!continues))
    }

    /// The blocks of one unit.
    pub fn blocks_of(&self, unit: &Unit) -> &[Block<'a>] {
        self.blocks.get(unit.blocks.clone()).unwrap_or_default()
    }

    /// The name of the tool that block `call` calls; empty if it names none, or is no call.
    pub fn tool_name(&self, call: usize) -> &str {
        match self.blocks.get(call).map(|block| &block.kind) {
            Some(BlockKind::ToolCall { name, .. }) => name.as_deref().unwrap_or_default(),
            _ => "",
        }
    }

    /// The unit of the model that calls in block `call`.
    pub fn caller(&self, call: usize) -> Option<usize> {
        self.blocks.get(call).map(|block| block.unit)
    }

    /// The units of the turn that a unit is in.
    pub fn turn_of(&self, unit: usize) -> Range<usize> {
        let Some(turn) = self.units.get(unit).map(|unit| unit.turn) else { return 0..0 };
        let end = |turn| self.units.partition_point(|unit| unit.turn < turn);
        end(turn)..end(turn + 1)
    }

    /// The blocks of units that stand together.
    pub fn block_range(&self, units: Range<usize>) -> Range<usize> {
        match self.units.get(units) {
            Some([first, .., last]) => first.blocks.start..last.blocks.end,
            Some([only]) => only.blocks.clone(),
            _ => 0..0,
        }
    }

    /// The turns, from the last to the first.
    fn turns_backwards(&self) -> impl Iterator<Item = Range<usize>> {
        let mut end = self.units.len();
        std::iter::from_fn(move || {
            let turn = self.turn_of(end.checked_sub(1)?);
            end = turn.start;
            Some(turn)
        })
    }

    /// The last turn in which the model has answered. What stands behind it has not been read by the model yet. Turns of
    /// the model without calls at the end of a request are a prefill, which the model is to continue, and no answer.
    pub fn last_answer(&self) -> Option<Range<usize>> {
        let mut turns = self.turns_backwards().skip_while(|turn| self.is_plain_answer(turn));
        turns.find(|turn| self.units.get(turn.start).is_some_and(|unit| unit.role == Role::Assistant))
    }

    /// Where the model was called, each place as the index of the unit behind it: before each of its turns, and at the
    /// end. What follows a turn of the model without calls was called for with that as a prefill, so that no call is
    /// known of between the two.
    pub fn model_calls(&self) -> Vec<usize> {
        let mut places = Vec::new();
        let (mut start, mut before_is_plain) = (0, false);
        while start < self.units.len() {
            let turn = self.turn_from(start);
            if !before_is_plain && self.units.get(start).is_some_and(|unit| unit.role == Role::Assistant) {
                places.push(start);
            }
            before_is_plain = self.is_plain_answer(&turn);
            start = turn.end;
        }
        if !before_is_plain {
            places.push(self.units.len());
        }
        places
    }

    /// The rest of the turn that a unit is in.
    fn turn_from(&self, start: usize) -> Range<usize> {
        let turn = self.units.get(start).map(|unit| unit.turn);
        let rest = self.units.get(start..).unwrap_or_default();
        start..start + rest.iter().take_while(|unit| Some(unit.turn) == turn).count()
    }

    /// Whether a turn is of the model and calls nothing. At the end of a request it is a prefill.
    fn is_plain_answer(&self, turn: &Range<usize>) -> bool {
        let units = self.units.get(turn.clone()).unwrap_or_default();
        units.first().is_some_and(|unit| unit.role == Role::Assistant)
            && units.iter().all(|unit| unit.blocks.is_empty())
    }

    /// The elements that units are in.
    pub fn elements_of(&self, units: Range<usize>) -> Range<usize> {
        match self.units.get(units) {
            Some([first, .., last]) => first.element..last.element + 1,
            Some([only]) => only.element..only.element + 1,
            _ => 0..0,
        }
    }

    /// The first unit of an element; one behind the last of all for an element behind the last.
    pub fn first_unit(&self, element: usize) -> usize {
        self.elements.get(element).map_or(self.units.len(), |element| element.units.start)
    }

    /// Whether a unit is the first of its element.
    pub fn begins_element(&self, unit: usize) -> bool {
        self.units.get(unit).is_none_or(|of| self.first_unit(of.element) == unit)
    }

    /// Whether a unit is all of its element, and not an entry in it.
    pub fn is_element(&self, unit: &Unit) -> bool {
        self.elements.get(unit.element).is_some_and(|element| element.span == unit.span)
    }

    /// What an element is known by, as it is written.
    pub fn element_print(&self, element: &Element, body: &[u8]) -> Fingerprint {
        match self.units.get(element.units.clone()) {
            Some([unit]) if unit.span == element.span => unit.prints(body).unit,
            _ => Fingerprint::of(element.span.of(body)),
        }
    }

    /// The units as [`unread_from`] is told of them.
    pub fn spoken(&self) -> impl Iterator<Item = Spoken> {
        let before = std::iter::once(None).chain(self.units.iter().map(|unit| Some(unit.turn)));
        self.units.iter().zip(before).map(|(unit, before)| Spoken {
            role: unit.role,
            calls: !unit.blocks.is_empty(),
            continues: before == Some(unit.turn),
        })
    }

    /// The bytes from the first to the last of the elements that some units are in.
    pub fn span_of(&self, units: Range<usize>) -> Span {
        match self.elements.get(self.elements_of(units)) {
            Some([first, .., last]) => Span { start: first.span.start, end: last.span.end },
            Some([only]) => only.span,
            _ => Span::default(),
        }
    }

    /// How many units at the beginning are instructions, or are stood for by a compaction. No edit touches them.
    pub fn n_leading(&self) -> usize {
        let rest = self.units.get(self.traits.n_compacted..).unwrap_or_default();
        let instructions = rest.iter().take_while(|unit| matches!(unit.role, Role::System | Role::Developer)).count();
        self.traits.n_compacted + instructions
    }
}

impl Role {
    /// The role that wire formats call `name`.
    pub fn named(name: &str) -> Self {
        match name {
            "system" => Self::System,
            "developer" => Self::Developer,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => Self::Other,
        }
    }
}

impl Unit {
    /// What it is known by, in the body that it was read from. Whoever asks first has each byte of it hashed, once.
    pub fn prints(&self, body: &[u8]) -> Prints {
        *self.known.get_or_init(|| {
            let Span { start, end } = self.content.unwrap_or(Span::empty(self.span.end));
            let of = |start, end| Fingerprint::of(Span { start, end }.of(body));
            let content = of(start, end);
            let unit = of(self.span.start, start).then(content).then(of(end, self.span.end));
            Prints { unit, content }
        })
    }
}

/// What [`unread_from`] is told of a unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Spoken {
    /// Who speaks.
    pub role: Role,
    /// Whether it calls.
    pub calls: bool,
    /// Whether it is in the turn of the one before.
    pub continues: bool,
}

/// Where that begins which the model has not read yet, with the round that it belongs to; the last unit in any case.
/// 0 if the model has not said anything.
pub fn unread_from(units: impl IntoIterator<Item = Spoken>) -> usize {
    // Each turn is told as one unit, by where it begins and how many units it has.
    let mut turns: Vec<(usize, usize, Spoken)> = Vec::new();
    for (n, unit) in units.into_iter().enumerate() {
        match turns.last_mut().filter(|_| unit.continues) {
            Some((_, n_units, turn)) => (*n_units, turn.calls) = (*n_units + 1, turn.calls | unit.calls),
            None => turns.push((n, 1, unit)),
        }
    }
    let n_turns = turns.len();
    let is_prefill = |turn: &Spoken| turn.role == Role::Assistant && !turn.calls;
    let answered = turns.iter().enumerate().rev().skip_while(|(_, (.., turn))| is_prefill(turn));
    let mut has_result = false;
    for (n, (start, n_units, turn)) in answered {
        match turn.role {
            Role::Assistant if has_result || n + 1 == n_turns => return *start,
            Role::Assistant => return start + n_units,
            role => has_result |= role == Role::Tool,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_parts(body: &[u8], conversation: &Conversation<'_>) {
        for (index, unit) in conversation.units.iter().enumerate() {
            for block in conversation.blocks_of(unit) {
                let unit = unit.span.of(body);
                assert_eq!(block.unit, index);
                assert!(unit.as_ptr_range().contains(&block.span.of(body).as_ptr()));
            }
        }
        let n_blocks: usize = conversation.units.iter().map(|unit| unit.blocks.len()).sum();
        assert_eq!(n_blocks, conversation.blocks.len());
    }

    #[test]
    fn folding_takes_messages_away_with_their_blocks() {
        let body = br#"{"messages":[{"role":"system"},{"role":"assistant","tool_calls":[{"id":"a"}]},
            {"role":"tool","tool_call_id":"a"},{"role":"assistant","tool_calls":[{"id":"b"},{"id":"c"}]},
            {"role":"tool","tool_call_id":"b"},{"role":"tool","tool_call_id":"c"},{"role":"user"}]}"#;
        let whole = crate::dialect::for_path("/chat/completions").unwrap().parse(body).unwrap();
        check_parts(body, &whole);
        assert_eq!(whole.last_answer(), Some(3..4));
        let spans = |units: &[Unit]| units.iter().map(|unit| unit.span).collect::<Vec<_>>();
        let before = spans(&whole.units);
        let pairing = Pairing::of(&whole);
        for (start, end) in (0..before.len()).flat_map(|start| (start + 1..=before.len()).map(move |end| (start, end)))
        {
            let Some(fold) = Fold::of(&whole, &pairing, start..end) else {
                assert!(whole.units[start..end].iter().all(|unit| unit.role != Role::User));
                continue;
            };
            let folded = whole.folded(&fold);
            check_parts(body, &folded);
            let one = whole.span_of(fold.place());
            let standing: Vec<_> = fold.in_place().map(|unit| fold.as_it_came(unit)).collect();
            let standing = standing.iter().map(|&came| if came == fold.place().start { one } else { before[came] });
            let standing: Vec<_> = standing.collect();
            assert_eq!(spans(&folded.units), [&before[..start], &standing, &before[end..]].concat());
            let summary = &folded.units[fold.summary()];
            assert_eq!((summary.role, summary.blocks.len(), summary.span), (Role::User, 0, one));
        }
    }

    #[test]
    fn models_are_called_before_each_answer_and_not_behind_a_prefill() {
        // `c` is a message of the model with calls, `a` one without.
        for (roles, calls) in [
            ("", &[0][..]),
            ("u", &[1]),
            ("ucttu", &[1, 5]),
            ("uc", &[1, 2]),
            ("uau", &[1, 3]),
            // The model goes on with what it has said, or with what is said to have been its words.
            ("ua", &[1]),
            ("uaa", &[1]),
            ("uacta", &[1, 4]),
            ("uaau", &[1, 4]),
        ] {
            let messages = roles.chars().map(|c| match c {
                'u' => r#"{"role":"user"}"#,
                'a' => r#"{"role":"assistant"}"#,
                'c' => r#"{"role":"assistant","tool_calls":[{"id":"x"}]}"#,
                _ => r#"{"role":"tool"}"#,
            });
            let body = format!(r#"{{"messages":[{}]}}"#, messages.collect::<Vec<_>>().join(","));
            let conversation = crate::dialect::for_path("/chat/completions").unwrap().parse(body.as_bytes()).unwrap();
            assert_eq!(conversation.model_calls(), calls, "{roles}");
        }
    }

    #[test]
    fn what_follows_the_last_round_is_unread_with_it() {
        // `c` is a message of the model with calls, `a` one without; `t` is a result.
        for (roles, from) in [
            ("", 0),
            ("uu", 0),
            ("utu", 0),
            ("uc", 1),
            ("uau", 2),
            ("uauu", 2),
            ("uct", 1),
            ("ucttu", 1),
            ("ucut", 1),
            ("uctc", 3),
            ("uctau", 4),
            ("uctct", 3),
            ("suctuau", 6),
            // A prefill is no answer.
            ("ua", 0),
            ("uaa", 0),
            ("ucta", 1),
            ("uctaa", 1),
            ("uctuau", 5),
            ("uctaua", 4),
            ("uca", 2),
        ] {
            let role = |c| match c {
                's' => (Role::System, false),
                'u' => (Role::User, false),
                'a' => (Role::Assistant, false),
                'c' => (Role::Assistant, true),
                _ => (Role::Tool, false),
            };
            let all: Vec<_> = roles.chars().map(role).collect();
            let spoken = |(role, calls)| Spoken { role, calls, continues: false };
            assert_eq!(unread_from(all.into_iter().map(spoken)), from, "{roles}");
        }
    }

    #[test]
    fn a_message_is_known_by_all_of_its_bytes() {
        let prints = |before: &str, content: &str, behind: &str| {
            let body = [before, content, behind].concat();
            let start = before.len();
            let content = (!content.is_empty()).then_some(Span { start, end: start + content.len() });
            let span = Span { start: 0, end: body.len() };
            let (blocks, flags, known) = (0..0, Flags::default(), OnceCell::new());
            let unit = Unit { element: 0, span, role: Role::User, turn: 0, content, blocks, flags, known };
            unit.prints(body.as_bytes())
        };
        let one = prints("{a", "\"x\"", "b}");
        assert_eq!(one, prints("{a", "\"x\"", "b}"));
        for other in [prints("{b", "\"x\"", "b}"), prints("{a", "\"x\"", "c}")] {
            assert_eq!(other.content, one.content);
            assert_ne!(other.unit, one.unit);
        }
        for other in [prints("{a", "\"y\"", "b}"), prints("{a", "", "\"x\"b}"), prints("{a\"x\"", "", "b}")] {
            assert!(other.content != one.content && other.unit != one.unit);
        }
    }
}
