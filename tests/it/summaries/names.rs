//! Names that the conversation goes on to use and that a summary leaves out.

use super::*;

const HEADING: &str = "Names that the messages below use";

/// A conversation in whose summarised part the model names a limit, which the user asks to raise in what stays.
fn talk_of_a_limit(n_turns: usize) -> String {
    let named = talk("a", n_turns).replacen("a answer 0. ", r"I see:\n  let pool_limit = 7331;\n", 1);
    named.replace("a question 3", "Raise pool_limit.")
}

#[tokio::test]
async fn a_name_that_the_summary_drops_is_in_the_next_request_and_in_all_later_ones() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream).start().await;
    for n_turns in [3, 3, 4] {
        ask(&abridge, talk_of_a_limit(n_turns)).await;
    }
    assert_eq!(upstream.summaries().len(), 1);
    let sent: Vec<_> = upstream.chats().iter().map(|asked| asked.messages()[1].clone()).collect();
    assert!(sent[0].contains(HEADING) && sent[0].contains(r"They talked."), "{}", sent[0]);
    assert!(sent[0].contains(r":\n- let pool_limit = 7331;\n\n"), "{}", sent[0]);
    assert!(sent.iter().all(|message| *message == sent[0]), "the beginning stays");
}

#[tokio::test]
async fn a_summary_that_keeps_the_names_is_sent_as_it_is() {
    let upstream = Summarizer::playing([Play::Json("`pool_limit` is 7331.".to_owned())]).await;
    let abridge = setup(&upstream).start().await;
    ask(&abridge, talk_of_a_limit(3)).await;
    let sent = upstream.chats()[0].messages()[1].clone();
    assert!(sent.contains("`pool_limit` is 7331.") && !sent.contains(HEADING), "{sent}");
    assert!(!sent.contains("let pool_limit"), "{sent}");
}
