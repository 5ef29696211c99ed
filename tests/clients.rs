//! The clients of `PyPI` and npm, and agents, as people use them, through the real binary to an upstream that is as strict as theirs.
//!
//! Runs when `ABRIDGE_CLIENTS` names a folder that `tests/clients/install.sh` has filled. The checks are in
//! `tests/clients/client.*` (openai) and `tests/clients/messages.*` (anthropic); what the upstream answers to which model is
//! here. Codex and Claude Code are run by `tests/clients/agents.rs`. Everything that is in
//! `examples/clients` is run as it is there, as far as its client is installed.
#![expect(clippy::disallowed_methods, reason = "tests spawn the other sides of a connection")]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "what the clients say is shown")]
#![expect(dead_code, unused_imports, reason = "other tests use what this one does not of what they share")]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::watch;

#[path = "it"]
mod it {
    pub(crate) mod support; // what the integration tests share
}

#[path = "clients/agents.rs"]
mod agents; // Codex and Claude Code
#[path = "clients/gateways.rs"]
mod gateways; // LiteLLM's guardrail, which calls abridge
#[path = "clients/gemini.rs"]
mod gemini; // google-genai and Gemini CLI
#[path = "clients/hosts.rs"]
mod hosts; // Vertex AI, Bedrock and Azure
#[path = "clients/in_band.rs"]
mod in_band; // agents whose model reads what was cleared with the tool that abridge adds
#[path = "clients/keep_alive.rs"]
mod keep_alive; // Claude Code, while its tool runs
#[path = "clients/model.rs"]
mod model; // the model that they are given
#[path = "clients/run.rs"]
mod run_command; // clients under `abridge run`

use it::support::wire::Head;
use it::support::{Setup, Upstream, Wire, upstream, validator};
use model::{Api, Seen, Step};

/// A client's request, as far as the upstream looks at it.
#[derive(Debug, Deserialize)]
struct Ask {
    /// Which scene is to be played.
    model: String,
    /// Names the request, so that what became of it can be asked for.
    user: Option<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    tools: Vec<Tool>,
    messages: Vec<Message>,
}

#[derive(Debug, Deserialize)]
struct Tool {
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
}

/// The facts that clients can ask the upstream about.
#[derive(Default)]
struct Notices {
    /// Requests that wait for their client to go away.
    came: watch::Sender<HashSet<String>>,
    /// Requests whose client has gone away.
    gone: watch::Sender<HashSet<String>>,
    /// Streams that may go on.
    released: watch::Sender<HashSet<String>>,
}

/// The arguments of the call that the agents in `examples/clients` are told to make.
const FILE: &str = "{\\\"path\\\":\\\"notes.txt\\\"}";

const JSON: [&str; 2] = ["content-type: application/json", "x-request-id: req_1"];

/// The models of the examples.
const SMALL: [&str; 2] = ["gpt-4o-mini", "claude-haiku-4-5"];

const TEXT: &str = "caf\u{e9} \u{1f980}";

