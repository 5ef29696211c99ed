//! `abridge health`: asks a running proxy whether it is alive; made for the health check of a container.

use crate::cli::client::{Proxy, Unanswered};
use crate::cli::{Exit, complain};
use crate::config::Config;

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
    match ask(args.url.as_deref(), config) {
        Ok(()) => Exit::Ok,
        Err(ill) => {
            complain(&ill.into());
            Exit::No
        }
    }
}

fn ask(url: Option<&str>, config: &Config) -> Result<(), Unanswered> {
    let proxy = Proxy::of(url, config.server.listen.0.first(), config, FLAG)?;
    if proxy.speaks_tls() {
        return proxy.knock(FLAG);
    }
    let answer = proxy.get(PATH, FLAG)?;
    if answer.status == 200 {
        return Ok(());
    }
    Err(Unanswered::NotOurs(proxy.name().to_owned(), format!("it answers {}", answer.status)))
}
