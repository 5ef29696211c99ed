//! What processes that share a store tell each other beside the requests: windows that were learned, conversations that are
//! forwarded unedited, and which settings each has.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::Config;
use crate::payload::ChainKey;
use crate::proxy::Proxy;
use crate::proxy::rescue::{RescuePolicy, UNEDITED_FOR};
use crate::store::shared::{Note, NoteKind};
use crate::store::{SharedStore, Store};
use crate::tasks::Tasks;

/// Reads and writes the notes of one process.
pub(super) struct Notes {
    store: Arc<dyn Store>,
    proxy: Arc<Proxy>,
    replica: ChainKey,
    settings: SettingsNote,
    // What was read or written, so that it is not written again.
    windows: HashMap<String, usize>,
    unedited: HashSet<ChainKey>,
    settings_noted: Option<Instant>,
    // Since when another process has had other settings, and whether that was logged.
    other_settings: Option<(Instant, String, Warned)>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Warned {
    No,
    Yes,
}

/// A window that an upstream has named.
#[derive(Deserialize, Serialize)]
struct WindowNote {
    model: String,
    window: usize,
}

/// The settings of a process.
#[derive(Clone, Deserialize, Serialize)]
struct SettingsNote {
    fingerprint: String,
    version: String,
}

/// The pause between two readings.
const PAUSE: Duration = Duration::from_secs(5);

/// How long a window is kept.
const WINDOW_FOR: Duration = Duration::from_hours(24 * 30);

/// How often a process notes its settings, and for how long.
const SETTINGS_EVERY: Duration = Duration::from_mins(1);
const SETTINGS_FOR: Duration = Duration::from_mins(3);

/// Two settings that live together for longer than this are no roll-out.
const ROLL_OUT: Duration = Duration::from_mins(10);

/// How many conversations are remembered as told.
const MAX_TOLD: usize = 4096;

impl Notes {
    /// Reads what other processes know, before the first request, and then exchanges notes until the guard is dropped.
    /// `None` for a store of one process.
    pub(super) async fn start(
        store: Option<&Arc<dyn Store>>,
        proxy: &Arc<Proxy>,
        config: &Config,
        tasks: &Tasks,
    ) -> Option<DropGuard> {
        let mut notes = Self::new(store?, proxy, config)?;
        notes.exchange().await;
        Some(notes.keep(tasks))
    }

    fn new(store: &Arc<dyn Store>, proxy: &Arc<Proxy>, config: &Config) -> Option<Self> {
        store.shared()?;
        let mut replica = [0; 16];
        // Without random numbers, processes overwrite each other's notes about settings.
        let _random = getrandom::getrandom(&mut replica);
        Some(Self {
            store: Arc::clone(store),
            proxy: Arc::clone(proxy),
            replica: ChainKey::from_bytes(replica),
            settings: SettingsNote { fingerprint: fingerprint(config), version: env!("CARGO_PKG_VERSION").to_owned() },
            windows: HashMap::new(),
            unedited: HashSet::new(),
            settings_noted: None,
            other_settings: None,
        })
    }

    fn keep(mut self, tasks: &Tasks) -> DropGuard {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        // Processes that start together do not write together.
        let jitter =
            Duration::from_millis(self.replica.as_bytes().iter().map(|byte| u64::from(*byte)).sum::<u64>() / 4);
        tasks.spawn(async move {
            let exchanging = async {
                loop {
                    sleep(PAUSE + jitter).await;
                    self.exchange().await;
                }
            };
            stopped.run_until_cancelled(exchanging).await;
        });
        stop.drop_guard()
    }

    /// Reads what others have noted, and notes what is new here. The store reports its failures; the next time comes.
    async fn exchange(&mut self) {
        let store = Arc::clone(&self.store);
        let Some(shared) = store.shared() else { return };
        let Ok(notes) = shared.notes().await else { return };
        let mut others = Vec::new();
        for note in &notes {
            match note.kind {
                NoteKind::Window => self.read_window(note),
                NoteKind::Unedited => self.read_unedited(note),
                NoteKind::Settings if note.key != self.replica => {
                    others.extend(serde_json::from_slice::<SettingsNote>(&note.value));
                }
                NoteKind::Settings => {}
            }
        }
        self.compare(&others);
        for (note, keep) in self.news() {
            if shared.note(note, keep).await.is_err() {
                return;
            }
        }
        self.note_settings(shared).await;
    }

