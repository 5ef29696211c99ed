//! Payloads as files, for agents that share the disk and read with a tool of their own.
//!
//! A file is swept by the rules of the store: by its last use, which is its time of modification, and by what all of them
//! take. Nothing else in the folder is touched: ours is `HANDLE.txt` that is a plain file, and that only its owner may read.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use tokio::sync::RwLock;

use crate::payload::{Payload, PayloadKey};
use crate::store::{IN_USE, Settings, Swept, Time};

/// Makes names of files that nobody else has.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A file is looked at and removed only while nobody looks whether it is there.
static REMOVING: RwLock<()> = RwLock::const_new(());

/// A use is noted if the one that is noted is older than this.
const GRAIN: Duration = Duration::from_secs(10);

const MODE: u32 = 0o600;

/// Writes each payload to `{dir}/{handle}.txt`, unless it is there; then it counts as used now. Who reads one sees all of it
/// or none. When it has returned, the files survive a crash of the machine. Blocks.
pub(super) fn write_all(dir: &Path, payloads: &[(PayloadKey, Payload)], now: Time) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let _staying = REMOVING.blocking_read();
    let mut written = false;
    for (key, payload) in payloads {
        let path = dir.join(format!("{key}.txt"));
        if !is_there(&path, payload, now) {
            write(dir, &path, *key, payload)?;
            written = true;
        }
    }
    if written { File::open(dir)?.sync_all() } else { Ok(()) }
}

/// Whether a file of ours holds the payload; if so it counts as used now.
fn is_there(path: &Path, payload: &Payload, now: Time) -> bool {
    let Ok(metadata) = fs::symlink_metadata(path) else { return false };
    // A crash of the machine may have left a file without all of its content.
    if !metadata.is_file() || metadata.len() != payload.len() as u64 {
        return false;
    }
    let is_noted = used(&metadata) <= now && now.since(used(&metadata)) < GRAIN;
    is_noted || note_use(path, now).is_ok()
}

fn write(dir: &Path, path: &Path, key: PayloadKey, payload: &Payload) -> io::Result<()> {
    let temporary = dir.join(format!(".{key}.{}.{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let written = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&temporary).and_then(|mut file| {
        // Whatever the umask says: it is known by its mode.
        file.set_permissions(Permissions::from_mode(MODE))?;
        file.write_all(&payload.bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    written.inspect_err(|_| {
        // What cannot be written may not be removable either; the error that is told is the first.
        let _removed = fs::remove_file(&temporary);
    })
}

fn note_use(path: &Path, now: Time) -> io::Result<()> {
    File::open(path)?.set_modified(UNIX_EPOCH + Duration::from_secs(now.0))
}

/// Removes files that were unused for too long, and what is too much. Blocks.
pub fn sweep(dir: &Path, settings: &Settings, now: Time) -> io::Result<Swept> {
    let mut files = files(dir)?;
    files.sort_unstable_by_key(|(path, metadata)| (used(metadata), path.clone()));
    let mut left: u64 = files.iter().map(|(_, metadata)| metadata.len()).sum();
    let mut swept = Swept::default();
    for (path, _) in files.iter().filter(|(_, metadata)| used(metadata) > now) {
        // Before the clock was set back, and it would stay till the clock is there again. It may be gone.
        let _noted = note_use(path, now);
    }
    for (path, metadata) in files {
        let unused = now.since(used(&metadata));
        let aged = unused > settings.keep_for.0;
        if !aged && (left <= settings.max_bytes.0 || unused < IN_USE) {
            break;
        }
        if remove(&path, used(&metadata))? {
            swept.aged += u64::from(aged);
            swept.crowded_out += u64::from(!aged);
            swept.stored_bytes += metadata.len();
        }
        left = left.saturating_sub(metadata.len());
    }
    Ok(swept)
}

/// Removes a file of ours, unless it was used since.
fn remove(path: &Path, used_before: Time) -> io::Result<bool> {
    let _alone = REMOVING.blocking_write();
    if fs::symlink_metadata(path).is_ok_and(|now| is_ours(path, &now) && used(&now) == used_before) {
        fs::remove_file(path).map(|()| true)
    } else {
        Ok(false)
    }
}

/// The files in the folder that we have written. None if there is no folder.
fn files(dir: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        // What is gone meanwhile is none.
        if let Ok(metadata) = fs::symlink_metadata(&path)
            && is_ours(&path, &metadata)
        {
            files.push((path, metadata));
        }
    }
    Ok(files)
}

/// Whether we have written a file, by its name and by what only a file of ours is. A link is none.
fn is_ours(path: &Path, metadata: &Metadata) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".txt"));
    metadata.is_file()
        && metadata.nlink() == 1
        && metadata.mode() & 0o7777 == MODE
        && name.is_some_and(|name| name.parse::<PayloadKey>().is_ok())
}

