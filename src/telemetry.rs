//! Logging to standard error, as text for people or as JSON for collectors.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::{Layer, Layered, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Registry, reload};

/// `[log]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The form of a log line. A change needs a restart.
    pub format: Format,
    /// The least severe level that is logged.
    pub level: Level,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One readable line for each event.
    #[default]
    Text,
    /// One JSON object on one line for each event; the sentence is in `message`.
    Json,
}

/// How grave an event must be to be logged.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Failures.
    Error,
    /// Also what was left undone.
    Warn,
    /// Also one line for each edited request.
    #[default]
    Info,
    /// Also one line for every other request.
    Debug,
    /// Everything that abridge itself logs.
    Trace,
}

/// Changes the log level of the running process.
#[derive(Clone, Debug)]
pub struct LevelHandle(reload::Handle<Targets, Registry>);

/// Installs the log subscriber of the whole process, which writes to standard error or to a file. `colour` says whether lines of
/// text are coloured.
pub fn init<W>(settings: &Settings, colour: bool, to: W) -> Result<LevelHandle, TryInitError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (level, handle) = reload::Layer::new(filter(settings.level));
    tracing_subscriber::registry().with(level).with(lines(settings.format, colour, to)).try_init()?;
    Ok(LevelHandle(handle))
}

impl LevelHandle {
    /// Sets the least severe level that is logged from now on.
    pub fn set(&self, level: Level) {
        // The subscriber is gone only while the process ends.
        let _ = self.0.reload(filter(level));
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

/// Logs abridge's own events from `level` on, and of libraries only warnings: their traces contain frames and headers,
/// keys among them.
fn filter(level: Level) -> Targets {
    let level = LevelFilter::from(level);
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target(env!("CARGO_CRATE_NAME"), level)
        // It warns with messages of clients.
        .with_target("rmcp", LevelFilter::OFF)
}

type Leveled = Layered<reload::Layer<Targets, Registry>, Registry>;

fn lines<W>(format: Format, colour: bool, to: W) -> Box<dyn Layer<Leveled> + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(to).with_target(false);
    match format {
        Format::Text => lines.with_ansi(colour).fmt_fields(debug_fn(field).delimited(" ")).boxed(),
        Format::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
    }
}

/// Writes one field as text. Fields contain what clients and upstreams send, so control characters are escaped: none
/// may end a line or reach the terminal.
fn field(to: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    if field.name() != "message" {
        to.write_str(field.name())?;
        to.write_char('=')?;
    }
    write!(Escaped(to), "{value:?}")
}

/// Writes control characters as their escapes.
pub(crate) struct Escaped<'a, W>(pub(crate) &'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Most texts have no control characters. In UTF-8, those that are not ASCII begin with c2.
        if text.bytes().all(|byte| matches!(byte, b' '..=b'~' | 0x80..=0xc1 | 0xc3..)) {
            return self.0.write_str(text);
        }
        text.chars().try_for_each(|c| {
            if c.is_control() { write!(self.0, "{}", c.escape_default()) } else { self.0.write_char(c) }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    /// Returns what is logged while `log` runs, as `format` writes it.
    fn logged(format: Format, colour: bool, log: impl FnOnce(&LevelHandle)) -> String {
        let bytes = Sink::default();
        let (level, handle) = reload::Layer::new(filter(Level::Info));
        let to = bytes.clone();
        let subscriber = tracing_subscriber::registry().with(level).with(lines(format, colour, move || to.clone()));
        tracing::subscriber::with_default(subscriber, || log(&LevelHandle(handle)));
        let bytes = bytes.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[derive(Clone, Default)]
    #[expect(clippy::disallowed_types, reason = "no await in these tests")]
    struct Sink(Arc<std::sync::Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn control_characters_in_fields_are_escaped() {
        let evil = "a\nb\r\x1b[31m\u{9b}c";
        for format in [Format::Text, Format::Json] {
            let text = logged(format, false, |_| {
                tracing::info!(model = %evil, raw = evil, debug = ?evil, "asked for {evil}");
            });
            assert!(text.ends_with('\n'), "{text:?}");
            let line = text.trim_end_matches('\n');
            assert!(!line.contains(['\n', '\r', '\x1b']), "{line:?}");
        }
    }

    #[test]
    fn text_has_fields_as_key_value_pairs() {
        let text = logged(Format::Text, false, |_| {
            tracing::info!(model = %"gpt", bytes_in = 12, "edited");
            tracing::debug!("not asked for");
        });
        assert!(text.ends_with(" INFO edited model=gpt bytes_in=12\n"), "{text:?}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn json_has_fields_at_the_top_level() {
        let text = logged(Format::Json, true, |_| tracing::info!(bytes_in = 12, "edited"));
        let event: toml::Table = serde_json::from_str(&text).unwrap();
        assert_eq!((event["level"].as_str(), event["message"].as_str()), (Some("INFO"), Some("edited")));
        assert_eq!(event["bytes_in"].as_integer(), Some(12));
    }

    #[test]
    fn libraries_are_logged_from_warnings_on() {
        let text = logged(Format::Text, false, |level| {
            level.set(Level::Trace);
            tracing::trace!("ours");
            tracing::info!(target: "h2::codec", "a header");
            tracing::warn!(target: "rustls", "a warning");
        });
        assert!(text.contains("ours") && text.contains("a warning") && !text.contains("a header"), "{text}");
    }

    #[test]
    fn the_level_can_change_while_abridge_runs() {
        let text = logged(Format::Text, false, |level| {
            let log = |n| tracing::debug!(n, "seen");
            log(1);
            level.set(Level::Debug);
            log(2);
            level.set(Level::Error);
            log(3);
        });
        assert!(text.contains("n=2") && text.lines().count() == 1, "{text}");
    }
}
