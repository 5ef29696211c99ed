//! All settings together, and their sources: default < preset < `proxy.toml` < environment < flags.
//!
//! Each module keeps its own `Settings` beside the code that they configure; this module combines, reads and checks
//! them. It is the only one that reads the environment.
//!
//! | from | how | shown in errors as |
//! |---|---|---|
//! | file | `--config FILE`, else `proxy.toml` of the working directory if there is one | `proxy.toml:7:1` |
//! | environment | `ABRIDGE__SERVER__MAX_BODY=64MiB`, `ABRIDGE__DRY_RUN=true`, `ABRIDGE__UPSTREAM__HEADERS='{ x-key = "v" }'` | the variable |
//! | flags | `--listen`, `--upstream`, `--log-format`, `--dry-run` | the flag |
//!
//! `--upstream NAME=URL` is a table of `[[upstreams]]`, and precedes those of the file; where the file has a table of this
//! name, only its `url` is replaced.
//!
//! Each of the three is checked by itself before it is laid on the ones below, so that an error is found even where a
//! stronger source overrides the value.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::admin::clients::Clients;
use crate::admin::{self, access::Exposure};
use crate::draft::reasoning;
use crate::edit::{
    Language, clear_tool_results, deduplicate_tool_results, filter_tool_calls, patch_tool_calls, request_prompt_cache,
    summarize, tools, truncate_tool_results,
};
use crate::handler;
use crate::payload::Keys;
use crate::planner::{Offload, Planner};
use crate::platform::files::{HOME, NO_STATE_FOLDER};
use crate::proxy::{ExperimentSettings, HandleAccess, compress, fair_shares, keep_alive, responses, second_try};
use crate::server::listen::{Address, local_url};
use crate::server::tls;
use crate::tokens::{Meter, models, prices};
use crate::upstream::routes;
use crate::{events, inspect, otel, planner, recall, server, store, telemetry, tokens, upstream};

mod check;
pub mod clients;
pub mod environment;
mod error;
pub mod operator_token;
pub mod policies;
mod sources;
mod value;

pub use environment::{Environment, Secret, Variables};
pub use error::ConfigError;
pub use policies::Preset;
pub use sources::{Flags, Sources, read_text};

use value::LocatedValue;

/// Something that a command needs is neither set nor derivable.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum MissingError {
    /// An address for clients.
    #[error("server.listen has no TCP address; give one with --listen 127.0.0.1:8787")]
    Address,
    /// The folder of the user.
    #[error("{} is not set, so the files of this user cannot be found; set it", HOME.join(" or "))]
    Home,
    /// The path of the store.
    #[error("the store has no path, because {NO_STATE_FOLDER}; set store.path, or store.enabled = false")]
    StorePath,
    /// An engine for the store.
    #[error("store.engine is \"file\", which is made by the proxy; set another engine and store.url_env")]
    StoreEngine,
}

