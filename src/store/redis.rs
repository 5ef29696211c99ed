//! A store in Redis, or in Valkey.
//!
//! What has to be one step is a step of `steps.lua`. All keys that a step needs are in one bucket, and so in one slot of a
//! cluster: a payload, with what is known of all payloads of its bucket; a conversation's summaries. Where the summary of a
//! beginning is, is in the bucket of the beginning. No key has a lifetime:
//! what expires is swept as in the other engines, by the engine's clock, so no eviction of volatile keys loses a text.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::engine::link::Links;
use super::engine::tls::Tls;
use super::engine::writer::NewRow;
use super::engine::{Engine, EngineStore, OpenError, Stale, Terms, count};
use super::secret::Identity;
use super::shared::{Claimant, MAX_SEEN, Seen, SeenState};
use super::shares::fair_level;
use super::{Cursor, Note, NoteGroup, Op, PayloadInfo, StoreResult, TOMBSTONES};
use crate::payload::{ChainKey, Lifetime, PayloadKey, Place};
use crate::tasks::Tasks;

mod calls;
mod client;
mod connect;
mod url;

use calls::{BodyAndMark, body, bucket, by_bucket, each_bucket, info, state};
use client::{BUCKETS, Confirmation, Step};
use connect::{Connector, UNKNOWN, describe_crash};
use url::Target;

/// A store in Redis.
pub type RedisStore = EngineStore<Redis>;

/// The keys of this fleet in Redis.
#[expect(missing_debug_implementations, reason = "the store itself shows its state")]
pub struct Redis {
    terms: Terms,
    links: Links<Connector>,
    confirmation: Option<Confirmation>,
}

/// How many payloads are removed of a bucket at a time.
const BATCH: i64 = 500;

/// Of how many buckets what is unused is removed at a time.
const BUCKETS_AT_ONCE: usize = 16;

// === impl Redis ===

impl Engine for Redis {
    const NAME: &'static str = "Redis";

    type Connect = Connector;

    fn start(url: &str, terms: Terms, identity: Arc<Identity>, tasks: &Tasks) -> Result<Self, OpenError> {
        let (settings, timeout) = (&terms.settings, terms.settings.timeout.0);
        let target = Target::parse(url)?;
        let tls = Tls::new(settings.ca_file.as_deref(), target.may_encrypt())?;
        let prefix = format!("abridge:{}", settings.namespace_with(':'));
        let replicas = settings.replicas_acknowledge;
        let confirmation = (replicas > 0).then_some(Confirmation { replicas, within: timeout * 3 / 4 });
        let reads = Connector { target, tls, identity, prefix, timeout, confirmation: None };
        let writes = Connector { confirmation, ..reads.clone() };
        let links = Links::start(writes, reads, timeout, tasks);
        Ok(Self { terms, links, confirmation })
    }

    fn links(&self) -> &Links<Connector> {
        &self.links
    }

    async fn promise(&self) -> String {
        let asking = self.links.reads.call(|client| async move { Ok(describe_crash(&client).await) });
        let crash = asking.await.unwrap_or(UNKNOWN);
        let failover = match self.terms.settings.replicas_acknowledge {
            0 => "a replica that is promoted may lack what was confirmed last (store.replicas_acknowledge is 0)"
                .to_owned(),
            n => format!(
                "{n} of its replicas have what was confirmed, which survives the loss of the primary if one of them is promoted"
            ),
        };
        format!("{crash}; {failover}")
    }

    // Everything that is stored of a put that fails is named by no one, and swept like what is unused.
    async fn put(&self, rows: &BTreeMap<PayloadKey, NewRow>) -> StoreResult<(u64, u64)> {
        let steps = by_bucket("put", self.terms.half_grain(), rows, |step, row| {
            step.add(<&str>::from(row.lifetime));
            step.add(row.row.as_bytes());
            step.add(row.bytes);
            step.add(i64::from(row.owner));
            step.add(row.body.as_slice());
        });
        Ok(sums(self.all(Op::Write, &steps).await?))
    }

    async fn fresh(&self, keys: &[PayloadKey], lifetime: Lifetime) -> StoreResult<Vec<PayloadKey>> {
        let keys = keys.iter().map(|key| (key, key));
        let steps = by_bucket("fresh", self.terms.half_grain(), keys, |step, key| {
            step.add(<&str>::from(lifetime));
            step.add(key.as_bytes());
        });
        // That it can be asked for, on the connection for writes, says nothing about writes.
        let asked = self.links.ask(Op::Write, |client| self.run(client, &steps, self.confirmation));
        let fresh: Vec<Vec<_>> = asked.await?;
        Ok(fresh.into_iter().flatten().map(PayloadKey::from_bytes).collect())
    }

