//! `abridge mcp`: the MCP server of a running proxy over standard input and output, for clients that only start commands.
//!
//! Each line of standard input is a message; it is posted to `/abridge/mcp`, and the answer is a line of standard output.
#![expect(clippy::disallowed_types, reason = "messages are looked at, and passed on as they came")]

use std::io::{self, BufRead, Read};

use anyhow::Context;
use http::Request;
use serde_json::{Value, json};

use crate::admin::mcp::{MAX_REQUEST_BYTES, PATH};
use crate::cli::client::{self, ProxyArgs, RunningProxy};
use crate::cli::{Exit, print};
use crate::config::{Config, Sources};
use crate::upstream::target::KeyHeader;

/// Arguments of `mcp`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The environment variable with the key that the conversations are sent with, as authorization: Bearer
    #[arg(long, value_name = "NAME", conflicts_with = "api_key_env")]
    key_env: Option<String>,
    /// The same for a key that is sent as x-api-key
    #[arg(long, value_name = "NAME")]
    api_key_env: Option<String>,
    #[command(flatten)]
    at: ProxyArgs,
}

/// The revision that a message without a handshake names.
const REVISION: &str = "io.modelcontextprotocol/protocolVersion";

/// A failure of the server, as JSON-RPC numbers it.
const INTERNAL_ERROR: i32 = -32_603;

/// Passes messages on until standard input ends.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let mut proxy = args.at.proxy_for_callers(sources, config)?;
    let named = args.key_env.as_deref().map(|name| (name, KeyHeader::Authorization));
    if let Some((name, field)) = named.or(args.api_key_env.as_deref().map(|name| (name, KeyHeader::XApiKey))) {
        let key = sources.variables.secret(name)?.with_context(|| format!("{name} is not set"))?;
        proxy.credential = client::field(field, Some(key));
    }
    let mut input = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        let most = MAX_REQUEST_BYTES as u64 + 1;
        let n = input.by_ref().take(most).read_until(b'\n', &mut line).context("standard input")?;
        if n == 0 {
            return Ok(Exit::Ok);
        }
        anyhow::ensure!(n <= MAX_REQUEST_BYTES, "a message has more than {MAX_REQUEST_BYTES} bytes");
        if let Some(answer) = answer(&proxy, line.trim_ascii()) {
            print([answer.as_slice(), b"\n"])?;
        }
    }
}

/// The answer to a message; none to a notification.
fn answer(proxy: &RunningProxy, message: &[u8]) -> Option<Vec<u8>> {
    if message.is_empty() {
        return None;
    }
    let parsed: Value = serde_json::from_slice(message).unwrap_or_default();
    let failed = |why: String| {
        let id = parsed.get("id")?;
        let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": INTERNAL_ERROR, "message": why}});
        Some(error.to_string().into_bytes())
    };
    let mut fields = vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    fields.extend(standard_fields(&parsed));
    let request = fields.into_iter().fold(Request::post(PATH), |request, (name, value)| request.header(name, value));
    match proxy.wait(proxy.send(request, message)) {
        // JSON has no line ends outside of strings that it must have.
        Ok(answer) if answer.header("content-type") == Some("application/json") => {
            Some(answer.body.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect())
        }
        Ok(answer) if answer.status == 202 => None,
        Ok(answer) => failed(answer.first_line()),
        Err(error) => failed(error.to_string()),
    }
}

/// The header fields that repeat what the body says, which revisions without a handshake require.
fn standard_fields(message: &Value) -> Vec<(&'static str, &str)> {
    let Some(revision) = message.pointer("/params/_meta").and_then(|meta| meta.get(REVISION)) else { return vec![] };
    let (method, name) = (message.get("method"), message.pointer("/params/name"));
    let named = [("mcp-protocol-version", Some(revision)), ("mcp-method", method), ("mcp-name", name)];
    let named = named.into_iter().filter_map(|(name, value)| Some((name, value?.as_str()?)));
    named.filter(|(_, value)| value.bytes().all(|byte| byte.is_ascii_graphic())).collect()
}