/// Everything that `proxy.toml` may say.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The set of defaults that all other settings are laid on.
    pub preset: Preset,
    /// The language of the texts that abridge writes into a conversation.
    pub language: Language,
    /// Forwards every request as it came, and only reports what would be edited.
    pub dry_run: bool,
    /// Log lines, on standard error.
    pub log: telemetry::Settings,
    /// The addresses for clients, and the limits of what clients may use. Changes need a restart.
    pub server: server::Settings,
    /// Who may see what abridge tells about itself below `/abridge/`.
    pub admin: server::admin::Settings,
    /// Who may use abridge, where not everybody may.
    pub clients: admin::clients::Settings,
    /// The share of one of several callers in the limits of `[server]`. A change needs a restart.
    pub limits: fair_shares::Settings,
    /// TLS on the listener. Both files are needed; without this table the listener speaks plain HTTP. A reload reads
    /// the files again.
    pub tls: Option<tls::Settings>,
    /// The server that requests are forwarded to.
    pub upstream: upstream::Settings,
    /// Further upstreams, each for some of the requests; `[upstream]` is for all others. Two agents with different APIs
    /// can so use one abridge.
    pub upstreams: Vec<routes::Settings>,
    /// Other settings of the edits, for the upstreams that name them in `policy`: `policy`, `reasoning`, `tools` and
    /// the tables of edits below a name, with the keys that they set. For all other keys the settings of the top level hold.
    ///
    /// Example: `{ long = { clear_tool_results = { trigger = { tokens = 400000 } } } }`
    pub policies: policies::Policies,
    /// Another policy for a part of the conversations, so that its bill can be compared: see `abridge savings --by policy`.
    pub experiment: ExperimentSettings,
    /// Where abridge keeps what edits take out of conversations. Changes need a restart.
    pub store: store::Settings,
    /// Which edits run.
    pub policy: planner::Settings,
    /// How the model reads what was taken out of a conversation.
    pub recall: recall::Settings,
    /// The edit that gives every tool call exactly one result.
    pub patch_tool_calls: patch_tool_calls::Settings,
    /// The edit that leaves out the oldest tool calls and their results.
    pub filter_tool_calls: filter_tool_calls::Settings,
    /// The edit that cuts the middle out of long results.
    pub truncate_tool_results: truncate_tool_results::Settings,
    /// The edit that replaces old results with placeholders when the conversation is large.
    pub clear_tool_results: clear_tool_results::Settings,
    /// The edit that replaces repeated lines with pointers to them.
    pub deduplicate_tool_results: deduplicate_tool_results::Settings,
    /// The edit that replaces old messages with a summary when the conversation is larger still. A summary is made by a
    /// call to a model, by default the model and the upstream of the request, with the client's key. Leave
    /// `"summarize"` out of `policy.edits` to have no such calls.
    pub summarize: summarize::Settings,
    /// The edit that asks Anthropic's API for its automatic prompt cache where a client marks nothing.
    pub request_prompt_cache: request_prompt_cache::Settings,
    /// Settings of single tools, by name or pattern (`*` matches any characters, `?` one). They win over the
    /// settings of the edits. A table sets only the keys that it names; for each key, the most specific table that
    /// names it counts: the name itself, then longer patterns before shorter ones, and of two equally long ones the
    /// first in alphabetical order.
    ///
    /// Example: `"read_*" = { truncate = false, clear = false }`
    ///
    /// Example: `"load_*" = { reads = "uri" }`
    ///
    /// Example: `save_document = { edits = "uri" }`
    ///
    /// Example: `glob = { truncate_handler = "digests", clear_handler = "digests" }`
    ///
    /// Example: `bash = { truncate = { max_bytes = 20000, head = 5000, tail = 10000 }, clear = true }`
    pub tools: tools::Settings,
    /// Programs of yours that say what takes the place of a text, by names that you choose: `truncate_tool_results.handler`,
    /// `clear_tool_results.handler` and tables of `[tools]` name them. They are asked once for a text, and need the store. The
    /// documentation of handlers says what they are sent and what they answer.
    ///
    /// Example: `digests = { url = "http://127.0.0.1:9000/", timeout = "10s", key_env = "HANDLER_KEY" }`
    pub handlers: handler::Settings,
    /// Reasoning that a model has signed together with what preceded it. The models of which that is known are in the
    /// documentation of dialects.
    pub reasoning: reasoning::Settings,
    /// The events of edited requests and summaries, at `GET /abridge/events` and for a webhook. Changes need a restart.
    pub events: events::Settings,
    /// Traces and metrics for an OpenTelemetry collector. Changes need a restart.
    pub otel: otel::Settings,
    /// The records of edited requests for `abridge diff`, the page, and `GET /abridge/requests/ID`. Numbers and names
    /// of changes are shown with and without it.
    pub inspect: inspect::Settings,
    /// A second try of a request that the upstream refuses, before the client sees anything. There is never a third.
    pub second_try: second_try::Settings,
    /// `/v1/compress` and `/v1/retrieve` for gateways that call a compressor, such as `LiteLLM` and Kong.
    pub compress: compress::Settings,
    /// Requests by abridge itself that keep a prompt cache while a tool of the client runs.
    pub keep_alive: keep_alive::Settings,
    /// What concerns OpenAI Responses alone.
    pub responses: responses::Settings,
    /// How tokens are counted, and where the context windows of models come from.
    pub tokens: tokens::Settings,
    /// Facts about models that abridge does not know: one table for each model or pattern. The tables are tried from
    /// the first to the last; then the upstream's list of models, then the built-in table. `abridge models` prints all
    /// of it.
    pub models: Vec<models::Settings>,
    /// What input tokens cost, where an input token that no prompt cache knows costs 1. Built in are the prices of
    /// OpenAI, Anthropic, Gemini and DeepSeek; tokens of models at loopback and private addresses cost nothing to read. Used by
    /// `clear_tool_results.clear_at_least = "auto"`.
    pub prices: Vec<prices::Settings>,
}

