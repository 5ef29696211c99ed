//! `POST /abridge/mcp`: the Model Context Protocol over streamable HTTP, for agents that read back what was taken out with a
//! tool, or control clearing.
//!
//! | tool | arguments | answers |
//! |---|---|---|
//! | `recall` | `handle`, and nothing, `lines`, `grep`, or `offset` and `limit` | the text, or that part of it; an image or sound as such |
//! | `search` | `text` | the payloads with this text, the last used first, each with the first lines that have it |
//! | `list` | none | the last used payloads, each with its first line |
//! | `control_context` | `action`, `result` | a sentence; it takes effect in the next request, which has the call; with `recall.controls` |
//!
//! `recall` has the rules and limits of a recall over HTTP. `search` and `list` read the payloads of the caller that the
//! request shows the credential of.
//!
//! It keeps no sessions: each request is complete, and its answer is one JSON object. A request may read what its credential
//! allows, as for a recall over HTTP.
#![expect(clippy::disallowed_types, reason = "the arguments of these tools, which are read here and go nowhere else")]

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Collected, Full};
use memchr::memmem;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject, ListToolsResult,
    MetaObject, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::recall::{Reader, RecallError, RecallHandler, Requester};
use super::text;
use crate::events::Audience;
use crate::payload::{Keys, handles_in};
use crate::recall::RECALL_TOOL;
use crate::recall::own_tools::{CONTROL, CONTROL_TOOL, Control, RECALL};
use crate::store::{Owner, PageQuery, PayloadInfo, Store};

/// The path of the server.
pub const PATH: &str = "/abridge/mcp";

/// The longest request, in bytes.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// How long a request may take to arrive and be answered.
const TIMEOUT: Duration = Duration::from_mins(1);

const INSTRUCTIONS: &str = "Reads back what abridge, a proxy in front of the model, has taken out of this conversation to keep it short: old or long results of tools. A notice in the conversation names the handle of each.";

/// Answers a request with what its session may read.
pub async fn answer<B>(request: Request<B>, session: Session) -> Response<Full<Bytes>>
where
    B: Body + Send + 'static,
    B::Error: fmt::Display,
{
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_REQUEST_BYTES)
        // `Access` has checked both.
        .disable_allowed_hosts()
        .disable_allowed_origins();
    let server = StreamableHttpService::new(move || Ok(session.clone()), Arc::<NeverSessionManager>::default(), config);
    let answered = async {
        let (mut parts, body) = server.handle(request).await.into_parts();
        #[expect(clippy::disallowed_methods, reason = "the answers of these tools, which are bounded")]
        let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        Response::from_parts(parts, Full::new(body))
    };
    let late = |_| text(StatusCode::REQUEST_TIMEOUT, "the request has not arrived within a minute\n");
    timeout(TIMEOUT, answered).await.unwrap_or_else(late)
}

impl ServerHandler for Session {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("abridge", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let result = match self.call(&call.name, &call.arguments.unwrap_or_default()).await {
            Ok(found) => CallToolResult::success(vec![found]),
            Err(why) => CallToolResult::error(vec![ContentBlock::text(why)]),
        };
        Ok(result.into())
    }
}

// === the tools ===

/// The longest text of an answer, in bytes. Clients put an answer into the conversation whole.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// The longest image or sound of an answer, in bytes.
const MAX_MEDIA_BYTES: usize = 4 << 20;

/// The bytes of a payload that are read without a selection.
const DEFAULT_LIMIT: usize = 20_000;

/// How many payloads `list` and `search` show.
const MAX_PAYLOADS: usize = 20;

/// How many payloads `list` sorts, the last used first and then the newest: all payloads of a conversation are used by each of its
/// requests, so many have one time of last use.
const MAX_SORTED: usize = 500;

/// How many lines of a payload `search` shows, and their longest length in bytes.
const MAX_LINES: usize = 3;
const MAX_LINE_BYTES: usize = 200;

const NO_STORE: &str = "nothing is stored: store.enabled is false";
const NO_CREDENTIAL: &str =
    "send the key of the conversations, as their requests do (`authorization`, `x-api-key` or `api-key`)";

/// The texts that one request may read, and how.
#[derive(Clone, Debug)]
pub struct Session {
    /// Answers recalls within their limits.
    pub recalls: Arc<RecallHandler>,
    /// The store of the payloads; `None` if it is off.
    pub store: Option<Arc<dyn Store>>,
    /// The rights of the request in a recall.
    pub requester: Requester,
    /// Whose payloads the request may list and search; `None` without a credential.
    pub audience: Option<Audience>,
    /// The keys that name them.
    pub keys: Keys,
    /// Whether the model may control clearing.
    pub controls: bool,
}

