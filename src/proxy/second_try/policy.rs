//! How refused requests of an upstream are retried, and the forms that refusals have taught, for operators, and as the store
//! keeps them.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};

use super::bypass::BypassList;
use crate::dialect::Form;
use crate::engine::{EditedBody, EngineConfig};
use crate::payload::ChainKey;
use crate::platform::since_1970;
use crate::recording::RequestForm;
use crate::store::{NoteGroup, NoteKind, Store, StoreError};

/// How the requests of a conversation are edited, and how refused ones are sent once more.
#[derive(Debug)]
pub struct Arm {
    /// Which edits run, and how.
    pub rules: Arc<EngineConfig>,
    /// How requests that the upstream refuses are sent once more; `None` if `[second_try]` is off.
    pub rescue: Option<RescuePolicy>,
}

/// How refused requests are retried. A reload replaces it with its bypass list, because other settings may be accepted.
#[derive(Debug)]
pub struct RescuePolicy {
    pub(super) rules: Arc<EngineConfig>,
    pub(super) stripping: Arc<EngineConfig>,
    pub(super) bypassed: BypassList,
    pub(super) stripped: BypassList,
    pub(super) profile: ArcSwapOption<Profile>,
}

/// The forms that an upstream asks for, and the rules that bring requests into them.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) forms: Vec<Form>,
    pub(super) lessons: Vec<Lesson>,
    pub(super) rules: Arc<EngineConfig>,
    pub(super) stripping: Arc<EngineConfig>,
    pub(super) shortest: Arc<EngineConfig>,
}

/// The refusal that has taught a form.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Lesson {
    /// The form.
    pub form: Form,
    /// The model of the request.
    pub model: Option<String>,
    /// The words by which the refusal was recognised.
    pub words: String,
    /// When it came, in seconds since 1970.
    pub at: u64,
}

/// The forms that an upstream asks for.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct FormsNote {
    /// Its base URL.
    pub upstream: String,
    /// The forms.
    pub forms: Vec<Form>,
    /// The refusals that have taught them.
    #[serde(default)]
    pub lessons: Vec<Lesson>,
}

/// The longest name of a model that is kept of a refusal, in characters.
const MAX_MODEL: usize = 100;

/// How the requests of a conversation are edited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::proxy) enum Treatment {
    /// By the policy.
    Edited,
    /// By the policy, without the reasoning before each pass.
    Stripped,
    /// Not at all.
    Unedited,
}

// === impl RescuePolicy ===

impl RescuePolicy {
    /// Retries with these rules, which must be those of [`PlanSettings::shortest`](crate::planner::PlanSettings::shortest) and of
    /// [`PlanSettings::stripping`](crate::planner::PlanSettings::stripping).
    pub fn new(rules: Arc<EngineConfig>, stripping: Arc<EngineConfig>) -> Self {
        let [bypassed, stripped] = [BypassList::default(), BypassList::default()];
        let profile = ArcSwapOption::empty();
        Self { rules, stripping, bypassed, stripped, profile }
    }

    /// The rules of a conversation that is treated so, which are `usual` ones by default.
    pub(in crate::proxy) fn rules(
        rescue: Option<&Self>,
        of: Treatment,
        usual: &Arc<EngineConfig>,
    ) -> Arc<EngineConfig> {
        let profile = rescue.and_then(|rescue| rescue.profile.load_full());
        let of_forms = profile.map(|profile| match of {
            Treatment::Stripped => Arc::clone(&profile.stripping),
            Treatment::Edited | Treatment::Unedited => Arc::clone(&profile.rules),
        });
        let stripping = || rescue.filter(|_| of == Treatment::Stripped).map(|rescue| &rescue.stripping);
        of_forms.unwrap_or_else(|| Arc::clone(stripping().unwrap_or(usual)))
    }

    /// The forms that the upstream has asked for.
    pub fn forms(&self) -> Vec<Form> {
        self.profile.load().as_ref().map(|profile| profile.forms.clone()).unwrap_or_default()
    }

