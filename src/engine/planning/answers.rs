//! Gets the answers of handlers that a plan lacks.

use std::future::ready;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;

use super::{MAX_ASKED, Planning, State};
use crate::engine::persist::PersistError;
use crate::engine::{EditMode, WaitCause};
use crate::handler::{Answer, AskedText, HandlerAsk};
use crate::payload::{ChainKey, Lifetime};
use crate::plan::OffloadedPayload;

/// How many answers one request gets at a time.
const MAX_CONCURRENT: usize = 16;

impl Planning<'_> {
    /// Gets the answers, from the store or from the handlers. In a dry run no handler is asked.
    pub(super) async fn answer(&mut self, asks: Vec<HandlerAsk>) -> State {
        self.n_asked += 1;
        let began = Instant::now();
        let got = match self.options.mode {
            EditMode::Apply => self.settled(asks).await,
            EditMode::DryRun => self.kept(asks).await,
        };
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

    async fn settled(&mut self, asks: Vec<HandlerAsk>) -> Result<Vec<(ChainKey, Arc<Answer>)>, PersistError> {
        self.persist_asked(&asks).await?;
        let longest =
            asks.iter().filter_map(|ask| self.config.handlers.timeout(&ask.handler)).max().unwrap_or_default();
        let deadline = *self.ask_deadline.get_or_insert_with(|| Instant::now() + longest);
        let (answers, config) = (&self.engine.answers, self.config);
        let settle = |ask: HandlerAsk| async move {
            Ok((ask.key, answers.settle(ask.key, answers.ask(config, &ask, deadline)).await?))
        };
        stream::iter(asks).map(settle).buffer_unordered(MAX_CONCURRENT).try_collect().await
    }

    async fn kept(&self, asks: Vec<HandlerAsk>) -> Result<Vec<(ChainKey, Arc<Answer>)>, PersistError> {
        let answers = &self.engine.answers;
        let kept = |ask: HandlerAsk| async move { Ok((ask.key, answers.kept(ask.key).await?)) };
        let kept = stream::iter(asks).map(kept).buffer_unordered(MAX_CONCURRENT);
        kept.try_filter_map(|(key, answer)| ready(Ok(answer.map(|answer| (key, answer))))).try_collect().await
    }

    /// Stores the texts of which handlers are sent the ends alone, so that they can recall the rest.
    async fn persist_asked(&self, asks: &[HandlerAsk]) -> Result<(), PersistError> {
        let long = asks.iter().filter_map(|ask| match &ask.text {
            AskedText::Ends { handle, payload, .. } => {
                Some(OffloadedPayload { key: *handle, payload: payload.clone(), likely_stored: false })
            }
            AskedText::Whole(_) => None,
        });
        let long: Vec<_> = long.collect();
        let Some(store) = self.engine.shared_store().filter(|_| !long.is_empty()) else { return Ok(()) };
        self.engine.breakers.persist(store, self.config.export_dir(), long, Lifetime::Usual).await
    }
}
