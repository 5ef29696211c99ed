//! `abridge health`: asks a running proxy whether it is alive; made for the health check of a container.

use crate::cli::client::{Proxy, Unanswered};
use crate::cli::{Exit, complain};
use crate::config::Config;
use crate::server::listen::Address;

const PATH: &str = "/abridge/healthz";

/// The flag that names a proxy.
const FLAG: &str = "url";

/// Whom to ask.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The proxy's address.
    #[arg(long, help = "The proxy's address: http://host:port or unix:/path [default: the first of server.listen]")]
    url: Option<String>,
}

/// Says on standard error why not, if the proxy is not healthy.
pub fn run(args: &Args, config: &Config) -> Exit {
    let proxy = Proxy::of(args.url.as_deref(), config.server.listen.0.first(), config, FLAG);
    match proxy.and_then(|proxy| ask(&proxy)) {
        Ok(()) => Exit::Ok,
        Err(ill) => {
            complain(&ill.into());
            Exit::No
        }
    }
}

/// Whether an abridge answers at this address; whether anything does, if it speaks TLS.
pub(super) fn answers(address: &Address, config: &Config) -> bool {
    Proxy::of(None, Some(address), config, FLAG).is_ok_and(|proxy| ask(&proxy).is_ok())
}

fn ask(proxy: &Proxy) -> Result<(), Unanswered> {
    if proxy.speaks_tls() {
        return proxy.knock(FLAG);
    }
    let answer = proxy.get(PATH, FLAG)?;
    if answer.status == 200 {
        return Ok(());
    }
    Err(Unanswered::NotOurs(proxy.name().to_owned(), format!("it answers {}", answer.status)))
}
