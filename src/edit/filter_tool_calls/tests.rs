//! Which calls leave, and what stays of the messages that made them.

use super::super::tests::{body, check, check_late, check_untouched, plan, words};

fn policy(keys: &str) -> String {
    format!("[filter_tool_calls]\n{keys}\n[policy]\nedits = [\"patch_tool_calls\", \"filter_tool_calls\"]")
}

#[test]
fn is_off_unless_a_number_is_set() {
    check_untouched("u c:1 t:1 c:2 t:2 a u", "");
    check_untouched("u c:1 t:1 c:2 t:2 a u", &policy(""));
}

#[test]
fn keeps_the_newest_results_of_the_history() {
    check("u c:1 t:1 c:2 t:2 c:3 t:3 a u", &policy("max_tool_calls = 2"), "u c:2 t:2 c:3 t:3 a u");
    check("u c:1 t:1 c:2 t:2 a u", &policy("max_tool_calls = 0"), "u a u");
    check_untouched("u c:1 t:1 c:2 t:2 a u", &policy("max_tool_calls = 2"));
}

#[test]
fn the_current_run_is_exempt() {
    check("u c:1 t:1 a u c:2 t:2 c:3 t:3", &policy("max_tool_calls = 0"), "u a u c:2 t:2 c:3 t:3");
    check_untouched("s u c:1 t:1 c:2 t:2 a", &policy("max_tool_calls = 0"));
}

#[test]
fn a_batch_keeps_the_calls_whose_results_are_kept() {
    check("u c:1,2,3 t:1 t:2 t:3 a u", &policy("max_tool_calls = 1"), "u c:3 t:3 a u");
    check("u c:1,2,3 t:3 t:2 t:1 a u", &policy("max_tool_calls = 1"), "u c:3 t:3 a u"); // in the order of the calls
}

#[test]
fn text_stays_without_its_calls() {
    let plan = check("u C:1,2 t:1 t:2 a u", &policy("max_tool_calls = 0"), "u a u a u");
    assert_eq!(plan.report.counts(), [("filter", 5)]);
    assert_eq!((plan.report.messages_before, plan.report.messages_after), (6, 5));
}

#[test]
fn no_two_messages_of_the_model_follow_each_other_where_calls_were_removed() {
    let (none, one) = (policy("max_tool_calls = 0"), policy("max_tool_calls = 1"));
    check("u C:1 t:1 C:2 t:2 c:3 t:3 C:4 t:4 a u", &one, "u a u a u C:4 t:4 a u");
    check("u C:1 t:1 C:2,3 t:2 t:3 a u", &one, "u a u C:3 t:3 a u");
    check("u C:1 t:1 c:2 t:2 u c:3 t:3 a u", &none, "u a u a u");
    // The result without a call between them is dropped after the filter.
    let first =
        "[filter_tool_calls]\nmax_tool_calls = 0\n[policy]\nedits = [\"filter_tool_calls\", \"patch_tool_calls\"]";
    check("u C:1 t:1 t:9 a u", first, "u a u a u");
    // The text is in the same place in later requests, and where a late result brings back the next call.
    let said = "u C:1 t:1 c:2 u C:3 t:3 a u";
    check(said, &none, "u a u a u a u");
    check(&format!("{said} a u C:4 t:4"), &none, "u a u a u a u a u C:4 t:4");
    check_late(&format!("{said} t:2"), &none, "u a u c:2 t:2 u a u a u");
}

#[test]
fn a_text_that_parts_two_messages_stays_in_its_place() {
    let policy = policy("max_tool_calls = 2");
    let all: Vec<_> =
        "u C:1 t:1 C:2 t:2 c:3 t:3 C:4,5 t:4 t:5 a u C:6 t:6 u C:7 t:7 C:8 t:8 C:9 t:9 a u a u".split(' ').collect();
    let is_request = |n: &usize| {
        !all[n - 1].starts_with(['a', 'C', 'c']) && all.get(*n).is_none_or(|next| next.starts_with(['a', 'C', 'c']))
    };
    let sent = (1..=all.len()).filter(is_request).map(|n| words(&plan(&body(&all[..n].join(" ")), &policy).1));
    let sent: Vec<String> = sent.collect();
    let breaks = sent.windows(2).filter(|sent| !sent[1].starts_with(&*sent[0])).count();
    assert_eq!(breaks, 3, "one for each pass: {sent:#?}");
    assert!(sent.iter().all(|sent| !sent.contains("a a") && !sent.contains("a C")), "{sent:#?}");
}

#[test]
fn what_was_not_read_stays() {
    check_untouched("u c:1 t:1 u", &policy("max_tool_calls = 0"));
    check("u c:1 t:1 u c:2 t:2 u a u", &policy("max_tool_calls = 0"), "u u u a u");
    check("u c:1 t:1 u c:2 t:2 u", &policy("max_tool_calls = 0"), "u u c:2 t:2 u");
    // It answers an old call, and has arrive late.
    let (_, output) = plan(&body("u c:1 u a t:1 u"), &policy("max_tool_calls = 0"));
    assert_eq!(words(&output), "u c:1 t:1 u a u");
}

