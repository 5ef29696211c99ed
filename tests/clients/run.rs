//! Codex, Claude Code and opencode under `abridge run`, and behind `abridge setup`, with settings as a user may have them.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::it::support::{ClosedPort, Setup, Upstream, binary};
use crate::model::{DONE, Model};

/// How often the shell is called for something new.
const LISTINGS: usize = 8;

/// Where results begin to be cleared.
const SETTINGS: &str = "clear_tool_results = { when = 'any', trigger = { tokens = 20000 } }\n";

/// Far longer than a session takes.
const PATIENCE: Duration = Duration::from_mins(3);

/// A client, and where it has its upstream from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Client {
    CodexWithBaseUrl,
    CodexWithProvider,
    /// Its shell reaches no network, as by default.
    CodexInSandbox,
    /// Its requests have an account, by which they are told from others.
    CodexWithChatGpt,
    ClaudeCode,
    ClaudeCodeWithSettings,
    /// Its settings name a resource, beside which it takes no base URL.
    ClaudeCodeAtFoundry,
    ClaudeCodeAtVertex,
    ClaudeCodeAtBedrock,
    Opencode,
}

const CLIENTS: [Client; 10] = [
    Client::CodexWithBaseUrl,
    Client::CodexWithProvider,
    Client::CodexInSandbox,
    Client::CodexWithChatGpt,
    Client::ClaudeCode,
    Client::ClaudeCodeWithSettings,
    Client::ClaudeCodeAtFoundry,
    Client::ClaudeCodeAtVertex,
    Client::ClaudeCodeAtBedrock,
    Client::Opencode,
];

/// How a client is led to abridge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Run,
    /// `abridge setup`, and an abridge that serves.
    SetUp,
}

/// Runs the clients that the folder has; says whether all was well.
pub(crate) async fn all(folder: &Path) -> bool {
    let ways = CLIENTS.map(|client| (client, Way::Run));
    let set_up = CLIENTS.into_iter().filter(|client| {
        // Of the others, variables alone lead somewhere else.
        !matches!(client, Client::CodexWithChatGpt | Client::CodexInSandbox | Client::ClaudeCode)
    });
    let mut passed = true;
    for (client, way) in ways.into_iter().chain(set_up.map(|client| (client, Way::SetUp))) {
        let program = folder.join("node_modules/.bin").join(client.program());
        if !program.exists() {
            println!("  NOT RUN {way:?} {client:?}: it is not installed");
            continue;
        }
        let starts_in_sandbox =
            || Command::new(&program).args(["sandbox", "--", "true"]).output().unwrap().status.success();
        if client == Client::CodexInSandbox && !starts_in_sandbox() {
            println!("  NOT RUN {way:?} {client:?}: this machine lets it have no sandbox");
            continue;
        }
        match tokio::spawn(session(client, way, program)).await {
            Ok(report) => println!("  ok      {way:?} {client:?}: {report}"),
            Err(failed) => {
                println!("  FAILED  {way:?} {client:?}: {failed}");
                passed = false;
            }
        }
    }
    passed
}

