//! What prompt caches have served of what they could have, by upstream and model: whether there is a cache, how long it
//! keeps a prompt, what a change costs, and for which reasons tokens were billed anew.
//!
//! Learnt from complete answers that report cached tokens, to requests whose tokens were counted. A request continues the
//! one whose messages, as the client sent them, are all at its beginning.

use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use tokio::time::Instant;

use crate::held::Held;
use crate::payload::Fingerprint;
use crate::plan::{PromptSegment, Received};
use crate::tokens::last_used::last_used;
use crate::tokens::prices::{Price, Prices};
use crate::units::prorated;

use super::prefix_tracker::CacheScope;

/// The knowledge of the prompt caches of all upstreams.
#[derive(Debug, SmartDefault)]
pub(super) struct CacheLedger {
    /// Requests, by all that the client sent.
    #[default(Cache::new(MAX_KNOWN))]
    ends: Cache<u64, Sent>,
    /// The last request of each conversation, by its first messages.
    #[default(Cache::new(MAX_KNOWN))]
    roots: Cache<u64, Sent>,
    accounts: Held<Vec<CacheAccount>>,
}

/// A request and its bill.
#[derive(Debug)]
pub(super) struct Billed<'a> {
    pub(super) scope: CacheScope,
    pub(super) upstream: &'a str,
    pub(super) model: &'a str,
    /// The client's messages.
    pub(super) received: &'a Received,
    /// The tokens of that, as it would have been billed.
    pub(super) received_tokens: u64,
    /// When it was sent.
    pub(super) at: Instant,
    /// What went on, with its tokens as counted.
    pub(super) segments: &'a [PromptSegment],
    /// The tokens of it that an earlier request began with.
    pub(super) known: u64,
    /// Its tokens as billed, or as counted.
    pub(super) input: u64,
    /// Those of them that the cache served, if the upstream has told that of this request.
    pub(super) cached: Option<u64>,
}

/// An earlier request.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    tokens: u64,
    input: u64,
    received: u64,
}

/// The known facts of the request that another one continues.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlierRequest {
    /// The tokens of all that the client sent, as it would have been billed.
    pub(super) received: u64,
    /// Whether the model has a cache that still has the prompt.
    pub(super) is_warm: bool,
}

/// The cache of one model at one upstream.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct CacheAccount {
    pub(crate) upstream: String,
    pub(crate) model: String,
    /// Requests that continued another one.
    pub(crate) requests: u64,
    /// The fewest tokens that it has served at a time.
    pub(crate) smallest: Option<u64>,
    /// The size of its blocks: the greatest common divisor of the tokens that it has served.
    pub(crate) block: Option<u64>,
    /// How long it keeps a prompt at least, as far as that was seen.
    pub(crate) keeps_seconds: Option<u64>,
    /// The shortest pause after which it has lost prompts, as far as that was seen.
    pub(crate) expires_after_seconds: Option<u64>,
    /// After edits changed an earlier message: how often it served what is before that, and how often nothing.
    pub(crate) breaks: Breaks,
    /// Billed tokens that it would have served, by the reason why it did not.
    pub(crate) lost: Losses,
    /// Of each of [`GAPS`], and of longer ones: requests that it served, and that it did not.
    #[serde(skip)]
    gaps: [Served; GAPS.len() + 1],
}

/// How a cache answers a change.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Breaks {
    /// The part before the change was served.
    pub(crate) suffix: u64,
    /// Nothing was.
    pub(crate) all: u64,
}

/// Tokens by the reason why a cache did not serve them.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Losses {
    /// Edits have changed the beginning.
    pub(crate) edits: u64,
    /// The pause since the last request was longer than the cache keeps a prompt.
    pub(crate) expired: u64,
    /// The client has changed the beginning.
    pub(crate) client: u64,
    /// Neither: the upstream has lost it, or asked another server.
    pub(crate) upstream: u64,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Served {
    yes: u64,
    no: u64,
}

/// The pauses that are told apart, in seconds.
const GAPS: [u64; 5] = [30, 120, 300, 600, 3600];

