//! `abridge demo`: runs one agent session with and without abridge, on this machine alone.
//!
//! An upstream with a scripted model, a window of 8192 tokens and strict rules listens on a free port. This program
//! runs as a child process in front of it. The agent has one history. Each turn it sends the same bytes to both, and
//! continues with the answer that came through abridge. All figures are the upstream's counts; from abridge's own
//! reports, only the names of the edits are used. They are the same in each run, because everything that is counted is:
//! the texts, the handles (`demo::proxy`), and the address under which originals are read (`RECALL_URL`).
//!
//! The child, its settings and its store are removed when [`run`] ends or is dropped.

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use crate::tasks::Tasks;
use crate::upstream::routes::DialectName;

use agent::Agent;
use client::Client;
use proxy::AbridgeProcess;
use runner::DemoRunner;
use script::MODEL;
use upstream::{Upstream, WINDOW_TOKENS};

pub use client::RequestError;
pub use output::DemoOutput;
pub use proxy::{StartError, StoreCheckError, TempFolder};

mod agent;
mod client;
mod format;
mod output;
mod proxy;
mod runner;
mod script;
mod tool_outputs;
mod upstream;

/// Results with more bytes are truncated. The default, 50,000, is more than the window.
const TRUNCATE_OVER_BYTES: usize = 8000;

/// Where the model is told to read originals. The child listens on a free port, whose digits would count as tokens; the
/// demo's tools reach the child under this address.
const RECALL_URL: &str = "http://127.0.0.1:8787";

/// Why the demo failed to run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The output, the folder or a port failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The child did not start.
    #[error(transparent)]
    StartError(#[from] StartError),
    /// One of the demo's servers did not answer.
    #[error("the demo's own servers do not answer")]
    RequestError(#[from] RequestError),
    /// The child's store could not be read.
    #[error(transparent)]
    Store(#[from] StoreCheckError),
    /// A URL of the demo or of the child is invalid.
    #[error(transparent)]
    Uri(#[from] http::uri::InvalidUri),
    /// An answer is invalid.
    #[error("an answer in the demo is invalid")]
    Answer(#[from] serde_json::Error),
}

/// Whether abridge did what the demo demonstrates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Each turn was answered through abridge, and each original was read back.
    Shown,
    /// A turn or a recall failed; the table shows which one.
    Failed,
}

/// The paths that the demo uses.
#[derive(Clone, Copy, Debug)]
pub struct DemoPaths<'p> {
    /// The program abridge.
    pub program: &'p Path,
    /// The folder in which temporary folders are made.
    pub temporary: &'p Path,
    /// The folder that requests are written into, if any.
    pub keep: Option<&'p Path>,
}

/// Runs the demo in a dialect.
pub async fn run<W: Write>(
    dialect: DialectName,
    paths: DemoPaths<'_>,
    output: &mut DemoOutput<W>,
) -> Result<Verdict, DemoError> {
    let began = Instant::now();
    let tasks = Tasks::default();
    let format = format::of(dialect);
    let upstream = Upstream::start(&tasks, format).await?;
    // Dropped in reverse order: the child before the folder.
    let folder = TempFolder::new(paths.temporary)?;
    let abridge = AbridgeProcess::start(paths.program, &folder, &settings(&upstream)).await?;
    let client = Client::new(tasks, format.dialect());
    introduce(output)?;
    let mut runner = DemoRunner::new(client, upstream, abridge, output, paths.keep);
    let mut agent = Agent::new(format);
    if !runner.play(&mut agent).await? {
        return Ok(Verdict::Failed);
    }
    let recalled = runner.check_recall(&agent).await?;
    if !recalled.is_whole() {
        return Ok(Verdict::Failed);
    }
    runner.finish(recalled, began).await?;
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
max_bytes = {TRUNCATE_OVER_BYTES}
[recall]
public_url = \"{RECALL_URL}\"
[[models]]
match = \"{MODEL}\"
context_window = {WINDOW_TOKENS}
",
        upstream.url()
    )
}

fn introduce<W: Write>(output: &mut DemoOutput<W>) -> io::Result<()> {
    output.write_title("abridge demo: an agent looks for the fault in a build that fails")?;
    output.write_line("")?;
    output.write_line("  upstream  a scripted model on this machine, with a window of 8,192 tokens; it")?;
    output.write_line("            answers 400 to what is longer, and to a tool call without its result")?;
    output.write_line("  direct    each turn's request, sent straight to that upstream")?;
    output.write_line("  abridge   the same bytes, sent through abridge to the same upstream")?;
    output.write_line("  settings  the defaults, except: [[models]] context_window = 8192")?;
    output.write_line("                                  truncate_tool_results.max_bytes = 8000")?;
    output.write_line("                                  policy.edits without \"summarize\"")?;
    output.write_line("                                  recall.public_url = \"http://127.0.0.1:8787\"")?;
    output.write_line("")?;
    output.write_column_heads()
}
