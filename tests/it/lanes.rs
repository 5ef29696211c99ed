//! The JSON that the page draws conversations from: the conversation and cost of a request, and the origin of a stored text.

use serde::Deserialize;

use crate::calibration::conversation;
use crate::support::{Abridge, OPERATOR, Setup, Upstream, post, request, within};

#[derive(Debug, Deserialize)]
struct Requests {
    requests: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    conversation: Option<String>,
    title: Option<String>,
    client: String,
    window: Option<usize>,
    edited_cost: Option<u64>,
    unedited_cost: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    payloads: Vec<Payload>,
}

#[derive(Debug, Deserialize)]
struct Payload {
    tool: Option<String>,
    conversation: Option<String>,
    title: Option<String>,
    preview: Option<String>,
}

async fn read<T: for<'a> Deserialize<'a>>(abridge: &Abridge, path: &str) -> T {
    let mut client = abridge.connect().await;
    client.send(request("GET", path, &[OPERATOR])).await;
    serde_json::from_slice(&client.reply().await.body).unwrap()
}

/// The entries, when there are so many, and all have their titles or none has one.
async fn entries(abridge: &Abridge, n: usize, have_titles: bool) -> Vec<Entry> {
    within("the entries", async {
        loop {
            let Requests { requests } = read(abridge, "/abridge/requests").await;
            if requests.len() == n && requests.iter().all(|entry| entry.title.is_some() == have_titles) {
                return requests;
            }
        }
    })
    .await
}

/// An answer that bills a token for four bytes.
async fn ask(abridge: &Abridge, upstream: &mut Upstream, path: &str, body: &str) {
    let mut client = abridge.connect().await;
    client.send(post(path, &["user-agent: agent/1.2"], body)).await;
    let mut call = upstream.request().await;
    let prompt = call.bytes().await.len() / 4;
    let usage = format!(r#"{{"prompt_tokens":{prompt},"completion_tokens":1}}"#);
    let answer = format!(r#"{{"choices":[],"usage":{usage}}}"#);
    call.answer("200 OK", &["content-type: application/json", "connection: close"], answer).await;
    assert_eq!(client.reply().await.head.status(), 200);
}

const CHAT: &str = "/v1/chat/completions";
const CLEARING: &str = "clear_tool_results = { when = 'any', trigger = { tokens = 1000 }, keep = { results = 1 } }";

#[tokio::test]
async fn requests_of_one_conversation_have_one_name_and_its_words_with_inspect_alone() {
    for keep in [0, 5] {
        let mut upstream = Upstream::start().await;
        let setup = Setup::before(&upstream).with(CLEARING).with("recall.public_url = \"http://abridge.test\"");
        let abridge = setup.with(format!("inspect.keep = {keep}")).start().await;
        let of = |seed: &str, n| conversation(seed, n).replace(r#""model":"m""#, r#""model":"gpt-4o""#);
        for body in [of("Fix the build", 2), of("Fix the build", 3), of("Another", 1)] {
            ask(&abridge, &mut upstream, CHAT, &body).await;
        }
        let [one, two, other] = &entries(&abridge, 3, keep > 0).await[..] else { panic!("three requests") };
        assert!(one.conversation.is_some() && one.conversation == two.conversation, "{one:?} {two:?}");
        assert_ne!(one.conversation, other.conversation);
        let words = |text: &str| (keep > 0).then(|| text.to_owned());
        assert_eq!(
            [&one.title, &two.title, &other.title],
            [&words("Fix the build"), &words("Fix the build"), &words("Another")]
        );
        assert_eq!((&*one.client, one.window), ("agent", Some(128_000)));
        assert!(two.edited_cost.unwrap() < two.unedited_cost.unwrap(), "{two:?}");
        assert_eq!(other.edited_cost, other.unedited_cost);

        let Listed { payloads } = read(&abridge, "/abridge/payloads").await;
        assert_eq!(payloads.len(), 2);
        for payload in payloads {
            assert_eq!((payload.tool.as_deref(), &payload.conversation), (Some("cat"), &one.conversation));
            assert_eq!(payload.title, words("Fix the build"));
            let preview = payload.preview.as_deref();
            assert_eq!(
                preview.map(|text| text.starts_with("0 0 0 0") || text.starts_with("1 1 1 1")),
                (keep > 0).then_some(true)
            );
        }
        if keep > 0 {
            let config =
                std::fs::read_to_string(abridge.config()).unwrap().replace("inspect.keep = 5", "inspect.keep = 0");
            std::fs::write(abridge.config(), config).unwrap();
            abridge.signal("HUP");
            // The words are gone.
            entries(&abridge, 3, false).await;
        }
    }
}

#[tokio::test]
async fn a_client_that_begins_all_sessions_alike_has_a_conversation_for_each() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with("inspect.keep = 5").start().await;
    let body = |words: &str, more: &str| {
        let user = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
        let facts = user("<environment_context>/src</environment_context>");
        format!(r#"{{"model":"gpt-4o","messages":[{facts},{}{more}]}}"#, user(words))
    };
    let later = r#",{"role":"assistant","content":"Yes."},{"role":"user","content":"Go on"}"#;
    for body in [body("One", ""), body("Two", ""), body("One", later)] {
        ask(&abridge, &mut upstream, CHAT, &body).await;
    }
    let entries = entries(&abridge, 3, true).await;
    let titles: Vec<_> = entries.iter().map(|entry| entry.title.as_deref().unwrap()).collect();
    assert_eq!(titles, ["One", "Two", "One"]);
    assert!(entries[0].conversation == entries[2].conversation && entries[0].conversation != entries[1].conversation);
}
