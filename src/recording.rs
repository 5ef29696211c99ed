//! Recorded exchanges: one folder a request, readable by `abridge replay`, by the tests and by people.
//!
//! | file | holds |
//! |---|---|
//! | `request.json` | the request body as the client sent it, decoded if it was compressed |
//! | `rewritten.json` | the body that went upstream; absent if it is the same |
//! | `response.sse`, `response.json` or `response.bin` | the response body as the upstream sent it; `bin` if it is compressed |
//! | `meta.json` | [`Meta`]: path, status, arrival of each chunk, how it ended |
//! | `policy.toml` | fixtures only: the part of `proxy.toml` that this case runs under, if not the defaults |
//! | `plan.snap` | fixtures only: the plan, as text |
//!
//! A folder holds what was said, so it is as private as the conversation: `0700`, its files `0600`.
//! It never holds a key: of all headers only `content-type` and `content-encoding` are kept, of the query only `api-version`.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode, Uri};
use serde::{Deserialize, Serialize};

use crate::dialect;

/// The longest response body that is kept; what comes behind it is relayed but not recorded.
const MAX_RESPONSE: usize = 64 << 20;
/// The bytes that all unfinished recordings may hold in memory together.
const MAX_HELD: usize = 256 << 20;
/// The longest file that is read back.
const MAX_FILE: u64 = 1 << 30;
/// What a chunk costs besides its bytes: its entry in [`Meta::chunks`].
const CHUNK_ENTRY: usize = size_of::<(f64, usize)>();
/// How many exchanges may share one name before a recording gives up.
const MAX_NAMESAKES: usize = 10_000;

const RESPONSES: [&str; 3] = ["response.sse", "response.json", "response.bin"];

/// One recorded exchange, whole in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exchange {
    /// The request body as the client sent it, decoded.
    pub request: Bytes,
    /// The body that went upstream, if it was another one.
    pub rewritten: Option<Bytes>,
    /// The response body as received, if there was an answer.
    pub response: Option<Bytes>,
    /// What else there is to know.
    pub meta: Meta,
    /// The part of `proxy.toml` that this exchange is to be planned under; `None`: the present policy.
    pub policy: Option<String>,
    /// The plan as text.
    pub plan: Option<String>,
}

/// `meta.json`. Every field has a default, and fields of later versions are skipped.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Meta {
    /// The request's path, and of its query `api-version` alone: any other value may be a key.
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
    /// The request's `content-encoding`; `request.json` is stored decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_encoding: Option<String>,
    /// Each chunk of the response: seconds since the request was sent, and its bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<(f64, usize)>,
    /// How the response ended.
    pub ended: Ended,
    /// The response was longer than what is kept of one.
    #[serde(skip_serializing_if = "is_false")]
    pub response_truncated: bool,
    /// A dry run: `request.json` is what went upstream, `rewritten.json` what would have gone.
    #[serde(skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Which version recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abridge: Option<String>,
    /// What a person wrote about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How a response ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Whole.
    #[default]
    Complete,
    /// The upstream broke off, or never answered.
    UpstreamCut,
    /// The client went away first.
    ClientGone,
}

/// Why a folder could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file is missing or cannot be read.
    #[error("{name}")]
    File {
        /// The file's name in its folder.
        name: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file is longer than any exchange may be.
    #[error("{name} is longer than {MAX_FILE} bytes")]
    TooLong {
        /// The file's name in its folder.
        name: &'static str,
    },
    /// A file that is text is not UTF-8.
    #[error("{name} is not UTF-8")]
    NotText {
        /// The file's name in its folder.
        name: &'static str,
    },
    /// `meta.json` is not what [`Meta`] describes.
    #[error("meta.json")]
    Meta(#[source] serde_json::Error),
}

/// Writes exchanges into one folder while the server runs.
#[derive(Clone, Debug)]
pub struct Recorder {
    dir: Arc<Path>,
    held: Arc<AtomicUsize>,
    limits: Limits,
}

/// What the relay tells of a request before it goes upstream.
#[derive(Clone, Debug)]
pub struct Sent<'a> {
    /// The client's target.
    pub target: &'a Uri,
    /// The body as the client sent it, decoded.
    pub request: Bytes,
    /// The body that goes upstream, in pieces; `None` if it is the same.
    pub rewritten: Option<Vec<Bytes>>,
    /// The `content-encoding` that the request came with.
    pub request_encoding: Option<String>,
    /// The original goes upstream although it would have been rewritten.
    pub dry_run: bool,
}