    async fn get(&self, key: PayloadKey) -> StoreResult<Option<(Vec<u8>, bool)>> {
        Ok(body(self.one(Op::Read, self.with_grain("get", key.as_bytes())).await?))
    }

    async fn remove(&self, key: PayloadKey, body: &[u8]) -> StoreResult<()> {
        self.one(Op::Write, step_of(key.as_bytes(), "remove").with(body)).await
    }

    async fn was_swept(&self, key: PayloadKey) -> StoreResult<bool> {
        self.one(Op::Read, step_of(key.as_bytes(), "was_swept")).await
    }

    async fn touch(&self, keys: &[PayloadKey]) -> StoreResult<()> {
        let keys = keys.iter().map(|key| (key, key.as_bytes()));
        let steps = by_bucket("touch", self.terms.half_grain(), keys, Step::add);
        self.all::<()>(Op::Write, &steps).await.map(drop)
    }

    async fn bodies(&self, keys: &[PayloadKey]) -> StoreResult<Vec<(PayloadKey, Vec<u8>)>> {
        let steps: Vec<_> = keys.iter().map(|key| self.with_grain("get", key.as_bytes())).collect();
        let found = keys.iter().zip(self.all::<BodyAndMark>(Op::Read, &steps).await?);
        Ok(found.filter_map(|(key, found)| Some((*key, body(found)?.0))).collect())
    }

    async fn list(&self, after: Option<Cursor>, keys: [PayloadKey; 2], most: usize) -> StoreResult<Vec<PayloadInfo>> {
        let [first, last] = keys;
        let (bound, after) =
            after.map_or(("-inf".to_owned(), first), |Cursor { used, row }| (format!("-{}", used.0), row));
        let step = |bucket| {
            let step = Step::new(bucket, "list").with(count(most as u64)).with(bound.as_str());
            step.with(after.as_bytes()).with(first.as_bytes()).with(last.as_bytes())
        };
        let steps: Vec<_> = (bucket(first.as_bytes())..=bucket(last.as_bytes())).map(step).collect();
        let found: Vec<Vec<_>> = self.all(Op::Read, &steps).await?;
        let mut found: Vec<_> = self.whole(found.into_iter().flatten().map(info).collect())?;
        found.sort_unstable_by_key(|info| (Reverse(info.used), info.key));
        found.truncate(most);
        Ok(found)
    }

    async fn put_inspected(&self, id: &str, body: &[u8]) -> StoreResult<()> {
        self.one(Op::Write, Step::of_fleet("put_inspected").with(id).with(body)).await
    }

    async fn inspected(&self, id: &str) -> StoreResult<Option<Vec<u8>>> {
        self.one(Op::Read, Step::of_fleet("inspected").with(id)).await
    }

    async fn trim_inspected(&self, most: usize) -> StoreResult<()> {
        let bytes = count(self.terms.settings.max_inspected_bytes());
        let step = Step::of_fleet("trim_inspected").with(count(most as u64)).with(bytes).with(self.terms.keep_for());
        self.one(Op::Write, step).await
    }

    async fn take_turn(&self, (name, seconds): (&str, i64)) -> StoreResult<bool> {
        self.one(Op::Write, Step::of_fleet("turn").with(name).with(seconds)).await
    }

    async fn sweep(&self, stale: Stale) -> StoreResult<(u64, u64)> {
        let (ages, owner, bytes, at_once) = match stale {
            Stale::Expired => {
                let age = |lifetime| self.terms.keep_for() + self.terms.extra(lifetime);
                ([age(Lifetime::Usual), age(Lifetime::Chained)], None, u64::MAX, BUCKETS)
            }
            Stale::Unused { owner, bytes } => ([self.terms.in_use_for(); 2], Some(owner), bytes, BUCKETS_AT_ONCE),
        };
        let of_each = count(bytes / BUCKETS as u64 + 1);
        let mut steps = each_bucket(|bucket| {
            let step = Step::new(bucket, "sweep").with(ages[0]).with(ages[1]).with(BATCH).with(of_each);
            owner.into_iter().fold(step, |step, owner| step.with(i64::from(owner)))
        });
        // So that it is not always the same buckets that are the first.
        steps.rotate_left(usize::from(bytes.to_le_bytes()[0]));
        let mut gone = (0, 0);
        for some in steps.chunks(at_once) {
            let (n, freed) = sums(self.all(Op::Write, some).await?);
            gone = (gone.0 + n, gone.1 + freed);
            if gone.1 >= bytes {
                break;
            }
        }
        Ok(gone)
    }

