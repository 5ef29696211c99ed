//! The command line: what it may say, and what its commands do. `serve` itself is [`crate::app`]'s.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory, Parser, Subcommand};

use self::client::Unanswered;
use crate::config::{Flags, NoStorePath, Problem, Sources};
use crate::engine::manual_summary::ManualSummaryError;
use crate::planner::Planner;
use crate::replay::Chosen;
use crate::server::tls::TlsError;
use crate::store::{OpenError, StoreError};
use crate::upstream::connect::ConnectorError;

pub mod check_config;
pub mod client;
pub mod demo;
pub mod diff;
pub mod doctor;
mod escape;
pub mod health;
pub mod models;
pub mod replay;
pub mod rewrite;
pub mod show;
pub mod simulate;
pub mod status;
pub mod store;
pub mod summarize;

/// Edits the messages of OpenAI-compatible requests in flight, and leaves every other byte alone.
#[derive(Debug, Parser)]
#[command(name = "abridge", version, about, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy (also without a command).
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Show on this machine alone, without a key, what becomes of an agent's session: with abridge and without.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(demo::Args),
    /// Print a request body as it would be sent on; no upstream is needed.
    #[command(after_help = REWRITE_EXAMPLES)]
    Rewrite(rewrite::Args),
    /// Print a request body with a summary in place of its old messages; the upstream is asked for it.
    #[command(after_help = SUMMARIZE_EXAMPLES)]
    Summarize(summarize::Args),
    /// Run recorded requests through the present settings, and compare: exit code 0 if nothing differs, else 1.
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(replay::Args),
    /// Play transcripts through policies, and compare tokens, cost and cache hits.
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(simulate::Args),
    /// Check the settings, and print them as they are in effect, secrets masked.
    CheckConfig,
    /// Look at all that abridge depends on, and say what to do about each fault: exit code 0 if there is none, else 1.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(doctor::Args),
    /// Print what is known of models, their context windows and encodings, and from where.
    #[command(after_help = MODELS_EXAMPLES)]
    Models(models::Args),
    /// Ask a running proxy whether it is alive: exit code 0 if so, else 1.
    #[command(after_help = HEALTH_EXAMPLES)]
    Health(health::Args),
    /// Print how a running proxy does: requests, tokens, what was saved, what failed.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(status::Args),
    /// Print what was taken out of a conversation, as it was; a running proxy is asked for it.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(show::Args),
    /// Print what the edits changed in a request, message by message; a running proxy is asked for it.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(diff::Args),
    /// List, print, sweep or compact what is in the store, while no proxy has it.
    #[command(subcommand, after_help = STORE_EXAMPLES)]
    Store(store::Command),
}

/// Settings that have a flag; they win over the environment and the file.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Settings")]
struct SettingsArgs {
    /// The file of settings [default: proxy.toml, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen, as often as given.
    #[arg(long, global = true, value_name = "ADDR")]
    #[arg(help = "Where to listen: host:port or unix:/path; may be given more than once [default: 127.0.0.1:8787]")]
    listen: Vec<String>,
    /// Where requests go.
    #[arg(long, global = true, value_name = "URL", help = "Where requests go [default: https://api.openai.com/v1]")]
    upstream: Option<String>,
    /// The form of the log lines [default: text]
    #[arg(long, global = true, value_name = "FORM", value_parser = PossibleValuesParser::new(["text", "json"]))]
    log_format: Option<String>,
    /// Forward every request as it came, and only report what would be edited
    #[arg(long, global = true)]
    dry_run: bool,
}

/// What only a running proxy needs.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Write each chat exchange as a folder into DIR: bodies, never keys
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  abridge demo                                     what is it good for? no key, no network
  abridge --upstream https://api.openai.com/v1     then set OPENAI_BASE_URL=http://127.0.0.1:8787/v1
  abridge check-config                             is the file right, and what is in effect?
  abridge rewrite request.json --report            what would be edited in this request?

Settings also come from proxy.toml and from variables such as ABRIDGE__SERVER__MAX_BODY=64MiB; flags win over
variables, variables over the file. Exit codes: 64 usage, 66 no input, 69 unavailable, 70 a bug, 78 settings.";

const SERVE_EXAMPLES: &str = "\
Examples:
  abridge serve --upstream http://127.0.0.1:8000/v1 --listen 0.0.0.0:8787
  abridge serve --listen unix:/run/abridge.sock --log-format json
  abridge serve --dry-run --record ./exchanges";

