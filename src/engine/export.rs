//! Writes payloads as files, for agents that share the disk and read files with their own tool.
//!
//! Files are swept by the rules of the store: by their last use, which is the modification time, and by their total
//! size. Only files that abridge wrote are touched: regular files named `HANDLE.txt`, or with the end of another
//! type on the list of `payload/media.rs`, with mode 0600.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use tokio::sync::RwLock;

use crate::payload::{Payload, PayloadKey, media::extensions};
use crate::platform::files::{is_private_file, make_private, private_file, private_folder, sync};
use crate::store::{IN_USE, Settings, SweepResult, Time};

/// Makes the names of temporary files unique.
static NEXT_SUFFIX: AtomicU64 = AtomicU64::new(0);

/// Removing a file takes this lock for writing; checking whether a file exists takes it for reading.
static REMOVAL_LOCK: RwLock<()> = RwLock::const_new(());

/// A use is noted only if the noted one is older than this.
const USE_RESOLUTION: Duration = Duration::from_secs(10);

/// Writes each payload to `{dir}/{handle}.txt`, or with the end of its type, unless it is there; an existing file counts as used now. A reader sees
/// all of a file or none. When this returns, the files survive a crash of the machine. Blocks.
pub(super) fn write_all(dir: &Path, payloads: &[(PayloadKey, Payload)], now: Time) -> io::Result<()> {
    private_folder().recursive(true).create(dir)?;
    let _staying = REMOVAL_LOCK.blocking_read();
    let mut written = false;
    for (key, payload) in payloads {
        let path = dir.join(format!("{key}.{}", payload.extension()));
        if !is_exported(&path, payload, now) {
            write(dir, &path, *key, payload)?;
            written = true;
        }
    }
    if written { sync(dir) } else { Ok(()) }
}

/// Whether an exported file holds the payload; if so, it counts as used now.
fn is_exported(path: &Path, payload: &Payload, now: Time) -> bool {
    let Ok(metadata) = fs::symlink_metadata(path) else { return false };
    // A crash of the machine may have left a file without all of its content.
    if !metadata.is_file() || metadata.len() != payload.len() as u64 {
        return false;
    }
    let is_noted = last_use(&metadata) <= now && now.since(last_use(&metadata)) < USE_RESOLUTION;
    is_noted || note_use(path, now).is_ok()
}

fn write(dir: &Path, path: &Path, key: PayloadKey, payload: &Payload) -> io::Result<()> {
    let temporary = dir.join(format!(".{key}.{}.{}", process::id(), NEXT_SUFFIX.fetch_add(1, Ordering::Relaxed)));
    let written = private_file().write(true).create_new(true).open(&temporary).and_then(|mut file| {
        // Exported files are recognised by their mode.
        make_private(&file)?;
        file.write_all(&payload.bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    written.inspect_err(|_| {
        // Removing the file may fail as well; the first error is the one that is returned.
        let _removed = fs::remove_file(&temporary);
    })
}

fn note_use(path: &Path, now: Time) -> io::Result<()> {
    File::options().write(true).open(path)?.set_modified(UNIX_EPOCH + Duration::from_secs(now.0))
}

/// Removes files that were unused for longer than `keep_for`, and the oldest while all exceed `max_bytes`. Blocks.
pub fn sweep(dir: &Path, settings: &Settings, now: Time) -> io::Result<SweepResult> {
    let mut files = files(dir)?;
    files.sort_unstable_by_key(|(path, metadata)| (last_use(metadata), path.clone()));
    let mut left: u64 = files.iter().map(|(_, metadata)| metadata.len()).sum();
    let mut swept = SweepResult::default();
    for (path, metadata) in files {
        let unused = now.since(last_use(&metadata));
        let aged = unused > settings.keep_for.0;
        if !aged && (left <= settings.max_bytes.0 || unused < IN_USE) {
            break;
        }
        if remove(&path, last_use(&metadata))? {
            swept.aged += u64::from(aged);
            swept.crowded_out += u64::from(!aged);
            swept.stored_bytes += metadata.len();
        }
        left = left.saturating_sub(metadata.len());
    }
    Ok(swept)
}

/// Removes an exported file, unless it was used since `used_before`.
fn remove(path: &Path, used_before: Time) -> io::Result<bool> {
    let _alone = REMOVAL_LOCK.blocking_write();
    if fs::symlink_metadata(path).is_ok_and(|now| is_exported_file(path, &now) && last_use(&now) == used_before) {
        fs::remove_file(path).map(|()| true)
    } else {
        Ok(false)
    }
}

/// The exported files in the directory; none if the directory does not exist.
fn files(dir: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        // A file that was removed in the meantime is skipped.
        if let Ok(metadata) = fs::symlink_metadata(&path)
            && is_exported_file(&path, &metadata)
        {
            files.push((path, metadata));
        }
    }
    Ok(files)
}

/// Whether abridge wrote a file, by its name, mode and link count. A symbolic link is not.
fn is_exported_file(path: &Path, metadata: &Metadata) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('.'));
    is_private_file(metadata)
        && name.is_some_and(|(key, end)| key.parse::<PayloadKey>().is_ok() && extensions().any(|known| known == end))
}

