//! Has a model make the digest of one result, with the models, the retries and the limits of summaries.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout_at};

use super::call::{self, CallError, Retry};
use super::endpoints::Candidate;
use super::{Shared, Summarizer, SummaryOrigin};
use crate::dialect::Stop;
use crate::edit::clear_tool_results::digest::Digest;
use crate::edit::summarize::{PromptMode, answer, as_text};
use crate::engine::EngineConfig;
use crate::engine::error::DigestError;
use crate::handler::HandlerAsk;
use crate::summary::{InputElement, Prompt, SummaryInput};

/// The calls for one digest.
struct DigestTask<'a> {
    shared: &'a Shared,
    config: &'a EngineConfig,
    origin: &'a SummaryOrigin,
    digest: &'a Digest,
    source: SummaryInput,
    deadline: Instant,
}

impl Summarizer {
    /// Has a model make a digest. `body` is the request of the client.
    pub(in crate::engine) async fn digest(
        &self,
        config: &EngineConfig,
        origin: &SummaryOrigin,
        body: &Bytes,
        ask: &HandlerAsk,
        deadline: Instant,
    ) -> Result<String, DigestError> {
        let settings = config.planner.settings.clear_tool_results.digest.clone().unwrap_or_default();
        let _lease = origin.budget.lease(2 * ask.text.weight()).ok_or(DigestError::Busy)?;
        let json = origin.dialect.render_user_message(&Digest::material(ask));
        let messages = vec![InputElement { json, tokens: 0, opens: true }];
        let source = SummaryInput { body: body.clone(), messages, n_leading: 0, base_tokens: 0 };
        let task = DigestTask { shared: &self.shared, config, origin, digest: &settings, source, deadline };
        timeout_at(deadline, task.run()).await.unwrap_or(Err(DigestError::TimedOut))
    }
}

impl DigestTask<'_> {
    /// Asks one model after the other until one has made the digest.
    async fn run(&self) -> Result<String, DigestError> {
        let _place = self.shared.permits.acquire().await;
        let mut candidates = self.config.endpoints.candidates(self.origin);
        if let (Some(first), Some(model)) = (candidates.first_mut(), &self.digest.model) {
            first.model = Some(model);
        }
        let mut last = CallError::NoRequest;
        for candidate in &candidates {
            match self.ask(candidate).await {
                Ok(digest) => return Ok(digest),
                Err(error) => last = error,
            }
        }
        Err(DigestError::Failed(last.to_string()))
    }

    /// Asks one model, with retries.
    async fn ask(&self, candidate: &Candidate<'_>) -> Result<String, CallError> {
        let max_retries = self.config.summarize().retry.max_retries;
        let (mut n_repeated, mut input) = (0, PromptMode::Fresh);
        loop {
            let error = match self.call(candidate, input).await {
                Ok(digest) => return Ok(digest),
                Err(error) => error,
            };
            let pause = match error.retry() {
                Retry::Same(pause) => pause,
                Retry::Plain if input == PromptMode::Fresh => {
                    input = PromptMode::Plain;
                    continue;
                }
                _ => return Err(error),
            };
            n_repeated += 1;
            let pause = pause.unwrap_or_else(|| self.shared.backoff(u32::try_from(n_repeated).unwrap_or(u32::MAX)));
            if n_repeated > max_retries || Instant::now() + pause >= self.deadline {
                return Err(error);
            }
            sleep(pause).await;
        }
    }

    async fn call(&self, candidate: &Candidate<'_>, input: PromptMode) -> Result<String, CallError> {
        let (dialect, language) = (self.origin.dialect, self.config.planner.settings.language);
        let (system, mut instruction) = (Digest::system(language), self.digest.instruction(language));
        if input == PromptMode::Plain {
            let words = [system, &instruction];
            instruction = as_text::prompt(&self.source, dialect, &words, usize::MAX).ok_or(CallError::NoRequest)?;
        }
        let prompt = Prompt {
            input,
            system,
            instruction: &instruction,
            max_tokens: self.digest.max_tokens,
            model: candidate.model,
        };
        let body = dialect.summary_request(&self.source, &prompt).ok_or(CallError::NoRequest)?;
        self.shared.counts.calls.fetch_add(1, Ordering::Relaxed);
        let idle_timeout = self.deadline.saturating_duration_since(Instant::now());
        let retry = &self.config.summarize().retry;
        let answer = call::call(candidate, dialect, body, &[], retry, idle_timeout).await?;
        if let Some(usage) = answer.usage {
            self.shared.add(usage);
        }
        let stop = match &answer.stop_reason {
            _ if answer.calls_tool => Stop::ToolCall,
            Some(reason) => dialect.stop(reason),
            None => Stop::Done,
        };
        Ok(answer::checked(answer.text.as_deref().unwrap_or_default(), stop)?)
    }
}