#[test]
fn a_late_result_brings_nothing_back_but_its_call() {
    let rounds = |from: usize| (from..=6).map(|n| format!("c:{n} t:{n}")).collect::<Vec<_>>().join(" ");
    let before = format!("u c:b {} a u", rounds(1));
    check_late(&before, &policy("max_tool_calls = 3"), &format!("u {} a u", rounds(4)));
    let late = format!("{before} t:b*900");
    check_late(&late, &policy("max_tool_calls = 3"), &format!("u c:b t:b*900 {} a u", rounds(4)));
    // It is the newest when it has been read.
    let read = format!("{late} a u");
    check_late(&read, &policy("max_tool_calls = 3"), &format!("u c:b t:b*900 {} a u a u", rounds(5)));
    check_late(&format!("{read} c:7 t:7 a u"), &policy("max_tool_calls = 1"), "u a u a u c:7 t:7 a u");
    // Of a batch, the call returns whose result has come, and no other.
    let batch = late.replacen("c:b", "c:b,d,e t:d", 1);
    check_late(&batch, &policy("max_tool_calls = 3"), &format!("u c:b t:b*900 {} a u", rounds(4)));
    check_late(&format!("{batch} t:e a u"), &policy("max_tool_calls = 3"), "u c:b,e t:b*900 t:e c:6 t:6 a u a u");
}

#[test]
fn a_call_without_a_result_leaves_as_others_do_where_none_is_put_in() {
    let alone = |keys: &str| format!("[filter_tool_calls]\n{keys}\n[policy]\nedits = [\"filter_tool_calls\"]");
    check("u c:1 c:2 t:2 c:3 t:3 a u", &alone("max_tool_calls = 1"), "u c:3 t:3 a u");
    check("u c:1,2 t:2 c:3 t:3 a u", &alone("max_tool_calls = 1"), "u c:3 t:3 a u");
    check("u C:1,2 t:2 a u c:3 a", &alone("max_tool_calls = 0"), "u a u a u c:3 a");
    // What answers it, displaced or late, is removed with it.
    check("u c:1 u t:1 c:2 t:2 a u", &alone("max_tool_calls = 1"), "u u c:2 t:2 a u");
    let late = "u c:1 u c:2 t:2 a u t:1";
    check_late(late, &alone("max_tool_calls = 0"), "u c:1 u a u t:1");
    check_late(&format!("{late} a u"), &alone("max_tool_calls = 0"), "u u a u a u");
    // It needs no result put in then.
    let before_patch =
        "[filter_tool_calls]\nmax_tool_calls = 1\n[policy]\nedits = [\"filter_tool_calls\", \"patch_tool_calls\"]";
    check("u c:1 c:2 t:2 c:3 t:3 a u", before_patch, "u c:3 t:3 a u");
}

#[test]
fn what_patch_put_in_leaves_with_its_call() {
    let plan = check("u c:1 c:2 t:2 a u", &policy("max_tool_calls = 1"), "u c:2 t:2 a u");
    assert_eq!(plan.report.counts(), [("filter", 2)]);
    let plan = check("u c:1 u t:1 c:2 t:2 a u", &policy("max_tool_calls = 1"), "u u c:2 t:2 a u");
    assert_eq!(plan.report.counts(), [("filter", 3)]);
}

#[test]
fn bytes_around_what_leaves_stay() {
    let body = br#"{ "messages" : [ {"role":"user"} ,
  { "tool_calls" : [ {"id":"a"} , {"id":"b"} ] , "role":"assistant", "content" : "\u0041" },
  {"role":"tool","tool_call_id":"a"} , {"role":"tool","tool_call_id":"b"}, {"role":"assistant"}, {"role":"user"} ] }"#;
    let body = bytes::Bytes::from_static(body);
    let (_, one) = plan(&body, &policy("max_tool_calls = 1"));
    let expected = br#"{ "messages" : [ {"role":"user"} ,
  { "tool_calls" : [ {"id":"b"} ] , "role":"assistant", "content" : "\u0041" } , {"role":"tool","tool_call_id":"b"}, {"role":"assistant"}, {"role":"user"} ] }"#;
    assert_eq!(std::str::from_utf8(&one), std::str::from_utf8(expected));
    let (_, none) = plan(&body, &policy("max_tool_calls = 0"));
    let expected = br#"{ "messages" : [ {"role":"user"} ,
  { "role":"assistant", "content" : "\u0041" },{"role":"user","content":"[Tool calls were removed here.]"}, {"role":"assistant"}, {"role":"user"} ] }"#;
    assert_eq!(std::str::from_utf8(&none), std::str::from_utf8(expected));
}
