//! Gets the answers of handlers that a plan lacks.

use std::future::ready;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;

use super::{MAX_ASKED, Planning, State};
use crate::edit::clear_tool_results::digest;
use crate::engine::handlers::Answers;
use crate::engine::persist::PersistError;
use crate::engine::summarizer::{Summarizer, SummaryOrigin};
use crate::engine::{EditMode, EngineConfig, WaitCause};
use crate::handler::{Answer, AskedText, HandlerAsk};
use crate::payload::{ChainKey, Lifetime};
use crate::plan::OffloadedPayload;

/// How many answers one request gets at a time.
const MAX_CONCURRENT: usize = 16;

/// Asks handlers, and models for digests.
struct Asker {
    answers: Arc<Answers>,
    config: Arc<EngineConfig>,
    summarizer: Summarizer,
    body: Bytes,
    /// The request, if a model is asked.
    origin: Option<SummaryOrigin>,
}

impl Planning<'_> {
    /// Gets the answers, from the store or from the handlers. In a dry run no handler is asked.
    pub(super) async fn answer(&mut self, mut asks: Vec<HandlerAsk>) -> State {
        self.n_asked += 1;
        // A model is asked in the name of a request.
        asks.retain(|ask| self.options.origin.is_some() || !is_digest(ask));
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

    /// Asks handlers beside the requests.
    pub(super) fn ask_ahead(&self, asks: Vec<HandlerAsk>) {
        let answers = &self.engine.answers;
        let is_asked = |ask: &HandlerAsk| {
            self.options.mode == EditMode::Apply && (self.options.origin.is_some() || !is_digest(ask))
        };
        let asks = asks.into_iter().filter(is_asked);
        for ask in asks.filter(|ask| answers.claim_ahead(ask.key)) {
            let asker = self.asker(slice::from_ref(&ask));
            self.engine.tasks.spawn(async move {
                let deadline = Instant::now() + asker.patience(&ask);
                // If it cannot be stored, a request that needs the answer asks again.
                let _settled = asker.settle(&ask, deadline).await;
                asker.answers.release_ahead(ask.key);
            });
        }
    }

    async fn settled(&mut self, asks: Vec<HandlerAsk>) -> Result<Vec<(ChainKey, Arc<Answer>)>, PersistError> {
        let asker = &self.asker(&asks);
        self.persist_asked(&asks).await?;
        let longest = asks.iter().map(|ask| asker.patience(ask)).max().unwrap_or_default();
        let deadline = *self.ask_deadline.get_or_insert_with(|| Instant::now() + longest);
        let settle = |ask: HandlerAsk| async move { Ok((ask.key, asker.settle(&ask, deadline).await?)) };
        stream::iter(asks).map(settle).buffer_unordered(MAX_CONCURRENT).try_collect().await
    }

    async fn kept(&self, asks: Vec<HandlerAsk>) -> Result<Vec<(ChainKey, Arc<Answer>)>, PersistError> {
        let answers = &self.engine.answers;
        let kept = |ask: HandlerAsk| async move { Ok((ask.key, answers.kept(ask.key).await?)) };
        let kept = stream::iter(asks).map(kept).buffer_unordered(MAX_CONCURRENT);
        kept.try_filter_map(|(key, answer)| ready(Ok(answer.map(|answer| (key, answer))))).try_collect().await
    }

    fn asker(&self, asks: &[HandlerAsk]) -> Asker {
        let origin = self.origin().filter(|_| asks.iter().any(is_digest));
        Asker {
            answers: Arc::clone(&self.engine.answers),
            config: Arc::clone(self.config),
            summarizer: self.engine.summarizer.clone(),
            body: self.body.bytes.clone(),
            origin: origin.map(|origin| origin()),
        }
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

impl Asker {
    /// How long a question may take.
    fn patience(&self, ask: &HandlerAsk) -> Duration {
        let summarize = || self.config.summarize().timeout.0;
        self.config.handlers.timeout(&ask.handler).unwrap_or_else(summarize)
    }

    async fn settle(&self, ask: &HandlerAsk, deadline: Instant) -> Result<Arc<Answer>, PersistError> {
        let Self { answers, config, summarizer, body, origin } = self;
        let asking = async {
            match origin.as_ref().filter(|_| is_digest(ask)) {
                Some(origin) => {
                    let made = summarizer.digest(config, origin, body, ask, deadline).await;
                    answers.digested(config, ask, made)
                }
                None => answers.ask(config, ask, deadline).await,
            }
        };
        answers.settle(ask.key, asking).await
    }
}

fn is_digest(ask: &HandlerAsk) -> bool {
    &*ask.handler == digest::NAME
}
