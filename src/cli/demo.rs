//! `abridge demo`: what abridge is good for, shown without a network, a key or a setting.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::Exit;
use crate::config::Sources;
use crate::demo::{self, DemoError, Place, Screen, Verdict};
use crate::telemetry::Colour;

/// How to show it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Show it at once, also on a terminal
    #[arg(long)]
    fast: bool,
    /// Write the request of each turn into DIR: as the agent sent it, and as the model was given it
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// The pause after each turn, for eyes.
const PACE: Duration = Duration::from_millis(50);

/// Shows it. A signal ends it, and takes with it what it has started and written.
pub fn run(args: &Args, sources: &Sources) -> anyhow::Result<Exit> {
    let out = io::stdout();
    let is_terminal = out.is_terminal();
    let colour = if is_terminal && !sources.variables.ask_for_plain_text()? { Colour::On } else { Colour::Off };
    let after_each = if is_terminal && !args.fast { PACE } else { Duration::ZERO };
    let mut screen = Screen::new(out.lock(), colour, after_each);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("no thread to show it with")?;
    let shown = runtime.block_on(async {
        let program = std::env::current_exe().context("where this program is cannot be found out")?;
        let temporary = std::env::temp_dir();
        let place = Place { program: &program, temporary: &temporary, keep: args.keep.as_deref() };
        tokio::select! {
            biased; // before anything is there that a signal would leave behind
            stopped = stopped() => stopped.map(|()| None),
            shown = demo::run(place, &mut screen) => Ok(Some(shown)),
        }
    });
    match shown? {
        Some(Ok(Verdict::Shown)) => Ok(Exit::Ok),
        Some(Ok(Verdict::Failed)) => {
            crate::cli::complain(&anyhow::anyhow!(
                "abridge has not done what this demo is to show; please report that"
            ));
            Ok(Exit::No)
        }
        // A reader that has gone away has read enough.
        Some(Err(DemoError::Io(error))) if error.kind() == ErrorKind::BrokenPipe => Ok(Exit::Ok),
        Some(Err(error)) => Err(error.into()),
        None => {
            let _ = writeln!(io::stderr(), "\nabridge: stopped; nothing of the demo is left");
            Ok(Exit::No)
        }
    }
}

/// Waits for a signal that ends a process.
async fn stopped() -> anyhow::Result<()> {
    let listen = |kind| signal(kind).context("signals cannot be received");
    let (mut interrupt, mut terminate, mut hangup) =
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}