/// The pause in seconds after which a prompt counts as expired while nothing is known of a cache; the shortest that
/// makers promise.
const USUAL: u64 = 300;

/// Beginnings of fewer tokens are not cached everywhere, and are left out.
const MIN_TOKENS: u64 = 2048;

/// A pause is judged by so many requests at least.
const MIN_SEEN: u64 = 3;

/// How many requests, and how many conversations, are remembered.
const MAX_KNOWN: usize = 16 << 10;

/// How many models have an account. A further one takes the place of the one that was billed the longest ago.
pub(super) const MAX_ACCOUNTS: usize = 50;

// === impl CacheLedger ===

impl CacheLedger {
    /// Accounts for a bill. Of a dry run, whose segments were not sent, only the conversation is remembered. Returns what is known
    /// of the request that this one continues.
    pub(super) fn add(&self, billed: &Billed<'_>, dry_run: bool) -> Option<EarlierRequest> {
        let mut chain = base_of(billed.scope, billed.model);
        let end_of = |message: &Fingerprint| {
            chain = chain.then(*message);
            name(chain)
        };
        let ends: Vec<u64> = billed.received.messages.iter().map(end_of).collect();
        let root = root_of(billed.scope, billed.model, billed.received);
        let known = |(appended, end)| Some((appended, self.ends.get(end)?));
        let continued = ends.iter().rev().enumerate().find_map(known);
        let rewritten = self.roots.get(&root).filter(|_| continued.is_none());
        let input = match continued {
            // Of an answer without usage it is counted, and would be billed at the ratio of the request before.
            Some((_, before)) if billed.cached.is_none() && !dry_run => {
                prorated(billed.input, before.input, before.tokens)
            }
            _ => billed.input,
        };
        let received = billed.received_tokens.saturating_add(input).saturating_sub(billed.input);
        let sent = Sent { at: billed.at, tokens: billed.tokens(), input, received };
        if let Some(end) = ends.last() {
            self.ends.insert(*end, sent);
            self.roots.insert(root, sent);
        }
        self.accounts.with(|accounts| {
            let is_it = |account: &CacheAccount| account.is_of(billed.upstream, billed.model);
            if let Some(cached) = billed.cached {
                let new = || CacheAccount {
                    upstream: billed.upstream.to_owned(),
                    model: billed.model.to_owned(),
                    ..CacheAccount::default()
                };
                let account = last_used(accounts, MAX_ACCOUNTS, is_it, new);
                if let Some((appended, sent)) = continued.filter(|_| !dry_run) {
                    account.continues(billed, cached, sent, appended);
                } else if let Some(sent) = rewritten.filter(|_| !dry_run) {
                    let had = sent.tokens.min(billed.tokens());
                    account.lost.client += billed.scaled(had.saturating_sub(billed.known));
                }
                account.serves(cached);
            }
            let has_cache = accounts.iter().any(|account| is_it(account) && account.smallest.is_some());
            continued.map(|(_, sent)| {
                let is_recent = billed.at.saturating_duration_since(sent.at).as_secs() <= USUAL;
                EarlierRequest { received: sent.received, is_warm: is_recent && has_cache }
            })
        })
    }

    /// Whether the last request of a conversation was sent so long ago that the cache has lost it. Only what was learnt of the
    /// cache counts.
    pub(super) fn has_expired(
        &self,
        scope: CacheScope,
        upstream: &str,
        model: &str,
        received: &Received,
        now: Instant,
    ) -> bool {
        let Some(last) = self.roots.get(&root_of(scope, model, received)) else { return false };
        let pause = now.saturating_duration_since(last.at).as_secs();
        self.accounts.with(|accounts| {
            let account = accounts.iter().find(|account| account.is_of(upstream, model));
            account.and_then(|account| account.expires_after_seconds).is_some_and(|least| pause > least)
        })
    }

    /// Returns what is known of each model, the one that was billed last at the end.
    pub(super) fn accounts(&self) -> Vec<CacheAccount> {
        self.accounts.with(|accounts| accounts.clone())
    }
}

// === impl Billed ===

