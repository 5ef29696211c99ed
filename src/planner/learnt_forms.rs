//! The forms of requests: those of the settings, and those that the refusals of an upstream have taught.

use std::collections::BTreeMap;

use super::Settings;
use crate::dialect::Form;

/// Forms by the model that requires them. Its name is empty where requests name none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LearntForms(BTreeMap<String, Vec<Form>>);

impl LearntForms {
    /// The longest part of a name that counts, in bytes.
    const MAX_MODEL: usize = 100;

    /// The part of a model's name that counts.
    pub fn key(model: &str) -> &str {
        model.get(..model.floor_char_boundary(Self::MAX_MODEL)).unwrap_or(model)
    }

    /// Adds forms of a model.
    pub fn learn(&mut self, model: Option<&str>, forms: &[Form]) {
        let known = self.0.entry(model.map(Self::key).unwrap_or_default().to_owned()).or_default();
        known.extend(forms);
        known.sort();
        known.dedup();
    }

    /// The forms of a model.
    pub fn of(&self, model: Option<&str>) -> &[Form] {
        self.0.get(model.map(Self::key).unwrap_or_default()).map_or(&[], Vec::as_slice)
    }

    /// The models, and their forms.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Form])> {
        self.0.iter().map(|(model, forms)| (&**model, &**forms))
    }
}

impl Settings {
    /// The same policy, with the forms that a host requires.
    #[must_use]
    pub fn at(&self, host: &str) -> Self {
        let mut policy = self.clone();
        policy.add_forms(Form::required_by(host));
        policy
    }

    pub(super) fn add_forms(&mut self, forms: &[Form]) {
        let missing: Vec<_> = forms.iter().filter(|form| !self.forms.contains(form)).copied().collect();
        self.forms.extend(missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_hold_for_the_model_that_was_refused() {
        let mut learnt = LearntForms::default();
        learnt.learn(Some("mistral-large"), &[Form::NineIds, Form::Filled]);
        learnt.learn(Some("mistral-large"), &[Form::Filled]);
        learnt.learn(None, &[Form::Bridge]);
        assert_eq!(learnt.of(Some("mistral-large")), [Form::Filled, Form::NineIds]);
        assert_eq!((learnt.of(Some("claude")), learnt.of(None)), (&[][..], &[Form::Bridge][..]));
    }

    #[test]
    fn a_name_counts_by_its_beginning() {
        let long = "é".repeat(LearntForms::MAX_MODEL);
        assert_eq!(LearntForms::key(&long).len(), LearntForms::MAX_MODEL);
        let mut learnt = LearntForms::default();
        learnt.learn(Some(&long), &[Form::Filled]);
        assert_eq!(learnt.of(Some(&format!("{long}!"))), [Form::Filled]);
        assert_eq!(learnt.iter().next().unwrap().0.len(), LearntForms::MAX_MODEL);
    }
}
