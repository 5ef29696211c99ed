//! Opens the file: permissions, schema version and secret.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::redb::backends::FileBackend;
use ::redb::{Database, DatabaseError, Error, ReadableDatabase, TableError, WriteTransaction};

use super::backend::YieldingFile;
use super::holder;
use super::tables::{self, META};
use crate::platform::files::{make_private, private_file, private_folder, sync};
use crate::store::{Op, StoreError, StoreErrorKind};

/// The secret of a store, which all its keys are made with.
pub(super) type Secret = [u8; 32];

/// Opens the database; tests replace it.
pub(super) type Opener = Arc<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>;

/// A migration from one schema version to the next.
pub(super) type Migration = fn(&WriteTransaction) -> Result<(), Error>;

/// The migrations from version 1 to the current one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schema(pub(super) &'static [Migration]);

/// The current schema.
pub(super) const SCHEMA: Schema =
    Schema(&[tables::add_summaries, tables::add_inspected, tables::lifetimes::add_lifetimes]);

/// Why a store cannot be opened. One line that says what to do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses the file.
    #[error("the store {} is in use by another abridge{holder}; stop that one, or give this one a store.path of its own", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
        /// The process, its version and for how long, in parentheses; empty if that is unknown.
        holder: String,
    },
    /// A newer version of abridge wrote the file.
    #[error(
        "the store {} has format {found}, and this abridge knows formats up to {known}; take the newer abridge, or another store.path",
        path.display()
    )]
    Newer {
        /// The path.
        path: PathBuf,
        /// The schema version of the file.
        found: u32,
        /// The schema version of this program.
        known: u32,
    },
    /// The file is not a store, or is damaged.
    #[error("{} is no store of abridge, or is damaged; move it away, or set another store.path", path.display())]
    Damaged {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: Arc<Error>,
    },
    /// The file cannot be read or written.
    #[error("the store {} cannot be opened; set another store.path, or store.enabled = false", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: Arc<Error>,
    },
}

/// Opens the file at `path`. The file and the directories that are created for it are readable by their owner only.
pub(super) fn opener(path: &Path, cache_bytes: usize) -> Opener {
    let path = path.to_owned();
    Arc::new(move || {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            private_folder().recursive(true).create(folder)?;
        }
        let file = private_file().read(true).write(true).create(true).truncate(false).open(&path)?;
        if file.metadata()?.len() == 0
            && let Some(folder) = path.parent()
        {
            // The directory entry must survive a crash as well.
            sync(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })?;
        }
        make_private(&file)?;
        Database::builder().set_cache_size(cache_bytes).create_with_backend(YieldingFile(FileBackend::new(file)?))
    })
}

/// Opens the database and migrates its tables to the current version. A new file gets `secret`, or a random one. A file
/// with another secret than `secret` is refused, because none of its payloads could be found.
pub(super) fn open(
    path: &Path,
    opener: &Opener,
    schema: Schema,
    secret: Option<Secret>,
) -> Result<(Database, Secret), OpenError> {
    let wrong = |error: Error| match error {
        Error::DatabaseAlreadyOpen => OpenError::InUse { path: path.to_owned(), holder: holder::read(path) },
        error if kind_of(&error) == StoreErrorKind::Corrupt => {
            OpenError::Damaged { path: path.to_owned(), source: Arc::new(error) }
        }
        error => OpenError::Io { path: path.to_owned(), source: Arc::new(error) },
    };
    let db = opener().map_err(|error| wrong(error.into()))?;
    let known = schema.version();
    let (found, stored) = read_meta(&db).map_err(wrong)?;
    if found > known {
        return Err(OpenError::Newer { path: path.to_owned(), found, known });
    }
    match (stored, secret) {
        (Some(stored), Some(secret)) if stored != secret => {
            Err(wrong(Error::Corrupted("it has another secret than it had".to_owned())))
        }
        (Some(stored), _) if found == known => Ok((db, stored)),
        (stored, secret) => {
            let secret = stored.or(secret).map_or_else(new_secret, Ok).map_err(|error| wrong(error.into()))?;
            migrate(&db, schema, found, secret).map_err(wrong)?;
            Ok((db, secret))
        }
    }
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

// === impl Schema, OpenError ===

impl Schema {
    fn version(self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX).saturating_add(1)
    }
}

impl OpenError {
    /// The same failure as an error of an open store.
    pub(super) fn into_store_error(self, op: Op) -> StoreError {
        let kind = match &self {
            Self::InUse { .. } => StoreErrorKind::Unavailable,
            Self::Newer { .. } | Self::Damaged { .. } => StoreErrorKind::Corrupt,
            Self::Io { source, .. } => kind_of(source),
        };
        StoreError::new(op, kind, self)
    }
}

// === helpers ===

/// The schema version and the secret. A new file has version 0 and no secret.
fn read_meta(db: &Database) -> Result<(u32, Option<Secret>), Error> {
    let meta = match db.begin_read()?.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) => return Ok((0, None)),
        opened => opened?,
    };
    let wrong = |key| Error::Corrupted(format!("{key} in the table meta_v1"));
    let version = meta.get("version")?.ok_or_else(|| wrong("no version"))?;
    let version = version.value().try_into().map(u32::from_le_bytes).map_err(|_| wrong("the version"))?;
    let secret = meta.get("secret")?.ok_or_else(|| wrong("no secret"))?;
    let secret = secret.value().try_into().map_err(|_| wrong("the secret"))?;
    Ok((version, Some(secret)))
}

/// Migrates the tables to the current version, in one transaction.
fn migrate(db: &Database, Schema(steps): Schema, found: u32, secret: Secret) -> Result<(), Error> {
    let transaction = tables::begin(db)?;
    let done = usize::try_from(found).unwrap_or_default();
    if done == 0 {
        tables::create(&transaction)?;
    } else {
        steps.iter().skip(done - 1).try_for_each(|step| step(&transaction))?;
    }
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert("version", Schema(steps).version().to_le_bytes().as_slice())?;
        meta.insert("secret", secret.as_slice())?;
    }
    transaction.commit()?;
    Ok(())
}

fn new_secret() -> Result<Secret, io::Error> {
    let mut secret = [0; 32];
    getrandom::getrandom(&mut secret).map_err(io::Error::other)?;
    Ok(secret)
}
