//! The upstream of the demo: it counts tokens, and validates requests as strictly as real servers.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;

use crate::body::{Budget, Limits, Pace, PacedBody, Pool, read_up_to};
use crate::conversation::{BlockKind, Role};
use crate::dialect;
use crate::simulate::sent_request::SentRequest;
use crate::tasks::Tasks;
use crate::tokens::{self, Gauge, Meter};

/// The context window of the model, in tokens.
pub const WINDOW_TOKENS: usize = 8192;

/// The longest body that it reads, in bytes.
const MAX_BODY_BYTES: usize = 8 << 20;

/// The longest pause within a body.
const MAX_PAUSE: Duration = Duration::from_secs(20);

/// The running server, which runs until the runtime ends.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Scheme, host and port.
    pub url: String,
    /// What counts the tokens of its model.
    pub gauge: Gauge,
    /// The body of the last request.
    last: Arc<ArcSwap<Bytes>>,
}

/// Why the model refuses a request.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Refusal {
    /// In a word or two.
    pub code: String,
    /// In a sentence.
    pub message: String,
}

/// Serves a scripted upstream until the runtime ends: `answer` gets the path and the body of each request, or why it is not whole.
pub fn serve(
    listener: TcpListener,
    limits: Limits,
    answer: impl Fn(&str, Result<Bytes, String>) -> Response<Full<Bytes>> + Clone + Send + Sync + 'static,
) {
    let tasks = Tasks::default();
    tasks.clone().spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answer, limits) = (answer.clone(), limits.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (answer, limits) = (answer.clone(), limits.clone());
                async move {
                    let path = request.uri().path().to_owned();
                    let body = PacedBody::new(request.into_body(), Pace { pause: MAX_PAUSE, ..Pace::default() }, None);
                    let body = read_up_to(body, &limits).await.map_err(|error| error.to_string());
                    Ok::<_, Infallible>(answer(&path, body))
                }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client may disconnect at any time.
            tasks.spawn(async move { drop(connection.await) });
        }
    });
}

// === impl Upstream ===

impl Upstream {
    /// Listens on a free port of this machine.
    pub async fn start(model: &str) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let budget = Budget::new(4 * MAX_BODY_BYTES);
        let limits = Limits { max_body: MAX_BODY_BYTES, budget, pool: Pool::default() };
        let gauge = Meter::new(&tokens::Settings::default(), &[]).for_model(Some(model));
        let upstream = Self { url, gauge, last: Arc::default() };
        let server = upstream.clone();
        serve(listener, limits, move |_, body| server.answer(body));
        Ok(upstream)
    }

    /// The body of the last request.
    pub fn last_request(&self) -> Bytes {
        Bytes::clone(&self.last.load())
    }

    fn answer(&self, body: Result<Bytes, String>) -> Response<Full<Bytes>> {
        let body = body.inspect(|body| self.last.store(Arc::new(body.clone())));
        let body = body.map_err(|error| Refusal::new("incomplete body", error));
        let (status, answer) = match body.and_then(|body| self.count(&body)) {
            Ok(n) => {
                let usage = json!({"prompt_tokens": n, "input_tokens": n, "completion_tokens": 1, "output_tokens": 1});
                (StatusCode::OK, json!({"usage": usage}))
            }
            Err(refusal) => (StatusCode::BAD_REQUEST, json!({"type": "error", "error": refusal})),
        };
        let mut response = Response::new(Full::new(answer.to_string().into()));
        *response.status_mut() = status;
        response
    }

    /// The tokens of a request that the model accepts.
    fn count(&self, body: &Bytes) -> Result<usize, Refusal> {
        let sent = SentRequest::new(body.clone(), &self.gauge, None);
        let tokens = sent.map_err(|error| Refusal::new("not understood", error.to_string()))?.tokens();
        if tokens > WINDOW_TOKENS {
            let message = format!("The request has {tokens} tokens, and the window of this model has {WINDOW_TOKENS}.");
            return Err(Refusal::new("context_length_exceeded", message));
        }
        check_sequence(body).map(|()| tokens)
    }
}

impl Refusal {
    fn new(code: &str, message: String) -> Self {
        Self { code: code.to_owned(), message }
    }
}

/// Checks that each call has its result before the next turn, and that each result has its call.
fn check_sequence(body: &[u8]) -> Result<(), Refusal> {
    let parsed = dialect::of_body(body).parse(body);
    let conversation = parsed.map_err(|error| Refusal::new("not understood", error.to_string()))?;
    let (mut open, mut turn) = (BTreeSet::new(), 0);
    let dangling = |open: &BTreeSet<&str>| match open.first() {
        Some(id) => Err(Refusal::new("tool call unanswered", format!("The tool call {id} has no result."))),
        None => Ok(()),
    };
    for unit in &conversation.units {
        if unit.role != Role::Tool && unit.turn != turn {
            dangling(&open)?;
        }
        turn = unit.turn;
        for block in conversation.blocks_of(unit) {
            match &block.kind {
                BlockKind::ToolCall { id, .. } => drop(open.insert(&*id.text)),
                BlockKind::ToolResult { call_id, .. } if open.remove(&*call_id.text) => {}
                BlockKind::ToolResult { call_id, .. } => {
                    let message = format!("No tool call before this result has the id {}.", call_id.text);
                    return Err(Refusal::new("result without a call", message));
                }
            }
        }
    }
    dangling(&open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::Session;
    use crate::upstream::routes::DialectName;

    #[test]
    fn calls_without_results_and_results_without_calls_are_refused_in_every_format() {
        let session = Session::read().unwrap();
        for name in DialectName::ALL {
            let requests: Vec<_> = session.transcript(name).unwrap().requests().collect();
            let code = |body: &[u8]| check_sequence(body).map_err(|refusal| refusal.code);
            assert_eq!(code(&requests[7]), Ok(()), "{name:?}");
            // The user has interrupted the call of this turn.
            assert_eq!(code(&requests[8]), Err("tool call unanswered".to_owned()), "{name:?}");
            let renamed = String::from_utf8(requests[7].to_vec()).unwrap().replacen("call_3", "call_x", 1);
            let renamed = code(renamed.as_bytes()).unwrap_err();
            assert!(["tool call unanswered", "result without a call"].contains(&&*renamed), "{name:?}: {renamed}");
        }
    }
}
