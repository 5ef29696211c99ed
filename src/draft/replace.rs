//! Texts inside messages, and what is put in their place.
//!
//! An edit makes an [`Offer`] first, which says what would come of it, and then [`Draft::make`]s it or not.

use std::{borrow::Cow, cell::OnceCell, fmt};

use bytes::Bytes;

use super::{Draft, Offload, Source};
use crate::{
    conversation::{BlockKind, Role},
    dialect::strings,
    payload::{Fingerprint, Name, Said},
    plan::{Action, LeftOut, Sizes, Stale, Why},
    recall::Way,
    span::{Span, Splice},
};

/// A value that is replaced.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) span: Span,
    /// The JSON value that stands there now.
    pub(super) with: Bytes,
    /// What that is known by.
    pub(super) print: Fingerprint,
    /// The name of what stood there, if that is stored.
    pub(super) stored: Option<Name>,
    /// The index of the change that says so.
    pub(super) change: usize,
}

/// What an edit wants to be done with texts that it replaces.
#[derive(Clone, Copy, Debug)]
pub struct Wants {
    /// They are stored, and may be replaced only if that is possible.
    pub stored: bool,
    /// They are replaced only by something smaller.
    pub smaller: bool,
}

/// One text of a result as the client sent it, for an edit to look at.
pub struct Text<'t> {
    /// How many bytes it has.
    pub len: usize,
    /// How many texts the result has.
    pub n_texts: usize,
    /// The bytes of all of them.
    pub n_bytes: usize,
    way_back: &'t OnceCell<(String, String)>,
    find_way: &'t dyn Fn() -> (String, String),
    read: &'t dyn Fn() -> &'t str,
}

/// One text of a result, unescaped when somebody wants to read it.
struct Found<'t> {
    source: Source<'t>,
    span: Span,
    name: Name,
    text: OnceCell<Cow<'t, str>>,
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("n_texts", &self.n_texts).field("n_bytes", &self.n_bytes).finish_non_exhaustive()
    }
}

impl Text<'_> {
    /// What it says. One that was seen before is not unescaped until then.
    pub fn text(&self) -> &str {
        (self.read)()
    }

    /// The handle and the words that say how to read what it names; both empty for a text that is not stored.
    pub fn way_back(&self) -> (&str, &str) {
        let (handle, how) = self.way_back.get_or_init(self.find_way);
        (handle, how)
    }
}

/// What is taken out of a text, and what comes there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cut {
    /// Where the part that is taken out begins.
    pub from: usize,
    /// Where it ends.
    pub to: usize,
    /// What comes there.
    pub words: String,
}

/// A replacement that could be made.
#[derive(Debug)]
pub struct Offer {
    pub(super) unit: usize,
    pub(super) call: Option<usize>,
    pub(super) slots: Vec<Slot>,
    pub(super) bytes: Sizes,
    pub(super) why: Option<Stale>,
}

/// Why there is no offer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// There is nothing to replace.
    Nothing,
    /// What would stand there is not smaller.
    NotSmaller,
}

/// Of a longer text, only so many bytes are counted to see that it has more tokens than what comes there.
const PIECE: usize = 2048;

/// Tokens that may merge, or part, at the seams.
const MARGIN: usize = 16;

impl Slot {
    fn new(span: Span, with: Bytes, stored: Option<Name>) -> Self {
        Self { span, print: Fingerprint::of(&with), with, stored, change: 0 }
    }

    /// A message that another one stands for.
    pub(super) fn whole(span: Span, with: Bytes, change: usize) -> Self {
        Self { span, print: Fingerprint::of(&with), with, stored: None, change }
    }

    pub(super) fn splice(&self) -> Splice {
        Splice { span: self.span, with: self.with.clone() }
    }

    /// What the value says that stands there now, if that is a string.
    fn text(&self) -> Cow<'_, str> {
        let whole = Span { start: 0, end: self.with.len() };
        strings::text(&self.with, whole).unwrap_or_default()
    }
}

impl Found<'_> {
    fn text(&self) -> &str {
        let Source { body, .. } = self.source;
        // It has been read before, so it can be read.
        self.text.get_or_init(|| strings::text(body, self.span).unwrap_or_default())
    }
}

