//! How refused requests of an upstream are retried, and the forms that refusals have taught, for operators, and as the store
//! keeps them.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};

use super::bypass::BypassList;
use crate::dialect::Form;
use crate::engine::{EditedBody, EngineConfig};
use crate::payload::ChainKey;
use crate::planner::LearntForms;
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
    pub(super) lessons: Vec<Lesson>,
    pub(super) rules: Arc<EngineConfig>,
    pub(super) stripping: Arc<EngineConfig>,
    pub(super) shortest: Arc<EngineConfig>,
}

/// The refusal that has taught a form. It holds for the model that was asked, as a gateway may pass models of several
/// vendors on.
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
    /// The refusals that have taught them.
    #[serde(default)]
    pub lessons: Vec<Lesson>,
}

/// From so many refusals on, no more are noted; a form that is not noted takes a second attempt each time.
const MAX_LESSONS: usize = 200;

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

    /// The refusals that have taught forms.
    pub fn lessons(&self) -> Vec<Lesson> {
        self.profile.load().as_ref().map(|profile| profile.lessons.clone()).unwrap_or_default()
    }

    /// Applies the forms that these refusals have taught, here or in another process, to requests that are edited by the `usual`
    /// rules.
    pub fn require(&self, lessons: &[Lesson], usual: &EngineConfig) {
        // Another request may teach a form at the same time.
        self.profile.rcu(|known| {
            let mut all = known.as_ref().map_or_else(Vec::new, |known| known.lessons.clone());
            if !Lesson::add(&mut all, lessons) {
                return known.clone();
            }
            let learnt = Lesson::forms(&all);
            let of = |rules: &EngineConfig| rules.under(rules.planner.settings.with_learnt_forms(&learnt));
            let (rules, stripping, shortest) = (of(usual), of(&self.stripping), of(&self.rules));
            Some(Arc::new(Profile { lessons: all, rules, stripping, shortest }))
        });
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
}

// === impl Lesson ===

impl Lesson {
    /// Adds those of forms that have none yet; whether there were any.
    pub fn add(to: &mut Vec<Self>, more: &[Self]) -> bool {
        let n_known = to.len();
        for lesson in more {
            let is_known = |known: &Self| (known.form, &known.model) == (lesson.form, &lesson.model);
            if to.len() < MAX_LESSONS && !to.iter().any(is_known) {
                to.push(lesson.clone());
            }
        }
        to.len() > n_known
    }

    /// The forms that they teach.
    pub fn forms(lessons: &[Self]) -> LearntForms {
        let mut forms = LearntForms::default();
        for lesson in lessons {
            forms.learn(lesson.model.as_deref(), &lesson.form.with_likely());
        }
        forms
    }

    /// That a request was accepted which has this form, or comes near to it.
    pub(super) fn new(form: Form, words: &[String], accepted: &EditedBody) -> Self {
        let model = accepted.report.as_ref().and_then(|report| report.model.as_deref());
        let model = model.map(|model| LearntForms::key(model).to_owned());
        Self { form, model, words: words.join(" … "), at: since_1970().as_secs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lesson_is_noted_once_and_no_more_than_the_limit() {
        let lesson =
            |n: usize| Lesson { form: Form::Filled, model: Some(format!("m{n}")), words: String::new(), at: 1 };
        let mut known = Vec::new();
        assert!(Lesson::add(&mut known, &[lesson(1), lesson(1), lesson(2)]));
        assert!(!Lesson::add(&mut known, &[lesson(2)]));
        assert_eq!(known, [lesson(1), lesson(2)]);
        let many: Vec<_> = (0..2 * MAX_LESSONS).map(lesson).collect();
        assert!(Lesson::add(&mut known, &many) && !Lesson::add(&mut known, &many));
        assert_eq!(known.len(), MAX_LESSONS);
    }
}
