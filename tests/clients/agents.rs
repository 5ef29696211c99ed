//! Codex and Claude Code themselves, and agents of libraries, through the real binary, in front of a scripted model.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::it::support::{Abridge, ClosedPort, Setup, Upstream};
use crate::model::{DONE, GO_ON, Model, Seen, listing, recall_target};

/// How often most agents call their shell for something new.
const LISTINGS: usize = 40;

/// Where results begin to be cleared; an agent's first request has about as many tokens.
const TRIGGER: &str = "clear_tool_results = { when = 'any', trigger = { tokens = 20000 } }";

/// A window that a session with bound thinking reaches.
const WINDOW: &str = "models = [{ match = \"claude-opus-5-5\", context_window = 200000 }]";

/// The edits without summaries.
const EDITS: &str = "policy.edits = [\"patch_tool_calls\", \"truncate_tool_results\", \"clear_tool_results\"]";

/// Far longer than a session takes.
const PATIENCE: Duration = Duration::from_mins(5);

/// How many bytes of a result are read back where an agent would cut the whole.
const PART: usize = 5000;

/// An agent, and the way in which it is told of abridge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Agent {
    /// With its own provider in `config.toml`.
    Codex,
    /// With `openai_base_url` alone: it tries a WebSocket first, and cuts what its shell has written to 10,000 bytes.
    CodexWithBaseUrl,
    ClaudeCode,
    /// With abridge's MCP server.
    CodexWithMcp,
    /// With abridge's MCP server.
    ClaudeCodeWithMcp,
    /// With abridge's MCP server, and a provider that speaks Anthropic Messages.
    OpencodeWithMcp,
    /// With a model whose thinking is bound to what precedes it.
    ClaudeCodeWithBoundThinking,
    /// openai-agents, in OpenAI Responses.
    OpenAiAgents,
    /// The default model of `@ai-sdk/openai`, which speaks OpenAI Responses.
    VercelOpenAi,
    /// The model of `@ai-sdk/anthropic`.
    VercelAnthropic,
    /// The Anthropic model of Pydantic AI.
    PydanticAiAnthropic,
}

/// Each of them, in the order in which they are run.
const AGENTS: [Agent; 11] = [
    Agent::Codex,
    Agent::CodexWithBaseUrl,
    Agent::ClaudeCode,
    Agent::CodexWithMcp,
    Agent::ClaudeCodeWithMcp,
    Agent::OpencodeWithMcp,
    Agent::ClaudeCodeWithBoundThinking,
    Agent::OpenAiAgents,
    Agent::VercelOpenAi,
    Agent::VercelAnthropic,
    Agent::PydanticAiAnthropic,
];

/// An agent's session: its folder, its model, and abridge between them.
struct Session {
    agent: Agent,
    program: PathBuf,
    model: Arc<Model>,
    abridge: Abridge,
    home: tempfile::TempDir,
}

/// Runs the agents that the folder has; says whether all was well.
pub(crate) async fn all(folder: &Path) -> bool {
    let mut passed = true;
    for agent in AGENTS {
        let program = folder.join(agent.program());
        println!("{}", agent.title());
        if !program.exists() {
            println!("  NOT RUN: it is not installed");
            continue;
        }
        let calls = tokio::spawn(many_calls(agent, program.clone())).await;
        passed &= reported("old results of many calls cleared, one of them read back", calls);
        if [Agent::Codex, Agent::ClaudeCode].contains(&agent) {
            let resumed = tokio::spawn(killed_and_resumed(agent, program)).await;
            passed &= reported("killed in a call, and resumed", resumed);
        }
    }
    compared(folder).await && passed
}

/// Sessions through abridge beside the same sessions without it.
async fn compared(folder: &Path) -> bool {
    println!("compared.py");
    let mut python = Command::new(folder.join("venv/bin/python"));
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/compared.py"));
    python.arg(env!("CARGO_BIN_EXE_abridge"));
    crate::run("compared.py", python, folder, "http://unused/v1").await.is_some()
}

