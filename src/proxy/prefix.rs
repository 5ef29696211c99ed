//! How much of a request an earlier one began with: that is what an upstream's prompt cache can serve, if it still has it.
//!
//! It is found out beside the requests, a millisecond after they went, many at a time, by a thread that stands back. What is
//! sent is hashed in pieces: first the tools, then message by message, as models read them. Each hash has those before it in
//! it, so a piece is known only if all before it were the same, for the same upstream, model and caller. When too many wait
//! or memory is short, a request goes without; how long upstreams keep what they cache is not known here.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use tokio::sync::oneshot;
use tokio::time::sleep;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::body::{Budget, Lease, Outgoing};
use crate::dialect::Dialect;
use crate::metrics::Metrics;
use crate::payload::Caller;
use crate::tasks::{Tasks, blocking};

/// Finds it out. Clones share what is known.
#[derive(Clone, Debug)]
pub(super) struct Foresight(Arc<Shared>);

#[derive(Debug)]
#[expect(clippy::disallowed_types, reason = "held for a few instructions, or on threads that may block")]
struct Shared {
    queue: std::sync::Mutex<Queue>,
    known: std::sync::Mutex<Known>,
    key: RandomState,
    budget: Budget,
    tasks: Tasks,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: Vec<Job>,
    // Somebody will take them.
    is_served: bool,
}

/// One request that has been sent.
#[derive(Debug)]
struct Job {
    dialect: &'static dyn Dialect,
    seed: u64,
    parts: Vec<Bytes>,
    answer: oneshot::Sender<f64>,
    // Pays for the parts.
    lease: Arc<Lease>,
}

/// The hashes of beginnings, in two generations: when the younger one is full it becomes the older one.
#[derive(Debug, Default)]
struct Known {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

/// How long requests are gathered.
const PAUSE: Duration = Duration::from_millis(1);

/// How many may wait.
const MOST_WAITING: usize = 256;

/// A piece, in bytes: some 128 tokens.
const PIECE: usize = 512;

/// How many pieces a generation has: 64 MiB of conversations, at some 2 MB.
const GENERATION: usize = 128 << 10;

// === impl Foresight ===

impl Foresight {
    /// Nothing is known yet.
    #[expect(clippy::disallowed_types, reason = "see `Shared`")]
    pub(super) fn new(budget: Budget, tasks: Tasks, metrics: Metrics) -> Self {
        let shared = Shared {
            queue: std::sync::Mutex::default(),
            known: std::sync::Mutex::default(),
            key: RandomState::new(),
            budget,
            tasks,
            metrics,
        };
        Self(Arc::new(shared))
    }

    /// The share of this body, 0 to 1, that an earlier request began with. It comes later, or never.
    pub(super) fn look(
        &self,
        dialect: &'static dyn Dialect,
        body: &Outgoing,
        target: &Uri,
        caller: Caller,
    ) -> Option<oneshot::Receiver<f64>> {
        let Outgoing::Held { parts, lease } = body else { return None };
        if self.0.budget.is_scarce() {
            self.0.metrics.unpredicted();
            return None;
        }
        let (answer, answered) = oneshot::channel();
        let begins = {
            let mut queue = self.0.queue.lock().ok()?;
            if queue.jobs.len() >= MOST_WAITING {
                self.0.metrics.unpredicted();
                return None;
            }
            let seed = self.0.key.hash_one((target.authority().map(http::uri::Authority::as_str), caller));
            let (parts, lease) = (parts.iter().cloned().collect(), Arc::clone(lease));
            queue.jobs.push(Job { dialect, seed, parts, answer, lease });
            !mem::replace(&mut queue.is_served, true)
        };
        if begins {
            self.0.tasks.spawn(self.clone().serve());
        }
        Some(answered)
    }

