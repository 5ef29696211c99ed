//! Calls that ask for something cleared: counted, logged, shown, and answered by sparing more.

use std::fmt::Write as _;
use std::process::Command;

use crate::metrics::scrape;
use crate::support::offloads::recalls;
use crate::support::{Abridge, OPERATOR, OPERATOR_TOKEN, Scene, binary, chat, request, within};

const CLEARING: &str = "tokens.counter = \"estimate\"\ntokens.ask_upstream = false\n\
     clear_tool_results = { when = 'any', trigger = { tokens = 1000 }, keep = { results = 1 }, clear_at_least = 0 }";

/// A conversation whose calls have these arguments, each with a result of 1000 tokens.
fn conversation(calls: &[&str]) -> String {
    let mut messages = String::from("{\"role\":\"user\",\"content\":\"go\"}");
    for (n, command) in calls.iter().enumerate() {
        let arguments = serde_json::to_string(&format!("{{\"command\": \"{command}\"}}")).unwrap();
        let text = format!("{n} ").repeat(2000);
        write!(
            messages,
            ",{{\"role\":\"assistant\",\"tool_calls\":[{{\"id\":\"c{n}\",\"type\":\"function\",\"function\":{{\"name\":\"bash\",\"arguments\":{arguments}}}}}]}},\
             {{\"role\":\"tool\",\"tool_call_id\":\"c{n}\",\"content\":\"{text}\"}}"
        )
        .unwrap();
    }
    format!(
        "{{\"model\":\"m\",\"messages\":[{messages}],\"tools\":[{{\"type\":\"function\",\"function\":{{\"name\":\"bash\"}}}}]}}"
    )
}

/// Returns what the upstream gets, once the request is counted as the `n`th.
async fn sent(scene: &mut Scene, body: &str, n: u64) -> Vec<u8> {
    let mut client = scene.abridge.connect().await;
    client.send(chat(body)).await;
    let mut call = scene.upstream.request().await;
    let got = call.bytes().await.to_vec();
    call.answer("200 OK", &["content-type: application/json", "connection: close"], "{}").await;
    client.reply().await;
    within("the request to be counted", async {
        while scrape(&scene.abridge).await.sum("abridge_requests_total") < n {}
    })
    .await;
    got
}

async fn counted(abridge: &Abridge) -> [u64; 2] {
    let scrape = scrape(abridge).await;
    ["repeated", "recalled"].map(|kind| scrape.get(&format!("abridge_regrets_total{{kind=\"{kind}\"}}")))
}

#[tokio::test]
async fn what_is_asked_for_again_is_counted_and_shown_and_doubles_keep() {
    let mut scene = Scene::with(CLEARING).await;
    let first = sent(&mut scene, &conversation(&["make a", "make b", "make c"]), 1).await;
    assert_eq!(counted(&scene.abridge).await, [0, 0]);
    let [a, b] = &recalls(&first)[..] else { panic!("two are cleared") };
    sent(&mut scene, &conversation(&["make a", "make b", "make c", "make a"]), 2).await;
    assert_eq!(counted(&scene.abridge).await, [1, 0]);
    // The recall is the second: three are cleared then, and from now on two are spared.
    let recall = format!("curl http://{}{b}", scene.abridge.address());
    let asked = ["make a", "make b", "make c", "make a", &recall, "ls", "pwd", "id"];
    let third = sent(&mut scene, &conversation(&asked[..5]), 3).await;
    assert_eq!(counted(&scene.abridge).await, [1, 1]);
    assert_eq!((recalls(&third).len(), recalls(&third).contains(a)), (5, true), "four, and the one in the call");
    let later = sent(&mut scene, &conversation(&asked), 4).await;
    assert_eq!(counted(&scene.abridge).await, [1, 1], "they are counted once");
    assert_eq!(recalls(&later).len(), 7, "six of eight, and the one in the call");

    for words in ["  repeated 1 cleared  ", "  recalled 1 cleared  keep doubled  "] {
        let lines = scene.abridge.said(words, 1).await;
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
    let mut client = scene.abridge.connect().await;
    client.send(request("GET", "/abridge/requests", &[OPERATOR, "connection: close"])).await;
    let reply = String::from_utf8(client.reply().await.body.to_vec()).unwrap();
    assert_eq!(reply.matches("\"regrets\":{").count(), 3, "{reply}");
    assert!(
        reply.contains("\"regrets\":{\"repeated\":0,\"recalled\":1,\"in_all\":2,\"keep_doubled\":true}"),
        "{reply}"
    );
    let at = format!("http://{}", scene.abridge.address());
    let status = Command::new(binary())
        .args(["status", "--at", &at])
        .env("ABRIDGE_ADMIN_TOKEN", OPERATOR_TOKEN)
        .output()
        .unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("regrets           recalled 1, repeated 1\n"), "{status}");
}