fn reported(name: &str, outcome: Result<String, tokio::task::JoinError>) -> bool {
    match outcome {
        Ok(what) => {
            println!("  ok      {name}: {what}");
            true
        }
        Err(failed) => {
            println!("  FAILED  {name}: {failed}");
            false
        }
    }
}

/// Everything is answered, the model sees new results whole and old ones cleared, and one is read back.
async fn many_calls(agent: Agent, program: PathBuf) -> String {
    let listings = agent.listings();
    let session = Session::start(agent, program, listings, false).await;
    session.run("List all of it.", false).await;

    assert_eq!(session.model.refusals(), [""; 0], "every request is one that a strict API takes");
    let seen = session.model.seen();
    assert_eq!(seen.len(), listings + 2, "a request for each call, and one for the end");
    let mut cleared = 0;
    for (turn, request) in seen.iter().enumerate() {
        assert_eq!(request.results.len(), turn);
        // The newest results are whole, and what was cleared once stays cleared.
        let is_cleared = |(_, text): &&(String, String)| text.starts_with("[Cleared: ");
        let now = request.results.iter().take_while(is_cleared).count();
        assert!(now >= cleared, "{now} results are cleared, and {cleared} were");
        for (number, (_, text)) in request.results.iter().enumerate().skip(now).take(listings - now) {
            assert!(agent.shows(text, number + 1), "result {number} of request {turn}: {text}");
        }
        if agent == Agent::ClaudeCodeWithBoundThinking {
            // Everything that was thought before a pass leaves at it; everything that is thought after it stays.
            let kept = request.thinking.first().copied().unwrap_or(turn);
            assert_eq!(request.thinking, (kept..turn).collect::<Vec<_>>());
            assert!(if now == 0 { kept == 0 } else { kept >= now }, "{now} cleared, {:?}", request.thinking);
        } else if agent.script().is_none() {
            assert_eq!(request.thinking.len(), turn, "no other thinking leaves");
        }
        cleared = now;
    }
    let [first, .., last] = seen.as_slice() else { panic!("there are more than two") };
    assert!(cleared >= listings * 3 / 4, "{cleared} of {listings} results are cleared");
    let largest = seen.iter().map(|seen| seen.bytes).max().unwrap();
    // Bound thinking makes passes wait for nine tenths of the window.
    let n_listings = if agent == Agent::ClaudeCodeWithBoundThinking { 18 } else { 10 };
    let most = first.bytes + n_listings * listing(1).len();
    assert!(largest < most, "the first request has {} bytes, one has {largest}", first.bytes);

    // What the shell has read is what the agent had sent as the result, to the byte.
    let (_, command) = &last.calls[listings];
    let before = &seen[listings];
    let (id, placeholder) = before.results.iter().find(|(_, text)| recall_target(text).is_some()).unwrap();
    let (tool, target) = recall_target(placeholder).unwrap();
    assert!(command.contains(target), "{command}");
    assert_eq!(tool, agent.recall_tool());
    let original = seen.iter().flat_map(|seen| &seen.results).find(|(of, _)| of == id).map(|(_, text)| text).unwrap();
    let (_, recalled) = &last.results[listings];
    let part = match agent {
        Agent::CodexWithBaseUrl => original.get(..PART).unwrap(),
        _ => original,
    };
    assert!(recalled.ends_with(part), "sent: {part}\nread back: {recalled}");
    if agent == Agent::CodexWithBaseUrl {
        session.abridge.says("a websocket to /responses was answered with 426", 0).await;
    }
    format!(
        "{} requests; {cleared} of {listings} results of {} bytes cleared; {} bytes read back; first request {} bytes, \
         largest {largest}, last {}; {} bytes in all",
        seen.len(),
        original.len(),
        part.len(),
        first.bytes,
        last.bytes,
        seen.iter().map(|seen| seen.bytes).sum::<usize>(),
    )
}