    /// The refusals that have taught them.
    pub fn lessons(&self) -> Vec<Lesson> {
        self.profile.load().as_ref().map(|profile| profile.lessons.clone()).unwrap_or_default()
    }

    /// Has requests, which are edited by the `usual` rules, take these forms too: another process, or an earlier one, has learnt
    /// that the upstream asks for them.
    pub fn require(&self, forms: &[Form], lessons: &[Lesson], usual: &EngineConfig) {
        let is_known = |known: &[Form]| forms.iter().all(|form| known.contains(form));
        if is_known(&self.forms()) {
            return;
        }
        // Another request may teach a form at the same time.
        self.profile.rcu(|known| {
            let (known, mut all) =
                known.as_ref().map_or_else(Default::default, |known| (known.forms.clone(), known.lessons.clone()));
            Lesson::add(&mut all, lessons);
            Some(Arc::new(self.with_forms(with(known, forms), all, usual)))
        });
    }

    /// The forms that the upstream has asked for, and these.
    pub(super) fn forms_with(&self, forms: &[Form]) -> Vec<Form> {
        with(self.forms(), forms)
    }

    /// What requests become whose upstream asks for these forms.
    pub(super) fn with_forms(&self, forms: Vec<Form>, lessons: Vec<Lesson>, usual: &EngineConfig) -> Profile {
        let of = |rules: &EngineConfig| rules.under(rules.planner.settings.with_forms(&forms));
        Profile { rules: of(usual), stripping: of(&self.stripping), shortest: of(&self.rules), forms, lessons }
    }

    /// The conversations that are forwarded unedited.
    pub fn unedited(&self) -> Vec<ChainKey> {
        self.bypassed.keys()
    }

    /// Forwards a conversation unedited, as another process does.
    pub fn leave_unedited(&self, key: ChainKey) {
        self.bypassed.insert(key);
    }
}

fn with(mut known: Vec<Form>, forms: &[Form]) -> Vec<Form> {
    let missing: Vec<_> = forms.iter().copied().filter(|form| !known.contains(form)).collect();
    known.extend(missing);
    known
}

// === impl Treatment ===

impl Treatment {
    /// The form of the request that is sent first.
    pub(in crate::proxy) fn form(self) -> RequestForm {
        match self {
            Self::Edited => RequestForm::Edited,
            Self::Stripped => RequestForm::Stripped,
            Self::Unedited => RequestForm::Unedited,
        }
    }
}

// === impl FormsNote ===

impl FormsNote {
    /// Those in a store.
    pub async fn stored(store: &dyn Store) -> Result<Vec<Self>, StoreError> {
        let notes = store.notes(NoteGroup::Fleet).await?;
        let forms = notes.iter().filter(|note| note.kind == NoteKind::Forms);
        Ok(forms.filter_map(|note| serde_json::from_slice(&note.value).ok()).collect())
    }

    /// Adds what else is known.
    pub fn add(&mut self, forms: Vec<Form>, lessons: &[Lesson]) {
        self.forms.extend(forms);
        self.forms.sort();
        self.forms.dedup();
        Lesson::add(&mut self.lessons, lessons);
    }
}

// === impl Lesson ===

impl Lesson {
    /// Adds those of forms that have none yet.
    pub fn add(to: &mut Vec<Self>, more: &[Self]) {
        for lesson in more {
            if to.iter().all(|known| known.form != lesson.form) {
                to.push(lesson.clone());
            }
        }
    }

    pub(super) fn new(form: Form, words: &[String], mended: Option<&EditedBody>) -> Self {
        let model = mended.and_then(|mended| mended.report.as_ref()?.model.as_ref());
        let model = model.map(|model| model.chars().take(MAX_MODEL).collect());
        Self { form, model, words: words.join(" … "), at: since_1970().as_secs() }
    }
}
