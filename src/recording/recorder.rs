//! The recorder of the running proxy: exchanges are fed while they run, and written when they have ended.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode, Uri};

use super::{Ended, Inputs, Meta, write_file, write_summary};
use crate::payload::Keys;
use crate::plan::OffloadEffect;
use crate::summary::Used;

/// The longest response body that is kept; what comes behind it is relayed but not recorded.
const MAX_RESPONSE: usize = 64 << 20;
/// The bytes that all unfinished recordings may hold in memory together.
const MAX_HELD: usize = 256 << 20;
/// What a chunk costs besides its bytes: its entry in [`Meta::chunks`].
const CHUNK_ENTRY: usize = size_of::<(f64, usize)>();
/// How many exchanges may share one name before a recording gives up.
const MAX_NAMESAKES: usize = 10_000;

/// Writes exchanges into one folder while the server runs.
#[derive(Clone, Debug)]
pub struct Recorder {
    dir: Arc<Path>,
    address: Option<String>,
    keys: Keys,
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
    /// What decided on the body, but for the address and the handles, which the recorder adds.
    pub inputs: Inputs,
    /// The summary that stands for messages.
    pub summary: Option<Used>,
    /// What was taken out.
    pub offloads: Vec<OffloadEffect>,
}

/// One exchange while it runs. It is fed, and at the end written with [`Recording::finish`]; dropped, it leaves nothing.
#[derive(Debug)]
pub struct Recording {
    dir: Arc<Path>,
    name: String,
    request: Bytes,
    rewritten: Option<Vec<Bytes>>,
    response: Option<Vec<u8>>,
    summary: Option<Used>,
    offloads: Vec<OffloadEffect>,
    keys: Keys,
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

// === impl Recorder ===

impl Recorder {
    /// A recorder that writes into `dir`, which is made, with its parents, if it does not exist.
    pub fn new(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let limits = Limits { response: MAX_RESPONSE, held: MAX_HELD };
        Ok(Self { dir: dir.into(), address: None, keys: Keys::well_known(), held: Arc::default(), limits })
    }

    /// The same, where clients reach abridge at `address`.
    #[must_use]
    pub fn reached_at(self, address: Option<String>) -> Self {
        Self { address, ..self }
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
            inputs: Some(Inputs { address: self.address.clone(), ..sent.inputs }),
            ended: Ended::UpstreamCut,
            ..Meta::default()
        };
        Some(Recording {
            dir: Arc::clone(&self.dir),
            name: folder_name(name),
            request: sent.request,
            rewritten: sent.rewritten,
            response: None,
            summary: sent.summary,
            offloads: sent.offloads,
            keys: self.keys.clone(),
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
        if let Some(inputs) = &mut self.meta.inputs {
            let name = |effect: &OffloadEffect| self.keys.payload(self.keys.anonymous(), &effect.payload.bytes());
            inputs.handles = self.offloads.iter().map(|effect| (name(effect), effect.key)).collect();
        }
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
        if let Some(used) = &self.summary {
            write_summary(dir, used)?;
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

#[cfg(test)]
mod tests;
