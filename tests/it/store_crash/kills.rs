//! Killed two hundred times at any moment, under load, with one file: whatever has gone upstream is there.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::model::{Model, gist_in};
use super::talk::{Said, Talk, Used, named};
use crate::support::summarizer::INSTRUCTION;
use crate::support::{Abridge, Setup, Wire, chat, request};

/// One store file through all its kills.
struct Victim {
    model: Model,
    folder: PathBuf,
    random: Random,
    talks: Vec<Talk>,
    /// Every handle that has gone upstream, and what it names.
    named: BTreeMap<String, Said>,
    /// The same in the order of their first use.
    order: Vec<String>,
    /// How far the summary reached that a session was last seen with.
    reached: BTreeMap<usize, usize>,
    /// What went upstream as a summary before the present process was started.
    older: BTreeSet<String>,
    tally: Tally,
}

/// What has happened, to be sure that something has.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    requests: usize,
    recalled: usize,
    cleared_or_cut: usize,
    transcripts: usize,
    summarised: usize,
    summarised_before_the_kill: usize,
    slowest_start: Duration,
}

/// The same numbers again for the same seed.
struct Random(u64);

const KILLS: usize = 200;
/// Stores that are filled, killed and read beside each other, which shares the time that disks and starts take.
const VICTIMS: usize = 2;
const CLIENTS: usize = 6;
/// A kill comes when the upstream has got fewer bodies than this of a process, and less than this later. Bodies are counted and
/// not milliseconds, so that a slow machine puts as much at risk as a quick one.
const BODIES: u64 = 20;
const LATER: Duration = Duration::from_millis(10);
/// Of all handles, those that are asked for after a kill beside the latest ones. All are at the end.
const SAMPLE: usize = 8;
const LATEST: usize = 24;
/// The longest that opening a store may take, and how often it may be tried on a machine that is busy.
const OPENING: Duration = Duration::from_secs(1);
const TRIES: usize = 6;

const FILE: &str = "store.redb";

/// Another address of its own would be another text, which stored summaries do not have.
const SETTINGS: &str = r#"
recall.public_url = "http://abridge.test"
truncate_tool_results.max_bytes = 1200
clear_tool_results = { when = 'any', trigger = { tokens = 1500 }, keep = { results = 1 }, clear_at_least = 100 }
summarize.trigger = { tokens = 2000 }
tokens = { counter = "estimate", ask_upstream = false }
store.timeout = "5m"
"#;

