//! One transcript through one policy.

use std::collections::{BTreeMap, BTreeSet};

use super::figures::Request;
use super::sent::{Common, Sent};
use super::summarist::{Summaries, Summarist};
use super::{Contender, Figures, Prices, ReadError, Transcript, dialect};
use crate::plan::{Action, Need};
use crate::span::{joined, splice};

/// Plays it.
pub fn play(
    transcript: &Transcript,
    contender: &Contender,
    prices: Prices,
    summarist: Summarist<'_>,
) -> Result<Figures, ReadError> {
    let dialect = dialect()?;
    let mut summaries = Summaries::default();
    let gauge = contender.planner.meter.for_model(transcript.model());
    let mut figures = Figures::default();
    let (mut cleared, mut truncated, mut offloaded) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    let mut before: Option<Sent> = None;
    for body in transcript.requests() {
        // What the proxy does not understand goes on as it came, so it does here.
        let planned = loop {
            let situation = contender.planner.anonymous(&summaries.0);
            let mut planned = contender.planner.policy.plan(dialect, &body, &situation);
            let needs = planned.as_mut().ok().and_then(|plan| plan.needs.take());
            let Some(Need::Make(effect)) = needs else { break planned };
            let waits = effect.waits;
            let (call, made) = summaries.make(*effect, summarist, contender, &gauge, before.as_ref())?;
            figures.add_call(call, made);
            if !waits {
                break planned; // it is there for the next request
            }
        };
        let body = match planned {
            Ok(plan) => {
                for change in &plan.report.changes {
                    match change.action {
                        Action::Clear { message } => drop(cleared.insert(message)),
                        Action::Truncate { message } => drop(truncated.insert(message)),
                        _ => {}
                    }
                }
                offloaded.extend(plan.offloads.iter().map(|effect| (effect.key, effect.payload.len())));
                joined(splice(&body, &plan.splices))
            }
            Err(_) => body,
        };
        let sent = Sent::new(body, &gauge, before.as_ref())?;
        let common = before.as_ref().map_or(Common { tokens: 0, whole: true }, |before| sent.common(before));
        figures.add(Request {
            tokens: sent.tokens(),
            shared: common.tokens,
            window: gauge.window(),
            moved: !common.whole,
        });
        before = Some(sent);
    }
    figures.results_cleared = cleared.len();
    figures.results_truncated = truncated.len();
    figures.bytes_offloaded = offloaded.values().sum();
    figures.settle(prices);
    Ok(figures)
}
