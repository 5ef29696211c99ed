//! The answers of handlers: each is made once for a content, kept in the store as a summary is, and never changes.
//!
//! A request waits for the answers that it needs, for each handler as long as its `timeout`. What is not answered by then
//! has failed, and that is kept as an answer is: else the bytes that were sent would differ in the next request. Of
//! several processes that share a store, the first one that stores an answer decides.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::EngineConfig;
use super::disks::PersistError;
use super::summaries::{Summaries, stored};
use crate::handler::{Answer, AnswerIndex, HandlerAsk, LeftOut};
use crate::held::Held;
use crate::payload::cache::By;
use crate::payload::{ChainKey, PayloadKey, Place};

mod client;

use client::HandlerClient;
pub use client::{HandlerClients, HandlerUrl, HandlerUrlError};

/// The known answers, and what is known of the handlers. There is one instance per process.
#[derive(Debug)]
pub struct Answers {
    /// Has the answers in the store, and notes their uses there.
    summaries: Arc<Summaries>,
    known: Cache<ChainKey, Arc<Answer>, By<Arc<Answer>>>,
    state: Held<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The handlers that have not answered in time, and until when they are not asked.
    resting: HashMap<Arc<str>, Instant>,
    /// The handlers whose last call has failed, which the log says once.
    failing: HashSet<Arc<str>>,
    calls: BTreeMap<(Arc<str>, &'static str), u64>,
}

/// The answers that a plan may use: those that its request has got, and those that the process knows.
#[derive(Clone, Debug)]
pub(super) struct RequestAnswers {
    pub(super) own: Arc<HashMap<ChainKey, Arc<Answer>>>,
    pub(super) shared: Arc<Answers>,
    pub(super) can_ask: bool,
}

/// A question as it is posted.
#[derive(Serialize)]
struct PostedAsk<'a> {
    version: u32,
    handler: &'a str,
    bytes: usize,
    #[serde(flatten)]
    ask: &'a HandlerAsk,
    #[serde(flatten)]
    text: PostedText<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PostedText<'a> {
    Whole { text: &'a str },
    Ends { head: &'a str, tail: &'a str, handle: PayloadKey },
}

/// An answer as it comes.
#[derive(Deserialize)]
struct PostedAnswer {
    id: ChainKey,
    #[serde(flatten)]
    answer: Answer,
}

/// Why the answer is missing: in a sentence, and in a word for labels.
#[derive(Debug, derive_more::Display)]
#[display("{why}")]
struct AskError {
    why: String,
    outcome: &'static str,
}

/// The version of the questions and answers.
const VERSION: u32 = 1;

/// The memory limit of the answers, in bytes.
const MAX_BYTES: u64 = 32 << 20;

/// The bytes of an answer beside its text.
const ENTRY_BYTES: u64 = 128;

/// A use is noted again after this time.
const USE_INTERVAL: Duration = Duration::from_hours(1);

/// How long a handler is not asked that has not answered in time, so that it delays one request and not each.
const REST: Duration = Duration::from_secs(30);

// === impl Answers ===

impl Answers {
    pub(super) fn new(summaries: Arc<Summaries>) -> Self {
        let known = Cache::with_weighter(1024, MAX_BYTES, By(weight));
        Self { summaries, known, state: Held::default() }
    }

    /// The answer that is kept, if there is one.
    pub(super) async fn kept(&self, key: ChainKey) -> Result<Option<Arc<Answer>>, PersistError> {
        if let Some(answer) = self.known(key) {
            return Ok(Some(answer));
        }
        let answer = self.load(key).await?;
        if let Some(answer) = &answer {
            self.known.insert(key, Arc::clone(answer));
        }
        Ok(answer)
    }

    /// The answer that is kept from now on: the one that is kept already, or else what `ask` returns. Of requests that need
    /// the same one, one asks.
    pub(super) async fn settle(
        &self,
        key: ChainKey,
        ask: impl Future<Output = Answer>,
    ) -> Result<Arc<Answer>, PersistError> {
        let settling = async {
            if let Some(answer) = self.load(key).await? {
                return Ok(answer);
            }
            let answer = ask.await;
            let kept = self.summaries.offer_fact(Place { root: key, beginning: key }, stored(&answer, key)).await?;
            Ok::<_, PersistError>(read_stored(&kept).unwrap_or(Arc::new(answer)))
        };
        self.known.get_or_insert_async(&key, settling).await
    }

    /// Asks a handler. Whatever it does, there is an answer when this returns: [`Answer::Failed`] if it is none.
    pub(super) async fn ask(&self, config: &EngineConfig, ask: &HandlerAsk, deadline: Instant) -> Answer {
        let asked = match config.handlers.get(&ask.handler) {
            Some(client) => self.call(config, client, ask, deadline).await,
            None => Err(AskError::new("failed", "the settings have no such handler")),
        };
        self.count(ask, &asked);
        asked.unwrap_or(Answer::Failed)
    }

