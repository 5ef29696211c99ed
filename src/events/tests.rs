//! Who hears what, and what is lost.

use super::*;
use crate::payload::Keys;

fn note(caller: Option<Caller>, content: Option<&str>) -> Event {
    let what = What::SummaryAfter {
        tokens_before: 10,
        tokens_after: Some(1),
        error: None,
        milliseconds: 5,
        usage: None,
        content: content.map(str::to_owned),
    };
    Event { request_id: Some("req_1".to_owned()), caller, what }
}

fn text(heard: Option<Heard>) -> String {
    match heard.unwrap() {
        Heard::Event(told) => String::from_utf8(told.json.to_vec()).unwrap(),
        Heard::Lost(n) => format!("lost {n}"),
    }
}

#[tokio::test]
async fn a_caller_hears_its_own_events_and_no_others() {
    let keys = Keys::new([1; 32]);
    let [a, b] = [b"a", b"b"].map(|credential| keys.caller(credential));
    let events = Events::default();
    let mut hears_a = events.listen(Audience::Caller(a)).unwrap();
    let mut hears_all = events.listen(Audience::All).unwrap();
    for whose in [Some(b), None, Some(a)] {
        events.publish(note(whose, None));
    }
    let first = text(hears_a.next().await);
    assert!(hears_a.is_empty());
    let all = [text(hears_all.next().await), text(hears_all.next().await), text(hears_all.next().await)];
    assert!(hears_all.is_empty());
    assert_eq!(all[2], first);
    assert_ne!(all[0], all[1], "no two events have one id");
}

#[tokio::test]
async fn who_is_slow_loses_its_own_oldest_and_is_told_how_many() {
    let keys = Keys::new([1; 32]);
    let [a, b] = [b"a", b"b"].map(|credential| keys.caller(credential));
    let events = Events::new(&Settings { queue: 4, ..Settings::default() });
    let mut slow = events.listen(Audience::Caller(a)).unwrap();
    for n in 0..7 {
        let mut event = note(Some(a), None);
        event.request_id = Some(format!("req_{n}"));
        events.publish(event);
        events.publish(note(Some(b), None));
    }
    assert_eq!(text(slow.next().await), "lost 3", "what others had does not count");
    for n in 3..7 {
        assert!(text(slow.next().await).contains(&format!("\"request_id\":\"req_{n}\"")));
    }
    assert!(slow.is_empty());
}

#[tokio::test]
async fn content_is_told_only_if_it_is_asked_for() {
    for (content, told) in [(false, 0), (true, 1)] {
        let events = Events::new(&Settings { content, ..Settings::default() });
        let mut listener = events.listen_beside();
        events.publish(note(None, Some("SECRET")));
        assert_eq!(text(listener.next().await).matches("SECRET").count(), told);
    }
}

#[tokio::test]
async fn names_that_others_choose_are_cut() {
    let events = Events::default();
    let mut listener = events.listen_beside();
    let edits = Edits { model: Some("é".repeat(1 << 20)), ..Edits::default() };
    events.publish(Event { request_id: None, caller: None, what: What::EditBefore(edits) });
    assert!(text(listener.next().await).len() < 2000);
}

#[tokio::test]
async fn places_are_few_and_given_back() {
    let events = Events::new(&Settings { listeners: 2, ..Settings::default() });
    assert!(!events.are_heard());
    let first = events.listen(Audience::All).unwrap();
    let second = events.listen(Audience::All).unwrap();
    assert!(events.listen(Audience::All).is_none());
    let beside = events.listen_beside();
    drop(first);
    let third = events.listen(Audience::All).unwrap();
    drop((second, third, beside));
    assert!(!events.are_heard());
    assert!(events.0.places.load().is_empty());
}