impl Config {
    /// Reads and checks the settings. The same sources can be loaded again, and give what the file says by then.
    ///
    /// An error is a [`ConfigError`]: one line that says where, what, and what is allowed.
    pub fn load(sources: &Sources) -> anyhow::Result<Self> {
        let written = sources.read()?;
        let preset = Self::from_value(&written)?.preset;
        let written = preset.apply_under(written)?;
        let written = policies::apply_goal_under(Self::from_value(&written)?.policy.goal, written)?;
        let mut config = Self::from_value(&written)?;
        check::check(&config, &written)?;
        config.check_policies(&written)?;
        if let Err(error) = config.known_clients() {
            let key = if config.clients.tokens.is_empty() { "file" } else { "tokens" };
            return Err(written.error_at(&["clients", key], format!("{error:#}")).into());
        }
        for upstream in &mut config.upstreams {
            upstream.when = upstream.requests();
        }
        Ok(config)
    }

    /// The planner for these settings. `address` is the URL at which clients reach abridge.
    pub fn planner(&self, address: Option<String>, meter: Meter, keys: Keys) -> Planner {
        let mut settings = self.plan_settings_at(self.upstream.url.host());
        settings.recall.public_url = settings.recall.public_url.or(address);
        Planner::with(settings, meter, keys, self.offload())
    }

    /// The clients that may use abridge.
    pub fn known_clients(&self) -> anyhow::Result<Clients> {
        let file = self.clients.file.as_deref();
        let read = |path: &Path| read_text(path).with_context(|| format!("{} cannot be read", path.display()));
        let text = file.map(read).transpose()?.unwrap_or_default();
        Ok(Clients::new(&self.clients, &text)?)
    }

    /// How a text can be read by its handle, on the address for clients where least is enough to read it.
    pub fn handle_access(&self) -> HandleAccess {
        let on = |exposure| HandleAccess::of(self.recall.auth, exposure, self.knows_clients());
        let each = self.server.listen.0.iter().map(|address| on(address.exposure()));
        each.min().unwrap_or(on(Exposure::Loopback))
    }

    /// Whether `[clients]` names clients.
    fn knows_clients(&self) -> bool {
        !self.clients.tokens.is_empty() || self.clients.file.is_some()
    }

    /// Whether other machines can reach an address for clients on which abridge knows no clients.
    pub fn serves_strangers(&self) -> bool {
        let is_open = |address: &Address| address.exposure() == Exposure::Network;
        let asks = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        !self.knows_clients() && !asks && self.server.listen.0.iter().any(is_open)
    }

    /// The token counter for these settings.
    pub fn meter(&self) -> Meter {
        Meter::new(&self.tokens, &self.models)
    }

    /// Whether originals can be stored.
    pub fn offload(&self) -> Offload {
        if self.store.enabled { Offload::Possible } else { Offload::Impossible }
    }

    /// The URL at which clients reach abridge; `None` without a TCP address, or with a port that the system chooses.
    pub fn address(&self) -> Option<String> {
        let has_port = |address: &&Address| !matches!(address, Address::Tcp(address) if address.port() == 0);
        let known: Vec<_> = self.server.listen.0.iter().filter(has_port).cloned().collect();
        local_url(&known, self.tls.is_some())
    }

    /// The settings that plans for the upstream at a host depend on.
    pub fn plan_settings_at(&self, host: &str) -> planner::PlanSettings {
        planner::PlanSettings {
            language: self.language,
            policy: self.policy.at(host),
            recall: self.recall.clone(),
            patch_tool_calls: self.patch_tool_calls.clone(),
            filter_tool_calls: self.filter_tool_calls.clone(),
            truncate_tool_results: self.truncate_tool_results.clone(),
            clear_tool_results: self.clear_tool_results.clone(),
            deduplicate_tool_results: self.deduplicate_tool_results.clone(),
            summarize: self.summarize.clone(),
            request_prompt_cache: self.request_prompt_cache.clone(),
            reasoning: self.reasoning.clone(),
            tools: self.tools.clone(),
            handlers: self.handlers.clone(),
            tokens: self.tokens.clone(),
            models: self.models.clone(),
            prices: self.prices.clone(),
            upstream: host.to_owned(),
        }
    }

    /// The settings as TOML that can be read again, with `***` in place of secrets.
    pub fn to_toml(&self) -> anyhow::Result<String> {
        Ok(toml::to_string_pretty(self)?)
    }

    /// Deserialises a tree of values, without the checks of [`check`].
    fn from_value(written: &LocatedValue) -> Result<Self, ConfigError> {
        Self::deserialize(written)
    }
}

#[cfg(test)]
mod tests;
