//! The frame of a summary in its message: texts that go through word for word, and how to go on.
//!
//! It is made of the original messages, so that nothing of it fades from one summary to the next.

use std::{borrow::Cow, collections::HashSet, ops::Range};

use bytes::Bytes;

use super::instruction::{Words, characters_left_out, messages_left_out, words};
use super::{PreserveSkills, Settings};
use crate::conversation::{BlockIndex, Conversation, ElementIndex, Pairing, Role, Unit, UnitIndex};
use crate::draft::{Draft, ParsedRequest};
use crate::language::Language;
use crate::payload::{OffloadedPayload, PayloadKey};
use crate::raw::{Fields, leaves, string};
use crate::summary::{Frame, NameSources, USER_MESSAGES, UsedNames};
use crate::tokens::Gauge;

/// The parts of a frame: texts of the messages that the summary replaces.
#[derive(Debug)]
pub struct FrameInput<'a> {
    /// The texts of the user's messages, from first to last.
    pub user_texts: Vec<Cow<'a, str>>,
    /// The names and the texts of skills that were loaded, from first to last.
    pub skills: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The handle of the transcript, if there is one, and how to read it.
    pub transcript: Option<(PayloadKey, Cow<'a, str>)>,
    /// Counts tokens.
    pub gauge: &'a Gauge,
    /// The most tokens of the user's messages.
    pub budget_tokens: usize,
}

/// How many characters are left at the beginning and at the end of a user's message that is too long.
const LEFT: usize = 1000;

/// The frame of each of the user's messages.
const ENTRY: (&str, &str) = ("<message>\n", "\n</message>");

/// A token is seldom more bytes than this; what is behind so many of them is not even counted.
const MAX_BYTES_PER_TOKEN: usize = 32;

/// The longest name of a skill, in characters.
const MAX_NAME: usize = 100;

/// The frame of the summary, without names.
pub fn frame(settings: &Settings, language: Language, said: &FrameInput<'_>) -> Frame {
    let words = words(language);
    let preserve = settings.preserve_user_messages.enabled;
    let skills = settings.preserve_skills.as_ref().and_then(|settings| skills(settings, language, said));
    let transcript = said.transcript.as_ref().map(|(handle, how)| {
        let text = format!("{}{handle}{}{how}", words.transcript, words.full_stop);
        text.trim_end().to_owned()
    });
    let behind: Vec<_> = [skills, transcript, Some(words.continuation.clone())].into_iter().flatten().collect();
    Frame {
        lead_in: words.lead_in.clone(),
        user_messages: if preserve { user_messages(language, said) } else { None },
        names: UsedNames::default(),
        behind: behind.join("\n\n"),
    }
}

/// Whether a text of the user is a message that holds a summary: a client may send what it was given, as it does after it has
/// asked for a compaction.
pub(super) fn is_own(text: &str, language: Language) -> bool {
    let Words { lead_in, continuation, .. } = words(language);
    text.strip_prefix(&**lead_in).is_some_and(|rest| rest.ends_with(&**continuation))
}

/// The user's words in such a message; none if a text is none.
pub(super) fn own_user_texts<'t>(text: &str, language: Language) -> Option<Vec<Cow<'t, str>>> {
    let ((open, close), (first, last)) = (USER_MESSAGES, ENTRY);
    let between = format!("{last}\n{first}");
    let section = text.split_once(open).and_then(|(_, rest)| rest.rsplit_once(close));
    let entries = section.and_then(|(section, _)| section.split_once(first)?.1.rsplit_once(last));
    let texts = entries.into_iter().flat_map(|(entries, _)| entries.split(&between));
    is_own(text, language).then(|| texts.map(|text| text.to_owned().into()).collect())
}

