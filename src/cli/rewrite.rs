//! `abridge rewrite`: a request body as it would go upstream, without any upstream.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::cli::{Exit, print};
use crate::config::Config;
use crate::dialect;
use crate::engine::{EditedBody, edit_body};
use crate::payload::Keys;

/// Where clients post the kind of body that is read here.
const ROUTE: &str = "/chat/completions";

/// Which body, and what to say about it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The request body; - is standard input
    file: PathBuf,
    /// Print what was edited as JSON on standard error
    #[arg(long)]
    report: bool,
}

/// The body cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read", file.display())]
pub struct NoInput {
    file: PathBuf,
    source: io::Error,
}

/// Prints the body as the proxy sends it under these settings, but for what only a running one knows: handles are those of
/// [`Keys::well_known`], since they depend on the store's secret and on the client's credential; there are no summaries; and
/// no upstream has named a context window. One that is not understood comes out as it went in. A dry run prints the edits.
pub fn run(args: &Args, config: &Config) -> anyhow::Result<Exit> {
    let body = read(&args.file)?;
    let planner = config.planner(config.address(), config.meter(), Keys::well_known());
    let edited = match dialect::for_path(ROUTE) {
        Some(dialect) => edit_body(&planner, dialect, body),
        None => EditedBody::untouched(body),
    };
    print(&edited.body)?;
    if let Some(error) = edited.parse_error {
        crate::cli::complain(&anyhow::Error::new(error).context("printed as it came"));
    }
    if let Some(report) = edited.report.filter(|_| args.report) {
        writeln!(io::stderr(), "{}", serde_json::to_string_pretty(&report)?)?;
    }
    Ok(Exit::Ok)
}

/// The whole of a file, or of standard input.
pub(super) fn read(file: &Path) -> Result<Bytes, NoInput> {
    let read = if file == Path::new("-") {
        let mut body = Vec::new();
        io::stdin().lock().read_to_end(&mut body).map(|_| body)
    } else {
        fs::read(file)
    };
    read.map(Bytes::from).map_err(|source| NoInput { file: file.to_owned(), source })
}
