//! `abridge doctor`: looks at all that abridge depends on, and says what to do about each fault.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use tokio::runtime;

use crate::cli::{Exit, health, print};
use crate::config::{Config, Environment, Sources};
use crate::server::listen::{Address, Listener};
use crate::server::tls::Acceptor;

mod store;
pub(super) mod upstream;

/// How to print.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
struct Findings {
    checks: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    verdict: Verdict,
    about: &'static str,
    said: String,
    fix: Option<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Ok,
    /// abridge works, and not as well as it could, or not for long.
    Warn,
    /// abridge does not start, or its requests fail.
    Fault,
}

/// Looks at everything, or at the settings alone if they are wrong. `config` is what came of loading them.
pub fn run(args: &Args, sources: &Sources, config: anyhow::Result<Config>) -> anyhow::Result<Exit> {
    let mut findings = Findings::default();
    if let Some((config, environment)) = settings(&mut findings, sources, config) {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().context("no thread to look with")?;
        runtime.block_on(async {
            addresses(&mut findings, &config);
            store::look(&mut findings, &config, &environment).await;
            upstream::look(&mut findings, &config, &environment).await;
        });
        // A look-up of a name that hangs is not waited for.
        runtime.shutdown_background();
    }
    print([if args.json { serde_json::to_string_pretty(&findings)? + "\n" } else { findings.text() }])?;
    Ok(if findings.checks.iter().any(|finding| finding.verdict == Verdict::Fault) { Exit::No } else { Exit::Ok })
}

// === settings, certificates, addresses ===

fn settings(
    findings: &mut Findings,
    sources: &Sources,
    config: anyhow::Result<Config>,
) -> Option<(Config, Environment)> {
    let read = config.and_then(|config| Ok((Environment::read(&sources.variables, &config)?, config)));
    let (environment, config) = match read {
        Ok(read) => read,
        Err(error) => {
            let fix = "correct it there; it says what is allowed, and proxy.toml.example has every key";
            findings.fault("settings", format!("{error:#}"), fix);
            return None;
        }
    };
    let file =
        sources.file.as_deref().map_or_else(|| "no file; the defaults".to_owned(), |file| file.display().to_string());
    findings.ok("settings", format!("{file}, variables and flags are right"));
    if let Some(tls) = &config.tls {
        match Acceptor::new(tls) {
            Ok(_) => findings.ok("certificate", format!("{} fits its key", tls.cert.display())),
            Err(error) => {
                let said = format!("{:#}", anyhow::Error::new(error));
                findings.fault("certificate", said, "name PEM files in tls.cert and tls.key that this user may read");
            }
        }
    }
    Some((config, environment))
}

fn addresses(findings: &mut Findings, config: &Config) {
    let operators = config.admin.listen.iter().flat_map(|listen| &listen.0);
    for address in config.server.listen.0.iter().chain(operators) {
        // A socket of a file is not bound to be looked at: that would take it from a proxy that starts meanwhile.
        let bound = match address {
            Address::Unix(path) => try_folder(path),
            Address::Tcp(_) => Listener::bind(address).map(drop),
        };
        match bound {
            _ if health::answers(address, config) => {
                findings.ok("address", format!("{address}: an abridge is running there"));
            }
            Ok(()) => findings.ok("address", format!("{address} is free")),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let fix =
                    format!("stop that one, or listen elsewhere with --listen; `ss -ltnp` tells who has {address}");
                findings.fault("address", format!("{address} is taken by another program"), fix);
            }
            Err(error) => {
                let fix = match error.kind() {
                    ErrorKind::PermissionDenied => "take a port from 1024 on, or a folder that this user may write to",
                    ErrorKind::NotFound => "make the folder of the socket, or name another one",
                    _ => "listen on an address of this machine: 127.0.0.1:8787, or 0.0.0.0:8787 for all of them",
                };
                findings.fault("address", format!("{address} cannot be listened on: {error}"), fix);
            }
        }
    }
}

/// Whether a file could be made beside `path`.
fn try_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile_in(folder)
}

/// Makes a file there, writes to it, and removes it.
fn tempfile_in(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!(".abridge-doctor-{}", std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[0; 4096]).and_then(|()| file.sync_all()));
    match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => {
            // It may never have been made.
            let _removed = std::fs::remove_file(&path);
            Err(error)
        }
        Ok(()) => std::fs::remove_file(&path),
    }
}

// === impl Findings ===

impl Findings {
    fn ok(&mut self, about: &'static str, said: impl Into<String>) {
        self.checks.push(Finding { verdict: Verdict::Ok, about, said: said.into(), fix: None });
    }

    fn warn(&mut self, about: &'static str, said: impl Into<String>, fix: impl Into<String>) {
        self.checks.push(Finding { verdict: Verdict::Warn, about, said: said.into(), fix: Some(fix.into()) });
    }

    fn fault(&mut self, about: &'static str, said: impl Into<String>, fix: impl Into<String>) {
        self.checks.push(Finding { verdict: Verdict::Fault, about, said: said.into(), fix: Some(fix.into()) });
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Finding { verdict, about, said, fix } in &self.checks {
            let verdict = match verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fault => "fault",
            };
            // Into a String nothing fails.
            let _written = writeln!(text, "{verdict:<5} {about:<11} {}", one_line(said));
            if let Some(fix) = fix {
                let _written = writeln!(text, "      fix: {}", one_line(fix));
            }
        }
        text
    }
}

/// What a server or a file has said neither ends a line nor speaks to the terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
