//! The file: it is opened with its permissions, format and secret, set aside if it cannot be, and copied.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use ::redb::backends::FileBackend;
use ::redb::{Database, DatabaseError, Error, ReadableDatabase, TableError};
use bytes::Bytes;

use super::tables::{self, META, Outcome};
use super::whole;
use crate::platform::files::{make_private, private_file, private_folder, sync};
use crate::platform::folder_of;
use crate::store::codec::{Name, decode, encode};
use crate::store::secret::random;
use crate::store::{Op, StoreError, StoreErrorKind, Time};
use crate::units::utc_timestamp;

/// The secret of a store, which all its keys are made with.
pub(super) type Secret = [u8; 32];

/// Opens the database; tests replace it.
pub(super) type Opener = Arc<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>;

/// The format of the file. A file of another format is not read. Every release reads the files of earlier releases:
/// `fixtures/store` has one of each format.
pub(super) const FORMAT: u32 = 6;

/// Why a store cannot be opened. One line that says what to do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses the file.
    #[error("the store {} is in use by another abridge{holder}; stop that one, or give this one a store.path of its own", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
        /// The process, in parentheses; empty if that is unknown.
        holder: String,
    },
    /// Another version of abridge wrote the file.
    #[error(
        "the store {} has format {found}, and this abridge knows format {FORMAT}; take the other abridge, or another store.path",
        path.display()
    )]
    OtherFormat {
        /// The path.
        path: PathBuf,
        /// The format of the file.
        found: u32,
    },
    /// The file is not a store, or is damaged.
    #[error("{} is not a store of abridge, or is damaged; copy what is whole with `abridge store salvage`, or set another store.path", path.display())]
    Damaged {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: Arc<Error>,
    },
    /// The file cannot be read or written.
    #[error("the store {} cannot be opened; let this user read and write it, or set another store.path", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: Arc<Error>,
    },
}

/// How much of the file is held in memory.
const CACHE_BYTES: usize = 4 << 20;

/// Opens the file at `path`. The file and the directories that are created for it are readable by their owner only.
pub(super) fn opener(path: &Path) -> Opener {
    let path = path.to_owned();
    Arc::new(move || {
        private_folder().recursive(true).create(folder_of(&path))?;
        let file = private_file().read(true).write(true).create(true).truncate(false).open(&path)?;
        if file.metadata()?.len() == 0 {
            // The directory entry must survive a crash as well.
            sync(folder_of(&path))?;
        }
        make_private(&file)?;
        Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(FileBackend::new(file)?)
    })
}

/// Opens the database, and makes the tables of a new file, which gets `secret`, or a random one. A file with another secret
/// than `secret` is refused, because none of its payloads could be found.
pub(super) fn open(path: &Path, opener: &Opener, secret: Option<Secret>) -> Result<(Database, Secret), OpenError> {
    let wrong = |error: Error| match error {
        Error::DatabaseAlreadyOpen => OpenError::InUse { path: path.to_owned(), holder: holder(path) },
        error if kind_of(&error) == StoreErrorKind::Corrupt => {
            OpenError::Damaged { path: path.to_owned(), source: Arc::new(error) }
        }
        error => OpenError::Io { path: path.to_owned(), source: Arc::new(error) },
    };
    let read = || {
        let db = opener()?;
        let found = read_meta(&db)?;
        if matches!(found, Some((FORMAT, _))) {
            whole::look(&db)?;
        }
        Ok::<_, Error>((db, found))
    };
    let (db, found) = unwound(read).map_err(wrong)?;
    match (found, secret) {
        (Some((found, _)), _) if found != FORMAT => {
            close(db);
            Err(OpenError::OtherFormat { path: path.to_owned(), found })
        }
        (Some((_, stored)), Some(secret)) if stored != Some(secret) => {
            close(db);
            Err(wrong(Error::Corrupted("it has another secret than it had".to_owned())))
        }
        (Some((_, stored)), _) => {
            let stored = stored.ok_or_else(|| wrong(Error::Corrupted("its secret".to_owned())))?;
            Ok((db, stored))
        }
        (None, secret) => {
            let secret = secret.map_or_else(random, Ok).map_err(|error| wrong(error.into()))?;
            unwound(|| create(&db, secret)).map_err(wrong)?;
            Ok((db, secret))
        }
    }
}

