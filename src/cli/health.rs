//! `abridge health`: checks that a running proxy is alive, for the health check of a container.

use http::Request;

use crate::cli::client::{ClientError, RunningProxy};
use crate::cli::{Exit, refuse};
use crate::config::Config;
use crate::server::listen::Address;

const PATH: &str = "/abridge/healthz";

/// The flag that names the proxy.
const FLAG: &str = "url";

/// Arguments of `health`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The proxy's address.
    #[arg(long, help = "The proxy's address: http://host:port or unix:/path [default: the first of server.listen]")]
    url: Option<String>,
}

/// Checks the proxy, and prints the reason to standard error if it is not healthy.
pub fn run(args: &Args, config: &Config) -> Exit {
    let proxy = RunningProxy::of(args.url.as_deref(), config.server.listen.0.first(), config, FLAG);
    proxy.and_then(|proxy| proxy.wait(ask(&proxy))).map_or_else(|error| refuse(&error.into()), |()| Exit::Ok)
}

/// Whether an abridge proxy answers at this address; with TLS, whether the address accepts connections.
pub(super) async fn answers(address: &Address, config: &Config) -> bool {
    let Ok(proxy) = RunningProxy::of(None, Some(address), config, FLAG) else { return false };
    ask(&proxy).await.is_ok()
}

async fn ask(proxy: &RunningProxy) -> Result<(), ClientError> {
    if proxy.tls {
        return proxy.connect().await.map(drop);
    }
    let answer = proxy.send(Request::get(PATH), b"").await?;
    if answer.status == 200 {
        return Ok(());
    }
    Err(ClientError::UnexpectedResponse(proxy.name.clone(), format!("it answers {}", answer.status)))
}
