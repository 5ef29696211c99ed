//! Texts inside messages, and their replacements.
//!
//! An edit asks for a [`ProposedEdit`] first, which says what would change, and then [`Draft::apply`]s it or not.

use std::borrow::Cow;
use std::cell::{LazyCell, OnceCell};

use bytes::Bytes;

use super::source_text::{ResultText, SourceText, TextCut};
use super::{ChangeId, Draft, Label, Offload};
use crate::conversation::{BlockIndex, Role, UnitIndex};
use crate::dialect::{self, strings};
use crate::payload::{Fingerprint, MediaType, PayloadKey, PayloadName};
use crate::plan::{Action, Change, Sizes, SkipReason};
use crate::span::{Span, Splice};
use crate::tokens::Countable;

/// A JSON value of the body that is replaced by another one.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    pub(super) span: Span,
    /// The part that differs: all of the value, or a part between two ends that stay where they are.
    pub(super) splice: Splice,
    /// The fingerprint of the value that is there now.
    pub(super) fingerprint: Fingerprint,
    /// The name of what was there, if that is stored.
    pub(super) stored: Option<PayloadName>,
    /// The stored bytes, as written: the value that is replaced, or base64 in it.
    pub(super) source: Span,
    /// The change that says so; none for one that is proposed only.
    pub(super) change: Option<ChangeId>,
}

/// The requirements of an edit on the texts that it replaces.
#[derive(Clone, Copy, Debug)]
pub struct ReplaceOptions {
    /// They are stored, and may be replaced only if that is possible.
    pub stored: bool,
    /// They are replaced only by something smaller.
    pub smaller: bool,
    /// Images, files and sound are replaced as well, and what is text in base64 is stored as what it encodes.
    pub media: bool,
}

/// The replacements in one unit that an edit could make, before it decides.
#[derive(Debug, Default)]
pub struct ProposedEdit {
    /// The message that it is about.
    pub(crate) unit: UnitIndex,
    pub(super) call: Option<BlockIndex>,
    pub(super) replacements: Vec<Replacement>,
    pub(super) bytes: Sizes,
    /// The later use of the file that the result was read from.
    pub(crate) why: Option<&'static str>,
}

/// Why an edit cannot be made to a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotApplicable {
    /// There is nothing to replace.
    Nothing,
    /// The replacement would not be smaller.
    NotSmaller,
}

/// A proposed edit, or why there is none.
pub(super) type Proposed = Result<ProposedEdit, NotApplicable>;

/// Of a longer text, only so many bytes are counted to see that it has more tokens than what comes there.
const COUNTED_PREFIX: usize = 1024;

/// Tokens that may merge or split where two texts meet.
const MARGIN: usize = 16;

impl Replacement {
    pub(super) fn new(body: &[u8], span: Span, splice: Splice, stored: Option<PayloadName>) -> Self {
        let fingerprint = Fingerprint::default();
        let replacement = Self { span, splice, fingerprint, stored, source: span, change: None };
        Self { fingerprint: Fingerprint::of(&replacement.value(body)), ..replacement }
    }

    pub(super) fn whole(span: Span, with: Bytes, stored: Option<PayloadName>) -> Self {
        Self::new(&[], span, Splice { span, with }, stored)
    }

    /// The length of the value that is there now.
    pub(super) fn len(&self) -> usize {
        self.span.len() - self.splice.span.len() + self.splice.with.len()
    }

    /// The value that is there now.
    fn value(&self, body: &[u8]) -> Bytes {
        let (Span { start, end }, Splice { span, with }) = (self.span, &self.splice);
        if *span == self.span {
            return with.clone();
        }
        let head = Span { start, end: span.start }.of(body);
        [head, with, Span { start: span.end, end }.of(body)].concat().into()
    }

    /// The text of the value that is there now, if that is a string.
    pub(super) fn text(&self, body: &[u8]) -> String {
        let json = self.value(body);
        strings::text(&json, Span { start: 0, end: json.len() }).unwrap_or_default().into_owned()
    }

    /// Whether the model can read what was there by the handle that is there now.
    pub(super) fn names_stored(&self) -> bool {
        let words = std::str::from_utf8(&self.splice.with).unwrap_or_default();
        self.stored.is_some_and(|name| words.contains(&name.key.to_string()))
    }
}

impl ProposedEdit {
    /// The names of what it takes out and stores.
    pub fn stored(&self) -> impl Iterator<Item = PayloadKey> {
        self.replacements.iter().filter_map(|replacement| replacement.stored).map(|name| name.key)
    }
}

