//! The neutral, read-only view of one request's messages. It borrows from the body and knows no field names.

use std::{borrow::Cow, cell::OnceCell, ops::Range};

use crate::{payload::Fingerprint, span::Span};

mod fold;
mod pairing;

pub use fold::Fold;
pub use pairing::{Answer, Call, Pairing};

/// More messages, or more blocks, than this are not looked at: what the view takes in memory stays a small multiple of
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
    /// The elements of the message array, in order.
    pub messages: Vec<Message>,
    /// The tool calls and tool results of all messages, in order.
    pub blocks: Vec<Block<'a>>,
}

/// One element of the message array.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Message {
    /// Its JSON value, without the white space and the comma around it.
    pub span: Span,
    /// Who speaks.
    pub role: Role,
    /// The JSON value of its content, unless that is absent or null.
    pub content: Option<Span>,
    /// Where its blocks are in [`Conversation::blocks`].
    pub blocks: Range<usize>,
    /// What it is known by, once somebody has asked: see [`Message::prints`].
    pub known: OnceCell<Prints>,
}

/// What a message is known by.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Prints {
    /// All of it, as it is written.
    pub message: Fingerprint,
    /// Its content; that of nothing where it has none.
    pub content: Fingerprint,
}

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, by their newer name.
    Developer,
    /// The person, or the program in their place.
    User,
    /// The model.
    Assistant,
    /// A tool: the message is a tool result.
    Tool,
    /// Anything else. Such a message stays where it is.
    Other,
}

/// The smallest thing that an edit may touch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Block<'a> {
    /// The index of the message it is in.
    pub message: usize,
    /// Its JSON value: the entry of a call; for a result, the message.
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
    },
    /// The answer of a tool.
    ToolResult {
        /// The id of the call it answers.
        call_id: CallId<'a>,
    },
}

/// The id of a call as a call or a result gives it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CallId<'a> {
    /// Its JSON string; none where it is absent or null.
    pub raw: Option<Span>,
    /// The decoded text; empty where there is none.
    pub text: Cow<'a, str>,
}

impl<'a> Conversation<'a> {
    /// The blocks of one message.
    pub fn blocks_of(&self, message: &Message) -> &[Block<'a>] {
        self.blocks.get(message.blocks.clone()).unwrap_or_default()
    }

    /// The name of the tool that block `call` calls; empty if it names none, or is no call.
    pub fn tool_name(&self, call: usize) -> &str {
        match self.blocks.get(call).map(|block| &block.kind) {
            Some(BlockKind::ToolCall { name, .. }) => name.as_deref().unwrap_or_default(),
            _ => "",
        }
    }

    /// The index of the last message in which the model has answered. What stands behind it has not been read by the model
    /// yet. Messages of role assistant without calls at the end of a request are a prefill, which the model is to continue,
    /// and no answer.
    pub fn last_assistant(&self) -> Option<usize> {
        let n_prefill = self.messages.iter().rev().take_while(|message| message.is_plain_answer()).count();
        let (answered, _) = self.messages.split_at_checked(self.messages.len() - n_prefill)?;
        answered.iter().rposition(|message| message.role == Role::Assistant)
    }

    /// Where the model was called, each place as the index of the message behind it: before each of its answers, and at the
    /// end. What follows a message of the model without calls was called for with that as a prefill, so that no call is
    /// known of between the two.
    pub fn model_calls(&self) -> Vec<usize> {
        let places = (0..=self.messages.len()).filter(|&place| {
            let before = place.checked_sub(1).and_then(|before| self.messages.get(before));
            let behind = self.messages.get(place);
            behind.is_none_or(|message| message.role == Role::Assistant)
                && !before.is_some_and(Message::is_plain_answer)
        });
        places.collect()
    }

    /// The bytes from the first to the last of some messages.
    pub fn span_of(&self, messages: Range<usize>) -> Span {
        match self.messages.get(messages) {
            Some([first, .., last]) => Span { start: first.span.start, end: last.span.end },
            Some([only]) => only.span,
            _ => Span::default(),
        }
    }

    /// How many `system` and `developer` messages the conversation begins with.
    pub fn n_leading_instructions(&self) -> usize {
        self.messages.iter().take_while(|message| matches!(message.role, Role::System | Role::Developer)).count()
    }
}

impl Message {
    /// Whether it is of the model and calls nothing. At the end of a request it is a prefill.
    pub fn is_plain_answer(&self) -> bool {
        self.role == Role::Assistant && self.blocks.is_empty()
    }