/// A session with cleared results, one of them read back; what `abridge run` said at the end.
async fn session(client: Client, way: Way, program: PathBuf) -> String {
    let mut upstream = Upstream::start().await;
    let home = tempfile::tempdir().unwrap();
    for name in ["tmp", "here", ".codex", ".claude"] {
        fs::create_dir(home.path().join(name)).unwrap();
    }
    fs::write(home.path().join("mine.toml"), SETTINGS).unwrap();
    let (url, origin, elsewhere) = (upstream.url(), upstream.origin(), ClosedPort::new());
    let settings = client.settings(&url, &origin).map(|(path, text)| (home.path().join(path), text));
    if let Some((path, text)) = &settings {
        fs::write(path, text).unwrap();
    }
    let bin = program.parent().unwrap();
    let in_home = |program: &str| {
        let mut command = Command::new(program);
        let paths = std::env::var("PATH").unwrap_or_default();
        command.env_clear().env("PATH", format!("{}:{paths}", bin.display())).env("HOME", home.path());
        command.env("TMPDIR", home.path().join("tmp")).current_dir(home.path().join("here"));
        // Other requests of the clients, such as for news, end at once.
        command.env("https_proxy", elsewhere.url().trim_end_matches("/v1")).env("no_proxy", "127.0.0.1");
        command
    };
    let abridge = binary();
    let named = client.flags(&url).pop().filter(|flag| flag.starts_with("anthropic"));
    let named = named.unwrap_or_else(|| format!("anthropic={origin}"));
    let serving = Setup::before(&upstream).with(SETTINGS).argument("--upstream").argument(named).start().await;
    let mut command = match way {
        Way::Run => {
            let mut command = in_home(abridge);
            command.args(["run", "--config"]).arg(home.path().join("mine.toml"));
            command.args(client.flags(&url)).arg("--").arg(client.program());
            client.environment(&mut command, &url, &origin);
            command
        }
        Way::SetUp => {
            let at = format!("http://{}", serving.address());
            let set = in_home(abridge).args(["setup", "--yes", "--url", &at, client.name()]).status().unwrap();
            assert!(set.success());
            let mut command = in_home(client.program());
            client.environment(&mut command, "", "");
            command
        }
    };
    command.args(client.arguments());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);

    let query = if client.is_codex() { "?offset=0&limit=5000" } else { "" };
    let model = Arc::new(Model::new(LISTINGS, query.to_owned(), None));
    let of_upstream = Arc::clone(&model);
    tokio::spawn(async move {
        while let Some(wire) = upstream.accept().await {
            let model = Arc::clone(&of_upstream);
            tokio::spawn(async move { model.converse(wire).await });
        }
    });
    let ended = end(command).await;
    let [said, told] = [&ended.stdout, &ended.stderr].map(|out| String::from_utf8_lossy(out).into_owned());
    assert!(ended.status.success() && said.contains(DONE), "{}, said {said:?} and {told:?}", ended.status);
    let cleared = judge(&model);
    // Nothing is changed or left.
    if way == Way::SetUp {
        assert!(in_home(abridge).args(["setup", "--yes", "--undo", client.name()]).status().unwrap().success());
    }
    if let Some((path, text)) = settings {
        let now = fs::read_to_string(path).unwrap();
        assert!(now.starts_with(&text), "{now}");
    }
    let left: Vec<_> = fs::read_dir(home.path().join("tmp")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("abridge")), "{left:?}");
    if way == Way::SetUp {
        return format!("{cleared} of {LISTINGS} results cleared");
    }
    let report = told.lines().last().unwrap_or_default();
    assert!(report.starts_with("abridge: ") && report.contains(" % less), "), "{told}");
    report.to_owned()
}

/// Runs a command to its end.
pub(crate) async fn end(mut command: Command) -> Output {
    let child = command.spawn().unwrap();
    let group = child.id();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
    let Ok(ended) = tokio::time::timeout(PATIENCE, ended).await else {
        Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status().unwrap();
        panic!("the client should have come to its end");
    };
    ended.unwrap().unwrap()
}

/// Checks what the model has seen; the number of results that were cleared in the end.
fn judge(model: &Model) -> usize {
    assert_eq!(model.refusals(), [""; 0]);
    let seen = model.seen();
    assert_eq!(seen.len(), LISTINGS + 2, "a request for each call, and one for the end");
    let last = seen.last().unwrap();
    let cleared = last.results.iter().filter(|(_, text)| text.starts_with("[Cleared: ")).count();
    assert!(cleared > 0, "nothing was cleared");
    let (_, recalled) = last.results.last().unwrap();
    assert!(recalled.contains("listing 1, line 001: "), "{recalled}");
    cleared
}

// === impl Client ===

