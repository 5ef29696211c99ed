//! Payloads as files, for agents that share the disk and read with a tool of their own.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::payload::{Payload, PayloadKey};

/// Makes names of files that nobody else has.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Writes each payload to `{dir}/{handle}.txt`, unless it is there. Who reads one sees all of it or none. Blocks.
pub(super) fn write_all(dir: &Path, payloads: &[(PayloadKey, Payload)]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    payloads.iter().try_for_each(|(key, payload)| write(dir, *key, payload))
}

fn write(dir: &Path, key: PayloadKey, payload: &Payload) -> io::Result<()> {
    let path = dir.join(format!("{key}.txt"));
    // A crash of the machine may have left a file without all of its content.
    if fs::symlink_metadata(&path).is_ok_and(|file| file.is_file() && file.len() == payload.len() as u64) {
        return Ok(());
    }
    let temporary = dir.join(format!(".{key}.{}.{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(&payload.bytes()))
        .and_then(|()| fs::rename(&temporary, &path));
    written.inspect_err(|_| {
        // What cannot be written may not be removable either; the error that is told is the first.
        let _removed = fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_file_is_whole_and_its_owner_s_alone() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let payloads = [1, 2]
            .map(|n| (PayloadKey::from_bytes([n; 16]), Payload::from(Bytes::from(vec![b'x'; usize::from(n) * 9]))));
        for _ in 0..2 {
            write_all(&dir, &payloads).unwrap();
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        let path = dir.join(format!("{}.txt", payloads[1].0));
        assert_eq!(fs::read(&path).unwrap(), payloads[1].1.bytes());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);

        fs::write(&path, "half").unwrap();
        write_all(&dir, &payloads).unwrap();
        assert_eq!(fs::read(&path).unwrap(), payloads[1].1.bytes());
    }
}
