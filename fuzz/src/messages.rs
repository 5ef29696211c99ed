//! Bodies of Anthropic Messages: see [`dialects`](super::dialects).

use abridge_proxy::dialect;

/// Takes the input as a body and a policy.
pub fn run(input: &[u8]) {
    super::dialects::run(dialect::for_path("/v1/messages").expect("it is spoken"), input);
}
