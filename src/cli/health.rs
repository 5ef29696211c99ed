//! `abridge health`: checks that a running proxy is alive, for the health check of a container.

use http::Request;

use crate::cli::client::{ClientError, ProxyArgs, RunningProxy};
use crate::cli::{Exit, refuse};
use crate::config::{Config, Sources};
use crate::server::listen::Address;

const PATH: &str = "/abridge/healthz";

/// Checks the proxy, and prints the reason to standard error if it is not healthy.
pub fn run(at: &ProxyArgs, sources: &Sources, config: &Config) -> Exit {
    let checked = at.proxy_for_callers(sources, config).and_then(|proxy| Ok(proxy.wait(ask(&proxy))?));
    checked.map_or_else(|error| refuse(&error), |()| Exit::Ok)
}

/// Whether an abridge proxy answers at this address; with TLS, whether the address accepts connections.
pub(super) async fn answers(address: &Address, config: &Config) -> bool {
    let Ok(proxy) = RunningProxy::of(None, Some(address), config) else { return false };
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