    async fn owners(&self) -> StoreResult<Vec<(u64, u16)>> {
        let mut owners = BTreeMap::new();
        let of_buckets: Vec<Vec<(u16, u64)>> =
            self.all(Op::Read, &each_bucket(|bucket| Step::new(bucket, "owners"))).await?;
        for (owner, bytes) in of_buckets.into_iter().flatten() {
            *owners.entry(owner).or_default() += bytes;
        }
        Ok(owners.into_iter().map(|(owner, bytes)| (bytes, owner)).collect())
    }

    async fn sweep_others(&self) -> StoreResult<u64> {
        let n_removed = self.remove_summaries("sweep_summaries", self.terms.keep_for()).await?;
        for group in NoteGroup::ALL {
            let sweep = Step::of_fleet("notes").with(<&str>::from(group)).with("sweep");
            self.one::<redis::Value>(Op::Write, sweep).await?;
        }
        Ok(n_removed)
    }

    async fn crowd_others(&self) -> StoreResult<u64> {
        // Roots are hashes, so a caller has about as much in each bucket; one that has more is the first to lose. Each keeps one
        // summary too many at most.
        let of_buckets = self.totals_of_buckets().await?.into_iter().map(|[.., bytes, _]| bytes).collect::<Vec<_>>();
        let over = of_buckets.iter().sum::<u64>().saturating_sub(self.terms.settings.max_summary_bytes());
        let level = count(fair_level(of_buckets, over));
        let n_removed = if over > 0 { self.remove_summaries("crowd_summaries", level).await? } else { 0 };
        let (most, age) = (count(TOMBSTONES.0 / BUCKETS as u64), count(TOMBSTONES.1.as_secs()));
        let steps = each_bucket(|bucket| Step::new(bucket, "trim_swept").with(age).with(most));
        self.all::<()>(Op::Write, &steps).await?;
        Ok(n_removed)
    }

    async fn full_above(&self) -> StoreResult<u64> {
        let level: Option<u64> = self.one(Op::Read, Step::of_fleet("meta").with("full")).await?;
        Ok(level.unwrap_or_default())
    }

    async fn set_full_above(&self, level: u64) -> StoreResult<()> {
        self.one(Op::Write, Step::of_fleet("set_meta").with("full").with(count(level))).await
    }

    async fn totals(&self) -> StoreResult<[u64; 8]> {
        let mut all = [0; 8];
        for of_bucket in self.totals_of_buckets().await? {
            all.iter_mut().zip(of_bucket).for_each(|(total, n)| *total += n);
        }
        Ok(all)
    }

    async fn offer(&self, place: Place, body: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.point(place).await?;
        self.one(Op::Write, at(place, "offer").with(body)).await
    }

    async fn summary(&self, beginning: ChainKey) -> StoreResult<Option<(Vec<u8>, bool)>> {
        let Some(root) = self.root_of(beginning).await? else { return Ok(None) };
        let (body, is_stale): BodyAndMark =
            self.one(Op::Read, self.with_grain("summary", root.as_bytes()).with(beginning.as_bytes())).await?;
        Ok(body.map(|body| (body, is_stale)))
    }

    async fn remove_summary(&self, beginning: ChainKey, body: &[u8]) -> StoreResult<()> {
        let Some(root) = self.root_of(beginning).await? else { return Ok(()) };
        self.one(Op::Write, at(Place { root, beginning }, "remove_summary").with(body)).await
    }

    async fn summaries(&self) -> StoreResult<Vec<ChainKey>> {
        let found: Vec<Vec<_>> = self.all(Op::Read, &each_bucket(|bucket| Step::new(bucket, "summaries"))).await?;
        Ok(found.into_iter().flatten().map(ChainKey::from_bytes).collect())
    }

    async fn touch_summaries(&self, beginnings: &[ChainKey]) -> StoreResult<()> {
        let mut steps = Vec::new();
        for beginning in beginnings {
            let root = self.root_of(*beginning).await?;
            let touch = |root: ChainKey| self.with_grain("touch_summary", root.as_bytes()).with(beginning.as_bytes());
            steps.extend(root.map(touch));
        }
        self.all::<()>(Op::Write, &steps).await.map(drop)
    }

