//! Serves abridge from another program, in a thread of its own.
//!
//! `cargo run --example embed -- proxy.toml`; a signal ends it, as it ends the `abridge` binary.

use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use abridge_proxy::app::{self, Launch};
use abridge_proxy::config::{Config, Environment, Flags, Sources};
use abridge_proxy::server::DrainOutcome;
use abridge_proxy::telemetry;
use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let settings = std::env::args_os().nth(1).context("usage: embed SETTINGS_FILE")?;
    let serving = start(settings.into(), Flags::default())?;
    // The program does its own work here.
    let outcome = serving.join().map_err(|_| anyhow::anyhow!("the proxy has panicked"))??;
    anyhow::ensure!(outcome == DrainOutcome::Complete, "answers were cut");
    Ok(())
}

/// Starts to serve with the settings of a file; flags win over them.
fn start(settings: PathBuf, flags: Flags) -> anyhow::Result<JoinHandle<anyhow::Result<DrainOutcome>>> {
    let sources = Sources::of_process(Some(settings), flags);
    let config = Config::load(&sources)?;
    let environment = Environment::read(&sources.variables, &config)?;
    // A program with a log of its own leaves this out, and gives a handle of its own subscriber.
    let level = telemetry::init(&config.log, false, std::io::stderr)?;
    let launch = Launch { sources, config, environment, record: None, level };
    Ok(thread::spawn(move || app::serve(launch)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_embedded_proxy_answers() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (settings, socket) = (folder.path().join("proxy.toml"), folder.path().join("socket"));
        std::fs::write(
            &settings,
            "upstream = { url = \"http://127.0.0.1:1/v1\", probe = false }\nstore.enabled = false\n",
        )?;
        let flags = Flags { listen: vec![format!("unix:{}", socket.display())], ..Flags::default() };
        let serving = start(settings, flags)?;
        let began = Instant::now();
        let mut client = loop {
            match UnixStream::connect(&socket) {
                Ok(client) => break client,
                Err(error) => anyhow::ensure!(began.elapsed() < Duration::from_secs(30), "{error}"),
            }
            anyhow::ensure!(!serving.is_finished(), "the proxy has ended");
            thread::sleep(Duration::from_millis(20));
        };
        client.write_all(b"GET /abridge/healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        client.read_to_string(&mut answer)?;
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"), "{answer}");
        Ok(())
    }
}