/// The piece of a text that is counted.
fn beginning(text: &str) -> &str {
    text.get(..text.floor_char_boundary(PIECE)).unwrap_or_default()
}

impl Offer {
    /// The message that it is about.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// The same, made because of what has happened to the file that the result was read from.
    #[must_use]
    pub fn because(self, why: Option<Stale>) -> Self {
        Self { why, ..self }
    }
}

impl<'a> Draft<'a> {
    /// The bytes of the content of a message as it is written; its texts have no more.
    pub fn content_len(&self, unit: usize) -> usize {
        let content = self.source.conversation.units.get(unit).and_then(|unit| unit.content);
        content.map_or(0, Span::len)
    }

    /// What comes of replacing in each text of a result what `cut` says.
    pub fn offer_result(
        &self,
        unit: usize,
        wants: Wants,
        mut cut: impl FnMut(&Text<'_>) -> Option<Cut>,
    ) -> Result<Offer, Refused> {
        let Source { dialect, body, conversation } = self.source;
        let content = conversation.units.get(unit).and_then(|unit| unit.content);
        let spans = content.map(|content| dialect.texts(body, content)).unwrap_or_default();
        let print = |span: Span| match content {
            Some(content) if content == span => self.prints(unit).content,
            _ => Fingerprint::of(span.of(body)),
        };
        let texts: Vec<_> = spans.into_iter().filter_map(|span| self.find(span, || print(span))).collect();
        let (n_texts, n_bytes) = (texts.len(), texts.iter().map(|text| text.name.len).sum());
        let call = self.pairing().answered_block(unit);
        let mut offer = Offer { unit, call, slots: Vec::new(), bytes: Sizes::default(), why: None };
        let mut refused = Refused::Nothing;
        for found in texts {
            let Name { key, len, .. } = found.name;
            let find_way = || {
                let way = wants.stored.then(|| (key.to_string(), self.way().words(self.language, key)));
                way.unwrap_or_default()
            };
            let way_back = &OnceCell::new();
            let read = || found.text();
            let shown = Text { len, n_texts, n_bytes, way_back, find_way: &find_way, read: &read };
            let Some(cut) = cut(&shown) else { continue };
            if let Err(why) = self.check(&found, &cut, wants) {
                refused = why;
                continue;
            }
            let Cut { from, to, words } = cut;
            offer.bytes.before += len;
            offer.bytes.after += len - (to - from) + words.len();
            let is_whole = to - from == len;
            let json = if is_whole {
                strings::render(&words)
            } else {
                strings::render_cut(body, found.span, from..to, &words)
            };
            offer.slots.push(Slot::new(found.span, json, wants.stored.then_some(found.name)));
        }
        if offer.slots.is_empty() { Err(refused) } else { Ok(offer) }
    }

    /// A text of a result, known by `print`; none if the string stands for none.
    fn find(&self, span: Span, print: impl FnOnce() -> Fingerprint) -> Option<Found<'a>> {
        let Source { body, .. } = self.source;
        let text = OnceCell::new();
        let read = || {
            let read = strings::text(body, span)?;
            Some(text.get_or_init(|| read).as_ref())
        };
        let name = match self.slots.get(&span.start).and_then(|slot| slot.stored) {
            Some(name) => name,
            None => self.name(span, print(), read)?,
        };
        Some(Found { source: self.source, span, name, text })
    }

