//! Forms that an upstream requires, applied after the edits.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use memchr::memmem;

use super::{
    Draft, ParsedRequest, ProposedEdit, ReplaceOptions,
    insertion::{Inserted, Insertion},
    replacement::{NewValue, Replacement},
    source_text::TextCut,
};
use crate::{
    conversation::{Block, BlockIndex, BlockKind, CallId, CallIndex, Role, Unit, UnitIndex},
    dialect::{self, Form, media, strings},
    language::Language,
    payload::{Fingerprint, MediaType},
    plan::{Action, Sizes},
    span::{Span, Splice, joined, splice},
    tokens::image::Dimensions,
};

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
                Form::Filled
                | Form::TextsBesideCalls
                | Form::ReasoningContent
                | Form::SignedCalls
                | Form::NewSignatures
                | Form::LeadingSystem => self.mend_elements(*form),
                Form::NoReasoningFields if forms.contains(&Form::ReasoningContent) => {}
                Form::NoReasoningFields => self.drop_reasoning_fields(),
                Form::Bridge if forms.contains(&Form::Alternating) => {}
                Form::Bridge | Form::Alternating => self.bridge(forms),
                Form::UniqueIds => {
                    if !forms.contains(&Form::NineIds) {
                        self.rename_calls(is_portable, numbered);
                    }
                    self.drop_repeated_ids();
                }
                Form::NineIds => self.rename_calls(is_nine, nine),
                Form::NamedResults => self.name_results(),
                Form::FourCacheMarks => self.drop_marks(),
                Form::TextOnlyErrors => self.clear_media(self.contents_of_errors(), *form),
                Form::PairedServerTools => self.pair_server_calls(),
                Form::NoItemIds => self.drop_item_ids(),
                Form::NewImages => self.clear_media(self.contents_of_the_user(), *form),
                Form::SmallImages => self.clear_media(self.contents_of_all(), *form),
                Form::FewImages => {} // `clear_tool_results` keeps the limits
            }
        }
    }

    /// The contents of messages of the user that the model has answered.
    fn contents_of_the_user(&self) -> Vec<Span> {
        let ParsedRequest { body, conversation, .. } = self.request;
        let is_of_user = |unit: &Unit| unit.role == Role::User;
        let elements = conversation.elements.iter().filter(|element| {
            let units = conversation.unit_range(&element.units);
            !self.is_unread(element.units.start) && units.iter().any(is_of_user)
        });
        elements.filter_map(|element| media::content(body, element.span)).collect()
    }

    /// The contents of results that report an error.
    fn contents_of_errors(&self) -> Vec<Span> {
        let ParsedRequest { body, conversation, .. } = self.request;
        let errors = conversation
            .units
            .iter()
            .filter(|unit| unit.role == Role::Tool && dialect::is_error_result(body, unit.span));
        errors.filter_map(|unit| unit.content).collect()
    }

    /// The contents of messages and results.
    fn contents_of_all(&self) -> Vec<Span> {
        let ParsedRequest { body, conversation, .. } = self.request;
        let of_elements = conversation.elements.iter().filter_map(|element| media::content(body, element.span));
        let of_results = conversation.units.iter().filter(|unit| unit.role == Role::Tool);
        let all: BTreeSet<_> = of_elements.chain(of_results.filter_map(|unit| unit.content)).collect();
        all.into_iter().collect()
    }

    /// Replaces images, files and sound in these contents for a form.
    fn clear_media(&mut self, contents: Vec<Span>, form: Form) {
        let options = ReplaceOptions { stored: true, smaller: false, media: true };
        let body = self.request.body;
        let (en, zh) = match form {
            Form::SmallImages => (", larger than the API accepts", "，超过接口上限"),
            _ => ("", ""),
        };
        for part in contents.into_iter().flat_map(|content| media::parts(body, content)) {
            let accepts = || form == Form::SmallImages && !is_too_large(part.data.of(body));
            if self.replacements.contains_key(&part.span.start) || accepts() {
                continue; // an edit has replaced it, or it may stay
            }
            let unit = self.unit_at(part.span);
            let Some(source) = self.source_part(&part) else { continue };
            let (len, media) = (source.name.len, source.name.media.unwrap_or(MediaType::Text));
            let (how, name) = (self.retrieval_words(source.name.key, media), media.name());
            let words = match self.language {
                Language::En => format!("[Cleared: {name} of {len} bytes{en}. {how}"),
                Language::Zh => format!("[已清除：{name}，{len} 字节{zh}。{how}"),
            };
            let cut = TextCut { from: 0, to: len, words: words.trim_end().to_owned() + "]" };
            let (replacements, bytes) = (Vec::new(), Sizes::default());
            let mut proposed = ProposedEdit { unit, call: None, replacements, bytes, why: None };
            proposed.add(&source, &cut, options);
            self.apply_to_any(LABEL, Action::Clear { message: unit.get() }, proposed);
        }
    }

    /// The unit that has this range, or the first one of its element.
    fn unit_at(&self, span: Span) -> UnitIndex {
        let elements = &self.request.conversation.elements;
        let element = elements.get(elements.partition_point(|element| element.span.end <= span.start));
        let units = element.map(|element| element.units.clone()).unwrap_or_default();
        let holds = |unit: &UnitIndex| self.span(*unit).start <= span.start && span.end <= self.span(*unit).end;
        UnitIndex::each(&units).find(holds).unwrap_or(units.start)
    }

    /// Takes marks for the prompt cache off, from the beginning of the conversation on, until there are four. After a mark of
    /// five minutes, those of an hour become such marks.
    fn drop_marks(&mut self) {
        const HOUR: &[u8] = b"\"1h\"";
        let ParsedRequest { body, conversation, .. } = self.request;
        let n_marks = memmem::find_iter(body, dialect::CACHE_MARK).count();
        let mut too_many = n_marks.saturating_sub(dialect::MAX_CACHE_MARKS);
        let before = conversation.tools.iter().chain(&conversation.instructions);
        let mut before = before.flat_map(|part| dialect::cache_marks(body, *part));
        let mut is_short = before.any(|mark| memmem::find(mark.of(body), HOUR).is_none());
        for element in &conversation.elements {
            for mark in dialect::cache_marks(body, element.span) {
                let unit = self.unit_at(mark);
                if too_many > 0 && self.replace_value(unit, mark, Bytes::new()) {
                    too_many -= 1;
                    continue;
                }
                match memmem::find(mark.of(body), HOUR) {
                    Some(at) if is_short => {
                        let hour = Span { start: mark.start + at, end: mark.start + at + HOUR.len() };
                        self.replace_value(unit, hour, Bytes::from_static(b"\"5m\""));
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
        let ParsedRequest { dialect, body, conversation } = self.request;
        let elements = conversation.elements.iter();
        let blocks: Vec<_> = elements.flat_map(|element| dialect.server_blocks(body, element.span)).collect();
        // The first call of each id, and its last result.
        let (mut called, mut answered) = (BTreeMap::new(), BTreeMap::new());
        for (n, block) in blocks.iter().enumerate() {
            if block.is_result {
                answered.insert(&block.id, n);
            } else {
                called.entry(&block.id).or_insert(n);
            }
        }
        let last = conversation.elements.last().map_or(0, |last| last.span.start);
        for (n, block) in blocks.iter().enumerate() {
            let is_whole = if block.is_result {
                called.get(&block.id).is_some_and(|call| *call < n)
            } else {
                block.span.start >= last || answered.get(&block.id).is_some_and(|result| *result > n)
            };
            if is_whole {
                continue;
            }
            let with = dialect.render_text_part(body, block.span, WORDS);
            self.store_and_replace(block.span, with);
        }
    }

    /// Gives results the names of their tools.
    fn name_results(&mut self) {
        let ParsedRequest { dialect, body, conversation } = self.request;
        if !dialect.facts().names_results {
            return;
        }
        let pairing = self.pairing();
        for result in &pairing.results {
            let call = pairing.answered_block(result.unit);
            let name = call.map(|call| conversation.tool_name(call)).filter(|name| !name.is_empty());
            let span = self.span(result.unit);
            if let Some((at, with)) = name.and_then(|name| dialect::result_name(body, span, name)) {
                self.replace_value(result.unit, at, with);
            }
        }
        for insertion in &mut self.insertions {
            if let Inserted::New { call, bytes } = &mut insertion.what
                && let name = conversation.tool_name(*call)
                && let Some((at, with)) = dialect::result_name(bytes, Span { start: 0, end: bytes.len() }, name)
            {
                *bytes = joined(splice(bytes, &[Splice { span: at, with }]));
            }
        }
    }

    /// Takes the ids off items in turns without reasoning.
    fn drop_item_ids(&mut self) {
        let ParsedRequest { dialect, body, conversation } = self.request;
        let mut thinks = None;
        for (index, unit) in conversation.indexed_units().filter(|(_, unit)| unit.role == Role::Assistant) {
            if unit.flags.thinks {
                thinks = Some(unit.turn);
            }
            let name = dialect.name_beside_reasoning(body, unit.span).filter(|_| thinks != Some(unit.turn));
            if let Some(name) = name {
                self.replace_value(index, name, Bytes::new());
            }
        }
    }

    /// Replaces arguments that are not a JSON object.
    fn mend_arguments(&mut self) {
        let options = ReplaceOptions { stored: true, smaller: false, media: false };
        let blocks = (0..self.request.conversation.blocks.len()).map(BlockIndex::new);
        for call in blocks.collect::<Vec<_>>() {
            let ParsedRequest { dialect, body, conversation } = self.request;
            let (Some(span), Some(unit)) = (self.call_span(call), conversation.caller(call)) else { continue };
            if let Some((input, with)) = dialect.retyped_input(body, span) {
                self.replace_value(unit, input, with);
                continue;
            }
            let takes_object = dialect.input(body, span).is_some_and(|input| input.emptied_text() == "{}");
            if !takes_object || self.arguments(call).is_none_or(|arguments| strings::is_object(&arguments)) {
                continue;
            }
            if let Ok(proposed) = self.propose_input(call, options) {
                let action = Action::ClearInput { message: proposed.unit().get() };
                self.apply_to_any(LABEL, action, proposed);
            }
        }
    }

    /// Makes the replacements that the dialect names for each element.
    fn mend_elements(&mut self, form: Form) {
        let conversation = self.request.conversation;
        for (n, element) in conversation.elements.iter().enumerate() {
            if (n == 0 && form == Form::LeadingSystem) || !UnitIndex::each(&element.units).any(|unit| self.stands(unit))
            {
                continue;
            }
            for (span, with) in self.request.dialect.form_replacements(self.request.body, element.span, form) {
                self.replace_value(self.unit_at(span), span, Bytes::from_static(with.as_bytes()));
            }
        }
    }

    /// Stores reasoning in fields of one vendor and takes it off.
    fn drop_reasoning_fields(&mut self) {
        let ParsedRequest { dialect, body, conversation } = self.request;
        for element in &conversation.elements {
            for (span, _) in dialect.form_replacements(body, element.span, Form::NoReasoningFields) {
                if self.stands(self.unit_at(span)) {
                    self.store_and_replace(span, Bytes::new());
                }
            }
        }
    }

    /// Replaces a value that is stored as it is.
    fn store_and_replace(&mut self, span: Span, with: Bytes) {
        let (body, unit) = (self.request.body, self.unit_at(span));
        let text = str::from_utf8(span.of(body)).unwrap_or_default();
        let stored = self.payload_name(span, Fingerprint::of(text.as_bytes()), || Some(text));
        let bytes = Sizes { before: span.len(), after: with.len() };
        let replacements = vec![Replacement::new(span, NewValue::whole(with), body, stored)];
        let proposed = ProposedEdit { unit, call: None, replacements, bytes, why: None };
        self.apply_to_any(LABEL, Action::Mend { message: unit.get() }, proposed);
    }

    /// Inserts an answer of the model between results and a message of the user, which later instructions may become. If texts
    /// have to alternate, it is inserted between two of the user, and a text of the user between two of the model.
    fn bridge(&mut self, forms: &[Form]) {
        let [bridges, alternates, leads_system] =
            [Form::Bridge, Form::Alternating, Form::LeadingSystem].map(|form| forms.contains(&form));
        let dialect = self.request.dialect;
        let Some(mut bridge) = dialect.facts().bridge.clone() else { return };
        if forms.contains(&Form::ReasoningContent) {
            let whole = Span { start: 0, end: bridge.len() };
            let missing = dialect.form_replacements(&bridge, whole, Form::ReasoningContent).into_iter();
            let missing = missing.map(|(span, with)| Splice { span, with: Bytes::from_static(with.as_bytes()) });
            bridge = joined(splice(&bridge, &missing.collect::<Vec<_>>()));
        }
        let go_on = dialect.render_user_message(GO_ON);
        let is_result = |insertion: &&Insertion| !insertion.gone && !matches!(insertion.what, Inserted::Text { .. });
        let with_results: BTreeSet<_> = self.insertions.iter().filter(is_result).map(|result| result.behind).collect();
        let is_of_user =
            |role: Role| role == Role::User || (leads_system && matches!(role, Role::System | Role::Developer));
        // The unit with the last text, and whether it is the user's. The first text has to be.
        let mut last = None;
        let (mut before, mut ends_in_result) = (None, false);
        let mut places: Vec<(UnitIndex, &Bytes)> = Vec::new();
        for (index, unit) in self.request.conversation.indexed_units() {
            if self.is_in_place(index) {
                let calls = self
                    .request
                    .conversation
                    .blocks_of(unit)
                    .iter()
                    .any(|block| matches!(block.kind, BlockKind::ToolCall { .. }));
                let by_user = is_of_user(unit.role) && (before.is_some() || unit.role == Role::User);
                last = last.or(before.filter(|_| alternates).map(|before| (before, false)));
                let again = alternates && last.is_some_and(|(_, by)| by);
                if by_user && ((bridges && ends_in_result) || again) {
                    places.extend(before.map(|before| (before, &bridge)));
                } else if let Some((said, false)) =
                    last.filter(|_| alternates && unit.role == Role::Assistant && !calls)
                {
                    places.push((said, &go_on));
                }
                if by_user || (unit.role == Role::Assistant && !calls) {
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
        let first = if self.first_editable > self.request.conversation.first_editable() {
            self.first_editable
        } else {
            UnitIndex::default()
        };
        for (behind, what) in places.into_iter().filter(|(place, _)| *place >= first) {
            self.insert_message(LABEL, behind, what.clone());
        }
    }

    /// Takes the ids off items whose id an earlier item has.
    fn drop_repeated_ids(&mut self) {
        let ParsedRequest { dialect, body, conversation } = self.request;
        let mut met = BTreeSet::new();
        for (index, unit) in conversation.indexed_units() {
            let id = dialect.name_beside_reasoning(body, unit.span);
            let Some(id) = id.filter(|id| !met.insert(id.of(body).trim_ascii_end())) else { continue };
            self.replace_value(index, id, Bytes::new());
        }
    }

    /// Gives a new id to each call whose id an earlier call has or is not a `valid` one, and to its result. `make` makes an id of
    /// the beginning of the old one and a number.
    fn rename_calls(&mut self, valid: fn(&str) -> bool, make: fn(&str, usize) -> String) {
        let (conversation, pairing) = (self.request.conversation, self.pairing());
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
            if !self.replace_value(unit, raw, json.clone()) {
                continue;
            }
            for unit in results.remove(&CallIndex::new(n)).unwrap_or_default() {
                let of = conversation.unit(unit).and_then(|unit| conversation.blocks_of(unit).first()).map(id_of);
                if let Some(raw) = of.and_then(|id| id.raw) {
                    self.replace_value(unit, raw, json.clone());
                }
            }
            renamed.insert(call.block, (raw, json));
        }
        for insertion in &mut self.insertions {
            if let Inserted::New { call, bytes } = &mut insertion.what
                && let Some((raw, json)) = renamed.get(call)
                && let Some(at) = memmem::find(bytes, raw.of(self.request.body))
            {
                let rest = bytes.get(at + raw.len()..).unwrap_or_default();
                *bytes = [bytes.get(..at).unwrap_or_default(), json, rest].concat().into();
            }
        }
    }

    /// Replaces a JSON value. False if an edit has replaced it already, or if the message is removed.
    fn replace_value(&mut self, unit: UnitIndex, span: Span, with: Bytes) -> bool {
        let is_taken = self
            .replacements
            .range(..=span.end)
            .next_back()
            .is_some_and(|(_, other)| other.span.end > span.start || other.span.start == span.start);
        if is_taken || !self.stands(unit) {
            return false;
        }
        let bytes = Sizes { before: span.len(), after: with.len() };
        let change = self.journal.make(self.about_result(LABEL, Action::Mend { message: unit.get() }, unit, bytes));
        self.n_bytes = (self.n_bytes + with.len()).saturating_sub(span.len());
        self.tokens_now.borrow_mut().remove(&unit);
        self.replacements.insert(span.start, Replacement::whole(span, with, change));
        true
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
