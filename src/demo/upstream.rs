//! The upstream of the demo: a server with a scripted model that validates requests as strictly as real servers.
//!
//! Its parsing is independent of abridge's own. Only the token counter is shared.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::net::{TcpListener, TcpStream};

use super::client::limits;
use super::script::{self, MODEL, SCRIPT, ScriptAction, ScriptStep};
use super::tool_outputs::CAUSE;
use crate::body::{Limits, read_up_to};
use crate::dialect;
use crate::tasks::Tasks;
use crate::tokens::{self, Gauge, Meter, REQUEST_OVERHEAD};

/// The context window of the model, in tokens.
pub(super) const WINDOW_TOKENS: usize = 8192;

/// The running server, which runs until the runtime ends.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    address: SocketAddr,
    model: Arc<ScriptedModel>,
}

/// The scripted model.
#[derive(Debug)]
struct ScriptedModel {
    gauge: Gauge,
    limits: Limits,
    /// The body of the last request.
    last: ArcSwap<Bytes>,
}

/// The parts of a request that the server reads.
#[derive(Deserialize)]
struct Conversation<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
}

/// The parts of a message that the server reads.
#[derive(Deserialize)]
pub(super) struct Message<'a> {
    role: Cow<'a, str>,
    content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<Call>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct Call {
    id: String,
}

/// An error with OpenAI's message, code and parameter.
#[derive(Debug, Eq, PartialEq, Serialize)]
pub(super) struct Refusal {
    /// The error message.
    pub(super) message: String,
    r#type: &'static str,
    param: &'static str,
    code: Option<&'static str>,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: String,
    object: &'static str,
    created: u32,
    model: &'static str,
    choices: [Choice<'a>; 1],
    usage: Usage,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    message: AssistantMessage<'a>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct AssistantMessage<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[ToolCall; 1]>,
}

#[derive(Serialize)]
struct ToolCall {
    id: String,
    r#type: &'static str,
    function: Function,
}

#[derive(Serialize)]
struct Function {
    name: &'static str,
    arguments: String,
}

#[derive(Serialize)]
struct Usage {
    #[serde(rename = "prompt_tokens")]
    prompt: usize,
    #[serde(rename = "completion_tokens")]
    completion: usize,
    #[serde(rename = "total_tokens")]
    total: usize,
}

// === impl Upstream ===

impl Upstream {
    /// Listens on a free port of this machine.
    pub(super) async fn start(tasks: &Tasks) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let gauge = Meter::new(&tokens::Settings::default(), &[]).for_model(Some(MODEL));
        let model = Arc::new(ScriptedModel { gauge, limits: limits(), last: ArcSwap::default() });
        let (serving, server) = (tasks.clone(), Arc::clone(&model));
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.spawn(serve(stream, Arc::clone(&server)));
            }
        });
        Ok(Self { address, model })
    }

    /// Scheme, host and port.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The tokens of a request body.
    pub(super) fn count(&self, body: &[u8]) -> usize {
        serde_json::from_slice::<Conversation<'_>>(body).map_or(0, |conversation| self.model.count(&conversation))
    }

    /// The body of the last chat request.
    pub(super) fn last_request(&self) -> Arc<Bytes> {
        self.model.last.load_full()
    }
}

