//! The command line: arguments, help texts, exit codes, and one submodule per command. `serve` runs in [`crate::app`].

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::Serialize;
use tokio::runtime::{self, Runtime};

use self::client::ClientError;
use crate::config::{Config, ConfigError, Environment, Flags, MissingError, Sources};
use crate::engine::manual_summary::ManualSummaryError;
use crate::planner::Planner;
use crate::replay::ReplayPolicy;
use crate::setup_error::SetupError;
use crate::store::{OpenError, StoreError, engine};
use crate::template::section;
use crate::upstream::routes::Routes;

pub mod client;
pub mod demo;
pub mod diff;
pub mod doctor;
mod escape;
pub mod explain;
pub mod health;
pub mod mcp;
pub mod models;
pub mod overview;
pub mod rewrite;
pub mod run;
pub mod savings;
pub mod service;
pub mod setup;
pub mod show;
pub mod simulate;
pub mod status;
pub mod store;

/// Repairs and shortens the conversations of agents in flight, and leaves every other byte alone.
#[derive(Debug, Parser)]
#[command(name = "abridge", version, about)]
pub struct Cli {
    /// The settings file [default: proxy.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Settings")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy (also without a command).
    Serve(ServeArgs),
    /// Run a command with its own abridge, which ends with it: the exit code is the command's.
    Run(run::Args),
    /// Point the settings of clients at abridge, as a diff that is written when you agree; --undo takes it back.
    Setup(setup::Args),
    /// Have systemd start abridge when you log in.
    #[command(subcommand)]
    Service(service::Command),
    /// Show an agent's session with and without abridge, on this machine alone and without a key.
    Demo(demo::Args),
    /// Print a request body as it would be sent upstream; no upstream is needed.
    Rewrite(rewrite::Args),
    /// Print a request body with a summary in place of its old messages; calls the upstream for the summary.
    Summarize(rewrite::BodyArgs),
    /// Run recorded requests through the present settings and compare: exit code 0 if nothing differs, else 1.
    Replay(rewrite::ReplayArgs),
    /// Run transcripts through policies and compare tokens, cost and cache hits.
    Simulate(simulate::Args),
    /// Check the settings and print those in effect, with secrets masked.
    CheckConfig,
    /// Print what a setting does, its values and its default.
    Explain(explain::Args),
    /// Check everything that abridge depends on and suggest a fix for each fault: exit code 0 if there is none, else 1.
    Doctor(OutputArgs),
    /// Print the context windows, encodings and token factors that are known for models, and their sources.
    Models(OutputArgs),
    /// Check that a running proxy is alive: exit code 0 if so, else 1.
    Health(client::ProxyArgs),
    /// Print what the edits have saved, by day, model, client or policy.
    Savings(savings::Args),
    /// Print the state of a running proxy: requests, tokens, savings, failures.
    Status(status::Args),
    /// Print an original that was taken out of a conversation; reads it from a running proxy.
    Show(show::Args),
    /// Serve the tools that read originals back over standard input and output, for clients that start MCP servers.
    Mcp(mcp::Args),
    /// Print what the edits changed in a request, message by message; reads it from a running proxy.
    Diff(diff::Args),
    /// Print a script that completes abridge's arguments in a shell.
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a man page for each command into a folder, for packages.
    #[command(hide = true)]
    Man {
        /// The folder
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// List, print, back up, sweep, compact or copy the contents of the store. No proxy may have its file open, except for a backup.
    #[command(subcommand)]
    Store(store::Command),
}

/// Arguments of `serve` only.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Write each chat exchange as a folder into DIR: bodies, never keys
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
}

/// The output format of a command.
#[derive(Args, Debug)]
pub struct OutputArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where the API of Anthropic is, and the one of Codex for those who have logged in with `ChatGPT`.
const ANTHROPIC: &str = "https://api.anthropic.com";
const CHATGPT: &str = "https://chatgpt.com/backend-api/codex";

