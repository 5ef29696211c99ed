//! What is fuzzed, as plain functions of bytes: libFuzzer runs them, and so does `tests/fuzz.rs` of the proxy, which takes
//! this file as a module. Each panics where something does not hold.

use std::sync::LazyLock;

use abridge_proxy::dialect::{self, Dialect};
use abridge_proxy::planner::{PlanSettings, Planner};

pub mod config;
pub mod content_encoding;
pub mod deduplicate;
pub mod dialects;
pub mod draw;
pub mod messages;
pub mod patch;
pub mod plan_and_splice;
pub mod recall_query;
pub mod recording;
pub mod responses;
pub mod scanner;
pub mod store_row;
pub mod tap;
pub mod truncate;

#[path = "../../tests/accounted.rs"]
mod accounted; // where each message of an edited request comes from
mod conversation; // bytes become a conversation
mod policy; // bytes become a policy
#[path = "../../tests/it/support/validator.rs"]
mod validator; // what strict upstreams ask of a message array

/// Panics where something does not hold.
pub type Target = fn(&[u8]);

/// Each target with its name.
pub const TARGETS: [(&str, Target); 13] = [
    ("scanner", scanner::run),
    ("plan_and_splice", plan_and_splice::run),
    ("patch", patch::run),
    ("truncate", truncate::run),
    ("tap", tap::run),
    ("recall_query", recall_query::run),
    ("config", config::run),
    ("recording", recording::run),
    ("responses", responses::run),
    ("messages", messages::run),
    ("store_row", store_row::run),
    ("content_encoding", content_encoding::run),
    ("deduplicate", deduplicate::run),
];

/// What stands where a result is missing, so that it can be told from what a client wrote.
const PLACEHOLDER: &str = "<no result for {tool_name}, {tool_call_id}>";

/// What messages that abridge wrote have in them: a result that was missing, and texts that keep roles in order.
const OWN: [&str; 5] = [
    "<no result for ",
    "[Tool calls were removed here.]",
    "[此处的工具调用已被移除。]",
    "[A tool result was moved or removed here.]",
    "[此处的工具结果已被移动或移除。]",
];

/// The dialect that all bodies here are written in.
fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").expect("there is one")
}

/// A planner for these settings. What all of them share is made once, as that takes longer than a plan.
fn planner(settings: PlanSettings) -> Planner {
    static SHARED: LazyLock<Planner> = LazyLock::new(|| Planner::new(PlanSettings::default()));
    SHARED.under(settings)
}

/// Whether a message is one that abridge wrote.
fn is_ours(message: &str) -> bool {
    OWN.iter().any(|own| message.contains(own))
}

/// Whether the validator can read a body: it takes neither great depth nor half surrogate pairs.
/// Whether a message may be a result in another form, in whose place no result is put: it names a call, or says that it is one.
fn may_answer_in_words(body: &[u8]) -> bool {
    let body = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    let messages = body["messages"].as_array().into_iter().flatten();
    let others = messages.filter(|message| {
        let role = message["role"].as_str().unwrap_or_default();
        !["system", "developer", "assistant", "tool"].contains(&role)
    });
    let says = |message: &serde_json::Value| {
        let text = message.to_string().to_lowercase();
        let kinds = ["result", "response", "output", "observation", "returned", "tool_call_id", "function"];
        kinds.iter().any(|kind| text.contains(kind))
    };
    others.into_iter().any(says)
}

fn is_readable(body: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(body).is_ok()
}
