//! Summaries that replace what a conversation began with: what they are made from, what they become, and what is
//! remembered of them.

use std::{collections::HashMap, fmt::Debug, hash::BuildHasher, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::payload::{ChainKey, PayloadKey};

mod names;
mod outline;

pub use names::{NameSources, UsedNames};
pub use outline::{IndexedOutline, Outline, OutlinedMessage};

/// What replaces the messages between the instructions at the beginning and a cut.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Summary {
    /// The text of the message: the summary and all around it.
    pub text: String,
    /// How many tokens the messages had that it replaces, as the client sent them.
    pub tokens_replaced: usize,
    /// How many elements the request had that it was made for; 0 in summaries of earlier versions.
    #[serde(default)]
    pub made_at: usize,
    /// The name of the messages in the store, if they are there.
    pub transcript: Option<PayloadKey>,
}

/// A summary that a plan has used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UsedSummary {
    /// The index of the first message after those that it replaces, as they came.
    pub end: usize,
    /// The summary.
    pub summary: Arc<Summary>,
}

/// The states of all summaries, by the key of the prefix that each replaces.
pub trait SummaryIndex: Debug + Send + Sync {
    /// The state of the summary of a prefix. It reads no file and waits for nothing.
    fn state(&self, beginning: ChainKey) -> SummaryState;

    /// Whether no summary has a state.
    fn is_empty(&self) -> bool;
}

/// The state of the summary of one prefix.
#[derive(Clone, Debug)]
pub enum SummaryState {
    /// There is none.
    Unknown,
    /// It is in memory.
    Summary(Arc<Summary>),
    /// It is in the store and has to be loaded.
    Stored,
    /// It is being made.
    InProgress,
    /// It could not be made, and is not tried again for some time.
    CoolingDown,
}

/// An index without summaries.
#[derive(Clone, Copy, Debug)]
pub struct NoSummaries;

impl SummaryIndex for NoSummaries {
    fn state(&self, _: ChainKey) -> SummaryState {
        SummaryState::Unknown
    }

    fn is_empty(&self) -> bool {
        true
    }
}

/// An index in memory, for tests and simulations.
impl<S: BuildHasher + Send + Sync> SummaryIndex for HashMap<ChainKey, SummaryState, S> {
    fn state(&self, beginning: ChainKey) -> SummaryState {
        self.get(&beginning).cloned().unwrap_or(SummaryState::Unknown)
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

/// The input of a summary.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SummaryInput {
    /// The request as the client sent it, with all beside its messages.
    pub body: Bytes,
    /// The instructions at the beginning, and then what is summarised, as the edits have left it.
    pub messages: Vec<InputElement>,
    /// How many of them are instructions at the beginning.
    pub n_leading: usize,
    /// The tokens beside the messages.
    pub base_tokens: usize,
}

/// The form of the prompt for the model that summarises.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptMode {
    /// The request as it would have been sent, tools included, followed by the instruction; the provider's prompt cache
    /// can serve most of it.
    #[default]
    Cached,
    /// abridge's own instruction and the messages, without tools.
    Fresh,
    /// One message of the user with all of that as text, and no other field than the client sends: what every upstream takes.
    /// A request in another form that is refused is sent once more in this one.
    Plain,
}

/// The request to the model that summarises.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The shape of the request.
    pub input: PromptMode,
    /// The system line of a fresh request.
    pub system: &'a str,
    /// The task of the model, after the messages. In a plain request it is the whole text of the one message.
    pub instruction: &'a str,
    /// The most tokens of the answer.
    pub max_tokens: usize,
    /// The model that is asked, if that is not the one of the client's request.
    pub model: Option<&'a str>,
}

/// One message of a [`SummaryInput`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InputElement {
    /// Its JSON.
    pub json: Bytes,
    /// Its tokens.
    pub tokens: usize,
    /// Whether the sequence may be split before it.
    pub opens: bool,
    /// Whether servers may refuse two such elements in a row: messages of the model, in some dialects.
    pub must_alternate: bool,
}

/// The text around a summary in its message.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Frame {
    /// The text before it.
    pub lead_in: String,
    /// What takes the place of its section of user messages, tags and all, or comes after it.
    pub user_messages: Option<String>,
    /// The names of which those that the summary leaves out come after that.
    pub names: UsedNames,
    /// The end: preserved skills, the way to the transcript, how to go on.
    pub behind: String,
}

/// The text around the section of user messages in a summary.
pub const USER_MESSAGES: (&str, &str) = ("<all_user_messages>", "</all_user_messages>");

// === impl Source ===

impl SummaryInput {
    /// The instructions at the beginning, and what is summarised; none if that is nothing.
    pub fn split(&self) -> Option<(&[InputElement], &[InputElement])> {
        self.messages.split_at_checked(self.n_leading).filter(|(_, region)| !region.is_empty())
    }
}

// === impl Frame ===

impl Frame {
    /// Returns what the message says that replaces what was summarised.
    pub fn around(&self, summary: &str) -> String {
        let summary = match &self.user_messages {
            None => summary.trim().to_owned(),
            Some(messages) => match user_messages(summary) {
                None => format!("{}\n\n{messages}", summary.trim()),
                Some((before, behind)) => format!("{before}{messages}{behind}").trim().to_owned(),
            },
        };
        let names = self.names.missing_from(&[&self.lead_in, &summary, &self.behind]).unwrap_or_default();
        let parts = [self.lead_in.as_str(), &summary, &names, &self.behind];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
    }
}

