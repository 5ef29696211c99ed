//! `abridge store backup`: a copy of the store's file as it is at one moment, also while a proxy uses it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::open;
use crate::cli::client::ProxyArgs;
use crate::cli::{Exit, print, refuse};
use crate::config::{Config, Environment, Sources};
use crate::store::OpenError;

/// Arguments of `backup`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The new file; the proxy writes it, if one runs
    #[arg(value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    proxy: ProxyArgs,
}

/// How long a copy may take.
const PATIENCE: Duration = Duration::from_hours(1);

pub(super) async fn run(
    args: &Args,
    sources: &Sources,
    config: &Config,
    environment: &Environment,
) -> anyhow::Result<Exit> {
    let to = std::path::absolute(&args.to).context("the name of the file has no folder")?;
    if args.proxy.is_default() {
        match open(config, environment).await {
            Ok(store) => {
                let copied = store.backup(&to).await;
                store.close().await?;
                copied.context("the store was not copied")?;
                return print([format!("copied the store to {}\n", to.display())]);
            }
            Err(error) if matches!(error.downcast_ref(), Some(OpenError::InUse { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    let mut proxy = args.proxy.proxy(sources, config)?;
    proxy.patience = PATIENCE;
    let path = to.to_str().context("the name of the file is not UTF-8")?;
    let target = format!("/abridge/backup?file={}", utf8_percent_encode(path, NON_ALPHANUMERIC));
    let answer = proxy.post(&target, &[], b"")?;
    if answer.status != 200 {
        return Ok(refuse(&anyhow::anyhow!("{}", answer.first_line())));
    }
    print([format!("{}\n", answer.first_line())])
}