impl Billed<'_> {
    /// Its tokens as counted.
    fn tokens(&self) -> u64 {
        self.segments.iter().map(|segment| segment.tokens as u64).sum()
    }

    /// Counted tokens as billed ones.
    fn scaled(&self, tokens: u64) -> u64 {
        prorated(tokens, self.input, self.tokens())
    }
}

// === impl Losses ===

impl Losses {
    /// Returns what they cost more than if the cache had served them, in tokens at the price of input.
    pub(super) fn priced(self, prices: Prices) -> Self {
        let more = prices.write.above(prices.read);
        let price = |tokens: u64| more.of(usize::try_from(tokens).unwrap_or(usize::MAX)) / Price::INPUT.of(1);
        let Self { edits, expired, client, upstream } = self;
        Self { edits: price(edits), expired: price(expired), client: price(client), upstream: price(upstream) }
    }
}

// === impl CacheAccount ===

impl CacheAccount {
    fn is_of(&self, upstream: &str, model: &str) -> bool {
        self.upstream == upstream && self.model == model
    }

    /// A request that the client has only added messages to, so many of them.
    fn continues(&mut self, billed: &Billed<'_>, cached: u64, before: Sent, appended: usize) {
        self.requests += 1;
        let had: u64 = billed.segments.iter().rev().skip(appended).map(|segment| segment.tokens as u64).sum();
        let known = billed.known.min(had);
        let (servable, changed) = (billed.scaled(known), billed.scaled(had - known));
        if servable + changed < MIN_TOKENS {
            return;
        }
        let seconds = billed.at.saturating_duration_since(before.at).as_secs();
        let (is_served, missing) = (2 * cached >= servable, servable.saturating_sub(cached));
        if changed == 0
            && let Some(served) = self.gaps.get_mut(GAPS.partition_point(|gap| *gap < seconds))
        {
            *if is_served { &mut served.yes } else { &mut served.no } += 1;
            self.keeps_seconds = self.keeps();
            self.expires_after_seconds = self.expires_after();
        }
        let was_kept = seconds <= self.keeps_seconds.unwrap_or(USUAL);
        if !was_kept && 2 * cached < servable + changed {
            self.lost.expired += changed + missing;
        } else if changed > 0 {
            if servable >= MIN_TOKENS {
                *if is_served { &mut self.breaks.suffix } else { &mut self.breaks.all } += 1;
            }
            self.lost.edits += changed + missing;
        } else {
            self.lost.upstream += missing;
        }
    }

    /// The cache has served so many tokens.
    fn serves(&mut self, cached: u64) {
        if cached > 0 {
            self.smallest = Some(self.smallest.map_or(cached, |smallest| smallest.min(cached)));
            self.block = Some(gcd(self.block.unwrap_or_default(), cached));
        }
    }

    /// The longest of the pauses after which most prompts are there, as after all shorter ones.
    fn keeps(&self) -> Option<u64> {
        let seen = GAPS.into_iter().zip(self.gaps).filter(|(_, served)| served.yes + served.no >= MIN_SEEN);
        seen.take_while(|(_, served)| served.yes >= served.no).last().map(|(gap, _)| gap)
    }

    /// The shortest of the pauses after which at most one prompt in four is there, as after all longer ones.
    fn expires_after(&self) -> Option<u64> {
        let longer = GAPS.into_iter().zip(self.gaps.into_iter().skip(1));
        let lost = longer.rev().take_while(|(_, served)| 3 * served.yes <= served.no);
        lost.filter(|(_, served)| served.yes + served.no >= MIN_SEEN).last().map(|(gap, _)| gap)
    }
}

/// The name that all requests for a model begin with.
fn base_of(CacheScope(scope): CacheScope, model: &str) -> Fingerprint {
    Fingerprint::of(&scope.to_le_bytes()).then(Fingerprint::of(model.as_bytes()))
}

/// The name of a conversation.
fn root_of(scope: CacheScope, model: &str, received: &Received) -> u64 {
    name(base_of(scope, model).then(received.root))
}

fn name(fingerprint: Fingerprint) -> u64 {
    fingerprint.halves()[0]
}

/// The greatest common divisor; of 0 and a number, that number.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
