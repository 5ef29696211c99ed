//! The tokens of the tools that a request offers.
//!
//! For functions with plain parameters it is the rule of OpenAI's cookbook. What that leaves open (parameters within
//! parameters, `anyOf`, tools that are not functions) is counted as its JSON without white space.

use super::{any, sum};
use crate::raw::{Fields, compact, elements, string};
use crate::tokens::Gauge;
use crate::tokens::tiktoken::Encoding;

/// Once, if there is a tool at all.
pub(in crate::dialect) const TOOLS: usize = 12;
/// What begins a function, and what did with GPT-4 and before.
const FUNCTION: usize = 7;
const FUNCTION_BEFORE_O200K: usize = 10;
/// What begins the parameters of a function.
const PARAMETERS: usize = 3;
const PARAMETER: usize = 3;
/// A parameter that is a choice begins with less.
const CHOICES_LESS: usize = 3;
const CHOICE: usize = 3;

/// The tokens of an array of tools, each of which `count` counts.
pub(in crate::dialect) fn count_tools(gauge: &Gauge, json: &str, count: fn(&Gauge, &str) -> usize) -> usize {
    match elements(json) {
        None => any(gauge, json),
        Some(tools) if tools.is_empty() => 0,
        Some(tools) => TOOLS + sum(tools, |tool| count(gauge, tool)),
    }
}

pub(super) fn count_tool(gauge: &Gauge, json: &str) -> usize {
    let function = Fields::of(json).and_then(|tool| tool.object("function"));
    function.and_then(|function| count_function(gauge, &function)).unwrap_or_else(|| gauge.text(&compact(json)))
}

/// A function; none if it has no name.
pub(in crate::dialect) fn count_function(gauge: &Gauge, function: &Fields<'_>) -> Option<usize> {
    let name = function.string("name")?;
    let begins = match gauge.encoding {
        Encoding::O200kBase | Encoding::O200kHarmony => FUNCTION,
        Encoding::Cl100kBase | Encoding::P50kBase | Encoding::R50kBase => FUNCTION_BEFORE_O200K,
    };
    let line = format!("{name}:{}", description(function));
    let parameters = function.object("parameters").map_or(0, |schema| count_parameters(gauge, &schema));
    Some(begins + gauge.text(&line) + parameters)
}

fn count_parameters(gauge: &Gauge, schema: &Fields<'_>) -> usize {
    let parameters = schema.object("properties");
    let of_each = |parameters: &Fields<'_>| match parameters.iter().count() {
        0 => 0,
        _ => PARAMETERS + parameters.iter().map(|(name, json)| count_parameter(gauge, name, json)).sum::<usize>(),
    };
    let open =
        |key: &str| !matches!(key, "type" | "properties" | "required" | "additionalProperties" | "title" | "$schema");
    parameters.as_ref().map_or(0, of_each) + count_rest(gauge, schema, open)
}

fn count_parameter(gauge: &Gauge, name: &str, json: &str) -> usize {
    let Some(schema) = Fields::of(json) else { return PARAMETER + gauge.text(&format!("{name}:{}", compact(json))) };
    let kind =
        schema.get("type").map(|kind| string(kind).map_or_else(|| compact(kind), Into::into)).unwrap_or_default();
    let line = format!("{name}:{kind}:{}", description(&schema));
    let open = |key: &str| !matches!(key, "type" | "description" | "title" | "enum");
    let choices = schema.get("enum").and_then(elements);
    let begins = if choices.is_some() { PARAMETER - CHOICES_LESS } else { PARAMETER };
    let choices: usize = choices.unwrap_or_default().into_iter().map(|choice| CHOICE + any(gauge, choice)).sum();
    begins + gauge.text(&line) + choices + count_rest(gauge, &schema, open)
}

/// Returns what the cookbook leaves open, as JSON.
fn count_rest(gauge: &Gauge, schema: &Fields<'_>, open: fn(&str) -> bool) -> usize {
    let rest = schema.iter().filter(|(key, _)| open(key));
    rest.map(|(key, value)| gauge.text(&format!("\"{key}\":{}", compact(value)))).sum()
}

/// The description, without the full stop at its end.
fn description(of: &Fields<'_>) -> String {
    let text = of.string("description").unwrap_or_default();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}
