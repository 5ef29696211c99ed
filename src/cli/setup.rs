//! `abridge setup`: points the settings of clients at a running abridge, and takes that back.
//!
//! A file is written where it lies, so that links, owner and mode stay, with the original beside it.

use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};

use crate::cli::diff::render::DiffWriter;
use crate::cli::{Exit, print, refuse, wants_colour};
use crate::config::{Config, MissingError, Sources, Variables, read_text};
use crate::platform::files::sync;
use crate::server::listen::local_url;
use crate::upstream::target::BaseUrl;

pub(super) mod clients;
pub(super) mod edit;
pub(super) mod jsonc;

use clients::{Client, afterwards, displaced_of};

/// Arguments of `setup`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The clients
    #[arg(required_unless_present = "all", value_name = "CLIENT")]
    clients: Vec<Client>,
    /// All clients that this user has
    #[arg(long, conflicts_with = "clients")]
    all: bool,
    /// Write without asking
    #[arg(long, short)]
    yes: bool,
    /// Take back what was written
    #[arg(long)]
    undo: bool,
    /// The address of abridge [default: the first of server.listen]
    #[arg(long, value_name = "URL")]
    url: Option<BaseUrl>,
}

/// The mark of Unicode at the beginning of a file, which is not of its text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The clients that this user has, by the names that `setup` takes.
pub(super) fn names_of_found(variables: &Variables) -> Vec<String> {
    let clients = Client::found(variables).into_iter().filter(|client| *client != Client::Shell);
    clients.map(|client| client.to_string()).collect()
}

/// Shows each change as a diff, asks, and writes it. Exit code 1 if one was not written. A dry run writes nothing.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let variables = &sources.variables;
    let url = match &args.url {
        Some(url) => url.to_string().trim_end_matches('/').to_owned(),
        None => local_url(&config.server.listen.0, config.tls.is_some()).ok_or(MissingError::Address)?,
    };
    let clients = if args.all { Client::found(variables) } else { args.clients.clone() };
    if clients.is_empty() {
        print(["no settings of a known client were found\n"])?;
    }
    let (mut outcomes, mut displaced) = (Vec::new(), Vec::new());
    for client in clients {
        let Some(path) = client.path(variables)? else {
            print([if args.undo {
                format!("{client}: abridge has written nothing of it; what was set by hand is taken back by hand\n")
            } else {
                client.by_hand(&url)
            }])?;
            continue;
        };
        let settings = SettingsFile::at(path);
        // The settings before abridge changed them, if it did.
        let before =
            read(&settings.backup).ok().flatten().or_else(|| read_text(&settings.path).ok()).unwrap_or_default();
        let outcome = change(client, &settings, &url, args, sources);
        let outcome = outcome.unwrap_or_else(|error| refuse(&error.context(client.to_string())));
        if outcome == Exit::Ok {
            displaced.extend(displaced_of(client, &before, variables, &url));
        }
        outcomes.push(outcome);
    }
    if !args.undo && outcomes.contains(&Exit::Ok) {
        print([afterwards(&displaced, sources, config)])?;
    }
    Ok(if outcomes.contains(&Exit::No) { Exit::No } else { Exit::Ok })
}

/// Changes the settings of one client. The exit code says whether they are as they should be.
fn change(client: Client, file: &SettingsFile, url: &str, args: &Args, sources: &Sources) -> anyhow::Result<Exit> {
    let variables = &sources.variables;
    let shown = file.path.display();
    let before = read(&file.path)?.unwrap_or_default();
    let after = if args.undo {
        let Some(original) = read(&file.backup)? else {
            return print([format!("{client}: {shown} was not changed by abridge, or that was taken back\n")]);
        };
        let template = client.edit(&file.path, &original, edit::ANY_URL, variables)?;
        let (_, inserted) = edit::changed_lines(&original, &template);
        let url = edit::url_in(&before, &inserted).unwrap_or(url);
        let undone = edit::undo(&before, &original, &client.edit(&file.path, &original, url, variables)?);
        let backup = file.backup.display();
        undone.ok_or_else(|| {
            anyhow!("{shown} was changed since where abridge had set it; what was there before is in {backup}")
        })?
    } else {
        client.edit(&file.path, &before, url, variables)?
    };
    if after == before && !args.undo {
        return print([format!("{client}: {shown} already leads to {url}\n")]);
    }
    let mut diff = DiffWriter { colour: wants_colour(sources)?, ..DiffWriter::default() };
    diff.write_message_header(&format!("{client}: {shown}"));
    // No lines around the change: they may have keys.
    let (removed, inserted) = edit::changed_lines(&before, &after);
    if !removed.is_empty() {
        diff.write_removed(&removed);
    }
    if !inserted.is_empty() {
        diff.write_added(&inserted);
    }
    print([diff.text])?;
    if sources.flags.dry_run {
        return print([format!("{client}: not changed, as this is a dry run\n")]);
    }
    if !args.yes && !asked()? {
        print([format!("{client}: not changed; --yes writes it without asking\n")])?;
        return Ok(Exit::No);
    }
    if args.undo {
        file.restore(&after)?;
        return print([format!("{client}: taken back\n")]);
    }
    file.write(&after)?;
    print([format!("{client}: written; abridge setup {client} --undo takes it back\n")])
}

/// Asks on the terminal; without one the answer is no.
fn asked() -> io::Result<bool> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(false);
    }
    write!(io::stderr(), "Write this? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

// === files ===

/// A file with settings, which may not exist yet.
struct SettingsFile {
    path: PathBuf,
    /// The original; empty if there was none. It is there if something was written.
    backup: PathBuf,
}

impl SettingsFile {
    fn at(path: PathBuf) -> Self {
        let mut backup = path.file_name().unwrap_or_default().to_owned();
        backup.push(".abridge-backup");
        Self { backup: path.with_file_name(backup), path }
    }

    /// Writes the text, and keeps the original.
    fn write(&self, text: &str) -> anyhow::Result<()> {
        let backup = self.backup.display();
        ensure!(
            read(&self.backup)?.is_none(),
            "it was set up before, as {backup} shows; take that back with --undo first"
        );
        // A file that cannot be written needs no backup, which would say that it was.
        let folder = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        let file = folder.and_then(|()| fs::OpenOptions::new().append(true).create(true).open(&self.path));
        file.with_context(|| self.not_written())?;
        if let Err(error) = fs::copy(&self.path, &self.backup).and_then(|_| sync(&self.backup)) {
            // A part of one would be taken for the original.
            let _ = remove(&self.backup);
            return Err(error).with_context(|| format!("cannot write {backup}"));
        }
        fs::write(&self.path, text).with_context(|| self.not_written())
    }

    /// Writes what the text is without the change, or removes the file if nothing is left.
    fn restore(&self, text: &str) -> anyhow::Result<()> {
        // A link stays, and what it leads to is removed.
        let file = || fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let written = if text.is_empty() { remove(&file()) } else { fs::write(&self.path, text) };
        written.and_then(|()| remove(&self.backup)).with_context(|| self.not_written())
    }

    fn not_written(&self) -> String {
        format!("cannot write {}", self.path.display())
    }
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
