//! The upstream of `abridge simulate --policy URL`: it takes what a proxy under test sends, and answers at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::runtime::{self, Runtime};
use tokio::sync::{Mutex, mpsc};

use crate::body::{Budget, Limits, Pool};
use crate::cli::client::RunningProxy;
use crate::config::Config;
use crate::demo;
use crate::dialect;
use crate::simulate::Judged;
use crate::simulate::judge::Arrival;

/// The upstream. Proxies are asked one request at a time, so that what arrives is of that request.
pub(super) struct Judge {
    arrivals: Arc<Mutex<mpsc::Receiver<Bytes>>>,
    /// It serves as long as this is there.
    _runtime: Runtime,
}

/// An answer of the upstream.
#[derive(Deserialize)]
struct Answer {
    whole: String,
    stream: String,
}

/// Whether a request asks for a stream.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Asked {
    stream: bool,
}

/// How long a proxy may take for an answer: some load a model at their first request.
const PATIENCE: Duration = Duration::from_mins(5);

/// The longest body that the upstream reads, in bytes.
const MAX_BODY: usize = 256 << 20;

/// How many requests may arrive of one; further ones are not counted.
const MAX_ARRIVALS: usize = 256;

/// Which answer is given where.
const ANSWERS: &str = include_str!("judge/answers.toml");

impl Judge {
    /// Listens at the address. Each answer has so many words, for proxies that have the upstream summarise.
    pub(super) fn listen(address: SocketAddr, n_words: usize) -> anyhow::Result<Self> {
        let answers: Arc<BTreeMap<String, Answer>> =
            Arc::new(toml::from_str(&ANSWERS.replace("WORDS", &vec!["word"; n_words].join(" ")))?);
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(address));
        let listener = listener.with_context(|| format!("--judge-upstream {address}"))?;
        let limits = Limits { max_body: MAX_BODY, budget: Budget::new(2 * MAX_BODY), pool: Pool::default() };
        let (sender, arrivals) = mpsc::channel(MAX_ARRIVALS);
        let entered = runtime.enter();
        demo::serve(listener, limits, move |path, body| {
            let body = body.unwrap_or_default();
            let streams = serde_json::from_slice::<Asked>(&body).is_ok_and(|asked| asked.stream);
            if !body.is_empty() {
                let _counted = sender.try_send(body);
            }
            let known = answers.iter().find(|(end, _)| path.ends_with(end.as_str())).map(|(_, answer)| answer);
            let (kind, text) = match known {
                Some(answer) if streams => ("text/event-stream", answer.stream.trim_start()),
                Some(answer) => ("application/json", &*answer.whole),
                None => ("application/json", "{}"),
            };
            let mut response = Response::new(text.to_owned().into());
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            response
        });
        drop(entered);
        Ok(Self { arrivals: Arc::new(Mutex::new(arrivals)), _runtime: runtime })
    }

    /// What sends a request through the proxy at this base URL.
    pub(super) fn through(&self, url: &str) -> anyhow::Result<Box<Judged>> {
        let mut proxy = RunningProxy::of(Some(url), None, &Config::default(), "policy")?;
        proxy.patience = PATIENCE;
        let path = url.parse::<http::Uri>()?.path().trim_end_matches('/').to_owned();
        let prefix = path.strip_suffix("/v1").unwrap_or(&path).to_owned();
        let arrivals = Arc::clone(&self.arrivals);
        Ok(Box::new(move |body| {
            let mut arrivals = arrivals.blocking_lock();
            let is_bearer = dialect::of_body(body).facts().key_field == "authorization";
            // Requests that came after the last answer, such as for summaries, are paid with this one.
            let mut further: Vec<_> = std::iter::from_fn(|| arrivals.try_recv().ok()).collect();
            let began = Instant::now();
            let answer = proxy.ask(&prefix, None, if is_bearer { "Bearer judge" } else { "judge" }, body);
            let within = began.elapsed();
            let mut arrived: Vec<_> = std::iter::from_fn(|| arrivals.try_recv().ok()).collect();
            match (arrived.pop(), answer) {
                (Some(body), _) => {
                    further.extend(arrived);
                    Ok(Arrival { body, further, within })
                }
                (None, Ok(answer)) => Err(format!("{}: {}", answer.status, answer.first_line())),
                (None, Err(error)) => Err(error.to_string()),
            }
        }))
    }
}
