//! Where clients sent their requests before they were set up.

use super::*;

/// Settings with base URLs that are those of a gateway, and the flags with which abridge sends requests there.
const GATEWAYS: [(&str, &str, &str, &[&str]); 12] = [
    (
        "codex",
        ".codex/config.toml",
        "openai_base_url = 'https://gate/openai/v1'\n",
        &["--upstream https://gate/openai/v1"],
    ),
    (
        "codex",
        ".codex/config.toml",
        "model_provider = 'mine'\n[model_providers.mine]\nbase_url = 'http://gate:1/x'\nenv_key = 'K'\n",
        &["--upstream http://gate:1/x"],
    ),
    (
        "claude-code",
        ".claude/settings.json",
        "{\"env\":{\"ANTHROPIC_BASE_URL\":\"https://gate\",\"HOOK\":\"https://other\"}}",
        &["--upstream anthropic=https://gate"],
    ),
    (
        "claude-code",
        ".claude/settings.json",
        "{\"env\":{\"ANTHROPIC_BASE_URL\":\"https://gate/anthropic/\"}}",
        &["--upstream anthropic=https://gate/anthropic/v1"],
    ),
    (
        "claude-code",
        ".claude/settings.json",
        "{\"env\":{\"CLAUDE_CODE_USE_BEDROCK\":\"1\",\"ANTHROPIC_BEDROCK_BASE_URL\":\"https://gate/bedrock\"}}",
        &["--upstream anthropic=https://gate/bedrock"],
    ),
    (
        "claude-code",
        ".claude/settings.json",
        "{\"env\":{\"CLAUDE_CODE_USE_FOUNDRY\":\"1\",\"ANTHROPIC_FOUNDRY_RESOURCE\":\"ours\"}}",
        &["--upstream anthropic=https://ours.services.ai.azure.com/anthropic"],
    ),
    (
        "opencode",
        ".config/opencode/opencode.json",
        "{\"provider\":{\"anthropic\":{\"options\":{\"baseURL\":\"https://a/v1\"}},\"openai\":{\"options\":{\"baseURL\":\"https://o/v1\"}}}}",
        &["--upstream https://o/v1", "--upstream anthropic=https://a/v1"],
    ),
    ("aider", ".aider.conf.yml", "openai-api-base: \"https://gate/v1\" # mine\n", &["--upstream https://gate/v1"]),
    ("aider", ".aider.conf.yml", "\u{feff}openai-api-base: https://gate/v1\n", &["--upstream https://gate/v1"]),
    (
        "goose",
        ".config/goose/config.yaml",
        "OPENAI_HOST: https://gate/x\nANTHROPIC_HOST: 'https://b'\n",
        &["--upstream https://gate/x/v1", "--upstream anthropic=https://b"],
    ),
    (
        "continue",
        ".continue/config.yaml",
        "models:\n  - name: A\n    apiBase: https://a/v1\n    provider: anthropic\n  - provider: openai\n    apiBase: https://o/v1\n",
        &["--upstream https://o/v1", "--upstream anthropic=https://a/v1"],
    ),
    (
        "shell",
        ".zshrc",
        "export OPENAI_BASE_URL=https://old/v1\n# OPENAI_BASE_URL=https://no\nexport A=b OPENAI_BASE_URL=\"https://gate/v1\" # x\n",
        &["--upstream https://gate/v1"],
    ),
];

#[test]
fn the_upstream_that_a_client_had_is_offered_to_abridge() {
    for (client, path, before, flags) in GATEWAYS {
        let user = User::new();
        user.write(path, before);
        for arguments in [&[client, "--dry-run"][..], &[client, "--yes"], &[client, "--yes"]] {
            let (code, text) = user.setup(arguments);
            assert_eq!(code, Some(0), "{text}");
            let command =
                text.split("abridge must run while these clients do:\n").nth(1).unwrap_or_else(|| panic!("{text}"));
            let command = command.replace(" \\\n", "").split_whitespace().collect::<Vec<_>>().join(" ") + " ";
            for flag in flags {
                assert!(command.contains(&format!("{flag} ")), "{flag}: {text}");
                let url = flag.rsplit(['=', ' ']).next().unwrap();
                assert!(text.contains("sent its requests to") && text.contains(url), "{text}");
            }
            for (of, maker) in [("--upstream http", "api.openai.com"), ("--upstream anthropic=", "api.anthropic.com")] {
                assert_eq!(command.contains(maker), !flags.iter().any(|flag| flag.starts_with(of)), "{text}");
            }
        }
        assert_eq!(user.setup(&[client, "--undo", "--yes"]).0, Some(0));
        assert_eq!(user.read(path), before);
    }
}

#[test]
fn settings_of_abridge_and_other_clients_are_not_passed_over_in_silence() {
    let user = User::new();
    user.write(".codex/config.toml", "openai_base_url = 'https://one/v1'\n");
    user.write(".aider.conf.yml", "openai-api-base: https://two/v1\n");
    let (_, text) = user.setup(&["codex", "aider", "--dry-run"]);
    assert!(
        text.contains("aider sent its requests to https://two/v1, and abridge will send them to https://one/v1"),
        "{text}"
    );
    user.write("proxy.toml", "upstream.url = \"https://mine/v1\"\n");
    let (_, text) = user.setup(&["codex", "--dry-run"]);
    assert!(text.contains("https://one/v1, and abridge will send them to https://mine/v1"), "{text}");
    assert!(text.ends_with("do:\n  abridge serve --config proxy.toml\n"), "{text}");
    user.write(".codex/config.toml", "openai_base_url = 'https://me:secret@one/v1'\n");
    let (_, text) = user.setup(&["codex", "--dry-run"]);
    assert!(text.contains("sent its requests to ***@one/v1, which abridge cannot have"), "{text}");
    // The variable of the environment is displaced by settings that win over it.
    let mut command = user.command(binary());
    command
        .args(["setup", "claude-code", "--dry-run", "--config", "proxy.toml"])
        .env("ANTHROPIC_BASE_URL", "https://env");
    let (_, text) = printed(&command.output().unwrap());
    assert!(text.contains("claude-code sent its requests to https://env"), "{text}");
}
