//! `abridge demo`: runs the demo session and prints its table.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime;

use crate::cli::Exit;
use crate::config::Sources;
use crate::demo::{self, DemoError, DemoOutput, DemoPaths, Verdict};
use crate::platform::process::ProxySignals;
use crate::telemetry::Colour;
use crate::upstream::routes::DialectName;

/// Arguments of `demo`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The wire format of the session.
    #[arg(long, value_name = "NAME", default_value = "chat_completions", value_parser = dialect_of)]
    #[arg(help = "The wire format of the session: chat_completions (or chat), responses, messages")]
    dialect: DialectName,
    /// Show it without pauses, also on a terminal
    #[arg(long)]
    fast: bool,
    /// Write the request of each turn into DIR: as the agent sent it, and as the upstream received it
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// The pause after each turn, for eyes.
const PACE: Duration = Duration::from_millis(50);

/// Runs the demo. A signal ends it, and removes the processes and files that it has made.
pub fn run(args: &Args, sources: &Sources) -> anyhow::Result<Exit> {
    let out = io::stdout();
    let is_terminal = out.is_terminal();
    let colour = if is_terminal && !sources.variables.wants_plain_text()? { Colour::On } else { Colour::Off };
    let after_each = if is_terminal && !args.fast { PACE } else { Duration::ZERO };
    let mut output = DemoOutput::new(out.lock(), colour, after_each);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let shown = runtime.block_on(async {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let temporary = std::env::temp_dir();
        let paths = DemoPaths { program: &program, temporary: &temporary, keep: args.keep.as_deref() };
        tokio::select! {
            biased; // before anything is there that a signal would leave behind
            stopped = stopped() => stopped.map(|()| None),
            shown = demo::run(args.dialect, paths, &mut output) => Ok(Some(shown)),
        }
    });
    match shown? {
        Some(Ok(Verdict::Shown)) => Ok(Exit::Ok),
        Some(Ok(Verdict::Failed)) => {
            crate::cli::print_error(&anyhow::anyhow!(
                "the demo failed: abridge did not do what it demonstrates; please report this"
            ));
            Ok(Exit::No)
        }
        // A closed pipe is not an error.
        Some(Err(DemoError::Io(error))) if error.kind() == ErrorKind::BrokenPipe => Ok(Exit::Ok),
        Some(Err(error)) => Err(error.into()),
        None => {
            let _ = writeln!(io::stderr(), "\nabridge: stopped; nothing of the demo is left");
            Ok(Exit::No)
        }
    }
}

/// Waits for a signal that ends the process.
async fn stopped() -> anyhow::Result<()> {
    let mut signals = ProxySignals::new().context("cannot install signal handlers")?;
    // Also one that asks a proxy for a reload.
    signals.next().await;
    Ok(())
}

/// Reads the name of a dialect; `chat` is short for the first.
fn dialect_of(name: &str) -> Result<DialectName, &'static str> {
    let name = if name == "chat" { "chat_completions" } else { name };
    let found = DialectName::ALL.into_iter().find(|dialect| dialect.name() == name);
    found.ok_or("allowed: chat_completions, responses, messages")
}
