//! No file and no variable of settings makes abridge panic; what is accepted means the same when it is read again, as it
//! was written and as `abridge check-config` prints it; and what is refused is refused in one line.
//!
//! The input is the file, and behind each byte 0 a variable as `NAME=VALUE`.

use std::cell::OnceCell;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use abridge_proxy::config::{Config, Environment, Flags, Sources, Variables};
use abridge_proxy::planner::Policy;
use tempfile::TempDir;

/// Loads settings.
pub fn run(input: &[u8]) {
    let mut sections = input.split(|byte| *byte == 0);
    let file = written(sections.next().unwrap_or_default());
    let variables = sections.filter_map(|section| std::str::from_utf8(section).ok()?.split_once('='));
    let variables: Variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let sources = Sources { file: Some(file), variables, flags: Flags::default() };
    let config = match Config::load(&sources) {
        Ok(config) => config,
        Err(problem) => return is_one_line(&problem),
    };
    assert_eq!(Config::load(&sources).ok().as_ref(), Some(&config), "what is read again says the same");
    if let Err(problem) = Environment::read(&sources.variables, &config) {
        is_one_line(&problem);
    }
    drop(Policy::new(&config.plan_settings_at("")));

    let shown = config.to_toml().expect("what was read can be written");
    let file = written(shown.as_bytes());
    let again = Config::load(&Sources { file: Some(file), ..Sources::default() });
    let again = again.unwrap_or_else(|problem| panic!("{problem:#}\n{shown}"));
    assert_eq!(again.to_toml().ok().as_ref(), Some(&shown));
    assert_eq!(again.plan_settings_at(""), config.plan_settings_at(""));
}

fn is_one_line(problem: &impl fmt::Display) {
    let text = format!("{problem:#}");
    assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
}

/// A file with these bytes, which the next call replaces.
fn written(bytes: &[u8]) -> PathBuf {
    thread_local! {
        static FOLDER: OnceCell<TempDir> = const { OnceCell::new() };
    }
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| tempfile::tempdir().expect("a folder"));
        let file = folder.path().join("proxy.toml");
        fs::write(&file, bytes).expect("a file");
        file
    })
}
