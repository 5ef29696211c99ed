//! The command line: arguments, help texts, exit codes, and one submodule per command. `serve` runs in [`crate::app`].

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory, Parser, Subcommand};

use self::client::ClientError;
use crate::config::{ConfigError, Flags, MissingError, NoStorePathError, Sources};
use crate::engine::manual_summary::ManualSummaryError;
use crate::planner::Planner;
use crate::replay::ReplayPolicy;
use crate::server::tls::TlsError;
use crate::store::{OpenError, StoreError, engine};
use crate::upstream::connect::ConnectorError;
use crate::upstream::routes::Routes;

pub mod check_config;
pub mod client;
pub mod demo;
pub mod diff;
pub mod doctor;
mod escape;
pub mod health;
pub mod mcp;
pub mod models;
pub mod replay;
pub mod rewrite;
pub mod run;
pub mod service;
pub mod setup;
pub mod show;
pub mod simulate;
pub mod status;
pub mod store;
pub mod summarize;
mod temp_folder;

/// Edits the messages of OpenAI-compatible requests in flight, and leaves every other byte alone.
#[derive(Debug, Parser)]
#[command(name = "abridge", version, about, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy (also without a command).
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Run a command with an abridge of its own, which ends with it: the exit code is the command's.
    #[command(after_help = RUN_EXAMPLES)]
    Run(run::Args),
    /// Point the settings of clients at abridge, as a diff that is written when you agree; --undo takes it back.
    #[command(after_help = SETUP_EXAMPLES)]
    Setup(setup::Args),
    /// Have systemd start abridge when you log in.
    #[command(subcommand, after_help = SERVICE_EXAMPLES)]
    Service(service::Command),
    /// Show an agent's session with and without abridge, on this machine alone and without a key.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(demo::Args),
    /// Print a request body as it would be sent upstream; no upstream is needed.
    #[command(after_help = REWRITE_EXAMPLES)]
    Rewrite(rewrite::Args),
    /// Print a request body with a summary in place of its old messages; calls the upstream for the summary.
    #[command(after_help = SUMMARIZE_EXAMPLES)]
    Summarize(summarize::Args),
    /// Run recorded requests through the present settings and compare: exit code 0 if nothing differs, else 1.
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(replay::Args),
    /// Run transcripts through policies and compare tokens, cost and cache hits.
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(simulate::Args),
    /// Check the settings and print those in effect, with secrets masked.
    CheckConfig,
    /// Check everything that abridge depends on and suggest a fix for each fault: exit code 0 if there is none, else 1.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(doctor::Args),
    /// Print the context windows and encodings that are known for models, and their sources.
    #[command(after_help = MODELS_EXAMPLES)]
    Models(models::Args),
    /// Check that a running proxy is alive: exit code 0 if so, else 1.
    #[command(after_help = HEALTH_EXAMPLES)]
    Health(health::Args),
    /// Print the state of a running proxy: requests, tokens, savings, failures.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(status::Args),
    /// Print an original that was taken out of a conversation; reads it from a running proxy.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(show::Args),
    /// Serve the tools that read originals back over standard input and output, for clients that start MCP servers.
    #[command(after_help = MCP_EXAMPLES)]
    Mcp(mcp::Args),
    /// Print what the edits changed in a request, message by message; reads it from a running proxy.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(diff::Args),
    /// List, print, sweep, compact or copy the contents of the store. No proxy may have the file of a store open.
    #[command(subcommand, after_help = STORE_EXAMPLES)]
    Store(store::Command),
}

