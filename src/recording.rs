//! Recorded exchanges: one folder a request, readable by `abridge replay`, by the tests and by people.
//!
//! | file | holds |
//! |---|---|
//! | `request.json` | the request body as the client sent it, decoded if it was compressed |
//! | `rewritten.json` | the body that went upstream; absent if it is the same |
//! | `response.sse`, `response.json` or `response.bin` | the response body as the upstream sent it; `bin` if it is compressed |
//! | `summary.json` | the summary that replaces messages in the body that went upstream, and for which ones; absent if none does |
//! | `meta.json` | [`Meta`]: path, status, arrival of each chunk, how it ended, [`PlanInputs`] |
//! | `policy.toml` | fixtures only: the part of `proxy.toml` that this case runs under, if not the defaults |
//! | `plan.snap` | fixtures only: the plan, as text |
//!
//! A folder holds what was said, so it is as private as the conversation: `0700`, its files `0600`.
//! It never holds a key: of all headers only `content-type` and `content-encoding` are kept, of the query only `api-version`.
//! Nor does it hold the secret of a store: handles are recorded beside the ones that [`Keys::well_known`] give the same payloads.
//!
//! [`Keys::well_known`]: crate::payload::Keys::well_known

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::ops::Not;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::dialect::{self, AnswerEnd, Form};
use crate::handler::Answer;
use crate::payload::{ChainKey, Handles};
use crate::plan::SentFacts;
use crate::platform::files::private_file;
use crate::summary::{Summary, UsedSummary};
use crate::tokens::factor::Factor;

mod recorder;

pub use recorder::{Recorder, Recording, SentRequest};

/// The longest file that is read back, in bytes.
const MAX_FILE: u64 = 1 << 30;

const SUMMARY: &str = "summary.json";
const RESPONSES: [&str; 3] = ["response.sse", "response.json", "response.bin"];

/// One recorded exchange in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exchange {
    /// The request body as the client sent it, decoded.
    pub request: Bytes,
    /// The body that went upstream, if it was another one.
    pub rewritten: Option<Bytes>,
    /// The response body as received, if there was an answer.
    pub response: Option<Bytes>,
    /// The summary that replaces messages in the body that went upstream.
    pub summary: Option<UsedSummary>,
    /// The metadata.
    pub meta: Meta,
    /// The part of `proxy.toml` that this exchange is to be planned under; `None`: the present policy.
    pub policy: Option<String>,
    /// The plan as text.
    pub plan: Option<String>,
}

/// `meta.json`. Every field has a default, and fields of later versions are skipped.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, SmartDefault)]
#[serde(default)]
pub struct Meta {
    /// The request's path, and of its query `api-version` alone: any other value may be a key.
    #[default(dialect::default().path().to_owned())]
    pub path: String,
    /// The status of the answer; absent if none came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The answer's `content-type`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The answer's `content-encoding`; the body is stored as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    /// Each chunk of the response: seconds since the request was sent, and its bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<(f64, usize)>,
    /// How the response ended.
    pub ended: AnswerEnd,
    /// Whether the recorded response is truncated at its size limit.
    #[serde(skip_serializing_if = "Not::not")]
    pub response_truncated: bool,
    /// A dry run: `request.json` is what went upstream, `rewritten.json` what would have gone.
    #[serde(skip_serializing_if = "Not::not")]
    pub dry_run: bool,
    /// The version of abridge that recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abridge: Option<String>,
    /// The inputs of planning; absent in fixtures, and in recordings of versions that did not record them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs: Option<PlanInputs>,
    /// A note that a person added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The inputs of planning, beside the request and the settings. With them, the same settings give the same body again.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct PlanInputs {
    /// The form of the request that went upstream.
    pub form: RequestForm,
    /// The forms that it was brought into.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forms: Vec<Form>,
    /// The address at which clients reached abridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The context windows that the upstream had announced, by model: that of the request, if an edit needed it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub windows: BTreeMap<String, usize>,
    /// What tokens were counted as, if any were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_factor: Option<Factor>,
    /// The passes that were made because the prompt cache had expired: in requests of so many elements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cold_passes: Vec<usize>,
    /// The facts about earlier requests.
    #[serde(skip_serializing_if = "SentFacts::is_empty")]
    pub sent: SentFacts,
    /// The host of the upstream, if the plan depends on its prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// How messages of a gateway were edited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place: Option<InPlace>,
    /// Whether the payloads could not be stored, so that they stayed in the body.
    #[serde(skip_serializing_if = "Not::not")]
    pub not_stored: bool,
    /// The answers of handlers that were used, by the names that they have in a replay.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub answers: BTreeMap<ChainKey, Answer>,
    /// The handles of the payloads that were taken out.
    #[serde(skip_serializing_if = "Handles::is_empty")]
    pub handles: Handles,
}

/// How messages of a gateway were edited.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct InPlace {
    /// How many rows at the beginning stayed.
    pub n_frozen: usize,
    /// Whether the gateway reads originals by hash, and not as the settings say.
    pub by_hash: bool,
}

/// The form of a request that went upstream.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestForm {
    /// Edited by the policy.
    #[default]
    Edited,
    /// As short as possible, since the upstream had refused a longer form.
    Shortest,
    /// Edited without the reasoning before each pass, since the upstream had refused that.
    Stripped,
    /// As it came, whatever the policy says: its content coding could not be decoded, an edit failed, or the upstream
    /// had refused another form.
    Unedited,
}

