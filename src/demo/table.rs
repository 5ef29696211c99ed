//! What the demo shows, as it happens: 80 columns, plain or in colour.

use std::io::{self, Write};
use std::time::Duration;

use tokio::time::sleep;

use super::agent::{Outcome, Said};
use crate::telemetry::Colour;
use crate::units::grouped;

/// Where the demo is shown.
#[derive(Debug)]
pub struct Screen<W> {
    out: W,
    colour: Colour,
    pace: Duration,
}

/// What one side's turns come to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// How many there were.
    pub(super) n_turns: usize,
    /// How many were answered.
    pub(super) n_ok: usize,
    /// The tokens of all requests.
    pub(super) tokens: usize,
    /// Those of the largest.
    pub(super) largest: usize,
}

/// How a piece of text is meant.
#[derive(Clone, Copy, Debug)]
enum Tone {
    Good,
    Bad,
    Aside,
    Strong,
}

/// The longest that one piece of a row may be.
const TITLE: usize = 19;
const DIRECT: usize = 27;

/// The longest line.
const LINE: usize = 80;

/// A pause after a note, in rows.
const NOTE: u32 = 8;

// === impl Sum ===

impl Sum {
    /// Counts a turn. `tokens` are those of the request as the agent sent it; of one that was answered, the upstream's count is taken.
    pub(super) fn add(&mut self, outcome: &Outcome, tokens: usize) {
        let tokens = match outcome {
            Outcome::Ok(Said { prompt_tokens, .. }) => *prompt_tokens,
            Outcome::Refused(_) => tokens,
        };
        self.n_turns += 1;
        self.n_ok += usize::from(matches!(outcome, Outcome::Ok(_)));
        self.tokens += tokens;
        self.largest = self.largest.max(tokens);
    }
}

// === impl Screen ===

impl<W: Write> Screen<W> {
    /// `pace` is the pause after each row.
    pub fn new(out: W, colour: Colour, pace: Duration) -> Self {
        Self { out, colour, pace }
    }

    /// A heading.
    pub(super) fn title(&mut self, text: &str) -> io::Result<()> {
        let text = self.toned(Tone::Strong, text);
        writeln!(self.out, "{text}")
    }

    /// A line as it is.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// The heads of the columns.
    pub(super) fn head(&mut self) -> io::Result<()> {
        let head = format!(
            "{:>4}  {:<TITLE$} {:>6}  {:<DIRECT$}  {}",
            "turn", "what is new", "bytes", "direct (tokens)", "abridge (tokens)"
        );
        self.title(&head)
    }

    /// The beginning of a row.
    pub(super) fn turn(&mut self, turn: usize, title: &str, bytes: usize) -> io::Result<()> {
        let title = shortened(title, TITLE);
        write!(self.out, "{turn:>4}  {title:<TITLE$} {:>6}  ", grouped(bytes))?;
        self.out.flush()
    }

    /// What became of the request that went straight to the upstream.
    pub(super) fn direct(&mut self, outcome: &Outcome) -> io::Result<()> {
        let (tone, text) = match outcome {
            Outcome::Ok(said) => (Tone::Good, format!("ok {:>6}", grouped(said.prompt_tokens))),
            Outcome::Refused(refused) => (Tone::Bad, refused.to_string()),
        };
        let text = self.toned(tone, &format!("{text:<DIRECT$}"));
        write!(self.out, "{text}  ")?;
        self.out.flush()
    }

    /// What became of the one that went through abridge, and the end of the row.
    pub(super) async fn abridged(&mut self, outcome: &Outcome, tokens: usize) -> io::Result<()> {
        let (tone, text) = match outcome {
            Outcome::Ok(said) if said.edits.is_empty() => {
                (Tone::Good, format!("ok {:>6}", grouped(said.prompt_tokens)))
            }
            Outcome::Ok(said) => {
                (Tone::Good, format!("ok {:>6} → {:>5}", grouped(tokens), grouped(said.prompt_tokens)))
            }
            Outcome::Refused(refused) => (Tone::Bad, refused.to_string()),
        };
        let text = self.toned(tone, &text);
        writeln!(self.out, "{text}")?;
        self.pause(1).await
    }

    /// Something to say about the row before.
    pub(super) async fn note(&mut self, text: &str) -> io::Result<()> {
        for (n, line) in wrapped(text, LINE - 8).iter().enumerate() {
            let text = self.toned(Tone::Aside, &format!("      {} {line}", if n == 0 { "↳" } else { " " }));
            writeln!(self.out, "{text}")?;
        }
        self.pause(NOTE).await
    }

    /// Two figures beside each other.
    pub(super) fn figure(&mut self, name: &str, direct: &str, abridge: &str) -> io::Result<()> {
        writeln!(self.out, "  {name:<34}{direct:>16}{abridge:>18}")
    }

    /// What came of it, for both.
    pub(super) fn sum(&mut self, direct: &Sum, abridge: &Sum) -> io::Result<()> {
        self.title(&format!("{:<34}{:>18}{:>18}", "sum", "direct", "abridge"))?;
        let of = |sum: &Sum| format!("{} of {}", sum.n_ok, sum.n_turns);
        self.figure("turns answered", &of(direct), &of(abridge))?;
        self.figure("largest request, tokens", &grouped(direct.largest), &grouped(abridge.largest))?;
        self.figure("sent upstream in all, tokens", &grouped(direct.tokens), &grouped(abridge.tokens))
    }

    /// What is asked for, and what it is worth.
    fn toned(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Aside => "2",
            Tone::Strong => "1",
        };
        if self.colour == Colour::On { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    async fn pause(&self, rows: u32) -> io::Result<()> {
        if !self.pace.is_zero() {
            sleep(self.pace * rows).await;
        }
        Ok(())
    }
}

/// The beginning of a text, if it is too long.
fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(most - 1).collect();
    format!("{}…", beginning.trim_end())
}

/// The lines of a text, broken between words.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= most) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
