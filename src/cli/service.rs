//! `abridge service`: has systemd start abridge when this user logs in.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitStatus};

use anyhow::{Context, anyhow, ensure};

use crate::cli::setup::clients::names_upstreams;
use crate::cli::{ANTHROPIC, CHATGPT, Exit, print, print_error};
use crate::config::{Config, MissingError, Sources};

/// The commands of `service`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Write the unit, and start it; --config, --upstream and the other settings given here are its own
    Install {
        /// Print the unit, and write nothing
        #[arg(long)]
        print: bool,
    },
    /// Stop the service, and remove its unit
    Uninstall,
    /// Print the state of the service; exit code 0 if it runs
    Status,
}

/// The name of the unit.
const UNIT: &str = "abridge.service";

/// Runs the command.
pub fn run(command: &Command, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    if let Command::Install { print: true } = command {
        return print([unit(&serve_command(sources, config)?)]);
    }
    ensure!(
        std::env::consts::OS == "linux",
        "abridge service is for systemd; have the manager of services of this system run abridge serve"
    );
    let path = unit_path(sources)?;
    match command {
        Command::Install { .. } => install(&path, &serve_command(sources, config)?),
        Command::Uninstall => uninstall(&path),
        Command::Status => {
            let status = systemctl(&["--no-pager", "status", UNIT])?;
            Ok(if status.success() { Exit::Ok } else { Exit::No })
        }
    }
}

fn install(path: &Path, command: &[String]) -> anyhow::Result<Exit> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = folder.and_then(|()| fs::write(path, unit(command)));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    print([format!("written: {}\n", path.display())])?;
    let mut commands = [&["daemon-reload"][..], &["enable", UNIT], &["restart", UNIT]].into_iter();
    if let Err(error) = commands.try_for_each(execute) {
        print_error(&error.context("the service is not started; abridge service uninstall removes its definition"));
        return Ok(Exit::Unavailable);
    }
    print(["started, now and at each login; abridge service status shows its state\n"])
}

fn uninstall(path: &Path) -> anyhow::Result<Exit> {
    if !path.exists() {
        return print([format!("there is no service: {} does not exist\n", path.display())]);
    }
    // A service that is not running, or not managed here, is removed all the same.
    if let Err(error) = execute(&["disable", "--now", UNIT]) {
        print_error(&error);
    }
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    print([format!("removed: {}\n", path.display())])
}

// === the command of the service ===

/// The command line of the service: `serve` with the settings that were given, and paths that do not depend on a folder.
fn serve_command(sources: &Sources, config: &Config) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = vec![text(program)?, "serve".to_owned()];
    if let Some(file) = &sources.file {
        let file = std::path::absolute(file).with_context(|| format!("cannot find {}", file.display()))?;
        command.extend(["--config".to_owned(), text(file)?]);
    }
    let flags = &sources.flags;
    // A service that is given none has those of the clients of `abridge setup`.
    let upstreams = if flags.upstream.is_empty() && !names_upstreams(config) {
        vec![format!("anthropic={ANTHROPIC}"), format!("chatgpt={CHATGPT}")]
    } else {
        flags.upstream.clone()
    };
    let given = flags.listen.iter().map(|address| ("--listen", address));
    for (flag, value) in given.chain(upstreams.iter().map(|url| ("--upstream", url))) {
        command.extend([flag.to_owned(), value.clone()]);
    }
    command.extend(flags.log_format.iter().flat_map(|format| ["--log-format".to_owned(), format.clone()]));
    command.extend(flags.dry_run.then(|| "--dry-run".to_owned()));
    Ok(command)
}

fn text(path: PathBuf) -> anyhow::Result<String> {
    path.into_os_string().into_string().map_err(|path| anyhow!("the path {} is not UTF-8", path.display()))
}

fn unit_path(sources: &Sources) -> anyhow::Result<PathBuf> {
    let folder = sources.variables.folder("XDG_CONFIG_HOME", ".config")?.ok_or(MissingError::Home)?;
    Ok(folder.join("systemd/user").join(UNIT))
}

/// The unit of a service that runs this command.
fn unit(command: &[String]) -> String {
    let words = command.iter().map(|word| {
        // In a quoted word of `ExecStart`, `%` and `$` are doubled.
        let word = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
        format!("\"{word}\"")
    });
    include_str!("service/abridge.service").replace("{command}", &words.collect::<Vec<_>>().join(" "))
}

// === commands of systemd ===

fn execute(arguments: &[&str]) -> anyhow::Result<()> {
    let status = systemctl(arguments)?;
    ensure!(status.success(), "systemctl --user {} ended with {status}", arguments.join(" "));
    Ok(())
}

fn systemctl(arguments: &[&str]) -> anyhow::Result<ExitStatus> {
    Process::new("systemctl").arg("--user").args(arguments).status().map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!(error).context("systemctl is not there; is systemd in use here?"),
        _ => anyhow!(error).context("cannot run systemctl"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_systemd_reads_them() {
        let command = ["/opt/a b/abridge", "serve", "--upstream", "https://h/v1?a=1&b=%20$x"].map(str::to_owned);
        let unit = unit(&command);
        let expected = "ExecStart=\"/opt/a b/abridge\" \"serve\" \"--upstream\" \"https://h/v1?a=1&b=%%20$$x\"\n";
        assert!(unit.contains(expected), "{unit}");
        assert!(!unit.contains("{command}"), "{unit}");
    }
}
