//! The programs that start services for one user: where they want a definition, what stands in it, and their commands.

use std::path::{Path, PathBuf};

/// A manager of services.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Manager {
    /// A user unit of systemd.
    Systemd,
    /// An agent of launchd, on macOS.
    Launchd,
    /// A task of Windows.
    Task,
}

/// Commands of a manager, each with its arguments.
pub(super) type Commands = Vec<Vec<String>>;

impl Manager {
    /// The manager of this system.
    pub(super) fn of_system() -> Option<Self> {
        match std::env::consts::OS {
            "linux" => Some(Self::Systemd),
            "macos" => Some(Self::Launchd),
            "windows" => Some(Self::Task),
            _ => None,
        }
    }

    /// The file with the definition.
    pub(super) fn path(self, home: &Path, config: &Path, state: &Path) -> PathBuf {
        match self {
            Self::Systemd => config.join("systemd/user/abridge.service"),
            Self::Launchd => home.join("Library/LaunchAgents/abridge.plist"),
            Self::Task => state.join("abridge").join("service.xml"),
        }
    }

    /// The definition of a service that runs this command.
    pub(super) fn definition(self, command: &[String]) -> String {
        let (template, command) = match self {
            Self::Systemd => (include_str!("abridge.service"), joined(command, systemd_word)),
            Self::Launchd => {
                let words = command.iter().map(|word| format!("    <string>{}</string>", xml(word)));
                (include_str!("abridge.plist"), words.collect::<Vec<_>>().join("\n"))
            }
            Self::Task => {
                let (program, arguments) = command.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
                let arguments = xml(&joined(arguments, windows_word));
                let lines =
                    format!("      <Command>{}</Command>\n      <Arguments>{arguments}</Arguments>", xml(program));
                (include_str!("abridge.xml"), lines)
            }
        };
        template.replace("{command}", &command)
    }

    /// The commands that start the service of a definition, now and after each login.
    pub(super) fn start(self, path: &Path) -> Commands {
        let path = path.display().to_string();
        match self {
            Self::Systemd => commands(&[
                &["systemctl", "--user", "daemon-reload"],
                &["systemctl", "--user", "enable", "abridge.service"],
                &["systemctl", "--user", "restart", "abridge.service"],
            ]),
            Self::Launchd => commands(&[&["launchctl", "load", "-w", &path]]),
            Self::Task => commands(&[
                &["schtasks", "/Create", "/F", "/TN", "abridge", "/XML", &path],
                &["schtasks", "/Run", "/TN", "abridge"],
            ]),
        }
    }

    /// The commands that stop it for good, before the definition is removed.
    pub(super) fn stop(self, path: &Path) -> Commands {
        let path = path.display().to_string();
        match self {
            Self::Systemd => commands(&[&["systemctl", "--user", "disable", "--now", "abridge.service"]]),
            Self::Launchd => commands(&[&["launchctl", "unload", "-w", &path]]),
            Self::Task => {
                commands(&[&["schtasks", "/End", "/TN", "abridge"], &["schtasks", "/Delete", "/F", "/TN", "abridge"]])
            }
        }
    }

    /// The command that prints its state.
    pub(super) fn status(self) -> Vec<String> {
        let command: &[&str] = match self {
            Self::Systemd => &["systemctl", "--user", "--no-pager", "status", "abridge.service"],
            Self::Launchd => &["launchctl", "list", "abridge"],
            Self::Task => &["schtasks", "/Query", "/TN", "abridge"],
        };
        command.iter().map(ToString::to_string).collect()
    }
}

fn commands(commands: &[&[&str]]) -> Commands {
    commands.iter().map(|command| command.iter().map(ToString::to_string).collect()).collect()
}

// === how each writes a word ===

fn joined(words: &[String], write: fn(&str) -> String) -> String {
    words.iter().map(|word| write(word)).collect::<Vec<_>>().join(" ")
}

/// A quoted word of `ExecStart`, in which `%` and `$` stand for themselves.
fn systemd_word(word: &str) -> String {
    let word = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    format!("\"{word}\"")
}

/// A quoted word of a command line of Windows. No path has a quotation mark there.
fn windows_word(word: &str) -> String {
    format!("\"{}\"", word.trim_end_matches('\\'))
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Vec<String> {
        ["/opt/a b/abridge", "serve", "--upstream", "https://h/v1?a=1&b=%20$x"].map(str::to_owned).to_vec()
    }

    #[test]
    fn words_are_written_as_each_manager_reads_them() {
        let unit = Manager::Systemd.definition(&command());
        let expected = "ExecStart=\"/opt/a b/abridge\" \"serve\" \"--upstream\" \"https://h/v1?a=1&b=%%20$$x\"\n";
        assert!(unit.contains(expected), "{unit}");
        let agent = Manager::Launchd.definition(&command());
        let expected = "  <array>\n    <string>/opt/a b/abridge</string>\n    <string>serve</string>\n    \
                        <string>--upstream</string>\n    <string>https://h/v1?a=1&amp;b=%20$x</string>\n  </array>\n";
        assert!(agent.contains(expected), "{agent}");
        let task = Manager::Task.definition(&command());
        let expected = "      <Command>/opt/a b/abridge</Command>\n      \
                        <Arguments>\"serve\" \"--upstream\" \"https://h/v1?a=1&amp;b=%20$x\"</Arguments>\n";
        assert!(task.contains(expected), "{task}");
        for text in [unit, agent, task] {
            assert!(!text.contains("{command}"), "{text}");
        }
    }
}
