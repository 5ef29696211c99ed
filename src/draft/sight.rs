//! The units that are sent as they came, and the marks for prompt caches.

use std::borrow::Cow;

use super::{Draft, ParsedRequest};
use crate::{conversation::UnitIndex, dialect::strings, payload::Fingerprint};

impl<'a> Draft<'a> {
    /// Has the request ask for the prompt cache, if an agent sends it and its API has an automatic one that it does not mark.
    pub fn request_prompt_cache(&mut self) {
        let ParsedRequest { dialect, body, conversation } = self.request;
        let is_of_agent =
            self.last_answer.is_some() || conversation.tools.is_some_and(|tools| tools.len() > "[]".len());
        self.cache_request = is_of_agent.then(|| dialect.prompt_cache_request(body)).flatten();
    }

    /// Whether a unit is sent as it came, in its place.
    pub fn is_in_sight(&self, unit: UnitIndex) -> bool {
        self.is_in_place(unit) && !self.has_replacements(unit) && !self.has_lost_entries(unit)
    }

    /// The fingerprint of a unit as it came.
    pub fn fingerprint(&self, unit: UnitIndex) -> Fingerprint {
        self.fingerprints(unit).unit
    }

    /// The texts of a result as the client sent them.
    pub fn result_texts(&self, unit: UnitIndex) -> Vec<Cow<'a, str>> {
        let ParsedRequest { dialect, body, conversation } = self.request;
        let content = conversation.unit(unit).and_then(|unit| unit.content);
        let texts = content.map(|content| dialect.texts(body, content)).unwrap_or_default();
        texts.into_iter().filter_map(|text| strings::text(body, text)).collect()
    }
}
