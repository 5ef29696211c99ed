//! Warnings about what requests have shown, each logged once: among them one of upstreams that silently cut prompts, as the
//! prompt that they report stays the same while requests grow.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::held::Held;
use crate::plan::Report;
use crate::tokens::Meter;
use crate::tokens::last_used::last_used;

/// So many types of messages are named; clients choose them.
const MOST_TYPES: usize = 16;

/// The notices that were given already.
#[derive(Debug, Default)]
pub(super) struct Notices {
    lacks_recall: AtomicBool,
    beyond_window: AtomicBool,
    signed: AtomicBool,
    pub(super) socket_refused: AtomicBool,
    pub(super) socket_tunnelled: AtomicBool,
    blocking_types: Held<BTreeSet<String>>,
    /// Upstreams that cut prompts.
    pub(super) stalls: Stalls,
}

impl Notices {
    /// Logs that a request is sent as it came, because AWS would refuse another body under its signature.
    pub(super) fn note_signed(&self) {
        if !self.signed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "requests with AWS Signature Version 4 are sent as they came, and Bedrock refuses them, as the signature names abridge's address: use a bearer key (AWS_BEARER_TOKEN_BEDROCK), or set upstream.api_key_env, with upstream.api_key_header = 'aws-sigv4' to sign them anew, and start Claude Code with CLAUDE_CODE_SKIP_BEDROCK_AUTH=1"
            );
        }
    }

    /// Logs what is new in a report.
    pub(super) fn note(&self, report: &Report) {
        if report.lacks_recall && !self.lacks_recall.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                model = report.model.as_deref(),
                "the model is not told how to read back what was taken out: the request offers neither the tool of abridge's MCP server nor one of recall.shell_tools; connect the client to /abridge/mcp, or set recall.via to \"tool\""
            );
        }
        if let Some(window) = report.beyond_window
            && !self.beyond_window.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                model = report.model.as_deref(),
                tokens = report.tokens_after,
                window,
                "a request has more tokens than the window of its model, and no edit of the policy can make it shorter; start a new session, or put a lower summarize.trigger"
            );
        }
        let Some(kind) = &report.blocked_by else { return };
        if self.blocking_types.with(|known| known.len() < MOST_TYPES && known.insert(kind.clone())) {
            tracing::warn!(
                item_type = kind,
                "a conversation is not summarised: it has a message of this type, which no summary may replace"
            );
        }
    }
}

/// The prompts that the last answers have reported, by upstream and model.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Stalls {
    models: Held<Vec<Watched>>,
}

/// The requests to one model that were reported with the same prompt, one after the other.
#[derive(Debug)]
struct Watched {
    upstream: String,
    model: String,
    /// The size of the first and of the last request, in tokens.
    first: u64,
    last: u64,
    /// By how much the last one was longer than the one before it.
    growth: u64,
    /// The tokens that were reported of the last one.
    reported: u64,
    /// How often the request had grown.
    repeats: u32,
    /// Whether it was found that the upstream cuts prompts.
    is_found: bool,
}

/// The most models that are watched. A further one takes the place of the one that was seen the longest ago.
const MAX_WATCHED: usize = 64;

/// Shorter prompts are not looked at.
const MIN_REPORTED: u64 = 1024;

/// How often a request must grow while the reported prompt stays the same.
const REPEATS: u32 = 2;

impl Stalls {
    /// Notes that an answer reported a prompt of `reported` tokens for a request of `size` tokens. Warns once for each model, and
    /// lets the meter know its window.
    pub(in crate::proxy) fn note(&self, meter: &Meter, upstream: &str, model: &str, size: u64, reported: u64) {
        if reported < MIN_REPORTED {
            return;
        }
        let is_found = self.models.with(|models| {
            let is_it = |known: &Watched| known.upstream == upstream && known.model == model;
            let new = || Watched::new(upstream, model, size, reported);
            last_used(models, MAX_WATCHED, is_it, new).add(size, reported)
        });
        if is_found {
            meter.models().learn(model, usize::try_from(reported).unwrap_or(usize::MAX));
            tracing::warn!(
                upstream,
                model,
                window = reported,
                tokens = size,
                "the upstream reports the same prompt for requests that grow, so it cuts them without saying so; abridge takes this as the model's window from now on, unless [[models]] names one; raise the context of the server (num_ctx of Ollama) if it is too small"
            );
        }
    }
}