/// The shell waits for something that does not come, the agent is killed, and a new process goes on with the session.
async fn killed_and_resumed(agent: Agent, program: PathBuf) -> String {
    let session = Session::start(agent, program, 2, true).await;
    session.run_until_held("List all of it.").await;
    let before = session.model.seen();
    assert_eq!(before.len(), 3, "a request for each call");
    session.run(GO_ON, true).await;

    assert_eq!(session.model.refusals(), [""; 0], "every request is one that a strict API takes");
    let seen = session.model.seen();
    let last: &Seen = seen.last().unwrap();
    assert_eq!(seen.len(), before.len() + 1);
    assert_eq!(last.calls.len(), last.results.len());
    let ids = |of: &Seen| of.results.iter().take(2).map(|(id, _)| id.clone()).collect::<Vec<_>>();
    // A killed agent may not have written its last result.
    let resumed = ids(last);
    assert!(!resumed.is_empty() && ids(&before[2]).starts_with(&resumed), "it is the same session: {resumed:?}");
    // Codex says that calls were aborted, Claude Code leaves such a turn out.
    format!("{} requests; results of the calls under way: {:?}", seen.len(), last.results.get(2..))
}

/// Ends the processes of a group; says whether there were any.
fn kill(group: u32) -> bool {
    let killed = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status();
    killed.is_ok_and(|status| status.success())
}

// === impl Agent ===

impl Agent {
    fn title(self) -> &'static str {
        match self {
            Self::Codex => "Codex",
            Self::CodexWithBaseUrl => "Codex with openai_base_url, over HTTP after 426",
            Self::ClaudeCode => "Claude Code",
            Self::CodexWithMcp => "Codex with the MCP server",
            Self::ClaudeCodeWithMcp => "Claude Code with the MCP server",
            Self::OpencodeWithMcp => "opencode with the MCP server",
            Self::ClaudeCodeWithBoundThinking => "Claude Code with bound thinking and a window of 200,000 tokens",
            Self::OpenAiAgents => "openai-agents",
            Self::VercelOpenAi => "Vercel's AI SDK with its default model of OpenAI",
            Self::VercelAnthropic => "Vercel's AI SDK with an Anthropic model",
            Self::PydanticAiAnthropic => "Pydantic AI with its Anthropic model",
        }
    }

    /// Returns what is there in the folder of clients if it is installed.
    fn program(self) -> &'static str {
        match self {
            Self::Codex | Self::CodexWithBaseUrl | Self::CodexWithMcp => "node_modules/.bin/codex",
            Self::ClaudeCode | Self::ClaudeCodeWithBoundThinking | Self::ClaudeCodeWithMcp => {
                "node_modules/.bin/claude"
            }
            Self::OpencodeWithMcp => "node_modules/.bin/opencode",
            Self::OpenAiAgents => "agents/bin/python",
            Self::VercelOpenAi => "node_modules/@ai-sdk/openai",
            Self::VercelAnthropic => "node_modules/@ai-sdk/anthropic",
            Self::PydanticAiAnthropic => "pydantic-ai/bin/python",
        }
    }

    /// The agent of a library, in `tests/clients`; none for one that is a program.
    fn script(self) -> Option<&'static str> {
        match self {
            Self::OpenAiAgents => Some("openai_agents.py"),
            Self::VercelOpenAi | Self::VercelAnthropic => Some("vercel_agent.mjs"),
            Self::PydanticAiAnthropic => Some("pydantic_ai_anthropic.py"),
            _ => None,
        }
    }

    fn speaks_responses(self) -> bool {
        self.is_codex() || [Self::OpenAiAgents, Self::VercelOpenAi].contains(&self)
    }

    /// Whether a result has the listing, as far as the agent sends it.
    fn shows(self, text: &str, number: usize) -> bool {
        let listing = listing(number);
        let begin = listing.get(..PART - 500).unwrap();
        let end = listing.get(listing.len() - PART + 500..).unwrap();
        match self {
            Self::CodexWithBaseUrl => text.contains(begin) && text.contains(end),
            _ => text.contains(&listing),
        }
    }

    fn is_codex(self) -> bool {
        matches!(self, Self::Codex | Self::CodexWithBaseUrl | Self::CodexWithMcp)
    }

    /// How often it calls its shell for something new.
    fn listings(self) -> usize {
        if self.recall_tool().is_some() { LISTINGS / 4 } else { LISTINGS }
    }

    /// The tool that placeholders name, if they name no URL.
    fn recall_tool(self) -> Option<&'static str> {
        match self {
            // A tool of a namespace.
            Self::CodexWithMcp => Some("mcp__abridge.recall"),
            Self::ClaudeCodeWithMcp => Some("mcp__abridge__recall"),
            Self::OpencodeWithMcp => Some("abridge_recall"),
            _ => None,
        }
    }

    /// What follows the URL when a result is read back.
    fn query(self) -> String {
        if self == Self::CodexWithBaseUrl { format!("?offset=0&limit={PART}") } else { String::new() }
    }
}