impl Draft<'_> {
    /// The bytes of the content of a message as it is written; its texts have no more.
    pub fn content_len(&self, unit: UnitIndex) -> usize {
        let content = self.unit(unit).and_then(|unit| unit.content).unwrap_or_default();
        let is_list = content.of(self.body).starts_with(b"["); // a string has no marks
        let marks = if is_list { dialect::cache_marks(self.body, content) } else { Vec::new() };
        content.len() - marks.iter().map(|mark| mark.len()).sum::<usize>()
    }

    /// Proposes to replace in each text of a result what `cut` returns for it.
    pub fn propose_result(
        &self,
        unit: UnitIndex,
        options: ReplaceOptions,
        mut cut: impl FnMut(&ResultText<'_, '_>) -> Option<TextCut>,
    ) -> Proposed {
        if self.is_for_program(unit) {
            return Err(NotApplicable::Nothing);
        }
        let texts = self.source_texts(unit, options.media);
        let n_bytes = texts.iter().map(|text| text.name.len).sum();
        let call = self.pairing().answered_block(unit);
        let mut proposed = ProposedEdit { unit, call, ..ProposedEdit::default() };
        let mut not_applicable = NotApplicable::Nothing;
        for source in &texts {
            let text = ResultText {
                len: source.name.len,
                media: source.name.media.or(source.part.map(|_| MediaType::Text)),
                n_texts: texts.len(),
                n_bytes,
                call,
                draft: self,
                source,
                sources: &texts,
                is_stored: options.stored,
                retrieval: OnceCell::new(),
            };
            let Some(cut) = cut(&text) else { continue };
            match self.check(source, &cut, options) {
                Ok(()) => self.add(&mut proposed, source, &cut, options.stored),
                Err(why) => not_applicable = why,
            }
        }
        if texts.iter().any(SourceText::was_read) {
            self.context.meter.yield_now();
        }
        if proposed.replacements.is_empty() { Err(not_applicable) } else { Ok(proposed) }
    }

    /// Adds a cut of one of its texts to a proposed edit.
    pub(super) fn add(&self, proposed: &mut ProposedEdit, source: &SourceText<'_>, cut: &TextCut, is_stored: bool) {
        let (TextCut { from, to, words }, span, len) = (cut, source.span, source.name.len);
        let part = |text: &str| self.dialect.render_text_part(self.body, span, text);
        let splice = if source.part.is_some() {
            Splice { span, with: part(words) }
        } else if span.of(self.body).starts_with(b"{") {
            Splice { span, with: part(&cut.applied(source.text()).unwrap_or_default()) }
        } else if cut.is_whole(len) {
            Splice { span, with: strings::render(words) }
        } else {
            let (cut, with) = strings::render_cut(self.body, span, &(*from..*to), words);
            Splice { span: Span { start: span.start + cut.start, end: span.start + cut.end }, with }
        };
        let stored = is_stored.then_some(source.name);
        let new = Replacement { source: source.source, ..Replacement::new(self.body, span, splice, stored) };
        let is_text = source.part.is_none() && source.name.media.is_none();
        let as_written = (span.len(), new.len());
        let (before, after) = if is_text { (len, len - (to - from) + words.len()) } else { as_written };
        proposed.bytes.before += before;
        proposed.bytes.after += after;
        proposed.replacements.push(new);
    }

    /// Whether a cut changes the present text, and makes that smaller if it has to.
    fn check(&self, source: &SourceText<'_>, cut: &TextCut, options: ReplaceOptions) -> Result<(), NotApplicable> {
        if let Some(known_by) = source.part {
            let is_taken = self.replacements.contains_key(&source.span.start);
            if is_taken {
                return Err(NotApplicable::Nothing);
            }
            let is_smaller = || self.is_smaller_part(source.span, known_by, &cut.words);
            return if options.smaller && !is_smaller() { Err(NotApplicable::NotSmaller) } else { Ok(()) };
        }
        let earlier = self.replacements.get(&source.span.start);
        let current: LazyCell<Cow<'_, str>, _> = LazyCell::new(|| match earlier {
            Some(earlier) => earlier.text(self.body).into(),
            None => source.text().into(),
        });
        let is_whole = cut.is_whole(source.name.len);
        if is_whole && options.smaller {
            // The beginning of a text that was counted before is enough, without reading it.
            let of_earlier = earlier.map(|earlier| (earlier.fingerprint, earlier.len()));
            let (known_by, len) = of_earlier.unwrap_or_else(|| source.identity());
            let tokens = || self.gauge().at_least(known_by, COUNTED_PREFIX, || &current);
            if len > COUNTED_PREFIX && tokens() > self.gauge().words(&cut.words) + MARGIN {
                return Ok(());
            }
        }
        let new: Cow<'_, str> = if is_whole {
            cut.words.as_str().into()
        } else {
            cut.applied(source.text()).ok_or(NotApplicable::Nothing)?.into()
        };
        if new == *current {
            return Err(NotApplicable::Nothing);
        }
        let taken = if earlier.is_some() { "" } else { cut.taken(source.text()).unwrap_or_default() };
        let is_smaller = || self.is_smaller(&current, taken, &cut.words, &new);
        if options.smaller && !is_smaller() { Err(NotApplicable::NotSmaller) } else { Ok(()) }
    }

    /// Whether words are smaller than a part that is not text.
    fn is_smaller_part(&self, part: Span, known_by: Fingerprint, words: &str) -> bool {
        let tokens = self.dialect.known_tokens(self.gauge(), Countable::Part, known_by, || part.of(self.body));
        let json = self.dialect.render_text_part(self.body, part, words);
        json.len() < part.len() && self.gauge().words(words) < tokens
    }

    /// Whether `with`, which is `text` with `words` in place of `taken`, has fewer tokens. Of a long text only a piece of
    /// what is taken out is counted: if that alone is more than the words, the whole is.
    fn is_smaller(&self, text: &str, taken: &str, words: &str, with: &str) -> bool {
        let gauge = self.gauge();
        let piece = taken.get(..taken.floor_char_boundary(COUNTED_PREFIX)).unwrap_or_default();
        (piece.len() < taken.len() && gauge.text(piece) > gauge.words(words) + MARGIN)
            || gauge.words(with) < gauge.text(text)
    }

    /// Proposes to empty the arguments of the call that is block `call`.
    pub fn propose_input(&self, call: BlockIndex, options: ReplaceOptions) -> Proposed {
        let block = self.conversation.block(call).ok_or(NotApplicable::Nothing)?;
        let input = self.dialect.input(self.body, block.span);
        let input = input.filter(|_| self.dialect.may_empty_input(self.body, block.span));
        let input = input.ok_or(NotApplicable::Nothing)?;
        let text = strings::text_or_json(self.body, input.span).ok_or(NotApplicable::Nothing)?;
        let with = input.emptied_text();
        if text == with {
            return Err(NotApplicable::Nothing);
        }
        if options.smaller && !self.is_smaller(&text, &text, with, with) {
            return Err(NotApplicable::NotSmaller);
        }
        let fingerprint = || Fingerprint::of(input.span.of(self.body));
        let stored = if options.stored { self.payload_name(input.span, fingerprint(), || Some(&text)) } else { None };
        let bytes = Sizes { before: text.len(), after: with.len() };
        let emptied = Replacement::whole(input.span, Bytes::from_static(input.emptied.as_bytes()), stored);
        Ok(ProposedEdit { unit: block.unit, call: Some(call), replacements: vec![emptied], bytes, why: None })
    }

    /// How many tokens the message loses if the edit is applied.
    pub fn gain(&self, proposed: &ProposedEdit) -> usize {
        let ProposedEdit { unit, call, replacements, .. } = proposed;
        match *call {
            // Of a message with many calls, only the changed one is counted.
            Some(call) if self.pairing().result(*unit).is_none() => {
                self.call_tokens(call, &[]).saturating_sub(self.call_tokens(call, replacements))
            }
            _ => self.message_tokens(*unit).saturating_sub(self.tokens_with(*unit, replacements)),
        }
    }

    /// Applies a proposed edit. It replaces the client's text, also where an earlier edit has truncated that. False
    /// if the message is not to be touched, has not been read, or cannot be stored; of that the report tells.
    pub fn apply(&mut self, edit: Label, action: Action, proposed: ProposedEdit) -> bool {
        let unit = proposed.unit;
        let reads = matches!(action, Action::Truncate { .. } | Action::Deduplicate { .. });
        let unread = match self.unit(unit).map(|unit| unit.role) {
            Some(Role::Assistant) => self.is_in_last_answer(unit),
            _ => self.is_unread(unit),
        };
        if unit < self.first_editable || (unread && !reads) {
            return false;
        }
        if reads && !self.stands(unit) {
            self.replace_in_dropped(unit, proposed.replacements);
            return false;
        }
        self.apply_to_any(edit, action, proposed)
    }

    /// The same, whether the model has read the message or not.
    pub(super) fn apply_to_any(&mut self, edit: Label, action: Action, proposed: ProposedEdit) -> bool {
        let handles: Vec<_> = proposed.stored().collect();
        let ProposedEdit { unit, call, replacements, bytes, why } = proposed;
        if !self.stands(unit) || call.is_some_and(|call| self.dropped_calls.contains(&call)) {
            return false;
        }
        let change = Change { bytes, why, ..self.about(edit, action, unit, call) };
        if !handles.is_empty() && self.context.offload == Offload::Impossible {
            self.journal.skip(change, Some(unit), SkipReason::NoStore);
            return false;
        }
        let change = Some(self.journal.make(Change { handles, ..change }));
        for replacement in replacements {
            let (span, len) = (replacement.span, replacement.len());
            let moot = self.replacements.insert(span.start, Replacement { change, ..replacement });
            let before = moot.as_ref().map_or(span.len(), Replacement::len);
            self.n_bytes = (self.n_bytes + len).saturating_sub(before);
            if let Some(moot) = moot {
                self.revoke_if_gone(moot.change, unit);
            }
        }
        self.known.tokens_now.borrow_mut().remove(&unit);
        true
    }

    /// Notes what a message was before it left, which is as large as it counts in the timeline; nothing of it is sent or
    /// stored.
    fn replace_in_dropped(&mut self, unit: UnitIndex, replacements: Vec<Replacement>) {
        let can_store = self.context.offload == Offload::Possible;
        for replacement in replacements.into_iter().filter(|replacement| can_store || replacement.stored.is_none()) {
            self.replacements.insert(replacement.span.start, Replacement { stored: None, ..replacement });
        }
        self.known.tokens_now.borrow_mut().remove(&unit);
    }

    /// Replaces a JSON value. False if an edit has replaced it already, or if the message is removed.
    pub(super) fn overwrite(&mut self, edit: Label, action: Action, unit: UnitIndex, new: Replacement) -> bool {
        let at = new.span;
        let before = self.replacements.range(..=at.end).next_back();
        let is_taken = before.is_some_and(|(_, of)| of.span.end > at.start || of.span.start == at.start);
        let bytes = Sizes { before: at.len(), after: new.len() };
        let proposed = ProposedEdit { unit, replacements: vec![new], bytes, ..ProposedEdit::default() };
        !is_taken && self.apply_to_any(edit, action, proposed)
    }

    /// Takes back all replacements in a message, and revokes their changes.
    pub(super) fn undo_replacements(&mut self, unit: UnitIndex) {
        let Span { start, end } = self.span(unit);
        while let Some((&at, _)) = self.replacements.range(start..end.max(start)).next() {
            let Some(replacement) = self.replacements.remove(&at) else { return };
            self.n_bytes = (self.n_bytes + replacement.span.len()).saturating_sub(replacement.len());
            self.revoke_if_gone(replacement.change, unit);
        }
    }

    /// Revokes the change that a replacement was part of, if none of its replacements is left.
    fn revoke_if_gone(&mut self, change: Option<ChangeId>, unit: UnitIndex) {
        if let Some(id) = change
            && self.replacements_in(unit).all(|replacement| replacement.change != change)
        {
            self.journal.revoke(id);
        }
    }

    /// The values in a message that are replaced.
    pub(super) fn replacements_in(&self, unit: UnitIndex) -> impl Iterator<Item = &Replacement> {
        let Span { start, end } = self.span(unit);
        self.replacements.range(start..end.max(start)).map(|(_, replacement)| replacement)
    }

    /// The same with more of them, which go first.
    pub(super) fn replacements_with<'s>(
        &'s self,
        unit: UnitIndex,
        more: &'s [Replacement],
    ) -> impl Iterator<Item = &'s Replacement> {
        let is_other = |decided: &&Replacement| more.iter().all(|more| more.span != decided.span);
        more.iter().chain(self.replacements_in(unit).filter(is_other))
    }

    /// Whether a value in a message has been replaced.
    pub(super) fn has_replacements(&self, unit: UnitIndex) -> bool {
        self.replacements_in(unit).next().is_some()
    }

    /// Whether a message is there, in its place or moved.
    pub(super) fn stands(&self, unit: UnitIndex) -> bool {
        self.is_in_place(unit) || self.moved.contains(&unit)
    }

    /// Whether a program gets a unit that is a result, or calls in it, and the model does not read it.
    pub fn is_for_program(&self, unit: UnitIndex) -> bool {
        self.unit(unit).is_some_and(|unit| unit.flags.for_program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::splice;

    #[test]
    fn a_splice_between_the_ends_makes_the_whole_value() {
        let body: Vec<u8> = (0..20_000_u32).map(|n| b'a' + (n * n % 23) as u8).collect();
        let span = Span { start: 100, end: 19_000 };
        for (head, tail) in [(0, 0), (1, 0), (0, 1), (63, 65), (5000, 4999), (18_000, 900), (18_900, 0)] {
            for words in [&b""[..], b"[cut]"] {
                let part = Span { start: 100 + head, end: 19_000 - tail };
                let cut = Splice { span: part, with: Bytes::from_static(words) };
                let replacement = Replacement::new(&body, span, cut, None);
                let whole = [&body[100..100 + head], words, &body[19_000 - tail..19_000]].concat();
                assert_eq!((replacement.len(), &replacement.value(&body)[..]), (whole.len(), &whole[..]));
                assert_eq!(replacement.fingerprint, Fingerprint::of(&whole));
                let edited = [&body[..100], &whole[..], &body[19_000..]].concat();
                let spliced = splice(&Bytes::from(body.clone()), &[replacement.splice]).concat();
                assert!(spliced == edited, "{head} and {tail}");
            }
        }
    }
}