fn main() -> ExitCode {
    let Some(folder) = std::env::var_os("ABRIDGE_CLIENTS").and_then(|folder| std::path::absolute(folder).ok()) else {
        println!("clients: ABRIDGE_CLIENTS is not set, so no client ran; tests/clients/install.sh makes such a folder");
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let passed = runtime.block_on(async {
        let mut upstream = Upstream::start().await;
        let abridge = Setup::before(&upstream).start().await;
        let base = format!("http://{}/v1", abridge.address());
        tokio::spawn(async move {
            let notices = Arc::new(Notices::default());
            while let Some(wire) = upstream.accept().await {
                tokio::spawn(converse(wire, Arc::clone(&notices)));
            }
        });
        let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
        let mut python = Command::new(folder.join("venv/bin/python"));
        python.arg(scripts.join("client.py"));
        let mut node = Command::new("node");
        node.arg(scripts.join("client.mjs"));
        let mut claude_python = Command::new(folder.join("venv/bin/python"));
        claude_python.arg(scripts.join("messages.py"));
        let mut claude_node = Command::new("node");
        claude_node.arg(scripts.join("messages.mjs"));
        let mut mcp = Command::new(folder.join("venv/bin/python"));
        mcp.arg(scripts.join("mcp_tools.py")).env("ABRIDGE", it::support::binary());
        let mut schemathesis = Command::new(folder.join("venv/bin/python"));
        schemathesis.arg(scripts.join("openapi.py")).arg(it::support::binary());
        let mut helm = Command::new(folder.join("helm/bin/python"));
        helm.arg(scripts.join("helm_chart.py")).arg(env!("CARGO_MANIFEST_DIR"));
        let mut passed = true;
        for (name, client) in [
            ("openai for Python", python),
            ("openai for Node.js", node),
            ("anthropic for Python", claude_python),
            ("anthropic for Node.js", claude_node),
            ("mcp for Python", mcp),
            ("schemathesis for assets/openapi.json", schemathesis),
            ("helm for examples/helm", helm),
        ] {
            println!("{name}");
            passed &= run(name, client, &folder, &base).await.is_some();
        }
        let home = tempfile::tempdir().unwrap();
        println!("examples/clients");
        for (name, example) in examples(&folder, home.path(), &base) {
            let Some(example) = example else {
                println!("  NOT RUN {name}: its client is not installed");
                continue;
            };
            let said = run(name, example, &folder, &base).await;
            let answered = said.as_ref().is_some_and(|said| said.contains(TEXT));
            println!("  {}  {name}", if answered { "ok    " } else { "FAILED" });
            if !answered {
                eprintln!("{name} said: {said:?}");
            }
            passed &= answered;
        }
        passed &= in_band::all(&folder).await;
        passed &= gateways::all(&folder).await;
        passed &= hosts::all(&folder).await;
        passed &= gemini::all(&folder).await;
        passed &= keep_alive::all(&folder).await;
        passed &= agents::all(&folder).await;
        passed &= run_command::all(&folder).await;
        if !passed {
            eprintln!("abridge wrote:\n{}", abridge.stderr().join("\n"));
        }
        passed
    });
    runtime.shutdown_background();
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns what is in `examples/clients`, with the client that it is for.
fn examples(folder: &Path, home: &Path, base: &str) -> Vec<(&'static str, Option<Command>)> {
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/clients");
    let python = |environment: &str, script: &str| {
        let mut command = installed(&folder.join(environment).join("bin/python"))?;
        command.arg(examples.join(script));
        Some(command)
    };
    // A module finds its packages from where it lies.
    let node = |package: &str, script: &str| {
        installed(&folder.join("node_modules").join(package))?;
        let copy = folder.join(script);
        std::fs::copy(examples.join(script), &copy).unwrap();
        let mut command = Command::new("node");
        command.arg(copy);
        Some(command)
    };
    let aider = installed(&folder.join("aider/bin/aider")).map(|_| {
        let mut command = Command::new(examples.join("aider.sh"));
        let paths = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{paths}", folder.join("aider/bin").display()));
        command.args(["--message", "Say hello.", "--yes-always", "--no-git", "--no-check-update"]);
        command.args(["--analytics-disable", "--no-show-model-warnings"]);
        command
    });
    let opencode = installed(&folder.join("node_modules/.bin/opencode")).map(|mut command| {
        let settings = std::fs::read_to_string(examples.join("opencode.json")).unwrap();
        assert!(settings.contains("http://127.0.0.1:8787/v1"));
        std::fs::write(home.join("opencode.json"), settings.replace("http://127.0.0.1:8787/v1", base)).unwrap();
        command.args(["run", "Say hello."]).env("OPENCODE_CONFIG", home.join("opencode.json"));
        command
    });
    let mut all = vec![
        ("openai_sdk.py", python("venv", "openai_sdk.py")),
        ("openai_sdk.mjs", node("openai", "openai_sdk.mjs")),
        ("langchain_agent.py", python("langchain", "langchain_agent.py")),
        ("litellm_sdk.py", python("litellm", "litellm_sdk.py")),
        ("pydantic_ai_agent.py", python("pydantic-ai", "pydantic_ai_agent.py")),
        ("vercel_ai_sdk.mjs", node("@ai-sdk/openai", "vercel_ai_sdk.mjs")),
        ("openai_agents_sdk.py", python("agents", "openai_agents_sdk.py")),
        ("pydantic_ai_anthropic.py", python("pydantic-ai", "pydantic_ai_anthropic.py")),
        ("vercel_ai_sdk_responses.mjs", node("@ai-sdk/openai", "vercel_ai_sdk_responses.mjs")),
        ("vercel_ai_sdk_anthropic.mjs", node("@ai-sdk/anthropic", "vercel_ai_sdk_anthropic.mjs")),
        ("aider.sh", aider),
        ("opencode.json", opencode),
    ];
    for command in all.iter_mut().filter_map(|(_, command)| command.as_mut()) {
        command.env("HOME", home).current_dir(home).stdout(Stdio::piped()).env("LITELLM_LOCAL_MODEL_COST_MAP", "true");
        command.env("OPENAI_AGENTS_DISABLE_TRACING", "1"); // it would be sent elsewhere
    }
    all
}

fn installed(program: &Path) -> Option<Command> {
    program.exists().then(|| Command::new(program))
}

/// Runs a client, and gives back what it said if it was content.
async fn run(name: &str, mut client: Command, folder: &Path, base: &str) -> Option<String> {
    client.env("ABRIDGE_CLIENTS", folder).env("OPENAI_BASE_URL", base).env("OPENAI_API_KEY", "sk-client");
    // The base of Vercel's library has the version.
    let anthropic = if name.starts_with("vercel") { base } else { base.trim_end_matches("/v1") };
    client.env("ANTHROPIC_BASE_URL", anthropic).env("ANTHROPIC_API_KEY", "sk-client");
    client.env("NO_PROXY", "*").env("no_proxy", "*").stdin(Stdio::null());
    let ended = tokio::task::spawn_blocking(move || client.spawn().and_then(std::process::Child::wait_with_output));
    match ended.await.unwrap() {
        Ok(ended) if ended.status.success() => Some(String::from_utf8_lossy(&ended.stdout).into_owned()),
        failed => {
            eprintln!("{name}: {failed:?}");
            None
        }
    }
}

/// Answers the requests of one connection.
async fn converse(mut wire: Wire, notices: Arc<Notices>) {
    while let Some(head) = wire.next_head().await {
        let body = wire.body(&head).await.bytes;
        let (path, query) = head.target().split_once('?').unwrap_or((head.target(), ""));
        match path {
            _ if head.get("authorization").or(head.get("x-api-key")).is_none_or(|key| !key.ends_with("sk-client")) => {
                refuse(&mut wire, "401 Unauthorized", "").await;
            }
            "/v1/chat/completions" => match validator::check(&body) {
                Ok(()) => match serde_json::from_slice(&body) {
                    Ok(ask) => chat(&mut wire, ask, &notices).await,
                    Err(_) => refuse(&mut wire, "422 Unprocessable Entity", "").await,
                },
                Err(_) => refuse(&mut wire, "400 Bad Request", "").await,
            },
            "/v1/responses" => turn(&mut wire, Api::Responses, &body).await,
            "/v1/messages" => turn(&mut wire, Api::Messages, &body).await,
            "/v1/came" => told(&mut wire, &notices.came, query).await,
            "/v1/gone" => told(&mut wire, &notices.gone, query).await,
            "/v1/release" => {
                notices.released.send_modify(|names| names.extend([query.to_owned()]));
                json(&mut wire, "true").await;
            }
            _ => elsewhere(&mut wire, &head, &body).await,
        }
    }
}

/// One turn in OpenAI Responses or Anthropic Messages: a text, or a refusal of a conversation that is not valid.
async fn turn(wire: &mut Wire, api: Api, body: &[u8]) {
    match Seen::read(api, body) {
        Ok(seen) if SMALL.contains(&&*seen.model) && seen.shell.is_some() && seen.results.is_empty() => {
            let step = Step::Call { shell: model::READER, commands: "notes.txt".to_owned() };
            model::say(wire, api, &step, &seen).await;
        }
        Ok(seen) if seen.model == "text" || SMALL.contains(&&*seen.model) => {
            model::say(wire, api, &Step::Say(TEXT), &seen).await;
        }
        Ok(seen) => refuse(wire, &seen.model, "retry-after: 7").await,
        Err(_) => refuse(wire, "400 Bad Request", "").await,
    }
}

impl Ask {
    /// Whether the upstream has a file read before it answers.
    fn reads_a_file(&self) -> bool {
        let can = self.tools.iter().any(|tool| tool.function.name == "read_file");
        can && self.messages.last().is_some_and(|message| message.role == "user")
    }
}

/// One chat request that is well formed.
async fn chat(wire: &mut Wire, ask: Ask, notices: &Notices) {
    let name = ask.user.clone().unwrap_or_default();
    match &*ask.model {
        "gpt-4o-mini" if ask.reads_a_file() && ask.stream => {
            let call = call("a", FILE).replacen("\"f\"", "\"read_file\"", 1);
            let call = call.replacen('{', "{\"index\":0,", 1);
            stream(
                wire,
                &[
                    event(&format!("{{\"role\":\"assistant\",\"tool_calls\":[{call}]}}"), "null"),
                    event("{}", "\"tool_calls\""),
                ],
            )
            .await;
        }
        "gpt-4o-mini" if ask.reads_a_file() => {
            let call = call("a", FILE).replacen("\"f\"", "\"read_file\"", 1);
            json(wire, &completion(&format!("\"content\":null,\"tool_calls\":[{call}]"))).await;
        }
        "text" | "gpt-4o-mini" if ask.stream => stream(wire, &text_events()).await,
        "text" | "gpt-4o-mini" => json(wire, &completion(&format!("\"content\":\"{TEXT}\""))).await,
        "tools" if ask.stream => stream(wire, &tool_events()).await,
        "tools" => {
            let calls = [call("a", "{\\\"x\\\": 1}"), call("b", "{}")].join(",");
            json(wire, &completion(&format!("\"content\":null,\"tool_calls\":[{calls}]"))).await;
        }
        "paced" => {
            begin(wire).await;
            wire.send_chunk(event("{\"content\":\"first\"}", "null")).await;
            noted(&notices.released, &name).await;
            wire.send_chunk(event("{\"content\":\"second\"}", "null")).await;
            end(wire).await;
        }
        "silent" => note_end(wire, name, notices).await,
        "endless" => {
            begin(wire).await;
            wire.send_chunk(event("{\"content\":\"first\"}", "null")).await;
            note_end(wire, name, notices).await;
        }
        "broken" => {
            begin(wire).await;
            wire.send_chunk(event("{\"content\":\"first\"}", "null")).await;
            wire.send_chunk("data: {\"id\":").await;
            wire.close().await;
        }
        status => refuse(wire, status, "retry-after: 7").await,
    }
}

/// Answers requests that are not conversations.
async fn elsewhere(wire: &mut Wire, head: &Head, body: &[u8]) {
    match head.target() {
        "/v1/models" => json(wire, "{\"object\":\"list\",\"data\":[{\"id\":\"text\",\"object\":\"model\"}]}").await,
        "/v1/files" => {
            let found = memchr::memmem::find(body, b"what the file holds").is_some();
            json(wire, &format!("{{\"id\":\"file-1\",\"object\":\"file\",\"status\":\"{found}\"}}")).await;
        }
        _ => refuse(wire, "404 Not Found", "").await,
    }
}

/// Waits for the client to go, and notes that it has.
async fn note_end(wire: &mut Wire, name: String, notices: &Notices) {
    notices.came.send_modify(|names| names.extend([name.clone()]));
    wire.gone().await;
    notices.gone.send_modify(|names| names.extend([name]));
}

async fn noted(names: &watch::Sender<HashSet<String>>, name: &str) {
    names.subscribe().wait_for(|names| names.contains(name)).await.unwrap();
}

// === answers ===

/// Answers once the name has been noted.
async fn told(wire: &mut Wire, names: &watch::Sender<HashSet<String>>, name: &str) {
    noted(names, name).await;
    json(wire, "true").await;
}

async fn json(wire: &mut Wire, body: &str) {
    wire.send(upstream::whole("200 OK", &JSON, body)).await;
}

/// An error with a body whose spelling is not what a serialiser would write.
async fn refuse(wire: &mut Wire, status: &str, field: &str) {
    let code = status.split(' ').next().unwrap();
    let body =
        format!("{{ \"error\": {{\"message\":\"no: {code}\", \"type\":\"t\",\"param\":null,\"code\":\"c{code}\"}}}}\n");
    let field: &[&str] = if field.is_empty() { &[] } else { &[field] };
    wire.send(upstream::whole(status, &[&JSON, field].concat(), body)).await;
}

async fn begin(wire: &mut Wire) {
    let fields =
        ["content-type: text/event-stream; charset=utf-8", "x-request-id: req_1", "transfer-encoding: chunked"];
    wire.send(upstream::head("200 OK", &fields)).await;
}

async fn end(wire: &mut Wire) {
    wire.send_chunk("data: [DONE]\n\n").await;
    wire.send("0\r\n\r\n").await;
}

async fn stream(wire: &mut Wire, events: &[String]) {
    begin(wire).await;
    for event in events {
        wire.send_chunk(event).await;
    }
    end(wire).await;
}

fn completion(message: &str) -> String {
    format!(
        "{{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\
         \"finish_reason\":\"stop\",\"message\":{{\"role\":\"assistant\",{message}}}}}],\
         \"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}}}"
    )
}

fn event(delta: &str, finish_reason: &str) -> String {
    format!(
        "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
         \"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish_reason}}}]}}\n\n"
    )
}

fn text_events() -> Vec<String> {
    let mut events = vec![": a comment\n\n".to_owned(), event("{\"role\":\"assistant\",\"content\":\"\"}", "null")];
    events.extend(TEXT.chars().map(|letter| event(&format!("{{\"content\":\"{letter}\"}}"), "null")));
    events.push(event("{}", "\"stop\""));
    events.push(
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\
         \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n"
            .to_owned(),
    );
    events
}

fn call(id: &str, arguments: &str) -> String {
    format!(
        "{{\"id\":\"call_{id}\",\"type\":\"function\",\"function\":{{\"name\":\"f\",\"arguments\":\"{arguments}\"}}}}"
    )
}

/// Two calls side by side, the arguments of the first in pieces.
fn tool_events() -> Vec<String> {
    let begin = |index: usize, call: String| {
        event(
            &format!(
                "{{\"role\":\"assistant\",\"tool_calls\":[{{\"index\":{index},{}]}}",
                call.trim_start_matches('{')
            ),
            "null",
        )
    };
    let piece = |text: &str| {
        event(&format!("{{\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":\"{text}\"}}}}]}}"), "null")
    };
    let pieces = ["{\\\"x", "\\\":", " 1}"].map(piece);
    let mut events = vec![begin(0, call("a", ""))];
    events.extend(pieces);
    events.extend([begin(1, call("b", "{}")), event("{}", "\"tool_calls\"")]);
    events
}