/// Settings that have a flag. A flag overrides the environment and the file.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Settings")]
struct SettingsArgs {
    /// The settings file [default: proxy.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The listen addresses; the flag may be repeated.
    #[arg(long, global = true, value_name = "ADDR")]
    #[arg(help = "Where to listen: host:port or unix:/path; may be given more than once [default: 127.0.0.1:8787]")]
    listen: Vec<String>,
    /// The upstreams' base URLs.
    #[arg(long, global = true, value_name = "[NAME=]URL")]
    #[arg(help = UPSTREAM_HELP)]
    upstream: Vec<String>,
    /// The format of the log lines [default: text]
    #[arg(long, global = true, value_name = "FORM", value_parser = PossibleValuesParser::new(["text", "json"]))]
    log_format: Option<String>,
    /// Forward every request unedited, and only report what would be edited
    #[arg(long, global = true)]
    dry_run: bool,
}

/// Arguments of `serve` only.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Write each chat exchange as a folder into DIR: bodies, never keys
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
}

const UPSTREAM_HELP: &str = "Where requests go [default: https://api.openai.com/v1]; once more as anthropic=URL for the \
requests of Claude Code, or as NAME=URL for another of [[upstreams]]";

const EXAMPLES: &str = "\
Examples:
  abridge demo                                     a demonstration without a key or a network
  abridge run -- codex                             an agent with an abridge of its own
  abridge --upstream https://api.openai.com/v1     then set OPENAI_BASE_URL=http://127.0.0.1:8787/v1
  abridge check-config                             check the settings, and print those in effect
  abridge rewrite request.json --report            show what would be edited in a request

Settings also come from proxy.toml and from variables such as ABRIDGE__SERVER__MAX_BODY=64MiB; flags win over
variables, variables over the file. Exit codes: 64 usage, 66 no input, 69 unavailable, 70 a bug, 78 settings.";

const SERVE_EXAMPLES: &str = "\
Examples:
  abridge serve --upstream http://127.0.0.1:8000/v1 --listen 0.0.0.0:8787
  abridge serve --upstream https://api.openai.com/v1 --upstream anthropic=https://api.anthropic.com
  abridge serve --listen unix:/run/abridge.sock --log-format json
  abridge serve --dry-run --record ./exchanges";

const RUN_EXAMPLES: &str = "\
Requests go where the command would have sent them: to what OPENAI_BASE_URL, ANTHROPIC_BASE_URL or the settings of Codex and
Claude Code name, or else to the makers of the APIs; --upstream and the settings win. Nothing is changed on disk, and the
store of the run is removed with it. Exit codes: 127 if the command is not found, 126 if it cannot be run.

Examples:
  abridge run -- codex
  abridge run -- claude -p \"What is in notes.txt?\"
  abridge run --keep --log abridge.log -- aider --model openai/gpt-4o
  abridge run --record ./exchanges -- codex";

const SETUP_EXAMPLES: &str = "\
The original is kept beside each file. Without a terminal and without --yes nothing is written. Exit code 1 if a change was
not written.

Examples:
  abridge setup codex claude-code
  abridge setup --all --yes
  abridge setup codex --undo";

const SERVICE_EXAMPLES: &str = "\
A user unit of systemd. Keys that the settings name by variables must be in the environment of the service. Exit code 69 if
the service cannot be started.

Examples:
  abridge service install
  abridge service install --config proxy.toml
  abridge service install --print";

const DEMO_EXAMPLES: &str = "\
The demo starts its own upstream and its own abridge on free ports of 127.0.0.1, reads no settings, and removes its files.
Exit code 1 if abridge did not do what the demo shows.

Examples:
  abridge demo
  abridge demo --dialect messages
  abridge demo --fast | less";

const REWRITE_EXAMPLES: &str = "\
Prints what the proxy sends under these settings, including models, token counter and recall address. Handles differ, as
they depend on the store's secret and on the client's key; stored summaries, and windows that the upstream has reported,
are not used. With dry_run, the edited body is printed.

Examples:
  abridge rewrite request.json > rewritten.json
  curl … | abridge rewrite - --report";

