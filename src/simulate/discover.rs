//! Finds the transcripts and recordings below the given paths.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{TranscriptError, UnreadableFile};
use crate::dialect;

/// A file that may be a transcript, or the folder of a recording.
#[derive(Clone, Debug)]
pub(super) struct FoundTranscript {
    pub(super) path: PathBuf,
    pub(super) n_bytes: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    File,
    Recording,
}

/// Finds everything in and below `paths`. A recording whose messages are a prefix of another one's is an earlier
/// request of the same session, and left out.
pub(super) fn find_transcripts(paths: &[PathBuf], unreadable: &mut Vec<UnreadableFile>) -> Vec<FoundTranscript> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        let name = || path.display().to_string();
        match collect(path, &mut found) {
            Ok(()) if found.len() > before => {}
            Ok(()) => unreadable.push(UnreadableFile { name: name(), why: "nothing to play in it".to_owned() }),
            Err(error) => unreadable.push(UnreadableFile::new(name(), &TranscriptError::File(error))),
        }
    }
    let mut seen = HashSet::new();
    found.retain(|found| seen.insert(found.path.clone()));
    let shorter = prefixes(&found);
    found.retain(|found| !shorter.contains(&found.path));
    found
}

/// Collects a file, a recording, or everything below a folder. Symbolic links are followed only if named; unfinished
/// recordings are left out.
fn collect(path: &Path, found: &mut Vec<FoundTranscript>) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if metadata.is_file() {
        found.push(FoundTranscript { path: path.to_owned(), n_bytes: metadata.len(), kind: Kind::File });
        return Ok(());
    }
    if let Ok(request) = fs::metadata(path.join("request.json")) {
        found.push(FoundTranscript { path: path.to_owned(), n_bytes: request.len(), kind: Kind::Recording });
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let (kind, inside) = (entry.file_type()?, entry.path());
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let wanted = kind.is_dir() || (kind.is_file() && inside.extension().is_some_and(|it| it == "json"));
        if wanted && !hidden {
            collect(&inside, found)?;
        }
    }
    Ok(())
}

/// The recordings that are a prefix of another one.
fn prefixes(found: &[FoundTranscript]) -> HashSet<PathBuf> {
    let recordings = found.iter().filter(|found| found.kind == Kind::Recording);
    let mut chains: Vec<_> =
        recordings.filter_map(|found| Some((element_hashes(&found.path).ok()?, &found.path))).collect();
    // After sorting, a list stands directly before the lists that begin with it.
    chains.sort();
    let pairs = chains.windows(2).filter_map(|pair| match pair {
        [(beginning, path), (whole, _)] if whole.starts_with(beginning) => Some(PathBuf::clone(path)),
        _ => None,
    });
    pairs.collect()
}

/// A recording as a list of hashes: first of the model and the tools, then of each message.
fn element_hashes(path: &Path) -> Result<Vec<[u8; 32]>, TranscriptError> {
    let body = fs::read(path.join("request.json"))?;
    let conversation = dialect::of_body(&body).parse(&body)?;
    let beside = [
        conversation.model.as_deref().unwrap_or_default().as_bytes(),
        conversation.tools.map_or(&[][..], |tools| tools.of(&body)),
    ];
    let messages = conversation.elements.iter().map(|message| message.span.of(&body));
    Ok(beside.into_iter().chain(messages).map(|bytes| *blake3::hash(bytes).as_bytes()).collect())
}
