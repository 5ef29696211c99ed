//! Which subscriber receives which events, and what is lost.

use super::*;
use crate::payload::Keys;

fn note(caller: Option<Caller>, content: Option<&str>) -> Event {
    let kind = EventKind::SummaryAfter {
        tokens_before: 10,
        tokens_after: Some(1),
        error: None,
        milliseconds: 5,
        usage: None,
        content: content.map(str::to_owned),
    };
    Event { request_id: Some("req_1".to_owned()), caller, kind }
}

fn text(delivery: Option<Delivery>) -> String {
    match delivery.unwrap() {
        Delivery::Event(event) => String::from_utf8(event.json.to_vec()).unwrap(),
        Delivery::Lost(n) => format!("lost {n}"),
    }
}

#[tokio::test]
async fn a_subscriber_receives_the_events_of_its_caller_only() {
    let keys = Keys::new([1; 32]);
    let [a, b] = [b"a", b"b"].map(|credential| keys.caller(credential));
    let events = Events::default();
    let mut hears_a = events.subscribe(Audience::Caller(a)).unwrap();
    let mut hears_all = events.subscribe(Audience::All).unwrap();
    for whose in [Some(b), None, Some(a)] {
        events.publish(note(whose, None));
    }
    let first = text(hears_a.next().await);
    assert!(hears_a.queue.is_empty());
    let all = [text(hears_all.next().await), text(hears_all.next().await), text(hears_all.next().await)];
    assert!(hears_all.queue.is_empty());
    assert_eq!(all[2], first);
    assert_ne!(all[0], all[1], "no two events have one id");
}

#[tokio::test]
async fn a_slow_subscriber_loses_its_oldest_events_and_learns_how_many() {
    let keys = Keys::new([1; 32]);
    let [a, b] = [b"a", b"b"].map(|credential| keys.caller(credential));
    let events = Events::new(&Settings { queue: 4, ..Settings::default() });
    let mut slow = events.subscribe(Audience::Caller(a)).unwrap();
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
    assert!(slow.queue.is_empty());
}

#[tokio::test]
async fn content_is_published_only_if_the_setting_asks_for_it() {
    for (content, expected) in [(false, 0), (true, 1)] {
        let events = Events::new(&Settings { content, ..Settings::default() });
        let mut listener = events.subscribe_unlimited();
        events.publish(note(None, Some("SECRET")));
        assert_eq!(text(listener.next().await).matches("SECRET").count(), expected);
    }
}

#[tokio::test]
async fn long_names_are_truncated() {
    let events = Events::default();
    let mut listener = events.subscribe_unlimited();
    let edits = Edits { model: Some("é".repeat(1 << 20)), ..Edits::default() };
    events.publish(Event { request_id: None, caller: None, kind: EventKind::EditBefore(edits) });
    assert!(text(listener.next().await).len() < 2000);
}

#[tokio::test]
async fn subscriptions_are_limited_and_released() {
    let events = Events::new(&Settings { listeners: 2, ..Settings::default() });
    assert!(!events.has_subscribers());
    let first = events.subscribe(Audience::All).unwrap();
    let second = events.subscribe(Audience::All).unwrap();
    assert!(events.subscribe(Audience::All).is_none());
    let beside = events.subscribe_unlimited();
    drop(first);
    let third = events.subscribe(Audience::All).unwrap();
    drop((second, third, beside));
    assert!(!events.has_subscribers());
    events.publish(note(None, None));
    assert!(events.0.subscribers.with(|subscribers| subscribers.is_empty()));
}

#[test]
fn only_the_host_is_printed() {
    let url: WebhookUrl = "https://hooks.example:8443/services/T0/secret?key=secret".parse().unwrap();
    assert_eq!(url.to_string(), "https://hooks.example:8443/***");
    assert_eq!(format!("{url:?}"), "WebhookUrl(https://hooks.example:8443/***)");
    assert_eq!("http://h".parse::<WebhookUrl>().unwrap().to_string(), "http://h/");
    for wrong in ["hooks.example/x", "ftp://h/x", "/x", "https://user:secret@h/x", ""] {
        assert_eq!(wrong.parse::<WebhookUrl>(), Err(WebhookUrlError), "{wrong:?}");
    }
}