/// Exit codes, as in sysexits.h.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// The check failed: replays differ, the proxy is not healthy, or running answers were cut at shutdown.
    No = 1,
    /// The command line is wrong.
    Usage = 64,
    /// A file to work on cannot be read.
    NoInput = 66,
    /// A port, a folder or another resource is unavailable.
    Unavailable = 69,
    /// A bug in abridge.
    Bug = 70,
    /// The settings are wrong.
    Config = 78,
}

// === impl Cli ===

impl Cli {
    /// Parses the command line. `Err` is the exit code after help, the version or a usage error was printed.
    pub fn read() -> Result<Self, Exit> {
        let read = shown().try_get_matches().and_then(|matches| Self::from_arg_matches(&matches));
        read.and_then(Self::checked).map_err(|error| {
            // A failed write cannot be reported anywhere.
            let _ = error.print();
            if error.use_stderr() { Exit::Usage } else { Exit::Ok }
        })
    }

    /// The sources of the settings.
    pub fn sources(&self) -> Sources {
        Sources::of_process(self.config.clone(), self.flags.clone())
    }

    /// How `replay` applies the present settings: over the policies in recordings only if `--config` was given.
    pub fn replay_policy(&self) -> fn(Routes<Planner>) -> ReplayPolicy {
        if self.config.is_some() { ReplayPolicy::Explicit } else { ReplayPolicy::Fallback }
    }

    /// Whether there is neither a subcommand nor a flag.
    pub fn is_alone(&self) -> bool {
        self.command.is_none() && !self.has_settings() && self.serve.record.is_none()
    }

    fn has_settings(&self) -> bool {
        self.config.is_some() || self.flags != Flags::default()
    }

    /// The subcommand; `serve` by default.
    pub fn command(self) -> Command {
        match self.command {
            None => Command::Serve(self.serve),
            Some(Command::Serve(args)) => Command::Serve(ServeArgs { record: args.record.or(self.serve.record) }),
            Some(Command::Run(mut args)) => {
                args.record = args.record.or(self.serve.record);
                Command::Run(args)
            }
            Some(other) => other,
        }
    }

    fn checked(self) -> Result<Self, clap::Error> {
        let wrong = match self.command {
            Some(Command::Serve(_) | Command::Run(_)) | None => return Ok(self),
            Some(Command::Store(_)) if self.flags.dry_run => {
                "--dry-run is about requests; abridge store ls and stats change nothing"
            }
            Some(Command::Demo(_)) if self.has_settings() => "the demo has its own settings and accepts no others",
            Some(_) if self.serve.record.is_none() => return Ok(self),
            Some(_) => "--record is only accepted by serve and run",
        };
        Err(<Self as CommandFactory>::command().error(clap::error::ErrorKind::ArgumentConflict, wrong))
    }
}

/// The settings that have a flag, and the commands on which it acts. It is accepted elsewhere, but help does not name it there.
const ACTS: [(&str, &str); 5] = [
    (
        "config",
        "serve run setup service rewrite summarize replay simulate check-config doctor models health savings status show mcp diff store",
    ),
    ("listen", "serve run setup service check-config doctor health savings status show mcp diff"),
    ("upstream", "serve run setup service rewrite summarize replay simulate check-config doctor models"),
    ("log_format", "serve run service check-config"),
    ("dry_run", "serve run setup service check-config"),
];

/// The examples of each command, below its name.
const EXAMPLES: &str = include_str!("cli/help.txt");

/// Examples come first.
const HELP: &str = "{before-help}{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n{all-args}";

/// The command line as help shows it.
fn shown() -> clap::Command {
    let mut command = <Cli as CommandFactory>::command();
    command.build(); // gives each command the flags of settings
    command.help_template(HELP).after_help(section(EXAMPLES, "abridge")).mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        let examples = section(EXAMPLES, &name);
        with_flags_of(if examples.is_empty() { command } else { command.after_help(examples) }, &name)
    })
}

/// Hides the flags that do not act on the command of this name.
fn with_flags_of(command: clap::Command, name: &str) -> clap::Command {
    let acts = |flag: &str| ACTS.iter().all(|(id, commands)| *id != flag || commands.split(' ').any(|one| one == name));
    let command = command.mut_args(|arg| {
        let acts = acts(arg.get_id().as_str());
        if acts { arg } else { arg.hide(true) }
    });
    command.help_template(HELP).mut_subcommands(|command| with_flags_of(command, name))
}

