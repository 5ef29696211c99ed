//! Copies what is whole out of a file that may not open: frames are found by how they begin, and checked. A file that
//! opens says which of them are still stored; of one that does not, all are taken, even if they were removed before.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use ::redb::{Error, ReadOnlyDatabase};
use memchr::memmem;

use super::file::{Secret, unwound};
use super::{RedbStore, whole};
use crate::payload::{Lifetime, Payload, Place};
use crate::store::codec::{self, HEAD_LEN, Name};
use crate::store::{Store as _, StoreError};

/// The counts of a salvage.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Salvaged {
    /// Payloads.
    pub payloads: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Summaries and other facts about conversations.
    pub summaries: u64,
}

/// Why nothing more can be copied out of a file.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// It cannot be read.
    #[error("the file cannot be read")]
    Read(#[from] io::Error),
    /// A process uses it.
    #[error("the file is in use by a running abridge; stop that one first")]
    InUse,
    /// The new file cannot be written to.
    #[error(transparent)]
    Write(#[from] StoreError),
}

/// The frames of a file, in file order.
struct Frames {
    file: File,
    len: u64,
    at: u64,
    window: Vec<u8>,
    window_at: u64,
    /// Longer frames are passed over.
    most: usize,
}

/// How many bytes are searched at a time.
const WINDOW: usize = 1 << 20;

/// Payloads are written when there are so many bytes of them.
const BATCH: usize = 8 << 20;

/// The secret of a file. It is looked for only where frames are as long as that of a secret.
pub fn secret(path: &Path) -> Option<Secret> {
    let mut frames = Frames::open(path, HEAD_LEN + size_of::<Secret>()).ok()?;
    while let Ok(Some((name, payload))) = frames.next() {
        if name == Name::of_secret() {
            return payload.bytes().as_ref().try_into().ok();
        }
    }
    None
}

/// Copies the payloads and facts of a file that are whole.
pub async fn salvage(from: &Path, to: &RedbStore) -> Result<Salvaged, SalvageError> {
    let stored = stored(from)?;
    let is_stored = |name: &Name| stored.as_ref().is_none_or(|stored| stored.contains(name));
    let (mut salvaged, mut batch, mut n_bytes) = (Salvaged::default(), Vec::new(), 0);
    let mut seen = HashSet::new();
    let mut frames = Frames::open(from, usize::MAX)?;
    while let Some((name, payload)) = frames.next()? {
        if !is_stored(&name) || !seen.insert(name) {
            continue;
        }
        if let Some(beginning) = name.summary() {
            to.offer_summary(Place { root: beginning, beginning }, payload.bytes()).await?;
            salvaged.summaries += 1;
        } else if let Some(key) = name.payload() {
            salvaged.payloads += 1;
            salvaged.bytes += payload.len() as u64;
            n_bytes += payload.len();
            batch.push((key, payload));
        }
        if n_bytes > BATCH {
            n_bytes = 0;
            // The file may not say which ones an upstream's conversation names.
            to.put(std::mem::take(&mut batch), Lifetime::Chained).await?;
        }
    }
    to.put(batch, Lifetime::Chained).await?;
    Ok(salvaged)
}

/// The names of what is stored; `None` if the file does not say.
fn stored(path: &Path) -> Result<Option<HashSet<Name>>, SalvageError> {
    match unwound(|| whole::names(&ReadOnlyDatabase::open(path)?)) {
        Ok(names) => Ok(Some(names)),
        Err(Error::DatabaseAlreadyOpen) => Err(SalvageError::InUse),
        Err(_) => Ok(None),
    }
}

// === impl Frames ===

impl Frames {
    fn open(path: &Path, most: usize) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file, len, at: 0, window: Vec::new(), window_at: 0, most })
    }

    /// The next frame that is whole.
    fn next(&mut self) -> io::Result<Option<(Name, Payload)>> {
        while self.len.saturating_sub(self.at) >= HEAD_LEN as u64 {
            let bytes = self.bytes(HEAD_LEN)?;
            let (n_bytes, magic) = (bytes.len(), memmem::find(bytes, &codec::MAGIC));
            let Some(found) = magic else {
                // What begins at the end of the window is found in the next one.
                self.at += (n_bytes + 1).saturating_sub(HEAD_LEN).max(1) as u64;
                continue;
            };
            self.at += found as u64;
            let announced = codec::announced(self.bytes(HEAD_LEN)?).filter(|len| *len <= self.most);
            if let Some(len) = announced.filter(|len| *len as u64 <= self.len.saturating_sub(self.at))
                && let Some(frame) = codec::decode_found(self.bytes(len)?)
            {
                self.at += len as u64;
                return Ok(Some(frame));
            }
            self.at += 1;
        }
        Ok(None)
    }

    /// The bytes from here on: so many or more, or as many as there are.
    fn bytes(&mut self, n: usize) -> io::Result<&[u8]> {
        let n = n.min(usize::try_from(self.len.saturating_sub(self.at)).unwrap_or(usize::MAX));
        let start = self.at.checked_sub(self.window_at).and_then(|start| usize::try_from(start).ok());
        let start = start.filter(|start| self.window.len() >= start.saturating_add(n));
        if start.is_none() {
            self.file.seek(SeekFrom::Start(self.at))?;
            self.window.clear();
            (&self.file).take(n.max(WINDOW) as u64).read_to_end(&mut self.window)?;
            self.window_at = self.at;
        }
        Ok(self.window.get(start.unwrap_or(0)..).unwrap_or_default())
    }
}