// The descriptions of the tools for the model.
const SEARCH: &str = "Searches the texts that were taken out of your conversations, the last used first, and returns the handle of each that contains the text, with the first lines that do. Letter case matters; there are no patterns.";
const LIST: &str =
    "Lists the last used texts that were taken out of your conversations: handle, length in bytes, and first line.";

fn tool((name, description, schema): (&'static str, &'static str, Value)) -> Tool {
    let schema = if let Value::Object(schema) = schema { schema } else { JsonObject::new() };
    let tool = Tool::new(name, description, schema);
    let tool = tool.with_annotations(ToolAnnotations::new().read_only(true).open_world(false));
    // Has Claude Code offer the tool from the first request on. Without it, the client leaves tools of servers out until the
    // model searches for them, and notices would name a tool that is not there.
    let always_loaded = JsonObject::from_iter([("anthropic/alwaysLoad".to_owned(), Value::Bool(true))]);
    if [RECALL_TOOL, CONTROL_TOOL].contains(&name) { tool.with_meta(MetaObject(always_loaded)) } else { tool }
}

// === impl Session ===

impl Session {
    /// The tools, as a client gets them.
    fn tools(&self) -> Vec<Tool> {
        let [recall, control] = [RECALL, CONTROL].map(|tool| serde_json::from_str(tool.parameters).unwrap_or_default());
        let search = json!({"type": "object", "required": ["text"], "properties": {
            "text": {"type": "string", "description": "The text to find."},
        }});
        let list = json!({"type": "object", "properties": {}});
        let tools = [(RECALL_TOOL, RECALL.description, recall), ("search", SEARCH, search), ("list", LIST, list)];
        let control = self.controls.then_some((CONTROL_TOOL, CONTROL.description, control));
        tools.into_iter().chain(control).map(tool).collect()
    }

    /// Calls a tool. An error is for the model to read.
    async fn call(&self, tool: &str, arguments: &JsonObject) -> Result<ContentBlock, String> {
        let text = match tool {
            RECALL_TOOL => return self.recall(arguments, MAX_TEXT_BYTES).await,
            "search" => Some(argument(arguments, "text").ok_or("search takes text: what to find")?),
            "list" => None,
            CONTROL_TOOL if self.controls => {
                let arguments = Value::Object(arguments.clone()).to_string();
                return Control::answer(&arguments).map(ContentBlock::text).map_err(str::to_owned);
            }
            _ => return Err("there are recall, search and list".to_owned()),
        };
        self.payloads(text).await.map(ContentBlock::text)
    }

    /// The answer to a call of the tool that abridge has added, with so many bytes of the text at `most`. Images and sound are
    /// for the MCP server.
    pub async fn recall_text(&self, arguments: &str, most: usize) -> String {
        let Ok(arguments) = serde_json::from_str(arguments) else {
            return "the arguments are not a JSON object".to_owned();
        };
        match self.recall(&arguments, most).await {
            Ok(ContentBlock::Text(found)) => found.text,
            Ok(_) => "this is no text; this tool reads texts only".to_owned(),
            Err(why) => why,
        }
    }

    async fn recall(&self, arguments: &JsonObject, most: usize) -> Result<ContentBlock, String> {
        let named = argument(arguments, "handle").ok_or("recall takes handle: 26 digits and letters, from a notice")?;
        // A model may pass the whole URL of a notice.
        let handle = handles_in(&named).next_back().map(|handle| handle.to_string());
        let handle = handle.unwrap_or(named);
        let query = query(arguments);
        let reader = Reader { store: self.store.as_deref(), requester: self.requester.clone() };
        let found = self.recalls.recall(&handle, &query, reader).await;
        let found = found.map_err(|RecallError(_, why)| why.trim_end().to_owned())?;
        if let Some(media) = found.media() {
            return shown(media.name(), &found.part.body);
        }
        let most = most.min(if query.is_empty() { DEFAULT_LIMIT } else { MAX_TEXT_BYTES });
        let place = found.part.range.map(|range| range.start);
        Ok(ContentBlock::text(with_range(&found.part.body, most, place, found.size)))
    }