    /// The name of what a value says, known by `print`; none if it does not say anything.
    fn name<'t>(&self, value: Span, print: Fingerprint, read: impl FnOnce() -> Option<&'t str>) -> Option<Name> {
        let Source { body, .. } = self.source;
        let said = || read().map(|text| Said { text, stored: strings::stored(body, value, text) });
        self.situation.keys.name(self.situation.caller, print, said)
    }

    /// Whether a text with its replacement is what the edit wants.
    fn check(&self, found: &Found<'_>, cut: &Cut, wants: Wants) -> Result<(), Refused> {
        // What stands there now is not what came, if an earlier edit has truncated it.
        let earlier = self.slots.get(&found.span.start);
        let now = OnceCell::new();
        let now = || match earlier {
            Some(slot) => now.get_or_init(|| slot.text()).as_ref(),
            None => found.text(),
        };
        let whole = cut.from == 0 && cut.to == found.name.len;
        if whole && wants.smaller {
            // It is not read, if its beginning was counted before.
            let (print, len) = match earlier {
                Some(slot) => (slot.print, slot.with.len()),
                None => (Fingerprint::of(found.name.key.as_bytes()), found.name.len),
            };
            let tokens = (len > PIECE).then(|| self.gauge().beginning(print, || beginning(now())));
            if tokens.is_some_and(|tokens| tokens > self.gauge().words(&cut.words) + MARGIN) {
                return Ok(());
            }
        }
        if whole && earlier.is_some() {
            return Self::wanted(&cut.words, now(), wants, |with| self.is_fewer(now(), with));
        }
        let text = found.text();
        let parts = (text.get(..cut.from), text.get(cut.from..cut.to), text.get(cut.to..));
        let (Some(head), Some(taken), Some(tail)) = parts else { return Err(Refused::Nothing) };
        let with = [head, &cut.words, tail].concat();
        Self::wanted(&with, now(), wants, |with| match earlier {
            Some(_) => self.is_fewer(now(), with),
            None => self.is_smaller(text, taken, &cut.words, with),
        })
    }

    /// Whether what is to come in place of what is there now is another, and as small as it has to be.
    fn wanted(with: &str, now: &str, wants: Wants, is_smaller: impl FnOnce(&str) -> bool) -> Result<(), Refused> {
        if with == now {
            Err(Refused::Nothing)
        } else if wants.smaller && !is_smaller(with) {
            Err(Refused::NotSmaller)
        } else {
            Ok(())
        }
    }

    /// What comes of emptying the arguments of the call that is block `call`.
    pub fn offer_input(&self, call: usize, wants: Wants) -> Result<Offer, Refused> {
        let block = self.source.conversation.blocks.get(call).ok_or(Refused::Nothing)?;
        let Source { dialect, body, .. } = self.source;
        let input = dialect.input(body, block.span).filter(|_| dialect.may_empty_input(body, block.span));
        let input = input.ok_or(Refused::Nothing)?;
        let (text, with) =
            (strings::text_or_json(self.source.body, input.span).ok_or(Refused::Nothing)?, input.emptied_text());
        if text == with {
            return Err(Refused::Nothing);
        }
        if wants.smaller && !self.is_smaller(&text, &text, with, with) {
            return Err(Refused::NotSmaller);
        }
        let print = || Fingerprint::of(input.span.of(self.source.body));
        let stored = if wants.stored { self.name(input.span, print(), || Some(&text)) } else { None };
        let bytes = Sizes { before: text.len(), after: with.len() };
        let slot = Slot::new(input.span, Bytes::from_static(input.emptied.as_bytes()), stored);
        Ok(Offer { unit: block.unit, call: Some(call), slots: vec![slot], bytes, why: None })
    }

    /// How many tokens fewer the message has if the offer is made.
    pub fn gain(&self, offer: &Offer) -> usize {
        let Offer { unit, call, slots, .. } = offer;
        match *call {
            // Of a message with many calls, the one is counted that is another then.
            Some(call) if self.pairing().result(*unit).is_none() => {
                self.call_tokens(call, &[]).saturating_sub(self.call_tokens(call, slots))
            }
            _ => self.message_tokens(*unit).saturating_sub(self.tokens_with(*unit, slots)),
        }
    }

    /// Makes an offer. What it replaces is the client's text, also where an earlier edit has truncated that. False if the
    /// message is not to be touched, has not been read, or cannot be stored; of that the report tells.
    pub fn make(&mut self, edit: &'static str, action: Action, offer: Offer) -> bool {
        let Offer { unit, call, mut slots, bytes, why } = offer;
        let reads = matches!(action, Action::Truncate { .. });
        let unread = match self.source.conversation.units.get(unit).map(|unit| unit.role) {
            Some(Role::Assistant) => self.is_in_last_answer(unit),
            _ => self.is_unread(unit),
        };
        if unit < self.n_leading || (unread && !reads) {
            return false;
        }
        if !self.stands(unit) {
            if reads {
                self.write_on_what_left(unit, slots);
            }
            return false;
        }
        if call.is_some_and(|call| self.dropped_calls.contains(&call)) {
            return false;
        }
        let needs_store = slots.iter().any(|slot| slot.stored.is_some());
        let mut change = match call {
            Some(call) => self.about_call(edit, action, call, bytes),
            None => self.about_result(edit, action, unit, bytes),
        };
        if needs_store && self.situation.offload == Offload::Impossible {
            let (call_id, tool_name) = (change.call_id, change.tool_name);
            self.left_out.push(LeftOut { edit, message: Some(unit), call_id, tool_name, why: Why::NoStore });
            return false;
        }
        change.why = why;
        change.handles = slots.iter().filter_map(|slot| slot.stored.map(|name| name.key)).collect();
        let change = self.record(change);
        self.tokens_now.borrow_mut().remove(&unit);
        for slot in &mut slots {
            slot.change = change;
            let before = self.slots.get(&slot.span.start).map_or(slot.span.len(), |slot| slot.with.len());
            self.n_bytes = (self.n_bytes + slot.with.len()).saturating_sub(before);
            if let Some(moot) = self.slots.insert(slot.span.start, slot.clone()) {
                self.forget(moot.change, unit);
            }
        }
        true
    }

    /// Notes what a message was before it left, which is as large as it counts in the timeline; nothing of it is sent or
    /// stored.
    fn write_on_what_left(&mut self, unit: usize, slots: Vec<Slot>) {
        let can_store = self.situation.offload == Offload::Possible;
        for slot in slots.into_iter().filter(|slot| can_store || slot.stored.is_none()) {
            self.slots.insert(slot.span.start, Slot { stored: None, change: usize::MAX, ..slot });
        }
        self.tokens_now.borrow_mut().remove(&unit);
    }

    /// Forgets a change, if nothing of it is left.
    pub(super) fn forget(&mut self, change: usize, unit: usize) {
        let Span { start, end } = self.span(unit);
        if self.slots.range(start..end).all(|(_, slot)| slot.change != change)
            && let Some(moot) = self.changes.get_mut(change)
        {
            *moot = None;
        }
    }

    /// Whether a message is there, in its place or moved.
    fn stands(&self, unit: usize) -> bool {
        self.in_place.get(unit).copied().unwrap_or_default() || self.moved.contains(&unit)
    }

    pub(super) fn way(&self) -> Way<'a> {
        *self.way.get_or_init(|| {
            let tools = self.source.conversation.tools.filter(|_| self.recall.asks_for_tools());
            let names = tools.map(|tools| self.source.dialect.tool_names(self.source.body, tools));
            self.recall.way(&names.unwrap_or_default())
        })
    }

    /// Whether `with`, which is `text` with `words` in place of `taken`, has fewer tokens. Of a long text only a piece of
    /// what is taken out is counted: if that alone is more than the words, the whole is.
    fn is_smaller(&self, text: &str, taken: &str, words: &str, with: &str) -> bool {
        let piece = beginning(taken);
        let gauge = self.gauge();
        (piece.len() < taken.len() && gauge.text(piece) > gauge.words(words) + MARGIN) || self.is_fewer(text, with)
    }

    fn is_fewer(&self, text: &str, with: &str) -> bool {
        self.gauge().words(with) < self.gauge().text(text)
    }

    /// Whether a result answers a call that asked for a payload of ours. What the result says is not read.
    pub fn is_recall(&self, unit: usize) -> bool {
        let call = self.pairing().answered_block(unit);
        call.and_then(|call| self.arguments(call)).is_some_and(|arguments| self.recall.is_named_in(&arguments))
    }

    /// The arguments of the call that is a block, as the model has written them; none if it is no call, or has none.
    pub fn arguments(&self, call: usize) -> Option<Cow<'a, str>> {
        let Source { dialect, body, conversation } = self.source;
        let block = conversation.blocks.get(call).filter(|block| matches!(block.kind, BlockKind::ToolCall { .. }))?;
        strings::text_or_json(body, dialect.input(body, block.span)?.span)
    }
}
