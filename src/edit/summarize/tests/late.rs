//! A result that comes when a summary replaces its call already.

use super::*;

const ROUNDS: &str = "[summarize]\ntrigger = { messages = 6 }\nkeep = { rounds = 0 }\n";

/// A memory with the summary that `words` asks for.
fn summary_of(words: &str, covers: Range<usize>) -> Map {
    let memory = Map::default();
    let (plan, _) = plan_in(&memory, words, ROUNDS);
    assert_eq!(made(&plan).covers, covers);
    memory.make(made(&plan), "First.");
    memory
}

fn summarised(plan: &Plan) -> Vec<(usize, usize)> {
    let summaries = plan.report.changes.iter().filter_map(|change| match change.action {
        Action::Summarize { from, to } => Some((from, to)),
        _ => None,
    });
    summaries.collect()
}

fn check(memory: &Map, words: &str, expected: &str, gone: &[(usize, usize)]) -> Plan {
    let (plan, output) = plan_in(memory, words, ROUNDS);
    assert_eq!(super::words(&output), expected, "{words}\n{plan}");
    assert_eq!(summarised(&plan), gone, "{plan}");
    assert_eq!(plan.report.messages_after, messages(&output).len());
    plan
}

const WORDS: &str = "s u c:1 u c:2 t:2*400 c:3 t:3*400 a u";

#[test]
fn a_late_result_reopens_its_round_beside_the_summary() {
    let memory = summary_of(WORDS, 1..8);
    check(&memory, WORDS, "s u a u", &[(1, 8)]);
    let reopened = "s u c:1 t:1 a u";
    let plan = check(&memory, &format!("{WORDS} t:1"), reopened, &[(1, 2), (3, 8)]);
    assert!(plan.report.changes.iter().any(|change| change.action == Action::Move { message: 10, behind: 2 }));
    // Later requests begin with the same.
    check(&memory, &format!("{WORDS} t:1 c:4 t:4"), &format!("{reopened} c:4 t:4"), &[(1, 2), (3, 8)]);
}

#[test]
fn a_round_is_reopened_with_the_results_that_came_in_time() {
    let words = "s u c:1,2 t:1*400 u c:3 t:3*400 c:4 t:4*400 a u";
    let memory = summary_of(words, 1..9);
    check(&memory, &format!("{words} t:2"), "s u c:1,2 t:1*400 t:2 a u", &[(1, 2), (4, 9)]);
}

#[test]
fn several_rounds_are_reopened_in_their_order() {
    let words = "s u c:1 u c:2 u c:3 t:3*400 a u";
    let memory = summary_of(words, 1..8);
    check(&memory, &format!("{words} t:2 t:1"), "s u c:1 t:1 c:2 t:2 a u", &[(1, 2), (3, 4), (5, 8)]);
    check(&memory, &format!("{words} t:2 a t:1"), "s u c:1 t:1 c:2 t:2 a u a u", &[(1, 2), (3, 4), (5, 8)]);
}

#[test]
fn a_round_at_the_beginning_stays_before_the_summary() {
    let words = "c:1 u c:2 t:2*400 c:3 t:3*400 a u";
    let memory = summary_of(words, 0..6);
    check(&memory, &format!("{words} t:1"), "c:1 t:1 u a u", &[(1, 6)]);
}

#[test]
fn ids_that_repeat_pair_as_they_do_without_a_summary() {
    // The late result belongs to the nearest call of its id that has none, which is the first one here.
    let words = "s u c:1 u c:1 t:1*400 c:1 t:1*400 a u";
    let memory = summary_of(words, 1..8);
    check(&memory, &format!("{words} t:1"), "s u c:1 t:1 a u", &[(1, 2), (3, 8)]);
}

#[test]
fn the_next_summary_takes_the_reopened_round_with_it() {
    let memory = summary_of(WORDS, 1..8);
    let longer = format!("{WORDS} t:1 c:4 t:4*400 a u");
    let (plan, output) = plan_in(&memory, &longer, ROUNDS);
    assert_eq!(words(&output), "s u c:1 t:1 a u c:4 t:4*400 a u");
    let job = made(&plan);
    assert_eq!(job.covers, 1..13, "all that came before the answer");
    let pieces: Vec<_> = job.source.messages.iter().map(|piece| String::from_utf8_lossy(&piece.json)).collect();
    assert!(pieces[1].contains("First.") && pieces[3].contains("\"tool_call_id\":\"1\""), "{pieces:?}");
    memory.make(job, "Second.");
    check(&memory, &longer, "s u a u", &[(1, 13)]);
}

#[test]
fn no_next_summary_parts_the_reopened_rounds() {
    let words = "s u c:1 u c:2 u c:3 t:3*400 a u";
    let memory = summary_of(words, 1..8);
    let filter = "[filter_tool_calls]\nmax_tool_calls = 0\n";
    let (plan, _) = plan_in(&memory, &format!("{words} t:1 t:2 u u u a u"), &format!("{ROUNDS}{filter}"));
    assert!(made(&plan).covers.end > 12, "{:?}", made(&plan).covers);
}

#[test]
fn tokens_of_a_reopened_round_are_not_counted_twice() {
    let memory = summary_of(WORDS, 1..8);
    let counting =
        format!("{ROUNDS}[clear_tool_results]\nwhen = 'any'\ntrigger = {{ tokens = 1 }}\nkeep = {{ results = 9 }}\n");
    let (plan, _) = plan_in(&memory, &format!("{WORDS} t:1"), &counting);
    let (without, _) = plan_in(&Map::default(), &format!("{WORDS} t:1"), &counting);
    assert_eq!(plan.report.tokens_before, without.report.tokens_before, "{plan}\n{without}");
}