    /// The last used payloads, those with the text if there is one.
    async fn payloads(&self, text: Option<String>) -> Result<String, String> {
        let store = self.store.as_ref().ok_or(NO_STORE)?;
        let owner = match self.audience.ok_or(NO_CREDENTIAL)? {
            Audience::All => None,
            Audience::Caller(caller) => Some(Owner { keys: self.keys.clone(), caller }),
        };
        let limit = if text.is_some() { MAX_PAYLOADS } else { MAX_SORTED };
        let query = PageQuery { limit, text: text.clone(), owner, ..PageQuery::default() };
        let mut page = self.recalls.search(store.page(query), &self.requester).await?;
        page.entries.sort_by_key(|payload| Reverse((payload.used, payload.created)));
        let mut lines = String::new();
        for payload in page.entries.iter().take(MAX_PAYLOADS) {
            lines += &self.payload_entry(payload, text.as_deref()).await;
        }
        Ok(if lines.is_empty() { "nothing was found".to_owned() } else { lines })
    }

    /// The handle of a payload, with its length and the lines that have the text, or its first one.
    async fn payload_entry(&self, payload: &PayloadInfo, text: Option<&str>) -> String {
        let mut entry = format!("{} ({} bytes)\n", payload.key, payload.bytes);
        let query = match text {
            Some(text) => format!("grep={}", utf8_percent_encode(text, NON_ALPHANUMERIC)),
            None => format!("offset=0&limit={MAX_LINE_BYTES}"),
        };
        // The handle is from a page of what the requester owns.
        let is_operator = matches!(self.requester, Requester::Operator);
        let requester = if is_operator { Requester::Operator } else { Requester::Unrestricted };
        let reader = Reader { store: self.store.as_deref(), requester };
        let Ok(found) = self.recalls.recall(&payload.key.to_string(), &query, reader).await else { return entry };
        let shown = String::from_utf8_lossy(&found.part.body);
        let first = shown.lines().filter(|line| !line.trim().is_empty());
        for line in first.take(if text.is_some() { MAX_LINES } else { 1 }) {
            entry.extend(["  ", excerpt(line, text.unwrap_or_default()), "\n"]);
        }
        entry
    }
}

/// An image or sound, as clients show it to the model.
fn shown(media_type: &str, bytes: &[u8]) -> Result<ContentBlock, String> {
    let is_shown = bytes.len() <= MAX_MEDIA_BYTES;
    match media_type.split('/').next() {
        Some("image") if is_shown => Ok(ContentBlock::image(STANDARD.encode(bytes), media_type)),
        Some("audio") if is_shown => Ok(ContentBlock::audio(STANDARD.encode(bytes), media_type)),
        _ => Err(format!(
            "{} bytes of {media_type}: this tool shows images and sound of at most {MAX_MEDIA_BYTES} bytes, whole; others are read over HTTP",
            bytes.len()
        )),
    }
}

/// The beginning of what was selected, from `place` on in a payload of `size` bytes, with a line that says what it is a part of.
fn with_range(selected: &[u8], most: usize, place: Option<usize>, size: usize) -> String {
    let mut shown = String::from_utf8_lossy(selected).into_owned();
    let is_cut = shown.len() > most;
    shown.truncate(shown.floor_char_boundary(most));
    if !is_cut && place == Some(0) && size == selected.len() {
        return shown;
    }
    let (part, more) = match place {
        Some(place) => {
            let end = place + shown.len();
            (format!("bytes {place}-{end} of {size}"), format!("; go on with offset={end}"))
        }
        None => (format!("{size} bytes in all"), format!("; cut to {most} bytes")),
    };
    shown + &format!("\n[{part}{}]", if is_cut { more.as_str() } else { "" })
}

/// The part of a line around the text.
fn excerpt<'a>(line: &'a str, text: &str) -> &'a str {
    let at = memmem::find(line.as_bytes(), text.as_bytes()).unwrap_or_default();
    let from = line.floor_char_boundary(at.saturating_sub(MAX_LINE_BYTES / 2));
    let to = line.floor_char_boundary(from + MAX_LINE_BYTES);
    line.get(from..to).unwrap_or(line)
}

/// The query of a recall over HTTP that selects the same part.
fn query(arguments: &JsonObject) -> String {
    let selected = ["lines", "grep", "offset", "limit"].into_iter().filter_map(|name| {
        let value = argument(arguments, name)?;
        Some(format!("{name}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)))
    });
    selected.collect::<Vec<_>>().join("&")
}

/// An argument as text. Models write `null` and empty texts for what they leave out, numbers as texts, and 8 as `8.0`.
fn argument(arguments: &JsonObject, name: &str) -> Option<String> {
    match arguments.get(name)? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => {
            let number = number.to_string();
            Some(number.strip_suffix(".0").map(str::to_owned).unwrap_or(number))
        }
        _ => None,
    }
}