const DEMO_EXAMPLES: &str = "\
It starts an upstream and an abridge of its own on free ports of 127.0.0.1, reads no settings, and leaves nothing behind.
Exit code 1 if abridge has not done what is shown.

Examples:
  abridge demo
  abridge demo --fast | less";

const REWRITE_EXAMPLES: &str = "\
It is what the proxy sends under these settings, the models, the counter and the address of recall among them, but for
handles, which depend on the store's secret and on the client's key; summaries that were made, and windows that an upstream
has named, are not known here. A dry run is printed as it would be edited.

Examples:
  abridge rewrite request.json > rewritten.json
  curl … | abridge rewrite - --report";

const SUMMARIZE_EXAMPLES: &str = "\
The summary is made whatever the trigger, by the model that [summarize] names or else the request's own, at upstream.url,
with the key that upstream.api_key_env names. What it takes out goes into the store, which no running proxy may have: post
the body to that one's /abridge/summarize then, or set ABRIDGE__STORE__ENABLED=false and ABRIDGE__SUMMARIZE__TRANSCRIPT=false.
Exit code 69 if no summary could be made; nothing is printed then.

Examples:
  OPENAI_API_KEY=… ABRIDGE__UPSTREAM__API_KEY_ENV=OPENAI_API_KEY abridge summarize request.json > summarised.json
  curl … | abridge summarize - --report";

const REPLAY_EXAMPLES: &str = "\
A folder that has its own policy.toml is replayed under that, unless --config names another. Handles, the summary that was
used, the address of abridge and the window that the upstream had named are those of the recording, unless settings say
otherwise; recordings of older versions have none of these.

Examples:
  abridge replay ./exchanges
  abridge replay ./exchanges --config new.toml --json";

const SIMULATE_EXAMPLES: &str = "\
A transcript is sent as an agent's loop sent it: one request before each answer of the model, and one at the end. Cached is
the share of tokens in the prefix that did not change from one request to the next, in blocks of 128; moves are requests
that did not begin with what was sent before. The longest transcripts come first. For each summary a text stands in; with
--upstream they are made there, as the present settings say, with the key that upstream.api_key_env names.

Examples:
  abridge simulate ./transcripts
  abridge simulate ./exchanges --policy a.toml --policy b.toml --policy none --limit 10
  abridge simulate session.json --model gpt-4o --cache-read 0.5 --json";

const DOCTOR_EXAMPLES: &str = "\
Give it the same --config, --listen, --upstream and variables as the proxy has. It may run beside that. The upstream is asked
for its models once, with no key but that of upstream.api_key_env; into a store that nobody has open one line is written.

Examples:
  abridge doctor
  abridge doctor --upstream http://127.0.0.1:8000/v1 --json";

const MODELS_EXAMPLES: &str = "\
Of what is said of a model, [[models]] of the settings wins over the upstream's list of models, and that over what is built
in. The upstream is asked once, with no key but that of upstream.api_key_env; a running proxy asks with its clients' keys.

Examples:
  abridge models
  abridge models gpt-5.5
  abridge models --upstream http://127.0.0.1:8000/v1 --json";

const HEALTH_EXAMPLES: &str = "\
Without --url, the first address of server.listen is asked, so give the same --config, --listen and variables as the
proxy has. Where the proxy speaks TLS, only the connection is tried.

Examples:
  abridge health
  abridge health --url http://127.0.0.1:8787";

const STATUS_EXAMPLES: &str = "\
Without --at, the first address of admin.listen is asked, or else of server.listen, so give the same --config, --listen and
variables as the proxy has. The token of [admin] is read from ABRIDGE_ADMIN_TOKEN, or else from the variable that
admin.token_env names. Exit codes: 69 nobody answers, 1 the answer is no.

Examples:
  abridge status
  abridge status --at http://127.0.0.1:8787 --json";

const SHOW_EXAMPLES: &str = "\
The handle is what a notice or a placeholder names: 26 digits and letters. The proxy is found as by abridge status.

Examples:
  abridge show 01j8z4k0v6m2n9x7q3r5t1w8ye | less
  abridge show 01j8z4k0v6m2n9x7q3r5t1w8ye > original.txt";

const DIFF_EXAMPLES: &str = "\
The id is that of the header x-abridge-request-id, of the log, and of the page. The texts of messages are there only for
requests that were sent while [inspect] keep was not 0. The proxy is found as by abridge status.

Examples:
  abridge diff req_0123456789abcdef
  abridge diff req_0123456789abcdef --full | less -R";

