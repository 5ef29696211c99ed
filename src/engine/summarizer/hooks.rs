//! The handlers that are asked while a summary is made: about what the model is given, and about what it has written. If one
//! fails, the summary is made without it. Their answers are kept with the summary, and nowhere else.

use tokio::time::Instant;

use super::task::SummaryTask;
use crate::handler::{Answer, AskedText, HandlerAsk, MAX_ANSWER};
use crate::summary::{InputElement, SummaryInput};

/// The longest input that a handler is sent, in bytes.
const MAX_INPUT: usize = 4 << 20;

impl SummaryTask {
    /// The input of the model by `summarize.input_handler`: one message in place of all that is summarised.
    pub(super) async fn rewritten_input(&self) -> Option<SummaryInput> {
        let handler = self.config.summarize().input_handler.as_deref()?;
        let source = &self.job.source;
        let (leading, region) = source.split()?;
        let lines: Vec<_> = region.iter().filter_map(|message| str::from_utf8(&message.json).ok()).collect();
        let text = lines.join("\n");
        let most_bytes = text.len();
        let answer = self.consult(handler, "summarize_input", text, most_bytes).await?;
        let json = self.origin.dialect.render_user_message(&answer);
        // As many tokens as its messages had: it is no longer than they are.
        let tokens = region.iter().map(|message| message.tokens).sum();
        let message = InputElement { json, tokens, opens: true };
        let messages = leading.iter().cloned().chain([message]).collect();
        Some(SummaryInput { messages, ..source.clone() })
    }

    /// The summary, as `summarize.finalize_handler` has it.
    pub(super) async fn finalized(&self, summary: String) -> String {
        let Some(handler) = self.config.summarize().finalize_handler.as_deref() else { return summary };
        let answer = self.consult(handler, "summarize_finalize", summary.clone(), MAX_ANSWER).await;
        answer.unwrap_or(summary)
    }

    async fn consult(&self, handler: &str, edit: &'static str, text: String, most_bytes: usize) -> Option<String> {
        if text.len() > MAX_INPUT {
            return None;
        }
        let ask = HandlerAsk {
            key: self.job.key,
            handler: handler.into(),
            edit,
            conversation: Some(self.job.root),
            tool: String::new(),
            arguments: String::new(),
            text: AskedText::Whole(text),
            most_bytes,
        };
        let patience = Instant::now() + self.config.handlers.timeout(handler)?;
        match self.summarizer.answers.ask(&self.config, &ask, patience.min(self.deadline())).await {
            Answer::Replace { text } => Some(text),
            Answer::Leave | Answer::Default | Answer::Failed => None,
        }
    }
}
