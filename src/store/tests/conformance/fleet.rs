//! The conformance tests of stores that several processes use at once: an engine is correct if [`suite`] passes on it.

use std::time::Duration;

use bytes::Bytes;

use super::{DAY, PutAll as _, TestClock, dense, key, place};
use crate::payload::{ChainKey, Lifetime};
use crate::store::shared::{Claimant, MAX_SEEN, Note, NoteGroup, NoteKind, Seen, SeenState};
use crate::store::{Clock, Settings, SharedStore};

/// Two stores over one engine, and its clock.
#[derive(Debug)]
pub struct Pair<S> {
    /// One.
    pub one: S,
    /// The other.
    pub other: S,
    clock: TestClock,
}

/// Runs all cases, each on two stores over one empty engine that `open` makes. Panics if one fails.
pub async fn suite<S: SharedStore>(open: impl AsyncFn(Settings, Clock) -> [S; 2]) {
    let pair = async || {
        let clock = TestClock::new();
        let [one, other] = open(Settings::default(), clock.clock()).await;
        Pair { one, other, clock }
    };
    what_one_stores_the_other_reads(pair().await).await;
    what_one_has_stored_is_not_written_again_by_the_other(pair().await).await;
    of_two_offers_one_wins(pair().await).await;
    of_many_claims_one_leads(pair().await).await;
    a_lease_that_is_not_renewed_ends(pair().await).await;
    what_could_not_be_made_is_not_tried_again_at_once(pair().await).await;
    a_conversation_is_looked_up_apart_from_others(pair().await).await;
    claims_that_have_ended_hide_no_summary(pair().await).await;
    what_was_swept_is_stored_again(pair().await).await;
    notes_reach_the_other_until_they_expire(pair().await).await;
    a_clock_that_was_set_back_stops_no_sweep(pair().await).await;
}

fn claimant(token: i64) -> Claimant {
    Claimant { token, lease: Duration::from_secs(15) }
}

fn seen(n: u8, state: SeenState) -> Seen {
    Seen { beginning: place(n).beginning, state }
}

async fn what_one_stores_the_other_reads<S: SharedStore>(Pair { one, other, .. }: Pair<S>) {
    let (first, second) = (dense(1, 2_000), dense(2, 90_000));
    one.put_all(vec![(key(&first), first.clone()), (key(&second), second.clone())]).await.unwrap();
    for payload in [&first, &second] {
        assert_eq!(other.get(key(payload)).await.unwrap().as_ref(), Some(payload));
        other.put_all(vec![(key(payload), payload.clone())]).await.unwrap();
    }
    assert_eq!(one.stats().await.unwrap().payloads, 2);
    one.put_inspected("req_1".to_owned(), first.clone(), 9).await.unwrap();
    assert_eq!(other.inspected("req_1".to_owned()).await.unwrap(), Some(first));
}

async fn what_one_has_stored_is_not_written_again_by_the_other<S: SharedStore>(Pair { one, other, clock }: Pair<S>) {
    let (stored, new) = (dense(1, 2_000), dense(2, 90_000));
    one.put_all(vec![(key(&stored), stored.clone())]).await.unwrap();
    let put_again = async |lifetime| {
        let payloads = [&stored, &new].map(|payload| (key(payload), payload.clone().into()));
        other.put_again(payloads.into(), lifetime).await.unwrap();
        one.stats().await.unwrap().payloads
    };
    let before = other.stats().await.unwrap().written;
    assert_eq!(put_again(Lifetime::Usual).await, 2);
    assert_eq!(other.stats().await.unwrap().written - before, 1, "the one that was missing");
    assert_eq!(one.get(key(&new)).await.unwrap(), Some(new.clone()));
    // Who asks for a longer lifetime gets it.
    assert_eq!(put_again(Lifetime::Chained).await, 2);
    clock.forward(7 * DAY + 1);
    assert_eq!(one.sweep().await.unwrap().aged, 0);
}

