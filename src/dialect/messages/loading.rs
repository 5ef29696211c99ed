//! Results that make tools known: `tool_reference` blocks, in the results of the client's searches for tools and of the server's.
//! A tool with `defer_loading` is known to the model only by them.

use std::collections::HashSet;

use memchr::memmem;

use crate::conversation::Conversation;
use crate::dialect::json::objects;
use crate::span::Span;

/// Marks the units that make deferred tools of the request known.
pub(super) fn mark(conversation: &mut Conversation<'_>, body: &[u8]) {
    let has = |value: Span, word: &[u8]| memmem::find(value.of(body), word).is_some();
    let Some(tools) = conversation.tools.filter(|tools| has(*tools, b"\"defer_loading\"")) else { return };
    let deferred = deferred(body, tools).unwrap_or_default();
    for unit in conversation.units.iter_mut().filter(|_| !deferred.is_empty()) {
        let content = unit.content.map(|content| content.of(body)).filter(|content| content.starts_with(b"["));
        unit.flags.loads = content.is_some_and(|content| references(content).any(|name| deferred.contains(name)));
    }
}

/// The names of the tools with `defer_loading`, as they are written.
fn deferred(body: &[u8], tools: Span) -> Option<HashSet<&[u8]>> {
    let names = objects(body, tools, [b"name", b"defer_loading"], |_, [name, deferred]| {
        let is_deferred = deferred.is_some_and(|deferred| deferred.of(body) == b"true");
        Some(name.filter(|_| is_deferred).map(|name| name.of(body)))
    })?;
    Some(names.into_iter().collect())
}

/// The names in the references of a content, as they are written. Inside of a string, quotes have a backslash before them.
fn references(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    const KEY: &[u8] = b"\"tool_name\"";
    let is_reference = memmem::find(content, b"\"tool_reference\"").is_some();
    memmem::find_iter(if is_reference { content } else { b"" }, KEY).filter_map(|at| {
        let value = content.get(at + KEY.len()..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let end = memchr::memchr(b'"', value.get(1..)?)?;
        value.get(..end + 2)
    })
}

#[cfg(test)]
mod tests;
