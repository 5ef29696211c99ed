//! Additions to a request outside its messages: the mark that asks for the prompt cache, and the tools by which the model
//! controls clearing and reads what was taken out.
//!
//! They follow the client's tools, with the same bytes in every request. The first is in all of them. The second is there from
//! the first request on that names something stored. A cleared result stays cleared, so the tools of a conversation change once.
//! Where reasoning is bound to all before it, tools included, it is there from the first request on.

use bytes::Bytes;
use memchr::{memchr, memmem};

use super::{Draft, ParsedRequest, replacement::Replacement};
use crate::dialect::{BytesAt, CACHE_MARK, has_value};
use crate::recall::own_tools::{CONTROL, RECALL};
use crate::recall::{RetrievalMethod, Via};
use crate::span::Span;

/// What asks Anthropic's API for its automatic prompt cache.
const AUTOMATIC_CACHE: &[u8] = br#""cache_control":{"type":"ephemeral"},"#;

impl Draft<'_> {
    /// Has the request ask for the prompt cache, if an agent sends it and its API has an automatic one that it does not mark.
    pub fn request_prompt_cache(&mut self) {
        let ParsedRequest { dialect, body, conversation } = self.request;
        let is_of_agent =
            self.last_answer.is_some() || conversation.tools.is_some_and(|tools| tools.len() > "[]".len());
        let model = conversation.model.as_deref().unwrap_or_default();
        let is_unmarked = || memmem::find(body, CACHE_MARK).is_none();
        let asks = is_of_agent && is_unmarked() && dialect.has_automatic_cache(body, model);
        let at = memchr(b'{', body).filter(|_| asks);
        self.cache_request = at.map(|at| BytesAt { at: at + 1, bytes: Bytes::from_static(AUTOMATIC_CACHE) });
    }

    /// Lets the model control clearing, if the settings allow it.
    pub fn offer_control(&mut self) {
        self.offers_control = self.recall.controls;
    }

    /// Whether calls of the model control clearing.
    pub fn accepts_controls(&self) -> bool {
        self.offers_control
    }

    /// The tools and their place: one that controls clearing, and one if something that was taken out is read with it, or may be.
    pub(super) fn added_tools(&self) -> Option<BytesAt> {
        let is_named = || {
            self.replacements.values().any(Replacement::names_stored)
                || self.applied().is_some_and(|applied| applied.summary.transcript.is_some())
        };
        let reads = self.is_bound() || is_named();
        if !(reads || self.offers_control) || !self.may_add_tool() {
            return None;
        }
        let (at, strict) = self.end_of_tools()?;
        let tools = [(CONTROL, self.offers_control), (RECALL, reads)].into_iter().filter(|(_, is_added)| *is_added);
        let tools =
            tools.filter_map(|(tool, _)| Some([b",", &*self.request.dialect.own_tool(&tool, strict)?].concat()));
        Some(BytesAt { at, bytes: tools.collect::<Vec<_>>().concat().into() })
    }

    /// Whether what was taken out is read with a tool that is added to the client's.
    pub fn may_add_tool(&self) -> bool {
        matches!(self.retrieval_method(), RetrievalMethod::Tool { is_added: true, .. })
    }

    /// Whether the request offers tools, none of which could read a text back, although the settings ask for a way. A request
    /// that offers none says nothing of what its agent has.
    pub fn lacks_way(&self) -> bool {
        let conversation = self.request.conversation;
        let offers_tools =
            conversation.tools.iter().chain(&conversation.more_tools).any(|tools| tools.len() > "[]".len());
        self.recall.via != Via::None && offers_tools && *self.retrieval_method() == RetrievalMethod::Unavailable
    }

    /// Whether texts were taken out and nothing that the request offers could read them back, where something should.
    pub(super) fn lacks_recall(&self) -> bool {
        let is_stored = || self.replacements.values().any(|replacement| replacement.stored.is_some());
        self.recall.via != Via::None && is_stored() && *self.retrieval_method() == RetrievalMethod::Unavailable
    }

    /// Where a tool can be added: after the last one of the client; and whether those are marked `strict`, with the value
    /// `true` (a parameter of that name has a schema). None if it has none, or if the server has more of the conversation than
    /// abridge could continue, or keeps it: a later request would continue from a call that its client has not seen; or if the
    /// answer comes in frames.
    pub(super) fn end_of_tools(&self) -> Option<(usize, bool)> {
        let traits = self.request.conversation.traits;
        let is_out_of_reach = traits.history_elsewhere || traits.is_kept || traits.is_answer_framed;
        let mut tools = self.leading_tools().filter(|_| !is_out_of_reach);
        let end = |tools: &Span| {
            let inside = tools.of(self.request.body).strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii_end();
            (!inside.is_empty()).then_some((tools.start + 1 + inside.len(), has_value(inside, b"\"strict\"", b't')))
        };
        tools.find_map(end)
    }

    /// The tools before the conversation. Only there an element that offers tools keeps its place.
    pub(super) fn leading_tools(&self) -> impl Iterator<Item = &Span> {
        let conversation = self.request.conversation;
        let first = conversation.unit(self.first_editable).map(|first| first.span.start);
        let is_leading = move |tools: &&Span| first.is_none_or(|first| tools.start < first);
        conversation.tools.iter().chain(conversation.more_tools.iter().take_while(is_leading))
    }
}