#[tokio::test]
async fn two_hundred_kills_lose_no_payload_that_was_named() {
    let seed = std::env::var("ABRIDGE_CRASH_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one("seed") >> 32);
    println!("ABRIDGE_CRASH_SEED={seed}");
    let mut victims = JoinSet::new();
    for n in 0..VICTIMS {
        victims.spawn(async move {
            let folder = tempfile::tempdir().unwrap();
            let mut victim = Victim::new(folder.path(), Random(seed.wrapping_add(n as u64 * 0x1234_5678_9abc))).await;
            for _ in 0..KILLS / VICTIMS {
                victim.live_and_die().await;
            }
            victim.check_everything().await
        });
    }
    while let Some(tally) = victims.join_next().await {
        let tally = tally.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        println!("{tally:?}");
    }
}

// === impl Victim ===

impl Victim {
    async fn new(folder: &Path, random: Random) -> Self {
        Self {
            model: Model::start().await,
            folder: folder.to_owned(),
            random,
            talks: (0..CLIENTS).map(Talk::new).collect(),
            named: BTreeMap::new(),
            order: Vec::new(),
            reached: BTreeMap::new(),
            older: BTreeSet::new(),
            tally: Tally::default(),
        }
    }

    /// From one start to a kill, and what has come of it.
    async fn live_and_die(&mut self) {
        let abridge = self.start().await;
        let sample = self.sample();
        self.recall(sample, &abridge).await;
        let mut clients = JoinSet::new();
        for (place, talk) in self.talks.iter().copied().enumerate() {
            let wire = abridge.connect().await;
            clients.spawn(async move { (place, until_killed(wire, talk).await) });
        }
        self.model.has_got(self.random.below(BODIES)).await;
        sleep(LATER * u32::try_from(self.random.below(1000)).unwrap() / 1000).await;
        abridge.signal("KILL");
        abridge.exit().await;
        while let Some(ended) = clients.join_next().await {
            let (place, talk) = ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            self.talks[place] = talk;
        }
        no_alarm(&abridge);
        self.read_what_came().await;
    }

    /// Starts again, in time.
    async fn start(&mut self) -> Abridge {
        // As the kill has left it, should it have to be opened again.
        let (left, again) = (self.folder.join("left.redb"), self.folder.join("again.redb"));
        std::fs::copy(self.folder.join(FILE), &left).ok();
        let before = Instant::now();
        let abridge = self.setup(FILE).start().await;
        let mut took = before.elapsed();
        self.tally.slowest_start = self.tally.slowest_start.max(took);
        let (mut without, mut n_tries) = (Duration::MAX, 1);
        while took >= OPENING.saturating_add(without) || took >= OPENING && n_tries == 1 {
            // On a machine that is busy any process may take long: what counts is what a store adds, at its best.
            assert!(n_tries < TRIES, "it took {took:?} to start, and {without:?} without a store");
            n_tries += 1;
            std::fs::copy(&left, &again).ok();
            let before = Instant::now();
            self.setup("again.redb").start().await;
            took = took.min(before.elapsed());
            let before = Instant::now();
            Setup::to(self.model.url()).with("store.enabled = false").start().await;
            without = without.min(before.elapsed());
        }
        abridge
    }

    fn setup(&self, file: &str) -> Setup {
        let path = self.folder.join(file);
        Setup::to(self.model.url())
            .with(format!("store.path = {:?}", path.to_str().unwrap()))
            .with(format!("summarize.instruction = {INSTRUCTION:?}"))
            .with(SETTINGS)
    }

    /// What the upstream has got since it was read last: which handles are to be there, and whether summaries are whole.
    async fn read_what_came(&mut self) {
        let mut used = BTreeSet::new();
        for got in self.model.got().await {
            let named = named(&got.body);
            self.tally.requests += usize::from(!got.is_summary);
            for (handle, said) in named.handles {
                let before = self.named.insert(handle.clone(), said);
                assert!(before.is_none_or(|before| before == said), "{handle} is {before:?} and {said:?}");
                if before.is_none() {
                    self.order.push(handle);
                }
            }
            match (named.summary, self.reached.get(&named.session)) {
                (Some(summary), _) => _ = used.insert(self.check_summary(&summary, got.is_summary).await),
                (None, Some(to)) => panic!("session {} had a summary to {to}, and has none", named.session),
                (None, None) => {}
            }
        }
        self.older.append(&mut used);
    }

    /// Sees to it that a summary is one that was given, whole, and reaches no less far than the last one; what it says.
    async fn check_summary(&mut self, summary: &Used, is_source: bool) -> String {
        let Used { session, to, text } = summary;
        let (of, gist) = gist_in(text).unwrap_or_else(|| panic!("half a summary: {text}"));
        assert_eq!(of, *session);
        assert!(self.model.has_given(gist).await, "nobody has said this: {gist}");
        assert!(text.ends_with(CONTINUATION), "the end is missing: {text}");
        let reached = self.reached.insert(*session, *to).unwrap_or_default();
        assert!(reached <= *to, "session {session} had a summary to {reached}, and has one to {to}");
        if !is_source {
            self.tally.summarised += 1;
            self.tally.summarised_before_the_kill += usize::from(self.older.contains(gist));
        }
        gist.to_owned()
    }

    /// The latest handles, and some of all.
    fn sample(&mut self) -> Vec<String> {
        let latest = self.order.len().saturating_sub(LATEST);
        let mut sample = self.order[latest..].to_vec();
        for _ in 0..SAMPLE.min(latest) {
            let at = self.random.below(latest as u64);
            sample.push(self.order[usize::try_from(at).unwrap()].clone());
        }
        sample
    }

    /// Recalls these, byte for byte.
    async fn recall(&mut self, handles: Vec<String>, abridge: &Abridge) {
        let mut wire = abridge.connect().await;
        for handle in handles {
            wire.send(request("GET", &handle, &[])).await;
            let reply = wire.reply().await;
            let said = self.named[&handle];
            assert_eq!(reply.head.status(), 200, "{handle}, which is {said:?}");
            assert!(reply.body == said.text(), "{handle}, which is {said:?}, is {:?}", reply.body);
            self.tally.recalled += 1;
        }
    }

    /// Starts a last time, recalls all that was ever named, and sees to it that this was worth the while.
    async fn check_everything(mut self) -> Tally {
        let abridge = self.start().await;
        self.recall(self.order.clone(), &abridge).await;
        no_alarm(&abridge);
        let transcripts = self.named.values().filter(|said| matches!(said, Said::Transcript { .. })).count();
        let tally = Tally { transcripts, cleared_or_cut: self.named.len() - transcripts, ..self.tally };
        assert!(tally.cleared_or_cut > KILLS && tally.transcripts > KILLS / 10, "{tally:?}");
        assert!(tally.summarised_before_the_kill > KILLS / 10, "{tally:?}");
        let summaries = self.model.summaries();
        assert!(summaries.cut_off > 0, "no kill fell into a summary: {summaries:?}, {tally:?}");
        tally
    }
}

/// What a summary's message ends with.
const CONTINUATION: &str = "do not ask again for what it says.";

/// Plays one session after another, as long as there is a proxy to play with.
async fn until_killed(mut wire: Wire, mut talk: Talk) -> Talk {
    loop {
        if wire.try_send(chat(talk.body())).await.is_err() {
            return talk;
        }
        let Some((head, _)) = wire.next_whole().await else { return talk };
        assert_eq!(head.status(), 200, "{head:?}");
        talk.go_on();
        if talk.is_over() {
            talk = Talk::new(talk.session + CLIENTS);
        }
    }
}

fn no_alarm(abridge: &Abridge) {
    let stderr = abridge.stderr();
    let alarm = stderr.iter().find(|line| line.contains("ERROR") || line.contains("WARN") || line.contains("panicked"));
    assert_eq!(alarm, None);
}

// === impl Random ===

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