async fn serve(stream: TcpStream, model: Arc<ScriptedModel>) {
    let answer = service_fn(move |request| {
        let model = Arc::clone(&model);
        async move { Ok::<_, Infallible>(model.answer(request).await) }
    });
    // A client may disconnect at any time.
    let _gone = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

// === impl ScriptedModel ===

impl ScriptedModel {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let is_chat = request.method() == Method::POST && request.uri().path() == "/v1/chat/completions";
        if !is_chat {
            return match request.uri().path() {
                "/v1/models" => json(StatusCode::OK, &models()),
                _ => json(StatusCode::NOT_FOUND, &Refusal::new("There is nothing here.".to_owned(), None).wrapped()),
            };
        }
        let Ok(body) = read_up_to(request.into_body(), &self.limits).await else {
            return json(StatusCode::BAD_REQUEST, &Refusal::new("The body broke off.".to_owned(), None).wrapped());
        };
        self.last.store(Arc::new(body.bytes.clone()));
        match self.complete(&body.bytes) {
            Ok(completion) => json(StatusCode::OK, &completion),
            Err(refusal) => json(StatusCode::BAD_REQUEST, &refusal.wrapped()),
        }
    }

    /// Validates a request, and answers with the step that follows its last call.
    fn complete(&self, body: &[u8]) -> Result<String, Refusal> {
        let not_understood = |error: serde_json::Error| Refusal::new(format!("Not understood: {error}."), None);
        let conversation: Conversation<'_> = serde_json::from_slice(body).map_err(not_understood)?;
        let prompt_tokens = self.count(&conversation);
        if prompt_tokens > WINDOW_TOKENS {
            return Err(Refusal::overflow(prompt_tokens));
        }
        let messages = conversation.messages.iter().map(|raw| serde_json::from_str(raw.get()));
        let messages: Vec<Message<'_>> = messages.collect::<Result<_, _>>().map_err(not_understood)?;
        check_sequence(&messages)?;
        let called = messages
            .iter()
            .rev()
            .flat_map(|message| &message.tool_calls)
            .find_map(|call| script::step_of_call(&call.id));
        let n = called.map_or(0, |step| step + 1);
        let Some(step) = SCRIPT.get(n) else { return Err(Refusal::new("The script is over.".to_owned(), None)) };
        let completion = Completion::new(n, step, &search_command(&messages), prompt_tokens, &self.gauge);
        serde_json::to_string(&completion).map_err(not_understood)
    }

    fn count(&self, conversation: &Conversation<'_>) -> usize {
        let messages = conversation
            .messages
            .iter()
            .map(|raw| dialect::default().element_tokens(&self.gauge, raw.get().as_bytes()));
        let tools =
            conversation.tools.map_or(0, |raw| dialect::default().tools_tokens(&self.gauge, raw.get().as_bytes()));
        REQUEST_OVERHEAD + tools + messages.sum::<usize>()
    }
}

/// Checks that each call has its result directly behind it, and each result its call before it.
fn check_sequence(messages: &[Message<'_>]) -> Result<(), Refusal> {
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        if message.role == "tool" {
            let id = message.tool_call_id.as_deref().unwrap_or_default();
            let Some(at) = open.iter().position(|open| *open == id) else { return Err(Refusal::orphan()) };
            open.remove(at);
            continue;
        }
        if !open.is_empty() {
            break;
        }
        open.extend(message.tool_calls.iter().map(|call| call.id.as_str()));
    }
    if open.is_empty() { Ok(()) } else { Err(Refusal::dangling(&open)) }
}

/// The command that searches the log: through the recall URL if the log was replaced by a notice.
fn search_command(messages: &[Message<'_>]) -> String {
    let log = SCRIPT.iter().position(|step| matches!(step.action, ScriptAction::Log)).map(script::call_id);
    let notice = messages.iter().find(|message| message.tool_call_id.is_some() && message.tool_call_id == log);
    match notice.and_then(Message::recall_url) {
        Some(url) => format!("curl -s '{url}?grep={CAUSE}'"),
        None => format!("{} | grep {CAUSE}", script::LOG_COMMAND),
    }
}

fn json(status: StatusCode, body: &(impl AsRef<[u8]> + ?Sized)) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(body.as_ref())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn models() -> String {
    format!(
        r#"{{"object":"list","data":[{{"id":"{MODEL}","object":"model","created":0,"owned_by":"demo","max_model_len":{WINDOW_TOKENS}}}]}}"#
    )
}

/// The messages of a request.
pub(super) fn messages(body: &[u8]) -> Vec<Message<'_>> {
    let Ok(conversation) = serde_json::from_slice::<Conversation<'_>>(body) else { return Vec::new() };
    conversation.messages.into_iter().filter_map(|raw| serde_json::from_str(raw.get()).ok()).collect()
}