/// The name of the skill that a call loads, by its arguments: an object, or the text of one.
pub fn skill_name(arguments: &str) -> Option<String> {
    let arguments = string(arguments).unwrap_or(Cow::Borrowed(arguments));
    let name = Fields::of(&arguments)?.string("skill")?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

// === user messages ===

/// The section of the user's messages; none if there are none.
fn user_messages(language: Language, said: &FrameInput<'_>) -> Option<String> {
    let texts: Vec<_> = said.user_texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
    let around = said.gauge.text(&entry(""));
    let mut left = said.budget_tokens;
    let mut entries = Vec::new();
    for text in texts.iter().rev() {
        let mut takes = |text: &str| {
            let rest = left.checked_sub(said.gauge.text(text).saturating_add(around));
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        if texts.len() == 1 || takes(text) {
            entries.push(entry(text));
            continue;
        }
        let cut = without_middle(language, text);
        if takes(&cut) || entries.is_empty() {
            entries.push(entry(&cut));
        }
        break;
    }
    if entries.is_empty() {
        return None;
    }
    if entries.len() < texts.len() {
        entries.push(messages_left_out(language, texts.len() - entries.len()));
    }
    entries.reverse();
    let (open, close) = USER_MESSAGES;
    Some(format!("{open}\n{}\n{close}", entries.join("\n")))
}

fn entry(text: &str) -> String {
    let (first, last) = ENTRY;
    format!("{first}{text}{last}")
}

/// The beginning and the end of a text, and how much is missing between them; all of it where that would not be shorter.
fn without_middle(language: Language, text: &str) -> Cow<'_, str> {
    let nth = |n: usize| text.char_indices().nth(n).map(|(at, _)| at);
    let last = text.char_indices().nth_back(LEFT - 1).map(|(at, _)| at);
    let (Some(head), Some(tail)) = (nth(LEFT).and_then(|at| text.get(..at)), last.and_then(|at| text.get(at..))) else {
        return text.into();
    };
    let Some(n_missing) = text.chars().count().checked_sub(2 * LEFT) else { return text.into() };
    let mark = characters_left_out(language, n_missing);
    if mark.chars().count() < n_missing { format!("{head}{mark}{tail}").into() } else { text.into() }
}

// === skills ===

/// The skills that were loaded, each as it was loaded last; none if there are none.
fn skills(settings: &PreserveSkills, language: Language, said: &FrameInput<'_>) -> Option<String> {
    let mut names = HashSet::new();
    let newest = said.skills.iter().rev().filter(|(name, text)| !text.trim().is_empty() && names.insert(name));
    let mut left = settings.budget;
    let mut kept: Vec<_> = newest
        .take(settings.max_skills)
        .map_while(|(name, text)| {
            let text = beginning(text.trim(), settings.max_tokens_per_skill, language, said.gauge)?;
            left = left.checked_sub(said.gauge.text(&text))?;
            Some(format!("<skill name=\"{}\">\n{text}\n</skill>", plain(name)))
        })
        .collect();
    if kept.is_empty() {
        return None;
    }
    kept.push(words(language).skills.clone());
    kept.reverse();
    Some(kept.join("\n"))
}

/// A name without what would not stand well in an attribute.
fn plain(name: &str) -> String {
    name.chars().filter(|c| !c.is_control() && !matches!(c, '"' | '<' | '>')).take(MAX_NAME).collect()
}

/// As much of the beginning of a text as has no more than so many tokens, with the mark that says that it was cut; none if
/// that is nothing.
fn beginning<'t>(text: &'t str, most: usize, language: Language, gauge: &Gauge) -> Option<Cow<'t, str>> {
    let longest = most.saturating_mul(MAX_BYTES_PER_TOKEN);
    if text.len() <= longest && gauge.text(text) <= most {
        return Some(text.into());
    }
    let mark = &words(language).rest_of_skill;
    let mut end = text.floor_char_boundary(longest);
    while end > 0 {
        let cut = format!("{}{mark}", text.get(..end).unwrap_or_default());
        let tokens = gauge.text(&cut);
        if tokens <= most {
            return Some(cut.into());
        }
        // In proportion, and a bit less, so that few rounds are enough.
        let fits = end.saturating_mul(most) / tokens;
        end = text.floor_char_boundary((fits - fits / 32).min(end - 1));
    }
    None
}

