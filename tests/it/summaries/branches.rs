//! Conversations that part, that go on for long, and that grow while their summary is being made.

use super::*;

/// How the message begins that holds a summary, in Chinese.
const LEAD_IN_ZH: &str = "本会话接续先前一段过长的会话";

#[tokio::test]
async fn an_edited_beginning_has_a_summary_of_its_own() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream).start().await;
    ask(&abridge, talk("a", 3)).await;
    // Another question at the end: the same beginning.
    let end = "a question 3";
    ask(&abridge, talk("a", 3).replace(end, "quite another question")).await;
    assert_eq!(upstream.summaries().len(), 1);
    // Other answers in it: another one.
    ask(&abridge, talk("a", 3).replace("a answer", "another answer")).await;
    assert_eq!(upstream.summaries().len(), 2);
    // Other words in the instructions before it change nothing about it.
    ask(&abridge, talk("a", 3).replace("be brief", "be verbose")).await;
    // Another model differs.
    ask(&abridge, talk("a", 3).replace("some-model", "another-model")).await;
    assert_eq!(upstream.summaries().len(), 3);
    let sent = upstream.chats();
    assert_eq!(sent[0].messages()[1], sent[1].messages()[1]);
    assert_eq!(sent[0].messages()[1], sent[3].messages()[1]);
    assert!(sent[2].text().contains("another answer"));
}

#[tokio::test]
async fn three_summaries_in_a_row_keep_the_users_words() {
    let upstream = Summarizer::playing([1, 2, 3].map(|n| Play::Stream(format!("<summary>Part {n}.</summary>")))).await;
    let abridge = setup_within(&upstream, "20s")
        .with("summarize.trigger = { tokens = 1500 }")
        .with("summarize.preserve_user_messages = { max_tokens = 1000 }")
        .start()
        .await;
    let mut before: Option<(usize, Vec<String>)> = None;
    for turns in 1..30 {
        ask(&abridge, talk("a", turns)).await;
        let (n_calls, sent) = (upstream.summaries().len(), upstream.chats().pop().unwrap().messages());
        if let Some((calls, old)) = before.take()
            && calls == n_calls
        {
            assert_eq!(sent[..old.len()], old, "the prefix holds between two summaries, at turn {turns}");
        }
        if n_calls > 0 {
            let asked = |n: usize| sent.iter().any(|message| message.contains(&format!("a question {n}")));
            assert!((0..=turns).all(asked), "turn {turns}: {:?}", sent[1]);
            assert!(
                sent[1].contains(&format!("Part {n_calls}.")) && !sent[1].contains(&format!("Part {}.", n_calls - 1))
            );
        }
        if n_calls == 3 {
            break;
        }
        before = Some((n_calls, sent));
    }
    let calls = upstream.summaries();
    assert_eq!(calls.len(), 3);
    // The second is made of the first and what came since.
    assert!(calls[1].messages()[1].contains("Part 1.") && !calls[1].text().contains("a answer 0."));
    assert!(calls[2].messages()[1].contains("Part 2.") && !calls[2].text().contains("Part 1."));
}

#[tokio::test]
async fn a_background_summary_delays_no_request_before_the_trigger() {
    let upstream = Summarizer::playing([Play::good().held()]).await;
    let abridge = setup_in_background(&upstream).start().await;
    // Below four fifths nothing happens; from there on it is made, and made once.
    ask(&abridge, talk("a", 5)).await;
    for _ in 0..3 {
        assert_eq!(ask(&abridge, talk("a", 6)).await.head.get("x-abridge-edits"), None);
        upstream.asked_for(1).await;
    }
    assert_eq!((upstream.summaries().len(), upstream.chats().len()), (1, 4));

    // Who crosses the trigger waits for what is under way.
    let mut client = abridge.connect().await;
    client.send(chat(talk("a", 7))).await;
    upstream.go_on();
    assert_eq!(client.reply().await.head.get("x-abridge-edits"), Some("summary=1"));
    assert_eq!(upstream.summaries().len(), 1);
    let (sent, whole) = (upstream.chats().pop().unwrap().messages(), messages(talk("a", 7).as_bytes()));
    assert!(sent[1].contains("They talked."));
    let tail = &sent[2..];
    assert_eq!(tail, &whole[whole.len() - tail.len()..], "what is behind it stays as it is");

    // It is used below the trigger, too, as soon as it is there.
    assert_eq!(ask(&abridge, talk("a", 6)).await.head.get("x-abridge-edits"), Some("summary=1"));
}

#[tokio::test]
async fn in_the_background_a_summary_is_ready_when_it_is_needed() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup_in_background(&upstream).start().await;
    ask(&abridge, talk("a", 6)).await;
    abridge.says("a summary was made", 0).await;
    assert_eq!(ask(&abridge, talk("a", 7)).await.head.get("x-abridge-edits"), Some("summary=1"));
    assert_eq!(upstream.summaries().len(), 1);
    // One that was never seen before waits, as in the other mode.
    assert_eq!(ask(&abridge, talk("b", 7)).await.head.get("x-abridge-edits"), Some("summary=1"));
    assert_eq!(upstream.summaries().len(), 2);
}

#[tokio::test]
async fn in_the_background_the_call_needs_no_client() {
    let upstream =
        Summarizer::playing([Play::Status("500 Internal Server Error", &["retry-after-ms: 10"], "{}").held()]).await;
    let abridge = setup_in_background(&upstream).start().await;
    ask(&abridge, talk("a", 6)).await;
    upstream.asked_for(1).await;
    upstream.go_on();
    abridge.says("a summary was made", 0).await;
    assert_eq!(upstream.summaries().len(), 2);
}

#[tokio::test]
async fn a_summary_begun_under_other_settings_is_not_used_after_a_reload() {
    let says = |text: &str| Play::Stream(text.to_owned());
    let upstream = Summarizer::playing([says("Old words.").held(), says("New words.")]).await;
    let abridge = setup(&upstream).start().await;
    let mut first = abridge.connect().await;
    first.send(chat(talk("a", 3))).await;
    upstream.asked_for(1).await;
    abridge.reload_with("language = \"zh\"");
    abridge.says("settings reloaded", 0).await;

    // It does not wait for the one that is being made.
    let new = |sent: &str| sent.contains("New words.") && sent.contains(LEAD_IN_ZH);
    assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
    assert!(new(upstream.chats()[0].text()), "{}", upstream.chats()[0].text());
    upstream.go_on();
    assert_eq!(first.reply().await.head.get("x-abridge-edits"), Some("summary=1"));
    let old = upstream.chats()[1].text().to_owned();
    assert!(old.contains("Old words.") && !old.contains(LEAD_IN_ZH), "{old}");
    ask(&abridge, talk("a", 3)).await;
    assert!(new(upstream.chats()[2].text()));
    assert_eq!(upstream.summaries().len(), 2);
}