async fn of_two_offers_one_wins<S: SharedStore>(Pair { one, other, .. }: Pair<S>) {
    for n in 0..20 {
        let (mine, theirs) = (dense(n, 3_000), dense(n + 100, 3_000));
        let offers =
            tokio::try_join!(one.offer_summary(place(n), mine.clone()), other.offer_summary(place(n), theirs.clone()));
        let winner = match offers.unwrap() {
            (None, Some(winner)) if winner == mine => mine,
            (Some(winner), None) if winner == theirs => theirs,
            wrong => unreachable!("{n}: {wrong:?}"),
        };
        for store in [&one, &other] {
            assert_eq!(store.summary(place(n).beginning).await.unwrap().as_ref(), Some(&winner), "{n}");
        }
    }
}

async fn of_many_claims_one_leads<S: SharedStore>(Pair { one, other, .. }: Pair<S>) {
    assert_eq!(one.look(place(1).root).await.unwrap(), []);
    for n in 0..10 {
        let claims = tokio::try_join!(one.claim(place(n), claimant(1)), other.claim(place(n), claimant(2)));
        let (leader, other_token) = match claims.unwrap() {
            (None, Some(SeenState::UnderWay(_))) => (1, 2),
            (Some(SeenState::UnderWay(_)), None) => (2, 1),
            wrong => unreachable!("{n}: {wrong:?}"),
        };
        assert_eq!(one.claim(place(n), claimant(leader)).await.unwrap(), None, "a renewal");
        one.release(place(n), claimant(other_token), None).await.unwrap();
        assert_eq!(
            other.claim(place(n), claimant(other_token)).await.unwrap(),
            Some(SeenState::UnderWay(claimant(1).lease))
        );
        let underway = other.look(place(n).root).await.unwrap();
        let of_n = underway.iter().find(|seen| seen.beginning == place(n).beginning).unwrap();
        assert!(matches!(of_n.state, SeenState::UnderWay(left) if left == claimant(1).lease), "{of_n:?}");
        assert_eq!(one.offer_summary(place(n), dense(n, 100)).await.unwrap(), None);
        assert_eq!(other.claim(place(n), claimant(other_token)).await.unwrap(), Some(SeenState::Stored));
        assert!(other.look(place(n).root).await.unwrap().contains(&seen(n, SeenState::Stored)));
    }
}

async fn a_lease_that_is_not_renewed_ends<S: SharedStore>(Pair { one, other, clock }: Pair<S>) {
    assert_eq!(one.claim(place(1), claimant(1)).await.unwrap(), None);
    clock.forward(14);
    assert_eq!(other.claim(place(1), claimant(2)).await.unwrap(), Some(SeenState::UnderWay(Duration::from_secs(1))));
    clock.forward(1);
    assert_eq!(other.look(place(1).root).await.unwrap(), []);
    assert_eq!(other.claim(place(1), claimant(2)).await.unwrap(), None);
    assert_eq!(
        one.claim(place(1), claimant(1)).await.unwrap(),
        Some(SeenState::UnderWay(claimant(1).lease)),
        "it came too late"
    );
    // Its summary is offered all the same, and used.
    assert_eq!(one.offer_summary(place(1), dense(1, 100)).await.unwrap(), None);
    assert_eq!(other.offer_summary(place(1), dense(2, 100)).await.unwrap(), Some(dense(1, 100)));
    // Given back, it is free at once.
    assert_eq!(one.claim(place(2), claimant(1)).await.unwrap(), None);
    one.release(place(2), claimant(1), None).await.unwrap();
    assert_eq!(other.claim(place(2), claimant(2)).await.unwrap(), None);
}

async fn what_could_not_be_made_is_not_tried_again_at_once<S: SharedStore>(Pair { one, other, clock }: Pair<S>) {
    let pause = Duration::from_mins(1);
    assert_eq!(one.claim(place(1), claimant(1)).await.unwrap(), None);
    one.release(place(1), claimant(1), Some(pause)).await.unwrap();
    assert_eq!(other.claim(place(1), claimant(2)).await.unwrap(), Some(SeenState::NotNow(pause)));
    assert_eq!(other.look(place(1).root).await.unwrap(), [seen(1, SeenState::NotNow(pause))]);
    clock.forward(60);
    assert_eq!(other.look(place(1).root).await.unwrap(), []);
    assert_eq!(other.claim(place(1), claimant(2)).await.unwrap(), None);
}