// === impl Session ===

impl Session {
    async fn start(agent: Agent, program: PathBuf, listings: usize, holds: bool) -> Self {
        let mut upstream = Upstream::start().await;
        let held_url = holds.then(|| format!("{}/held", upstream.origin()));
        let setup = if agent.speaks_responses() {
            Setup::before(&upstream)
        } else {
            // As README.md says; what the other upstream is asked for, no one answers.
            let named = format!("anthropic={}", upstream.origin());
            Setup::to(ClosedPort::new().url()).argument("--upstream").argument(named)
        };
        // So large a conversation is summarised, too.
        let setup = match agent {
            Agent::ClaudeCodeWithBoundThinking => setup.with(WINDOW).with(EDITS),
            _ => setup,
        };
        let abridge = setup.with(TRIGGER).start().await;
        let model = Arc::new(Model::new(listings, agent.query(), held_url));
        let of_upstream = Arc::clone(&model);
        tokio::spawn(async move {
            while let Some(wire) = upstream.accept().await {
                let model = Arc::clone(&of_upstream);
                tokio::spawn(async move { model.converse(wire).await });
            }
        });
        let home = tempfile::tempdir().unwrap();
        let session = Self { agent, program, model, abridge, home };
        if agent.is_codex() {
            std::fs::write(session.home.path().join("config.toml"), session.config()).unwrap();
        }
        session
    }

    fn config(&self) -> String {
        let base = format!("http://{}/v1", self.abridge.address());
        let own = "model = \"gpt-5\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n";
        if self.agent == Agent::CodexWithBaseUrl {
            return format!("openai_base_url = \"{base}\"\n{own}");
        }
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/clients/codex.toml");
        let example = std::fs::read_to_string(example).unwrap();
        assert!(example.contains("http://127.0.0.1:8787/v1"));
        let servers = if self.agent == Agent::CodexWithMcp {
            format!("[mcp_servers.abridge]\nurl = \"{}\"\n", self.mcp_url())
        } else {
            String::new()
        };
        let provider = example.replace("http://127.0.0.1:8787/v1", &base);
        format!("{own}tool_output_token_limit = 20000\n{provider}\n{servers}")
    }

    fn opencode_config(&self) -> String {
        json!({
            "provider": { "abridge": {
                "npm": "@ai-sdk/anthropic",
                "options": { "baseURL": format!("http://{}/v1", self.abridge.address()), "apiKey": "sk-client" },
                "models": { "claude-opus-4-8": { "reasoning": true, "limit": { "context": 200_000, "output": 16_384 } } },
            } },
            "model": "abridge/claude-opus-4-8",
            "permission": "allow",
            "autoupdate": false,
            "mcp": { "abridge": { "type": "remote", "url": self.mcp_url() } },
        })
        .to_string()
    }

    fn mcp_url(&self) -> String {
        format!("http://{}/abridge/mcp", self.abridge.address())
    }