fn last_use(metadata: &Metadata) -> Time {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Time(modified.unwrap_or_default().as_secs())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::platform::testing::{HAS_MODES, is_private, share, symlink};
    use crate::units::{ByteSize, Period};

    const DAY: u64 = 86_400;

    fn payload(n: u8, len: usize) -> (PayloadKey, Payload) {
        (PayloadKey::from_bytes([n; 16]), Payload::from(Bytes::from(vec![b'x'; len])))
    }

    fn names(dir: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(name).collect();
        names.sort();
        names
    }

    fn name(n: u8) -> String {
        format!("{}.txt", PayloadKey::from_bytes([n; 16]))
    }

    #[test]
    fn files_are_written_completely_and_private_to_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let payloads = [payload(1, 9), payload(2, 18)];
        for _ in 0..2 {
            write_all(&dir, &payloads, Time(9)).unwrap();
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        let path = dir.join(name(2));
        assert_eq!(fs::read(&path).unwrap(), payloads[1].1.bytes());
        assert!(is_private(&path) && is_private(&dir));

        fs::write(&path, "half").unwrap();
        write_all(&dir, &payloads, Time(9)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), payloads[1].1.bytes());
    }

    #[test]
    fn a_file_has_the_end_of_its_type_and_is_swept_as_any_other() {
        let folder = tempfile::tempdir().unwrap();
        let (key, _) = payload(1, 0);
        let image = Payload::stored(Bytes::from_static(b"\x89PNG"), Some(crate::payload::MediaType::Png));
        write_all(folder.path(), &[(key, image), payload(2, 5)], Time(9)).unwrap();
        assert_eq!(names(folder.path()), [format!("{key}.png"), name(2)]);
        assert_eq!(sweep(folder.path(), &Settings::default(), Time(u64::MAX)).unwrap().aged, 2);
    }

    #[test]
    fn unused_files_expire() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let keep = |n: u8, day: u64| {
            write_all(dir, &[payload(n, 100)], Time(day * DAY)).unwrap();
            // The file is written now, and its last use is set to that day.
            write_all(dir, &[payload(n, 100)], Time(day * DAY)).unwrap();
            note_use(&dir.join(name(n)), Time(day * DAY)).unwrap();
        };
        keep(1, 100);
        keep(2, 100);
        keep(3, 106);
        // A use keeps the file, as it does in the store.
        write_all(dir, &[payload(2, 100)], Time(105 * DAY)).unwrap();
        let settings = Settings::default();
        assert_eq!(sweep(dir, &settings, Time(107 * DAY)).unwrap(), SweepResult::default());
        let swept = sweep(dir, &settings, Time(107 * DAY + 1)).unwrap();
        assert_eq!(swept, SweepResult { aged: 1, stored_bytes: 100, ..SweepResult::default() });
        assert_eq!(names(dir), [name(2), name(3)]);
        assert_eq!(sweep(&dir.join("none"), &settings, Time(9)).unwrap(), SweepResult::default());
    }

    #[test]
    fn beyond_the_size_limit_the_oldest_files_go_and_those_in_use_stay() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        for n in 1..=5 {
            write_all(dir, &[payload(n, 1000)], Time(0)).unwrap();
            note_use(&dir.join(name(n)), Time(1000 * DAY + u64::from(n) * 30)).unwrap();
        }
        let settings = Settings { max_bytes: ByteSize(3000), keep_for: Period::secs(DAY), ..Settings::default() };
        let swept = sweep(dir, &settings, Time(1000 * DAY + 160)).unwrap();
        assert_eq!(swept, SweepResult { crowded_out: 2, stored_bytes: 2000, ..SweepResult::default() });
        let none = Settings { max_bytes: ByteSize(0), ..settings };
        assert_eq!(sweep(dir, &none, Time(1000 * DAY + 160)).unwrap().crowded_out, 1);
        assert_eq!(names(dir), [name(4), name(5)]);
    }

    #[test]
    fn files_that_abridge_did_not_write_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, elsewhere) = (folder.path().join("exported"), folder.path().join("precious.txt"));
        write_all(&dir, &[payload(1, 10)], Time(0)).unwrap();
        let private = |path: &Path| {
            fs::write(path, "precious").unwrap();
            make_private(&File::open(path).unwrap()).unwrap();
            note_use(path, Time(0)).unwrap();
        };
        private(&elsewhere);
        private(&dir.join("notes.txt"));
        private(&dir.join(name(9).to_uppercase()));
        private(&dir.join(name(9).replace(".txt", ".md")));
        private(&dir.join(format!("x{}", name(9))));
        symlink(&elsewhere, dir.join(name(2))).unwrap();
        fs::create_dir(dir.join(name(3))).unwrap();
        if HAS_MODES {
            fs::hard_link(&elsewhere, dir.join(name(4))).unwrap();
            private(&dir.join(name(5)));
            share(&dir.join(name(5)));
        }
        note_use(&dir.join(name(1)), Time(0)).unwrap();
        let before = names(&dir);

        let swept = sweep(&dir, &Settings::default(), Time(20_000 * DAY)).unwrap();
        assert_eq!(swept.aged, 1);
        let after: Vec<_> = before.into_iter().filter(|found| *found != name(1)).collect();
        assert_eq!(names(&dir), after);
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
        // Nothing is written through a link.
        write_all(&dir, &[payload(2, 10)], Time(0)).unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
        assert!(fs::symlink_metadata(dir.join(name(2))).unwrap().is_file());
    }
}
