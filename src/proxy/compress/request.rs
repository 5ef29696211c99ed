//! The requests of gateways.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::admin::percent_decoded;
use crate::dialect::{self, Dialect};

/// The most characters of a session's name.
const MAX_SESSION: usize = 256;

/// Modes of other compressors, for which the settings decide.
const OTHER_MODES: [&str; 2] = ["lossy_inline", "lossless_then_lossy"];

/// A request to shorten messages.
pub(super) struct CompressRequest {
    pub(super) dialect: &'static dyn Dialect,
    pub(super) readback: Readback,
    pub(super) session: Option<String>,
    /// So many rows at the beginning stay as they are.
    pub(super) n_frozen: usize,
    pub(super) n_rows: usize,
    /// Whether the rows are in `input`.
    pub(super) is_input: bool,
}

/// How the model reads originals.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Readback {
    /// By its hash, with the tool that the gateway adds.
    ByHash,
    /// As the settings say, without the gateway.
    BySettings,
}

/// The fields of the body that no dialect reads, and its messages as they are written.
#[derive(Debug, Deserialize)]
pub(super) struct Body<'b> {
    #[serde(borrow)]
    pub(super) messages: Option<&'b RawValue>,
    #[serde(borrow)]
    pub(super) input: Option<&'b RawValue>,
    config: Option<RequestConfig>,
}

#[derive(Debug, Default, Deserialize)]
struct RequestConfig {
    mode: Option<String>,
    session_id: Option<String>,
    frozen_message_count: Option<usize>,
}

/// A request for an original.
#[derive(Debug, Deserialize)]
pub(super) struct RetrieveRequest {
    pub(super) hash: String,
    pub(super) session_id: Option<String>,
}

impl CompressRequest {
    /// Reads a body; the error says why it is not a request.
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let read: Body<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let RequestConfig { mode, session_id, frozen_message_count } = read.config.unwrap_or_default();
        let is_input = read.messages.is_none();
        let rows = read.messages.or(read.input).ok_or("`messages` is missing")?;
        // The `input` of Responses may be one text.
        let n_rows = if is_input && rows.get().starts_with('"') { 0 } else { rows_of(rows)?.len() };
        let readback = match mode.as_deref() {
            Some("ccr") => Readback::ByHash,
            None => Readback::BySettings,
            Some(mode) if OTHER_MODES.contains(&mode) => Readback::BySettings,
            Some(_) => return Err("`config.mode` is not known; leave it out, or ask for \"ccr\"".to_owned()),
        };
        if session_id.as_ref().is_some_and(|session| session.chars().count() > MAX_SESSION) {
            return Err(format!("`config.session_id` has more than {MAX_SESSION} characters"));
        }
        Ok(Self {
            dialect: dialect::of_body(body),
            readback,
            session: session_id.filter(|session| !session.is_empty()),
            n_frozen: frozen_message_count.unwrap_or_default(),
            n_rows,
            is_input,
        })
    }
}

impl RetrieveRequest {
    /// The request for this hash with a query, in which the session may be.
    pub(super) fn of_query(hash: String, query: &str) -> Self {
        let session = query.split('&').find_map(|part| part.strip_prefix("session_id="));
        let decoded = session.map(|session| String::from_utf8_lossy(&percent_decoded(session)).into_owned());
        Self { hash, session_id: decoded.filter(|session| !session.is_empty()) }
    }
}

/// The rows of an array of objects.
pub(super) fn rows_of(rows: &RawValue) -> Result<Vec<&RawValue>, String> {
    let rows: Vec<&RawValue> = serde_json::from_str(rows.get()).map_err(|_| "`messages` is not an array".to_owned())?;
    let are_objects = rows.iter().all(|row| row.get().starts_with('{'));
    are_objects.then_some(rows).ok_or_else(|| "a message is not an object".to_owned())
}
