//! Texts inside messages, and what is put in their place.
//!
//! An edit asks for a [`ProposedEdit`] first, which says what would change, and then [`Draft::apply`]s it or not.

use std::{borrow::Cow, cell::OnceCell};

use bytes::Bytes;

use super::replacement::{NewValue, Replacement};
use super::source_text::{CurrentText, ResultText, SourceText, TextCut};
use super::{ChangeId, Draft, Offload, ParsedRequest};
use crate::conversation::{BlockIndex, BlockKind, Role, UnitIndex};
use crate::dialect::{self, strings};
use crate::payload::{Fingerprint, MediaType, PayloadKey};
use crate::plan::{Action, Sizes, SkipReason, Stale};
use crate::recall::RetrievalMethod;
use crate::span::Span;
use crate::tokens::Countable;

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
#[derive(Debug)]
pub struct ProposedEdit {
    pub(super) unit: UnitIndex,
    pub(super) call: Option<BlockIndex>,
    pub(super) replacements: Vec<Replacement>,
    pub(super) bytes: Sizes,
    pub(super) why: Option<Stale>,
}

/// Why an edit cannot be made to a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotApplicable {
    /// There is nothing to replace.
    Nothing,
    /// The replacement would not be smaller.
    NotSmaller,
}

/// Of a longer text, only so many bytes are counted to see that it has more tokens than what comes there.
const COUNTED_PREFIX: usize = 1024;

/// Tokens that may merge or split where two texts meet.
const MARGIN: usize = 16;

/// The piece of a text that is counted.
fn beginning(text: &str) -> &str {
    text.get(..text.floor_char_boundary(COUNTED_PREFIX)).unwrap_or_default()
}

impl ProposedEdit {
    /// The message that it is about.
    pub fn unit(&self) -> UnitIndex {
        self.unit
    }

    /// The names of what it takes out and stores.
    pub fn stored(&self) -> impl Iterator<Item = PayloadKey> {
        self.replacements.iter().filter_map(|replacement| replacement.stored).map(|name| name.key)
    }

    /// The same, made because of what has happened to the file that the result was read from.
    #[must_use]
    pub fn because(self, why: Option<Stale>) -> Self {
        Self { why, ..self }
    }

    /// Adds a cut of one of its texts.
    pub(super) fn add(&mut self, source: &SourceText<'_>, cut: &TextCut, options: ReplaceOptions) {
        let (TextCut { from, to, words }, len) = (cut, source.name.len);
        let ParsedRequest { dialect, body, .. } = source.request;
        let with = match source.part {
            Some(_) => NewValue::whole(dialect.render_text_part(body, source.span, words)),
            None if source.span.of(body).starts_with(b"{") => {
                let said = cut.applied(source.text()).unwrap_or_default();
                NewValue::whole(dialect.render_text_part(body, source.span, &said))
            }
            None if cut.is_whole(len) => NewValue::whole(strings::render(words)),
            None => {
                let (cut, words) = strings::render_cut(body, source.span, &(*from..*to), words);
                NewValue { head: cut.start, words, tail: source.span.len().saturating_sub(cut.end) }
            }
        };
        let is_text = source.part.is_none() && source.name.media.is_none();
        let (before, after) = if is_text {
            (len, len - (to - from) + words.len())
        } else {
            (source.span.len(), with.len()) // as they are written
        };
        self.bytes.before += before;
        self.bytes.after += after;
        let stored = options.stored.then_some(source.name);
        let replacement = Replacement::new(source.span, with, body, stored);
        self.replacements.push(Replacement { source: source.source, ..replacement });
    }
}

impl<'a> Draft<'a> {
    /// The bytes of the content of a message as it is written; its texts have no more.
    pub fn content_len(&self, unit: UnitIndex) -> usize {
        let (body, unit) = (self.request.body, self.request.conversation.unit(unit));
        let content = unit.and_then(|unit| unit.content).unwrap_or_default();
        let is_list = content.of(body).starts_with(b"["); // a string has no marks
        let marks = if is_list { dialect::cache_marks(body, content) } else { Vec::new() };
        content.len() - marks.iter().map(|mark| mark.len()).sum::<usize>()
    }