/// Prints the settings in effect, as TOML. Fails if they are invalid, or if an environment variable that they name is missing.
pub fn check_config(sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    Environment::read(&sources.variables, config)?;
    print([config.to_toml()?])
}

/// Prints the script of a shell.
pub fn print_completions(shell: clap_complete::Shell) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(), "abridge", &mut script);
    print([script])
}

/// Writes the man pages into a folder, which is made if it is not there.
pub fn write_man_pages(folder: &Path) -> anyhow::Result<Exit> {
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(shown(), folder));
    written.with_context(|| format!("cannot write to {}", folder.display()))?;
    Ok(Exit::Ok)
}

// === impl Exit ===

impl Exit {
    /// The exit code for an error.
    pub fn of(error: &anyhow::Error) -> Self {
        if let Some(problem) = error.downcast_ref::<ConfigError>() {
            return if problem.is_from_flag() { Self::Usage } else { Self::Config };
        }
        if error.is::<rewrite::InputError>() || error.is::<store::StoreNotFoundError>() {
            return Self::NoInput;
        }
        // Files, proxies and engines that the settings name and that cannot be used.
        if error.is::<SetupError>()
            || error.is::<MissingError>()
            || matches!(error.downcast_ref(), Some(ManualSummaryError::Disabled | ManualSummaryError::NoStore))
        {
            return Self::Config;
        }
        let is_unavailable = error.is::<ManualSummaryError>()
            || error.is::<engine::OpenError>()
            || error.is::<engine::EngineError>()
            || error.is::<OpenError>()
            || error.is::<StoreError>()
            || error.is::<ClientError>()
            || error.chain().any(<dyn std::error::Error>::is::<io::Error>);
        if is_unavailable { Self::Unavailable } else { Self::Bug }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Prints an error to standard error, in one line.
pub fn print_error(error: &anyhow::Error) {
    // An error in the settings begins with its location, where editors look for it.
    let line = if error.is::<ConfigError>() { format!("{error:#}") } else { format!("abridge: {error:#}") };
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints a warning to standard error, in one line.
pub fn print_warning(sentence: &str) {
    let _ = writeln!(io::stderr(), "abridge: warning: {sentence}");
}

/// Writes to standard output, and returns the exit code for success. A closed pipe is not an error.
fn print(bytes: impl IntoIterator<Item = impl AsRef<[u8]>>) -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    let written = bytes.into_iter().try_for_each(|piece| out.write_all(piece.as_ref())).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(Exit::Ok),
    }
}

/// Prints an error, and returns the exit code for "no".
fn refuse(error: &anyhow::Error) -> Exit {
    print_error(error);
    Exit::No
}

impl OutputArgs {
    /// The result of a command, as JSON or as text.
    fn render<T: Serialize>(&self, result: &T, to_text: impl FnOnce(&T) -> String) -> serde_json::Result<String> {
        if self.json { to_json(result) } else { Ok(to_text(result)) }
    }
}

fn to_json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Whether standard output is a terminal whose user wants colour.
fn wants_colour(sources: &Sources) -> Result<bool, ConfigError> {
    Ok(io::stdout().is_terminal() && !sources.variables.wants_plain_text()?)
}

/// The runtime of a command that waits for something.
fn runtime() -> anyhow::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_section_of_the_help_is_that_of_a_command_and_each_command_with_arguments_has_one() {
        let heads: Vec<_> = EXAMPLES.lines().filter_map(|line| line.strip_prefix("== ")).collect();
        let command = <Cli as CommandFactory>::command();
        let without = ["check-config", "completions", "man"];
        let mut names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
        names.retain(|name| !without.contains(name));
        names.push("abridge");
        names.sort_unstable();
        assert_eq!(heads, names);
        assert!(heads.iter().all(|head| section(EXAMPLES, head).contains("Examples:\n")));
    }
}
