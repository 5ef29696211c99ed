//! The tool that is added to a request, by which the model reads what was taken out of it.
//!
//! It stands behind the client's tools, with the same bytes in every request, from the first one on that names something
//! stored: what is cleared stays cleared, so the tools of a conversation change once.

use super::Draft;
use crate::{
    dialect::BytesAt,
    recall::{RetrievalMethod, Via},
    span::Span,
};

impl Draft<'_> {
    /// The tool and its place, if something that was taken out is read with it.
    pub(super) fn added_tool(&self) -> Option<BytesAt> {
        let is_named = self.replacements.values().any(|replacement| replacement.stored.is_some())
            || self.applied().is_some_and(|applied| applied.summary.transcript.is_some());
        if !is_named || !matches!(self.retrieval_method(), RetrievalMethod::Tool { is_added: true, .. }) {
            return None;
        }
        let tool = self.request.dialect.recall_tool();
        Some(BytesAt { at: self.end_of_tools()?, bytes: [b",", &*tool].concat().into() })
    }

    /// Whether texts were taken out and nothing that the request offers could read them back, where something should.
    pub(super) fn lacks_recall(&self) -> bool {
        let is_unavailable = || matches!(self.retrieval_method.get(), Some(RetrievalMethod::Unavailable));
        let is_stored = || self.replacements.values().any(|replacement| replacement.stored.is_some());
        self.recall.via != Via::None && is_unavailable() && is_stored()
    }

    /// Where a tool can be added: behind the last one of the client. None if it has none, or if the server has more of the
    /// conversation than abridge could continue, or keeps it: a later request would continue from a call that its client
    /// has not seen.
    pub(super) fn end_of_tools(&self) -> Option<usize> {
        let conversation = self.request.conversation;
        let traits = conversation.traits;
        // An element that offers tools keeps its place only before the conversation.
        let is_leading =
            |tools: &&Span| conversation.unit(self.first_editable).is_none_or(|first| tools.start < first.span.start);
        let leading = conversation.more_tools.iter().take_while(is_leading);
        let mut tools =
            conversation.tools.iter().chain(leading).filter(|_| !traits.history_elsewhere && !traits.is_kept);
        let end = |tools: &Span| {
            let inside = tools.of(self.request.body).strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii_end();
            (!inside.is_empty()).then_some(tools.start + 1 + inside.len())
        };
        tools.find_map(end)
    }
}
