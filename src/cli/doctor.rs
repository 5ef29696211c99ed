//! `abridge doctor`: checks everything that abridge depends on, and suggests a fix for each fault.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::Serialize;

use crate::admin::access::Exposure;
use crate::cli::{Exit, OutputArgs, health, print, runtime};
use crate::config::{Config, Environment, Sources, clients, operator_token};
use crate::platform::folder_of;
use crate::server::listen::{Address, Listener};
use crate::server::tls::Acceptor;

mod store;
pub(super) mod upstream;

/// The results of all checks.
#[derive(Debug, Default, Serialize)]
struct Findings {
    checks: Vec<Finding>,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    verdict: CheckStatus,
    about: &'static str,
    said: String,
    fix: Option<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
enum CheckStatus {
    /// The check passed.
    Ok,
    /// abridge works, but not as well as it could, or not for long.
    Warn,
    /// abridge does not start, or its requests fail.
    Fault,
}

/// Runs all checks, or only that of the settings if they are invalid. `config` is the result of loading them.
pub fn run(args: &OutputArgs, sources: &Sources, config: anyhow::Result<Config>) -> anyhow::Result<Exit> {
    let mut findings = Findings::default();
    if let Some((config, environment)) = check_settings(&mut findings, sources, config) {
        let runtime = runtime()?;
        runtime.block_on(async {
            check_addresses(&mut findings, &config);
            check_access(&mut findings, &config, &environment);
            store::check(&mut findings, &config, &environment).await;
            upstream::check(&mut findings, &config, &environment).await;
        });
        // A name look-up that hangs is not waited for.
        runtime.shutdown_background();
        for line in super::status::required_forms(sources, &config) {
            findings.ok("forms", line);
        }
    }
    print([args.render(&findings, Findings::to_text)?])?;
    Ok(if findings.checks.iter().any(|finding| finding.verdict == CheckStatus::Fault) { Exit::No } else { Exit::Ok })
}

// === settings, certificates, addresses ===

fn check_settings(
    findings: &mut Findings,
    sources: &Sources,
    config: anyhow::Result<Config>,
) -> Option<(Config, Environment)> {
    let read = config.and_then(|config| Ok((Environment::read(&sources.variables, &config)?, config)));
    let fix = "correct it there; it says what is allowed, and proxy.toml.example has every key";
    let (environment, config) = read.map_err(|error| findings.fault("settings", format!("{error:#}"), fix)).ok()?;
    let file = sources.file.as_deref().unwrap_or(Path::new("no file; the defaults"));
    findings.ok("settings", format!("{}, variables and flags are right", file.display()));
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

fn check_addresses(findings: &mut Findings, config: &Config) {
    let operators = config.admin.listen.iter().flat_map(|listen| &listen.0);
    for address in config.server.listen.0.iter().chain(operators) {
        // A Unix socket is not bound as a check: that would take it from a proxy that starts at the same time.
        let bound = match address {
            Address::Unix(path) => try_write(folder_of(path)),
            Address::Tcp(_) => Listener::bind(address).map(drop),
        };
        match bound {
            _ if health::answers(address, config) => {
                findings.ok("address", format!("{address}: an abridge is running there"));
            }
            Ok(()) => findings.ok("address", format!("{address} is free")),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let fix = format!(
                    "stop that one, or listen elsewhere with --listen; `ss -ltnp` shows the program at {address}"
                );
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

/// Who is an operator, how texts are read, and whether every client can spend abridge's key.
fn check_access(findings: &mut Findings, config: &Config, environment: &Environment) {
    let token = match (&config.admin.token_env, environment.state.as_deref()) {
        (Some(name), _) => format!("operators show the token in {name}"),
        (None, None) => {
            let fix = "set admin.token_env, or HOME";
            return findings.warn("access", "the operators' token cannot be kept: there is no state folder", fix);
        }
        (None, Some(state)) => match operator_token::read(Some(state)) {
            Ok(_) => format!("operators show the token in {}", operator_token::path(state).display()),
            Err(error) => {
                let said = format!("the operators' token: {error}");
                return findings.warn("access", said, "start abridge again after that");
            }
        },
    };
    findings.ok("access", format!("{token}; texts are read {}", config.handle_access()));
    if let Err(error) = config.known_clients() {
        findings.fault("clients", format!("{error:#}"), "correct it there");
    }
    if config.serves_strangers() && clients::add_headers(config, environment) {
        findings.fault("clients", "abridge is an open relay", clients::OPEN_RELAY);
    }
    if config.server.listen.0.iter().all(|address| address.exposure() != Exposure::Network) {
        let said = "a reverse proxy in front must pass `host` on, set `x-forwarded-for`, and refuse hosts that it does not serve; add its name to admin.hosts";
        findings.ok("proxy", said);
    }
}

/// Creates a file in the folder, writes to it, and removes it.
fn try_write(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".abridge-doctor-{}", std::process::id()));
    let file = File::create_new(&path);
    match file.and_then(|mut file| io::Write::write_all(&mut file, &[0; 4096]).and_then(|()| file.sync_all())) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        // After an error the file may not exist.
        written => {
            let removed = fs::remove_file(&path);
            written.and(removed)
        }
    }
}

// === impl Findings ===

impl Findings {
    fn ok(&mut self, about: &'static str, said: impl Into<String>) {
        self.checks.push(Finding { verdict: CheckStatus::Ok, about, said: said.into(), fix: None });
    }

    fn warn(&mut self, about: &'static str, said: impl Into<String>, fix: impl Into<String>) {
        self.checks.push(Finding { verdict: CheckStatus::Warn, about, said: said.into(), fix: Some(fix.into()) });
    }

    fn fault(&mut self, about: &'static str, said: impl Into<String>, fix: impl Into<String>) {
        self.checks.push(Finding { verdict: CheckStatus::Fault, about, said: said.into(), fix: Some(fix.into()) });
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for Finding { verdict, about, said, fix } in &self.checks {
            // Writing into a String never fails.
            let _written = writeln!(text, "{verdict:<5} {about:<11} {}", one_line(said));
            if let Some(fix) = fix {
                let _written = writeln!(text, "      fix: {}", one_line(fix));
            }
        }
        text
    }
}

/// Replaces control characters, so that text from a server or a file neither ends a line nor controls the terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
