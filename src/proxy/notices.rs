//! Warnings about what requests have shown, each logged once.
#![expect(clippy::disallowed_types, reason = "the lock is held for one look and across no await")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use self::stalls::Stalls;
use crate::plan::Report;

pub(in crate::proxy) mod stalls;

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
    blocking_types: Mutex<BTreeSet<String>>,
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
        let mut known = self.blocking_types.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MOST_TYPES && known.insert(kind.clone()) {
            tracing::warn!(
                item_type = kind,
                "a conversation is not summarised: it has a message of this type, which no summary may replace"
            );
        }
    }
}