    /// What it is known by, in the body that it was read from. Whoever asks first has each byte of it hashed, once.
    pub fn prints(&self, body: &[u8]) -> Prints {
        *self.known.get_or_init(|| {
            let Span { start, end } = self.content.unwrap_or(Span::empty(self.span.end));
            let of = |start, end| Fingerprint::of(Span { start, end }.of(body));
            let content = of(start, end);
            let message = of(self.span.start, start).then(content).then(of(end, self.span.end));
            Prints { message, content }
        })
    }
}

/// Where that begins which the model has not read yet, with the round that it belongs to; the last message in any case.
/// 0 if the model has not said anything. A message is its role and whether it calls.
pub fn unread_from(messages: impl DoubleEndedIterator<Item = (Role, bool)> + ExactSizeIterator) -> usize {
    let n_messages = messages.len();
    let answered = messages.enumerate().rev().skip_while(|(_, message)| *message == (Role::Assistant, false));
    let mut has_result = false;
    for (n, (role, _)) in answered {
        match role {
            Role::Assistant if has_result || n + 1 == n_messages => return n,
            Role::Assistant => return n + 1,
            _ => has_result |= role == Role::Tool,
        }
    }
    0
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check_parts(body: &[u8], conversation: &Conversation<'_>) {
        for (index, message) in conversation.messages.iter().enumerate() {
            for block in conversation.blocks_of(message) {
                let message = message.span.of(body);
                assert_eq!(block.message, index);
                assert!(message.as_ptr_range().contains(&block.span.of(body).as_ptr()));
            }
        }
        let n_blocks: usize = conversation.messages.iter().map(|message| message.blocks.len()).sum();
        assert_eq!(n_blocks, conversation.blocks.len());
    }

    #[test]
    fn folding_takes_messages_away_with_their_blocks() {
        let body = br#"{"messages":[{"role":"system"},{"role":"assistant","tool_calls":[{"id":"a"}]},
            {"role":"tool","tool_call_id":"a"},{"role":"assistant","tool_calls":[{"id":"b"},{"id":"c"}]},
            {"role":"tool","tool_call_id":"b"},{"role":"tool","tool_call_id":"c"},{"role":"user"}]}"#;
        let whole = crate::dialect::for_path("/chat/completions").unwrap().parse(body).unwrap();
        check_parts(body, &whole);
        assert_eq!(whole.last_assistant(), Some(3));
        let spans = |messages: &[Message]| messages.iter().map(|message| message.span).collect::<Vec<_>>();
        let before = spans(&whole.messages);
        let pairing = Pairing::of(&whole);
        for (start, end) in (0..before.len()).flat_map(|start| (start + 1..=before.len()).map(move |end| (start, end)))
        {
            let Some(fold) = Fold::of(&whole, &pairing, start..end) else {
                assert!(whole.messages[start..end].iter().all(|message| message.role != Role::User));
                continue;
            };
            let folded = whole.folded(&fold);
            check_parts(body, &folded);
            let one = whole.span_of(fold.place());
            let standing: Vec<_> = fold.in_place().map(|message| fold.as_it_came(message)).collect();
            let standing = standing.iter().map(|&came| if came == fold.place().start { one } else { before[came] });
            let standing: Vec<_> = standing.collect();
            assert_eq!(spans(&folded.messages), [&before[..start], &standing, &before[end..]].concat());
            let summary = &folded.messages[fold.summary()];
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
            assert_eq!(unread_from(all.into_iter()), from, "{roles}");
        }
    }

    #[test]
    fn a_message_is_known_by_all_of_its_bytes() {
        let prints = |before: &str, content: &str, behind: &str| {
            let body = [before, content, behind].concat();
            let start = before.len();
            let content = (!content.is_empty()).then_some(Span { start, end: start + content.len() });
            let span = Span { start: 0, end: body.len() };
            let message = Message { span, role: Role::User, content, blocks: 0..0, known: OnceCell::new() };
            message.prints(body.as_bytes())
        };
        let one = prints("{a", "\"x\"", "b}");
        assert_eq!(one, prints("{a", "\"x\"", "b}"));
        for other in [prints("{b", "\"x\"", "b}"), prints("{a", "\"x\"", "c}")] {
            assert_eq!(other.content, one.content);
            assert_ne!(other.message, one.message);
        }
        for other in [prints("{a", "\"y\"", "b}"), prints("{a", "", "\"x\"b}"), prints("{a\"x\"", "", "b}")] {
            assert!(other.content != one.content && other.message != one.message);
        }
    }
}