fn used(metadata: &Metadata) -> Time {
    Time(metadata.mtime().try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use bytes::Bytes;

    use super::*;
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
    fn a_file_is_whole_and_its_owner_s_alone() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let payloads = [payload(1, 9), payload(2, 18)];
        for _ in 0..2 {
            write_all(&dir, &payloads, Time(9)).unwrap();
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        let path = dir.join(name(2));
        assert_eq!(fs::read(&path).unwrap(), payloads[1].1.bytes());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);

        fs::write(&path, "half").unwrap();
        write_all(&dir, &payloads, Time(9)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), payloads[1].1.bytes());
    }

    #[test]
    fn what_was_unused_for_too_long_goes() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let keep = |n: u8, day: u64| {
            write_all(dir, &[payload(n, 100)], Time(day * DAY)).unwrap();
            // Written now, and used for the last time then.
            write_all(dir, &[payload(n, 100)], Time(day * DAY)).unwrap();
            let file = File::open(dir.join(name(n))).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(day * DAY)).unwrap();
        };
        keep(1, 100);
        keep(2, 100);
        keep(3, 106);
        // A use keeps it, as it does in the store.
        write_all(dir, &[payload(2, 100)], Time(105 * DAY)).unwrap();
        let settings = Settings::default();
        assert_eq!(sweep(dir, &settings, Time(107 * DAY)).unwrap(), Swept::default());
        let swept = sweep(dir, &settings, Time(107 * DAY + 1)).unwrap();
        assert_eq!(swept, Swept { aged: 1, stored_bytes: 100, ..Swept::default() });
        assert_eq!(names(dir), [name(2), name(3)]);
        assert_eq!(sweep(&dir.join("none"), &settings, Time(9)).unwrap(), Swept::default());
    }

    #[test]
    fn what_is_too_much_goes_oldest_first_and_what_is_in_use_stays() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        for n in 1..=5 {
            write_all(dir, &[payload(n, 1000)], Time(0)).unwrap();
            let file = File::open(dir.join(name(n))).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1000 * DAY + u64::from(n) * 30)).unwrap();
        }
        let settings = Settings { max_bytes: ByteSize(3000), keep_for: Period::secs(DAY), ..Settings::default() };
        let swept = sweep(dir, &settings, Time(1000 * DAY + 160)).unwrap();
        assert_eq!(swept, Swept { crowded_out: 2, stored_bytes: 2000, ..Swept::default() });
        let none = Settings { max_bytes: ByteSize(0), ..settings };
        assert_eq!(sweep(dir, &none, Time(1000 * DAY + 160)).unwrap().crowded_out, 1);
        assert_eq!(names(dir), [name(4), name(5)]);
    }

    #[test]
    fn what_was_used_before_the_clock_was_set_back_goes_some_day() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        // Written now, and now is later than what the clock of the test says from here on.
        for n in 1..=3 {
            write_all(dir, &[payload(n, 1000)], Time(0)).unwrap();
        }
        let settings = Settings { max_bytes: ByteSize(2000), ..Settings::default() };
        assert_eq!(sweep(dir, &settings, Time(1000 * DAY)).unwrap(), Swept::default(), "it may be in use");
        assert_eq!(sweep(dir, &settings, Time(1000 * DAY + 60)).unwrap().crowded_out, 1);
        write_all(dir, &[payload(3, 1000)], Time(1006 * DAY)).unwrap();
        assert_eq!(sweep(dir, &settings, Time(1008 * DAY)).unwrap().aged, 1);
        assert_eq!(names(dir), [name(3)]);
    }

    #[test]
    fn what_we_have_not_written_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, elsewhere) = (folder.path().join("exported"), folder.path().join("precious.txt"));
        write_all(&dir, &[payload(1, 10)], Time(0)).unwrap();
        let private = |path: &Path| {
            fs::write(path, "precious").unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
            File::open(path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        };
        private(&elsewhere);
        private(&dir.join("notes.txt"));
        private(&dir.join(name(9).to_uppercase()));
        private(&dir.join(name(9).replace(".txt", ".md")));
        private(&dir.join(format!("x{}", name(9))));
        symlink(&elsewhere, dir.join(name(2))).unwrap();
        fs::hard_link(&elsewhere, dir.join(name(3))).unwrap();
        fs::create_dir(dir.join(name(4))).unwrap();
        private(&dir.join(name(5)));
        fs::set_permissions(dir.join(name(5)), Permissions::from_mode(0o644)).unwrap();
        File::open(dir.join(name(1))).unwrap().set_modified(UNIX_EPOCH).unwrap();
        let before = names(&dir);

        let swept = sweep(&dir, &Settings::default(), Time(20_000 * DAY)).unwrap();
        assert_eq!(swept.aged, 1);
        let after: Vec<_> = before.into_iter().filter(|found| *found != name(1)).collect();
        assert_eq!((names(&dir), after.len()), (after, 8));
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
        // And nothing is written through a link.
        write_all(&dir, &[payload(2, 10)], Time(0)).unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
        assert!(fs::symlink_metadata(dir.join(name(2))).unwrap().is_file());
    }
}