    /// The agent as it is run without anyone to ask, in its own home and with nothing of this environment.
    fn command(&self, prompt: &str, resumed: bool) -> Command {
        if let Some(script) = self.agent.script() {
            return self.script(script, prompt);
        }
        let (example, home) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/clients"), self.home.path());
        let claude_code = example.join("claude_code.sh");
        let mut command = Command::new(if self.agent.is_codex() { &self.program } else { &claude_code });
        let paths = std::env::var("PATH").unwrap_or_default();
        command.env_clear().env("PATH", format!("{}:{paths}", self.program.parent().unwrap().display()));
        command.env("HOME", home).env("NO_PROXY", "*").env("no_proxy", "*").current_dir(home);
        if self.agent == Agent::OpencodeWithMcp {
            command = Command::new(&self.program);
            command.env_clear().env("PATH", paths).env("HOME", home).env("NO_PROXY", "*").env("no_proxy", "*");
            command.current_dir(home).env("OPENCODE_CONFIG_CONTENT", self.opencode_config()).args(["run", prompt]);
        } else if self.agent.is_codex() {
            command.env("CODEX_HOME", home).env("OPENAI_API_KEY", "sk-client").env("CODEX_API_KEY", "sk-client");
            command.arg("exec").args(if resumed { ["resume", "--last"].as_slice() } else { &[] });
            command.args(["--skip-git-repo-check", prompt]);
        } else {
            let base = format!("http://{}", self.abridge.address());
            command.env("ANTHROPIC_BASE_URL", base).env("ANTHROPIC_API_KEY", "sk-ant-client").env("IS_SANDBOX", "1");
            command.env("DISABLE_TELEMETRY", "1").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
            let bound = self.agent == Agent::ClaudeCodeWithBoundThinking;
            command.env("ANTHROPIC_MODEL", if bound { "claude-opus-5-5" } else { "claude-opus-4-8" });
            command.args(resumed.then_some("--continue")).args(["-p", prompt, "--allowedTools", "Bash"]);
            if let Some(tool) = self.agent.recall_tool() {
                let server =
                    format!("{{\"mcpServers\":{{\"abridge\":{{\"type\":\"http\",\"url\":\"{}\"}}}}}}", self.mcp_url());
                command.args([tool, "--mcp-config", &server]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command
    }

    /// The agent of a library.
    fn script(&self, script: &str, prompt: &str) -> Command {
        let folder = self.program.ancestors().find(|folder| folder.join("node_modules").exists()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
        let origin = format!("http://{}", self.abridge.address());
        // One of the two libraries for Anthropic adds the version to the base, and the other does not.
        let anthropic = if self.agent == Agent::VercelAnthropic { format!("{origin}/v1") } else { origin.clone() };
        let mut command = match self.agent {
            Agent::VercelOpenAi | Agent::VercelAnthropic => {
                let provider = if self.agent.speaks_responses() { "openai" } else { "anthropic" };
                let mut command = Command::new("node");
                command.arg(script).arg(provider);
                command
            }
            _ => {
                let mut command = Command::new(&self.program);
                command.arg(script);
                command
            }
        };
        command.arg(prompt).env("ABRIDGE_CLIENTS", folder).env("HOME", self.home.path());
        command.env("OPENAI_BASE_URL", format!("{origin}/v1")).env("OPENAI_API_KEY", "sk-client");
        command.env("ANTHROPIC_BASE_URL", anthropic).env("ANTHROPIC_API_KEY", "sk-client");
        command.env("NO_PROXY", "*").env("no_proxy", "*").current_dir(self.home.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command
    }

    /// Runs it to its end, which must be the end of the script.
    async fn run(&self, prompt: &str, resumed: bool) {
        let child = self.command(prompt, resumed).spawn().unwrap();
        let group = child.id();
        let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
        let Ok(ended) = tokio::time::timeout(PATIENCE, ended).await else {
            kill(group);
            panic!("the agent should have come to its end");
        };
        let ended = ended.unwrap().unwrap();
        let [said, told] = [&ended.stdout, &ended.stderr].map(|out| String::from_utf8_lossy(out).into_owned());
        let end = told.chars().rev().take(2000).collect::<Vec<_>>().into_iter().rev().collect::<String>();
        assert!(ended.status.success() && said.contains(DONE), "{}, said {said:?} and {end:?}", ended.status);
    }

    /// Runs it until its shell waits, and kills it and all that it has started.
    async fn run_until_held(&self, prompt: &str) {
        let mut command = self.command(prompt, false);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut held = self.model.held.subscribe();
        let held = tokio::time::timeout(PATIENCE, held.wait_for(|held| *held)).await.is_ok();
        // An agent writes its session beside its requests, and what it has not written cannot be resumed.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(kill(child.id()), "the agent should still run");
        child.wait().unwrap();
        assert!(held, "the shell should have been asked to wait");
        self.model.released.send_replace(true);
    }
}
