//! Texts inside messages, and what is put in their place.
//!
//! An edit makes an [`ProposedEdit`] first, which says what would come of it, and then [`Draft::make`]s it or not.

use std::{borrow::Cow, cell::OnceCell, fmt};

use bytes::Bytes;

use super::{Draft, Offload, ParsedRequest};
use crate::{
    conversation::{BlockKind, Role},
    dialect::strings,
    payload::{DecodedValue, Fingerprint, PayloadName},
    plan::{Action, Sizes, SkipReason, SkippedChange, Stale},
    recall::RetrievalMethod,
    span::{Span, Splice},
};

/// A value that is replaced.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    pub(super) span: Span,
    /// The JSON value that stands there now.
    pub(super) with: Bytes,
    /// What that is known by.
    pub(super) fingerprint: Fingerprint,
    /// The name of what stood there, if that is stored.
    pub(super) stored: Option<PayloadName>,
    /// The index of the change that says so.
    pub(super) change: usize,
}

/// What an edit wants to be done with texts that it replaces.
#[derive(Clone, Copy, Debug)]
pub struct ReplaceOptions {
    /// They are stored, and may be replaced only if that is possible.
    pub stored: bool,
    /// They are replaced only by something smaller.
    pub smaller: bool,
}

/// One text of a result as the client sent it, for an edit to look at.
pub struct ResultText<'t> {
    /// How many bytes it has.
    pub len: usize,
    /// How many texts the result has.
    pub n_texts: usize,
    /// The bytes of all of them.
    pub n_bytes: usize,
    retrieval: &'t OnceCell<(String, String)>,
    find_retrieval: &'t dyn Fn() -> (String, String),
    read: &'t dyn Fn() -> &'t str,
}

/// One text of a result, unescaped when somebody wants to read it.
struct SourceText<'t> {
    request: ParsedRequest<'t>,
    span: Span,
    name: PayloadName,
    text: OnceCell<Cow<'t, str>>,
}

impl fmt::Debug for ResultText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("n_texts", &self.n_texts).field("n_bytes", &self.n_bytes).finish_non_exhaustive()
    }
}

impl ResultText<'_> {
    /// What it says. One that was seen before is not unescaped until then.
    pub fn text(&self) -> &str {
        (self.read)()
    }

    /// The handle and the words that say how to read what it names; both empty for a text that is not stored.
    pub fn retrieval(&self) -> (&str, &str) {
        let (handle, how) = self.retrieval.get_or_init(self.find_retrieval);
        (handle, how)
    }
}

/// What is taken out of a text, and what comes there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextCut {
    /// Where the part that is taken out begins.
    pub from: usize,
    /// Where it ends.
    pub to: usize,
    /// What comes there.
    pub words: String,
}

/// A replacement that could be made.
#[derive(Debug)]
pub struct ProposedEdit {
    pub(super) unit: usize,
    pub(super) call: Option<usize>,
    pub(super) replacements: Vec<Replacement>,
    pub(super) bytes: Sizes,
    pub(super) why: Option<Stale>,
}

/// Why there is no offer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotApplicable {
    /// There is nothing to replace.
    Nothing,
    /// What would stand there is not smaller.
    NotSmaller,
}

/// Of a longer text, only so many bytes are counted to see that it has more tokens than what comes there.
const COUNTED_PREFIX: usize = 2048;

/// Tokens that may merge, or part, at the seams.
const MARGIN: usize = 16;

impl Replacement {
    fn new(span: Span, with: Bytes, stored: Option<PayloadName>) -> Self {
        Self { span, fingerprint: Fingerprint::of(&with), with, stored, change: 0 }
    }

    /// A message that another one stands for.
    pub(super) fn whole(span: Span, with: Bytes, change: usize) -> Self {
        Self { span, fingerprint: Fingerprint::of(&with), with, stored: None, change }
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

impl SourceText<'_> {
    fn text(&self) -> &str {
        let ParsedRequest { body, .. } = self.request;
        // It has been read before, so it can be read.
        self.text.get_or_init(|| strings::text(body, self.span).unwrap_or_default())
    }
}

/// The piece of a text that is counted.
fn beginning(text: &str) -> &str {
    text.get(..text.floor_char_boundary(COUNTED_PREFIX)).unwrap_or_default()
}

impl ProposedEdit {
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
        let content = self.request.conversation.units.get(unit).and_then(|unit| unit.content);
        content.map_or(0, Span::len)
    }