    /// Proposes to replace in each text of a result what `cut` returns for it.
    pub fn propose_result(
        &self,
        unit: UnitIndex,
        options: ReplaceOptions,
        mut cut: impl FnMut(&ResultText<'_, '_>) -> Option<TextCut>,
    ) -> Result<ProposedEdit, NotApplicable> {
        if self.is_for_program(unit) {
            return Err(NotApplicable::Nothing);
        }
        let texts = self.source_texts(unit, options.media);
        let (n_texts, n_bytes) = (texts.len(), texts.iter().map(|text| text.name.len).sum());
        let call = self.pairing().answered_block(unit);
        let mut proposed = ProposedEdit { unit, call, replacements: Vec::new(), bytes: Sizes::default(), why: None };
        let mut not_applicable = NotApplicable::Nothing;
        for source in &texts {
            let (len, is_stored, retrieval) = (source.name.len, options.stored, OnceCell::new());
            let media = source.name.media.or(source.part.map(|_| MediaType::Text));
            let shown = ResultText {
                len,
                media,
                n_texts,
                n_bytes,
                call,
                draft: self,
                source,
                sources: &texts,
                is_stored,
                retrieval,
            };
            let Some(cut) = cut(&shown) else { continue };
            match self.check(source, &cut, options) {
                Ok(()) => proposed.add(source, &cut, options),
                Err(why) => not_applicable = why,
            }
        }
        if texts.iter().any(SourceText::was_read) {
            self.context.meter.yield_now();
        }
        if proposed.replacements.is_empty() { Err(not_applicable) } else { Ok(proposed) }
    }