const STORE_EXAMPLES: &str = "\
Examples:
  abridge store ls
  abridge store get 01j8z4k0v6m2n9x7q3r5t1w8ye | less
  abridge store sweep && abridge store compact";

/// Exit codes, as sysexits.h has them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Exit {
    /// All is well.
    Ok = 0,
    /// The answer is no: replays differ, the proxy is not healthy, running answers were cut at the end.
    No = 1,
    /// The command line is wrong.
    Usage = 64,
    /// A file to work on cannot be read.
    NoInput = 66,
    /// A port, a folder or another thing of the machine is not to be had.
    Unavailable = 69,
    /// abridge itself is broken.
    Bug = 70,
    /// The settings are wrong.
    Config = 78,
}

// === impl Cli ===

impl Cli {
    /// Reads the command line; `Err` is the exit code after help, a version or an error has been printed.
    pub fn read() -> Result<Self, Exit> {
        Self::try_parse().and_then(Self::checked).map_err(|error| {
            // Nobody is left to tell that nobody reads.
            let _ = error.print();
            if error.use_stderr() { Exit::Usage } else { Exit::Ok }
        })
    }

    /// Where the settings come from.
    pub fn sources(&self) -> Sources {
        let SettingsArgs { config, listen, upstream, log_format, dry_run } = self.settings.clone();
        Sources::of_process(config, Flags { listen, upstream, log_format, dry_run })
    }

    /// How the present settings are replayed: over those that recordings bring along, if somebody asked for its file.
    pub fn replayed(&self) -> fn(Planner) -> Chosen {
        if self.settings.config.is_some() { Chosen::ByUser } else { Chosen::ByDefault }
    }

    /// What to do: to serve, if nothing else is said.
    pub fn command(self) -> Command {
        match self.command {
            None => Command::Serve(self.serve),
            Some(Command::Serve(args)) => Command::Serve(ServeArgs { record: args.record.or(self.serve.record) }),
            Some(other) => other,
        }
    }

    fn checked(self) -> Result<Self, clap::Error> {
        match self.command {
            Some(Command::Serve(_)) | None => Ok(self),
            Some(Command::Demo(_)) if self.settings.has_some() => {
                Err(Self::command_for_errors("the demo has settings of its own, and takes no others"))
            }
            Some(_) if self.serve.record.is_none() => Ok(self),
            Some(_) => Err(Self::command_for_errors("--record is for serve alone")),
        }
    }

    fn command_for_errors(message: &str) -> clap::Error {
        <Self as CommandFactory>::command().error(clap::error::ErrorKind::ArgumentConflict, message)
    }
}

// === impl SettingsArgs ===

impl SettingsArgs {
    /// Whether any is given.
    fn has_some(&self) -> bool {
        let Self { config, listen, upstream, log_format, dry_run } = self;
        config.is_some() || !listen.is_empty() || upstream.is_some() || log_format.is_some() || *dry_run
    }
}

// === impl Exit ===

impl Exit {
    /// The code that says what kind of error ended the process.
    pub fn of(error: &anyhow::Error) -> Self {
        if let Some(problem) = error.downcast_ref::<Problem>() {
            return if problem.is_of_a_flag() { Self::Usage } else { Self::Config };
        }
        if error.is::<rewrite::NoInput>() || error.is::<store::NoStore>() {
            return Self::NoInput;
        }
        // Files and proxies that settings name, and that cannot be used.
        if error.is::<TlsError>() || error.is::<ConnectorError>() || error.is::<NoStorePath>() {
            return Self::Config;
        }
        if let Some(none) = error.downcast_ref::<ManualSummaryError>() {
            return if matches!(none, ManualSummaryError::Disabled | ManualSummaryError::NoStore) {
                Self::Config
            } else {
                Self::Unavailable
            };
        }
        if error.is::<OpenError>() || error.is::<StoreError>() || error.is::<Unanswered>() {
            return Self::Unavailable;
        }
        if error.chain().any(<dyn std::error::Error>::is::<io::Error>) { Self::Unavailable } else { Self::Bug }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Tells a person at the terminal why the process ends, in one line.
pub fn complain(error: &anyhow::Error) {
    // The place comes first in a line about settings, where editors look for it.
    let line = if error.is::<Problem>() { format!("{error:#}") } else { format!("abridge: {error:#}") };
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes to standard output. A reader that has gone away has read enough: that is no error.
fn print(bytes: impl IntoIterator<Item = impl AsRef<[u8]>>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = bytes.into_iter().try_for_each(|piece| out.write_all(piece.as_ref())).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
