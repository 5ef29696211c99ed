//! `abridge demo`: one session of an agent, with abridge and without, on this machine alone.
//!
//! An upstream with a scripted model, a window of 8192 tokens and strict rules listens on a free port, and so does this very
//! program as a child, in front of it. The agent has one history. Each turn it sends the same bytes to both, and goes on
//! with what came through abridge. What the table says of abridge is what the upstream counted; nothing is computed from
//! what abridge says of itself, except which edits it made.
//!
//! The child, its settings and its store are gone when [`run`] ends or is dropped.

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use crate::tasks::Tasks;

use agent::Agent;
use client::Client;
use proxy::{Abridge, Folder};
use session::MODEL;
use stage::Stage;
use upstream::{Upstream, WINDOW};

pub use client::NoAnswer;
pub use proxy::{NoStore, NotRunning};
pub use table::Screen;

mod agent;
mod client;
mod proxy;
mod session;
mod stage;
mod table;
mod texts;
mod upstream;

/// A result of more bytes is cut. The default is 50,000, which is more than the window.
const CUT_FROM: usize = 8000;

/// Why the demo could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The screen, the folder or a port.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The child.
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    /// One of the servers.
    #[error("the demo's own servers do not answer")]
    NoAnswer(#[from] NoAnswer),
    /// The child's store.
    #[error(transparent)]
    Store(#[from] NoStore),
    /// A URL that was made up here, or by the child.
    #[error(transparent)]
    Uri(#[from] http::uri::InvalidUri),
    /// An answer that nobody can go on with.
    #[error("an answer in the demo makes no sense")]
    Answer(#[from] serde_json::Error),
}

/// Whether abridge did what the demo is there to show.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Each turn was answered through abridge, and each original came back.
    Shown,
    /// Not so; the table says where.
    Failed,
}

/// What the demo needs of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Place<'p> {
    /// abridge itself.
    pub program: &'p Path,
    /// Where temporary folders are made.
    pub temporary: &'p Path,
    /// The folder that requests are written into, if they are to be kept.
    pub keep: Option<&'p Path>,
}

/// Shows it all.
pub async fn run<W: Write>(place: Place<'_>, screen: &mut Screen<W>) -> Result<Verdict, DemoError> {
    let began = Instant::now();
    let tasks = Tasks::default();
    let upstream = Upstream::start(&tasks).await?;
    // Dropped in the opposite order: the child first.
    let folder = Folder::new(place.temporary)?;
    let abridge = Abridge::start(place.program, &folder, &settings(&upstream)).await?;
    let client = Client::new(tasks);
    introduce(screen)?;
    let mut stage = Stage::new(client, upstream, abridge, screen, place.keep);
    let mut agent = Agent::new();
    if !stage.play(&mut agent).await? {
        return Ok(Verdict::Failed);
    }
    let recalled = stage.recall(&agent).await?;
    if !recalled.is_whole() {
        return Ok(Verdict::Failed);
    }
    stage.settle(recalled, began).await?;
    Ok(Verdict::Shown)
}

fn settings(upstream: &Upstream) -> String {
    format!(
        "\
[server]
listen = \"127.0.0.1:0\"
[upstream]
url = \"{}/v1\"
[policy]
edits = [\"patch_tool_calls\", \"truncate_tool_results\", \"clear_tool_results\"]
[truncate_tool_results]
max_bytes = {CUT_FROM}
[[models]]
match = \"{MODEL}\"
context_window = {WINDOW}
",
        upstream.url()
    )
}

fn introduce<W: Write>(screen: &mut Screen<W>) -> io::Result<()> {
    screen.title("abridge demo: an agent looks for the fault in a build that fails")?;
    screen.line("")?;
    screen.line("  upstream  a scripted model on this machine, with a window of 8,192 tokens; it")?;
    screen.line("            answers 400 to what is longer, and to a tool call without its result")?;
    screen.line("  direct    each turn's request, sent straight to that upstream")?;
    screen.line("  abridge   the same bytes, sent through abridge to the same upstream")?;
    screen.line("  settings  the defaults, but: [[models]] context_window = 8192")?;
    screen.line("                               truncate_tool_results.max_bytes = 8000")?;
    screen.line("                               policy.edits without \"summarize\"")?;
    screen.line("")?;
    screen.head()
}
