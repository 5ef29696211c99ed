//! Finds the transcripts, recordings and sessions below the given paths, and reads them.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::sessions::{Agent, CLINE_FILE, IsElsewhere, Session, usage};
use super::{Transcript, TranscriptError, UnreadableFile};
use crate::dialect;

/// A file that may be a transcript, the folder of a recording, or the session of an agent.
#[derive(Clone, Debug)]
pub(super) struct FoundTranscript {
    pub(super) path: PathBuf,
    pub(super) n_bytes: u64,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    File,
    Recording,
    Session(Agent),
    /// A line of the file that the path is in.
    Usage(usage::Place),
}

impl Kind {
    /// The agent whose session it is.
    pub(super) fn agent(self) -> Option<Agent> {
        match self {
            Self::Session(agent) | Self::Usage(usage::Place { agent, .. }) => Some(agent),
            Self::File | Self::Recording => None,
        }
    }
}

impl FoundTranscript {
    pub(super) fn read(&self, model: Option<&str>, is_elsewhere: IsElsewhere<'_>) -> Result<Session, TranscriptError> {
        match self.kind {
            Kind::Session(agent) => Session::read(&self.path, agent, is_elsewhere),
            Kind::Usage(place) => usage::read(self.path.parent().unwrap_or(&self.path), place),
            Kind::File | Kind::Recording => {
                Ok(Session { transcripts: Transcript::read(&self.path, model)?.segments()?, skipped: 0 })
            }
        }
    }
}

/// Finds everything in and below `paths`. A recording whose messages are a prefix of another one's is an earlier
/// request of the same session, and left out.
pub(super) fn find_transcripts(paths: &[PathBuf], unreadable: &mut Vec<UnreadableFile>) -> Vec<FoundTranscript> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        match collect(path, &mut found, unreadable) {
            Ok(()) if found.len() > before => {}
            Ok(()) => unreadable
                .push(UnreadableFile { name: path.display().to_string(), why: "nothing to play in it".to_owned() }),
            Err(error) => unreadable.push(UnreadableFile::new(path, TranscriptError::File(error))),
        }
    }
    let mut seen = HashSet::new();
    found.retain(|found| seen.insert(found.path.clone()));
    let shorter = prefixes(&found);
    found.retain(|found| !shorter.contains(&found.path));
    found
}

/// Collects a file, a recording, or everything below a folder. Symbolic links are followed only if named; unfinished
/// recordings are left out. What cannot be read in a folder is named, and the rest of it collected.
fn collect(path: &Path, found: &mut Vec<FoundTranscript>, unreadable: &mut Vec<UnreadableFile>) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    let add = |path: &Path, n_bytes, kind| FoundTranscript { path: path.to_owned(), n_bytes, kind };
    if metadata.is_file() {
        if let Some(places) = usage::places(path) {
            let sessions = places.into_iter();
            found.extend(sessions.map(|(id, place)| add(&path.join(id), place.n_bytes, Kind::Usage(place))));
            return Ok(());
        }
        let kind = Agent::of_file(path).map_or(Kind::File, Kind::Session);
        found.push(add(path, metadata.len(), kind));
        return Ok(());
    }
    if !metadata.is_dir() {
        return Err(io::Error::other("neither a file nor a folder"));
    }
    if let Ok(cline) = fs::metadata(path.join(CLINE_FILE)) {
        found.push(add(&path.join(CLINE_FILE), cline.len(), Kind::Session(Agent::Cline)));
        return Ok(());
    }
    if let Ok(request) = fs::metadata(path.join("request.json")) {
        found.push(add(path, request.len(), Kind::Recording));
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let (kind, inside) = (entry.file_type()?, entry.path());
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let is_session = || Agent::of_file(&inside).is_some() || usage::places(&inside).is_some();
        let is_text = |extension: &OsStr| extension == "json" || (extension == "jsonl" && is_session());
        let wanted = kind.is_dir() || (kind.is_file() && inside.extension().is_some_and(is_text));
        if wanted
            && !hidden
            && let Err(error) = collect(&inside, found, unreadable)
        {
            unreadable.push(UnreadableFile::new(&inside, TranscriptError::File(error)));
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
