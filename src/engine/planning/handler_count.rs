//! The factor that a handler gives a conversation, by counting a part of it.

use serde::Serialize;
use tokio::time::Instant;

use super::Planning;
use crate::engine::EditMode;
use crate::handler::{Answer, AskedText, HandlerAsk, MAX_TEXT};
use crate::payload::ChainKey;
use crate::tasks::run_blocking;
use crate::tokens::factor::Factor;

/// The longest count that a handler answers, in bytes.
const MAX_DIGITS: usize = 20;

#[derive(Serialize)]
struct Arguments<'a> {
    model: &'a str,
}

impl Planning<'_> {
    /// The count of a handler for the beginning of the body, by abridge's own; none if the settings name no handler, if the
    /// conversation has its factor already, or if the handler fails.
    pub(super) async fn counted_by_handler(&self, conversation: ChainKey, model: &str) -> Option<Factor> {
        let handler = self.config.planner.settings.tokens.handler.as_deref()?;
        let is_new = self.options.mode == EditMode::Apply && !self.engine.factors.is_stored(conversation).await;
        let text = str::from_utf8(&self.body).ok().filter(|_| is_new)?;
        let text = text.get(..text.floor_char_boundary(MAX_TEXT))?.to_owned();
        let deadline = Instant::now() + self.config.handlers.timeout(handler)?;
        let ask = HandlerAsk {
            key: conversation,
            handler: handler.into(),
            edit: "count_tokens",
            conversation: Some(conversation),
            tool: String::new(),
            arguments: serde_json::to_string(&Arguments { model }).unwrap_or_default(),
            text: AskedText::Whole(text.clone()),
            most_bytes: MAX_DIGITS,
        };
        let Answer::Replace { text: count } = self.engine.answers.ask(self.config, &ask, deadline).await else {
            return None;
        };
        let gauge = self.config.planner.meter.for_model(Some(model)).clone().billed_at(Factor::ONE);
        let counted = run_blocking(move || gauge.text(&text)).await.ok()?;
        let ratio = f64::from(count.trim().parse::<u32>().ok()?) / f64::from(u32::try_from(counted.max(1)).ok()?);
        Some(Factor::nearest(ratio))
    }
}