/// One exchange while it runs. It is fed, and at the end written with [`Recording::finish`]; dropped, it leaves nothing.
#[derive(Debug)]
pub struct Recording {
    dir: Arc<Path>,
    name: String,
    request: Bytes,
    rewritten: Option<Vec<Bytes>>,
    response: Option<Vec<u8>>,
    meta: Meta,
    held: Held,
    limits: Limits,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    response: usize,
    held: usize,
}

/// A recording's share of the memory that all of them may hold; given back on drop.
#[derive(Debug)]
struct Held {
    total: Arc<AtomicUsize>,
    own: usize,
}

// === impl Exchange ===

impl Exchange {
    /// Reads a folder. All but `request.json` may be missing.
    pub fn read(dir: &Path) -> Result<Self, ReadError> {
        let request = read_file(dir, "request.json")?
            .ok_or_else(|| ReadError::File { name: "request.json", source: io::ErrorKind::NotFound.into() })?;
        let meta = read_file(dir, "meta.json")?
            .map_or_else(|| Ok(Meta::default()), |text| serde_json::from_slice(&text).map_err(ReadError::Meta))?;
        let mut response = None;
        for name in RESPONSES {
            if response.is_none() {
                response = read_file(dir, name)?;
            }
        }
        Ok(Self {
            request,
            rewritten: read_file(dir, "rewritten.json")?,
            response,
            meta,
            policy: read_text(dir, "policy.toml")?,
            plan: read_text(dir, "plan.snap")?,
        })
    }

    /// Writes the files into `dir`, which must not exist yet. Not atomic: [`Recording::finish`] writes beside and renames.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(dir)?;
        write_file(dir, "request.json", [&self.request])?;
        if let Some(body) = &self.rewritten {
            write_file(dir, "rewritten.json", [body])?;
        }
        if let Some(body) = &self.response {
            write_file(dir, self.meta.response_file(), [body])?;
        }
        if let Some(text) = &self.policy {
            write_file(dir, "policy.toml", [text])?;
        }
        if let Some(text) = &self.plan {
            write_file(dir, "plan.snap", [text])?;
        }
        write_file(dir, "meta.json", [self.meta.to_json()?])
    }

    /// The body that went upstream, or would have gone on a dry run.
    pub fn forwarded(&self) -> &Bytes {
        self.rewritten.as_ref().unwrap_or(&self.request)
    }
}

// === impl Meta ===

impl Default for Meta {
    /// A request of the kind that is edited, and nothing known of its answer: what a folder without `meta.json` means.
    fn default() -> Self {
        Self {
            path: dialect::default().path().to_owned(),
            status: None,
            content_type: None,
            content_encoding: None,
            request_encoding: None,
            chunks: Vec::new(),
            ended: Ended::Complete,
            response_truncated: false,
            dry_run: false,
            abridge: None,
            note: None,
        }
    }
}

impl Meta {
    /// The path without the query.
    pub fn path_only(&self) -> &str {
        self.path.split_once('?').map_or(self.path.as_str(), |(path, _)| path)
    }

    /// The name of the file that holds the response body.
    fn response_file(&self) -> &'static str {
        let event_stream = self.content_type.as_deref().is_some_and(|kind| {
            kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
        });
        match (&self.content_encoding, event_stream) {
            (Some(_), _) => "response.bin",
            (None, true) => "response.sse",
            (None, false) => "response.json",
        }
    }

    fn to_json(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        Ok(text)
    }
}

// === impl Recorder ===

impl Recorder {
    /// A recorder that writes into `dir`, which is made, with its parents, if it does not exist.
    pub fn new(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let limits = Limits { response: MAX_RESPONSE, held: MAX_HELD };
        Ok(Self { dir: dir.into(), held: Arc::default(), limits })
    }

    /// Begins to record an exchange under `name`, such as the request's id. `None` if the unfinished recordings hold
    /// so much memory that this request does not fit beside them: recording gives way, serving does not.
    pub fn begin(&self, name: &str, sent: Sent<'_>) -> Option<Recording> {
        let mut held = Held { total: Arc::clone(&self.held), own: 0 };
        if !held.take(sent.request.len(), self.limits.held) {
            return None;
        }
        let meta = Meta {
            path: recorded_path(sent.target),
            request_encoding: sent.request_encoding,
            dry_run: sent.dry_run,
            abridge: Some(env!("CARGO_PKG_VERSION").to_owned()),
            ended: Ended::UpstreamCut,
            ..Meta::default()
        };
        Some(Recording {
            dir: Arc::clone(&self.dir),
            name: folder_name(name),
            request: sent.request,
            rewritten: sent.rewritten,
            response: None,
            meta,
            held,
            limits: self.limits,
        })
    }
}

// === impl Recording ===

