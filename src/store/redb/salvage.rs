//! Copies what is whole out of a file that may not open: frames are found by how they begin, and checked. All are taken, even if
//! they were removed before.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use super::RedbStore;
use super::file::Secret;
use crate::payload::{Lifetime, Payload, Place};
use crate::store::codec::{self, HEAD_LEN, MAGIC, Name};
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
    /// The new file cannot be written to.
    #[error(transparent)]
    Write(#[from] StoreError),
}

/// The frames of a file, in file order.
struct Frames {
    file: BufReader<File>,
    /// Longer frames are passed over.
    most: usize,
}

/// How many bytes are read at a time.
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
    let (mut salvaged, mut batch, mut n_bytes) = (Salvaged::default(), Vec::new(), 0);
    let mut seen = HashSet::new();
    let mut frames = Frames::open(from, usize::MAX)?;
    while let Some((name, payload)) = frames.next()? {
        if !seen.insert(name) {
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

// === impl Frames ===

impl Frames {
    fn open(path: &Path, most: usize) -> io::Result<Self> {
        Ok(Self { file: BufReader::with_capacity(WINDOW, File::open(path)?), most })
    }

    /// The next frame that is whole.
    fn next(&mut self) -> io::Result<Option<(Name, Payload)>> {
        let [first, ..] = MAGIC;
        let mut frame = Vec::new();
        while self.file.skip_until(first)? > 0 {
            frame.clear();
            frame.push(first);
            self.read_up_to(HEAD_LEN, &mut frame)?;
            if let Some(len) = codec::announced(&frame).filter(|len| *len <= self.most) {
                self.read_up_to(len, &mut frame)?;
                if let Some(found) = codec::decode_found(&frame) {
                    return Ok(Some(found));
                }
            }
            self.file.seek_relative(1 - i64::try_from(frame.len()).unwrap_or(i64::MAX))?;
        }
        Ok(None)
    }

    /// Reads on until the frame has so many bytes, or the file ends.
    fn read_up_to(&mut self, len: usize, frame: &mut Vec<u8>) -> io::Result<usize> {
        (&mut self.file).take(len.saturating_sub(frame.len()) as u64).read_to_end(frame)
    }
}
