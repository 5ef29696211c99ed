//! Log lines: text for people, JSON for collectors, on standard error.

use std::fmt::{self, Write};
use std::io;

use serde::{Deserialize, Serialize};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Registry, reload};

/// `[log]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The form of a line.
    pub format: Format,
    /// The least level that is logged.
    pub level: Level,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One readable line an event.
    #[default]
    Text,
    /// One JSON object an event.
    Json,
}

/// How grave an event must be to be logged.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Only what broke.
    Error,
    /// What broke or was left undone.
    Warn,
    /// Also one line an edited request.
    #[default]
    Info,
    /// Also one line for every other request.
    Debug,
    /// Everything.
    Trace,
}

/// Whether lines of text may be coloured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Colour {
    /// Standard error is a terminal, and nobody asked for none.
    On,
    /// Standard error is a file or a collector.
    Off,
}

/// Changes the level while abridge runs.
#[derive(Clone, Debug)]
pub struct LevelHandle(reload::Handle<LevelFilter, Registry>);

/// Sends the log lines of the whole process to standard error, from now on.
pub fn init(settings: &Settings, colour: Colour) -> Result<LevelHandle, TryInitError> {
    let (level, handle) = level(settings.level);
    tracing_subscriber::registry().with(level).with(lines(settings.format, colour, io::stderr)).try_init()?;
    Ok(LevelHandle(handle))
}

impl LevelHandle {
    /// The least level that is logged from now on.
    pub fn set(&self, level: Level) {
        // The handle outlives its subscriber only while the process ends.
        let _ = self.0.reload(LevelFilter::from(level));
    }
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

type LevelLayer = reload::Layer<LevelFilter, Registry>;

fn level(level: Level) -> (LevelLayer, reload::Handle<LevelFilter, Registry>) {
    reload::Layer::new(LevelFilter::from(level))
}

type Leveled = tracing_subscriber::layer::Layered<LevelLayer, Registry>;

fn lines<W>(format: Format, colour: Colour, to: W) -> Box<dyn Layer<Leveled> + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(to).with_target(false);
    match format {
        Format::Text => lines.with_ansi(colour == Colour::On).fmt_fields(debug_fn(field).delimited(" ")).boxed(),
        Format::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
    }
}

/// One field as text. What clients and upstreams send gets into fields, so none may end a line or speak to the terminal.
fn field(to: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(to, "{}=", field.name())?;
    }
    write!(Escaped(to), "{value:?}")
}

/// Writes control characters as their escapes.
struct Escaped<'a, 'w>(&'a mut Writer<'w>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| {
            if c.is_control() { write!(self.0, "{}", c.escape_default()) } else { self.0.write_char(c) }
        })
    }
}
