//! `abridge show`: what was taken out of a conversation, byte for byte.

use anyhow::anyhow;

use crate::cli::client::{Answer, At, Proxy};
use crate::cli::{Exit, complain, escape, print};
use crate::config::{Config, Sources};
use crate::payload::PayloadKey;
use crate::recall;

/// What to print.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// As a notice or a placeholder names it: 26 digits and letters
    handle: String,
    #[command(flatten)]
    at: At,
}

/// The bytes that one answer may have; a longer payload comes in parts that fit together.
const PART: usize = 8 << 20;

/// Prints the payload, or says why it is not to be had.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let handle = args.handle.trim();
    if handle.parse::<PayloadKey>().is_err() {
        complain(&anyhow!(
            "{:?} is no handle: one has 26 digits and lower-case letters, and stands behind {} in what the model reads",
            escape::line(handle, 80),
            recall::PATH
        ));
        return Ok(Exit::No);
    }
    let proxy = args.at.proxy(sources, config)?;
    let mut from = 0;
    loop {
        let answer = proxy.get(&format!("{}{handle}?offset={from}&limit={PART}", recall::PATH), "at")?;
        if answer.status != 200 {
            complain(&anyhow!("{}", advice(&answer, &proxy)));
            return Ok(Exit::No);
        }
        let (end, size) = (range_end(&answer), number(answer.field("x-abridge-size")));
        print([&answer.body])?;
        match (end, size) {
            (Some(end), Some(size)) if end < size && end > from => from = end,
            _ => return Ok(Exit::Ok),
        }
    }
}

/// Where the part that came ends.
fn range_end(answer: &Answer) -> Option<usize> {
    number(answer.field("x-abridge-range")?.split_once('-').map(|(_, end)| end))
}

fn number(text: Option<&str>) -> Option<usize> {
    text?.parse().ok()
}

/// What to do about an answer that is no payload.
fn advice(answer: &Answer, proxy: &Proxy) -> String {
    let why = answer.sentence();
    match answer.status {
        404 => format!(
            "{why}; ask the abridge that wrote the notice (--at), and see whether its store.path is still the same file"
        ),
        410 => format!("{why}; a longer store.keep_for or a larger store.max_bytes keeps later ones"),
        status => format!("{} answers {status}: {why}", proxy.name()),
    }
}
