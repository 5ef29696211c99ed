//! Prints the demo's table while the session runs: 80 columns, plain or in colour.

use std::io::{self, Write};
use std::time::Duration;

use tokio::time::sleep;

use super::agent::{ModelAnswer, Outcome};
use crate::telemetry::Colour;
use crate::units::grouped;

/// The writer of the table.
#[derive(Debug)]
pub struct DemoOutput<W> {
    out: W,
    colour: Colour,
    row_pause: Duration,
}

/// The totals of one column.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SideTotals {
    /// The number of turns.
    pub(super) n_turns: usize,
    /// The number of answered turns.
    pub(super) n_ok: usize,
    /// The tokens of all requests.
    pub(super) tokens: usize,
    /// The tokens of the largest request.
    pub(super) largest: usize,
}

/// The style of a piece of text.
#[derive(Clone, Copy, Debug)]
enum Style {
    Good,
    Bad,
    Aside,
    Strong,
}

/// The widths of the columns, in characters.
const TITLE_COLUMNS: usize = 19;
const DIRECT_COLUMNS: usize = 27;

/// The longest line, in characters.
const LINE_COLUMNS: usize = 80;

/// The pause after a note, in row pauses.
const NOTE_PAUSE_ROWS: u32 = 8;

// === impl SideTotals ===

impl SideTotals {
    /// Counts a turn. `tokens` is the size of the request as the agent sent it; for an answered request, the upstream's
    /// count is used.
    pub(super) fn add(&mut self, outcome: &Outcome, tokens: usize) {
        let tokens = match outcome {
            Outcome::Ok(ModelAnswer { prompt_tokens, .. }) => *prompt_tokens,
            Outcome::Rejected(_) => tokens,
        };
        self.n_turns += 1;
        self.n_ok += usize::from(matches!(outcome, Outcome::Ok(_)));
        self.tokens += tokens;
        self.largest = self.largest.max(tokens);
    }
}

// === impl DemoOutput ===

impl<W: Write> DemoOutput<W> {
    /// `row_pause` is the pause after each row.
    pub fn new(out: W, colour: Colour, row_pause: Duration) -> Self {
        Self { out, colour, row_pause }
    }

    /// Prints a heading.
    pub(super) fn write_title(&mut self, text: &str) -> io::Result<()> {
        let text = self.styled(Style::Strong, text);
        writeln!(self.out, "{text}")
    }

    /// Prints a line unchanged.
    pub(super) fn write_line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Prints the column heads.
    pub(super) fn write_column_heads(&mut self) -> io::Result<()> {
        let head = format!(
            "{:>4}  {:<TITLE_COLUMNS$} {:>6}  {:<DIRECT_COLUMNS$}  {}",
            "turn", "what is new", "bytes", "direct (tokens)", "abridge (tokens)"
        );
        self.write_title(&head)
    }

    /// Prints the beginning of a row.
    pub(super) fn write_turn(&mut self, turn: usize, title: &str, bytes: usize) -> io::Result<()> {
        let title = shortened(title, TITLE_COLUMNS);
        write!(self.out, "{turn:>4}  {title:<TITLE_COLUMNS$} {:>6}  ", grouped(bytes))?;
        self.out.flush()
    }

    /// Prints the outcome of the direct request.
    pub(super) fn write_direct(&mut self, outcome: &Outcome) -> io::Result<()> {
        let (style, text) = match outcome {
            Outcome::Ok(said) => (Style::Good, format!("ok {:>6}", grouped(said.prompt_tokens))),
            Outcome::Rejected(refused) => (Style::Bad, refused.to_string()),
        };
        let text = self.styled(style, &format!("{text:<DIRECT_COLUMNS$}"));
        write!(self.out, "{text}  ")?;
        self.out.flush()
    }

    /// Prints the outcome of the request through abridge, and ends the row.
    pub(super) async fn write_abridged(&mut self, outcome: &Outcome, tokens: usize) -> io::Result<()> {
        let (style, text) = match outcome {
            Outcome::Ok(said) if said.edits.is_empty() => {
                (Style::Good, format!("ok {:>6}", grouped(said.prompt_tokens)))
            }
            Outcome::Ok(said) => {
                (Style::Good, format!("ok {:>6} → {:>5}", grouped(tokens), grouped(said.prompt_tokens)))
            }
            Outcome::Rejected(refused) => (Style::Bad, refused.to_string()),
        };
        let text = self.styled(style, &text);
        writeln!(self.out, "{text}")?;
        self.pause(1).await
    }

    /// Prints a note about the row before.
    pub(super) async fn write_note(&mut self, text: &str) -> io::Result<()> {
        for (n, line) in wrapped(text, LINE_COLUMNS - 8).iter().enumerate() {
            let text = self.styled(Style::Aside, &format!("      {} {line}", if n == 0 { "↳" } else { " " }));
            writeln!(self.out, "{text}")?;
        }
        self.pause(NOTE_PAUSE_ROWS).await
    }

    /// Prints a figure for each column.
    pub(super) fn write_figure(&mut self, name: &str, direct: &str, abridge: &str) -> io::Result<()> {
        writeln!(self.out, "  {name:<34}{direct:>16}{abridge:>18}")
    }

    /// Prints the totals of both columns.
    pub(super) fn write_totals(&mut self, direct: &SideTotals, abridge: &SideTotals) -> io::Result<()> {
        self.write_title(&format!("{:<34}{:>18}{:>18}", "sum", "direct", "abridge"))?;
        let of = |sum: &SideTotals| format!("{} of {}", sum.n_ok, sum.n_turns);
        self.write_figure("turns answered", &of(direct), &of(abridge))?;
        self.write_figure("largest request, tokens", &grouped(direct.largest), &grouped(abridge.largest))?;
        self.write_figure("sent upstream in all, tokens", &grouped(direct.tokens), &grouped(abridge.tokens))
    }

    /// The text in a style, if colour is on.
    fn styled(&self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Good => "32",
            Style::Bad => "31",
            Style::Aside => "2",
            Style::Strong => "1",
        };
        if self.colour == Colour::On { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    async fn pause(&self, rows: u32) -> io::Result<()> {
        if !self.row_pause.is_zero() {
            sleep(self.row_pause * rows).await;
        }
        Ok(())
    }
}

/// A text cut to `most` characters.
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