/// Why a recording could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{file}")]
pub struct ReadError {
    /// The name of the file in its folder.
    pub file: &'static str,
    /// What is wrong with it.
    pub source: io::Error,
}

/// The content of `summary.json`.
#[derive(Deserialize, Serialize)]
struct SummaryFile {
    end: usize,
    #[serde(flatten)]
    summary: Summary,
}

// === impl Exchange ===

impl Exchange {
    /// Reads a folder. All files but `request.json` may be missing.
    pub fn read(dir: &Path) -> Result<Self, ReadError> {
        let request = read_file(dir, "request.json")?
            .ok_or_else(|| ReadError { file: "request.json", source: io::ErrorKind::NotFound.into() })?;
        let used = |SummaryFile { end, summary }| UsedSummary { end, summary: Arc::new(summary) };
        Ok(Self {
            rewritten: read_file(dir, "rewritten.json")?,
            response: RESPONSES.iter().find_map(|name| read_file(dir, name).transpose()).transpose()?,
            summary: read_json(dir, SUMMARY)?.map(used),
            meta: read_json(dir, "meta.json")?.unwrap_or_else(|| Meta::of(&request)),
            request,
            policy: read_text(dir, "policy.toml")?,
            plan: read_text(dir, "plan.snap")?,
        })
    }

    /// Writes the files into `dir`, which must not exist yet. Not atomic: [`Recording::finish`] writes to a temporary
    /// folder and renames it.
    #[cfg(any(test, feature = "testing"))]
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        crate::platform::files::private_folder().create(dir)?;
        let (rewritten, response) = (self.rewritten.as_ref().map(std::slice::from_ref), self.response.as_deref());
        self.meta.write(dir, &self.request, rewritten, response, self.summary.as_ref())?;
        if let Some(text) = &self.policy {
            write_file(dir, "policy.toml", [text])?;
        }
        if let Some(text) = &self.plan {
            write_file(dir, "plan.snap", [text])?;
        }
        Ok(())
    }

    /// The body that went upstream, or would have gone on a dry run.
    pub fn forwarded(&self) -> &Bytes {
        self.rewritten.as_ref().unwrap_or(&self.request)
    }
}

// === impl Meta ===

impl Meta {
    /// The metadata of a folder without `meta.json`: a request in the dialect of its body.
    fn of(request: &[u8]) -> Self {
        Self { path: dialect::of_body(request).path().to_owned(), ..Self::default() }
    }

    /// The path without the query.
    pub fn path_only(&self) -> &str {
        self.path.split_once('?').map_or(self.path.as_str(), |(path, _)| path)
    }

    /// The name of the file that holds the response body.
    fn response_file(&self) -> &'static str {
        let event_stream = self.content_type.as_deref().is_none_or(|kind| {
            kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
        });
        match (&self.content_encoding, event_stream) {
            (Some(_), _) => "response.bin",
            (None, true) => "response.sse",
            (None, false) => "response.json",
        }
    }

    /// Writes the files of an exchange.
    fn write(
        &self,
        dir: &Path,
        request: &[u8],
        rewritten: Option<&[Bytes]>,
        response: Option<&[u8]>,
        summary: Option<&UsedSummary>,
    ) -> io::Result<()> {
        write_file(dir, "request.json", [request])?;
        if let Some(pieces) = rewritten {
            write_file(dir, "rewritten.json", pieces)?;
        }
        if let Some(body) = response {
            write_file(dir, self.response_file(), [body])?;
        }
        if let Some(UsedSummary { end, summary }) = summary {
            let file = SummaryFile { end: *end, summary: Summary::clone(summary) };
            write_file(dir, SUMMARY, [serde_json::to_vec(&file)?])?;
        }
        write_file(dir, "meta.json", [serde_json::to_vec(self)?, b"\n".to_vec()])
    }
}

// === helpers ===

fn write_file<P: AsRef<[u8]>>(dir: &Path, name: &str, pieces: impl IntoIterator<Item = P>) -> io::Result<()> {
    let mut file = private_file().write(true).create_new(true).open(dir.join(name))?;
    pieces.into_iter().try_for_each(|piece| file.write_all(piece.as_ref()))
}

fn read_json<T: DeserializeOwned>(dir: &Path, name: &'static str) -> Result<Option<T>, ReadError> {
    let value =
        |bytes: Bytes| serde_json::from_slice(&bytes).map_err(|error| ReadError { file: name, source: error.into() });
    read_file(dir, name)?.map(value).transpose()
}

fn read_file(dir: &Path, name: &'static str) -> Result<Option<Bytes>, ReadError> {
    let failed = |source| ReadError { file: name, source };
    let file = match fs::File::open(dir.join(name)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    let is_too_long = bytes.len() as u64 > MAX_FILE;
    if is_too_long { Err(failed(io::ErrorKind::FileTooLarge.into())) } else { Ok(Some(bytes.into())) }
}

fn read_text(dir: &Path, name: &'static str) -> Result<Option<String>, ReadError> {
    let not_text = |error| ReadError { file: name, source: io::Error::other(error) };
    let text = |bytes: Bytes| String::from_utf8(bytes.into()).map_err(not_text);
    read_file(dir, name)?.map(text).transpose()
}