    /// Whether a cut changes the present text, and makes that smaller if it has to.
    fn check(&self, source: &SourceText<'_>, cut: &TextCut, options: ReplaceOptions) -> Result<(), NotApplicable> {
        let current = CurrentText::new(source, self.replacements.get(&source.span.start));
        if let Some(known_by) = source.part {
            return self.check_part(source, known_by, &cut.words, options);
        }
        let is_whole = cut.is_whole(source.name.len);
        if is_whole && options.smaller && self.is_clearly_smaller(&cut.words, &current) {
            return Ok(());
        }
        let new: Cow<'_, str> = if is_whole {
            cut.words.as_str().into()
        } else {
            cut.applied(source.text()).ok_or(NotApplicable::Nothing)?.into()
        };
        if new == current.text() {
            return Err(NotApplicable::Nothing);
        }
        let is_smaller = || {
            if current.earlier.is_some() {
                return self.is_fewer(current.text(), &new);
            }
            let taken = cut.taken(source.text()).unwrap_or_default();
            self.is_smaller(source.text(), taken, &cut.words, &new)
        };
        if options.smaller && !is_smaller() { Err(NotApplicable::NotSmaller) } else { Ok(()) }
    }

    /// The same of a part that is not text.
    fn check_part(
        &self,
        source: &SourceText<'_>,
        known_by: Fingerprint,
        words: &str,
        options: ReplaceOptions,
    ) -> Result<(), NotApplicable> {
        let ParsedRequest { dialect, body, .. } = self.request;
        if self.replacements.contains_key(&source.span.start) {
            return Err(NotApplicable::Nothing);
        }
        let has_fewer = || {
            let tokens = dialect.known_tokens(self.gauge(), Countable::Part, known_by, || source.span.of(body));
            let json = dialect.render_text_part(body, source.span, words);
            json.len() < source.span.len() && self.gauge().words(words) < tokens
        };
        if options.smaller && !has_fewer() { Err(NotApplicable::NotSmaller) } else { Ok(()) }
    }

    /// Whether the beginning alone of a present text has more tokens than words. The text is not read if its
    /// beginning was counted before.
    fn is_clearly_smaller(&self, words: &str, current: &CurrentText<'_, '_>) -> bool {
        let (fingerprint, len) = current.identity();
        let tokens = || self.gauge().at_least(fingerprint, COUNTED_PREFIX, || current.text());
        len > COUNTED_PREFIX && tokens() > self.gauge().words(words) + MARGIN
    }

    /// Proposes to empty the arguments of the call that is block `call`.
    pub fn propose_input(&self, call: BlockIndex, options: ReplaceOptions) -> Result<ProposedEdit, NotApplicable> {
        let block = self.request.conversation.block(call).ok_or(NotApplicable::Nothing)?;
        let ParsedRequest { dialect, body, .. } = self.request;
        let input = dialect.input(body, block.span).filter(|_| dialect.may_empty_input(body, block.span));
        let input = input.ok_or(NotApplicable::Nothing)?;
        let (text, with) =
            (strings::text_or_json(self.request.body, input.span).ok_or(NotApplicable::Nothing)?, input.emptied_text());
        if text == with {
            return Err(NotApplicable::Nothing);
        }
        if options.smaller && !self.is_smaller(&text, &text, with, with) {
            return Err(NotApplicable::NotSmaller);
        }
        let fingerprint = || Fingerprint::of(input.span.of(self.request.body));
        let stored = if options.stored { self.payload_name(input.span, fingerprint(), || Some(&text)) } else { None };
        let bytes = Sizes { before: text.len(), after: with.len() };
        let with = NewValue::whole(Bytes::from_static(input.emptied.as_bytes()));
        let replacement = Replacement::new(input.span, with, self.request.body, stored);
        Ok(ProposedEdit { unit: block.unit, call: Some(call), replacements: vec![replacement], bytes, why: None })
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

    /// Applies a proposed edit. What it replaces is the client's text, also where an earlier edit has truncated that. False
    /// if the message is not to be touched, has not been read, or cannot be stored; of that the report tells.
    pub fn apply(&mut self, edit: &'static str, action: Action, proposed: ProposedEdit) -> bool {
        let unit = proposed.unit;
        let reads = matches!(action, Action::Truncate { .. } | Action::Deduplicate { .. });
        let unread = match self.request.conversation.unit(unit).map(|unit| unit.role) {
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
    pub(super) fn apply_to_any(&mut self, edit: &'static str, action: Action, proposed: ProposedEdit) -> bool {
        let ProposedEdit { unit, call, mut replacements, bytes, why } = proposed;
        if !self.stands(unit) {
            return false;
        }
        if call.is_some_and(|call| self.dropped_calls.contains(&call)) {
            return false;
        }
        let needs_store = replacements.iter().any(|replacement| replacement.stored.is_some());
        let mut change = match call {
            Some(call) => self.about_call(edit, action, call, bytes),
            None => self.about_result(edit, action, unit, bytes),
        };
        if needs_store && self.context.offload == Offload::Impossible {
            self.journal.skip(change, Some(unit.get()), SkipReason::NoStore);
            return false;
        }
        change.why = why;
        change.handles =
            replacements.iter().filter_map(|replacement| replacement.stored.map(|name| name.key)).collect();
        let change = self.journal.make(change);
        self.tokens_now.borrow_mut().remove(&unit);
        for replacement in &mut replacements {
            replacement.change = Some(change);
            let before = self
                .replacements
                .get(&replacement.span.start)
                .map_or(replacement.span.len(), |replacement| replacement.with.len());
            self.n_bytes = (self.n_bytes + replacement.with.len()).saturating_sub(before);
            if let Some(moot) = self.replacements.insert(replacement.span.start, replacement.clone()) {
                self.revoke_if_gone(moot.change, unit);
            }
        }
        true
    }

    /// Notes what a message was before it left, which is as large as it counts in the timeline; nothing of it is sent or
    /// stored.
    fn replace_in_dropped(&mut self, unit: UnitIndex, replacements: Vec<Replacement>) {
        let can_store = self.context.offload == Offload::Possible;
        for replacement in replacements.into_iter().filter(|replacement| can_store || replacement.stored.is_none()) {
            self.replacements.insert(replacement.span.start, Replacement { stored: None, change: None, ..replacement });
        }
        self.tokens_now.borrow_mut().remove(&unit);
    }

    /// Revokes the change that a replacement was part of, if none of its replacements is left.
    pub(super) fn revoke_if_gone(&mut self, change: Option<ChangeId>, unit: UnitIndex) {
        let Span { start, end } = self.span(unit);
        if let Some(id) = change
            && self.replacements.range(start..end).all(|(_, replacement)| replacement.change != change)
        {
            self.journal.revoke(id);
        }
    }

    /// Whether a message is there, in its place or moved.
    pub(super) fn stands(&self, unit: UnitIndex) -> bool {
        self.is_in_place(unit) || self.moved.contains(&unit)
    }

    pub(super) fn retrieval_method(&self) -> &RetrievalMethod<'a> {
        // Tools that come later would change what was said before, so they count only where there is no way without them.
        self.retrieval_method.get_or_init(|| match self.method_with(&mut self.leading_tools()) {
            RetrievalMethod::Unavailable => {
                let conversation = self.request.conversation;
                self.method_with(&mut conversation.tools.iter().chain(&conversation.more_tools))
            }
            found => found,
        })
    }

    fn method_with(&self, offered: &mut dyn Iterator<Item = &Span>) -> RetrievalMethod<'a> {
        let ParsedRequest { dialect, body, .. } = self.request;
        let mut offered = offered.peekable();
        let names = match offered.peek() {
            _ if !self.recall.depends_on_tools() => Vec::new(),
            // A request for a compaction offers no tools; those are known that have been called.
            None if self.summarises_all() => {
                let blocks = (0..self.whole.blocks.len()).map(BlockIndex::new);
                blocks.map(|block| self.whole.tool_name(block).into()).collect()
            }
            _ => offered.flat_map(|tools| dialect.tool_names(body, *tools)).collect(),
        };
        match self.recall.retrieval_method(&names) {
            RetrievalMethod::Tool { is_added: true, .. } if self.end_of_tools().is_none() => {
                RetrievalMethod::Unavailable
            }
            found => found,
        }
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

    /// Whether a program gets a unit that is a result, or calls in it, and the model does not read it.
    pub fn is_for_program(&self, unit: UnitIndex) -> bool {
        self.request.conversation.unit(unit).is_some_and(|unit| unit.flags.for_program)
    }

    /// Whether a result answers a call that asked for a payload of ours. What the result says is not read.
    pub fn is_recall(&self, unit: UnitIndex) -> bool {
        let call = self.pairing().answered_block(unit);
        let is_recall = |call| {
            let arguments = self.arguments(call)?;
            Some(self.recall.is_recall_call(self.whole.tool_name(call), &arguments))
        };
        call.and_then(is_recall).unwrap_or(false)
    }

    /// The arguments of the call that is a block, as the model has written them; none if it is not a call, or has none.
    pub fn arguments(&self, call: BlockIndex) -> Option<Cow<'a, str>> {
        let ParsedRequest { dialect, body, .. } = self.request;
        strings::text_or_json(body, dialect.input(body, self.call_span(call)?)?.span)
    }

    /// The JSON of the call that is a block; none if it is not a call.
    pub fn call_json(&self, call: BlockIndex) -> Option<&'a [u8]> {
        Some(self.call_span(call)?.of(self.request.body))
    }

    pub(super) fn call_span(&self, call: BlockIndex) -> Option<Span> {
        let block = self.request.conversation.block(call)?;
        matches!(block.kind, BlockKind::ToolCall { .. }).then_some(block.span)
    }
}
