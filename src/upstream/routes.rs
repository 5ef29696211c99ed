//! Several upstreams: the `[[upstreams]]` tables, and which requests go to which of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::HeaderMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::KeyHeader;
use super::target::{BaseUrl, HeaderName, HeaderValue, is_below};
use crate::dialect::{self, Dialect};
use crate::string_index::StringIndex;
use crate::tokens::models::Pattern;
use crate::units::one_or_more;

/// One of the `[[upstreams]]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Its name in reports, metrics and messages: small letters, digits, `-` and `_`. `default` is the name of
    /// `[upstream]`.
    ///
    /// Example: `"anthropic"`
    pub name: String,
    /// Which requests go to it. The tables are tried from the first to the last, and the first one that matches counts.
    ///
    /// Not set: those that the name means: `messages` and `anthropic` for the dialect `messages`,
    /// `gemini` and `google` for `gemini`, `chat_completions` and `responses` for these dialects, `openai` for both of
    /// them, `chatgpt` for the requests of a
    /// Codex that is logged in with `ChatGPT`. Other names need `when`.
    ///
    /// Example: `{ dialect = "messages" }`
    pub when: Option<RequestMatch>,
    /// Where the requests go. A client's path is joined to it.
    ///
    /// Example: `"https://api.anthropic.com"`
    pub url: BaseUrl,
    /// A beginning that is taken off a client's path before the path is joined to `url`.
    ///
    /// Not set: the whole path is joined.
    ///
    /// Example: `"/anthropic"`
    pub strip_path: Option<String>,
    /// The name of one of the `policies`, for the edits of its requests.
    ///
    /// Not set: the settings of the top level.
    ///
    /// Example: `"long"`
    pub policy: Option<String>,
    /// The name of the environment variable with the key to send to it in place of what the client sends.
    ///
    /// Not set: the client's own key is passed on; the key of `[upstream]` is never sent to it.
    ///
    /// Example: `"ANTHROPIC_API_KEY"`
    pub api_key_env: Option<String>,
    /// The header field in which the key of `api_key_env` is sent. Other keys of the client are then left out.
    ///
    /// Not set: `"x-api-key"` if `when` names the dialect `messages`, `"x-goog-api-key"` if it names `gemini`, else
    /// `"authorization"`.
    ///
    /// Example: `"x-api-key"`
    pub api_key_header: Option<KeyHeader>,
    /// Header fields that are set on every request to it. Those of `[upstream]` are never sent to it.
    ///
    /// Not set: none.
    ///
    /// Example: `{ x-gateway-key = "KEY" }`
    #[serde(default, skip_serializing_if = "HeaderFields::is_empty")]
    pub headers: HeaderFields,
}

/// Header fields by name.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct HeaderFields(pub BTreeMap<HeaderName, HeaderValue>);

/// Which requests are meant: one condition, or a list of conditions of which at least one must hold. A condition is a table
/// of the following keys, and holds when every key in it holds.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct RequestMatch(pub Vec<RequestCondition>);

/// A condition on a request.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields, expecting = "a table of conditions, or a list of them")]
pub struct RequestCondition {
    /// The path is this one or below it: `"/groq"` means `/groq` and `/groq/v1/models`, not `/groqs`.
    pub path: Option<String>,
    /// The dialect of the path, with everything below it.
    pub dialect: Option<DialectName>,
    /// The model that the request asks for. Known only where abridge reads the body: for a `POST` to the path of a
    /// dialect that is edited, without `x-abridge: off`, and in a known content coding. Where it is not known, the
    /// condition does not hold.
    pub model: Option<Pattern>,
    /// A header field that the request has: `"x-team: blue"` for this value, `"x-team"` for any.
    pub header: Option<HeaderMatch>,
}

/// A wire format.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum DialectName {
    /// `/v1/chat/completions`, of OpenAI and compatible servers.
    ChatCompletions,
    /// `/v1/responses`, of OpenAI.
    Responses,
    /// `/v1/messages`, of Anthropic, and every request with the header field `anthropic-version` whose path is that of
    /// no other dialect.
    Messages,
    /// `/v1beta/models/MODEL:generateContent` and `:streamGenerateContent`, of Gemini, and every request with the header field
    /// `x-goog-api-client` whose path is that of no other dialect.
    Gemini,
}

