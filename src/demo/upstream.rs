//! The upstream of the demo: a server with a scripted model that validates requests as strictly as real servers.
//!
//! Its parsing is independent of abridge's own. Only the token counter is shared.

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
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::{TcpListener, TcpStream};

use super::client::{limits, paced};
use super::format::{Answer, Call, Entry, Format, Refusal};
use super::script::{self, MODEL, SCRIPT, ScriptAction};
use super::tool_outputs::CAUSE;
use crate::body::{Limits, read_up_to};
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
    format: &'static dyn Format,
    gauge: Gauge,
    limits: Limits,
    /// The body of the last request.
    last: ArcSwap<Bytes>,
}

/// The parts of a request that have tokens.
#[derive(Deserialize)]
struct CountedParts<'a> {
    #[serde(borrow, alias = "input")]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow, alias = "system")]
    instructions: Option<&'a RawValue>,
}

// === impl Upstream ===

impl Upstream {
    /// Listens on a free port of this machine.
    pub(super) async fn start(tasks: &Tasks, format: &'static dyn Format) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let gauge = Meter::new(&tokens::Settings::default(), &[]).for_model(Some(MODEL));
        let model = Arc::new(ScriptedModel { format, gauge, limits: limits(), last: ArcSwap::default() });
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
        self.model.count(body).unwrap_or_default()
    }

    /// The wire format that it speaks.
    pub(super) fn format(&self) -> &'static dyn Format {
        self.model.format
    }

    /// The body of the last request to the model.
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
        let refuse = |status, refusal: &Refusal| json(status, &self.format.refusal(refusal));
        let path = request.uri().path();
        if request.method() != Method::POST || path != self.format.path() {
            return match path {
                "/v1/models" => json(StatusCode::OK, &models()),
                _ => refuse(StatusCode::NOT_FOUND, &Refusal::Other("There is nothing here.".to_owned())),
            };
        }
        let Ok(body) = read_up_to(paced(request.into_body()), &self.limits).await else {
            return refuse(StatusCode::BAD_REQUEST, &Refusal::Other("The body broke off.".to_owned()));
        };
        self.last.store(Arc::new(body.clone()));
        match self.complete(&body) {
            Ok(answer) => json(StatusCode::OK, &self.format.answer(&answer)),
            Err(refusal) => refuse(StatusCode::BAD_REQUEST, &refusal),
        }
    }

    /// Validates a request, and answers with the step that follows its last call.
    fn complete(&self, body: &[u8]) -> Result<Answer, Refusal> {
        let not_understood = |error: serde_json::Error| Refusal::Other(format!("Not understood: {error}."));
        let tokens = self.count(body).map_err(not_understood)?;
        if tokens > WINDOW_TOKENS {
            return Err(Refusal::Overflow { tokens, window: WINDOW_TOKENS });
        }
        let entries = self.format.read_request(body).map_err(not_understood)?;
        check_sequence(&entries)?;
        let called = entries.iter().rev().find_map(|entry| match entry {
            Entry::Call(call) => script::step_of_call(&call.id),
            _ => None,
        });
        let n = called.map_or(0, |step| step + 1);
        let Some(step) = SCRIPT.get(n) else { return Err(Refusal::Other("The script is over.".to_owned())) };
        let mut answer = Answer { entries: vec![Entry::Said(step.text.to_owned())], tokens: (tokens, 0) };
        let mut completion = self.gauge.text(step.text);
        if let Some((name, arguments)) = step.action.call(&search_command(&entries)) {
            completion += self.gauge.text(&arguments);
            answer.entries.push(Entry::Call(Call { id: script::call_id(n), name: name.to_owned(), arguments }));
        }
        answer.tokens.1 = completion;
        Ok(answer)
    }

    fn count(&self, body: &[u8]) -> Result<usize, serde_json::Error> {
        let CountedParts { messages, tools, instructions } = serde_json::from_slice(body)?;
        let (dialect, gauge) = (self.format.dialect(), &self.gauge);
        let messages = messages.into_iter().map(|raw| dialect.element_tokens(gauge, raw.get().as_bytes()));
        let tools = tools.map_or(0, |raw| dialect.tools_tokens(gauge, raw.get().as_bytes()));
        let instructions = instructions.map_or(0, |raw| dialect.instructions_tokens(gauge, raw.get().as_bytes()));
        Ok(REQUEST_OVERHEAD + tools + instructions + messages.sum::<usize>())
    }
}

/// Checks that each call has its result directly behind it, and each result its call before it.
fn check_sequence(entries: &[Entry]) -> Result<(), Refusal> {
    let mut open: Vec<&str> = Vec::new();
    for entry in entries {
        match entry {
            Entry::Result { call_id, .. } => match open.iter().position(|open| open == call_id) {
                Some(at) => drop(open.remove(at)),
                None => return Err(Refusal::Orphan(call_id.clone())),
            },
            Entry::Call(call) => open.push(&call.id),
            Entry::User(_) | Entry::Said(_) if open.is_empty() => {}
            Entry::User(_) | Entry::Said(_) => break,
        }
    }
    if open.is_empty() { Ok(()) } else { Err(Refusal::Dangling(open.into_iter().map(str::to_owned).collect())) }
}

/// The command that searches the log: through the recall URL if the log was replaced by a notice.
fn search_command(entries: &[Entry]) -> String {
    let log = SCRIPT.iter().position(|step| matches!(step.action, ScriptAction::Log)).map(script::call_id);
    let notice = entries.iter().find_map(|entry| match entry {
        Entry::Result { call_id, text } if Some(call_id) == log.as_ref() => recall_url(text),
        _ => None,
    });
    match notice {
        Some(url) => format!("curl -s '{url}?grep={CAUSE}'"),
        None => format!("{} | grep {CAUSE}", script::LOG_COMMAND),
    }
}

/// The recall URL in the text of a notice or a placeholder.
pub(super) fn recall_url(text: &str) -> Option<&str> {
    let (_, url) = text.split_once("GET ")?;
    url.split_whitespace().next().filter(|url| url.starts_with("http://"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::format;
    use crate::upstream::routes::DialectName;

    #[test]
    fn calls_without_results_and_results_without_calls_are_refused_in_every_format() {
        let call = |id: &str| Entry::Call(Call { id: id.to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() });
        let result = |id: &str| Entry::Result { call_id: id.to_owned(), text: "x".to_owned() };
        let (user, said) = (Entry::User("x".to_owned()), Entry::Said("x".to_owned()));
        let turn = [user.clone(), said.clone(), call("a"), result("a"), said, call("b")];
        let dangling = Err(Refusal::Dangling(vec!["b".to_owned()]));
        let orphan = |id: &str| Err(Refusal::Orphan(id.to_owned()));
        let cases = [
            (vec![result("b"), user.clone()], Ok(())),
            (vec![], dangling),
            (vec![user.clone(), result("b")], Err(Refusal::Dangling(vec!["b".to_owned()]))),
            (vec![result("b"), result("b")], orphan("b")),
            (vec![result("a"), result("b")], orphan("a")),
        ];
        for name in DialectName::ALL {
            let format = format::of(name);
            for (rest, expected) in &cases {
                let request = format.request(&[&turn[..], rest].concat());
                let read = format.read_request(request.as_bytes()).unwrap();
                assert_eq!(&check_sequence(&read), expected, "{request}");
            }
        }
    }
}
