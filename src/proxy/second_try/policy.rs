//! How refused requests of an upstream are retried, and the forms that refusals have taught, for operators, and as the store
//! keeps them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

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

/// How refused requests are retried. A reload replaces it with what it has noted, because other settings may be accepted.
#[derive(Debug)]
pub struct RescuePolicy {
    pub(super) noted: NotedForms,
    profile: ArcSwap<Profile>,
}

/// The forms that an upstream asks for, and the rules that bring requests into them.
#[derive(Debug)]
struct Profile {
    lessons: Vec<Lesson>,
    usual: Arc<EngineConfig>,
    stripping: Arc<EngineConfig>,
    shortest: Arc<EngineConfig>,
}

/// Conversations whose edited form was refused, by the keys of their beginnings, and the form in which they are sent; for a time
/// and in bounded memory.
#[derive(Debug, Default)]
pub(super) struct NotedForms {
    // Until when each entry holds. Read with each request, and rarely written.
    until: ArcSwap<HashMap<ChainKey, (RequestForm, Instant)>>,
}

/// The most entries.
const MAX_ENTRIES: usize = 1024;

/// How long a conversation is sent in another form. After that, it is edited again.
pub const NOTED_FOR: Duration = Duration::from_hours(1);

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

// === impl RescuePolicy ===

impl RescuePolicy {
    /// Retries requests that these rules have edited.
    pub fn new(usual: &Arc<EngineConfig>) -> Self {
        let settings = &usual.planner.settings;
        let profile = Profile {
            lessons: Vec::new(),
            usual: Arc::clone(usual),
            stripping: usual.under(settings.stripping()),
            shortest: usual.under(settings.shortest()),
        };
        Self { noted: NotedForms::default(), profile: ArcSwap::from_pointee(profile) }
    }

    /// The rules that bring requests into this form.
    pub(in crate::proxy) fn rules(&self, form: RequestForm) -> Arc<EngineConfig> {
        let profile = self.profile.load();
        Arc::clone(match form {
            RequestForm::Edited | RequestForm::Unedited => &profile.usual,
            RequestForm::Stripped => &profile.stripping,
            RequestForm::Shortest => &profile.shortest,
        })
    }

    /// The refusals that have taught forms.
    pub fn lessons(&self) -> Vec<Lesson> {
        self.profile.load().lessons.clone()
    }

    /// Applies the forms that these refusals have taught, here or in another process.
    pub fn require(&self, lessons: &[Lesson]) {
        // Another request may teach a form at the same time.
        self.profile.rcu(|known| {
            let mut all = known.lessons.clone();
            if !Lesson::add(&mut all, lessons) {
                return Arc::clone(known);
            }
            let learnt = Lesson::forms(&all);
            let of = |rules: &EngineConfig| rules.under(rules.planner.settings.with_learnt_forms(&learnt));
            let Profile { usual, stripping, shortest, .. } = &**known;
            let (usual, stripping, shortest) = (of(usual), of(stripping), of(shortest));
            Arc::new(Profile { lessons: all, usual, stripping, shortest })
        });
    }

    /// The conversations that are forwarded unedited.
    pub fn unedited(&self) -> Vec<ChainKey> {
        let (noted, now) = (self.noted.until.load(), Instant::now());
        let unedited = noted.iter().filter(|(_, (form, until))| *form == RequestForm::Unedited && *until > now);
        unedited.map(|(key, _)| *key).collect()
    }

    /// Forwards a conversation unedited, as another process does.
    pub fn leave_unedited(&self, key: ChainKey) {
        self.noted.insert(key, RequestForm::Unedited);
    }
}

// === impl NotedForms ===

impl NotedForms {
    /// Whether nothing is noted.
    pub(super) fn is_empty(&self) -> bool {
        self.until.load().is_empty()
    }

    /// The form of a conversation with these beginnings, if one is noted: not edited, if that is one of several.
    pub(super) fn form(&self, keys: &[ChainKey]) -> Option<RequestForm> {
        let (noted, now) = (self.until.load(), Instant::now());
        let forms =
            keys.iter().filter_map(|key| noted.get(key)).filter(|(_, until)| *until > now).map(|(form, _)| *form);
        forms.reduce(|form, other| if other == RequestForm::Unedited { other } else { form })
    }

    /// Notes a form. A full list drops its oldest entry.
    pub(super) fn insert(&self, key: ChainKey, form: RequestForm) {
        let now = Instant::now();
        self.until.rcu(|noted| {
            let mut noted = HashMap::clone(noted);
            noted.retain(|_, (_, until)| *until > now);
            if noted.len() >= MAX_ENTRIES
                && let Some(oldest) = noted.iter().min_by_key(|(_, (_, until))| *until).map(|(key, _)| *key)
            {
                noted.remove(&oldest);
            }
            noted.insert(key, (form, now + NOTED_FOR));
            noted
        });
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
    use tokio::time::{advance, pause};

    use super::*;

    fn name(n: usize) -> ChainKey {
        ChainKey::from_bytes((n as u128).to_be_bytes())
    }

    #[tokio::test]
    async fn noted_forms_are_bounded_and_expire() {
        pause();
        let list = NotedForms::default();
        assert!(list.is_empty() && list.form(&[name(0)]).is_none());
        for n in 0..=MAX_ENTRIES {
            list.insert(name(n), if n == 2 { RequestForm::Unedited } else { RequestForm::Stripped });
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(list.until.load().len(), MAX_ENTRIES);
        assert_eq!(list.form(&[name(0)]), None, "the oldest has made room");
        assert_eq!(list.form(&[name(MAX_ENTRIES + 1), name(1)]), Some(RequestForm::Stripped));
        assert_eq!(list.form(&[name(1), name(2), name(3)]), Some(RequestForm::Unedited));
        advance(NOTED_FOR).await;
        assert_eq!(list.form(&[name(1), name(MAX_ENTRIES)]), None);
        list.insert(name(7), RequestForm::Stripped);
        assert_eq!(list.until.load().len(), 1);
    }

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
