//! Asks handlers: for the answers that a plan lacks, and for the factor that a conversation is counted with.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;

use super::{MAX_ASKED, Planning, State};
use crate::engine::disks::PersistError;
use crate::engine::{EditMode, WaitCause};
use crate::handler::{Answer, HandlerAsk, MAX_TEXT};
use crate::payload::{ChainKey, Lifetime};
use crate::tasks::run_blocking;
use crate::tokens::factor::Factor;

/// How many answers of one handler a request gets at a time.
const MAX_CONCURRENT: usize = 16;

/// The longest count that a handler answers, in bytes.
const MAX_DIGITS: usize = 20;

impl Planning<'_> {
    /// Gets the answers, from the store or from the handlers. In a dry run no handler is asked.
    pub(super) async fn answer(&mut self, asks: Vec<HandlerAsk>) -> State {
        self.n_asked += 1;
        let began = Instant::now();
        let got = self.answers_to(asks).await;
        self.waits.add(WaitCause::Handlers, began);
        match got {
            Ok(got) => {
                if got.is_empty() {
                    self.n_asked = MAX_ASKED;
                }
                Arc::make_mut(&mut self.answers).extend(got);
                self.n_plans -= 1;
                State::Plan
            }
            Err(error) => self.start_without_store(error.into()),
        }
    }

    async fn answers_to(&mut self, asks: Vec<HandlerAsk>) -> Result<Vec<(ChainKey, Arc<Answer>)>, PersistError> {
        let is_dry = self.options.mode == EditMode::DryRun;
        if !is_dry {
            // So that handlers can recall what is left out.
            let long = asks.iter().filter_map(|ask| Some(ask.left_out.as_ref()?.whole.clone())).collect();
            self.engine.summaries.disks.persist(self.config.export_dir(), long, Lifetime::Usual).await?;
        }
        let (answers, config, began) = (&self.engine.answers, self.config, Instant::now());
        let mut by_handler: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ask in asks {
            by_handler.entry(Arc::clone(&ask.handler)).or_default().push(ask);
        }
        // One that hangs takes neither time nor places of another.
        let of_handler = |(handler, asks): (Arc<str>, Vec<HandlerAsk>)| {
            let timeout = config.handlers.get(&handler).map(|client| client.timeout);
            let left = self.time_left.get(&handler).copied().or(timeout).unwrap_or_default();
            let answer = move |ask: HandlerAsk| async move {
                let answer = if is_dry {
                    answers.kept(ask.key).await?
                } else {
                    Some(answers.settle(ask.key, answers.ask(config, &ask, began + left)).await?)
                };
                Ok::<_, PersistError>(answer.map(|answer| (ask.key, answer)))
            };
            let got = stream::iter(asks).map(answer).buffer_unordered(MAX_CONCURRENT);
            let got = got.try_filter_map(|got| ready(Ok(got))).try_collect::<Vec<_>>();
            async move { Ok::<_, PersistError>((got.await?, handler, left.saturating_sub(began.elapsed()))) }
        };
        let of_handlers = try_join_all(by_handler.into_iter().map(of_handler)).await?;
        self.time_left.extend(of_handlers.iter().map(|(_, handler, left)| (Arc::clone(handler), *left)));
        Ok(of_handlers.into_iter().flat_map(|(got, ..)| got).collect())
    }

    /// The count of a handler for the beginning of the body, by abridge's own; none if the settings name no handler, if the
    /// conversation has its factor already, or if the handler fails.
    pub(super) async fn counted_by_handler(&self, conversation: ChainKey, model: &str) -> Option<Factor> {
        let handler = self.config.planner.settings.tokens.handler.as_deref()?;
        let is_new = self.options.mode == EditMode::Apply && self.engine.factors.stored(conversation).await.is_none();
        let text = str::from_utf8(&self.body).ok().filter(|_| is_new)?;
        let text = text.get(..text.floor_char_boundary(MAX_TEXT))?.to_owned();
        let deadline = Instant::now() + self.config.handlers.get(handler)?.timeout;
        let ask = HandlerAsk {
            key: conversation,
            handler: handler.into(),
            edit: "count_tokens",
            conversation: Some(conversation),
            tool: String::new(),
            arguments: serde_json::to_string(&BTreeMap::from([("model", model)])).unwrap_or_default(),
            text: text.clone(),
            left_out: None,
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