async fn a_conversation_is_looked_up_apart_from_others<S: SharedStore>(Pair { one, other, clock }: Pair<S>) {
    for n in 0..3 {
        one.offer_summary(place(n), dense(n, 100)).await.unwrap();
        clock.forward(DAY);
    }
    let last_first = [2, 1, 0].map(|n| seen(n, SeenState::Stored));
    assert_eq!(other.look(place(0).root).await.unwrap(), last_first);
    assert_eq!(other.look(ChainKey::from_bytes([9; 16])).await.unwrap(), []);
    clock.forward(4 * DAY + 1);
    assert_eq!(other.sweep().await.unwrap().summaries, 1);
    assert_eq!(one.look(place(0).root).await.unwrap(), last_first[..2]);
}

async fn claims_that_have_ended_hide_no_summary<S: SharedStore>(Pair { one, other, clock }: Pair<S>) {
    one.offer_summary(place(0), dense(0, 100)).await.unwrap();
    clock.forward(1);
    for n in 1..=u8::try_from(MAX_SEEN).unwrap() {
        assert_eq!(one.claim(place(n), claimant(1)).await.unwrap(), None);
    }
    clock.forward(15);
    assert_eq!(other.look(place(0).root).await.unwrap(), [seen(0, SeenState::Stored)]);
}

async fn what_was_swept_is_stored_again<S: SharedStore>(Pair { one, other, clock }: Pair<S>) {
    let payload = dense(1, 2_000);
    let put = async |store: &S| store.put_all(vec![(key(&payload), payload.clone())]).await.unwrap();
    put(&one).await;
    put(&other).await;
    // In use by one of them, it stays.
    for _ in 0..16 {
        clock.forward(DAY / 2);
        put(&one).await;
        assert_eq!(other.sweep().await.unwrap().aged, 0);
    }
    clock.forward(7 * DAY + 1);
    assert_eq!(other.sweep().await.unwrap().aged, 1);
    assert!(one.was_swept(key(&payload)).await.unwrap());
    // The one that knew it asks again.
    put(&one).await;
    assert_eq!(other.get(key(&payload)).await.unwrap().as_ref(), Some(&payload));
    assert!(!other.was_swept(key(&payload)).await.unwrap());
}

async fn notes_reach_the_other_until_they_expire<S: SharedStore>(Pair { one, other, clock }: Pair<S>) {
    let note = |kind, n: u8, value: &'static str| Note {
        kind,
        key: ChainKey::from_bytes([n; 16]),
        value: Bytes::from_static(value.as_bytes()),
    };
    assert_eq!(other.notes(NoteGroup::Fleet).await.unwrap(), []);
    one.note(note(NoteKind::Window, 1, "before"), Duration::from_secs(DAY)).await.unwrap();
    clock.forward(1);
    one.note(note(NoteKind::Window, 1, "after"), Duration::from_secs(DAY)).await.unwrap();
    clock.forward(1);
    one.note(note(NoteKind::Unedited, 1, ""), Duration::from_hours(1)).await.unwrap();
    let both = [note(NoteKind::Unedited, 1, ""), note(NoteKind::Window, 1, "after")];
    assert_eq!(other.notes(NoteGroup::Fleet).await.unwrap(), both);
    clock.forward(3_600);
    assert_eq!(other.notes(NoteGroup::Fleet).await.unwrap(), both[1..]);
    clock.forward(DAY);
    assert_eq!(other.notes(NoteGroup::Fleet).await.unwrap(), []);
}

async fn a_clock_that_was_set_back_stops_no_sweep<S: SharedStore>(Pair { one, other, clock }: Pair<S>) {
    one.maintain().await.unwrap();
    clock.back(365 * DAY);
    let payload = dense(1, 2_000);
    one.put_all(vec![(key(&payload), payload.clone())]).await.unwrap();
    clock.forward(8 * DAY);
    for _ in 0..3 {
        other.maintain().await.unwrap();
        clock.forward(700);
    }
    assert!(other.was_swept(key(&payload)).await.unwrap());
}
