//! `abridge demo`: plays one agent's session with and without abridge, on this machine alone.
//!
//! An upstream with a window of 8192 tokens and strict rules listens on a free port, and the proxy of this program in front
//! of it, with settings and a store in a temporary folder. Each request of the session goes to both. All figures are counts
//! of what the upstream received. They are the same in each run, because all that is counted is: the session, the handles
//! (`STORE_SECRET`), and the address under which originals are read (`RECALL_URL`).

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Context;
use tokio::sync::oneshot;

use super::run::TempFolder;
use crate::cli::{Exit, runtime, wants_colour};
use crate::config::{Config, Environment, Sources, Variables};
use crate::demo::{Session, Upstream, WINDOW_TOKENS};
use crate::platform::process::ProxySignals;
use crate::store::{Clock, RedbStore, Settings, Store};
use crate::template::fill;
use crate::upstream::routes::DialectName;

mod player;

use player::Player;

/// Arguments of `demo`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The wire format of the session.
    #[arg(long, value_name = "NAME", default_value = "chat_completions", value_parser = dialect_of)]
    #[arg(help = "The wire format of the session: chat_completions (or chat), responses, messages, gemini")]
    dialect: DialectName,
    /// Write the request of each turn into DIR: as the agent sent it, and as the upstream received it
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// A demo that is ready to play.
#[derive(Debug)]
pub struct Demo {
    player: Option<Player>,
    signals: ProxySignals,
}

/// Where the model is told to read originals. The proxy listens on a free port, whose digits would count as tokens; the
/// demo reads from the proxy what the model is told to read here.
const RECALL_URL: &str = "http://127.0.0.1:8787";

/// The secret of the store. Handles are made with it, and handles of the same length may have different numbers of tokens.
const STORE_SECRET: [u8; 32] = [0; 32];

/// Runs the demo. `serve` plays it with a proxy beside it. A signal ends it, and removes the files that it has made.
pub fn run(
    args: Args,
    sources: &Sources,
    serve: &impl AsyncFn(&Config, &Environment, &mut Demo) -> anyhow::Result<anyhow::Result<Option<Exit>>>,
) -> anyhow::Result<Exit> {
    let colour = wants_colour(sources)?;
    let runtime = runtime()?;
    let played = runtime.block_on(async {
        // Before anything is there that a signal would leave behind.
        let signals = ProxySignals::new().context("cannot install signal handlers")?;
        let session = Session::read().context("the session of the demo is invalid")?;
        let upstream = Upstream::start(&session.model).await?;
        let folder = TempFolder::new().context("cannot make a temporary folder")?;
        let config = settings(folder.path(), &upstream, &session.model).await?;
        let player = Player { session, upstream, dialect: args.dialect, keep: args.keep, colour };
        let environment = Environment::read(&Variables::default(), &config)?;
        serve(&config, &environment, &mut Demo { player: Some(player), signals }).await?
    });
    runtime.shutdown_background();
    match played {
        Ok(Some(exit)) => Ok(exit),
        Ok(None) => {
            let _ = writeln!(io::stderr(), "\nabridge: stopped; nothing of the demo is left");
            Ok(Exit::No)
        }
        // A closed pipe is not an error.
        Err(error) if error.downcast_ref().is_some_and(|e: &io::Error| e.kind() == ErrorKind::BrokenPipe) => {
            Ok(Exit::Ok)
        }
        Err(error) => Err(error),
    }
}

/// Makes the store, and reads the settings as any proxy reads them, from a file.
async fn settings(folder: &Path, upstream: &Upstream, model: &str) -> anyhow::Result<Config> {
    let (file, store) = (folder.join("proxy.toml"), folder.join("store.redb"));
    RedbStore::create(&store, Settings::default(), Clock::system(), STORE_SECRET)?.close().await?;
    let text = fill(
        include_str!("demo/proxy.toml"),
        &[
            ("upstream", &upstream.url),
            ("recall", &RECALL_URL),
            ("model", &model),
            ("window", &WINDOW_TOKENS),
            ("store", &format_args!("{:?}", store.display().to_string())),
        ],
    );
    std::fs::write(&file, text)?;
    Config::load(&Sources { file: Some(file), ..Sources::default() })
}

// === impl Demo ===

impl Demo {
    /// Plays the session, with abridge at `url`; `None` if a signal has ended it.
    pub async fn play(&mut self, url: &str) -> anyhow::Result<Option<Exit>> {
        let (player, url) = (self.player.take(), url.to_owned());
        let (sender, receiver) = oneshot::channel();
        // Those threads of the runtime that may block have a low priority.
        thread::spawn(move || drop(sender.send(player.map(|player| player.play(&url)).transpose())));
        tokio::select! {
            biased;
            // Also one that asks a proxy for a reload.
            _ = self.signals.next() => Ok(None),
            outcome = receiver => outcome.context("the demo has panicked")?,
        }
    }
}

/// Reads the name of a dialect; `chat` is short for the first.
fn dialect_of(name: &str) -> Result<DialectName, &'static str> {
    let name = if name == "chat" { "chat_completions" } else { name };
    let found = DialectName::ALL.into_iter().find(|dialect| dialect.name() == name);
    found.ok_or("allowed: chat_completions, responses, messages, gemini")
}
