//! Notes that processes exchange through a store: windows that were learned, forms that upstreams ask for, conversations that
//! are forwarded unedited, and which settings each has. In a store of one process, the forms outlive it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::payload::ChainKey;
use crate::proxy::second_try::{FormsNote, Lesson, NOTED_FOR, RescuePolicy};
use crate::proxy::{LiveConfig, Proxy};
use crate::store::{Note, NoteGroup, NoteKind, Store};
use crate::tasks::Tasks;

/// Reads and writes the notes of one process.
pub(super) struct Notes {
    store: Arc<dyn Store>,
    proxy: Arc<Proxy>,
    replica: ChainKey,
    // Everything that was read or written, so that it is not written again.
    windows: HashMap<String, usize>,
    unedited: HashSet<ChainKey>,
    forms: HashMap<String, Vec<Lesson>>,
    has_read: bool,
    settings_noted: Option<Instant>,
    // Since when another process has had other settings, and whether that was logged.
    other_settings: Option<(Instant, String, bool)>,
}

/// A window that an upstream has named.
#[derive(Deserialize, Serialize)]
struct WindowNote {
    model: String,
    window: usize,
}

/// Where a conversation is forwarded unedited: the number of the upstream, under these settings.
#[derive(Deserialize, Serialize)]
struct UneditedNote {
    place: usize,
    fingerprint: String,
}

/// The settings of a process.
#[derive(Clone, Deserialize, Serialize)]
struct SettingsNote {
    fingerprint: String,
    version: String,
}

/// The pause between two readings.
const PAUSE: Duration = Duration::from_secs(5);

/// How long windows and forms are kept.
const WINDOW_FOR: Duration = Duration::from_hours(24 * 30);

/// How often a process notes its settings, and for how long.
const SETTINGS_EVERY: Duration = Duration::from_mins(1);
const SETTINGS_FOR: Duration = Duration::from_mins(3);

/// Two settings that live together for longer than this are not a roll-out.
const ROLL_OUT: Duration = Duration::from_mins(10);

/// How many conversations are remembered as noted.
const MAX_NOTED: usize = 4096;

impl Notes {
    /// Reads what other processes know, before the first request, and then exchanges notes until the guard is dropped.
    /// `None` without a store.
    pub(super) async fn start(store: Option<&Arc<dyn Store>>, proxy: &Arc<Proxy>, tasks: &Tasks) -> Option<DropGuard> {
        let mut replica = [0; 16];
        // Without random numbers, processes overwrite each other's notes about settings.
        let _random = getrandom::getrandom(&mut replica);
        let mut notes = Self {
            store: Arc::clone(store?),
            proxy: Arc::clone(proxy),
            replica: ChainKey::from_bytes(replica),
            windows: HashMap::new(),
            unedited: HashSet::new(),
            forms: HashMap::new(),
            has_read: false,
            settings_noted: None,
            other_settings: None,
        };
        notes.exchange().await;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        // Processes that start together do not write together.
        let jitter = Duration::from_millis(replica.iter().map(|byte| u64::from(*byte)).sum::<u64>() / 4);
        tasks.spawn(async move {
            loop {
                let goes_on = stopped.run_until_cancelled(sleep(PAUSE + jitter)).await.is_some();
                // At the end, too: everything that was learnt last outlives the process.
                notes.exchange().await;
                if !goes_on {
                    return;
                }
            }
        });
        Some(stop.drop_guard())
    }

