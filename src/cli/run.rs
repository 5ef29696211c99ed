//! `abridge run`: runs one command with its own abridge, which ends with it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;

use anyhow::{Context, anyhow};

use crate::cli::{print_error, runtime};
use crate::config::{Config, Environment, Sources};
use crate::history::{RequestCounts, RunTotals, TokenTotals, Totals};
use crate::ledger::FOR_LESS;
use crate::platform::files::private_folder;
use crate::platform::process::{self, CommandSignals};
use crate::recall;
use crate::store::{OpenError, StoreEngine};
use crate::tasks::run_blocking;
use crate::telemetry;
use crate::units::grouped;

mod client;

use client::Client;

/// Arguments of `run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print nothing at the end
    #[arg(long, short)]
    quiet: bool,
    /// Keep what is taken out, and summaries, in the usual store, for a session that is resumed later
    #[arg(long)]
    keep: bool,
    /// Write each chat exchange as a folder into DIR: bodies, never keys
    #[arg(long, value_name = "DIR")]
    pub(super) record: Option<PathBuf>,
    /// Append the log to FILE; without it there is none
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// A command that can be started.
#[derive(Debug)]
pub struct AgentCommand {
    command: Vec<OsString>,
    client: Client,
    variables: Vec<(&'static str, String)>,
    signals: CommandSignals,
    /// The folder that the exchanges are recorded into, if any.
    pub record: Option<PathBuf>,
}

/// The address of the private abridge: a free port of this machine alone.
const LISTEN: &str = "127.0.0.1:0";

/// The exit codes of a shell for a command that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Runs the command. `serve` runs it with a proxy beside it, and returns its exit code and what the proxy has done.
pub fn run(
    args: Args,
    mut sources: Sources,
    serve: &impl AsyncFn(&Config, &Environment, &mut AgentCommand) -> anyhow::Result<(io::Result<u8>, RunTotals)>,
) -> anyhow::Result<ExitCode> {
    let program = args.command.first().context("no command")?.clone();
    let (client, mut config) = settle(&args.command, &mut sources)?;
    let environment = Environment::read(&sources.variables, &config)?;
    if let Some(path) = &args.log {
        let file = File::options().append(true).create(true).open(path);
        let file = file.with_context(|| format!("cannot write to {}", path.display()))?;
        telemetry::init(&config.log, false, file)?;
    }
    let runtime = runtime()?;
    let (code, totals) = runtime.block_on(async {
        // Before anything is there that a signal would leave behind.
        let signals = CommandSignals::new().context("cannot install signal handlers")?;
        let variables = client::direct(&sources.variables)?;
        let mut agent = AgentCommand { command: args.command, client, variables, signals, record: args.record };
        if args.keep || config.store.path.is_some() || config.store.engine != StoreEngine::File {
            match serve(&config, &environment, &mut agent).await {
                Err(error) if matches!(error.downcast_ref(), Some(OpenError::InUse { .. })) => {
                    print_error(&error.context("this run has a store of its own"));
                }
                served => return served,
            }
        }
        let folder = TempFolder::new().context("cannot make a temporary folder")?;
        config.store.path = Some(folder.path().join("store.redb"));
        serve(&config, &environment, &mut agent).await
    })?;
    runtime.shutdown_background();
    if !args.quiet && code.is_ok() {
        // A failed write to standard error cannot be reported anywhere.
        let _ = writeln!(io::stderr(), "abridge: {}", describe(totals));
    }
    Ok(code.unwrap_or_else(|error| report_not_started(&program, error)).into())
}

/// The client, and the settings of a private abridge for it.
fn settle(command: &[OsString], sources: &mut Sources) -> anyhow::Result<(Client, Config)> {
    let settings = Config::load(sources)?;
    let client = Client::of(command, &sources.variables, &settings)?;
    sources.flags.upstream.extend(client.upstreams(&settings));
    if sources.flags.listen.is_empty() {
        sources.flags.listen.push(LISTEN.to_owned());
    }
    let mut config = Config::load(sources)?;
    // The command reads all that was taken out of its conversations, whichever keys it has.
    if config.recall.auth == recall::Auth::Auto {
        config.recall.auth = recall::Auth::Handle;
    }
    // These are for the abridge that others share.
    (config.tls, config.admin.listen, config.recall.public_url) = (None, None, None);
    Ok((client, config))
}

/// Says why the command was not started. Returns the exit code of a shell for that.
fn report_not_started(program: &OsStr, error: io::Error) -> u8 {
    let program = program.to_string_lossy();
    if error.kind() == ErrorKind::NotFound {
        print_error(&anyhow!("cannot run {program:?}: command not found; name one of PATH, or a path such as ./agent"));
        return NOT_FOUND;
    }
    print_error(&anyhow::Error::new(error).context(format!("cannot run {program:?}")));
    NOT_RUNNABLE
}

// === impl AgentCommand ===

impl AgentCommand {
    /// Runs the command, led to abridge at `url`, and returns its exit code. It has the terminal and the process group of
    /// abridge, and gets the signals that abridge gets.
    ///
    /// # Errors
    ///
    /// When the command cannot be started.
    pub async fn run(&mut self, url: &str) -> io::Result<u8> {
        let (program, arguments) = self.command.split_first().ok_or(ErrorKind::InvalidInput)?;
        let mut command = process::command(program);
        command.args(self.client.arguments(url)).args(arguments);
        command.envs(self.client.variables(url)).envs(self.variables.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn()?;
        let id = child.id();
        let mut ended = pin!(run_blocking(move || process::wait(&mut child)));
        loop {
            tokio::select! {
                code = &mut ended => return code.map_err(io::Error::other)?,
                signal = self.signals.next() => process::pass_on(signal, id),
            }
        }
    }
}

// === the report ===

/// Returns what was saved, in one line.
fn describe(totals: RunTotals) -> String {
    let RunTotals { totals: Totals { requests, tokens, .. }, savings, why_unedited, stored, summaries } = totals;
    let RequestCounts { total, edited, would_be_edited, .. } = requests;
    let TokenTotals { before, after } = tokens;
    if total == 0 {
        return "no request came through abridge; a command that sends some does not read OPENAI_BASE_URL or ANTHROPIC_BASE_URL".to_owned();
    }
    let saved = before.saturating_sub(after);
    let percent = (saved * 100).checked_div(before).unwrap_or(0);
    let count =
        |n: u64, one: &str, more: &str| (n > 0).then(|| format!("{} {}", grouped(n), if n == 1 { one } else { more }));
    let edits = match why_unedited {
        Some(why) => format!("0 edited ({why})"),
        None => format!("{} edited", grouped(edited)),
    };
    // Of small amounts, the sentence has both numbers.
    let is_told = savings.as_ref().is_some_and(|saved| saved.contains(FOR_LESS));
    let parts = [
        savings,
        count(total, "request", "requests").filter(|_| !is_told),
        Some(edits).filter(|_| !is_told),
        count(would_be_edited, "would be edited", "would be edited"),
        (saved > 0).then(|| format!("{} → {} tokens ({percent} % less)", grouped(before), grouped(after))),
        count(stored, "text taken out", "texts taken out"),
        count(summaries, "summary made", "summaries made"),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

// === a folder for what one command needs ===

/// A temporary folder, removed when it is dropped.
pub(super) struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates a folder in that for temporary files, which only this user can read.
    pub(super) fn new() -> io::Result<Self> {
        let mut name = [0; 8];
        getrandom::getrandom(&mut name)?;
        let path = std::env::temp_dir().join(format!("abridge-{:016x}", u64::from_le_bytes(name)));
        private_folder().create(&path)?;
        Ok(Self(path))
    }

    /// The path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // A failure cannot be reported anywhere.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_requests_are_said_once() {
        let said = |savings: &str| {
            let requests = RequestCounts { total: 2, edited: 1, ..RequestCounts::default() };
            let totals = Totals { requests, ..Totals::default() };
            describe(RunTotals { totals, savings: Some(savings.to_owned()), ..RunTotals::default() })
        };
        let small = "1 of 2 requests edited, for less than $0.0010";
        assert_eq!(said(small), small);
        assert_eq!(said("saved $1.00 of $2.00 (50 %)"), "saved $1.00 of $2.00 (50 %), 2 requests, 1 edited");
    }
}
