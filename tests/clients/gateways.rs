//! The guardrail of `LiteLLM` that calls a compressor, as `examples/litellm` configures both.

use std::path::Path;
use std::process::Command;

use crate::it::support::Setup;

/// Runs the guardrail, if the folder has it; says whether all was well.
pub(crate) async fn all(folder: &Path) -> bool {
    println!("litellm_guardrail.py");
    let python = folder.join("litellm/bin/python");
    if !python.exists() {
        println!("  NOT RUN: LiteLLM is not installed");
        return true;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let settings = std::fs::read_to_string(root.join("examples/litellm/proxy.toml")).unwrap();
    // The tables follow what the setup writes.
    let abridge = Setup::to("http://127.0.0.1:9/v1").with(settings).start().await;
    let mut client = Command::new(python);
    client.arg(root.join("tests/clients/litellm_guardrail.py")).arg(format!("http://{}", abridge.address()));
    client.env("ABRIDGE_TOKEN", "sk-gateway");
    let passed = crate::run("litellm_guardrail.py", client, folder, "http://127.0.0.1:9/v1").await.is_some();
    if !passed {
        eprintln!("abridge wrote:\n{}", abridge.stderr().join("\n"));
    }
    passed
}