    /// Reads what others have noted, and notes what is new here. The store reports its failures; the next time comes.
    async fn exchange(&mut self) {
        let (store, live) = (Arc::clone(&self.store), self.proxy.live());
        let is_shared = store.shared().is_some();
        let mut notes = Vec::new();
        // No one else writes into a store of one process.
        if is_shared || !self.has_read {
            let Ok(read) = store.notes(NoteGroup::Fleet).await else { return };
            (notes, self.has_read) = (read, true);
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let own = is_shared.then(|| SettingsNote { fingerprint: live.fingerprint(), version });
        self.read(&notes, own.as_ref(), &live);
        let mut new = self.new_forms(&live);
        if let Some(own) = &own {
            new.extend(self.new_notes(own, &live));
        }
        for (note, keep) in new {
            if store.note(note, keep).await.is_err() {
                return;
            }
        }
        let is_due = self.settings_noted.is_none_or(|noted| noted.elapsed() >= SETTINGS_EVERY);
        if let Some(own) = own.filter(|_| is_due)
            && store.note(note(NoteKind::Settings, self.replica, &own), SETTINGS_FOR).await.is_ok()
        {
            self.settings_noted = Some(Instant::now());
        }
    }

    /// Reads notes: in a store of one process, which has no `own` settings to compare, those on forms.
    fn read(&mut self, notes: &[Note], own: Option<&SettingsNote>, live: &LiveConfig) {
        let mut others = Vec::new();
        for note in notes {
            match (note.kind, own) {
                (NoteKind::Forms, _) => self.read_forms(note),
                (NoteKind::Window, Some(_)) => self.read_window(note, live),
                (NoteKind::Unedited, Some(own)) => self.read_unedited(note, own, live),
                (NoteKind::Settings, Some(_)) if note.key != self.replica => {
                    others.extend(serde_json::from_slice::<SettingsNote>(&note.value));
                }
                _ => {}
            }
        }
        if let Some(own) = own {
            self.compare(own, &others);
        }
    }

    fn read_forms(&mut self, note: &Note) {
        let Ok(FormsNote { upstream, lessons }) = serde_json::from_slice(&note.value) else { return };
        Lesson::add(self.forms.entry(upstream).or_default(), &lessons);
    }

    /// Has each upstream get the forms that are known of it, also after a reload; the notes on what was learnt here.
    fn new_forms(&mut self, live: &LiveConfig) -> Vec<(Note, Duration)> {
        let mut notes = Vec::new();
        for destination in live.destinations.iter() {
            let upstream = destination.upstream.base.to_string();
            let key = key_of(upstream.as_bytes());
            let lessons = self.forms.entry(upstream.clone()).or_default();
            let rescues = || destination.arms().filter_map(|arm| arm.rescue.as_ref());
            let n_known = lessons.len();
            for rescue in rescues() {
                Lesson::add(lessons, &rescue.lessons());
            }
            // One arm may have learnt what the other has not.
            rescues().for_each(|rescue| rescue.require(lessons));
            if lessons.len() > n_known {
                let known = FormsNote { upstream, lessons: lessons.clone() };
                notes.push((note(NoteKind::Forms, key, &known), WINDOW_FOR));
            }
        }
        notes
    }

    fn read_window(&mut self, note: &Note, live: &LiveConfig) {
        let Ok(WindowNote { model, window }) = serde_json::from_slice(&note.value) else { return };
        let meter = &live.destinations.default().usual.rules.planner.meter;
        // A reload may have forgotten what was learned.
        let is_learned = || meter.models().learned().iter().any(|(known, _)| **known == *model);
        if self.windows.get(&model) != Some(&window) || !is_learned() {
            meter.models().learn(&model, window);
            self.windows.insert(model, window);
        }
    }

    /// Other settings may be accepted, so only those of the same settings count.
    fn read_unedited(&mut self, note: &Note, own: &SettingsNote, live: &LiveConfig) {
        let Ok(UneditedNote { place, fingerprint }) = serde_json::from_slice(&note.value) else { return };
        if let Some(destination) = live.destinations.iter().nth(place)
            && fingerprint == own.fingerprint
            && self.unedited.insert(note.key)
        {
            // A conversation is in one arm, and the other never asks for it.
            destination.arms().filter_map(|arm| arm.rescue.as_ref()).for_each(|rescue| rescue.leave_unedited(note.key));
        }
    }

    /// The notes on what this process has learned and no process has noted.
    fn new_notes(&mut self, own: &SettingsNote, live: &LiveConfig) -> Vec<(Note, Duration)> {
        let mut notes = Vec::new();
        for (model, window) in live.destinations.default().usual.rules.planner.meter.models().learned() {
            if self.windows.insert(model.to_string(), window) != Some(window) {
                let value = WindowNote { model: model.to_string(), window };
                notes.push((note(NoteKind::Window, key_of(model.as_bytes()), &value), WINDOW_FOR));
            }
        }
        if self.unedited.len() > MAX_NOTED {
            self.unedited.clear();
        }
        for (place, destination) in live.destinations.iter().enumerate() {
            let rescues = destination.arms().filter_map(|arm| arm.rescue.as_ref());
            for key in rescues.flat_map(RescuePolicy::unedited) {
                if self.unedited.insert(key) {
                    let value = UneditedNote { place, fingerprint: own.fingerprint.clone() };
                    notes.push((note(NoteKind::Unedited, key, &value), NOTED_FOR));
                }
            }
        }
        notes
    }

    /// Warns once if another process has had other settings for longer than a roll-out takes.
    fn compare(&mut self, own: &SettingsNote, others: &[SettingsNote]) {
        let Some(other) = others.iter().find(|other| other.fingerprint != own.fingerprint) else {
            self.other_settings = None;
            return;
        };
        match &mut self.other_settings {
            Some((since, fingerprint, warned)) if *fingerprint == other.fingerprint => {
                if since.elapsed() >= ROLL_OUT && !std::mem::replace(warned, true) {
                    tracing::warn!(
                        own = own.fingerprint,
                        other = other.fingerprint,
                        other_version = other.version,
                        "another process on this store has other settings or another version, so the same request may become other bytes there"
                    );
                }
            }
            _ => self.other_settings = Some((Instant::now(), other.fingerprint.clone(), false)),
        }
    }
}

fn key_of(name: &[u8]) -> ChainKey {
    ChainKey::from_bytes(blake3::hash(name).as_bytes().first_chunk().copied().unwrap_or_default())
}

fn note(kind: NoteKind, key: ChainKey, value: &impl Serialize) -> Note {
    Note { kind, key, value: serde_json::to_vec(value).unwrap_or_default().into() }
}
