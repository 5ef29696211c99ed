//! `abridge show`: prints an original that was taken out of a conversation, from the proxy or from its store: byte for byte, and
//! on a terminal with its control characters escaped.

use std::io::{IsTerminal, stdout};

use anyhow::anyhow;

use crate::cli::client::{ClientError, ProxyArgs};
use crate::cli::{Exit, escape, print, refuse, store};
use crate::config::{Config, Sources};
use crate::payload::PayloadKey;
use crate::recall;

/// Arguments of `show`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The handle in a notice or a placeholder: 26 digits and letters
    handle: String,
    #[command(flatten)]
    at: ProxyArgs,
}

/// The maximum length of one response, in bytes; a longer payload is read in parts.
const PART_BYTES: usize = 8 << 20;

/// Why a store without a proxy has no such text.
const NOT_KEPT: &str = "the store of these settings has no text with this handle (abridge run leaves one with --keep, or where store.path is set)";

/// Prints the payload, or the reason why it is not available.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let handle = args.handle.trim();
    let Ok(key) = handle.parse::<PayloadKey>() else {
        return Ok(refuse(&anyhow!(
            "{:?} is not a handle: a handle has 26 digits and lower-case letters, and follows {} in what the model reads",
            escape::to_single_line(handle, 80),
            recall::PATH
        )));
    };
    let proxy = args.at.proxy(sources, config)?;
    let mut from = 0;
    loop {
        let answer = match proxy.get(&format!("{}{handle}?offset={from}&limit={PART_BYTES}", recall::PATH)) {
            Err(error @ ClientError::NotListening(..)) if args.at.is_default() => {
                let kept = store::read(sources, config, async |store| store.get(key).await)?.flatten();
                return print([kept.ok_or_else(|| anyhow!(error).context(NOT_KEPT))?]);
            }
            answer => answer?,
        };
        if answer.status != 200 {
            return Ok(refuse(&proxy.refused(&answer)));
        }
        let end = answer.header("x-abridge-range").and_then(|range| range.split_once('-')?.1.parse().ok());
        let size: Option<usize> = answer.header("x-abridge-size").and_then(|size| size.parse().ok());
        // A sequence that is cut between two parts is not a valid one.
        if stdout().is_terminal() {
            print([escape::to_lines(&answer.body)])?;
        } else {
            print([&answer.body])?;
        }
        match (end, size) {
            (Some(end), Some(size)) if end < size && end > from => from = end,
            _ => return Ok(Exit::Ok),
        }
    }
}