/// The text around the section of user messages: the last pair of tags.
fn user_messages(summary: &str) -> Option<(&str, &str)> {
    let (open, close) = USER_MESSAGES;
    let last_close = summary.rfind(close)?;
    let start = summary.get(..last_close)?.rfind(open)?;
    let from_tag = summary.get(start..)?;
    let behind = from_tag.get(from_tag.find(close)? + close.len()..)?;
    Some((summary.get(..start)?, behind))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::platform::testing::thread_time;

    fn frame() -> Frame {
        let user_messages = Some("<all_user_messages>\nOURS\n</all_user_messages>".to_owned());
        let names = UsedNames::default();
        Frame { lead_in: "BEFORE".to_owned(), user_messages, names, behind: "BEHIND".to_owned() }
    }

    /// `expected` has `@` where the section of ours is to stand.
    fn check(summary: &str, expected: &str) {
        let ours = frame().user_messages.unwrap();
        let expected = format!("BEFORE\n\n{}\n\nBEHIND", expected.replace('@', &ours));
        assert_eq!(frame().around(summary), expected, "{summary}");
    }

    #[test]
    fn the_section_is_replaced() {
        check("6. All:\n<all_user_messages>\n- hi\n</all_user_messages>\n7. To do", "6. All:\n@\n7. To do");
        check("<all_user_messages>- hi</all_user_messages>", "@");
        check("六：<all_user_messages>你好</all_user_messages>。七", "六：@。七");
        check("<all_user_messages></all_user_messages>\n", "@");
        check("a\r\n  <all_user_messages>\r\nx\r\n</all_user_messages>\r\nb", "a\r\n  @\r\nb");
    }

    #[test]
    fn without_a_section_ours_comes_behind() {
        check(" plain \n", "plain\n\n@");
        check(
            "</all_user_messages> before <all_user_messages>",
            "</all_user_messages> before <all_user_messages>\n\n@",
        );
        check("never closed <all_user_messages> - hi", "never closed <all_user_messages> - hi\n\n@");
        check("never opened </all_user_messages>", "never opened </all_user_messages>\n\n@");
        check("<ALL_USER_MESSAGES>x</ALL_USER_MESSAGES>", "<ALL_USER_MESSAGES>x</ALL_USER_MESSAGES>\n\n@");
    }

    #[test]
    fn the_last_pair_is_the_section() {
        check(
            "It asks for <all_user_messages>…</all_user_messages>.\n<all_user_messages>\nx\n</all_user_messages>\nend",
            "It asks for <all_user_messages>…</all_user_messages>.\n@\nend",
        );
        check(
            "Say <all_user_messages> once.\n<all_user_messages>\nx\n</all_user_messages>",
            "Say <all_user_messages> once.\n@",
        );
        check(
            "<all_user_messages>a</all_user_messages> b <all_user_messages>c</all_user_messages>",
            "<all_user_messages>a</all_user_messages> b @",
        );
        check("</all_user_messages><all_user_messages>\nx\n</all_user_messages>", "</all_user_messages>@");
    }

    #[test]
    fn tags_that_are_only_spoken_of_lose_nothing() {
        let section = "<all_user_messages>\nx\n</all_user_messages>\n7. To do: strip ";
        check(&format!("{section}<all_user_messages> and </all_user_messages> too"), &format!("{section}@ too"));
        // Of nested sections the inner one is replaced, and the rest is there.
        check(
            "<all_user_messages>\na\n<all_user_messages>\nb\n</all_user_messages>\nc\n</all_user_messages>\nend",
            "<all_user_messages>\na\n@\nc\n</all_user_messages>\nend",
        );
    }

    #[test]
    fn words_of_ours_in_a_summary_are_text() {
        check("BEFORE\n\nx\n\nBEHIND", "BEFORE\n\nx\n\nBEHIND\n\n@");
        check(
            "[earlier messages of the user that are left out here: 3]",
            "[earlier messages of the user that are left out here: 3]\n\n@",
        );
    }

    #[test]
    fn what_there_is_not_leaves_no_gap() {
        let frame = Frame { user_messages: None, ..frame() };
        let section = "<all_user_messages>\nx\n</all_user_messages>";
        assert_eq!(frame.around(section), format!("BEFORE\n\n{section}\n\nBEHIND"));
        assert_eq!(Frame::default().around(" x\n"), "x");
        assert_eq!(Frame { lead_in: String::new(), ..frame }.around("x"), "x\n\nBEHIND");
    }

    #[test]
    fn names_that_are_missing_come_between_the_summary_and_what_is_behind() {
        let used = || vec!["pool_size of ours"];
        let sources = NameSources { in_sight: Vec::new(), replaced: used(), tail: used() };
        let names = UsedNames::find("NAMES", 100, &sources);
        let frame = Frame { names, ..frame() };
        let ours = frame.user_messages.clone().unwrap();
        assert_eq!(frame.around("x"), format!("BEFORE\n\nx\n\n{ours}\n\nNAMES\n- pool_size of ours\n\nBEHIND"));
        assert_eq!(frame.around("a pool_size"), format!("BEFORE\n\na pool_size\n\n{ours}\n\nBEHIND"));
        // The user's words stay.
        let frame = Frame { user_messages: Some("pool_size?".to_owned()), ..frame };
        assert_eq!(frame.around("x"), "BEFORE\n\nx\n\npool_size?\n\nBEHIND");
    }

    #[test]
    fn many_tags_take_no_time_to_speak_of() {
        let hostile = "<all_user_messages>".repeat(100_000) + &"</all_user_messages>".repeat(100_000);
        let before = thread_time();
        assert!(frame().around(&hostile).contains("OURS"));
        let took = thread_time().saturating_sub(before);
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}