const SUMMARIZE_EXAMPLES: &str = "\
The summary is made whatever the trigger, by the model that [summarize] names or else the request's own, at upstream.url,
with the key that upstream.api_key_env names. Originals go into the store, which no running proxy may have open: if one
has, post the body to its /abridge/summarize, or set ABRIDGE__STORE__ENABLED=false and ABRIDGE__SUMMARIZE__TRANSCRIPT=false.
Exit code 69 if no summary could be made; nothing is printed then.

Examples:
  OPENAI_API_KEY=… ABRIDGE__UPSTREAM__API_KEY_ENV=OPENAI_API_KEY abridge summarize request.json > summarised.json
  curl … | abridge summarize - --report";

const REPLAY_EXAMPLES: &str = "\
A folder with its own policy.toml is replayed under that policy, unless --config or --policy is given. Handles, the summary in use, the
address of abridge and the window that the upstream had reported are those of the recording, unless settings override them;
recordings of older versions have none of these.

Examples:
  abridge replay ./exchanges
  abridge replay ./exchanges --config new.toml --json";

const SIMULATE_EXAMPLES: &str = "\
A transcript is sent as an agent's loop sent it: one request before each answer of the model, and one at the end. Cached is
the share of tokens in the prefix that did not change from one request to the next, in blocks of 128; moves are requests
that did not begin with the request before. The longest transcripts come first. A text of fixed length replaces each
summary; with --upstream, summaries are made there under the present settings, with the key that upstream.api_key_env names.

Faults are texts that the recorded answer repeats and that the policy had taken out of sight; they are hard where an edit
fails without them. Each is followed by a recall, one more request, which is part of the cost with recalls.

Examples:
  abridge simulate ./transcripts
  abridge simulate ./exchanges --policy a.toml --policy b.toml --policy none --limit 10
  abridge simulate ./transcripts --policy a.toml --placebo --html compared.html
  abridge simulate session.json --model gpt-4o --cache-read 0.5 --json";

const DOCTOR_EXAMPLES: &str = "\
Use the same --config, --listen, --upstream and variables as for the proxy, which may be running. The upstream is asked once
for its models, with no key but that of upstream.api_key_env. If no process has the store open, one text is written to it.

Examples:
  abridge doctor
  abridge doctor --upstream http://127.0.0.1:8000/v1 --json";

const MODELS_EXAMPLES: &str = "\
[[models]] in the settings overrides the upstream's list of models, which overrides the built-in table. The upstream is
asked once, with no key but that of upstream.api_key_env; a running proxy asks with its clients' keys.

Examples:
  abridge models
  abridge models gpt-5.5
  abridge models --upstream http://127.0.0.1:8000/v1 --json";

const HEALTH_EXAMPLES: &str = "\
Without --url, the first address of server.listen is asked, so use the same --config, --listen and variables as for the
proxy. With TLS, only the connection is checked.

Examples:
  abridge health
  abridge health --url http://127.0.0.1:8787";

const STATUS_EXAMPLES: &str = "\
Without --at, the first address of admin.listen is asked, or else of server.listen, so use the same --config, --listen and
variables as for the proxy. The token of [admin] is read from ABRIDGE_ADMIN_TOKEN, or else from the variable that
admin.token_env names. Exit codes: 69 if no proxy answers, 1 if it answers with an error.

Examples:
  abridge status
  abridge status --at http://127.0.0.1:8787 --json";

const SHOW_EXAMPLES: &str = "\
The handle is in a notice or a placeholder: 26 digits and letters. The proxy is found as by abridge status. If none runs and
--at is not given, the store of the settings is read, such as that of abridge run --keep.

Examples:
  abridge show 01j8z4k0v6m2n9x7q3r5t1w8ye | less
  abridge show 01j8z4k0v6m2n9x7q3r5t1w8ye > original.txt";

const MCP_EXAMPLES: &str = "\
Passes the messages of an MCP client on to /abridge/mcp of a running proxy, which is found as by abridge status. A client
that speaks HTTP needs no command: its server is http://127.0.0.1:8787/abridge/mcp.

