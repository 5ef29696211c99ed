//! The keys beside the messages that tell of a history on the server, and of the limit of the answer, for every dialect.
//!
//! The sources are in `docs/dialects.md`. A key that always means it is enough. One that some servers take for a mere label
//! means it where the messages begin with a result, whose call must then be somewhere else.

use memchr::memmem;

use crate::conversation::{BlockKind, Conversation, Role};

/// The keys of this kind that were found.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HistoryKeys {
    /// The request continues what the server has.
    continues: bool,
    /// It may do so.
    may_continue: bool,
    /// The server keeps the request for later ones.
    is_kept: bool,
    /// The answer is to go on where one has stopped, which the last message has a part of.
    resumes: bool,
    /// The most tokens that the answer may have.
    max_answer_tokens: Option<usize>,
}

impl HistoryKeys {
    /// Notes one key and its JSON value.
    pub(super) fn note(&mut self, key: &[u8], value: &[u8]) {
        let says = |text: &str| memmem::find(value, text.as_bytes()).is_some();
        if matches!(value, b"null" | b"\"\"") {
            return;
        }
        match key {
            b"previous_response_id" | b"conversation" | b"context_id" | b"cachedContent" | b"cached_content" => {
                self.continues = true;
            }
            b"thread" => {
                self.is_kept = true;
                self.continues |= says(r#""continue""#) || says(r#""previous_message_id""#);
            }
            // Without a token it only says that an answer may be resumed.
            b"resumption" if says(r#""token""#) => (self.resumes, self.may_continue) = (true, true),
            b"container" | b"session_id" | b"conversation_id" | b"thread_id" | b"chat_id" => self.may_continue = true,
            b"max_tokens" | b"max_completion_tokens" | b"max_output_tokens" => {
                let said = std::str::from_utf8(value).ok().and_then(|number| number.parse().ok());
                self.max_answer_tokens = self.max_answer_tokens.max(said);
            }
            _ => {}
        }
    }

    /// Writes it on a conversation whose messages have been read.
    pub(super) fn apply(self, conversation: &mut Conversation<'_>) {
        let first = || conversation.units.iter().find(|unit| !matches!(unit.role, Role::System | Role::Developer));
        let begins_with_result = || first().is_some_and(|unit| unit.role == Role::Tool);
        conversation.traits.max_answer_tokens = self.max_answer_tokens;
        conversation.traits.is_kept |= self.is_kept;
        conversation.traits.history_elsewhere |= self.continues || (self.may_continue && begins_with_result());
        if conversation.traits.history_elsewhere {
            conversation.keep_results();
        }
        let last = conversation.elements.last().filter(|_| self.resumes).map(|last| last.units.clone());
        for call in last.map(|units| conversation.block_range(units)).into_iter().flatten() {
            if let Some(BlockKind::ToolCall { answerable, .. }) =
                conversation.blocks.get_mut(call.get()).map(|block| &mut block.kind)
            {
                *answerable = false; // the model is not done with its message
            }
        }
    }
}
