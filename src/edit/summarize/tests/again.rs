//! Where a summary stands already, or is on its way.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const ROUNDS: &str = "[summarize]\ntrigger = { messages = 6 }\nkeep = { rounds = 0 }\n";

/// A memory with a summary of the messages 1 to 3 of `FIRST`.
fn first() -> Map {
    let memory = Map::default();
    let (plan, _) = plan_in(&memory, FIRST, ROUNDS);
    assert_eq!(made(&plan).covers, 1..4);
    memory.make(made(&plan), "First.");
    memory
}

const FIRST: &str = "s u c:1 t:1*400 a u";

#[test]
fn the_next_one_that_is_under_way_is_waited_for() {
    let memory = first();
    let longer = format!("{FIRST} c:2 t:2*400 a u c:3 t:3");
    let next = made(&plan_in(&memory, &longer, ROUNDS).0).clone();
    assert_eq!(next.covers, 1..8);
    memory.put(next.key, SummaryState::InProgress);
    let (plan, _) = plan_in(&memory, &format!("{longer} a u c:4 t:4*400 a u"), ROUNDS);
    assert_eq!((made(&plan).key, made(&plan).covers.clone()), (next.key, next.covers));
    assert_eq!(made(&plan).source.messages, next.source.messages);
    memory.put(next.key, SummaryState::CoolingDown);
    assert!(plan_in(&memory, &format!("{longer} a u c:4 t:4*400 a u"), ROUNDS).0.needs.is_none());
}

#[test]
fn one_that_is_under_way_for_what_is_not_read_yet_is_no_use() {
    let words = "s u c:1 t:1*400 a u u";
    let job = made(&plan_in(&Map::default(), "s u c:1 t:1*400 a u a u", ROUNDS).0).clone();
    assert_eq!(job.covers, 1..6);
    let memory = Map::default();
    let past = made(&plan_in(&memory, "s u c:1 t:1*400 a u u a u", ROUNDS).0).clone();
    assert_eq!(past.covers, 1..7);
    memory.put(past.key, SummaryState::InProgress);
    assert_eq!(made(&plan_in(&memory, &format!("{words} u"), ROUNDS).0).covers, 1..4);
}

#[test]
fn nothing_new_makes_no_new_one_even_if_somebody_asks() {
    let memory = first();
    let now = World { summaries: &memory, when: SummaryTiming::Now, ..World::default() };
    let (plan, _) = now.plan(&body(FIRST), &format!("{HTTP}{ROUNDS}"));
    assert!(plan.needs.is_none(), "{plan}");
    assert_eq!(whys(&plan), [SkipReason::TooLittle]);
}

#[test]
fn one_that_is_under_way_for_what_has_been_left_out_is_no_use() {
    let filter = "[filter_tool_calls]\nmax_tool_calls = 0\n";
    let memory = Map::default();
    let gone = made(&plan_in(&memory, "s c:1 t:1*400 a u", &ROUNDS.replace('6', "5")).0).clone();
    memory.put(gone.key, SummaryState::InProgress);
    let words = "s c:1 t:1*400 u a u a u a u";
    let (plan, output) = plan_in(&memory, words, &format!("{ROUNDS}{filter}"));
    assert_eq!(super::words(&output), "s u a u a u a u");
    assert!(made(&plan).covers.end > gone.covers.end, "{:?}", made(&plan).covers);
}

#[test]
fn the_longest_one_that_is_stored_is_loaded() {
    let memory = Map::default();
    let keys = ["s u c:1 t:1*400 a u", "s u c:1 t:1*400 a u a u"].map(|words| {
        let (plan, _) = plan_in(&Map::default(), words, ROUNDS);
        memory.put(made(&plan).key, SummaryState::Stored);
        made(&plan).key
    });
    let (plan, _) = plan_in(&memory, "s u c:1 t:1*400 a u a u a u", ROUNDS);
    assert_eq!(plan.needs, Some(Need::Load(keys[1])));
}

#[test]
fn the_words_behind_it_say_how_to_read_the_transcript() {
    let (plan, _) = plan_in(&Map::default(), FIRST, ROUNDS);
    let job = made(&plan);
    let way = format!("GET http://h/abridge/recall/{}", job.transcript.as_ref().unwrap().key);
    assert!(job.frame.behind.contains(&way), "{}", job.frame.behind);
}

#[test]
fn without_instructions_the_first_message_is_part_of_it() {
    let (plan, _) = plan_in(&Map::default(), "u c:1 t:1*400 c:2 t:2 a u", ROUNDS);
    let job = made(&plan);
    assert_eq!((job.source.n_leading, job.covers.clone()), (0, 0..5));
    assert_eq!(job.tokens, job.source.messages.iter().map(|piece| piece.tokens).sum::<usize>());
}

#[test]
fn results_that_were_put_in_count_as_messages() {
    assert_eq!(whys(&plan_in(&Map::default(), "s u c:1,2 u", SIX).0).len(), 1);
    assert!(whys(&plan_in(&Map::default(), "s u c:1 u", SIX).0).is_empty());
}

#[test]
fn the_user_s_words_get_a_third_of_the_trigger() {
    let kept = |trigger: &str, n: usize| {
        let said = json!({"role": "user", "content": "x".repeat(1000)});
        let round = [said, json!({"role": "assistant", "content": "ok"})];
        let request = body_of(&[vec![round; n].concat(), vec![json!({"role": "user", "content": "go"})]].concat());
        let policy = format!("{HTTP}[summarize]\ntrigger = {trigger}\nkeep = {{ rounds = 0 }}");
        let (plan, _) = World::default().plan(&request, &policy);
        made(&plan).frame.user_messages.as_ref().unwrap().matches("<message>").count()
    };
    // Four bytes are a token.
    let by_tokens = kept("{ tokens = 3000 }", 20);
    assert!((3..=4).contains(&by_tokens), "{by_tokens}");
    let usual = kept("{ messages = 2 }", 300);
    assert!((USUAL_TRIGGER / 3 / 300..=USUAL_TRIGGER / 3 / 250).contains(&usual), "{usual}");
}

/// What another request has summarised since the plan was begun.
#[derive(Debug)]
struct MadeMeanwhile(Map, AtomicBool);

impl SummaryIndex for MadeMeanwhile {
    fn state(&self, beginning: ChainKey) -> SummaryState {
        self.0.state(beginning)
    }

    fn is_empty(&self) -> bool {
        !self.1.swap(true, Ordering::Relaxed)
    }
}

#[test]
fn one_that_is_made_while_this_is_planned_is_asked_for_and_used_by_the_next_plan() {
    let memory = MadeMeanwhile(first(), AtomicBool::new(false));
    let world = World { summaries: &memory, ..World::default() };
    let [asks, uses] = [(); 2].map(|()| world.plan(&body(FIRST), &format!("{HTTP}{ROUNDS}")).0);
    assert_eq!(made(&asks).covers, 1..4);
    assert!(uses.needs.is_none() && !uses.is_empty());
}