    async fn look(&self, root: ChainKey) -> StoreResult<Vec<Seen>> {
        let look = step_of(root.as_bytes(), "look").with(count(MAX_SEEN as u64));
        let found: Vec<([u8; 16], String, u64)> = self.one(Op::Read, look).await?;
        let seen = |(beginning, text, left): (_, String, _)| Seen {
            beginning: ChainKey::from_bytes(beginning),
            state: state(&text, left),
        };
        Ok(found.into_iter().map(seen).collect())
    }

    async fn claim(&self, place: Place, Claimant { token, lease }: Claimant) -> StoreResult<Option<SeenState>> {
        let step = at(place, "claim").with(token).with(count(lease.as_secs()));
        let (text, left): (String, _) = self.one(Op::Write, step).await?;
        let claimed = (text != "yours").then(|| state(&text, left));
        if claimed == Some(SeenState::Stored) {
            // Whoever looks for it by its beginning is to find it.
            self.point(place).await?;
        }
        Ok(claimed)
    }

    async fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> StoreResult<()> {
        let pause = count(not_before.unwrap_or_default().as_secs());
        self.one(Op::Write, at(place, "release").with(claimant.token).with(pause)).await
    }

    async fn note(&self, Note { kind, key, value }: Note, keep: Duration) -> StoreResult<()> {
        let step = Step::of_fleet("note").with(kind.name_of(key).as_slice()).with(&*value).with(count(keep.as_secs()));
        self.one(Op::Write, step.with(<&str>::from(kind.group()))).await
    }

    async fn notes(&self, group: NoteGroup) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut notes: Vec<(u64, Vec<u8>, Vec<u8>)> =
            self.one(Op::Read, Step::of_fleet("notes").with(<&str>::from(group))).await?;
        notes.sort_unstable_by(|(written, name, _), other| other.0.cmp(written).then_with(|| name.cmp(&other.1)));
        Ok(notes.into_iter().take(group.most()).map(|(_, name, value)| (name, value)).collect())
    }
}

impl Redis {
    /// Notes where the summary of a beginning is.
    async fn point(&self, Place { root, beginning }: Place) -> StoreResult<()> {
        self.one(Op::Write, step_of(beginning.as_bytes(), "point").with(root.as_bytes())).await
    }

    /// The conversation of a beginning.
    async fn root_of(&self, beginning: ChainKey) -> StoreResult<Option<ChainKey>> {
        let root: Option<Vec<u8>> = self.one(Op::Read, step_of(beginning.as_bytes(), "root")).await?;
        // One that is damaged is written anew with the summary.
        Ok(root.and_then(|root| root.try_into().ok()).map(ChainKey::from_bytes))
    }

    /// A step of a key, in its bucket, that says whether a use is to be written.
    fn with_grain(&self, name: &'static str, key: &[u8; 16]) -> Step {
        Step::new(bucket(key), name).with(self.terms.half_grain()).with(key)
    }

    /// The totals of each bucket.
    async fn totals_of_buckets(&self) -> StoreResult<Vec<[u64; 8]>> {
        self.all(Op::Read, &each_bucket(|bucket| Step::new(bucket, "totals"))).await
    }

    /// Removes summaries of each bucket in a step that takes this number; how many.
    async fn remove_summaries(&self, step: &'static str, number: i64) -> StoreResult<u64> {
        let steps = each_bucket(|bucket| Step::new(bucket, step).with(number));
        let removed: Vec<(u64, Vec<[u8; 16]>)> = self.all(Op::Write, &steps).await?;
        let beginnings = removed.iter().flat_map(|(_, beginnings)| beginnings);
        let pointers: Vec<_> = beginnings.map(|beginning| step_of(beginning, "unpoint")).collect();
        self.all::<()>(Op::Write, &pointers).await?;
        Ok(removed.iter().map(|(n, _)| n).sum())
    }
}

// === helpers ===

/// A step of a key, in its bucket.
fn step_of(key: &[u8; 16], name: &'static str) -> Step {
    Step::new(bucket(key), name).with(key)
}

/// A step at a place.
fn at(Place { root, beginning }: Place, name: &'static str) -> Step {
    step_of(root.as_bytes(), name).with(beginning.as_bytes())
}

/// The sums of pairs of numbers.
fn sums(pairs: impl IntoIterator<Item = (u64, u64)>) -> (u64, u64) {
    pairs.into_iter().fold((0, 0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1))
}
