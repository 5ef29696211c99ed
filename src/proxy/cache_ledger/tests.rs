//! Lessons about prompt caches, from bills of a client and an upstream on their own clock.

use std::time::Duration;

use super::*;
use crate::tokens::prices::PriceList;

const SECOND: Duration = Duration::from_secs(1);

/// A client and an upstream with a cache, on their own clock.
struct Scene {
    ledger: CacheLedger,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        Self { ledger: CacheLedger::default(), now: Instant::now() }
    }

    /// Sends these messages after so many seconds, of 1,000 tokens each; an earlier request began with `known` of
    /// them, and the cache serves `cached` tokens.
    fn sends(&mut self, after: u64, messages: &str, known: u64, cached: u64) {
        self.sends_to("m", after, messages, known, Some(cached));
    }

    fn sends_to(&mut self, model: &str, after: u64, messages: &str, known: u64, cached: Option<u64>) -> Option<u64> {
        self.now += u32::try_from(after).unwrap() * SECOND;
        let message = |byte: &u8| Fingerprint::of(&[*byte]);
        let root = Fingerprint::of(&messages.as_bytes()[..1]);
        let received = Received { messages: messages.as_bytes().iter().map(message).collect(), root, new_tokens: 0 };
        // Without a bill they are counted.
        let billed = if cached.is_some() { 2000 } else { 1000 } * messages.len() as u64;
        let segment = PromptSegment { fingerprint: Fingerprint::default(), tokens: 1000 };
        let billed = Billed {
            scope: CacheScope::default(),
            upstream: "u",
            model,
            received: &received,
            received_tokens: billed,
            at: self.now,
            segments: &vec![segment; messages.len()],
            known: 1000 * known,
            input: billed,
            cached,
        };
        self.ledger.add(&billed, false).map(|earlier| earlier.received)
    }

    /// Whether the conversation that begins so has expired so many seconds after the last request.
    fn has_expired(&self, after: u32, messages: &str) -> bool {
        let received = Received { messages: vec![], root: Fingerprint::of(&messages.as_bytes()[..1]), new_tokens: 0 };
        self.ledger.has_expired(CacheScope::default(), "u", "m", &received, self.now + after * SECOND)
    }

    fn account(&self) -> CacheAccount {
        self.ledger.accounts()[0].clone()
    }
}

#[test]
fn a_request_whose_answer_was_cut_is_remembered_and_tells_nothing_of_the_cache() {
    let mut scene = Scene::new();
    scene.sends(0, "abc", 0, 0);
    assert_eq!(scene.sends_to("m", 10, "abcd", 3, None), Some(6000));
    assert_eq!(scene.sends_to("m", 10, "abcde", 4, Some(8000)), Some(8000));
    let account = scene.account();
    assert_eq!((account.requests, account.lost, account.smallest), (1, Losses::default(), Some(8000)));
    // A model of which nothing else is known has no account for that.
    assert_eq!(scene.sends_to("other", 10, "abc", 0, None), None);
    assert_eq!(scene.ledger.accounts().len(), 1);
}

#[test]
fn what_is_served_is_no_loss() {
    let mut scene = Scene::new();
    scene.sends(0, "abc", 0, 0);
    scene.sends(10, "abcde", 3, 6000);
    scene.sends(10, "abcdefg", 5, 10_000);
    let account = scene.account();
    assert_eq!((account.requests, account.lost, account.smallest), (2, Losses::default(), Some(6000)));
    assert_eq!(account.block, Some(2000));
}

#[test]
fn a_loss_has_the_edits_the_client_the_pause_or_the_upstream_as_its_cause() {
    let mut scene = Scene::new();
    scene.sends(0, "abcd", 0, 0);
    // The client has added a message, and the edits have changed the last two of those that were sent.
    scene.sends(10, "abcde", 2, 4000);
    assert_eq!(scene.account().lost, Losses { edits: 4000, ..Losses::default() });
    // The client has changed the third of five.
    scene.sends(10, "abXdef", 2, 4000);
    assert_eq!(scene.account().lost, Losses { edits: 4000, client: 6000, ..Losses::default() });
    scene.sends(301, "abXdefg", 6, 0);
    assert_eq!(scene.account().lost.expired, 12_000);
    scene.sends(10, "abXdefgh", 7, 0);
    assert_eq!(scene.account().lost.upstream, 14_000);
    scene.sends(10, "new", 0, 0);
    let expected = Losses { edits: 4000, expired: 12_000, client: 6000, upstream: 14_000 };
    assert_eq!(scene.account().lost, expected, "a new conversation loses nothing");
}