/// A header field by name, or by name and value.
#[derive(Clone, Debug, derive_more::Display, Eq, PartialEq)]
#[display("{name}{}", value.as_ref().map(|value| format!(": {value}")).unwrap_or_default())]
pub struct HeaderMatch {
    name: http::HeaderName,
    value: Option<String>,
}

/// A request, as conditions see it.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// Its path, without the query.
    pub path: &'a str,
    /// Its header fields.
    pub headers: &'a HeaderMap,
    /// The model that it asks for, if its body was read.
    pub model: Option<&'a str>,
}

/// The `[[upstreams]]` in their order, each with what belongs to it, and what belongs to `[upstream]`.
#[derive(Clone, Debug)]
pub struct Routes<T> {
    routes: Vec<(RequestMatch, T)>,
    default: T,
}

/// A path that Claude Code asks for before its first request.
const HELLO: &str = "/api/hello";

/// The header field that every client of Anthropic's API sends.
pub const ANTHROPIC_VERSION: http::HeaderName = http::HeaderName::from_static("anthropic-version");

/// The header field that clients of Google's libraries send.
const GOOGLE_CLIENT: http::HeaderName = http::HeaderName::from_static("x-goog-api-client");

/// The header field that Codex sends where its user has logged in with `ChatGPT`.
pub const CHATGPT_ACCOUNT: http::HeaderName = http::HeaderName::from_static("chatgpt-account-id");

// === impl Settings ===

impl Settings {
    /// The settings of this upstream, where those that are not set and that hold no key are as in `[upstream]`.
    pub fn over(&self, default: &super::Settings) -> super::Settings {
        super::Settings {
            url: self.url.clone(),
            api_key_env: self.api_key_env.clone(),
            api_key_header: self.key_header(),
            headers: self.headers.0.clone(),
            ..default.clone()
        }
    }

    /// The requests that go to it: those of `when`, or those that the name means.
    pub fn requests(&self) -> Option<RequestMatch> {
        self.when.clone().or_else(|| RequestMatch::of_name(&self.name))
    }

    /// Whether its conditions name this dialect.
    pub fn speaks(&self, dialect: DialectName) -> bool {
        let names = |condition: &RequestCondition| condition.dialect == Some(dialect);
        self.requests().is_some_and(|requests| requests.0.iter().any(names))
    }

    fn key_header(&self) -> KeyHeader {
        self.api_key_header.unwrap_or(if self.speaks(DialectName::Messages) {
            KeyHeader::XApiKey
        } else if self.speaks(DialectName::Gemini) {
            KeyHeader::XGoogApiKey
        } else {
            KeyHeader::Authorization
        })
    }
}

impl HeaderFields {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// === impl RequestMatch ===

impl RequestMatch {
    /// The requests that a name means, if it is that of a dialect or of a maker with its own API.
    pub fn of_name(name: &str) -> Option<Self> {
        let dialect = |dialect| RequestCondition { dialect: Some(dialect), ..RequestCondition::default() };
        let hello = RequestCondition { path: Some(HELLO.to_owned()), ..RequestCondition::default() };
        Some(Self(match name {
            "chat_completions" => vec![dialect(DialectName::ChatCompletions)],
            "responses" => vec![dialect(DialectName::Responses)],
            "messages" | "anthropic" => vec![dialect(DialectName::Messages), hello],
            "gemini" | "google" => vec![dialect(DialectName::Gemini)],
            "openai" => vec![dialect(DialectName::ChatCompletions), dialect(DialectName::Responses)],
            "chatgpt" => {
                let header = HeaderMatch { name: CHATGPT_ACCOUNT, value: None };
                vec![RequestCondition { header: Some(header), ..RequestCondition::default() }]
            }
            _ => return None,
        }))
    }

    /// Whether one of the conditions holds.
    pub fn holds(&self, request: &RequestFacts<'_>) -> bool {
        self.0.iter().any(|condition| condition.holds(request))
    }
}

impl<'de> Deserialize<'de> for RequestMatch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let conditions = one_or_more(from, "a table of conditions, or a list of them")?;
        if conditions.is_empty() || conditions.contains(&RequestCondition::default()) {
            return Err(D::Error::custom("a condition names at least one of path, dialect, model and header"));
        }
        let is_path = |condition: &RequestCondition| condition.path.as_ref().is_none_or(|path| path.starts_with('/'));
        if !conditions.iter().all(is_path) {
            return Err(D::Error::custom("a path begins with /"));
        }
        Ok(Self(conditions))
    }
}

