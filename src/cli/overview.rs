//! The lines before the start of `abridge` alone on a terminal: clients, keys and sessions of this user, and the next command.

use std::fmt::Write as _;

use super::setup;
use crate::config::Variables;
use crate::simulate::sessions;

/// Variables with keys for models. Only their names are shown.
const KEYS: [&str; 4] = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENROUTER_API_KEY"];

/// Lines for people about clients, keys and sessions of this user.
pub fn overview(variables: &Variables) -> String {
    let mut lines = String::new();
    let mut line = |label: &str, found: &[String]| {
        if !found.is_empty() {
            // Writing to a string does not fail.
            let _ = writeln!(lines, "{label:>10}  {}", found.join(", "));
        }
    };
    let clients = setup::names_of_found(variables);
    line("clients", &clients);
    let is_set = |name: &&&str| variables.first_set(&[name]).is_ok_and(|set| set.is_some());
    line("keys", &KEYS.iter().filter(is_set).map(ToString::to_string).collect::<Vec<_>>());
    let home = variables.home().ok().flatten();
    let sessions = sessions::places(home.as_deref(), |name| variables.path(name));
    line("sessions", &sessions.iter().map(|place| place.display().to_string()).collect::<Vec<_>>());
    let next = match (clients.is_empty(), sessions.is_empty()) {
        (false, _) => {
            "abridge setup --all     # in another terminal: points these clients here, after a diff; --undo takes it back"
        }
        (true, false) => "abridge simulate     # in another terminal: what these sessions cost, and would have cost",
        (true, true) => "abridge demo     # in another terminal: a session with and without abridge, without a key",
    };
    line("next", &[next.to_owned()]);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_what_is_there_and_no_key() {
        let home = tempfile::tempdir().unwrap();
        let said = |variables: &[(&str, &str)]| {
            let home = ("HOME", home.path().to_str().unwrap());
            overview(&variables.iter().copied().chain([home]).collect())
        };
        assert!(said(&[]).starts_with("      next  abridge demo ") && said(&[]).lines().count() == 1);
        std::fs::create_dir_all(home.path().join(".pi/agent/sessions")).unwrap();
        assert!(said(&[]).contains("      next  abridge simulate "));
        std::fs::create_dir_all(home.path().join(".codex")).unwrap();
        let all = said(&[("OPENAI_API_KEY", "sk-secret")]);
        assert!(
            all.contains("   clients  codex\n      keys  OPENAI_API_KEY\n") && all.contains("abridge setup --all"),
            "{all}"
        );
        assert!(!all.contains("sk-secret"));
    }
}
