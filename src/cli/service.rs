//! `abridge service`: has the system start abridge when this user logs in.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use anyhow::{Context, anyhow, bail};

use crate::cli::{Exit, print, print_error};
use crate::config::{Config, Environment, MissingError, Sources};
use crate::upstream::target::BaseUrl;

mod manager;

use manager::Manager;

/// The commands of `service`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Write the definition of the service, and start it; --config, --upstream and the other settings given here are its own
    Install {
        /// Print the definition, and write nothing
        #[arg(long)]
        print: bool,
        /// The manager of services [default: that of this system]
        #[arg(long, value_name = "NAME", requires = "print")]
        manager: Option<Manager>,
    },
    /// Stop the service, and remove its definition
    Uninstall,
    /// Print the state of the service; exit code 0 if it runs
    Status,
}

/// The upstreams of a service that is given none: those of the clients of `abridge setup`.
const UPSTREAMS: [&str; 2] = ["anthropic=https://api.anthropic.com", "chatgpt=https://chatgpt.com/backend-api/codex"];

/// Runs the command.
pub fn run(command: &Command, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let given = if let Command::Install { manager, .. } = command { *manager } else { None };
    let manager =
        given.or_else(Manager::of_system).context("this system has no manager of services that abridge knows")?;
    if let Command::Install { print: true, .. } = command {
        print([manager.definition(&serve_command(sources, config)?)])?;
        return Ok(Exit::Ok);
    }
    let path = definition_path(manager, sources, config)?;
    match command {
        Command::Install { .. } => install(manager, &path, &serve_command(sources, config)?),
        Command::Uninstall => uninstall(manager, &path),
        Command::Status => status(manager, &path),
    }
}

fn install(manager: Manager, path: &Path, command: &[String]) -> anyhow::Result<Exit> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = folder.and_then(|()| fs::write(path, manager.definition(command)));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    print([format!("written: {}\n", path.display())])?;
    if let Err(error) = manager.start(path).iter().try_for_each(|command| execute(command)) {
        print_error(&error.context("the service is not started; abridge service uninstall removes its definition"));
        return Ok(Exit::Unavailable);
    }
    print(["started, now and at each login; abridge service status shows its state\n"])?;
    Ok(Exit::Ok)
}

fn uninstall(manager: Manager, path: &Path) -> anyhow::Result<Exit> {
    if !path.exists() {
        print([format!("there is no service: {} does not exist\n", path.display())])?;
        return Ok(Exit::Ok);
    }
    for command in manager.stop(path) {
        // A service that does not run, or that nobody manages here, is removed all the same.
        if let Err(error) = execute(&command) {
            print_error(&error);
        }
    }
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    print([format!("removed: {}\n", path.display())])?;
    Ok(Exit::Ok)
}

fn status(manager: Manager, path: &Path) -> anyhow::Result<Exit> {
    if !path.exists() {
        print([format!("there is no service: {} does not exist; abridge service install makes it\n", path.display())])?;
        return Ok(Exit::No);
    }
    let command = manager.status();
    let status = started(&command)?;
    Ok(if status.success() { Exit::Ok } else { Exit::No })
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
    let names_none =
        flags.upstream.is_empty() && config.upstreams.is_empty() && config.upstream.url == BaseUrl::default();
    let upstreams = if names_none { UPSTREAMS.map(str::to_owned).to_vec() } else { flags.upstream.clone() };
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

fn definition_path(manager: Manager, sources: &Sources, config: &Config) -> anyhow::Result<PathBuf> {
    let variables = &sources.variables;
    let home = variables.home()?.ok_or(MissingError::Home)?;
    let folder =
        variables.first_set(&["XDG_CONFIG_HOME"])?.map_or_else(|| home.join(".config"), |(_, path)| path.into());
    let state = Environment::read(variables, config)?.state.unwrap_or_else(|| home.clone());
    Ok(manager.path(&home, &folder, &state))
}

// === commands of the manager ===

fn execute(command: &[String]) -> anyhow::Result<()> {
    let status = started(command)?;
    if !status.success() {
        bail!("{} ended with {status}", command.join(" "));
    }
    Ok(())
}

fn started(command: &[String]) -> anyhow::Result<std::process::ExitStatus> {
    let (program, arguments) = command.split_first().context("no command")?;
    Process::new(program).args(arguments).status().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            anyhow!(error).context(format!("{program} is not there; is this service manager in use here?"))
        }
        _ => anyhow!(error).context(format!("cannot run {program}")),
    })
}