/// Runs `run`; a panic of redb, as damaged files lead to, is an error and prints nothing.
pub(super) fn unwound<T>(run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |of| {
            if !IS_QUIET.get() {
                hook(of);
            }
        }));
    });
    let before = IS_QUIET.replace(true);
    // All that `run` could leave half done is the database, which is reopened.
    let done = panic::catch_unwind(AssertUnwindSafe(run));
    IS_QUIET.set(before);
    done.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Error::Corrupted(format!("redb panicked: {}", text.unwrap_or_default())))
    })
}

/// Closes a file that may be damaged.
pub(super) fn close(db: impl Sized) {
    // It is closed even if that panics.
    let _closed = unwound(|| {
        drop(db);
        Ok(())
    });
}

thread_local! {
    /// Whether panics of this thread print nothing.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The kind of failure of a redb error.
pub(super) fn kind_of(error: &Error) -> StoreErrorKind {
    match error {
        Error::Io(error) => match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                StoreErrorKind::Full
            }
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => StoreErrorKind::Corrupt,
            _ => StoreErrorKind::Unavailable,
        },
        Error::Corrupted(_)
        | Error::UpgradeRequired(_)
        | Error::RepairAborted
        | Error::TableTypeMismatch { .. }
        | Error::TypeDefinitionChanged { .. }
        | Error::TableDoesNotExist(_) => StoreErrorKind::Corrupt,
        _ => StoreErrorKind::Unavailable,
    }
}

// === impl OpenError ===

impl OpenError {
    /// Whether the file itself cannot be used: it is damaged, is not a store, or has another format.
    pub fn is_unusable(&self) -> bool {
        matches!(self, Self::OtherFormat { .. } | Self::Damaged { .. })
    }

    /// The same failure as an error of an open store.
    pub(super) fn into_store_error(self, op: Op) -> StoreError {
        let kind = match &self {
            Self::InUse { .. } => StoreErrorKind::Unavailable,
            Self::OtherFormat { .. } | Self::Damaged { .. } => StoreErrorKind::Corrupt,
            Self::Io { source, .. } => kind_of(source),
        };
        StoreError::new(op, kind, self)
    }
}

// === helpers ===

/// The format and the secret, if it can be read. A new file has neither.
fn read_meta(db: &Database) -> Outcome<Option<(u32, Option<Secret>)>> {
    let meta = match db.begin_read()?.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        meta => meta?,
    };
    let wrong = |key| Error::Corrupted(format!("{key} in the table meta_v1"));
    let format = meta.get("version")?.ok_or_else(|| wrong("no version"))?;
    let format = format.value().try_into().map(u32::from_le_bytes).map_err(|_| wrong("the version"))?;
    let secret = meta.get("secret")?.and_then(|frame| decode(&Name::of_secret(), frame.value()).ok());
    Ok(Some((format, secret.and_then(|secret| secret.bytes().as_ref().try_into().ok()))))
}

/// Makes the tables, in one transaction.
fn create(db: &Database, secret: Secret) -> Outcome<()> {
    tables::write(db, |transaction| {
        whole::create(transaction)?;
        let mut meta = transaction.open_table(META)?;
        meta.insert("version", FORMAT.to_le_bytes().as_slice())?;
        let frame = encode(&Name::of_secret(), &Bytes::copy_from_slice(&secret).into());
        meta.insert("secret", frame.as_slice())?;
        Ok(())
    })
}

// === set aside ===

/// The suffix of a file that was set aside, before the time.
const ASIDE: &str = "aside-";

/// A file that was set aside.
pub(super) struct Aside {
    pub(super) path: PathBuf,
    /// Why and where, and what to do.
    pub(super) notice: String,
}

