//! Metrics by model. Clients choose the names of models, so the number of labels is bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use smart_default::SmartDefault;

use super::exposition::{Exposition, Labels, labels};
use super::{Histogram, answer_times, token_counts};

/// How many models have their own label; later ones count as [`OTHER`].
pub(super) const MAX_MODELS: usize = 50;

/// The label of all other models.
pub(super) const OTHER: &str = "other";

/// The longest label in characters; a longer name is truncated.
const MAX_NAME_CHARS: usize = 64;

/// The metrics of each model's answers.
#[derive(Debug, Default)]
pub(super) struct Models(BTreeMap<String, Model>);

#[derive(Debug, SmartDefault)]
struct Model {
    #[default(Histogram::new(token_counts()))]
    input: Histogram,
    #[default(Histogram::new(token_counts()))]
    output: Histogram,
    #[default(Histogram::new(answer_times()))]
    duration: Histogram,
    billed: [u64; 3],
    predicted: u64,
    reported: u64,
}

/// The cost of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerUsage<'a> {
    /// The model of the request.
    pub model: Option<&'a str>,
    /// From the sending of the request to the end of the answer.
    pub duration: Duration,
    /// The billed tokens: of the request, those of them from a cache, of the answer.
    pub billed: Option<[u64; 3]>,
    /// How many tokens of the request a prompt cache can have served.
    pub predicted: Option<u64>,
}

// === impl Models ===

impl Models {
    /// Counts an answer.
    pub(super) fn add(&mut self, answer: &AnswerUsage<'_>) {
        let name = answer.model.unwrap_or(OTHER);
        let model = match self.0.get_mut(name) {
            Some(model) => model,
            None => self.labelled(label(name)),
        };
        model.duration.observe(answer.duration.as_secs_f64());
        let Some([prompt, cached, completion]) = answer.billed else { return };
        model.input.observe(float(prompt));
        model.output.observe(float(completion));
        for (sum, n) in model.billed.iter_mut().zip([prompt, cached, completion]) {
            *sum += n;
        }
        if let Some(predicted) = answer.predicted {
            model.predicted += predicted;
            model.reported += cached;
        }
    }

    /// The metrics under a label, or those of [`OTHER`] if there are too many.
    fn labelled(&mut self, label: String) -> &mut Model {
        let n_named = self.0.len() - usize::from(self.0.contains_key(OTHER));
        let has_place = self.0.contains_key(&label) || n_named < MAX_MODELS;
        self.0.entry(if has_place { label } else { OTHER.to_owned() }).or_default()
    }

    /// Writes the metrics of all models.
    pub(super) fn write(&self, exposition: &mut Exposition) {
        let usage = self.0.iter().flat_map(|(name, model)| {
            let types = [("input", &model.input), ("output", &model.output)];
            types.map(|(kind, tokens)| (labels_with(name, "gen_ai_token_type", kind), tokens.clone()))
        });
        exposition.sizes("gen_ai_client_token_usage", usage);
        exposition.times(
            "gen_ai_client_operation_duration",
            self.0.iter().map(|(name, model)| (model_labels(name), model.duration.clone())),
        );
        let billed = self.0.iter().flat_map(|(name, model)| {
            let types = ["input", "cached", "output"].into_iter().zip(model.billed);
            types.map(|(kind, n)| (labels_with(name, "type", kind), n))
        });
        exposition.counters("abridge_billed_tokens", billed);
        let cached = self.0.iter().flat_map(|(name, model)| {
            let sources = [("predicted", model.predicted), ("reported", model.reported)];
            sources.map(|(source, n)| (labels_with(name, "source", source), n))
        });
        exposition.counters("abridge_cached_tokens", cached);
    }
}

fn model_labels(name: &str) -> Labels {
    labels([("gen_ai_operation_name", "chat"), ("gen_ai_request_model", name)])
}

fn labels_with(name: &str, other: &'static str, value: &str) -> Labels {
    labels([("gen_ai_operation_name", "chat"), ("gen_ai_request_model", name), (other, value)])
}

#[expect(clippy::cast_precision_loss, reason = "no request or answer has 2^53 tokens")]
fn float(tokens: u64) -> f64 {
    tokens as f64
}

/// A model's name as a label.
fn label(name: &str) -> String {
    name.chars().take(MAX_NAME_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::TextFormat;

    #[test]
    fn the_number_of_model_labels_is_bounded() {
        let mut models = Models::default();
        for n in 0..MAX_MODELS + 20 {
            models.add(&AnswerUsage {
                model: Some(&format!("m{n}")),
                billed: Some([10, 4, 1]),
                ..AnswerUsage::default()
            });
        }
        models.add(&AnswerUsage { model: Some("m0"), ..AnswerUsage::default() });
        models.add(&AnswerUsage::default());
        assert_eq!(models.0.len(), MAX_MODELS + 1);
        assert_eq!(models.0[OTHER].billed, [200, 80, 20]);
        assert_eq!(models.0["m0"].billed, [10, 4, 1]);
        let mut exposition = Exposition::default();
        models.write(&mut exposition);
        let text = exposition.into_text(TextFormat::Prometheus);
        for (model, n) in [("m0", 2), (OTHER, 21)] {
            let labels = format!("gen_ai_operation_name=\"chat\",gen_ai_request_model=\"{model}\"");
            let count = format!("gen_ai_client_operation_duration_seconds_count{{{labels}}} {n}\n");
            assert!(text.contains(&count), "{text}");
        }
    }

    #[test]
    fn labels_are_truncated_and_have_no_control_characters() {
        assert_eq!(label("a\nb\u{1b}c"), "a\u{fffd}b\u{fffd}c");
        assert_eq!(label(&"é".repeat(100)), "é".repeat(64));
    }
}
