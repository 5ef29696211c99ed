//! A store in Redis, or in Valkey.
//!
//! What has to be one step is a step of `steps.lua`. All keys that a step needs are in one bucket, and so in one slot of a
//! cluster: a payload, with what is known of all payloads of its bucket; a conversation's summaries. No key has a lifetime:
//! what expires is swept as in the other engines, by the engine's clock, so no eviction of volatile keys loses a text.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use redis::Value;

use super::engine::identity::Identity;
use super::engine::link::Links;
use super::engine::tls::Tls;
use super::engine::writer::NewRow;
use super::engine::{Engine, EngineError, EngineStore, OpenError, Stale, Terms, count};
use super::{Cursor, NoteGroup, Op, PayloadInfo, StoreResult, TOMBSTONES, Time};
use crate::payload::{Lifetime, PayloadKey};
use crate::tasks::Tasks;

mod answers;
mod calls;
mod client;
mod connect;
mod error;
mod exchange;
mod promise;
mod url;

use answers::Answer as _;
use client::{BUCKETS, Confirmation, Step};
use connect::Connector;
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

/// How many payloads, and how many summaries beyond their share, are removed of a bucket at a time.
const BATCHES: (i64, i64) = (500, 2);

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
        self.describe_promise().await
    }

    // Everything that is stored of a put that fails is named by no one, and swept like what is unused.
    async fn put(&self, rows: &BTreeMap<PayloadKey, NewRow>) -> StoreResult<(u64, u64)> {
        let mut steps = Steps::new("put", self.terms.half_grain());
        for (key, row) in rows {
            let step = steps.of(*key);
            step.add(<&str>::from(row.lifetime));
            step.add(key.as_bytes());
            step.add(row.bytes);
            step.add(i64::from(row.owner));
            step.add(row.body.as_slice());
        }
        self.pairs(&self.write(Op::Put, &steps.all()).await?)
    }

    async fn fresh(&self, keys: &[PayloadKey], lifetime: Lifetime) -> StoreResult<Vec<PayloadKey>> {
        let mut steps = Steps::new("fresh", self.terms.half_grain());
        for key in keys {
            let step = steps.of(*key);
            step.add(<&str>::from(lifetime));
            step.add(key.as_bytes());
        }
        let answers = self.ask_for_write(Op::Put, &steps.all()).await?;
        self.items(&answers, |key| Ok(PayloadKey::from_bytes(key.key()?)))
    }

    async fn get(&self, key: PayloadKey) -> StoreResult<Option<(Vec<u8>, bool)>> {
        let answer = self.read(Op::Get, self.get_step(key)).await?;
        self.read_as(body(&answer))
    }

    async fn remove(&self, key: PayloadKey, body: &[u8]) -> StoreResult<()> {
        let step = Step::new(bucket(key), "remove").with(key.as_bytes()).with(body);
        self.write_one(Op::Put, step).await.map(drop)
    }

    async fn was_swept(&self, key: PayloadKey) -> StoreResult<bool> {
        let answer = self.read(Op::Get, Step::new(bucket(key), "was_swept").with(key.as_bytes())).await?;
        Ok(self.read_as(answer.number())? == 1)
    }

    async fn touch(&self, keys: &[PayloadKey]) -> StoreResult<()> {
        let mut steps = Steps::new("touch", self.terms.half_grain());
        for key in keys {
            steps.of(*key).add(key.as_bytes());
        }
        self.write(Op::Put, &steps.all()).await.map(drop)
    }

    async fn bodies(&self, keys: &[PayloadKey]) -> StoreResult<Vec<(PayloadKey, Vec<u8>)>> {
        let steps: Vec<_> = keys.iter().map(|key| self.get_step(*key)).collect();
        let mut bodies = Vec::new();
        for (key, answer) in keys.iter().zip(self.read_all(Op::Get, &steps).await?) {
            bodies.extend(self.read_as(body(&answer))?.map(|(body, _)| (*key, body)));
        }
        Ok(bodies)
    }

    async fn list(
        &self,
        after: Option<Cursor>,
        [first, last]: [PayloadKey; 2],
        most: usize,
    ) -> StoreResult<Vec<PayloadInfo>> {
        let (bound, after) =
            after.map_or(("-inf".to_owned(), first), |Cursor { used, row }| (format!("-{}", used.0), row));
        let step = |bucket| {
            let step = Step::new(bucket, "list").with(count(most as u64)).with(bound.as_str());
            step.with(after.as_bytes()).with(first.as_bytes()).with(last.as_bytes())
        };
        let steps: Vec<_> = (bucket(first)..=bucket(last)).map(step).collect();
        let mut found = self.items(&self.read_all(Op::Get, &steps).await?, info)?;
        found.sort_unstable_by_key(|info| (Reverse(info.used), info.key));
        found.truncate(most);
        Ok(found)
    }

    async fn put_inspected(&self, id: &str, body: &[u8]) -> StoreResult<()> {
        self.write_one(Op::Put, Step::of_fleet("put_inspected").with(id).with(body)).await.map(drop)
    }

    async fn inspected(&self, id: &str) -> StoreResult<Option<Vec<u8>>> {
        let answer = self.read(Op::Get, Step::of_fleet("inspected").with(id)).await?;
        self.read_as(answer.bytes())
    }

    async fn trim_inspected(&self, most: usize) -> StoreResult<()> {
        let bytes = count(self.terms.settings.max_inspected_bytes());
        let step = Step::of_fleet("trim_inspected").with(count(most as u64)).with(bytes).with(self.terms.keep_for());
        self.write_one(Op::Sweep, step).await.map(drop)
    }

    async fn take_turn(&self, (name, seconds): (&str, i64)) -> StoreResult<bool> {
        let taken = self.write_one(Op::Sweep, Step::of_fleet("turn").with(name).with(seconds)).await?;
        Ok(self.read_as(taken.number())? == 1)
    }

    async fn sweep(&self, stale: Stale) -> StoreResult<(u64, u64)> {
        let (ages, owner, bytes, at_once) = match stale {
            Stale::Expired => {
                let age = |lifetime| self.terms.keep_for() + self.terms.extra(lifetime);
                ([age(Lifetime::Usual), age(Lifetime::Chained)], None, u64::MAX, BUCKETS)
            }
            Stale::Unused { owner, bytes } => ([self.terms.in_use_for(); 2], owner, bytes, BUCKETS_AT_ONCE),
        };
        let of_each = count(bytes / BUCKETS as u64 + 1);
        let mut steps = each_bucket(|bucket| {
            let step = Step::new(bucket, "sweep").with(ages[0]).with(ages[1]).with(BATCHES.0).with(of_each);
            owner.into_iter().fold(step, |step, owner| step.with(i64::from(owner)))
        });
        // So that it is not always the same buckets that are the first.
        steps.rotate_left(usize::from(bytes.to_le_bytes()[0]));
        let mut gone = (0, 0);
        for some in steps.chunks(at_once) {
            let (n, freed) = self.pairs(&self.write(Op::Sweep, some).await?)?;
            gone = (gone.0 + n, gone.1 + freed);
            if gone.1 >= bytes {
                break;
            }
        }
        Ok(gone)
    }

    async fn owners(&self) -> StoreResult<Vec<(u64, u16)>> {
        let mut owners = BTreeMap::new();
        for answer in self.read_all(Op::Get, &each_bucket(|bucket| Step::new(bucket, "owners"))).await? {
            for pair in self.read_as(answer.items())?.as_chunks::<2>().0 {
                let (owner, bytes) = (self.read_as(number(&pair[0]))?, self.read_as(number(&pair[1]))?);
                *owners.entry(u16::try_from(owner).unwrap_or_default()).or_default() += bytes;
            }
        }
        Ok(owners.into_iter().map(|(owner, bytes)| (bytes, owner)).collect())
    }

    async fn sweep_summaries(&self) -> StoreResult<u64> {
        Ok(self.remove_summaries(self.terms.keep_for(), i64::from(i32::MAX)).await?.0)
    }

    async fn crowd_summaries(&self) -> StoreResult<u64> {
        let [.., all, _] = self.totals().await?;
        let mut over = all.saturating_sub(self.terms.settings.max_summary_bytes());
        let mut n_removed = 0;
        while over > 0 {
            let (n, bytes) = self.remove_summaries(self.terms.in_use_for(), BATCHES.1).await?;
            n_removed += n;
            over = over.saturating_sub(bytes);
            if n == 0 {
                break;
            }
        }
        Ok(n_removed)
    }

    async fn sweep_notes(&self) -> StoreResult<()> {
        for group in NoteGroup::ALL {
            self.write_one(Op::Sweep, Step::of_fleet("notes").with(group.label()).with("sweep")).await?;
        }
        Ok(())
    }

    async fn trim_swept(&self) -> StoreResult<()> {
        let (most, age) = TOMBSTONES;
        let (most, age) = (count(most / BUCKETS as u64), count(age.as_secs()));
        let steps = each_bucket(|bucket| Step::new(bucket, "trim_swept").with(age).with(most));
        self.write(Op::Sweep, &steps).await.map(drop)
    }

    async fn is_full(&self) -> StoreResult<bool> {
        let full = self.read(Op::Get, Step::of_fleet("meta").with("full")).await?;
        Ok(self.read_as(full.bytes())?.is_some_and(|full| full == b"1"))
    }

    async fn set_full(&self, is_full: bool) -> StoreResult<()> {
        let step = Step::of_fleet("set_meta").with("full").with(i64::from(is_full));
        self.write_one(Op::Sweep, step).await.map(drop)
    }

    async fn totals(&self) -> StoreResult<[u64; 8]> {
        let steps = each_bucket(|bucket| Step::new(bucket, "totals"));
        let mut all = [0; 8];
        for answer in self.read_all(Op::Get, &steps).await? {
            for (total, n) in all.iter_mut().zip(self.read_as(answer.items())?) {
                *total += self.read_as(n.number())?;
            }
        }
        Ok(all)
    }
}

