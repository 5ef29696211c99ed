//! The demo's proxy: this program as a child process, with settings and a store in a temporary folder.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::platform::files::private_folder;
use crate::platform::process::clear_environment;
use crate::store::{Clock, OpenError, RedbStore, Settings, Stats, Store, StoreError};

/// The maximum time until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The secret of the child's store. It is fixed because handles are made with it, and two handles of the same length may
/// have different numbers of tokens.
const STORE_SECRET: [u8; 32] = [0; 32];

/// A temporary folder, removed when it is dropped.
#[derive(Debug)]
pub struct TempFolder(PathBuf);

/// The child process. It is killed when it is dropped.
#[derive(Debug)]
pub(super) struct AbridgeProcess {
    child: Child,
    url: String,
    store: PathBuf,
}

/// Why the child is not running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The process could not be started.
    #[error("abridge cannot be started as a child")]
    Start(#[from] io::Error),
    /// The process ended, or did not listen in time.
    #[error("the abridge of the demo did not come to listen; it said: {0}")]
    Silent(String),
    /// Its store could not be created.
    #[error(transparent)]
    Store(#[from] StoreCheckError),
}

/// Why the store cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoreCheckError {
    /// The store cannot be opened.
    #[error("the store of the demo cannot be opened")]
    Open(#[from] OpenError),
    /// The store cannot be read.
    #[error("the store of the demo cannot be read")]
    Read(#[from] StoreError),
}

// === impl TempFolder ===

impl TempFolder {
    /// Creates a folder in `parent` that only this user can read.
    pub fn new(parent: &Path) -> io::Result<Self> {
        let mut name = [0; 8];
        getrandom::getrandom(&mut name)?;
        let path = parent.join(format!("abridge-{:016x}", u64::from_le_bytes(name)));
        private_folder().create(&path)?;
        Ok(Self(path))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // A failure cannot be reported anywhere.
        let _ = fs::remove_dir_all(&self.0);
    }
}

// === impl AbridgeProcess ===

impl AbridgeProcess {
    /// Starts the child with these settings and an empty environment, and waits until it listens.
    pub(super) async fn start(program: &Path, folder: &TempFolder, settings: &str) -> Result<Self, StartError> {
        let (file, store) = (folder.0.join("proxy.toml"), folder.0.join("store.redb"));
        create_store(&store).await?;
        fs::write(&file, format!("{settings}\n[store]\npath = {:?}\n", store.display().to_string()))?;
        let mut child = clear_environment(&mut Command::new(program))
            .args(["serve", "--config"])
            .arg(&file)
            .current_dir(&folder.0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take();
        let mut started = Self { child, url: String::new(), store };
        let (sender, receiver) = oneshot::channel();
        thread::spawn(move || {
            if let Some(stderr) = stderr {
                read_address(stderr, sender);
            }
        });
        match timeout(START_TIMEOUT, receiver).await {
            Ok(Ok(Ok(url))) => started.url = url,
            Ok(Ok(Err(lines))) => return Err(StartError::Silent(lines)),
            _ => return Err(StartError::Silent("nothing".to_owned())),
        }
        Ok(started)
    }

    /// Scheme, host and port.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Stops the child and reads the statistics of its store.
    pub(super) async fn stop(mut self) -> Result<Stats, StoreCheckError> {
        self.kill();
        let store = RedbStore::open(&self.store, Settings::default(), Clock::system())?;
        let stats = store.stats().await?;
        store.close().await?;
        Ok(stats)
    }

    /// Kills the child. Everything that it has answered with is already on disk.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for AbridgeProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Creates the file of the child's store.
async fn create_store(path: &Path) -> Result<(), StoreCheckError> {
    RedbStore::create(path, Settings::default(), Clock::system(), STORE_SECRET)?.close().await?;
    Ok(())
}

/// Sends the address, or else all lines read, and keeps reading, so that the child never blocks on a full pipe.
fn read_address(stderr: ChildStderr, sender: oneshot::Sender<Result<String, String>>) {
    let mut sender = Some(sender);
    let mut lines = Vec::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let Some(waiting) = sender.take() else { continue };
        if let Some(url) = line.strip_prefix("abridge: listening on ") {
            // The receiver may have timed out.
            let _ = waiting.send(Ok(url.trim_end_matches('/').to_owned()));
        } else {
            sender = Some(waiting);
            lines.push(line);
        }
    }
    if let Some(waiting) = sender {
        let _ = waiting.send(Err(lines.join("; ")));
    }
}
