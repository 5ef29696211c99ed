//! Additions to a request outside its messages: the mark that asks for the prompt cache, and the tools by which the model
//! controls clearing and reads what was taken out.
//!
//! They follow the client's tools, with the same bytes in every request. The first is in all of them. The second is there from
//! the first request on that names something stored. A cleared result stays cleared, so the tools of a conversation change once.
//! Where reasoning is bound to all before it, tools included, it is there from the first request on.

use bytes::Bytes;
use memchr::{memchr, memmem};

use super::Draft;
use super::replace::Replacement;
use crate::conversation::{BlockIndex, UnitIndex};
use crate::dialect::{BytesAt, CACHE_MARK, has_value};
use crate::payload::{MediaType, PayloadKey};
use crate::recall::own_tools::{CONTROL, RECALL};
use crate::recall::{RetrievalMethod, Via};
use crate::span::Span;

/// The member that asks Anthropic's API for its automatic prompt cache.
const AUTOMATIC_CACHE: &[u8] = br#""cache_control":{"type":"ephemeral"},"#;

impl<'a> Draft<'a> {
    /// Has the request ask for the prompt cache, if an agent sends it and its API has an automatic one that it does not mark.
    pub fn request_prompt_cache(&mut self) {
        let is_of_agent =
            self.last_answer.is_some() || self.conversation.tools.is_some_and(|tools| tools.len() > "[]".len());
        let model = self.conversation.model.as_deref().unwrap_or_default();
        let is_unmarked = || memmem::find(self.body, CACHE_MARK).is_none();
        self.report.requests_cache = is_of_agent && is_unmarked() && self.dialect.has_automatic_cache(self.body, model);
        let at = memchr(b'{', self.body).filter(|_| self.report.requests_cache);
        self.beside.extend(at.map(|at| BytesAt { at: at + 1, bytes: Bytes::from_static(AUTOMATIC_CACHE) }));
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
        let tools = tools.filter_map(|(tool, _)| Some([b",", &*self.dialect.own_tool(&tool, strict)?].concat()));
        Some(BytesAt { at, bytes: tools.collect::<Vec<_>>().concat().into() })
    }

    /// Whether what was taken out is read with a tool that is added to the client's.
    pub fn may_add_tool(&self) -> bool {
        matches!(self.retrieval_method(), RetrievalMethod::Tool { is_added: true, .. })
    }

    /// Whether nothing that the request offers could read a text back, although the settings ask for a way.
    fn is_without_way(&self) -> bool {
        self.recall.via != Via::None && *self.retrieval_method() == RetrievalMethod::Unavailable
    }

    /// The same of a request that offers tools: one that offers none says nothing of what its agent has.
    pub fn lacks_way(&self) -> bool {
        let offers = |tools: &Span| tools.len() > "[]".len();
        self.all_tools().any(offers) && self.is_without_way()
    }

    /// The same where texts were taken out.
    pub(super) fn lacks_recall(&self) -> bool {
        self.replacements.values().any(|replacement| replacement.stored.is_some()) && self.is_without_way()
    }

    /// The words that say how to read what is stored under a name.
    pub fn retrieval_words(&self, key: PayloadKey, media: MediaType) -> String {
        if self.lacks_way() {
            return crate::recall::lost_words(self.language).to_owned();
        }
        self.retrieval_method().words(self.language, key, media)
    }

    /// Whether a result answers a call that asked for a payload of ours. What the result says is not read.
    pub fn is_recall(&self, unit: UnitIndex) -> bool {
        let call = self.pairing().answered_block(unit);
        let arguments = call.and_then(|call| Some((call, self.request().arguments(call)?)));
        arguments.is_some_and(|(call, arguments)| self.recall.is_recall_call(self.whole.tool_name(call), &arguments))
    }

    pub(super) fn retrieval_method(&self) -> &RetrievalMethod<'a> {
        self.known.retrieval_method.get_or_init(|| {
            // From a shell without a network, the client's user may let a command out. Tools that come later would change what
            // was said before. So both count only where there is no way without them.
            let with_leading = |shell_reaches| {
                let found = self.method_with(&mut self.leading_tools(), shell_reaches);
                (found != RetrievalMethod::Unavailable).then_some(found)
            };
            let without_shell = if self.is_offline() { with_leading(false) } else { None };
            let leading = without_shell.or_else(|| with_leading(true));
            leading.unwrap_or_else(|| self.method_with(&mut self.all_tools(), true))
        })
    }

    /// Whether the instructions say that the client's shell reaches no network, as those of Codex do in its default sandbox.
    fn is_offline(&self) -> bool {
        let first = self.unit(self.conversation.first_editable());
        let instructions = self.body.get(..first.map_or(0, |first| first.span.start)).unwrap_or_default();
        memmem::find(instructions, b"Network access is restricted").is_some()
    }

    fn method_with(&self, offered: &mut dyn Iterator<Item = &Span>, shell_reaches: bool) -> RetrievalMethod<'a> {
        let mut offered = offered.peekable();
        let names = match offered.peek() {
            _ if !self.recall.depends_on_tools() => Vec::new(),
            // A request for a compaction offers no tools; those are known that have been called.
            None if self.summarises_all() => {
                let blocks = (0..self.whole.blocks.len()).map(BlockIndex::new);
                blocks.map(|block| self.whole.tool_name(block).into()).collect()
            }
            _ => offered.flat_map(|tools| self.dialect.tool_names(self.body, *tools)).collect(),
        };
        match self.recall.retrieval_method(&names, shell_reaches) {
            RetrievalMethod::Tool { is_added: true, .. } if self.end_of_tools().is_none() => {
                RetrievalMethod::Unavailable
            }
            found => found,
        }
    }

    /// Where a tool can be added: after the last one of the client; and whether those are marked `strict`, with the value
    /// `true` (a parameter of that name has a schema). None if it has none, or if the server has more of the conversation than
    /// abridge could continue, or keeps it: a later request would continue from a call that its client has not seen; or if
    /// no call in the answer can be answered.
    fn end_of_tools(&self) -> Option<(usize, bool)> {
        let traits = self.conversation.traits;
        let is_out_of_reach = traits.history_elsewhere || traits.is_kept || traits.answers_no_calls;
        let mut tools = self.leading_tools().filter(|_| !is_out_of_reach);
        let end = |tools: &Span| {
            let inside = tools.of(self.body).strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii_end();
            (!inside.is_empty()).then_some((tools.start + 1 + inside.len(), has_value(inside, b"\"strict\"", b't')))
        };
        tools.find_map(end)
    }

    /// The tools before the conversation. Only there an element that offers tools keeps its place.
    fn leading_tools(&self) -> impl Iterator<Item = &Span> {
        let first = self.unit(self.first_editable).map_or(usize::MAX, |first| first.span.start);
        let of_elements = self.conversation.more_tools.iter().take_while(move |tools| tools.start < first);
        self.conversation.tools.iter().chain(of_elements)
    }

    fn all_tools(&self) -> impl Iterator<Item = &Span> {
        self.conversation.tools.iter().chain(&self.conversation.more_tools)
    }
}
