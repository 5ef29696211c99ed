//! A summary that takes longer than a request waits for it, while its answer keeps coming.

use super::*;

const PAUSE: Duration = Duration::from_millis(400);

fn slow() -> Play {
    let mut pieces = vec!["They talked. "; 9];
    pieces.push("The end of it.");
    Play::Slow(pieces, PAUSE)
}

#[tokio::test]
async fn a_steady_summary_is_finished_beside_the_requests_and_used_by_a_later_one() {
    let upstream = Summarizer::playing([slow()]).await;
    let abridge = setup_within(&upstream, "1s").with("summarize.trigger = { tokens = 900 }").start().await;
    let (reply, took) = timed(ask(&abridge, talk("a", 3))).await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, None));
    assert!(took >= Duration::from_secs(1), "{took:?}");
    // The next request does not wait for it, and asks for no other.
    let (reply, took) = timed(ask(&abridge, talk("a", 3))).await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, None));
    assert!(took < Duration::from_secs(1), "{took:?}");
    abridge.says("a summary was made", 0).await;
    let reply = ask(&abridge, talk("a", 4)).await;
    assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"));
    assert!(upstream.chats().pop().unwrap().text().contains("The end of it."));
    assert_eq!(upstream.summaries().len(), 1);
}

#[tokio::test]
async fn no_call_begins_after_the_time_of_a_summary() {
    // The answer ends after the time, with a call in place of a summary.
    let upstream = Summarizer::playing([Play::Slow(vec!["<tool_call>"; 6], PAUSE)]).await;
    let abridge = setup_within(&upstream, "1s").with("summarize.trigger = { tokens = 900 }").start().await;
    assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), None);
    abridge.says("the model calls a tool", 0).await;
    assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), None);
    assert_eq!(upstream.summaries().len(), 1);
}
