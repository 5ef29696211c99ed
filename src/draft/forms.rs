//! Forms that an upstream requires, applied after the edits.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use memchr::memmem;

use super::{Draft, Inserted, Insertion, ProposedEdit, ReplaceOptions, Replacement, TextCut};
use crate::conversation::{Block, BlockIndex, BlockKind, CallId, CallIndex, Role, Unit, UnitIndex};
use crate::dialect::{self, Form, media, strings};
use crate::language::Language;
use crate::payload::{Fingerprint, MediaType};
use crate::plan::Action;
use crate::span::{Span, Splice, joined, splice};
use crate::tokens::image::Dimensions;

/// The text of the user between two texts of the model.
const GO_ON: &str = "Go on.";

/// The label of the changes that a form makes.
const LABEL: &str = "form";

/// The longest id of a call that every upstream accepts: OpenAI's Chat Completions has the lowest limit.
const LONGEST_ID: usize = 40;

/// The most base64 that Anthropic's API accepts of an image, in bytes.
const MAX_IMAGE: usize = 5 << 20;

/// The longest side of an image that it accepts, in pixels.
const MAX_SIDE: usize = 8000;

/// The longest beginning of an id that another id is made of.
const LONGEST_START: usize = 32;

impl Draft<'_> {
    /// Brings the request into the forms that the upstream requires.
    pub fn apply_forms(&mut self) {
        let forms: &[Form] = &std::mem::take(&mut self.forms);
        for form in forms {
            match form {
                Form::Arguments => self.mend_arguments(),
                Form::NoReasoningFields if forms.contains(&Form::ReasoningContent) => {}
                Form::Filled
                | Form::TextsBesideCalls
                | Form::ReasoningContent
                | Form::SignedCalls
                | Form::NewSignatures
                | Form::LeadingSystem
                | Form::NoReasoningFields => self.mend_elements(*form),
                Form::Bridge if forms.contains(&Form::Alternating) => {}
                Form::Bridge | Form::Alternating => self.bridge(forms),
                Form::UniqueIds => {
                    if !forms.contains(&Form::NineIds) {
                        self.rename_calls(is_portable, numbered);
                    }
                    let (mut met, body) = (BTreeSet::new(), self.body);
                    self.drop_item_ids(|_, id| id.is_some_and(|id| !met.insert(id.of(body).trim_ascii_end())));
                }
                Form::NineIds => self.rename_calls(is_nine, nine),
                Form::NamedResults => self.name_results(),
                Form::ToolParameters => {
                    let tools = self.conversation.tools.unwrap_or_default();
                    let missing = dialect::missing_parameters(self.body, tools);
                    self.report.mends_tools = !missing.is_empty();
                    self.beside.extend(missing);
                }
                Form::FourCacheMarks => self.drop_marks(),
                Form::PairedServerTools => self.pair_server_calls(),
                Form::NoItemIds => {
                    // In turns without reasoning, and before the reasoning of others.
                    let mut thinks = None;
                    self.drop_item_ids(|unit, _| {
                        let is_of_model = unit.role == Role::Assistant;
                        thinks = if is_of_model && unit.flags.thinks { Some(unit.turn) } else { thinks };
                        is_of_model && thinks != Some(unit.turn)
                    });
                }
                Form::TextOnlyErrors | Form::NewImages | Form::SmallImages => self.clear_media(*form),
                Form::FewImages => {} // `clear_tool_results` keeps the limits
            }
        }
    }

    /// The contents of all messages and results, each with the first unit that has it, and whether it is that of a result.
    pub fn contents(&self) -> BTreeMap<Span, (UnitIndex, bool)> {
        let elements = self.conversation.elements.iter();
        let of_elements =
            elements.filter_map(|element| Some((element.units.start, false, media::content(self.body, element.span)?)));
        let results = self.conversation.indexed_units().filter(|(_, unit)| unit.role == Role::Tool);
        let of_results = results.filter_map(|(index, unit)| Some((index, true, unit.content?)));
        // Where a result is an element, its content is found both ways.
        of_elements.chain(of_results).map(|(unit, is_result, content)| (content, (unit, is_result))).collect()
    }

    /// Replaces images, files and sound for a form: of messages of the user that the model has answered, of results that
    /// report an error, or of all messages and results.
    fn clear_media(&mut self, form: Form) {
        let why = self.language.choose(", larger than the API accepts", "，超过接口上限");
        let why = if form == Form::SmallImages { why } else { "" };
        let mut contents = self.contents();
        contents.retain(|_, (unit, is_result)| match form {
            Form::TextOnlyErrors => *is_result && dialect::is_error_result(self.body, self.span(*unit)),
            Form::NewImages => !*is_result && !self.is_unread(*unit) && self.is_of_user(*unit),
            _ => true,
        });
        for part in contents.into_keys().flat_map(|content| media::parts(self.body, content)) {
            let accepts = || form == Form::SmallImages && !is_too_large(part.data.of(self.body));
            if self.replacements.contains_key(&part.span.start) || accepts() {
                continue; // an edit has replaced it, or it may stay
            }
            let unit = self.unit_at(part.span);
            let Some(source) = self.source_part(&part) else { continue };
            let (len, media) = (source.name.len, source.name.media.unwrap_or(MediaType::Text));
            let (how, name) = (self.retrieval_words(source.name.key, media), media.name());
            let words = match self.language {
                Language::En => format!("[Cleared: {name} of {len} bytes{why}. {how}"),
                Language::Zh => format!("[已清除：{name}，{len} 字节{why}。{how}"),
            };
            let cut = TextCut { from: 0, to: len, words: words.trim_end().to_owned() + "]" };
            let mut proposed = ProposedEdit { unit, ..ProposedEdit::default() };
            self.add(&mut proposed, &source, &cut, true);
            self.apply_to_any(LABEL, Action::Clear { message: unit.get() }, proposed);
        }
    }

    /// Whether the user says something in the element of a unit.
    fn is_of_user(&self, unit: UnitIndex) -> bool {
        let units = self.conversation.element(self.element_of(unit)).map(|element| &element.units);
        let mut units = units.into_iter().flat_map(|units| self.conversation.unit_range(units));
        units.any(|unit| unit.role == Role::User)
    }

    /// The unit that has this range, or the first one of its element.
    fn unit_at(&self, span: Span) -> UnitIndex {
        let elements = &self.conversation.elements;
        let element = elements.get(elements.partition_point(|element| element.span.end <= span.start));
        let units = element.map(|element| element.units.clone()).unwrap_or_default();
        let holds = |unit: &UnitIndex| self.span(*unit).start <= span.start && span.end <= self.span(*unit).end;
        UnitIndex::each(&units).find(holds).unwrap_or(units.start)
    }

    /// Takes marks for the prompt cache off, from the beginning of the conversation on, until there are four. After a mark of
    /// five minutes, those of an hour become such marks.
    fn drop_marks(&mut self) {
        const HOUR: &[u8] = b"\"1h\"";
        let n_marks = memmem::find_iter(self.body, dialect::CACHE_MARK).count();
        let mut too_many = n_marks.saturating_sub(dialect::MAX_CACHE_MARKS);
        let before = self.conversation.tools.iter().chain(&self.conversation.instructions);
        let mut before = before.flat_map(|part| dialect::cache_marks(self.body, *part));
        let mut is_short = before.any(|mark| memmem::find(mark.of(self.body), HOUR).is_none());
        for element in &self.conversation.elements {
            for mark in dialect::cache_marks(self.body, element.span) {
                let unit = self.unit_at(mark);
                if too_many > 0 && self.mend(unit, mark, Bytes::new()) {
                    too_many -= 1;
                    continue;
                }
                match memmem::find(mark.of(self.body), HOUR) {
                    Some(at) if is_short => {
                        let hour = Span { start: mark.start + at, end: mark.start + at + HOUR.len() };
                        self.mend(unit, hour, Bytes::from_static(b"\"5m\""));
                    }
                    Some(_) => {}
                    None => is_short = true,
                }
            }
        }
    }

    /// Replaces calls that the server answers itself without their results, and such results without calls. The last element
    /// may end in a call that the server goes on with.
    fn pair_server_calls(&mut self) {
        const WORDS: &str =
            "[A call of a server's tool without its result, or such a result without its call, was here.]";
        let elements = self.conversation.elements.iter();
        let blocks: Vec<_> = elements.flat_map(|element| self.dialect.server_blocks(self.body, element.span)).collect();
        // The first call of each id, and its last result.
        let (mut called, mut answered) = (BTreeMap::new(), BTreeMap::new());
        for (n, block) in blocks.iter().enumerate() {
            if block.is_result {
                answered.insert(&block.id, n);
            } else {
                called.entry(&block.id).or_insert(n);
            }
        }
        let last = self.conversation.elements.last().map_or(0, |last| last.span.start);
        for (n, block) in blocks.iter().enumerate() {
            let is_whole = if block.is_result {
                called.get(&block.id).is_some_and(|call| *call < n)
            } else {
                block.span.start >= last || answered.get(&block.id).is_some_and(|result| *result > n)
            };
            if !is_whole {
                let with = self.dialect.render_text_part(self.body, block.span, WORDS);
                self.store_and_replace(block.span, with);
            }
        }
    }

    /// Gives results the names of their tools.
    fn name_results(&mut self) {
        if !self.dialect.facts().names_results {
            return;
        }
        let pairing = self.pairing();
        for result in &pairing.results {
            let call = pairing.answered_block(result.unit);
            let name = call.map(|call| self.conversation.tool_name(call)).filter(|name| !name.is_empty());
            let span = self.span(result.unit);
            if let Some((at, with)) = name.and_then(|name| dialect::result_name(self.body, span, name)) {
                self.mend(result.unit, at, with);
            }
        }
        for insertion in &mut self.insertions {
            let Insertion { what: Inserted::New(call), bytes, .. } = insertion else { continue };
            let name = self.conversation.tool_name(*call);
            if let Some((span, with)) = dialect::result_name(bytes, Span { start: 0, end: bytes.len() }, name) {
                *bytes = joined(splice(bytes, &[Splice { span, with }]));
            }
        }
    }

    /// Takes the ids off the items that lose them.
    fn drop_item_ids(&mut self, mut loses: impl FnMut(&Unit, Option<Span>) -> bool) {
        for (index, unit) in self.conversation.indexed_units() {
            let id = self.dialect.name_beside_reasoning(self.body, unit.span);
            let loses = loses(unit, id);
            if let Some(id) = id.filter(|_| loses) {
                self.mend(index, id, Bytes::new());
            }
        }
    }

    /// Replaces arguments that are not a JSON object.
    fn mend_arguments(&mut self) {
        let options = ReplaceOptions { stored: true, smaller: false, media: false };
        for call in (0..self.conversation.blocks.len()).map(BlockIndex::new) {
            let (Some(span), Some(unit)) = (self.request().call(call), self.conversation.caller(call)) else {
                continue;
            };
            if let Some((input, with)) = self.dialect.retyped_input(self.body, span) {
                self.mend(unit, input, with);
                continue;
            }
            let input = self.dialect.input(self.body, span);
            let takes_object = input.is_some_and(|input| input.emptied_text() == "{}");
            if !takes_object || self.request().arguments(call).is_none_or(|arguments| strings::is_object(&arguments)) {
                continue;
            }
            if let Ok(proposed) = self.propose_input(call, options) {
                self.apply_to_any(LABEL, Action::ClearInput { message: unit.get() }, proposed);
            }
        }
    }

    /// Makes the replacements that the dialect names for each element. Reasoning in fields of one vendor is stored.
    fn mend_elements(&mut self, form: Form) {
        for (n, element) in self.conversation.elements.iter().enumerate() {
            let stands = UnitIndex::each(&element.units).any(|unit| self.stands(unit));
            if !stands || (n == 0 && form == Form::LeadingSystem) {
                continue;
            }
            for (span, with) in self.dialect.form_replacements(self.body, element.span, form) {
                if form == Form::NoReasoningFields {
                    self.store_and_replace(span, Bytes::new());
                } else {
                    self.mend(self.unit_at(span), span, Bytes::from_static(with.as_bytes()));
                }
            }
        }
    }

    /// Replaces a value that is stored as it is.
    fn store_and_replace(&mut self, span: Span, with: Bytes) {
        let unit = self.unit_at(span);
        let text = str::from_utf8(span.of(self.body)).unwrap_or_default();
        let stored = self.payload_name(span, Fingerprint::of(text.as_bytes()), || Some(text));
        self.overwrite(LABEL, Action::Mend { message: unit.get() }, unit, Replacement::whole(span, with, stored));
    }

    /// Inserts an answer of the model between results and a message of the user, which later instructions may become. If texts
    /// have to alternate, it is inserted between two of the user, and a text of the user between two of the model.
    fn bridge(&mut self, forms: &[Form]) {
        let [bridges, alternates, leads_system] =
            [Form::Bridge, Form::Alternating, Form::LeadingSystem].map(|form| forms.contains(&form));
        let dialect = self.dialect;
        let Some(mut bridge) = dialect.facts().bridge.clone() else { return };
        if forms.contains(&Form::ReasoningContent) {
            let whole = Span { start: 0, end: bridge.len() };
            let missing = dialect.form_replacements(&bridge, whole, Form::ReasoningContent).into_iter();
            let missing = missing.map(|(span, with)| Splice { span, with: Bytes::from_static(with.as_bytes()) });
            bridge = joined(splice(&bridge, &missing.collect::<Vec<_>>()));
        }
        let go_on = dialect.render_user_message(GO_ON);
        let is_result = |insertion: &&Insertion| !insertion.gone && !matches!(insertion.what, Inserted::Text);
        let with_results: BTreeSet<_> = self.insertions.iter().filter(is_result).map(|result| result.behind).collect();
        let is_of_user =
            |role: Role| role == Role::User || (leads_system && matches!(role, Role::System | Role::Developer));
        // The unit with the last text, and whether it is the user's. The first text has to be.
        let mut last = None;
        let (mut before, mut ends_in_result) = (None, false);
        let mut places: Vec<(UnitIndex, &Bytes)> = Vec::new();
        for (index, unit) in self.conversation.indexed_units() {
            if self.is_in_place(index) {
                let mut blocks = self.conversation.blocks_of(unit).iter();
                let calls = blocks.any(|block| matches!(block.kind, BlockKind::ToolCall { .. }));
                let is_answer = unit.role == Role::Assistant && !calls;
                let by_user = is_of_user(unit.role) && (before.is_some() || unit.role == Role::User);
                last = last.or(before.filter(|_| alternates).map(|before| (before, false)));
                let again = alternates && last.is_some_and(|(_, by)| by);
                if by_user && ((bridges && ends_in_result) || again) {
                    places.extend(before.map(|before| (before, &bridge)));
                } else if let Some((said, false)) = last.filter(|_| alternates && is_answer) {
                    places.push((said, &go_on));
                }
                if by_user || is_answer {
                    last = Some((index, by_user));
                }
                ends_in_result = unit.role == Role::Tool;
            }
            if self.texts.contains(&index) {
                last = Some((index, true));
            }
            ends_in_result |= with_results.contains(&index);
            before = Some(index);
        }
        // Nothing is inserted into a beginning that a summary replaces.
        let is_frozen = self.first_editable > self.conversation.first_editable();
        for (behind, what) in places {
            if !is_frozen || behind >= self.first_editable {
                self.insert_message(LABEL, behind, what.clone());
            }
        }
    }

    /// Gives a new id to each call whose id an earlier call has or is not a `valid` one, and to its result. `make` makes an id of
    /// the beginning of the old one and a number.
    fn rename_calls(&mut self, valid: fn(&str) -> bool, make: fn(&str, usize) -> String) {
        let (conversation, pairing) = (self.conversation, self.pairing());
        let mut taken: BTreeSet<String> =
            conversation.blocks.iter().map(|block| id_of(block).text.clone().into_owned()).collect();
        let mut results: BTreeMap<CallIndex, Vec<UnitIndex>> = BTreeMap::new();
        for result in &pairing.results {
            if let Some(call) = result.answers {
                results.entry(call).or_default().push(result.unit);
            }
        }
        let mut met = BTreeSet::new();
        // The last number of the ids that are made of one beginning.
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        let mut renamed = BTreeMap::new();
        for (n, call) in pairing.calls.iter().enumerate() {
            let Some(id) = conversation.block(call.block).map(id_of) else { continue };
            let is_new = met.insert(&id.text);
            let is_right = is_new && valid(&id.text) || id.text.is_empty() && !results.contains_key(&CallIndex::new(n));
            let Some(raw) = id.raw.filter(|_| !is_right) else { continue };
            let number = last.entry(make(&id.text, 0)).or_insert(usize::from(!is_new));
            let another = loop {
                *number += 1;
                let another = make(&id.text, *number);
                if taken.insert(another.clone()) {
                    break another;
                }
            };
            let Ok(json) = serde_json::to_vec(&another).map(Bytes::from) else { continue };
            let unit = conversation.caller(call.block).unwrap_or_default();
            if !self.mend(unit, raw, json.clone()) {
                continue;
            }
            for unit in results.remove(&CallIndex::new(n)).unwrap_or_default() {
                let of = conversation.unit(unit).and_then(|unit| conversation.blocks_of(unit).first()).map(id_of);
                if let Some(raw) = of.and_then(|id| id.raw) {
                    self.mend(unit, raw, json.clone());
                }
            }
            renamed.insert(call.block, (raw, json));
        }
        for insertion in &mut self.insertions {
            if let Insertion { what: Inserted::New(call), bytes, .. } = insertion
                && let Some((raw, json)) = renamed.get(call)
                && let Some(at) = memmem::find(bytes, raw.of(self.body))
            {
                let rest = bytes.get(at + raw.len()..).unwrap_or_default();
                *bytes = [bytes.get(..at).unwrap_or_default(), json, rest].concat().into();
            }
        }
    }

    /// Replaces a JSON value. False if an edit has replaced it already, or if the message is removed.
    fn mend(&mut self, unit: UnitIndex, span: Span, with: Bytes) -> bool {
        self.overwrite(LABEL, Action::Mend { message: unit.get() }, unit, Replacement::whole(span, with, None))
    }
}

/// Whether every upstream accepts an id, except those that require nine letters and digits.
fn is_portable(id: &str) -> bool {
    (1..=LONGEST_ID).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// An id that every upstream accepts.
fn numbered(id: &str, number: usize) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let start: String = id.chars().take(LONGEST_START).map(plain).collect();
    format!("{start}_{number}")
}

/// Whether an id has nine letters and digits.
fn is_nine(id: &str) -> bool {
    id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// An id of nine letters and digits.
fn nine(id: &str, number: usize) -> String {
    blake3::hash(format!("{number} {id}").as_bytes()).to_hex().chars().take(9).collect()
}

/// Whether the data of a part, a JSON string, are an image that is larger than Anthropic's API accepts.
fn is_too_large(data: &[u8]) -> bool {
    let image = str::from_utf8(data).ok().and_then(Dimensions::in_string);
    image.is_some_and(|image| data.len() > MAX_IMAGE || image.width.max(image.height) > MAX_SIDE)
}

/// The id of a call, or of the call that a result answers.
fn id_of<'b, 'a>(block: &'b Block<'a>) -> &'b CallId<'a> {
    match &block.kind {
        BlockKind::ToolCall { id, .. } | BlockKind::ToolResult { call_id: id, .. } => id,
    }
}
