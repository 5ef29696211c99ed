//! The abridge of the demo: this very program as a child, with settings and a store in a folder that goes with it.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::store::{Clock, OpenError, RedbStore, Settings, Stats, Store, StoreError};

/// How long it may take to listen.
const START: Duration = Duration::from_secs(20);

/// A folder for one run, removed when it is dropped.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

/// The running child. It is killed when it is dropped.
#[derive(Debug)]
pub(super) struct Abridge {
    child: Child,
    url: String,
    store: PathBuf,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum NotRunning {
    /// It could not be started.
    #[error("abridge cannot be started as a child")]
    Start(#[from] io::Error),
    /// It ended, or said nothing in time.
    #[error("the abridge of the demo did not come to listen; it said: {0}")]
    Silent(String),
}

/// Why the store cannot be looked into.
#[derive(Debug, thiserror::Error)]
pub enum NoStore {
    /// It does not open.
    #[error("the store of the demo cannot be opened")]
    Open(#[from] OpenError),
    /// It does not read.
    #[error("the store of the demo cannot be read")]
    Read(#[from] StoreError),
}

// === impl Folder ===

impl Folder {
    /// A new folder that nobody else may read, in this one.
    pub(super) fn new(parent: &Path) -> io::Result<Self> {
        let mut name = [0; 8];
        getrandom::getrandom(&mut name)?;
        let path = parent.join(format!("abridge-demo-{:016x}", u64::from_le_bytes(name)));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nobody is left who could do more about it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

// === impl Abridge ===

impl Abridge {
    /// Starts it with these settings, and waits until it listens. It gets nothing of the environment.
    pub(super) async fn start(program: &Path, folder: &Folder, settings: &str) -> Result<Self, NotRunning> {
        let (file, store) = (folder.0.join("proxy.toml"), folder.0.join("store.redb"));
        fs::write(&file, format!("{settings}\n[store]\npath = {:?}\n", store.display().to_string()))?;
        let mut child = Command::new(program)
            .args(["serve", "--config"])
            .arg(&file)
            .current_dir(&folder.0)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take();
        let mut started = Self { child, url: String::new(), store };
        let (tell, told) = oneshot::channel();
        thread::spawn(move || {
            if let Some(stderr) = stderr {
                listen(stderr, tell);
            }
        });
        match timeout(START, told).await {
            Ok(Ok(Ok(url))) => started.url = url,
            Ok(Ok(Err(said))) => return Err(NotRunning::Silent(said)),
            _ => return Err(NotRunning::Silent("nothing".to_owned())),
        }
        Ok(started)
    }

    /// Scheme, host and port.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Ends it, and looks what it has kept.
    pub(super) async fn stop(mut self) -> Result<Stats, NoStore> {
        self.kill();
        let store = RedbStore::open(&self.store, Settings::default(), Clock::system())?;
        let stats = store.stats().await?;
        store.close().await?;
        Ok(stats)
    }

    /// What it answered with is on disk: there is nothing to wait for.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Abridge {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Tells the address when it comes, or else all that was said; and reads on, so that the child never waits for a reader.
fn listen(stderr: ChildStderr, tell: oneshot::Sender<Result<String, String>>) {
    let mut tell = Some(tell);
    let mut said = Vec::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let Some(waiting) = tell.take() else { continue };
        if let Some(url) = line.strip_prefix("abridge: listening on ") {
            // Who no longer waits has given up.
            let _ = waiting.send(Ok(url.trim_end_matches('/').to_owned()));
        } else {
            tell = Some(waiting);
            said.push(line);
        }
    }
    if let Some(waiting) = tell {
        let _ = waiting.send(Err(said.join("; ")));
    }
}
