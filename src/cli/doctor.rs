//! `abridge doctor`: checks everything that abridge depends on, and suggests a fix for each fault.

use std::fmt::{Display, Write as _};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;

use crate::admin::access::Exposure;
use crate::cli::{Exit, OutputArgs, escape, health, print, runtime};
use crate::config::clients::{self, Client};
use crate::config::{Config, Environment, MissingError, Sources, operator_token};
use crate::payload::{Keys, Lifetime, Payload};
use crate::platform::{files, folder_of, since_1970};
use crate::roots;
use crate::server::listen::{Address, Listener};
use crate::server::tls::Acceptor;
use crate::store::engine::{self, Options};
use crate::store::redb::aside_of;
use crate::store::{Clock, OpenError, RedbStore, Stats, Store, StoreEngine};
use crate::units::ByteSize;
use crate::upstream::Upstream;
use crate::upstream::probe::Probe;

/// The results of all checks.
#[derive(Debug, Default, Serialize)]
struct Findings {
    checks: Vec<Finding>,
    /// What each check begins with: the name of an upstream, if there are several.
    #[serde(skip)]
    prefix: String,
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

/// The timeout of each step.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest difference of clocks that is not worth a word.
const CLOCK_TOLERANCE: Duration = Duration::from_mins(1);

/// With less free space, in bytes, a busy hour may fill the disk. A full disk is a fault of the store.
const LOW_SPACE: u64 = 1 << 30;

/// The text that is written as a check. It is swept like any unused payload.
const PROBE_TEXT: &str = "abridge doctor has looked whether this can be stored";

/// Runs all checks, or only that of the settings if they are invalid. `config` is the result of loading them.
pub fn run(args: &OutputArgs, sources: &Sources, config: anyhow::Result<Config>) -> anyhow::Result<Exit> {
    let mut findings = Findings::default();
    match config.and_then(|config| Ok((Environment::read(&sources.variables, &config)?, config))) {
        Ok((environment, config)) => {
            check_settings(&mut findings, sources, &config);
            let runtime = runtime()?;
            runtime.block_on(async {
                check_addresses(&mut findings, &config).await;
                check_access(&mut findings, &config, &environment);
                check_store(&mut findings, &config, &environment).await;
                check_upstreams(&mut findings, &config, &environment).await;
            });
            // A name look-up that hangs is not waited for.
            runtime.shutdown_background();
            for line in super::status::required_forms(sources, &config) {
                findings.ok("forms", line);
            }
        }
        Err(error) => {
            let fix = "set or correct what it names; `abridge explain NAME` says what a setting does and allows";
            findings.fault("settings", format!("{error:#}"), fix);
        }
    }
    print([args.render(&findings, Findings::to_text)?])?;
    Ok(if findings.checks.iter().any(|finding| finding.verdict == CheckStatus::Fault) { Exit::No } else { Exit::Ok })
}

// === settings, certificates, addresses ===

fn check_settings(findings: &mut Findings, sources: &Sources, config: &Config) {
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
}

async fn check_addresses(findings: &mut Findings, config: &Config) {
    let operators = config.admin.listen.iter().flat_map(|listen| &listen.0);
    for address in config.server.listen.0.iter().chain(operators) {
        // A Unix socket is not bound as a check: that would take it from a proxy that starts at the same time.
        let bound = match address {
            Address::Unix(path) => try_write(folder_of(path)),
            Address::Tcp(_) => Listener::bind(address).map(drop),
        };
        match bound {
            _ if health::answers(address, config).await => {
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
                let fix = "listen on an address of this machine and a port that this user may take, or in a folder that it may write to";
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

// === the store: it opens, can be written to, and has room ===

async fn check_store(findings: &mut Findings, config: &Config, environment: &Environment) {
    if !config.store.enabled {
        let said = "off: edits that need the store take nothing out";
        return findings.ok("store", said);
    }
    if config.store.engine != StoreEngine::File {
        return check_engine(findings, environment.store_options(&config.store)).await;
    }
    let Some(path) = config.store.file(environment.state.as_deref()) else {
        return findings.fault("store", MissingError::StorePath, "set the variable, or store.path");
    };
    check_aside(findings, &path);
    if path.exists() {
        check_opens(findings, config, &path).await;
    } else {
        check_can_be_created(findings, &path);
    }
    check_free_space(findings, &path, config.store.max_bytes);
}

/// Says which files were set aside.
fn check_aside(findings: &mut Findings, path: &Path) {
    let aside = aside_of(path);
    let Some(last) = aside.last() else { return };
    let said = format!("{} files of a store were set aside, the last one as {}", aside.len(), last.display());
    let fix = format!("copy what is whole with `abridge store salvage --from {} OUT`, then delete it", last.display());
    findings.warn("store", said, fix);
}

/// Checks that the file can be created, without creating it: it would belong to this user, who may not be the proxy's.
fn check_can_be_created(findings: &mut Findings, path: &Path) {
    let Some(folder) = nearest_existing_folder(path) else { return };
    match try_write(folder) {
        Ok(()) => findings.ok("store", format!("{} will be made; its folder can be written to", path.display())),
        Err(error) => {
            let said = format!("{} cannot be made: {}: {error}", path.display(), folder.display());
            findings.fault("store", said, "let this user write there, or set store.path to where it may");
        }
    }
}

/// The nearest existing folder above the path.
fn nearest_existing_folder(path: &Path) -> Option<&Path> {
    let folders = path.ancestors().skip(1);
    let mut folders = folders.map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    folders.find(|folder| folder.exists())
}

async fn check_opens(findings: &mut Findings, config: &Config, path: &Path) {
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    let store = match RedbStore::open(path, config.store.clone(), Clock::system()) {
        Ok(store) => store,
        Err(OpenError::InUse { holder, .. }) => {
            let size = ByteSize(size);
            let said = format!("{}, {size}: a running abridge has it{holder}, so it was not opened", path.display());
            return findings.ok("store", said);
        }
        Err(error) => {
            // The text after the semicolon is the fix.
            let line = error.to_string();
            let (said, fix) = line.rsplit_once("; ").unwrap_or((&line, "set another store.path"));
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            let then = match (config.store.required, error.is_unusable()) {
                (true, _) => "; store.required is set, so abridge does not start",
                (false, true) => "; when abridge starts, it sets the file aside and begins a new one",
                (false, false) => "; abridge starts without the edits that need it",
            };
            return findings.fault("store", format!("{said}{cause}{then}"), fix);
        }
    };
    let written = write_and_read_back(&store, store.secret()).await;
    let stats = store.stats().await;
    let closed = store.close().await;
    match written.and(closed.map_err(Into::into)).and(stats.map_err(Into::into)) {
        Ok(Stats { payloads, summaries, file_bytes, .. }) => {
            let counts = format!("{payloads} texts, {summaries} summaries and facts, {file_bytes} bytes");
            findings.ok("store", format!("{} opens and can be written to: {counts}", path.display()));
        }
        Err(error) => {
            let fix = "make room on the disk and let this user write to the file, or set another store.path";
            findings.fault("store", format!("{}: {error}", path.display()), fix);
        }
    }
}

/// Checks that the engine can be reached, is this fleet's, and can be written to, and says what it promises.
async fn check_engine(findings: &mut Findings, options: Options) {
    let fix = "let this machine reach the engine with that URL, as a role that may read and write there";
    let store = match engine::open(options).await {
        Ok(store) => store,
        Err(error) => return findings.fault("store", format!("{:#}", anyhow::Error::new(error)), fix),
    };
    let written = match store.state() {
        Ok(()) => write_and_read_back(&*store, store.secret().unwrap_or_default()).await,
        Err(error) => Err(error.into()),
    };
    match written {
        Ok(()) => findings.ok("store", format!("{} can be written to: {}", store.engine(), store.promise().await)),
        Err(error) => findings.fault("store", error, fix),
    }
    // It holds nothing back.
    let _closed = store.close().await;
}

/// Stores a text and reads it back.
async fn write_and_read_back(store: &dyn Store, secret: [u8; 32]) -> anyhow::Result<()> {
    let keys = Keys::new(secret);
    let text = Bytes::from_static(PROBE_TEXT.as_bytes());
    let key = keys.payload(keys.caller(b"abridge doctor"), &text);
    store.put(vec![(key, Payload::from(text.clone()))], Lifetime::Usual).await?;
    anyhow::ensure!(store.get(key).await? == Some(text), "what was written cannot be read again");
    Ok(())
}

fn check_free_space(findings: &mut Findings, path: &Path, max_bytes: ByteSize) {
    let Some(free) = nearest_existing_folder(path).and_then(files::free_space) else { return };
    let said = format!("{} MiB free for the store, which takes at most {max_bytes}", free >> 20);
    if free >= LOW_SPACE.min(max_bytes.0) {
        return findings.ok("disk", said);
    }
    findings.warn("disk", said, "make room, set a smaller store.max_bytes, or set store.path to another disk");
}

// === upstreams: root certificates, connection, clock and context windows ===

async fn check_upstreams(findings: &mut Findings, config: &Config, environment: &Environment) {
    let clients = clients::all(config, environment);
    if clients.iter().any(|client| client.settings.url.uri().scheme_str() == Some("https")) {
        check_roots(findings);
    }
    for Client { settings, name, upstream } in clients {
        let upstream = match upstream {
            Ok(upstream) => upstream,
            Err(error) => {
                let fix = format!(
                    "name a PEM file with certificates in {}, and an http:// or socks5:// proxy in HTTPS_PROXY",
                    name.setting("ca_file")
                );
                findings.fault("upstream", format!("{error:#}"), fix);
                continue;
            }
        };
        let probed = Probe::run(&upstream, STEP_TIMEOUT.min(settings.connect_timeout.0)).await;
        findings.prefix = if name.is_route() { format!("{name}: ") } else { String::new() };
        let said = probed.said.clone();
        match probed.fix.clone() {
            None => findings.ok("upstream", said),
            Some(fix) => findings.fault("upstream", said, fix),
        }
        check_clock(findings, probed.date());
        check_windows(findings, config, &upstream, probed).await;
        findings.prefix.clear();
    }
}

fn check_roots(findings: &mut Findings) {
    let n = roots::of_system().len();
    if n > 0 {
        return findings.ok("roots", format!("{n} root certificates of the system"));
    }
    let said = "the system has no root certificates; Mozilla's are taken, as they were when abridge was built";
    findings.warn("roots", said, "install ca-certificates, or name a file in upstream.ca_file");
}

fn check_clock(findings: &mut Findings, theirs: Option<SystemTime>) {
    let Some(theirs) = theirs else { return };
    let ahead = (UNIX_EPOCH + since_1970()).duration_since(theirs);
    let (apart, way) = ahead.map_or_else(|error| (error.duration(), "behind"), |ahead| (ahead, "ahead of"));
    let said = format!("{} s {way} the upstream's", apart.as_secs());
    if apart <= CLOCK_TOLERANCE {
        return findings.ok("clock", said);
    }
    let said = format!("{said}: certificates may seem invalid, and store.keep_for goes by this clock");
    findings.warn("clock", said, "set the clock, such as with `timedatectl set-ntp true`");
}

async fn check_windows(findings: &mut Findings, config: &Config, upstream: &Upstream, probed: Probe) {
    let was_listed = probed.is_listed();
    let is_known = probed.url.host() == Some("api.openai.com");
    let reported = probed.windows(upstream, STEP_TIMEOUT).await;
    let of_settings = config.models.iter().filter(|model| model.context_window.is_some()).count();
    let mut said = format!("{of_settings} of [[models]], well-known models by name");
    if !reported.is_empty() {
        said = format!("{said}, {} as the upstream says", reported.len());
    }
    if !was_listed || is_known || !reported.is_empty() || of_settings > 0 {
        return findings.ok("windows", said);
    }
    let fix = "for models of your own add [[models]] with match = \"NAME\" and context_window = TOKENS";
    findings.warn("windows", format!("{said}; the upstream reports none"), fix);
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
    fn ok(&mut self, about: &'static str, said: impl Display) {
        self.add(CheckStatus::Ok, about, said, None);
    }

    fn warn(&mut self, about: &'static str, said: impl Display, fix: impl Into<String>) {
        self.add(CheckStatus::Warn, about, said, Some(fix.into()));
    }

    fn fault(&mut self, about: &'static str, said: impl Display, fix: impl Into<String>) {
        self.add(CheckStatus::Fault, about, said, Some(fix.into()));
    }

    fn add(&mut self, verdict: CheckStatus, about: &'static str, said: impl Display, fix: Option<String>) {
        self.checks.push(Finding { verdict, about, said: format!("{}{said}", self.prefix), fix });
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for Finding { verdict, about, said, fix } in &self.checks {
            // Writing into a String never fails.
            let _written = writeln!(text, "{verdict:<5} {about:<11} {}", escape::to_single_line(said, usize::MAX));
            if let Some(fix) = fix {
                let _written = writeln!(text, "      fix: {}", escape::to_single_line(fix, usize::MAX));
            }
        }
        text
    }
}