/// Sets a file aside that cannot be opened, as `error` says.
pub(super) fn set_aside(path: &Path, now: Time, error: &OpenError) -> io::Result<Aside> {
    if !path.symlink_metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let aside = free_name(path, now)?;
    fs::rename(path, &aside)?;
    // After a crash, the file may be at its old place, and is set aside again.
    let _synced = sync(folder_of(path));
    let why = match error {
        OpenError::OtherFormat { found, .. } => format!("has format {found}, which this abridge does not read"),
        _ => "is damaged, or is not a store of abridge".to_owned(),
    };
    let notice = format!(
        "the store {} {why}: it was set aside, and a new one was begun; copy what is whole with `abridge store salvage --from {} OUT`",
        path.display(),
        aside.display()
    );
    tracing::error!(cause = ?error, "{notice}");
    Ok(Aside { path: aside, notice })
}

/// The files beside a store that were set aside.
pub fn aside_of(path: &Path) -> Vec<PathBuf> {
    let Some(name) = path.file_name() else { return Vec::new() };
    let start = [name.as_encoded_bytes(), b".", ASIDE.as_bytes()].concat();
    let names = fs::read_dir(folder_of(path)).into_iter().flatten().flatten();
    let of = names.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(&start));
    let mut found: Vec<_> = of.map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// A name that says when, and that no file has: one of the next seconds, if need be.
fn free_name(path: &Path, now: Time) -> io::Result<PathBuf> {
    let mut names =
        (now.0..now.0 + 100).map(|second| path.with_added_extension(format!("{ASIDE}{}", utc_timestamp(second))));
    let free = names.find(|name| name.symlink_metadata().is_err());
    free.ok_or_else(|| io::Error::other("too many files were set aside"))
}

// === holder ===

/// The longest text that is read.
const MAX_HOLDER: u64 = 20;

/// Says that this process has the file, which is locked and open. Where that cannot be written, the process is unknown.
pub(super) fn write_holder(path: &Path) {
    // A link that someone has put there is not followed.
    remove_holder(path);
    let file = private_file().write(true).create_new(true).open(beside(path));
    let _unknown = file.and_then(|mut file| write!(file, "{}", std::process::id()));
}

/// Removes the number, before the file is unlocked.
pub(super) fn remove_holder(path: &Path) {
    let _missing = fs::remove_file(beside(path));
}

/// The process that has the file, in parentheses after a space; empty if that is unknown.
fn holder(path: &Path) -> String {
    let mut number = String::new();
    let read = File::open(beside(path)).and_then(|file| file.take(MAX_HOLDER).read_to_string(&mut number));
    match number.parse::<u32>() {
        Ok(process) if read.is_ok() => format!(" (process {process})"),
        _ => String::new(),
    }
}

fn beside(path: &Path) -> PathBuf {
    path.with_added_extension("holder")
}

// === copied ===

/// Copies the file to a new one. It has its name only once all of it is there; a file of that name stays as it is.
pub(super) fn backup(from: &Database, to: &Path) -> Outcome<()> {
    if to.exists() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", to.display())).into());
    }
    let part = to.with_added_extension("part");
    // Of a copy that was broken off.
    let _missing = fs::remove_file(&part);
    let copy = || {
        let copy = opener(&part)()?;
        whole::copy(from, &copy)?;
        close(copy);
        // In contrast to a renaming, a link does not replace a file.
        Ok::<_, Error>(fs::hard_link(&part, to)?)
    };
    let copied = copy();
    let _left = fs::remove_file(&part);
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_read_as_it_was_written_and_anything_else_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        assert_eq!(holder(&path), "");
        write_holder(&path);
        assert_eq!(holder(&path), format!(" (process {})", std::process::id()));
        remove_holder(&path);
        assert_eq!(holder(&path), "");
        for line in ["", "x", "12; rm", "12 \u{1b}[0m", &"1".repeat(200)] {
            fs::write(beside(&path), line).unwrap();
            assert_eq!(holder(&path), "", "{line}");
        }
    }

    #[test]
    fn what_a_link_in_its_place_leads_to_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("store.redb"), folder.path().join("other"));
        fs::write(&other, "mine").unwrap();
        crate::platform::testing::symlink(&other, beside(&path)).unwrap();
        write_holder(&path);
        assert!(!holder(&path).is_empty());
        assert_eq!(fs::read_to_string(other).unwrap(), "mine");
    }
}
