//! `POST /abridge/mcp`: the Model Context Protocol over streamable HTTP, for agents that read back what was taken out with a
//! tool: `recall`, `search` or `list`.
//!
//! It keeps no sessions: each request is complete, and its answer is one JSON object. A request may read what its credential
//! allows, as for a recall over HTTP.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Collected, Full};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::time::timeout;

use super::text;

mod tools;

pub use tools::Session;

/// The path of the server.
pub const PATH: &str = "/abridge/mcp";

/// The longest request, in bytes.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// How long a request may take to arrive and be answered.
const TIMEOUT: Duration = Duration::from_mins(1);

const INSTRUCTIONS: &str = "Reads back what abridge, a proxy in front of the model, has taken out of this conversation to keep it short: old or long results of tools. A notice in the conversation names the handle of each.";

/// The server.
#[derive(derive_more::Debug)]
#[debug("McpServer")]
pub struct McpServer(StreamableHttpService<Handler, NeverSessionManager>);

/// Answers the messages of one request.
struct Handler;

// === impl McpServer ===

impl McpServer {
    /// Answers a request with what its session may read.
    pub async fn answer<B>(&self, mut request: Request<B>, session: Session) -> Response<Full<Bytes>>
    where
        B: Body + Send + 'static,
        B::Error: fmt::Display,
    {
        request.extensions_mut().insert(session);
        let answered = async {
            let (mut parts, body) = self.0.handle(request).await.into_parts();
            #[expect(clippy::disallowed_methods, reason = "the answers of these tools, which are bounded")]
            let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
            Response::from_parts(parts, Full::new(body))
        };
        let late = |_| text(StatusCode::REQUEST_TIMEOUT, "the request has not arrived within a minute\n");
        timeout(TIMEOUT, answered).await.unwrap_or_else(late)
    }
}

impl Default for McpServer {
    fn default() -> Self {
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .with_max_request_body_bytes(MAX_REQUEST_BYTES)
            // `Access` has checked both.
            .disable_allowed_hosts()
            .disable_allowed_origins();
        Self(StreamableHttpService::new(|| Ok(Handler), Arc::default(), config))
    }
}

// === impl Handler ===

impl ServerHandler for Handler {
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
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let parts = context.extensions.get::<Parts>();
        let session = parts.and_then(|parts| parts.extensions.get::<Session>());
        let Some(session) = session else { return Err(ErrorData::internal_error("the request has no session", None)) };
        let arguments = call.arguments.unwrap_or_default();
        let result = match session.call(&call.name, &arguments).await {
            Ok(found) => CallToolResult::success(vec![found]),
            Err(why) => CallToolResult::error(vec![ContentBlock::text(why)]),
        };
        Ok(result.into())
    }
}