    /// Does what there is to do.
    async fn serve(self) {
        loop {
            sleep(PAUSE).await;
            let jobs = {
                let Ok(mut queue) = self.0.queue.lock() else { return };
                queue.is_served = !queue.jobs.is_empty();
                mem::take(&mut queue.jobs)
            };
            if jobs.is_empty() {
                return;
            }
            let shared = Arc::clone(&self.0);
            let _done = blocking(move || jobs.into_iter().for_each(|job| shared.work(job))).await;
        }
    }
}

impl Shared {
    fn work(&self, job: Job) {
        let Job { dialect, seed, parts, answer, lease } = job;
        let (body, _copy) = match &parts[..] {
            [body] => (body.clone(), None),
            parts => {
                let copy = self.budget.lease(parts.iter().map(Bytes::len).sum());
                if copy.is_none() {
                    return self.metrics.unpredicted();
                }
                (parts.concat().into(), copy)
            }
        };
        let share = pieces(dialect, &body, seed).and_then(|pieces| Some(self.known.lock().ok()?.meet(&pieces)));
        drop((body, parts, lease));
        if let Some(share) = share {
            // Who asked may have gone.
            let _told = answer.send(share);
        }
    }
}

/// The hash of each piece and its length.
fn pieces(dialect: &dyn Dialect, body: &Bytes, seed: u64) -> Option<Vec<(u64, usize)>> {
    let conversation = dialect.parse(body).ok()?;
    let model = conversation.model.as_deref().unwrap_or_default();
    let mut hash = xxh3_64_with_seed(model.as_bytes(), seed);
    let spans = conversation.tools.into_iter().chain(conversation.messages.iter().map(|message| message.span));
    let pieces = spans.flat_map(|span| span.of(body).chunks(PIECE));
    let hashed = pieces.map(|piece| {
        hash = xxh3_64_with_seed(piece, hash);
        (hash, piece.len())
    });
    Some(hashed.collect())
}

// === impl Known ===

impl Known {
    /// The share of the pieces that begin as something that was met before, by their length. From now on all were.
    fn meet(&mut self, pieces: &[(u64, usize)]) -> f64 {
        let known: usize = pieces.iter().take_while(|(hash, _)| self.has(*hash)).map(|(_, len)| len).sum();
        for (hash, _) in pieces {
            self.add(*hash);
        }
        let all: usize = pieces.iter().map(|(_, len)| len).sum();
        #[expect(clippy::cast_precision_loss, reason = "bodies are far shorter than 2^53")]
        let share = if all == 0 { 0.0 } else { known as f64 / all as f64 };
        share
    }

    fn has(&self, hash: u64) -> bool {
        self.young.contains(&hash) || self.old.contains(&hash)
    }

    fn add(&mut self, hash: u64) {
        if self.young.insert(hash) && self.young.len() > GENERATION {
            self.old = mem::take(&mut self.young);
            self.young.insert(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::for_path;

    fn body(model: &str, messages: &[&str], tools: &str) -> Bytes {
        let each: Vec<_> = messages.iter().map(|text| format!(r#"{{"role":"user","content":"{text}"}}"#)).collect();
        format!(r#"{{"model":"{model}","messages":[{}],"tools":{tools}}}"#, each.join(",")).into()
    }

    fn share(known: &mut Known, body: &Bytes, seed: u64) -> f64 {
        let dialect = for_path("/v1/chat/completions").unwrap();
        known.meet(&pieces(dialect, body, seed).unwrap())
    }

    #[test]
    fn what_a_conversation_began_with_is_kept() {
        let (long, tools) =
            ("x".repeat(5000), format!(r#"[{{"type":"function","function":{{"name":"{}"}}}}]"#, "t".repeat(3000)));
        let mut known = Known::default();
        let first = body("m", &["a", &long], &tools);
        assert!(share(&mut known, &first, 1) < 1e-9, "nothing was there before");
        assert!((share(&mut known, &first, 1) - 1.0).abs() < 1e-9, "all of it was");
        // As much again is new; the tools stand behind the messages, and are read before them.
        let grown = body("m", &["a", &long, &"y".repeat(8000)], &tools);
        let kept = share(&mut known, &grown, 1);
        assert!((0.49..0.51).contains(&kept), "{kept}");
        // What changes at the beginning changes all behind it.
        let changed = body("m", &["b", &long], &tools);
        let kept = share(&mut known, &changed, 1);
        assert!((0.36..0.39).contains(&kept), "only the tools: {kept}");
    }

    #[test]
    fn others_have_nothing_of_it() {
        let mut known = Known::default();
        let conversation = body("m", &["hello"], "[]");
        share(&mut known, &conversation, 1);
        assert!(share(&mut known, &conversation, 2) < 1e-9, "another caller");
        assert!(share(&mut known, &body("n", &["hello"], "[]"), 1) < 1e-9, "another model");
        assert!((share(&mut known, &conversation, 1) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_known_is_bounded_and_the_latest_stays() {
        let mut known = Known::default();
        let hash = |n: usize| (xxh3_64_with_seed(&n.to_le_bytes(), 0), PIECE);
        for n in 0..5 * GENERATION {
            known.meet(&[hash(n)]);
            assert!(known.young.len() + known.old.len() <= 2 * GENERATION + 1);
        }
        assert!(known.has(hash(5 * GENERATION - 1).0) && known.has(hash(4 * GENERATION).0));
        assert!(!known.has(hash(0).0));
    }
}