    /// The calls so far, by handler and outcome.
    pub fn counts(&self) -> Vec<(Arc<str>, &'static str, u64)> {
        self.state.with(|state| state.calls.iter().map(|((name, outcome), n)| (name.clone(), *outcome, *n)).collect())
    }

    // === helpers ===

    /// The answer in memory, whose use is noted from time to time.
    fn known(&self, key: ChainKey) -> Option<Arc<Answer>> {
        let answer = self.known.get(&key)?;
        self.summaries.note_use(key, USE_INTERVAL);
        Some(answer)
    }

    async fn call(
        &self,
        config: &EngineConfig,
        client: &HandlerClient,
        ask: &HandlerAsk,
        deadline: Instant,
    ) -> Result<Answer, AskError> {
        if self.state.with(|state| state.resting.get(&ask.handler).is_some_and(|until| *until > Instant::now())) {
            return Err(AskError::new("skipped", "it has not answered in time a short time ago"));
        }
        let timed_out = || AskError::new("timeout", "it did not answer in time");
        let _place = timeout_at(deadline, client.places.acquire()).await.map_err(|_| timed_out())?;
        let Ok(posted) = timeout_at(deadline, client.post(PostedAsk::json(ask), ask.most_bytes)).await else {
            self.state.with(|state| state.resting.insert(ask.handler.clone(), Instant::now() + REST));
            return Err(timed_out());
        };
        let unknown = |_| AskError::new("refused", "its answer is not the JSON that docs/handlers.md describes");
        let PostedAnswer { id, answer } = serde_json::from_slice(&posted?).map_err(unknown)?;
        if id != ask.key {
            return Err(AskError::new("refused", "its answer has another id than the question"));
        }
        if let Answer::Replace { text } = &answer {
            let checked = config.planner.policy.check_answer(ask, text);
            checked.map_err(|fault| AskError::new("refused", fault.to_string()))?;
        }
        Ok(answer)
    }

    /// The answer that the store has.
    async fn load(&self, key: ChainKey) -> Result<Option<Arc<Answer>>, PersistError> {
        Ok(self.summaries.fact(key).await?.as_ref().and_then(read_stored))
    }

    fn count(&self, ask: &HandlerAsk, asked: &Result<Answer, AskError>) {
        // One word, for labels.
        let outcome = asked.as_ref().map_or_else(|error| error.outcome, Into::into);
        let name = &ask.handler;
        let begins = self.state.with(|state| {
            *state.calls.entry((name.clone(), outcome)).or_default() += 1;
            if asked.is_ok() {
                state.failing.remove(name);
            }
            asked.is_err() && state.failing.insert(name.clone())
        });
        match asked {
            Ok(_) => tracing::debug!(handler = %name, edit = ask.edit, outcome, "a handler has answered"),
            Err(error) if begins => {
                tracing::warn!(handler = %name, edit = ask.edit, %error, "a handler has failed, and the edit does what it does without one; more are logged at debug");
            }
            Err(error) => tracing::debug!(handler = %name, edit = ask.edit, %error, "a handler has failed"),
        }
    }
}

fn read_stored(stored: &Bytes) -> Option<Arc<Answer>> {
    serde_json::from_slice(stored).ok().map(Arc::new)
}

impl AskError {
    fn new(outcome: &'static str, why: impl Into<String>) -> Self {
        Self { why: why.into(), outcome }
    }
}

impl<'a> PostedAsk<'a> {
    fn json(ask: &'a HandlerAsk) -> Bytes {
        let (bytes, text) = match &ask.left_out {
            None => (ask.text.len(), PostedText::Whole { text: &ask.text }),
            Some(LeftOut { at, whole }) => {
                let (head, tail) = ask.text.split_at(*at);
                (whole.payload.len(), PostedText::Ends { head, tail, handle: whole.key })
            }
        };
        let posted = Self { version: VERSION, handler: &ask.handler, bytes, ask, text };
        serde_json::to_vec(&posted).unwrap_or_default().into()
    }
}

impl AnswerIndex for RequestAnswers {
    fn answer(&self, key: ChainKey) -> Option<Arc<Answer>> {
        self.own.get(&key).cloned().or_else(|| self.shared.known(key))
    }

    fn can_ask(&self) -> bool {
        self.can_ask
    }
}

fn weight(answer: &Arc<Answer>) -> u64 {
    let text = if let Answer::Replace { text } = &**answer { text.len() } else { 0 };
    ENTRY_BYTES + text as u64
}
