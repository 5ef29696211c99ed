//! A store in PostgreSQL, or in what speaks its protocol.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::engine::link::Links;
use super::engine::tls::Tls;
use super::engine::writer::NewRow;
use super::engine::{Engine, EngineStore, OpenError, Stale, Terms, count};
use super::secret::Identity;
use super::shared::{Claimant, MAX_SEEN, Seen, SeenState};
use super::{Cursor, Note, NoteGroup, NoteKind, Op, PayloadInfo, StoreResult, TOMBSTONES};
use crate::payload::{ChainKey, Lifetime, PayloadKey, Place};
use crate::tasks::Tasks;

mod calls;
mod connect;

use calls::{Parameter, cell, info, key, number, numbers, payload, query, state, statement};
use connect::Connector;
pub use connect::init;

/// A store in PostgreSQL.
pub type PostgresStore = EngineStore<Postgres>;

/// The tables of this fleet in PostgreSQL.
#[expect(missing_debug_implementations, reason = "the store itself shows its state")]
pub struct Postgres {
    terms: Terms,
    prefix: String,
    links: Links<Connector>,
}

/// How many rows one statement removes.
const BATCH: i64 = 500;

// === impl Postgres ===

impl Engine for Postgres {
    const NAME: &'static str = "PostgreSQL";

    type Connect = Connector;

    fn start(url: &str, terms: Terms, identity: Arc<Identity>, tasks: &Tasks) -> Result<Self, OpenError> {
        let (timeout, prefix) = (terms.settings.timeout.0, terms.settings.table_prefix());
        let hosts = connect::hosts(url, timeout)?;
        let tls = Tls::new(terms.settings.ca_file.as_deref(), connect::encrypts(&hosts))?;
        let reads = Connector { hosts, tls, identity, prefix: prefix.clone(), timeout, probe: "probe_reads" };
        let writes = Connector { probe: "probe_writes", ..reads.clone() };
        Ok(Self { terms, prefix, links: Links::start(writes, reads, timeout, tasks) })
    }

    fn links(&self) -> &Links<Connector> {
        &self.links
    }

    async fn promise(&self) -> String {
        let read = |row: &Row| Ok((cell::<String>(row, 0)?, number(row, 1)?));
        match self.row(Op::Read, "promise", &[], read).await {
            Ok((commit, _)) if commit == "off" => {
                "synchronous_commit is off, so a crash of the engine may lose what it has just confirmed".to_owned()
            }
            Ok((commit, 1..)) if commit != "local" => {
                "what it has confirmed is on two machines, and survives the loss of one".to_owned()
            }
            Ok(_) => "what it has confirmed survives a crash, and not the loss of its disk".to_owned(),
            Err(_) => "it does not say what survives a crash".to_owned(),
        }
    }

    async fn put(&self, rows: &BTreeMap<PayloadKey, NewRow>) -> StoreResult<(u64, u64)> {
        let keys: Vec<_> = rows.keys().map(|key| key.as_bytes().as_slice()).collect();
        let bodies: Vec<_> = rows.values().map(|row| row.body.as_slice()).collect();
        let lengths: Vec<_> = rows.values().map(|row| row.bytes).collect();
        let extras: Vec<_> = rows.values().map(|row| self.terms.extra(row.lifetime)).collect();
        let (grain, owners) = (int(self.terms.half_grain()), ints(rows.values().map(|row| row.owner.into()).collect()));
        let parameters =
            [int(self.terms.now()), blobs(keys), blobs(bodies), ints(lengths), ints(extras), grain, owners];
        let read = |row: &Row| Ok((number(row, 0)?, cell::<bool>(row, 1)?));
        let written = self.rows(Op::Write, "put", &parameters, read).await?;
        let new = written.into_iter().filter(|(_, is_new)| *is_new);
        Ok(new.fold((0, 0), |(n, all), (bytes, _)| (n + 1, all + bytes)))
    }

    async fn fresh(&self, keys: &[PayloadKey], lifetime: Lifetime) -> StoreResult<Vec<PayloadKey>> {
        let (keys, extra) = (bytes_of(keys), self.terms.extra(lifetime));
        let parameters = [int(self.terms.now()), blobs(keys), int(self.terms.half_grain()), int(extra)];
        let fresh = statement("fresh", &self.prefix);
        // That it can be asked for, on the connection for writes, says nothing about writes.
        self.links.ask(Op::Write, |client| query(client, fresh, &parameters, payload)).await
    }

    async fn get(&self, key: PayloadKey) -> StoreResult<Option<(Vec<u8>, bool)>> {
        self.body_and_mark("get", key.as_bytes()).await
    }

    async fn remove(&self, key: PayloadKey, body: &[u8]) -> StoreResult<()> {
        self.execute(Op::Write, "remove", &[blob(key.as_bytes()), blob(body)]).await.map(drop)
    }

