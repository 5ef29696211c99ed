//! Who summarises while sessions are played, and what is remembered of the summaries meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::figures::Call;
use super::sent::Sent;
use super::{Contender, ReadError, dialect};
use crate::edit::summarize::instruction;
use crate::payload::ChainKey;
use crate::plan::SummaryEffect;
use crate::summary::{Prompt, Recollection, Summary};
use crate::tokens::Gauge;

/// Who makes the summaries of sessions that are played.
#[derive(Clone, Copy)]
pub enum Summarist<'a> {
    /// Nobody: for each, a text of about so many tokens stands in, with all that stands around a summary.
    StandIn(usize),
    /// A model, which may fail.
    Model(&'a dyn Fn(SummaryEffect) -> Option<Arc<Summary>>),
}

/// The summaries of one session.
#[derive(Debug, Default)]
pub(super) struct Summaries(pub(super) HashMap<ChainKey, Recollection>);

/// What answers are expected to take at most.
const MAX_TOKENS: usize = 8192;

impl Default for Summarist<'_> {
    /// A text of some two pages.
    fn default() -> Self {
        Self::StandIn(1500)
    }
}

impl Summaries {
    /// Has a summary made. What its call took, and whether there is a summary now.
    pub(super) fn make(
        &mut self,
        effect: SummaryEffect,
        summarist: Summarist<'_>,
        contender: &Contender,
        gauge: &Gauge,
        before: Option<&Sent>,
    ) -> Result<(Call, bool), ReadError> {
        let (key, call) = (effect.key, called(&effect, contender, gauge, before)?);
        let summary = match summarist {
            Summarist::Model(make) => make(effect),
            Summarist::StandIn(tokens) => stand_in(&effect, tokens, gauge)?,
        };
        let made = summary.is_some();
        self.0.insert(key, summary.map_or(Recollection::NotNow, Recollection::Summary));
        Ok((call, made))
    }
}

/// A summary that says nothing, unless it would be larger than what it stands for.
fn stand_in(effect: &SummaryEffect, tokens: usize, gauge: &Gauge) -> Result<Option<Arc<Summary>>, ReadError> {
    let text = effect.frame.around(&vec!["word"; tokens].join(" "));
    let dialect = dialect()?;
    let message = dialect.render_user_message(&text);
    let summary = Summary {
        text,
        tokens_replaced: effect.tokens_replaced,
        transcript: effect.transcript.as_ref().map(|effect| effect.key),
    };
    Ok((dialect.element_tokens(gauge, &message) < effect.tokens).then(|| Arc::new(summary)))
}

/// What the call for a summary takes, and what of it a cache could serve that has the request before.
fn called(
    effect: &SummaryEffect,
    contender: &Contender,
    gauge: &Gauge,
    before: Option<&Sent>,
) -> Result<Call, ReadError> {
    let (settings, language) = (&contender.planner.parts.summarize, contender.planner.parts.language);
    let instruction = instruction::instruction(settings, language);
    let max_tokens = settings.max_tokens.unwrap_or(MAX_TOKENS);
    let (input, system) = (settings.input, instruction::system(language));
    let prompt = Prompt { input, system, instruction: &instruction, max_tokens, model: None };
    let Some(body) = dialect()?.summary_request(&effect.source, &prompt) else { return Ok(Call::default()) };
    let sent = Sent::new(body, gauge, before)?;
    let shared = before.map_or(0, |before| sent.common(before).tokens);
    Ok(Call { tokens: sent.tokens(), shared })
}

impl fmt::Debug for Summarist<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandIn(tokens) => f.debug_tuple("StandIn").field(tokens).finish(),
            Self::Model(_) => f.write_str("Model"),
        }
    }
}