impl Recording {
    /// The upstream's answer begins.
    pub fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        self.meta.status = Some(status.as_u16());
        self.meta.content_type = text(CONTENT_TYPE);
        self.meta.content_encoding = text(CONTENT_ENCODING).filter(|coding| !coding.eq_ignore_ascii_case("identity"));
        self.response = Some(Vec::new());
    }

    /// A chunk of the answer has come, `after` the request was sent.
    pub fn chunk(&mut self, after: Duration, chunk: &[u8]) {
        let Some(response) = &mut self.response else { return };
        let fits = response.len() + chunk.len() <= self.limits.response;
        if self.meta.response_truncated || !fits || !self.held.take(chunk.len() + CHUNK_ENTRY, self.limits.held) {
            self.meta.response_truncated = true;
            return;
        }
        response.extend_from_slice(chunk);
        self.meta.chunks.push((micros(after), chunk.len()));
    }

    /// Writes the folder and returns its path. Blocks. The folder appears whole or not at all.
    pub fn finish(mut self, ended: Ended) -> io::Result<PathBuf> {
        self.meta.ended = ended;
        let unfinished = self.claim()?;
        let written = self.write_into(&unfinished).and_then(|()| self.publish(&unfinished));
        if written.is_err() {
            // What cannot be written may not be removable either; the first error is the one to tell.
            let _ = fs::remove_dir_all(&unfinished);
        }
        written
    }

    /// Makes the folder that nobody sees yet.
    fn claim(&self) -> io::Result<PathBuf> {
        self.first_free(".tmp-", |path| fs::DirBuilder::new().mode(0o700).create(path))
    }

    fn write_into(&self, dir: &Path) -> io::Result<()> {
        write_file(dir, "request.json", [&self.request])?;
        if let Some(pieces) = &self.rewritten {
            write_file(dir, "rewritten.json", pieces)?;
        }
        if let Some(body) = &self.response {
            write_file(dir, self.meta.response_file(), [body])?;
        }
        write_file(dir, "meta.json", [self.meta.to_json()?])
    }

    /// Gives the folder its name. A rename never replaces a folder that has something in it.
    fn publish(&self, unfinished: &Path) -> io::Result<PathBuf> {
        self.first_free("", |path| fs::rename(unfinished, path))
    }

    /// The first path of `name`, `name-2`, `name-3`, … for which `attempt` does not find something there already.
    fn first_free(&self, prefix: &str, attempt: impl Fn(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
        use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
        let mut path = self.dir.join(format!("{prefix}{}", self.name));
        for n in 2..MAX_NAMESAKES {
            match attempt(&path) {
                Ok(()) => return Ok(path),
                Err(error) if matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory) => {}
                Err(error) => return Err(error),
            }
            path = self.dir.join(format!("{prefix}{}-{n}", self.name));
        }
        Err(io::Error::new(AlreadyExists, format!("too many recordings are named {}", self.name)))
    }
}

// === impl Held ===

impl Held {
    /// Takes `n` more bytes if all recordings together then stay within `limit`.
    fn take(&mut self, n: usize, limit: usize) -> bool {
        let before = self.total.fetch_add(n, Ordering::Relaxed);
        if before.saturating_add(n) > limit {
            self.total.fetch_sub(n, Ordering::Relaxed);
            return false;
        }
        self.own += n;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.fetch_sub(self.own, Ordering::Relaxed);
    }
}

// === helpers ===

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

/// The path, and `api-version` if the query has it: Azure needs it, and it is no secret.
fn recorded_path(target: &Uri) -> String {
    let version = target.query().unwrap_or_default().split('&').find(|pair| pair.starts_with("api-version="));
    version.map_or_else(|| target.path().to_owned(), |version| format!("{}?{version}", target.path()))
}

/// `name` as one visible path component: it may come from a client.
fn folder_name(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().take(100).map(kept).collect();
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None if name.is_empty() => "exchange".to_owned(),
        None => name,
    }
}

fn write_file<P: AsRef<[u8]>>(dir: &Path, name: &str, pieces: impl IntoIterator<Item = P>) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join(name))?;
    pieces.into_iter().try_for_each(|piece| file.write_all(piece.as_ref()))
}

fn read_file(dir: &Path, name: &'static str) -> Result<Option<Bytes>, ReadError> {
    let file = match fs::File::open(dir.join(name)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ReadError::File { name, source }),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|source| ReadError::File { name, source })?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ReadError::TooLong { name });
    }
    Ok(Some(bytes.into()))
}

fn read_text(dir: &Path, name: &'static str) -> Result<Option<String>, ReadError> {
    let text = |bytes: Bytes| String::from_utf8(bytes.into()).map_err(|_| ReadError::NotText { name });
    read_file(dir, name)?.map(text).transpose()
}

#[cfg(test)]
mod tests;
