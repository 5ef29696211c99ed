//! Which files are to be played.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{ReadError, Unreadable, dialect};

/// A file that may be a transcript, or the folder of a recording.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) n_bytes: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    File,
    Recording,
}

/// Everything in and below `paths`. A recording whose messages are the beginning of another's was sent by the same loop a
/// while before: it is a part of that, and not played by itself.
pub(super) fn all(paths: &[PathBuf], unreadable: &mut Vec<Unreadable>) -> Vec<Found> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        let name = || path.display().to_string();
        match below(path, &mut found) {
            Ok(()) if found.len() > before => {}
            Ok(()) => unreadable.push(Unreadable { name: name(), why: "nothing to play in it".to_owned() }),
            Err(error) => unreadable.push(Unreadable::new(name(), &ReadError::File(error))),
        }
    }
    let mut seen = HashSet::new();
    found.retain(|found| seen.insert(found.path.clone()));
    let parts = beginnings(&found);
    found.retain(|found| !parts.contains(&found.path));
    found
}

/// What a path is or holds. A symbolic link that was named is followed, one that was found is not; and what a recorder has
/// not finished is not seen.
fn below(path: &Path, found: &mut Vec<Found>) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if metadata.is_file() {
        found.push(Found { path: path.to_owned(), n_bytes: metadata.len(), kind: Kind::File });
        return Ok(());
    }
    if let Ok(request) = fs::metadata(path.join("request.json")) {
        found.push(Found { path: path.to_owned(), n_bytes: request.len(), kind: Kind::Recording });
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let (kind, inside) = (entry.file_type()?, entry.path());
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let wanted = kind.is_dir() || (kind.is_file() && inside.extension().is_some_and(|it| it == "json"));
        if wanted && !hidden {
            below(&inside, found)?;
        }
    }
    Ok(())
}

/// The recordings that are the beginning of another one.
fn beginnings(found: &[Found]) -> HashSet<PathBuf> {
    let recordings = found.iter().filter(|found| found.kind == Kind::Recording);
    let mut chains: Vec<_> = recordings.filter_map(|found| Some((chain(&found.path).ok()?, &found.path))).collect();
    // In order, what begins with a list stands directly behind it.
    chains.sort();
    let pairs = chains.windows(2).filter_map(|pair| match pair {
        [(beginning, path), (whole, _)] if whole.starts_with(beginning) => Some(PathBuf::clone(path)),
        _ => None,
    });
    pairs.collect()
}

/// A recording as a list: of what stands beside its messages, and then of each message, the hash.
fn chain(path: &Path) -> Result<Vec<[u8; 32]>, ReadError> {
    let body = fs::read(path.join("request.json"))?;
    let conversation = dialect()?.parse(&body)?;
    let beside = [
        conversation.model.as_deref().unwrap_or_default().as_bytes(),
        conversation.tools.map_or(&[][..], |tools| tools.of(&body)),
    ];
    let messages = conversation.messages.iter().map(|message| message.span.of(&body));
    Ok(beside.into_iter().chain(messages).map(|bytes| *blake3::hash(bytes).as_bytes()).collect())
}
