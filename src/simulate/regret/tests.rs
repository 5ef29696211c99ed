//! Small sessions with known faults, in all dialects.
//!
//! A session has a question and rounds: the model reads a file, the tool answers, and at last the model edits. Under the
//! policy of these tests a pass is made at once and keeps nothing that the model has read, so that the answer to a request
//! sees one result: the newest.

use std::slice;

use bytes::Bytes;

use super::*;
use crate::payload::Keys;
use crate::planner::{PlanSettings, Planner};
use crate::simulate::{Conditions, Prices};
use crate::tokens::Counter;

/// The formats that a session is written in.
const FORMATS: [&str; 3] = ["chat", "responses", "messages"];

/// What someone does in a session.
#[derive(Clone, Copy)]
enum Step<'a> {
    User(&'a str),
    Say(&'a str),
    /// The model calls a tool with these arguments, a JSON object.
    Call(&'a str, &'a str),
    Result(&'a str),
}

use Step::{Call, Result as Answer, Say, User};

const LINE: &str = "let total = items.sum_of_all();";
const OTHER: &str = "fn other(one: usize) -> usize";
const THIRD: &str = "the third file says nothing here";

fn write(format: &str, steps: &[Step<'_>]) -> String {
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let mut n = 0;
    let elements = steps.iter().map(|step| match (format, step) {
        ("messages", Say(text)) => {
            format!(r#"{{"role":"assistant","content":[{{"type":"text","text":{}}}]}}"#, quoted(text))
        }
        (_, User(text)) => format!(r#"{{"role":"user","content":{}}}"#, quoted(text)),
        (_, Say(text)) => format!(r#"{{"role":"assistant","content":{}}}"#, quoted(text)),
        (_, Call(name, arguments)) => {
            n += 1;
            let id = format!("c{n}");
            let exchange = Exchange { id: &id, name, arguments, result: "" };
            let [call, _] = dialect_of(format).render_exchange(&exchange);
            String::from_utf8(call.to_vec()).unwrap()
        }
        (_, Answer(text)) => {
            let id = format!("c{n}");
            let exchange = Exchange { id: &id, name: "", arguments: "{}", result: text };
            let [_, result] = dialect_of(format).render_exchange(&exchange);
            String::from_utf8(result.to_vec()).unwrap()
        }
    });
    let elements = elements.collect::<Vec<_>>().join(",\n");
    match format {
        "chat" => format!(r#"{{"model":"m","messages":[{elements}]}}"#),
        "responses" => format!(r#"{{"model":"m","input":[{elements}]}}"#),
        _ => format!(r#"{{"model":"m","system":"Obey.","messages":[{elements}]}}"#),
    }
}

fn dialect_of(format: &str) -> &'static dyn Dialect {
    let path = match format {
        "chat" => "/v1/chat/completions",
        "responses" => "/v1/responses",
        _ => "/v1/messages",
    };
    dialect::for_path(path).unwrap()
}

fn planner(settings: &str) -> Planner {
    let mut parts: PlanSettings = toml::from_str(settings).unwrap();
    parts.tokens.counter = Counter::Estimate;
    Planner::new(parts)
}

/// All results that the model has read are cleared at once.
const KEEP_NONE: &str = r#"
clear_tool_results = { when = 'any', trigger = { tokens = 1 }, keep = { results = 0 }, keep_reads = 0, clear_at_least = 0, placeholder = "gone" }
"#;

/// The measure under a planner of a session without usage.
fn under<'a>(planner: &'a Planner, conditions: &'a Conditions<'a>) -> Measure<'a> {
    Measure { planner, conditions, placebo: None, judged: None, keep_alive: None, whole: None, counted: &[] }
}

fn regret_under(settings: &str, body: String) -> Regret {
    let transcript = Transcript::new(body.into(), None).unwrap();
    let planner = planner(settings);
    measure(&transcript, under(&planner, &Conditions::default())).unwrap().regret
}

/// The regret under [`KEEP_NONE`] of a session in which three files are read and then something is done.
fn regret(format: &str, files: [&str; 3], last: Step<'_>) -> Regret {
    let files = files.map(|file| format!("{file}\n{}", "filler ".repeat(40)));
    let [one, two, three] = &files;
    let read = |path| Call("read", path);
    let steps = [
        User("Do it."),
        read(r#"{"path":"a"}"#),
        Answer(one),
        read(r#"{"path":"b"}"#),
        Answer(two),
        read(r#"{"path":"c"}"#),
        Answer(three),
        last,
        if matches!(last, Call(..)) { Answer("ok") } else { User("Thanks.") },
        Say("Done."),
    ];
    regret_under(KEEP_NONE, write(format, &steps))
}

fn places(regret: &Regret) -> Vec<(usize, usize, &str)> {
    regret.list.iter().map(|fault| (fault.request, fault.from.message, fault.missed[0].text.as_str())).collect()
}

#[test]
fn a_line_of_a_cleared_result_is_a_fault_in_every_dialect() {
    for format in FORMATS {
        let regret = regret(format, [LINE, OTHER, THIRD], Say(LINE));
        assert_eq!(places(&regret), [(4, 2, LINE)], "{format}");
        let fault = &regret.list[0];
        assert_eq!((fault.hard, fault.n_missed, fault.missed[0].line), (false, 2, 1), "{format}");
        assert_eq!((fault.from.kind, fault.from.call_id.as_deref()), (PieceKind::Result, Some("c1")), "{format}");
        assert_eq!(fault.from.tool.as_deref(), Some("read"), "{format}");
        assert_eq!((regret.answers, regret.faults, regret.hard), (5, 1, 0), "{format}");
    }
}

#[test]
fn the_old_text_of_an_edit_makes_a_fault_hard_in_every_dialect() {
    for format in FORMATS {
        let edit = format!(r#"{{"path":"a","old_string":"  {LINE}\n","new_string":"x"}}"#);
        let hard = regret(format, [LINE, OTHER, THIRD], Call("edit", &edit));
        assert_eq!((hard.faults, hard.hard, places(&hard)), (1, 1, vec![(4, 2, LINE)]), "{format}");
        let write = format!(r#"{{"path":"a","content":"{LINE}"}}"#);
        let soft = regret(format, [LINE, OTHER, THIRD], Call("write", &write));
        assert_eq!((soft.faults, soft.hard), (1, 0), "{format}");
    }
}

#[test]
fn two_names_are_a_fault_and_one_is_none_in_every_dialect() {
    for format in FORMATS {
        let files = ["call zebra_of_mine with zebraOfYours", OTHER, THIRD];
        let two = regret(format, files, Say("zebra_of_mine, then zebraOfYours"));
        assert_eq!((two.faults, two.list[0].n_missed), (1, 2), "{format}");
        assert_eq!(two.list[0].from.message, 2, "{format}");
        assert_eq!(regret(format, files, Say("zebra_of_mine alone")).faults, 0, "{format}");
    }
}

#[test]
fn what_is_in_sight_is_no_fault_in_every_dialect() {
    for format in FORMATS {
        assert_eq!(regret(format, [LINE, OTHER, LINE], Say(LINE)).faults, 0, "{format}: a newer result");
        assert_eq!(regret(format, [OTHER, THIRD, LINE], Say(LINE)).faults, 0, "{format}: the newest result");
        assert_eq!(regret(format, [OTHER, OTHER, OTHER], Say(LINE)).faults, 0, "{format}: never read");
        let filler = "filler ".repeat(40);
        let one = format!("{LINE}\n{filler}");
        for seen in [User(LINE), Say(LINE), Call("write", r#"{"text":"let total = items.sum_of_all();"}"#)] {
            // The model, or the user, has said it, before the result with it is cleared.
            let answer = if matches!(seen, Call(..)) { Answer("ok") } else { User("Go on.") };
            let read = Call("read", "{}");
            let steps = [
                User("Do it."),
                read,
                Answer(&one),
                seen,
                answer,
                read,
                Answer(&filler),
                read,
                Answer(&filler),
                Say(LINE),
            ];
            let regret = regret_under(KEEP_NONE, write(format, &steps));
            let last = regret.list.iter().filter(|fault| fault.request > 3).count();
            assert_eq!(last, 0, "{format}");
        }
    }
}

#[test]
fn the_background_and_the_tools_are_never_missed() {
    let files = ["package.json and README.md and __init__.py", OTHER, THIRD];
    assert_eq!(regret("chat", files, Say("package.json, README.md, __init__.py")).faults, 0);
    let files = ["zebra_of_mine zebraOfYours", OTHER, THIRD];
    let steps = |tools: &str| {
        let filler = "filler ".repeat(40);
        let first = format!("{}\n{filler}", files[0]);
        let read = Call("read", "{}");
        let steps = [User("Go."), read, Answer(&first), read, Answer(&filler), read, Answer(&filler), Say(files[0])];
        let body = write("chat", &steps);
        body.replacen(r#""model":"m""#, &format!(r#""model":"m","tools":[{tools}]"#), 1)
    };
    assert_eq!(regret_under(KEEP_NONE, steps("")).faults, 1);
    let tool =
        r#"{"type":"function","function":{"name":"t","description":"zebra_of_mine zebraOfYours zebra_of_mine"}}"#;
    let with_line = regret_under(KEEP_NONE, steps(tool));
    // The line of both names is longer than 20 characters, and is in no tool.
    assert_eq!((with_line.faults, with_line.list[0].n_missed), (1, 1));
}

#[test]
fn the_newest_source_takes_all_that_it_has() {
    let both = format!("{LINE}\n{OTHER}");
    let words = format!("{LINE}\n{OTHER}");
    // The second result has both lines, so that the first, which has one of them, is not a fault.
    let covered = regret("chat", [LINE, &both, THIRD], Say(&words));
    assert_eq!(covered.list.iter().map(|fault| (fault.from.message, fault.n_missed)).collect::<Vec<_>>(), [(4, 3)]);
    // Each has its own.
    let each = regret("chat", [LINE, OTHER, THIRD], Say(&words));
    assert_eq!(each.list.iter().map(|fault| fault.from.message).collect::<Vec<_>>(), [4, 2]);
}

#[test]
fn a_recall_is_one_more_request_and_its_result_is_cleared_again() {
    let filler = "filler ".repeat(40);
    let one = format!("{LINE}\n{filler}");
    let read = Call("read", "{}");
    let steps = [
        User("Do it."),
        read,
        Answer(&one),
        read,
        Answer(&filler),
        read, // the answer to the third request: the first result is out of sight from the next one on
        Answer(&filler),
        Say(LINE),
        User("Again."),
        Say(LINE),
        User("And again."),
        read,
        Answer(&filler),
        read,
        Answer(&filler),
        Call("edit", r#"{"old_string":"let total = items.sum_of_all();"}"#),
    ];
    let body = write("chat", &steps);
    let regret = regret_under(KEEP_NONE, body.clone());
    // After the recall, the model has said the line itself, so that nothing is missed any more.
    assert_eq!(places(&regret), [(4, 2, LINE)]);

    let transcript = Transcript::new(body.into(), None).unwrap();
    let planner = planner(KEEP_NONE);
    let mut recalls = Recalls::default();
    let keys = Keys::well_known();
    let handle = keys.payload(keys.anonymous(), regret.list[0].recalled.as_bytes());
    recalls.add(dialect_of("chat"), 7, &regret.list[0], handle, &mut Watch::default());
    let conditions = Conditions::default();
    let mut player = Player::new(Some("m"), under(&planner, &conditions));
    for (n, &length) in transcript.request_lengths.iter().enumerate() {
        let inserted = if n > 3 { recalls.inserted.as_slice() } else { &[] };
        player.edit_and_send(&transcript.request(length, inserted)).unwrap();
        if n == 3 {
            let recalled = player.edit_and_send(&transcript.request(length, &recalls.inserted)).unwrap();
            let text = String::from_utf8(recalled.body().to_vec()).unwrap();
            assert_eq!(text.matches("sum_of_all").count(), 1, "the recalled text is the newest result");
            assert_eq!(text.matches("gone").count(), 3, "{text}");
        }
    }
    let last = player.edit_and_send(&transcript.request(transcript.n_messages(), &recalls.inserted)).unwrap();
    let text = String::from_utf8(last.body().to_vec()).unwrap();
    assert_eq!(text.matches("recall_0").count(), 2);
    assert_eq!(text.matches("gone").count(), 6, "the recalled text was cleared again: {text}");
}

#[test]
fn recalls_cost_what_the_requests_with_them_cost() {
    // Tokens are a quarter of the bytes, rounded up; a block of the cache has 128.
    let filler = "f".repeat(4000);
    let one = format!("{LINE}\n{filler}");
    let read = Call("read", "{}");
    let steps = [User("Do it."), read, Answer(&one), read, Answer(&filler), Say(LINE)];
    let body = write("chat", &steps);
    let planner = planner(KEEP_NONE);
    let transcript = Transcript::new(body.into(), None).unwrap();
    let conditions = Conditions::default();
    let Outcome { tokens: plain, regret, .. } = measure(&transcript, under(&planner, &conditions)).unwrap();
    assert_eq!(places(&regret), [(3, 2, LINE)]);
    // As they are: the question, 3 + 1 + 2 = 6; a call, 3 + 3 + 3 + 1 + 1 = 11; the results, 1012 and 1004; a cleared one,
    // 3 + 1 + 1 = 5; 3 for each request.
    assert_eq!(plain[..3], [9, 9 + 11 + 1012, 9 + 11 + 5 + 11 + 1004]);
    // With the recall: that of the third request again, whose last result is cleared now, then the recall, whose call has
    // 3 + 3 + 3 + 1 + 22 = 32, and its result of 1012. The last request has the answer, too: 3 + 3 + 8.
    let recall = [9 + 11 + 5 + 11 + 5 + 32 + 1012, 9 + 11 + 5 + 11 + 5 + 32 + 1012 + 3 + 3 + 8];
    let tokens = [plain[0], plain[1], plain[2], recall[0], recall[1]];
    // The part that each shares with the one before, in blocks: nothing before a cleared result, and at last all.
    let shared = [0, 0, 0, 0, 1024];
    let tenths: usize = tokens.iter().zip(shared).map(|(tokens, shared)| 10 * (tokens - shared) + shared).sum();
    assert_eq!(regret.cost_with_recalls, ((tenths + 5) / 10 + 300) as u64);
}

#[test]
fn a_placebo_counts_what_the_results_of_another_session_have_by_chance() {
    let filler = "filler ".repeat(40);
    let session = |first: &str, said: &str| {
        let first = format!("{first}\n{filler}");
        let read = Call("read", "{}");
        let steps = [User("Go."), read, Answer(&first), read, Answer(&filler), read, Answer(&filler), Say(said)];
        Transcript::new(Bytes::from(write("chat", &steps)), None).unwrap()
    };
    let planner = planner(KEEP_NONE);
    let noise = |own: &Transcript, other: &Transcript| {
        let placebo = Placebo::of(slice::from_ref(other)).unwrap();
        let conditions = Conditions::default();
        let measured = Measure { placebo: Some(&placebo), ..under(&planner, &conditions) };
        let regret = measure(own, measured).unwrap().regret;
        (regret.faults, regret.placebo)
    };
    let own = session(LINE, LINE);
    assert_eq!(noise(&own, &session(OTHER, OTHER)), (1, Some(0)));
    assert_eq!(noise(&own, &session(LINE, OTHER)), (1, Some(1)));
    assert_eq!(noise(&session(OTHER, LINE), &session(LINE, OTHER)), (0, Some(1)));
}

#[test]
fn prices_and_recalls_are_in_the_percentage() {
    let regret =
        Regret { answers: 200, faults: 3, hard: 1, cost_unedited: 400, cost_with_recalls: 300, ..Regret::default() };
    assert_eq!(
        (regret.per_100(regret.faults), regret.per_100(regret.hard), regret.percent_with_recalls()),
        (1.5, 0.5, 75.0)
    );
    let nothing = Regret::default();
    assert_eq!((nothing.per_100(0), nothing.percent_with_recalls()), (0.0, 100.0));
    assert_eq!(Prices::default(), Conditions::default().prices);
}
