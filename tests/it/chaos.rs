//! Clients, the upstream, the disk and the process misbehave at random and together: each handle that was sent is read back or
//! named as damaged, no request hangs, and memory stays within its limit.
//!
//! `ABRIDGE_CHAOS_SECONDS` says how long it goes on, `ABRIDGE_CHAOS_SEED` how.
#![expect(clippy::print_stdout, reason = "it says what it has seen")]

use std::collections::{BTreeSet, HashSet};
use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::bound::Dice;
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::upstream::whole;
use crate::support::{Abridge, Setup, Upstream, Wire, post, request};

/// How many clients there are at a time.
const CLIENTS: usize = 6;

/// How long a process lives.
const LIFE: Duration = Duration::from_millis(1500);

/// All time-outs of abridge together, and time for a busy machine.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// `server.max_buffered` and 100 MB, in KiB.
const MEMORY: u64 = (64 << 10) + 100_000_000 / 1024;

const SETTINGS: &str = "server.max_buffered = \"64MiB\"\nserver.max_body = \"16MiB\"\nserver.header_timeout = \"1s\"
server.body_timeout = \"1s\"\nserver.write_timeout = \"1s\"\nupstream.first_byte_timeout = \"2s\"
upstream.idle_timeout = \"2s\"\nrecall.auth = \"handle\"";

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// A conversation of each dialect whose result is this text.
fn conversation(dialect: usize, text: &str) -> Vec<u8> {
    let (target, body) = match dialect {
        0 => ("/v1/chat/completions", with_results(&[text.to_owned()])),
        1 => {
            let call = json!([{"type": "tool_use", "id": "t0", "name": "bash", "input": {}}]);
            let result = json!([{"type": "tool_result", "tool_use_id": "t0", "content": text}]);
            let messages = json!([{"role": "user", "content": "go"}, {"role": "assistant", "content": call},
                {"role": "user", "content": result}]);
            let tools = json!([{"name": "bash", "input_schema": {"type": "object"}}]);
            let body = json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages, "tools": tools});
            ("/v1/messages", body.to_string())
        }
        _ => {
            let input = json!([{"role": "user", "content": "go"},
                {"type": "function_call", "call_id": "c0", "name": "bash", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c0", "output": text}]);
            let tools = json!([{"type": "function", "name": "bash", "parameters": {"type": "object"}}]);
            ("/v1/responses", json!({"model": "gpt-5", "input": input, "tools": tools}).to_string())
        }
    };
    post(target, &["connection: close"], body)
}

/// Sends a request as well or as badly as the dice say. Whether it has hung.
async fn ask(address: SocketAddr, request: Vec<u8>, manner: usize) -> bool {
    let Ok(mut socket) = TcpStream::connect(address).await else { return false };
    let part = match manner {
        0 => request.len() / 2,
        1 => 40,
        _ => request.len(),
    };
    // The process may end at any time.
    socket.write_all(&request[..part]).await.ok();
    if manner == 2 {
        // It does not read.
        sleep(Duration::from_secs(2)).await;
        return false;
    }
    if manner == 3 {
        return false;
    }
    timeout(LONGEST_WAIT, socket.read_to_end(&mut Vec::new())).await.is_err()
}

/// Answers as well or as badly as the dice say, and passes on which handles it was sent.
async fn answer(mut wire: Wire, mut dice: Dice, tell: UnboundedSender<Vec<String>>) {
    while let Some((_, body)) = wire.next_whole().await {
        tell.send(recalls(&body)).ok();
        let json = whole("200 OK", &["content-type: application/json"], "{}");
        let sent = match dice.below(10) {
            0 => return,
            1 => wire.try_send(&json[..json.len() / 2]).await.and(Err(std::io::Error::other("cut"))),
            2 => {
                sleep(Duration::from_secs(3)).await;
                return;
            }
            3 => wire.try_send(whole("500 Internal Server Error", &[], "no")).await,
            4 => {
                let mut sent = wire.try_send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
                for _ in 0..5 {
                    sleep(Duration::from_millis(50)).await;
                    sent = sent.and(wire.try_send("a\r\ndata: {}\n\n\r\n").await);
                }
                sent.and(wire.try_send("0\r\n\r\n").await)
            }
            _ => wire.try_send(json).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Serves an upstream until it is dropped.
async fn serve(mut upstream: Upstream, seed: u64, tell: UnboundedSender<Vec<String>>) {
    let mut connections = JoinSet::new();
    let mut n = seed;
    while let Some(wire) = upstream.accept().await {
        n += 1;
        connections.spawn(answer(wire, Dice(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), tell.clone()));
        while connections.try_join_next().is_some() {}
    }
}

/// One life of a process. Which texts were sent.
async fn live(abridge: &Abridge, dice: &mut Dice, n_texts: &mut usize) -> BTreeSet<usize> {
    let mut sent = BTreeSet::new();
    let mut clients = JoinSet::new();
    let (began, idle) = (Instant::now(), abridge.memory());
    while began.elapsed() < LIFE {
        while clients.len() < CLIENTS {
            *n_texts += dice.below(2);
            sent.insert(*n_texts);
            let request = conversation(dice.below(3), &long_text(*n_texts));
            clients.spawn(ask(abridge.address(), request, dice.below(12)));
        }
        if dice.one_in(8) {
            abridge.limit_files(dice.one_in(2).then_some(1 << 20));
        }
        if let Ok(Some(hung)) = timeout(Duration::from_millis(50), clients.join_next()).await {
            assert!(!hung.unwrap(), "a request hung");
        }
    }
    let peak = abridge.peak_memory();
    assert!(peak <= idle + MEMORY, "{idle} -> {peak} KiB");
    let is_killed = !dice.one_in(3);
    if is_killed {
        abridge.signal("KILL");
    }
    // If it lives on, it has to answer them all.
    while let Some(hung) = clients.join_next().await {
        assert!(!hung.unwrap(), "a request hung");
    }
    if !is_killed {
        abridge.signal("TERM");
    }
    sent
}

/// Flips a bit of a file.
fn flip(path: &Path, dice: &mut Dice) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let (at, mut byte) = (dice.below(length.max(1)) as u64, [0]);
    if file.read_at(&mut byte, at).unwrap() == 1 {
        byte[0] ^= 1 << dice.below(8);
        file.write_all_at(&byte, at).unwrap();
    }
}

/// Adds the handles that were sent upstream since.
fn handles(told: &mut UnboundedReceiver<Vec<String>>, all: &mut HashSet<String>) {
    while let Ok(more) = told.try_recv() {
        all.extend(more);
    }
}

async fn chaos(seconds: u64, seed: u64, flips: bool) {
    println!("ABRIDGE_CHAOS_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store.redb");
    let upstream = Upstream::start().await;
    let url = upstream.url();
    let (tell, mut told) = unbounded_channel();
    let serving = tokio::spawn(serve(upstream, seed, tell));
    let start = async || {
        let setup = Setup::to(&url).with(format!("store.path = {:?}", store.display().to_string())).with(SETTINGS);
        setup.survives_full_disks().start().await
    };
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut texts, mut all, mut n_texts, mut lives) = (BTreeSet::new(), HashSet::new(), 0, 0);
    let began = Instant::now();
    let has_seen = |lives: usize, all: &HashSet<_>| lives > 1 && !all.is_empty();
    // A busy machine may take a whole life for the first answer.
    let most = |lives, all: &_| Duration::from_secs(if has_seen(lives, all) { seconds } else { 20 * seconds });
    while began.elapsed() < most(lives, &all) {
        let abridge = start().await;
        texts.append(&mut live(&abridge, &mut dice, &mut n_texts).await);
        abridge.exit().await;
        lives += 1;
        handles(&mut told, &mut all);
        if flips && dice.one_in(3) {
            flip(&store, &mut dice);
        }
    }

    let abridge = start().await;
    let texts: HashSet<Vec<u8>> = texts.into_iter().map(|n| long_text(n).into_bytes()).collect();
    let mut damaged = 0;
    for handle in &all {
        let mut client = abridge.connect().await;
        client.send(request("GET", handle, &["connection: close"])).await;
        let reply = client.reply().await;
        if reply.head.status() == 200 {
            assert!(texts.contains(&reply.body[..]), "{handle} is another text");
            continue;
        }
        let said = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(flips && said.contains("damaged"), "{handle}: {} {said}", reply.head.status());
        damaged += 1;
    }
    println!("{lives} lives, {} handles, {damaged} named as damaged", all.len());
    assert!(has_seen(lives, &all), "{lives} lives, {} handles", all.len());
    serving.abort();
}

#[tokio::test]
async fn whatever_happens_together_each_handle_is_read_back() {
    chaos(variable("ABRIDGE_CHAOS_SECONDS", 10) / 2, variable("ABRIDGE_CHAOS_SEED", 1), false).await;
}

#[tokio::test]
async fn where_bits_flip_besides_each_handle_is_read_back_or_named_as_damaged() {
    chaos(variable("ABRIDGE_CHAOS_SECONDS", 10) / 2, variable("ABRIDGE_CHAOS_SEED", 2), true).await;
}