Examples:
  abridge mcp
  abridge mcp --at http://127.0.0.1:8787 --key-env OPENAI_API_KEY";

const DIFF_EXAMPLES: &str = "\
The id is in the header x-abridge-request-id, in the log, and on the page. The texts of messages are available only for
requests that were sent while [inspect] keep was not 0. The proxy is found as by abridge status. If none runs and --at is not
given, the store of the settings is read, such as that of ABRIDGE__INSPECT__KEEP=20 abridge run --keep.

Examples:
  abridge diff last
  abridge diff 0123
  abridge diff req_0123456789abcdef --full | less -R";

const STORE_EXAMPLES: &str = "\
Examples:
  abridge store ls
  abridge store get 01j8z4k0v6m2n9x7q3r5t1w8ye | less
  abridge store sweep && abridge store compact
  abridge store init                               make the tables of store.engine = \"postgres\"
  abridge store copy --from store.redb             from a file to the engine of the settings";

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
        Self::try_parse().and_then(Self::checked).map_err(|error| {
            // A failed write cannot be reported anywhere.
            let _ = error.print();
            if error.use_stderr() { Exit::Usage } else { Exit::Ok }
        })
    }

    /// The sources of the settings.
    pub fn sources(&self) -> Sources {
        let SettingsArgs { config, listen, upstream, log_format, dry_run } = self.settings.clone();
        Sources::of_process(config, Flags { listen, upstream, log_format, dry_run })
    }

    /// How `replay` applies the present settings: over the policies in recordings only if `--config` was given.
    pub fn replay_policy(&self) -> fn(Routes<Planner>) -> ReplayPolicy {
        if self.settings.config.is_some() { ReplayPolicy::Explicit } else { ReplayPolicy::Fallback }
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
        match self.command {
            Some(Command::Serve(_) | Command::Run(_)) | None => Ok(self),
            Some(Command::Store(_)) if self.settings.dry_run => {
                Err(Self::command_for_errors("--dry-run is about requests; abridge store ls and stats change nothing"))
            }
            Some(Command::Demo(_)) if self.settings.is_any_given() => {
                Err(Self::command_for_errors("the demo has its own settings and accepts no others"))
            }
            Some(_) if self.serve.record.is_none() => Ok(self),
            Some(_) => Err(Self::command_for_errors("--record is only accepted by serve and run")),
        }
    }

    fn command_for_errors(message: &str) -> clap::Error {
        <Self as CommandFactory>::command().error(clap::error::ErrorKind::ArgumentConflict, message)
    }
}

// === impl SettingsArgs ===

impl SettingsArgs {
    /// Whether any of these flags was given.
    fn is_any_given(&self) -> bool {
        let Self { config, listen, upstream, log_format, dry_run } = self;
        config.is_some() || !listen.is_empty() || !upstream.is_empty() || log_format.is_some() || *dry_run
    }
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
        // Files and proxies that the settings name and that cannot be used.
        if error.is::<TlsError>()
            || error.is::<ConnectorError>()
            || error.is::<NoStorePathError>()
            || error.is::<MissingError>()
        {
            return Self::Config;
        }
        if let Some(none) = error.downcast_ref::<ManualSummaryError>() {
            return if matches!(none, ManualSummaryError::Disabled | ManualSummaryError::NoStore) {
                Self::Config
            } else {
                Self::Unavailable
            };
        }
        if error.is::<store::NoEngineError>() {
            return Self::Config;
        }
        if error.is::<engine::OpenError>() || error.is::<engine::EngineError>() {
            return Self::Unavailable;
        }
        if error.is::<OpenError>() || error.is::<StoreError>() || error.is::<ClientError>() {
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

/// Writes to standard output. A closed pipe is not an error.
fn print(bytes: impl IntoIterator<Item = impl AsRef<[u8]>>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = bytes.into_iter().try_for_each(|piece| out.write_all(piece.as_ref())).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