    /// What comes of replacing in each text of a result what `cut` says.
    pub fn propose_result(
        &self,
        unit: usize,
        options: ReplaceOptions,
        mut cut: impl FnMut(&ResultText<'_>) -> Option<TextCut>,
    ) -> Result<ProposedEdit, NotApplicable> {
        let ParsedRequest { dialect, body, conversation } = self.request;
        let content = conversation.units.get(unit).and_then(|unit| unit.content);
        let spans = content.map(|content| dialect.texts(body, content)).unwrap_or_default();
        let fingerprint = |span: Span| match content {
            Some(content) if content == span => self.fingerprints(unit).content,
            _ => Fingerprint::of(span.of(body)),
        };
        let texts: Vec<_> = spans.into_iter().filter_map(|span| self.find(span, || fingerprint(span))).collect();
        let (n_texts, n_bytes) = (texts.len(), texts.iter().map(|text| text.name.len).sum());
        let call = self.pairing().answered_block(unit);
        let mut proposed = ProposedEdit { unit, call, replacements: Vec::new(), bytes: Sizes::default(), why: None };
        let mut not_applicable = NotApplicable::Nothing;
        for found in texts {
            let PayloadName { key, len, .. } = found.name;
            let find_retrieval = || {
                let retrieval_method =
                    options.stored.then(|| (key.to_string(), self.retrieval_method().words(self.language, key)));
                retrieval_method.unwrap_or_default()
            };
            let retrieval = &OnceCell::new();
            let read = || found.text();
            let shown = ResultText { len, n_texts, n_bytes, retrieval, find_retrieval: &find_retrieval, read: &read };
            let Some(cut) = cut(&shown) else { continue };
            if let Err(why) = self.check(&found, &cut, options) {
                not_applicable = why;
                continue;
            }
            let TextCut { from, to, words } = cut;
            proposed.bytes.before += len;
            proposed.bytes.after += len - (to - from) + words.len();
            let is_whole = to - from == len;
            let json = if is_whole {
                strings::render(&words)
            } else {
                strings::render_cut(body, found.span, from..to, &words)
            };
            proposed.replacements.push(Replacement::new(found.span, json, options.stored.then_some(found.name)));
        }
        if proposed.replacements.is_empty() { Err(not_applicable) } else { Ok(proposed) }
    }

    /// A text of a result, known by `fingerprint`; none if the string stands for none.
    fn find(&self, span: Span, fingerprint: impl FnOnce() -> Fingerprint) -> Option<SourceText<'a>> {
        let ParsedRequest { body, .. } = self.request;
        let text = OnceCell::new();
        let read = || {
            let read = strings::text(body, span)?;
            Some(text.get_or_init(|| read).as_ref())
        };
        let name = match self.replacements.get(&span.start).and_then(|replacement| replacement.stored) {
            Some(name) => name,
            None => self.name(span, fingerprint(), read)?,
        };
        Some(SourceText { request: self.request, span, name, text })
    }