    async fn was_swept(&self, key: PayloadKey) -> StoreResult<bool> {
        self.row(Op::Read, "was_swept", &[blob(key.as_bytes())], |row| cell(row, 0)).await
    }

    async fn touch(&self, keys: &[PayloadKey]) -> StoreResult<()> {
        let parameters = [int(self.terms.now()), blobs(bytes_of(keys)), int(self.terms.half_grain())];
        self.execute(Op::Write, "touch", &parameters).await.map(drop)
    }

    async fn bodies(&self, keys: &[PayloadKey]) -> StoreResult<Vec<(PayloadKey, Vec<u8>)>> {
        self.rows(Op::Read, "bodies", &[blobs(bytes_of(keys))], |row| Ok((payload(row)?, cell(row, 1)?))).await
    }

    async fn list(&self, after: Option<Cursor>, keys: [PayloadKey; 2], most: usize) -> StoreResult<Vec<PayloadInfo>> {
        let [first, last] = keys;
        let (used, key) = after.map_or((i64::MAX, first), |Cursor { used, row }| (count(used.0), row));
        let [key, first, last] = [&key, &first, &last].map(|key| blob(key.as_bytes()));
        self.rows(Op::Read, "list", &[int(used), key, first, last, int(count(most as u64))], info).await
    }

    async fn put_inspected(&self, id: &str, body: &[u8]) -> StoreResult<()> {
        self.execute(Op::Write, "put_inspected", &[int(self.terms.now()), text(id), blob(body)]).await.map(drop)
    }

    async fn inspected(&self, id: &str) -> StoreResult<Option<Vec<u8>>> {
        Ok(self.rows(Op::Read, "inspected", &[text(id)], |row| cell(row, 0)).await?.pop())
    }

    async fn trim_inspected(&self, most: usize) -> StoreResult<()> {
        let (most, bytes) = (count(most as u64), count(self.terms.settings.max_inspected_bytes()));
        let parameters = [int(self.terms.now()), int(most), int(bytes), int(self.terms.keep_for())];
        self.execute(Op::Write, "trim_inspected", &parameters).await.map(drop)
    }

    async fn take_turn(&self, (name, seconds): (&str, i64)) -> StoreResult<bool> {
        Ok(self.execute(Op::Write, "take_turn", &[int(self.terms.now()), text(name), int(seconds)]).await? > 0)
    }

    async fn sweep(&self, stale: Stale) -> StoreResult<(u64, u64)> {
        let (name, parameters) = match stale {
            Stale::Expired => ("sweep", vec![int(self.terms.now()), int(self.terms.keep_for()), int(BATCH)]),
            Stale::Unused { owner, bytes } => {
                let (unused, owner) = (int(self.terms.in_use_for()), int(i64::from(owner)));
                ("sweep_unused", vec![int(self.terms.now()), unused, int(BATCH), owner, int(count(bytes))])
            }
        };
        self.row(Op::Write, name, &parameters, |row| Ok((number(row, 0)?, number(row, 1)?))).await
    }

    async fn owners(&self) -> StoreResult<Vec<(u64, u16)>> {
        let owner = |row: &Row| number(row, 1).map(|owner| u16::try_from(owner).unwrap_or_default());
        self.rows(Op::Read, "owners", &[], |row| Ok((number(row, 0)?, owner(row)?))).await
    }

    async fn sweep_others(&self) -> StoreResult<u64> {
        let parameters = [int(self.terms.now()), int(self.terms.keep_for())];
        let gone = self.rows(Op::Write, "sweep_summaries", &parameters, |row| cell::<bool>(row, 0)).await?;
        self.execute(Op::Write, "sweep_notes", &[int(self.terms.now())]).await?;
        Ok(gone.into_iter().map(u64::from).sum())
    }

    async fn crowd_others(&self) -> StoreResult<u64> {
        let most = int(count(self.terms.settings.max_summary_bytes()));
        let n_gone = self.execute(Op::Write, "crowd_summaries", &[most]).await?;
        let (most, age) = (count(TOMBSTONES.0), count(TOMBSTONES.1.as_secs()));
        self.execute(Op::Write, "trim_swept", &[int(self.terms.now()), int(age), int(most)]).await?;
        Ok(n_gone)
    }

    async fn full_above(&self) -> StoreResult<u64> {
        let level = self.rows(Op::Read, "meta", &[text("full")], |row| number(row, 1)).await?;
        Ok(level.first().copied().unwrap_or_default())
    }

    async fn set_full_above(&self, level: u64) -> StoreResult<()> {
        self.execute(Op::Write, "set_full", &[int(count(level))]).await.map(drop)
    }

    async fn totals(&self) -> StoreResult<[u64; 8]> {
        self.row(Op::Read, "totals", &[], |row| numbers(row, 0)).await
    }