#[test]
fn a_branch_that_goes_on_from_an_earlier_request_is_no_change_of_the_client() {
    let mut scene = Scene::new();
    scene.sends(0, "abcd", 0, 0);
    scene.sends(10, "abcdef", 4, 8000);
    scene.sends(10, "abcdgh", 4, 8000);
    assert_eq!((scene.account().requests, scene.account().lost), (2, Losses::default()));
}

#[test]
fn a_cache_that_loses_all_at_a_change_is_known_by_that_and_the_edits_have_the_cost() {
    let mut scene = Scene::new();
    scene.sends(0, "abcd", 0, 0);
    scene.sends(10, "abcde", 2, 0);
    scene.sends(10, "abcdef", 5, 10_000);
    let account = scene.account();
    assert_eq!(account.breaks, Breaks { suffix: 0, all: 1 });
    assert_eq!(account.lost, Losses { edits: 8000, ..Losses::default() }, "all that had been sent");
}

#[test]
fn a_change_behind_a_pause_in_which_the_cache_expires_costs_nothing_more() {
    let mut scene = Scene::new();
    scene.sends(0, "abcd", 0, 0);
    scene.sends(301, "abcde", 2, 0);
    assert_eq!(scene.account().lost, Losses { expired: 8000, ..Losses::default() });
}

#[test]
fn how_long_a_cache_keeps_a_prompt_is_learnt_from_what_it_serves_behind_pauses() {
    let mut scene = Scene::new();
    let mut text = "abc".to_owned();
    scene.sends(0, &text, 0, 0);
    for (seconds, is_served) in [(20, true), (100, true), (250, true), (500, true), (3000, false)] {
        for _ in 0..MIN_SEEN {
            let known = text.len() as u64;
            text.push('x');
            scene.sends(seconds, &text, known, if is_served { 2000 * known } else { 0 });
        }
    }
    let account = scene.account();
    assert_eq!((account.keeps_seconds, account.expires_after_seconds), (Some(600), Some(600)));
    assert!(account.lost.expired > 0 && account.lost.upstream == 0, "{account:?}");
}

#[test]
fn a_conversation_has_expired_behind_a_pause_in_which_most_others_did() {
    let mut scene = Scene::new();
    let mut text = "abc".to_owned();
    scene.sends(0, &text, 0, 0);
    let mut pause = |scene: &mut Scene, seconds, is_served| {
        let known = text.len() as u64;
        text.push('x');
        scene.sends(seconds, &text, known, if is_served { 2000 * known } else { 0 });
    };
    (0..2).for_each(|_| pause(&mut scene, 400, false));
    assert!(!scene.has_expired(4000, "abc"), "twice says little");
    pause(&mut scene, 400, false);
    assert_eq!([300, 301].map(|seconds| scene.has_expired(seconds, "abc")), [false, true]);
    assert!(!scene.has_expired(4000, "zbc"), "a conversation that was never seen");
    // Once a longer pause has not lost it, only still longer ones count, and none was seen.
    pause(&mut scene, 2000, true);
    assert!(!scene.has_expired(4000, "abc"));
}

#[test]
fn a_loss_costs_what_writing_costs_more_than_reading() {
    let lost = Losses { edits: 1000, expired: 0, client: 10, upstream: 1 };
    let settings = toml::from_str("read = 0.1\nwrite = 1.25").unwrap();
    let prices = PriceList::new(&[settings], &[], "").of_model(None);
    assert_eq!(lost.priced(prices), Losses { edits: 1150, expired: 0, client: 11, upstream: 1 });
}

#[test]
fn short_beginnings_say_nothing_of_a_cache() {
    let mut scene = Scene::new();
    scene.sends(0, "a", 0, 0);
    scene.sends(10, "ab", 1, 0);
    assert_eq!(scene.account().lost, Losses::default());
}

#[test]
fn the_number_of_accounts_is_bounded_and_the_last_billed_stay() {
    let mut scene = Scene::new();
    for n in 0..MAX_ACCOUNTS {
        scene.sends_to(&format!("m{n}"), 1, "abc", 0, Some(0));
    }
    scene.sends_to("m0", 1, "abc", 3, Some(6000));
    scene.sends_to("one more", 1, "abc", 0, Some(0));
    let models: Vec<_> = scene.ledger.accounts().into_iter().map(|account| account.model).collect();
    assert_eq!(models.len(), MAX_ACCOUNTS);
    assert!(models.contains(&"m0".to_owned()) && models.contains(&"one more".to_owned()));
    assert!(!models.contains(&"m1".to_owned()));
}