    fn read_window(&mut self, note: &Note) {
        let Ok(WindowNote { model, window }) = serde_json::from_slice(&note.value) else { return };
        if self.windows.get(&model) != Some(&window) {
            self.proxy.live().destinations.default().rules.planner.meter.learn_window(&model, window);
            self.windows.insert(model, window);
        }
    }

    fn read_unedited(&mut self, note: &Note) {
        let place = std::str::from_utf8(&note.value).ok().and_then(|place| place.parse::<usize>().ok());
        let (Some(place), live) = (place, self.proxy.live()) else { return };
        let rescue = live.destinations.iter().nth(place).and_then(|destination| destination.rescue.as_ref());
        if let Some(rescue) = rescue
            && self.unedited.insert(note.key)
        {
            rescue.leave_unedited(note.key);
        }
    }

    /// What this process has learned and nobody has noted.
    fn news(&mut self) -> Vec<(Note, Duration)> {
        let (mut news, live) = (Vec::new(), self.proxy.live());
        for (model, window) in live.destinations.default().rules.planner.meter.learned_windows() {
            if self.windows.insert(model.to_string(), window) != Some(window) {
                let mut key = [0; 16];
                blake3::Hasher::new().update(model.as_bytes()).finalize_xof().fill(&mut key);
                let value = serde_json::to_vec(&WindowNote { model: model.to_string(), window }).unwrap_or_default();
                let note = Note { kind: NoteKind::Window, key: ChainKey::from_bytes(key), value: value.into() };
                news.push((note, WINDOW_FOR));
            }
        }
        if self.unedited.len() > MAX_TOLD {
            self.unedited.clear();
        }
        for (place, destination) in live.destinations.iter().enumerate() {
            for key in destination.rescue.iter().flat_map(RescuePolicy::unedited) {
                if self.unedited.insert(key) {
                    news.push((Note { kind: NoteKind::Unedited, key, value: place.to_string().into() }, UNEDITED_FOR));
                }
            }
        }
        news
    }

    async fn note_settings(&mut self, shared: &dyn SharedStore) {
        if self.settings_noted.is_some_and(|noted| noted.elapsed() < SETTINGS_EVERY) {
            return;
        }
        let value = serde_json::to_vec(&self.settings).unwrap_or_default();
        let note = Note { kind: NoteKind::Settings, key: self.replica, value: value.into() };
        if shared.note(note, SETTINGS_FOR).await.is_ok() {
            self.settings_noted = Some(Instant::now());
        }
    }

    /// Warns once if another process has had other settings for longer than a roll-out takes.
    fn compare(&mut self, others: &[SettingsNote]) {
        let Some(other) = others.iter().find(|other| other.fingerprint != self.settings.fingerprint) else {
            self.other_settings = None;
            return;
        };
        match &mut self.other_settings {
            Some((since, fingerprint, warned)) if *fingerprint == other.fingerprint => {
                if since.elapsed() >= ROLL_OUT && *warned == Warned::No {
                    *warned = Warned::Yes;
                    tracing::warn!(
                        own = self.settings.fingerprint,
                        other = other.fingerprint,
                        other_version = other.version,
                        "another process on this store has other settings or another version, so the same request may become other bytes there"
                    );
                }
            }
            _ => self.other_settings = Some((Instant::now(), other.fingerprint.clone(), Warned::No)),
        }
    }
}

/// A name for all settings and the version that bytes depend on.
fn fingerprint(config: &Config) -> String {
    let parts = serde_json::to_vec(&(config.parts(), env!("CARGO_PKG_VERSION"))).unwrap_or_default();
    blake3::hash(&parts).to_hex().chars().take(12).collect()
}
