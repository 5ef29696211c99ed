//! Prints the demo's table while the session runs: 80 columns, plain or in colour.

use std::io::{self, Stdout, Write};
use std::thread;
use std::time::Duration;

use crate::telemetry::Colour;
use crate::units::grouped;

/// The writer of the table.
#[derive(Debug)]
pub(super) struct Output {
    out: Stdout,
    colour: Colour,
    row_pause: Duration,
}

/// The style of a piece of text, as terminals number it.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Style {
    Plain = 0,
    Strong = 1,
    Aside = 2,
    Bad = 31,
    Good = 32,
}

/// The heads of the columns.
pub(super) const HEADS: &str = "turn  what is new          bytes  direct (tokens)              abridge (tokens)";

/// The widths of the columns, in characters.
const TITLE_COLUMNS: usize = 19;
const DIRECT_COLUMNS: usize = 27;

/// The longest line, in characters.
const LINE_COLUMNS: usize = 80;

/// The pause after a note, in row pauses.
const NOTE_PAUSE_ROWS: u32 = 8;

impl Output {
    /// `row_pause` is the pause after each row.
    pub(super) fn new(colour: Colour, row_pause: Duration) -> Self {
        Self { out: io::stdout(), colour, row_pause }
    }

    /// Prints lines in a style.
    pub(super) fn print(&mut self, style: Style, text: &str) -> io::Result<()> {
        let text = self.styled(style, text);
        writeln!(self.out, "{text}")
    }

    /// Prints a row: the turn, and the two outcomes.
    pub(super) fn row(
        &mut self,
        (turn, title, bytes): (usize, &str, usize),
        [direct, abridge]: [(Style, String); 2],
    ) -> io::Result<()> {
        let direct = self.styled(direct.0, &format!("{:<DIRECT_COLUMNS$}", direct.1));
        let abridge = self.styled(abridge.0, &abridge.1);
        let (title, bytes) = (shortened(title, TITLE_COLUMNS), grouped(bytes));
        writeln!(self.out, "{turn:>4}  {title:<TITLE_COLUMNS$} {bytes:>6}  {direct}  {abridge}")?;
        thread::sleep(self.row_pause);
        Ok(())
    }

    /// Prints a note about the row before.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        let mut sign = '↳';
        for line in wrapped(text, LINE_COLUMNS - 8) {
            self.print(Style::Aside, &format!("      {sign} {line}"))?;
            sign = ' ';
        }
        thread::sleep(self.row_pause * NOTE_PAUSE_ROWS);
        Ok(())
    }

    /// Prints a figure for each column.
    pub(super) fn figure(&mut self, name: &str, direct: &str, abridge: &str) -> io::Result<()> {
        writeln!(self.out, "  {name:<34}{direct:>16}{abridge:>18}")
    }

    /// The text in a style, if colour is on.
    fn styled(&self, style: Style, text: &str) -> String {
        match style as u8 {
            code @ 1.. if self.colour == Colour::On => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
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
            Some(line) => line.extend([" ", word]),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
