//! The upstream of the demo: a server with a scripted model, which is as strict as servers are.
//!
//! It is written without a look at how abridge reads a conversation. Only the counting of tokens is shared.

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
use super::session::{self, Act, MODEL, SESSION, Step};
use super::texts::CAUSE;
use crate::body::{Limits, read_up_to};
use crate::dialect;
use crate::tasks::Tasks;
use crate::tokens::{self, Gauge, Meter, REQUEST_OVERHEAD};

/// How many tokens the model takes.
pub(super) const WINDOW: usize = 8192;

/// The running server. It lives as long as the runtime.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    address: SocketAddr,
    model: Arc<Model>,
}

/// The scripted model.
#[derive(Debug)]
struct Model {
    gauge: Gauge,
    limits: Limits,
    /// The last request.
    last: ArcSwap<Bytes>,
}

/// What the server reads of a request.
#[derive(Deserialize)]
struct Conversation<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
}

/// What it reads of a message.
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

/// Why a request is refused: OpenAI's sentence, code and parameter.
#[derive(Debug, Eq, PartialEq, Serialize)]
pub(super) struct Refusal {
    /// The sentence.
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
    message: Said<'a>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Said<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[Made; 1]>,
}

#[derive(Serialize)]
struct Made {
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
        let model = Arc::new(Model { gauge, limits: limits(), last: ArcSwap::default() });
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

    /// The tokens of a request.
    pub(super) fn count(&self, body: &[u8]) -> usize {
        serde_json::from_slice::<Conversation<'_>>(body).map_or(0, |conversation| self.model.count(&conversation))
    }

    /// The last request that came.
    pub(super) fn last(&self) -> Arc<Bytes> {
        self.model.last.load_full()
    }
}

async fn serve(stream: TcpStream, model: Arc<Model>) {
    let answer = service_fn(move |request| {
        let model = Arc::clone(&model);
        async move { Ok::<_, Infallible>(model.answer(request).await) }
    });
    // A client that goes away has its reasons.
    let _gone = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

// === impl Model ===

impl Model {
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

    /// Judges a request, and goes on from where it ends.
    fn complete(&self, body: &[u8]) -> Result<String, Refusal> {
        let not_understood = |error: serde_json::Error| Refusal::new(format!("Not understood: {error}."), None);
        let conversation: Conversation<'_> = serde_json::from_slice(body).map_err(not_understood)?;
        let prompt_tokens = self.count(&conversation);
        if prompt_tokens > WINDOW {
            return Err(Refusal::overflow(prompt_tokens));
        }
        let messages = conversation.messages.iter().map(|raw| serde_json::from_str(raw.get()));
        let messages: Vec<Message<'_>> = messages.collect::<Result<_, _>>().map_err(not_understood)?;
        sequence(&messages)?;
        let called =
            messages.iter().rev().flat_map(|message| &message.tool_calls).find_map(|call| session::step_of(&call.id));
        let n = called.map_or(0, |step| step + 1);
        let Some(step) = SESSION.get(n) else { return Err(Refusal::new("The script is over.".to_owned(), None)) };
        let completion = Completion::new(n, step, &look_back(&messages), prompt_tokens, &self.gauge);
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

/// Each call has its result directly behind it, and each result its call before it.
fn sequence(messages: &[Message<'_>]) -> Result<(), Refusal> {
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

/// The command that finds the cause in the log: in the notice that stands for the log is where to read it.
fn look_back(messages: &[Message<'_>]) -> String {
    let log = SESSION.iter().position(|step| matches!(step.act, Act::Log)).map(session::call_id);
    let notice = messages.iter().find(|message| message.tool_call_id.is_some() && message.tool_call_id == log);
    match notice.and_then(Message::way_back) {
        Some(url) => format!("curl -s '{url}?grep={CAUSE}'"),
        None => format!("{} | grep {CAUSE}", session::LOG_COMMAND),
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
        r#"{{"object":"list","data":[{{"id":"{MODEL}","object":"model","created":0,"owned_by":"demo","max_model_len":{WINDOW}}}]}}"#
    )
}

/// The messages of a request.
pub(super) fn messages(body: &[u8]) -> Vec<Message<'_>> {
    let Ok(conversation) = serde_json::from_slice::<Conversation<'_>>(body) else { return Vec::new() };
    conversation.messages.into_iter().filter_map(|raw| serde_json::from_str(raw.get()).ok()).collect()
}

// === impl Message ===

impl Message<'_> {
    /// The call that a result answers.
    pub(super) fn answers(&self) -> Option<&str> {
        self.tool_call_id.as_deref()
    }

    /// The text.
    pub(super) fn text(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
    }

    /// The URL that a text names for what was taken out of it.
    pub(super) fn way_back(&self) -> Option<&str> {
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
            "This model's maximum context length is {WINDOW} tokens. However, your messages resulted in {tokens} tokens. \
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
    fn new(n: usize, step: &'a Step, look_back: &str, prompt: usize, gauge: &Gauge) -> Self {
        let call = step.act.call(look_back);
        let arguments = call.as_ref().map_or("", |(_, arguments)| arguments.as_str());
        let completion = gauge.text(step.say) + gauge.text(arguments);
        let finish_reason = if call.is_some() { "tool_calls" } else { "stop" };
        let tool_calls = call.map(|(name, arguments)| {
            [Made { id: session::call_id(n), r#type: "function", function: Function { name, arguments } }]
        });
        Self {
            id: format!("chatcmpl-demo-{n}"),
            object: "chat.completion",
            created: 0,
            model: MODEL,
            choices: [Choice {
                index: 0,
                message: Said { role: "assistant", content: step.say, tool_calls },
                finish_reason,
            }],
            usage: Usage { prompt, completion, total: prompt + completion },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(messages: &str) -> Result<(), String> {
        let body = format!(r#"{{"messages":[{messages}]}}"#);
        sequence(&super::messages(body.as_bytes())).map_err(|refusal| refusal.message)
    }

    #[test]
    fn is_strict_about_the_sequence() {
        let call = r#"{"role":"assistant","tool_calls":[{"id":"a"},{"id":"b"}]}"#;
        let result = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"x"}}"#);
        let (a, b, user) = (result("a"), result("b"), r#"{"role":"user","content":"x"}"#);
        assert_eq!(judged(&format!("{user},{call},{b},{a},{user}")), Ok(()));
        for wrong in [format!("{call},{a}"), format!("{call},{a},{user}"), format!("{call},{a},{user},{b}")] {
            let said = judged(&wrong).unwrap_err();
            assert!(said.ends_with("did not have response messages: b"), "{wrong}: {said}");
        }
        for wrong in [a.clone(), format!("{user},{a}"), format!("{call},{a},{b},{b}")] {
            assert!(judged(&wrong).unwrap_err().starts_with("messages with role 'tool'"), "{wrong}");
        }
    }
}
