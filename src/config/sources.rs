//! The places that settings are read from, and how each becomes one layer of them.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::problem::{Place, Wrong};
use super::tree::{Entry, Node, Value};
use super::{Config, Problem, Variables};

/// The file that is read where no other is named.
const DEFAULT_FILE: &str = "proxy.toml";

/// The longest file of settings that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// How the name of an environment variable begins that is a setting.
const PREFIX: &str = "ABRIDGE__";

/// Where the settings come from; they can be read again and again.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file; if none is named, `proxy.toml` of the working directory, which may be absent.
    pub file: Option<PathBuf>,
    /// The environment as it was when the process began.
    pub variables: Variables,
    /// What the command line says.
    pub flags: Flags,
}

/// The settings that have a flag, as they were written.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--listen`, as often as given.
    pub listen: Vec<String>,
    /// `--upstream`.
    pub upstream: Option<String>,
    /// `--log-format`.
    pub log_format: Option<String>,
    /// `--dry-run`.
    pub dry_run: bool,
}

// === impl Sources ===

impl Sources {
    /// The sources of this process. A `proxy.toml` that is there now must also be there when they are read again: its
    /// vanishing is an error then, and no return to the defaults.
    pub fn of_process(file: Option<PathBuf>, flags: Flags) -> Self {
        let found = || Path::new(DEFAULT_FILE).try_exists().unwrap_or(true).then(|| DEFAULT_FILE.into());
        Self { file: file.or_else(found), variables: Variables::of_process(), flags }
    }

    /// All layers, each checked by itself, laid on each other.
    pub(super) fn read(&self) -> Result<Node, Problem> {
        let mut written = self.file_layer()?;
        Config::of(&written)?;
        written.lay(self.variable_layer()?);
        written.lay(self.flags.layer()?);
        Ok(written)
    }

    fn file_layer(&self) -> Result<Node, Problem> {
        let path = self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        let wrong =
            |message: String| Problem::new(Place::WholeFile(path.display().to_string().into()), Wrong::Other(message));
        let text = match read_text(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound && self.file.is_none() => return Ok(Node::empty()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(wrong(format!(
                    "not found; name a file that is there with --config, or none to read {DEFAULT_FILE} of the working directory"
                )));
            }
            Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
        };
        let mut layer = Node::from_file(path, &text)?;
        fold_header_names(&mut layer)?;
        Ok(layer)
    }

    fn variable_layer(&self) -> Result<Node, Problem> {
        let mut layer = Node::empty();
        for name in self.variables.names().filter(|name| name.starts_with(PREFIX)) {
            let place = Place::Variable(name.into());
            let text = self.variables.text(name)?.unwrap_or_default();
            let mut node = variable(&place, name.trim_start_matches(PREFIX), text)?;
            fold_header_names(&mut node)?;
            layer.join(node);
        }
        Ok(layer)
    }
}

// === impl Flags ===

impl Flags {
    fn layer(&self) -> Result<Node, Problem> {
        let text = |flag, text: &str| Node { place: Place::Flag(flag), value: Value::Text(text.to_owned()) };
        let mut given = Vec::new();
        if !self.listen.is_empty() {
            let list = self.listen.iter().map(|address| text("--listen", address)).collect();
            given.push((
                ["server", "listen"].as_slice(),
                Node { place: Place::Flag("--listen"), value: Value::List(list) },
            ));
        }
        if let Some(url) = &self.upstream {
            given.push((&["upstream", "url"], text("--upstream", url)));
        }
        if let Some(format) = &self.log_format {
            given.push((&["log", "format"], text("--log-format", format)));
        }
        if self.dry_run {
            given.push((&["dry_run"], Node { place: Place::Flag("--dry-run"), value: Value::Boolean(true) }));
        }
        let mut layer = Node::empty();
        for (path, node) in given {
            let path: Vec<String> = path.iter().map(|&key| key.to_owned()).collect();
            layer.lay(node.nested_in(&path));
        }
        Config::of(&layer)?;
        Ok(layer)
    }
}

// === helpers ===

/// A text that is not longer than settings may be.
pub(super) fn read_text(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::other("it is longer than 1MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line =
            error.as_bytes().iter().take(error.utf8_error().valid_up_to()).filter(|byte| **byte == b'\n').count() + 1;
        std::io::Error::other(format!("line {line} is not UTF-8"))
    })
}

/// A variable's value is read as TOML if that gives what the key takes, else as the text it is: so `1` is a number, and
/// neither `127.0.0.1:8787` nor `1.1` needs quotes inside quotes.
fn variable(place: &Place, name: &str, text: &str) -> Result<Node, Problem> {
    let path: Vec<String> = name.split("__").map(str::to_lowercase).collect();
    let as_text = Node { place: place.clone(), value: Value::Text(text.to_owned()) }.nested_in(&path);
    let as_toml = match Node::from_text(place, text) {
        Ok(node) => node.nested_in(&path),
        // What begins like a list or a table was meant as one, and may hold secrets: it is not taken for a text.
        Err(problem) if text.trim_start().starts_with(['{', '[']) => return Err(problem),
        Err(_) => as_text.clone(),
    };
    let Err(problem) = Config::of(&as_toml) else { return Ok(as_toml) };
    match Config::of(&as_text) {
        Ok(_) => Ok(as_text),
        Err(of_text) if of_text.is_of_type() => Err(problem),
        Err(of_text) => Err(of_text),
    }
}

/// Gives the names of headers one spelling, so that a later layer replaces what an earlier one set.
fn fold_header_names(layer: &mut Node) -> Result<(), Problem> {
    let Some(headers) = layer.table_mut(&["upstream", "headers"]) else { return Ok(()) };
    let mut folded = std::collections::BTreeMap::<String, Entry>::new();
    for (name, entry) in std::mem::take(headers) {
        let place = entry.key.clone();
        if folded.insert(name.to_ascii_lowercase(), entry).is_some() {
            let message = format!("the header {name:?} is given twice; the case of its letters makes no difference");
            return Err(Problem::new(place, Wrong::Other(message)));
        }
    }
    *headers = folded;
    Ok(())
}
