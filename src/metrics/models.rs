//! Numbers by model. Clients name models, so only some get a name of their own here.

use std::collections::BTreeMap;
use std::time::Duration;

use super::histogram::{ANSWER, Histogram, TOKENS};
use super::sheet::{Labels, Sheet};

/// So many models have numbers of their own; what comes later counts as [`OTHER`].
pub(super) const MOST: usize = 50;

/// The name of all others.
pub(super) const OTHER: &str = "other";

/// The longest name, in characters; a longer one is cut.
const MOST_CHARS: usize = 64;

/// What the answers of each model cost.
#[derive(Debug, Default)]
pub(super) struct Models(BTreeMap<String, Model>);

#[derive(Debug)]
struct Model {
    input: Histogram,
    output: Histogram,
    duration: Histogram,
    billed: [u64; 3],
    predicted: u64,
    reported: u64,
}

/// One answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answer<'a> {
    /// The model that was asked.
    pub model: Option<&'a str>,
    /// From when the request was sent to the end of the answer.
    pub duration: Duration,
    /// What was billed: tokens of the request, those of them from a cache, tokens of the answer.
    pub billed: Option<[u64; 3]>,
    /// How many of the request a cache can have served.
    pub predicted: Option<u64>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            input: Histogram::of_numbers(TOKENS),
            output: Histogram::of_numbers(TOKENS),
            duration: Histogram::of_times(ANSWER),
            billed: [0; 3],
            predicted: 0,
            reported: 0,
        }
    }
}

// === impl Models ===

impl Models {
    /// Counts an answer.
    pub(super) fn add(&mut self, answer: &Answer<'_>) {
        let name = label(answer.model.unwrap_or(OTHER));
        let n_named = self.0.len() - usize::from(self.0.contains_key(OTHER));
        let has_place = self.0.contains_key(&name) || n_named < MOST;
        let model = self.0.entry(if has_place { name } else { OTHER.to_owned() }).or_default();
        model.duration.time(answer.duration);
        let Some([prompt, cached, completion]) = answer.billed else { return };
        model.input.number(prompt);
        model.output.number(completion);
        for (sum, n) in model.billed.iter_mut().zip([prompt, cached, completion]) {
            *sum += n;
        }
        if let Some(predicted) = answer.predicted {
            model.predicted += predicted;
            model.reported += cached;
        }
    }

    /// Writes the numbers down.
    pub(super) fn write(&self, sheet: &mut Sheet) {
        let usage = self.0.iter().flat_map(|(name, model)| {
            let of_type = |kind: &str| [of_model(name), vec![("gen_ai_token_type", kind.to_owned())]].concat();
            [(of_type("input"), model.input.snapshot()), (of_type("output"), model.output.snapshot())]
        });
        sheet.sizes("gen_ai_client_token_usage", "Tokens as billed, of each answer that tells them", usage);
        sheet.times(
            "gen_ai_client_operation_duration",
            "From the sending of a request to the end of its answer, where that has a 2xx status and ended as it should",
            self.0.iter().map(|(name, model)| (of_model(name), model.duration.snapshot())),
        );
        let billed = self.0.iter().flat_map(|(name, model)| {
            let types = ["input", "cached", "output"].into_iter().zip(model.billed);
            types.map(|(kind, n)| ([of_model(name), vec![("type", kind.to_owned())]].concat(), n))
        });
        sheet.counters(
            "abridge_billed_tokens",
            "Tokens as billed; those of type cached are among those of type input",
            billed,
        );
        let cached = self.0.iter().flat_map(|(name, model)| {
            let sources = [("predicted", model.predicted), ("reported", model.reported)];
            sources.map(|(source, n)| ([of_model(name), vec![("source", source.to_owned())]].concat(), n))
        });
        sheet.counters(
            "abridge_cached_tokens",
            "Tokens of requests that a prompt cache can have served, because an earlier request began with them, and those that it has served; of requests where both are known",
            cached,
        );
    }
}

fn of_model(name: &str) -> Labels {
    vec![("gen_ai_operation_name", "chat".to_owned()), ("gen_ai_request_model", name.to_owned())]
}

/// A model's name as a label.
fn label(name: &str) -> String {
    name.chars().take(MOST_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_models_have_a_name() {
        let mut models = Models::default();
        for n in 0..MOST + 20 {
            models.add(&Answer { model: Some(&format!("m{n}")), billed: Some([10, 4, 1]), ..Answer::default() });
        }
        models.add(&Answer { model: Some("m0"), ..Answer::default() });
        models.add(&Answer::default());
        assert_eq!(models.0.len(), MOST + 1);
        assert_eq!(models.0[OTHER].billed, [200, 80, 20]);
        assert_eq!((models.0["m0"].duration.snapshot().count, models.0["m0"].billed), (2, [10, 4, 1]));
        assert_eq!(models.0[OTHER].duration.snapshot().count, 21);
    }

    #[test]
    fn names_are_short_and_keep_to_their_line() {
        assert_eq!(label("a\nb\u{1b}c"), "a\u{fffd}b\u{fffd}c");
        assert_eq!(label(&"é".repeat(100)), "é".repeat(64));
    }
}
