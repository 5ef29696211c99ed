//! All dialects, and which of them a request is in.

use memchr::memmem;

use super::{Dialect, chat_completions, gemini, json, messages, responses};

/// All dialects. The first one is spoken where nothing says which.
pub const ALL: [&dyn Dialect; 4] =
    [&chat_completions::ChatCompletions, &responses::Responses, &messages::Messages, &gemini::Gemini];

/// The dialect of a name.
pub fn named(name: &str) -> Option<&'static dyn Dialect> {
    ALL.into_iter().find(|dialect| dialect.name() == name)
}

/// The dialect spoken at `path` (without the query), if it is one that edits know.
pub fn for_path(path: &str) -> Option<&'static dyn Dialect> {
    ALL.into_iter().find(|dialect| dialect.base_path(path).is_some())
}

/// The dialect of requests at `path` (without the query) that only count tokens, if there is one.
pub fn for_counting_path(path: &str) -> Option<&'static dyn Dialect> {
    ALL.into_iter().find(|dialect| dialect.facts().counting_paths.iter().any(|end| path.ends_with(end)))
}

/// The dialect of requests at `path` (without the query) that ask for a compaction, if there is one.
pub fn for_compacting_path(path: &str) -> Option<&'static dyn Dialect> {
    ALL.into_iter().find(|dialect| dialect.facts().compacting_path.is_some_and(|end| path.ends_with(end)))
}

/// The dialect of a request that comes without a path, by the keys at its top and the types of blocks: in a file, for
/// instance. [`default`] if they do not say.
pub fn of_body(body: &[u8]) -> &'static dyn Dialect {
    let keys: [&[u8]; 3] = [b"messages", b"input", b"system"];
    match json::fields(&mut json::Cursor::new(body), keys) {
        Ok([None, Some(_), _]) => &responses::Responses,
        Ok([Some(_), _, Some(_)]) => &messages::Messages,
        // A quote inside of a string has a backslash before it.
        Ok([Some(_), ..]) if BLOCKS.iter().any(|block| memmem::find(body, block).is_some()) => &messages::Messages,
        Ok([None, None, _]) if memmem::find(body, b"\"contents\"").is_some() => &gemini::Gemini,
        _ => default(),
    }
}

/// What only bodies in Anthropic Messages have among their strings.
const BLOCKS: [&[u8]; 3] = [b"\"tool_use\"", b"\"tool_result\"", b"\"input_schema\""];

/// The dialect of what has neither a path nor a body: errors of requests that no dialect knows.
pub fn default() -> &'static dyn Dialect {
    let [first, ..] = ALL;
    first
}

#[cfg(test)]
mod tests;
