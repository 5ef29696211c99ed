//! The recorder of the running proxy: collects exchanges while they run, and writes them when they have ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode, Uri};

use super::{Meta, PlanInputs};
use crate::dialect::AnswerEnd;
use crate::handler::UsedAnswer;
use crate::held::budget::{Budget, Lease};
use crate::payload::{Keys, OffloadedPayload, Payload};
use crate::platform::files::private_folder;
use crate::summary::UsedSummary;

/// The longest response body that is recorded, in bytes; the rest is relayed only.
const MAX_RESPONSE: usize = 64 << 20;
/// The bytes that all unfinished recordings may hold in memory together.
const MAX_HELD: usize = 256 << 20;
/// The memory that a chunk takes besides its bytes: its entry in [`Meta::chunks`].
const CHUNK_ENTRY: usize = size_of::<(f64, usize)>();

/// Writes exchanges into one folder while the server runs.
#[derive(Clone, Debug)]
pub struct Recorder {
    dir: Arc<Path>,
    /// The address at which clients reach abridge.
    pub address: Option<String>,
    // Shared by all unfinished recordings.
    held: Budget,
    max_response: usize,
}

/// A request as it is about to go upstream.
#[derive(Clone, Debug)]
pub struct SentRequest {
    /// The client's target.
    pub target: Uri,
    /// The body as the client sent it, decoded.
    pub request: Bytes,
    /// The body that goes upstream, in pieces; `None` if it is the same.
    pub rewritten: Option<Vec<Bytes>>,
    /// Whether the original goes upstream although it would have been edited.
    pub dry_run: bool,
    /// The inputs of planning, without the address and the handles, which the recorder adds.
    pub inputs: PlanInputs,
    /// The summary that replaces messages.
    pub summary: Option<UsedSummary>,
    /// The payloads that were taken out.
    pub offloads: Vec<OffloadedPayload>,
    /// The answers of handlers that were used.
    pub answers: Vec<UsedAnswer>,
}

/// One running exchange. [`Recording::finish`] writes it; if it is dropped instead, nothing is written.
#[derive(Debug)]
pub struct Recording {
    recorder: Recorder,
    name: String,
    sent: SentRequest,
    response: Option<Vec<u8>>,
    meta: Meta,
    held: Lease,
}

// === impl Recorder ===

impl Recorder {
    /// Creates a recorder that writes into `dir`, which is created with its parents if it does not exist.
    pub fn new(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        private_folder().recursive(true).create(&dir)?;
        Ok(Self { dir: dir.into(), address: None, held: Budget::new(MAX_HELD), max_response: MAX_RESPONSE })
    }

    /// Begins to record an exchange into the folder `name`: the request's id. `None` if the request does not fit into the
    /// memory that unfinished recordings may hold: the exchange is then served but not recorded.
    pub fn begin(&self, name: &str, mut sent: SentRequest) -> Option<Recording> {
        let held = self.held.lease(sent.request.len())?;
        let meta = Meta {
            path: recorded_path(&sent.target),
            dry_run: sent.dry_run,
            abridge: Some(env!("CARGO_PKG_VERSION").to_owned()),
            inputs: Some(PlanInputs { address: self.address.clone(), ..std::mem::take(&mut sent.inputs) }),
            ended: AnswerEnd::Cut,
            ..Meta::default()
        };
        Some(Recording { recorder: self.clone(), name: name.to_owned(), sent, response: None, meta, held })
    }
}

// === impl Recording ===

impl Recording {
    /// Records the head of the upstream's answer.
    pub fn begin_response(&mut self, status: StatusCode, headers: &HeaderMap) {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        self.meta.status = Some(status.as_u16());
        self.meta.content_type = text(CONTENT_TYPE);
        self.meta.content_encoding = text(CONTENT_ENCODING).filter(|coding| !coding.eq_ignore_ascii_case("identity"));
        self.response = Some(Vec::new());
    }

    /// Records a chunk of the answer that arrived `after` the request was sent.
    pub fn push_chunk(&mut self, after: Duration, chunk: &[u8]) {
        let Some(response) = &mut self.response else { return };
        let fits = response.len() + chunk.len() <= self.recorder.max_response;
        let n_held = chunk.len() + CHUNK_ENTRY;
        if self.meta.response_truncated || !fits || !self.recorder.held.extend(&mut self.held, n_held) {
            self.meta.response_truncated = true;
            return;
        }
        response.extend_from_slice(chunk);
        self.meta.chunks.push((micros(after), chunk.len()));
    }

    /// Writes the folder and returns its path. Blocks. The folder appears completely or not at all.
    pub fn finish(mut self, ended: AnswerEnd) -> io::Result<PathBuf> {
        self.meta.ended = ended;
        if let Some(inputs) = &mut self.meta.inputs {
            let (keys, SentRequest { offloads, answers, .. }) = (Keys::well_known(), &self.sent);
            let name = |effect: &OffloadedPayload| keys.payload(keys.anonymous(), &effect.payload.bytes());
            inputs.handles = offloads.iter().map(|effect| (name(effect), effect.key)).collect();
            let replayed = Keys::recorded(inputs.handles.clone());
            let name = |payload: &Payload| replayed.payload(replayed.anonymous(), &payload.bytes());
            let named = answers.iter().map(|used| (used.key(&replayed, name), (*used.answer).clone()));
            inputs.answers = named.collect();
        }
        let finished = self.recorder.dir.join(&self.name);
        if finished.exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", finished.display())));
        }
        // Its name is hidden.
        let unfinished = self.recorder.dir.join(format!(".tmp-{}", self.name));
        private_folder().create(&unfinished)?;
        let SentRequest { request, rewritten, summary, .. } = &self.sent;
        let (rewritten, response) = (rewritten.as_deref(), self.response.as_deref());
        let written = self.meta.write(&unfinished, request, rewritten, response, summary.as_ref());
        // A rename never replaces a folder that is not empty.
        let written = written.and_then(|()| fs::rename(&unfinished, &finished));
        if written.is_err() {
            // Removing the folder may fail as well; the first error is the one that is returned.
            let _ = fs::remove_dir_all(&unfinished);
        }
        written.map(|()| finished)
    }
}

// === helpers ===

fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

/// The path, with the query's `api-version` if there is one: Azure needs it, and it is not secret.
fn recorded_path(target: &Uri) -> String {
    let version = target.query().unwrap_or_default().split('&').find(|pair| pair.starts_with("api-version="));
    version.map_or_else(|| target.path().to_owned(), |version| format!("{}?{version}", target.path()))
}

#[cfg(test)]
mod tests;