impl RequestCondition {
    fn holds(&self, request: &RequestFacts<'_>) -> bool {
        let path = self.path.as_deref().is_none_or(|path| is_below(request.path, path.trim_end_matches('/')));
        path && self.dialect.is_none_or(|dialect| request.dialect().is_some_and(|of| of.name() == dialect.name()))
            && self.header.as_ref().is_none_or(|header| header.holds(request.headers))
            && self.model.as_ref().is_none_or(|pattern| request.model.is_some_and(|model| pattern.fits(model)))
    }
}

// === impl RequestFacts ===

impl<'a> RequestFacts<'a> {
    /// A request whose body is not read.
    pub fn of_head<B>(request: &'a http::Request<B>) -> Self {
        Self { path: request.uri().path(), headers: request.headers(), model: None }
    }

    /// The dialect that its client speaks, if it is one that abridge knows: that of its path, of what its path is below, or of its
    /// header fields.
    pub fn dialect(&self) -> Option<&'static dyn Dialect> {
        let mut places = self.path.match_indices('/').filter_map(|(at, _)| self.path.get(at..));
        let below = || places.find_map(|rest| dialect::ALL.into_iter().find(|known| is_below(rest, known.path())));
        let of_field =
            |field, name: DialectName| self.headers.contains_key(field).then(|| dialect::named(name.name()))?;
        dialect::for_path(self.path)
            .or_else(below)
            .or_else(|| of_field(ANTHROPIC_VERSION, DialectName::Messages))
            .or_else(|| of_field(GOOGLE_CLIENT, DialectName::Gemini))
    }
}

// === impl Routes ===

impl<T> Routes<T> {
    /// The `[[upstreams]]`, and `[upstream]` for all other requests.
    pub fn new(routes: Vec<(RequestMatch, T)>, default: T) -> Self {
        Self { routes, default }
    }

    /// `[upstream]` for all requests.
    pub fn only(default: T) -> Self {
        Self::new(Vec::new(), default)
    }

    /// That of `[upstream]`.
    pub fn default(&self) -> &T {
        &self.default
    }

    /// All of them, that of `[upstream]` first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.default).chain(self.routes.iter().map(|(_, route)| route))
    }

    /// Whether the choice may depend on the model.
    pub fn ask_for_the_model(&self) -> bool {
        self.routes.iter().flat_map(|(matcher, _)| &matcher.0).any(|condition| condition.model.is_some())
    }

    /// That of a request.
    pub fn find(&self, request: &RequestFacts<'_>) -> &T {
        let route = self.routes.iter().find(|(matcher, _)| matcher.holds(request));
        route.map_or(&self.default, |(_, route)| route)
    }

    /// That of a request of which the header fields are not known: only the path, or no path but that of its dialect.
    pub fn find_without_headers(&self, path: Option<&str>, dialect: &dyn Dialect, body: &[u8]) -> &T {
        let path = path.unwrap_or_else(|| dialect.path());
        let of_body = || model_of(dialect, body, StringIndex::EMPTY);
        let model = if self.ask_for_the_model() { of_body() } else { None };
        let model = model.map(Box::from).or_else(|| dialect.path_facts(path).model);
        self.find(&RequestFacts { path, headers: &HeaderMap::new(), model: model.as_deref() })
    }
}

/// The model that a body asks for; none if the body cannot be parsed.
pub fn model_of(dialect: &dyn Dialect, body: &[u8], strings: &StringIndex) -> Option<String> {
    let model = dialect.parse_indexed(body, strings).ok()?.model;
    model.map(Cow::into_owned).or_else(|| strings.path().model.as_deref().map(str::to_owned))
}

// === impl DialectName ===

impl DialectName {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ChatCompletions, Self::Responses, Self::Messages, Self::Gemini];

    /// The name, as the settings have it.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

// === impl HeaderMatch ===

impl HeaderMatch {
    fn holds(&self, headers: &HeaderMap) -> bool {
        let is_it = |found: &http::HeaderValue| self.value.as_ref().is_none_or(|value| found == value.as_str());
        headers.get_all(&self.name).iter().any(is_it)
    }
}

impl<'de> Deserialize<'de> for HeaderMatch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let (name, value) = text.split_once(':').map_or((&*text, None), |(name, value)| (name, Some(value)));
        let name = name.trim().parse();
        let name = name.map_err(|_| D::Error::custom("a header field is \"name: value\", or its name alone"))?;
        Ok(Self { name, value: value.map(|value| value.trim().to_owned()) })
    }
}

impl Serialize for HeaderMatch {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