    async fn offer(&self, place: Place, body: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        let [beginning, root] = [&place.beginning, &place.root].map(|key| blob(key.as_bytes()));
        let parameters = [int(self.terms.now()), beginning, root, blob(body)];
        loop {
            if self.execute(Op::Write, "offer", &parameters).await? > 0 {
                return Ok(None);
            }
            // It is not there if it was swept meanwhile.
            if let Some((theirs, _)) = self.summary(place.beginning).await? {
                return Ok(Some(theirs));
            }
        }
    }

    async fn summary(&self, beginning: ChainKey) -> StoreResult<Option<(Vec<u8>, bool)>> {
        self.body_and_mark("summary", beginning.as_bytes()).await
    }

    async fn remove_summary(&self, beginning: ChainKey, body: &[u8]) -> StoreResult<()> {
        self.execute(Op::Write, "remove_summary", &[blob(beginning.as_bytes()), blob(body)]).await.map(drop)
    }

    async fn summaries(&self) -> StoreResult<Vec<ChainKey>> {
        self.rows(Op::Read, "summaries", &[], |row| key(row, 0).map(ChainKey::from_bytes)).await
    }

    async fn touch_summaries(&self, beginnings: &[ChainKey]) -> StoreResult<()> {
        let keys: Vec<_> = beginnings.iter().map(|beginning| beginning.as_bytes().as_slice()).collect();
        let parameters = [int(self.terms.now()), blobs(keys), int(self.terms.half_grain())];
        self.execute(Op::Write, "touch_summaries", &parameters).await.map(drop)
    }

    async fn look(&self, root: ChainKey) -> StoreResult<Vec<Seen>> {
        let parameters = [int(self.terms.now()), blob(root.as_bytes()), int(count(MAX_SEEN as u64))];
        let seen = |row: &Row| Ok(Seen { beginning: ChainKey::from_bytes(key(row, 0)?), state: state(row, 1)? });
        self.rows(Op::Read, "look", &parameters, seen).await
    }

    async fn claim(&self, place: Place, Claimant { token, lease }: Claimant) -> StoreResult<Option<SeenState>> {
        let (beginning, root) = (place.beginning.as_bytes(), place.root.as_bytes());
        let parameters = [int(self.terms.now()), blob(beginning), blob(root), int(token), int(count(lease.as_secs()))];
        if self.execute(Op::Write, "claim", &parameters).await? > 0 {
            return Ok(None);
        }
        // The claim has failed: is the beginning summarised, or claimed by another process?
        let found =
            self.rows(Op::Read, "claimed", &[int(self.terms.now()), blob(beginning)], |row| state(row, 0)).await?;
        // It is gone if it was swept meanwhile.
        Ok(Some(found.first().copied().unwrap_or(SeenState::UnderWay(Duration::ZERO))))
    }

    async fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> StoreResult<()> {
        let pause = count(not_before.unwrap_or_default().as_secs());
        let beginning = blob(place.beginning.as_bytes());
        let parameters = [int(self.terms.now()), beginning, int(claimant.token), int(pause)];
        self.execute(Op::Write, "release", &parameters).await.map(drop)
    }

    async fn note(&self, Note { kind, key, value }: Note, keep: Duration) -> StoreResult<()> {
        let (kind, value, keep) = (<&str>::from(kind), &*value, count(keep.as_secs()));
        let parameters = [int(self.terms.now()), text(kind), blob(key.as_bytes()), blob(value), int(keep)];
        self.execute(Op::Write, "note", &parameters).await.map(drop)
    }

    async fn notes(&self, group: NoteGroup) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        let kinds: Vec<_> = NoteKind::of(group).map(<&str>::from).collect();
        let parameters =
            [int(self.terms.now()), int(count(group.most() as u64)), (Box::new(kinds) as _, Type::TEXT_ARRAY)];
        let note = |row: &Row| {
            let name = [cell::<Vec<u8>>(row, 1)?, cell::<String>(row, 0)?.into_bytes()].concat();
            Ok((name, cell(row, 2)?))
        };
        self.rows(Op::Read, "notes", &parameters, note).await
    }
}

// === helpers ===

/// A number, or none, as a parameter.
fn int(number: impl Into<Option<i64>>) -> Parameter<'static> {
    (Box::new(number.into()), Type::INT8)
}

fn ints(numbers: Vec<i64>) -> Parameter<'static> {
    (Box::new(numbers), Type::INT8_ARRAY)
}

fn text(text: &str) -> Parameter<'_> {
    (Box::new(text), Type::TEXT)
}

fn blob(bytes: &[u8]) -> Parameter<'_> {
    (Box::new(bytes), Type::BYTEA)
}

fn blobs(all: Vec<&[u8]>) -> Parameter<'_> {
    (Box::new(all), Type::BYTEA_ARRAY)
}

fn bytes_of(keys: &[PayloadKey]) -> Vec<&[u8]> {
    keys.iter().map(|key| key.as_bytes().as_slice()).collect()
}