impl Client {
    fn program(self) -> &'static str {
        match self {
            Self::CodexWithBaseUrl | Self::CodexWithProvider | Self::CodexInSandbox | Self::CodexWithChatGpt => "codex",
            Self::Opencode => "opencode",
            _ => "claude",
        }
    }

    fn is_codex(self) -> bool {
        self.program() == "codex"
    }

    /// A file of the user that says where the upstream is, or who the user is.
    fn settings(self, url: &str, origin: &str) -> Option<(&'static str, String)> {
        let own = "model = \"gpt-5\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n";
        Some(match self {
            Self::CodexWithBaseUrl => (".codex/config.toml", format!("openai_base_url = \"{url}\"\n{own}")),
            Self::CodexInSandbox => (".codex/config.toml", format!("model = \"gpt-5\"\nopenai_base_url = \"{url}\"\n")),
            Self::CodexWithProvider => {
                let provider = format!("[model_providers.mine]\nname = \"mine\"\nbase_url = \"{url}\"\n");
                let provider = format!("{provider}wire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\n");
                (".codex/config.toml", format!("model_provider = \"mine\"\n{own}{provider}"))
            }
            Self::CodexWithChatGpt => (".codex/auth.json", login()),
            Self::ClaudeCodeWithSettings => {
                (".claude/settings.json", json!({ "env": { "ANTHROPIC_BASE_URL": origin } }).to_string())
            }
            Self::ClaudeCodeAtFoundry => {
                let env = json!({ "CLAUDE_CODE_USE_FOUNDRY": "1", "ANTHROPIC_FOUNDRY_RESOURCE": "ours" });
                (".claude/settings.json", json!({ "env": env }).to_string())
            }
            Self::ClaudeCodeAtVertex => {
                let env = json!({ "CLAUDE_CODE_USE_VERTEX": "1", "CLOUD_ML_REGION": "us-east5" });
                (".claude/settings.json", json!({ "env": env }).to_string())
            }
            Self::ClaudeCodeAtBedrock => {
                let env = json!({ "CLAUDE_CODE_USE_BEDROCK": "1", "AWS_REGION": "us-east-1" });
                (".claude/settings.json", json!({ "env": env }).to_string())
            }
            Self::ClaudeCode | Self::Opencode => return None,
        })
    }

    /// The name that `abridge setup` has for it.
    fn name(self) -> &'static str {
        if self.program() == "claude" { "claude-code" } else { self.program() }
    }

    /// The flags of abridge, before the command.
    fn flags(self, url: &str) -> Vec<String> {
        let upstream = match self {
            Self::CodexWithChatGpt => format!("chatgpt={url}"),
            Self::ClaudeCodeAtFoundry => format!("anthropic={}/anthropic", url.trim_end_matches("/v1")),
            Self::ClaudeCodeAtVertex => format!("anthropic={url}"),
            Self::ClaudeCodeAtBedrock => format!("anthropic={}", url.trim_end_matches("/v1")),
            _ => return Vec::new(),
        };
        vec!["--upstream".to_owned(), upstream]
    }

    /// Its variables, with base URLs where they are in the environment and not in settings.
    fn environment(self, command: &mut Command, url: &str, origin: &str) {
        match self {
            Self::CodexWithChatGpt => {}
            Self::CodexWithBaseUrl | Self::CodexWithProvider | Self::CodexInSandbox => {
                command.env("OPENAI_API_KEY", "sk-client").env("CODEX_API_KEY", "sk-client");
            }
            Self::Opencode => {
                let settings = json!({ "permission": "allow", "autoupdate": false }).to_string();
                command.env("ANTHROPIC_API_KEY", "sk-ant-client").env("OPENCODE_CONFIG_CONTENT", settings);
                if !url.is_empty() {
                    command.env("ANTHROPIC_BASE_URL", url);
                }
            }
            _ => {
                if self == Self::ClaudeCode {
                    command.env("ANTHROPIC_BASE_URL", origin);
                }
                command.env("ANTHROPIC_FOUNDRY_API_KEY", "k").env("CLAUDE_CODE_SKIP_VERTEX_AUTH", "1");
                command.env("ANTHROPIC_VERTEX_PROJECT_ID", "p").env("AWS_BEARER_TOKEN_BEDROCK", "k");
                command.env("ANTHROPIC_API_KEY", "sk-ant-client").env("IS_SANDBOX", "1").env("DISABLE_TELEMETRY", "1");
                command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("ANTHROPIC_MODEL", "claude-opus-4-8");
            }
        }
    }

    fn arguments(self) -> Vec<&'static str> {
        let prompt = "List all of it.";
        match self {
            Self::CodexWithChatGpt => {
                let free = "--dangerously-bypass-approvals-and-sandbox";
                vec!["exec", "-m", "gpt-5", free, "--skip-git-repo-check", prompt]
            }
            Self::CodexWithBaseUrl | Self::CodexWithProvider | Self::CodexInSandbox => {
                vec!["exec", "--skip-git-repo-check", prompt]
            }
            Self::Opencode => vec!["run", "--model", "anthropic/claude-sonnet-4-5", prompt],
            _ => vec!["-p", prompt, "--allowedTools", "Bash"],
        }
    }
}

/// A login with `ChatGPT` that no one has signed.
fn login() -> String {
    use base64::Engine as _;
    let part = |json: String| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json);
    let account = json!({ "chatgpt_plan_type": "plus", "chatgpt_account_id": "acc-1", "chatgpt_user_id": "u" });
    let claims = json!({ "email": "a@example.com", "exp": 4_000_000_000_u64, "https://api.openai.com/auth": account });
    let token =
        format!("{}.{}.c2ln", part(json!({ "alg": "none", "typ": "JWT" }).to_string()), part(claims.to_string()));
    json!({ "auth_mode": "chatgpt", "OPENAI_API_KEY": null, "last_refresh": "2030-01-01T00:00:00Z", "tokens": {
        "id_token": token, "access_token": token, "refresh_token": "r", "account_id": "acc-1",
    } })
    .to_string()
}
