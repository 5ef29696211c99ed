//! Gets the answers of handlers that a plan lacks.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;

use super::{MAX_ASKED, Planning, State};
use crate::engine::persist::PersistError;
use crate::engine::{EditMode, EngineConfig};
use crate::handler::{Answer, AskedText, HandlerAsk};
use crate::payload::{ChainKey, Lifetime};

/// How many answers one request gets at a time.
const MAX_CONCURRENT: usize = 16;

impl Planning<'_> {
    /// Gets the answers, from the store or from the handlers. In a dry run no handler is asked.
    pub(super) async fn answer(&mut self, asks: Vec<HandlerAsk>) -> State {
        self.n_asked += 1;
        let got = match self.options.mode {
            EditMode::Apply => self.settled(asks).await,
            EditMode::DryRun => self.kept(asks).await,
        };
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

    /// Asks handlers beside the requests.
    pub(super) fn ask_ahead(&self, asks: Vec<HandlerAsk>) {
        let answers = &self.engine.answers;
        let asks = asks.into_iter().filter(|_| self.options.mode == EditMode::Apply);
        for ask in asks.filter(|ask| answers.claim_ahead(ask.key)) {
            let (answers, config) = (Arc::clone(answers), Arc::clone(self.config));
            self.engine.tasks.spawn(async move {
                let deadline = Instant::now() + patience(&config, &ask);
                // If it cannot be stored, a request that needs the answer asks again.
                let _settled = answers.settle(ask.key, answers.ask(&config, &ask, deadline)).await;
                answers.release_ahead(ask.key);
            });
        }
    }

    async fn settled(&mut self, asks: Vec<HandlerAsk>) -> Result<Vec<(ChainKey, Arc<Answer>)>, PersistError> {
        let (answers, config) = (&self.engine.answers, self.config);
        self.persist_asked(&asks).await?;
        let longest = asks.iter().map(|ask| patience(config, ask)).max().unwrap_or_default();
        let deadline = *self.ask_deadline.get_or_insert_with(|| Instant::now() + longest);
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
            AskedText::Ends { handle, payload, .. } => Some((*handle, payload.clone())),
            AskedText::Whole(_) => None,
        });
        let long: Vec<_> = long.collect();
        let Some(store) = self.engine.shared_store().filter(|_| !long.is_empty()) else { return Ok(()) };
        self.engine.breakers.persist(store, self.config.export_dir(), long, Lifetime::Usual).await
    }
}

/// How long a question may take.
fn patience(config: &EngineConfig, ask: &HandlerAsk) -> Duration {
    config.handlers.timeout(&ask.handler).unwrap_or_default()
}