// === impl Message ===

impl Message<'_> {
    /// The id of the call that a result answers.
    pub(super) fn answered_call_id(&self) -> Option<&str> {
        self.tool_call_id.as_deref()
    }

    /// The text of the message.
    pub(super) fn text(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
    }

    /// The recall URL in a notice or a placeholder.
    pub(super) fn recall_url(&self) -> Option<&str> {
        let (_, url) = self.text().split_once("GET ")?;
        url.split_whitespace().next().filter(|url| url.starts_with("http://"))
    }
}

// === impl Refusal ===

impl Refusal {
    fn new(message: String, code: Option<&'static str>) -> Self {
        Self { message, r#type: "invalid_request_error", param: "messages", code }
    }

    fn overflow(tokens: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {WINDOW_TOKENS} tokens. However, your messages resulted in {tokens} tokens. \
             Please reduce the length of the messages."
        );
        Self::new(message, Some("context_length_exceeded"))
    }

    fn dangling(ids: &[&str]) -> Self {
        let message = format!(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. \
             The following tool_call_ids did not have response messages: {}",
            ids.join(", ")
        );
        Self::new(message, None)
    }

    fn orphan() -> Self {
        let message = "messages with role 'tool' must be a response to a preceding message with 'tool_calls'.";
        Self::new(message.to_owned(), None)
    }

    fn wrapped(&self) -> String {
        serde_json::to_string(self).map_or_else(|_| String::new(), |error| format!(r#"{{"error":{error}}}"#))
    }
}

// === impl Completion ===

impl<'a> Completion<'a> {
    fn new(n: usize, step: &'a ScriptStep, look_back: &str, prompt: usize, gauge: &Gauge) -> Self {
        let call = step.action.call(look_back);
        let arguments = call.as_ref().map_or("", |(_, arguments)| arguments.as_str());
        let completion = gauge.text(step.text) + gauge.text(arguments);
        let finish_reason = if call.is_some() { "tool_calls" } else { "stop" };
        let tool_calls = call.map(|(name, arguments)| {
            [ToolCall { id: script::call_id(n), r#type: "function", function: Function { name, arguments } }]
        });
        Self {
            id: format!("chatcmpl-demo-{n}"),
            object: "chat.completion",
            created: 0,
            model: MODEL,
            choices: [Choice {
                index: 0,
                message: AssistantMessage { role: "assistant", content: step.text, tool_calls },
                finish_reason,
            }],
            usage: Usage { prompt, completion, total: prompt + completion },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: &str) -> Result<(), String> {
        let body = format!(r#"{{"messages":[{messages}]}}"#);
        check_sequence(&super::messages(body.as_bytes())).map_err(|refusal| refusal.message)
    }

    #[test]
    fn calls_without_results_and_results_without_calls_are_refused() {
        let call = r#"{"role":"assistant","tool_calls":[{"id":"a"},{"id":"b"}]}"#;
        let result = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"x"}}"#);
        let (a, b, user) = (result("a"), result("b"), r#"{"role":"user","content":"x"}"#);
        assert_eq!(check(&format!("{user},{call},{b},{a},{user}")), Ok(()));
        for wrong in [format!("{call},{a}"), format!("{call},{a},{user}"), format!("{call},{a},{user},{b}")] {
            let said = check(&wrong).unwrap_err();
            assert!(said.ends_with("did not have response messages: b"), "{wrong}: {said}");
        }
        for wrong in [a.clone(), format!("{user},{a}"), format!("{call},{a},{b},{b}")] {
            assert!(check(&wrong).unwrap_err().starts_with("messages with role 'tool'"), "{wrong}");
        }
    }
}