impl Redis {
    fn get_step(&self, key: PayloadKey) -> Step {
        Step::new(bucket(key), "get").with(self.terms.half_grain()).with(key.as_bytes())
    }
}

/// A step of each bucket that some keys are in.
struct Steps {
    name: &'static str,
    grain: i64,
    by_bucket: BTreeMap<u8, Step>,
}

impl Steps {
    fn new(name: &'static str, grain: i64) -> Self {
        Self { name, grain, by_bucket: BTreeMap::new() }
    }

    /// The step of a key's bucket.
    fn of(&mut self, key: PayloadKey) -> &mut Step {
        let (name, grain, bucket) = (self.name, self.grain, bucket(key));
        self.by_bucket.entry(bucket).or_insert_with(|| Step::new(bucket, name).with(grain))
    }

    fn all(self) -> Vec<Step> {
        self.by_bucket.into_values().collect()
    }
}

// === helpers ===

fn bucket(key: PayloadKey) -> u8 {
    key.as_bytes()[0]
}

fn each_bucket(step: impl Fn(u8) -> Step) -> Vec<Step> {
    (0..=u8::MAX).map(step).collect()
}

/// A body without the line before it, and whether its use is to be written.
fn body(answer: &Value) -> Result<Option<(Vec<u8>, bool)>, EngineError> {
    let Some((mut stored, is_stale)) = answer.body_and_mark()? else { return Ok(None) };
    // Without the line, what is there is damaged, as the frame says.
    let start = memchr::memchr(b'\n', &stored).map_or(0, |end| end + 1);
    stored.drain(..start);
    Ok(Some((stored, is_stale)))
}

/// A number of a hash, which is a text.
fn number(value: &Value) -> Result<u64, EngineError> {
    let text = value.bytes()?.unwrap_or_default();
    str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).ok_or(EngineError::Damaged)
}

fn info(entry: &Value) -> Result<PayloadInfo, EngineError> {
    let [key, used, head, stored_bytes] = entry.items()? else { return Err(EngineError::Damaged) };
    let head = head.bytes()?.unwrap_or_default();
    let mut numbers = str::from_utf8(&head).unwrap_or_default().split_whitespace().map_while(|n| n.parse().ok());
    let (Some(created), Some(bytes)) = (numbers.next(), numbers.next()) else { return Err(EngineError::Damaged) };
    Ok(PayloadInfo {
        key: PayloadKey::from_bytes(key.key()?),
        bytes,
        stored_bytes: stored_bytes.number()?,
        created: Time(created),
        used: Time(used.number()?),
    })
}