// === the original messages ===

/// The messages that a summary replaces, as they came.
pub(super) struct Originals<'a> {
    pub(super) request: ParsedRequest<'a>,
    pub(super) units: Range<UnitIndex>,
}

impl<'a> Originals<'a> {
    /// The user's words, from first to last: of a summary that came back as a message, what the user says in that.
    pub(super) fn user_texts(&self, language: Language) -> Vec<Cow<'a, str>> {
        let units = self.units().iter().filter(|unit| unit.role == Role::User);
        let texts = units.filter_map(|unit| self.request.text(unit));
        texts.flat_map(|text| own_user_texts(&text, language).unwrap_or_else(|| vec![text])).collect()
    }

    /// The skills that were loaded, from first to last: their names, and what the tool said.
    pub(super) fn skills(&self, settings: Option<&PreserveSkills>) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
        let Some(settings) = settings else { return Vec::new() };
        let conversation = self.request.conversation;
        let pairing = Pairing::of(conversation);
        let results = pairing.results.iter().filter(|result| self.units.contains(&result.unit));
        let skill = |unit: UnitIndex| {
            let call = pairing.answered_block(unit).filter(|&call| conversation.tool_name(call) == settings.tool)?;
            let name = skill_name(&self.request.arguments(call)?)?;
            Some((name.into(), self.request.text(conversation.unit(unit)?)?))
        };
        results.filter_map(|result| skill(result.unit)).collect()
    }

    /// The texts among which names are looked for.
    pub(super) fn name_sources(&self) -> NameSources<Cow<'a, str>> {
        let ParsedRequest { body, conversation, .. } = self.request;
        let &Conversation { tools, instructions, format, .. } = conversation;
        let outside = [tools, instructions, format].into_iter().flatten();
        let outside = outside.filter_map(|value| str::from_utf8(value.of(body)).ok()).flat_map(leaves);
        let leading = conversation.unit_range(&(UnitIndex::default()..self.units.start));
        let tail = conversation.unit_range(&(self.units.end..conversation.next_unit()));
        let (beside, replaced): (Vec<_>, Vec<_>) = self.units().iter().partition(|unit| unit.flags.follows_user);
        let before = leading.iter().chain(beside).flat_map(|unit| self.says(unit));
        NameSources {
            in_sight: outside.map(|leaf| leaf.text.into()).chain(before).collect(),
            replaced: replaced.into_iter().flat_map(|unit| self.says(unit)).collect(),
            tail: tail.iter().flat_map(|unit| self.says(unit)).collect(),
        }
    }

    /// All messages as JSON, one a line, and their name in the store.
    pub(super) fn transcript(&self, draft: &Draft<'_>) -> OffloadedPayload {
        let conversation = self.request.conversation;
        let covered = ElementIndex::numbers(&conversation.elements_of(self.units.clone()));
        let elements = conversation.elements.get(covered).unwrap_or_default();
        let mut lines = Vec::with_capacity(elements.iter().map(|element| element.span.len() + 1).sum());
        for element in elements {
            // Inside of strings no line ends.
            let one_line = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
            lines.extend(element.span.of(self.request.body).iter().map(one_line));
            lines.push(b'\n');
        }
        OffloadedPayload {
            key: draft.context.keys.payload(draft.context.caller, &lines),
            payload: Bytes::from(lines).into(),
            likely_stored: false,
        }
    }

    fn units(&self) -> &'a [Unit] {
        self.request.conversation.unit_range(&self.units)
    }

    /// The texts of a unit and of the arguments of its calls.
    fn says(&self, unit: &Unit) -> Vec<Cow<'a, str>> {
        if unit.flags.for_program {
            return Vec::new();
        }
        let calls = BlockIndex::each(&unit.blocks).filter_map(|call| self.request.arguments(call));
        let arguments = calls.flat_map(|json| leaves(&json)).map(|leaf| leaf.text.into());
        self.request.text(unit).into_iter().chain(arguments).collect()
    }
}

#[cfg(test)]
mod tests;