    /// The name of what a value says, known by `fingerprint`; none if it does not say anything.
    fn name<'t>(
        &self,
        value: Span,
        fingerprint: Fingerprint,
        read: impl FnOnce() -> Option<&'t str>,
    ) -> Option<PayloadName> {
        let ParsedRequest { body, .. } = self.request;
        let said = || read().map(|text| DecodedValue { text, stored: strings::stored(body, value, text) });
        self.context.keys.name(self.context.caller, fingerprint, said)
    }

    /// Whether a text with its replacement is what the edit wants.
    fn check(&self, found: &SourceText<'_>, cut: &TextCut, options: ReplaceOptions) -> Result<(), NotApplicable> {
        // What stands there now is not what came, if an earlier edit has truncated it.
        let earlier = self.replacements.get(&found.span.start);
        let now = OnceCell::new();
        let now = || match earlier {
            Some(replacement) => now.get_or_init(|| replacement.text()).as_ref(),
            None => found.text(),
        };
        let whole = cut.from == 0 && cut.to == found.name.len;
        if whole && options.smaller {
            // It is not read, if its beginning was counted before.
            let (fingerprint, len) = match earlier {
                Some(replacement) => (replacement.fingerprint, replacement.with.len()),
                None => (Fingerprint::of(found.name.key.as_bytes()), found.name.len),
            };
            let tokens = (len > COUNTED_PREFIX).then(|| self.gauge().beginning(fingerprint, || beginning(now())));
            if tokens.is_some_and(|tokens| tokens > self.gauge().words(&cut.words) + MARGIN) {
                return Ok(());
            }
        }
        if whole && earlier.is_some() {
            return Self::wanted(&cut.words, now(), options, |with| self.is_fewer(now(), with));
        }
        let text = found.text();
        let parts = (text.get(..cut.from), text.get(cut.from..cut.to), text.get(cut.to..));
        let (Some(head), Some(taken), Some(tail)) = parts else { return Err(NotApplicable::Nothing) };
        let with = [head, &cut.words, tail].concat();
        Self::wanted(&with, now(), options, |with| match earlier {
            Some(_) => self.is_fewer(now(), with),
            None => self.is_smaller(text, taken, &cut.words, with),
        })
    }

    /// Whether what is to come in place of what is there now is another, and as small as it has to be.
    fn wanted(
        with: &str,
        now: &str,
        options: ReplaceOptions,
        is_smaller: impl FnOnce(&str) -> bool,
    ) -> Result<(), NotApplicable> {
        if with == now {
            Err(NotApplicable::Nothing)
        } else if options.smaller && !is_smaller(with) {
            Err(NotApplicable::NotSmaller)
        } else {
            Ok(())
        }
    }

    /// What comes of emptying the arguments of the call that is block `call`.
    pub fn propose_input(&self, call: usize, options: ReplaceOptions) -> Result<ProposedEdit, NotApplicable> {
        let block = self.request.conversation.blocks.get(call).ok_or(NotApplicable::Nothing)?;
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
        let stored = if options.stored { self.name(input.span, fingerprint(), || Some(&text)) } else { None };
        let bytes = Sizes { before: text.len(), after: with.len() };
        let replacement = Replacement::new(input.span, Bytes::from_static(input.emptied.as_bytes()), stored);
        Ok(ProposedEdit { unit: block.unit, call: Some(call), replacements: vec![replacement], bytes, why: None })
    }

    /// How many tokens fewer the message has if the offer is made.
    pub fn gain(&self, proposed: &ProposedEdit) -> usize {
        let ProposedEdit { unit, call, replacements, .. } = proposed;
        match *call {
            // Of a message with many calls, the one is counted that is another then.
            Some(call) if self.pairing().result(*unit).is_none() => {
                self.call_tokens(call, &[]).saturating_sub(self.call_tokens(call, replacements))
            }
            _ => self.message_tokens(*unit).saturating_sub(self.tokens_with(*unit, replacements)),
        }
    }

    /// Makes an offer. What it replaces is the client's text, also where an earlier edit has truncated that. False if the
    /// message is not to be touched, has not been read, or cannot be stored; of that the report tells.
    pub fn apply(&mut self, edit: &'static str, action: Action, proposed: ProposedEdit) -> bool {
        let ProposedEdit { unit, call, mut replacements, bytes, why } = proposed;
        let reads = matches!(action, Action::Truncate { .. });
        let unread = match self.request.conversation.units.get(unit).map(|unit| unit.role) {
            Some(Role::Assistant) => self.is_in_last_answer(unit),
            _ => self.is_unread(unit),
        };
        if unit < self.n_leading || (unread && !reads) {
            return false;
        }
        if !self.stands(unit) {
            if reads {
                self.replace_in_dropped(unit, replacements);
            }
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
            let (call_id, tool_name) = (change.call_id, change.tool_name);
            self.left_out.push(SkippedChange {
                edit,
                message: Some(unit),
                call_id,
                tool_name,
                why: SkipReason::NoStore,
            });
            return false;
        }
        change.why = why;
        change.handles =
            replacements.iter().filter_map(|replacement| replacement.stored.map(|name| name.key)).collect();
        let change = self.record(change);
        self.tokens_now.borrow_mut().remove(&unit);
        for replacement in &mut replacements {
            replacement.change = change;
            let before = self
                .replacements
                .get(&replacement.span.start)
                .map_or(replacement.span.len(), |replacement| replacement.with.len());
            self.n_bytes = (self.n_bytes + replacement.with.len()).saturating_sub(before);
            if let Some(moot) = self.replacements.insert(replacement.span.start, replacement.clone()) {
                self.forget(moot.change, unit);
            }
        }
        true
    }

    /// Notes what a message was before it left, which is as large as it counts in the timeline; nothing of it is sent or
    /// stored.
    fn replace_in_dropped(&mut self, unit: usize, replacements: Vec<Replacement>) {
        let can_store = self.context.offload == Offload::Possible;
        for replacement in replacements.into_iter().filter(|replacement| can_store || replacement.stored.is_none()) {
            self.replacements
                .insert(replacement.span.start, Replacement { stored: None, change: usize::MAX, ..replacement });
        }
        self.tokens_now.borrow_mut().remove(&unit);
    }

    /// Forgets a change, if nothing of it is left.
    pub(super) fn forget(&mut self, change: usize, unit: usize) {
        let Span { start, end } = self.span(unit);
        if self.replacements.range(start..end).all(|(_, replacement)| replacement.change != change)
            && let Some(moot) = self.changes.get_mut(change)
        {
            *moot = None;
        }
    }

    /// Whether a message is there, in its place or moved.
    fn stands(&self, unit: usize) -> bool {
        self.in_place.get(unit).copied().unwrap_or_default() || self.moved.contains(&unit)
    }

    pub(super) fn retrieval_method(&self) -> RetrievalMethod<'a> {
        *self.retrieval_method.get_or_init(|| {
            let tools = self.request.conversation.tools.filter(|_| self.recall.depends_on_tools());
            let names = tools.map(|tools| self.request.dialect.tool_names(self.request.body, tools));
            self.recall.retrieval_method(&names.unwrap_or_default())
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
        let ParsedRequest { dialect, body, conversation } = self.request;
        let block = conversation.blocks.get(call).filter(|block| matches!(block.kind, BlockKind::ToolCall { .. }))?;
        strings::text_or_json(body, dialect.input(body, block.span)?.span)
    }
}
