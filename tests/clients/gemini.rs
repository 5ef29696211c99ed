//! Google's client for Gemini's own API, and Gemini CLI, to an upstream that answers as the API documents.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memchr::memmem;

use crate::it::support::wire::Head;
use crate::it::support::{Setup, Upstream, Wire, upstream};
use crate::{TEXT, installed, json, refuse, run};

/// Runs the clients.
pub(crate) async fn all(folder: &Path) -> bool {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::to(upstream.origin()).start().await;
    let answering = tokio::spawn(async move {
        while let Some(wire) = upstream.accept().await {
            tokio::spawn(converse(wire));
        }
    });
    let url = format!("http://{}", abridge.address());
    let home = tempfile::tempdir().unwrap();
    let mut passed = true;
    println!("google-genai, Gemini CLI");
    match installed(&folder.join("genai/bin/python")) {
        Some(mut python) => {
            let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients/gemini.py");
            python.arg(script).env("ABRIDGE_URL", &url);
            passed &= run("google-genai", python, folder, "http://unused/v1").await.is_some();
        }
        None => println!("  NOT RUN google-genai: it is not installed"),
    }
    match cli(folder, home.path(), &url) {
        Some(cli) => {
            // The upstream has it list the folder, and answers once it has seen the file there.
            let said = run("gemini-cli", cli, folder, "http://unused/v1").await;
            let answered = said.as_ref().is_some_and(|said| said.contains(TEXT));
            println!("  {}  Gemini CLI calls a tool and answers", if answered { "ok    " } else { "FAILED" });
            passed &= answered;
        }
        None => println!("  NOT RUN Gemini CLI: it is not installed"),
    }
    answering.abort();
    passed
}

/// Gemini CLI in a folder with one file.
fn cli(folder: &Path, home: &Path, url: &str) -> Option<Command> {
    let script = folder.join("node_modules/@google/gemini-cli/bundle/gemini.js");
    installed(&script)?;
    let settings = r#"{"security":{"auth":{"selectedType":"gemini-api-key"}},"general":{"enableAutoUpdate":false}}"#;
    std::fs::create_dir_all(home.join(".gemini")).unwrap();
    std::fs::create_dir_all(home.join("work")).unwrap();
    std::fs::write(home.join(".gemini/settings.json"), settings).unwrap();
    std::fs::write(home.join("work/notes.txt"), "A note.\n").unwrap();
    let mut cli = Command::new("node");
    cli.arg(script).args(["-m", "gemini-2.5-pro", "--approval-mode", "yolo", "--skip-trust", "-p", "What is here?"]);
    cli.env("HOME", home).env("GEMINI_API_KEY", "k").env("GOOGLE_GEMINI_BASE_URL", url);
    cli.current_dir(home.join("work")).stdout(Stdio::piped());
    Some(cli)
}

async fn converse(mut wire: Wire) {
    while let Some(head) = wire.next_head().await {
        let body = wire.body(&head).await.bytes;
        answer(&mut wire, &head, &body).await;
    }
}

async fn answer(wire: &mut Wire, head: &Head, body: &[u8]) {
    let n = |part: &str| memmem::find_iter(body, part.as_bytes()).count();
    let (path, query) = head.target().split_once('?').unwrap_or((head.target(), ""));
    if head.get("x-goog-api-key") != Some("k") {
        return refuse(wire, "403 Forbidden", "").await;
    }
    if n("\"functionCall\"") != n("\"functionResponse\"") {
        return refuse(wire, "400 Bad Request", "").await;
    }
    if path.ends_with(":countTokens") {
        return json(wire, r#"{"totalTokens":30}"#).await;
    }
    // A model whose calls are signed: without the signature the next request is refused.
    let offers = n("\"list_directory\"") > 0 && n("functionDeclarations") > 0;
    let part = if offers && n("\"functionCall\"") == 0 {
        r#"{"functionCall":{"name":"list_directory","args":{"dir_path":"."}},"thoughtSignature":"c2lnbmVk"}"#.to_owned()
    } else if offers && (n("c2lnbmVk") == 0 || n("notes.txt") == 0) {
        return refuse(wire, "400 Bad Request", "").await;
    } else {
        format!(r#"{{"text":"{TEXT}"}}"#)
    };
    let answer = format!(
        r#"{{"candidates":[{{"content":{{"role":"model","parts":[{part}]}},"finishReason":"STOP","index":0}}],"usageMetadata":{{"promptTokenCount":3,"candidatesTokenCount":2,"totalTokenCount":5}},"modelVersion":"m","responseId":"r"}}"#
    );
    if path.ends_with(":streamGenerateContent") && query == "alt=sse" {
        let fields = ["content-type: text/event-stream", "connection: close"];
        wire.send(upstream::whole("200 OK", &fields, format!("data: {answer}\r\n\r\n"))).await;
    } else if path.ends_with(":generateContent") {
        json(wire, &answer).await;
    } else {
        refuse(wire, "404 Not Found", "").await;
    }
}
