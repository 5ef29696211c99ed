//! The refusals that have taught forms, for operators, and as the store keeps them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::dialect::Form;
use crate::engine::EditedBody;
use crate::store::{NoteGroup, NoteKind, Store, StoreError};

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

    #[expect(clippy::disallowed_methods, reason = "people are told when it came; nothing of it goes upstream")]
    pub(super) fn new(form: Form, words: &[String], mended: Option<&EditedBody>) -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let model = mended.and_then(|mended| mended.report.as_ref()?.model.as_ref());
        let model = model.map(|model| model.chars().take(MAX_MODEL).collect());
        Self { form, model, words: words.join(" … "), at }
    }
}
