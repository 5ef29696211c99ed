//! `abridge setup`: points the settings of clients at a running abridge, and takes that back.

use std::io::{self, IsTerminal, Write};

use anyhow::anyhow;

use crate::cli::diff::render::{DiffWriter, RenderOptions};
use crate::cli::{Exit, print, refuse};
use crate::config::{Config, MissingError, Sources, Variables, read_text};
use crate::server::listen::local_url;
use crate::upstream::target::BaseUrl;

mod clients;
mod displaced;
pub(super) mod edit;
mod file;
pub(super) mod jsonc;

use clients::Client;
use file::SettingsFile;

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

/// How a change is shown and written.
#[derive(Clone, Copy, Debug)]
struct Handling {
    colour: bool,
    consent: Consent,
}

/// Whether a change may be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Consent {
    /// If the user agrees.
    Asked,
    /// Without a question.
    Given,
    /// Never: a dry run.
    Refused,
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
    let colour = io::stdout().is_terminal() && !variables.wants_plain_text()?;
    let consent = match (sources.flags.dry_run, args.yes) {
        (true, _) => Consent::Refused,
        (false, true) => Consent::Given,
        (false, false) => Consent::Asked,
    };
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
        let before = settings.original().ok().flatten().or_else(|| read_text(&settings.path).ok()).unwrap_or_default();
        let outcome = change(client, &settings, &url, args, variables, Handling { colour, consent });
        let outcome = outcome.unwrap_or_else(|error| refuse(&error.context(client.to_string())));
        if outcome == Exit::Ok {
            displaced.extend(displaced::of_client(client, &before, variables, &url));
        }
        outcomes.push(outcome);
    }
    if !args.undo && outcomes.contains(&Exit::Ok) {
        print([displaced::afterwards(&displaced, sources, config)])?;
    }
    Ok(if outcomes.contains(&Exit::No) { Exit::No } else { Exit::Ok })
}

/// Changes the settings of one client. The exit code says whether they are as they should be.
fn change(
    client: Client,
    file: &SettingsFile,
    url: &str,
    args: &Args,
    variables: &Variables,
    how: Handling,
) -> anyhow::Result<Exit> {
    let shown = file.path.display();
    let before = file.read()?;
    let present = before.as_deref().unwrap_or_default();
    let after = if args.undo {
        let Some(original) = file.original()? else {
            return print([format!("{client}: {shown} was not changed by abridge, or that was taken back\n")]);
        };
        let template = client.edit(&file.path, &original, edit::ANY_URL, variables)?;
        let url = edit::url_in(present, &edit::changed_lines(&original, &template).inserted).unwrap_or(url);
        edit::undo(present, &original, &client.edit(&file.path, &original, url, variables)?).ok_or_else(|| {
            anyhow!(
                "{shown} was changed since where abridge had set it; what was there before is in {}",
                file.backup().display()
            )
        })?
    } else {
        client.edit(&file.path, present, url, variables)?
    };
    if after == present && !args.undo {
        return print([format!("{client}: {shown} already leads to {url}\n")]);
    }
    let mut diff = DiffWriter::new(RenderOptions { colour: how.colour, full: false });
    diff.write_message_header(&format!("{client}: {shown}"));
    // No lines around the change: they may have keys.
    let edit::ChangedLines { removed, inserted } = edit::changed_lines(present, &after);
    if !removed.is_empty() {
        diff.write_removed(&removed);
    }
    if !inserted.is_empty() {
        diff.write_added(&inserted);
    }
    print([diff.text])?;
    if how.consent == Consent::Refused {
        return print([format!("{client}: not changed, as this is a dry run\n")]);
    }
    if how.consent == Consent::Asked && !asked()? {
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