impl Watched {
    fn new(upstream: &str, model: &str, size: u64, reported: u64) -> Self {
        let (upstream, model) = (upstream.to_owned(), model.to_owned());
        Self { upstream, model, first: size, last: size, growth: 0, reported, repeats: 0, is_found: false }
    }

    /// Adds a request. Whether the upstream is found to cut, which is said once.
    fn add(&mut self, size: u64, reported: u64) -> bool {
        if self.is_found {
            return false;
        }
        let growth = size.saturating_sub(self.last);
        let is_same = reported.abs_diff(self.reported) <= reported / 256;
        // A server that reports what its cache did not have repeats itself if a conversation grows evenly.
        let is_even = self.growth == 0 || growth.abs_diff(self.growth) <= growth / 8;
        let is_growth = is_even && reported.abs_diff(growth) <= growth / 2;
        if !is_same || size < self.last {
            (self.first, self.growth, self.repeats) = (size, 0, 0);
        } else if growth > 0 {
            self.growth = growth;
            self.repeats += u32::from(!is_growth);
        }
        (self.last, self.reported) = (size, reported);
        // Sizes are estimates.
        self.is_found = self.repeats >= REPEATS && size >= self.first / 4 * 5 && reported < size / 4 * 3;
        self.is_found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Settings;

    /// The window that is found after these requests, each with its size and what was reported of it.
    fn found(requests: &[(u64, u64)]) -> Option<usize> {
        let (stalls, meter) = (Stalls::default(), Meter::new(&Settings::default(), &[]));
        for (size, reported) in requests {
            stalls.note(&meter, "u", "qwen3:8b", *size, *reported);
            stalls.note(&meter, "u", "other", 5000, 5000);
        }
        assert_eq!(meter.window(Some("other")), None);
        meter.window(Some("qwen3:8b"))
    }

    #[test]
    fn a_prompt_that_stays_the_same_while_requests_grow_is_the_window() {
        assert_eq!(found(&[(3000, 3000), (4800, 4096), (6000, 4096), (7000, 4096)]), Some(4096));
        assert_eq!(found(&[(6000, 4090), (9000, 4096), (13_000, 4096), (20_000, 4096)]), Some(4096));
    }

    #[test]
    fn other_reports_find_nothing() {
        // Honest, only once, the same request again, small growth, a cache that grows by as much each time, a short prompt.
        for requests in [
            &[(3000, 3000), (6000, 6000), (9000, 9000), (12_000, 12_000)][..],
            &[(6000, 4096), (9000, 4096)],
            &[(6000, 4096), (6000, 4096), (6000, 4096), (6000, 4096)],
            &[(6000, 4096), (6100, 4096), (6200, 4096)],
            &[(10_000, 10_000), (13_000, 3000), (16_000, 3000), (19_000, 3000), (22_000, 3000)],
            &[(6000, 600), (9000, 600), (12_000, 600)],
        ] {
            assert_eq!(found(requests), None, "{requests:?}");
        }
    }

    #[test]
    fn the_number_of_models_is_bounded() {
        let (stalls, meter) = (Stalls::default(), Meter::new(&Settings::default(), &[]));
        (0..MAX_WATCHED + 5).for_each(|n| stalls.note(&meter, "u", &n.to_string(), 5000, 5000));
        let (n, first) = stalls.models.with(|models| (models.len(), models[0].model.clone()));
        assert_eq!((n, &*first), (MAX_WATCHED, "5"));
    }
}
