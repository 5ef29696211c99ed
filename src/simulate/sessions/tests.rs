//! The sessions in `fixtures/sessions`, which this project has written.

use std::path::Path;

use super::*;
use crate::dialect;
use crate::dialect::Usage;

fn fixture(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sessions").join(below)
}

fn read(below: &str, agent: Agent) -> Session {
    assert_eq!(Agent::of_file(&fixture(below)), Some(agent));
    Session::read(&fixture(below), agent, &|_| false).unwrap()
}

/// For each segment, of each request: the number of messages, the usage as input, cached, written, written for an hour and
/// output, and the second of its day.
fn requests(session: &Session) -> Vec<Vec<(usize, [u64; 5], i64)>> {
    let request = |step: &Step| {
        let Usage { input, cached, written, written_hour, output } = step.usage.unwrap();
        (step.messages, [input, cached, written, written_hour, output], step.at.unwrap() % 86_400)
    };
    session.transcripts.iter().map(|segment| segment.steps.iter().map(request).collect()).collect()
}

fn body(session: &Session, segment: usize) -> String {
    let body = &session.transcripts[segment].body;
    dialect::of_body(body).parse(body).unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

const HALF_PAST_11: i64 = 41_400;

#[test]
fn claude_code_has_one_request_for_each_name_and_a_segment_for_each_step_back_agent_and_compaction() {
    let session = read("claude_code/-home-me-work/11111111.jsonl", Agent::ClaudeCode);
    assert_eq!(session.skipped, 2);
    let first = [
        (1, [12_003, 0, 12_000, 0, 150], 36_000),
        (3, [12_404, 12_003, 400, 0, 60], 36_008),
        (5, [12_436, 12_404, 30, 0, 10], 36_020),
    ];
    let stepped_back = [(5, [12_452, 9000, 3450, 3450, 10], HALF_PAST_11)];
    let compacted = [(1, [11_003, 0, 11_000, 0, 20], 32_410)];
    // The output of an agent whose answer has 32 characters is estimated.
    let agent = [(1, [3003, 0, 3000, 0, 24], HALF_PAST_11 + 3)];
    assert_eq!(requests(&session), [&first[..], &stepped_back, &compacted, &agent]);
    let models: Vec<_> = session.transcripts.iter().map(|segment| segment.model().unwrap()).collect();
    assert_eq!((models[0], models[3]), ("claude-opus-4-5-20251101", "claude-haiku-4-5-20251001"));

    let first = body(&session, 0);
    // An answer whose result is between its lines is one message, and the results are one.
    let call = r#""type":"tool_use","id":"toolu_1"#.replace(':', ": ").replace(',', ", ");
    assert!(first.contains(&call) && first.matches(r#""role":"assistant""#).count() == 3, "{first}");
    assert!(first.contains(r#"{"role":"user","content":[{"type":"text","text":"How many lines has \"a.txt\"?"}]}"#));
    let stepped_back = body(&session, 1);
    assert!(stepped_back.contains("And c.txt?") && !stepped_back.contains("And b.txt?"), "{stepped_back}");
    assert!(!body(&session, 2).contains("Twelve.") && !stepped_back.contains("API Error"));
}

#[test]
fn a_request_that_is_counted_elsewhere_is_history() {
    let path = fixture("claude_code/-home-me-work/22222222.jsonl");
    let all = Session::read(&path, Agent::ClaudeCode, &|_| false).unwrap();
    assert_eq!(requests(&all)[0].iter().map(|request| request.0).collect::<Vec<_>>(), [1, 3, 5]);
    let names: Vec<_> = all.transcripts[0].steps.iter().take(2).map(|step| step.id).collect();
    let own = Session::read(&path, Agent::ClaudeCode, &|name| names.contains(&name)).unwrap();
    assert_eq!(requests(&own), [[(5, [12_503, 0, 12_500, 0, 9], 28_800)]]);
    assert_eq!(body(&own, 0), body(&all, 0));
    assert!(matches!(Session::read(&path, Agent::ClaudeCode, &|_| true), Err(TranscriptError::Empty)));
}

#[test]
fn codex_has_the_usage_of_each_response_and_of_a_compaction() {
    let session = read("codex/2026/05/01/rollout-2026-05-01T12-00-00-abc.jsonl", Agent::Codex);
    assert_eq!(session.skipped, 1);
    let noon = 43_200;
    let first = [
        (2, [9000, 2000, 0, 0, 50], noon + 1),
        (5, [9100, 8960, 0, 0, 10], noon + 6),
        (6, [9200, 9088, 0, 0, 300], noon + 30),
    ];
    assert_eq!(requests(&session), [&first[..], &[(3, [8000, 2000, 0, 0, 12], noon + 40)]]);
    assert!(session.transcripts.iter().all(|segment| segment.model() == Some("gpt-5.4")));
    assert!(
        body(&session, 1).contains(r#""encrypted_content": "gAAB""#) && !body(&session, 0).contains("ghost_commit")
    );
}

#[test]
fn pi_gemini_cli_and_cline_have_their_usage() {
    let pi = read("pi/2026-05-04T12-00-00-000Z_abc.jsonl", Agent::Pi);
    let noon = 43_200;
    let first = [(1, [2003, 0, 2000, 0, 40], noon + 1), (3, [2054, 2003, 50, 0, 8], noon + 3)];
    let stepped_back = [(1, [2006, 2003, 0, 0, 9], noon + 3)];
    assert_eq!(requests(&pi), [&first[..], &stepped_back, &[(1, [900, 0, 0, 0, 5], noon + 21)]]);
    assert!(body(&pi, 2).contains("A file was counted."));

    for file in ["session-2026-05-05T12-00-abc.json", "session-2026-05-06T12-00-def.jsonl"] {
        let gemini = read(&format!("gemini/{file}"), Agent::Gemini);
        assert_eq!(requests(&gemini), [[(1, [7000, 0, 0, 0, 120], noon), (3, [7200, 6900, 0, 0, 5], noon + 3)]]);
        assert!(body(&gemini, 0).contains(r#""tool_use_id":"t1""#) && gemini.skipped == 0);
    }
    let cline = read("cline/1770000000000/api_conversation_history.json", Agent::Cline);
    let messages: Vec<_> = requests(&cline)[0].iter().map(|(messages, usage, _)| (*messages, *usage)).collect();
    assert_eq!(messages, [(1, [11_000, 0, 0, 0, 60]), (3, [11_100, 11_000, 0, 0, 6])]);
}

#[test]
fn an_answer_without_its_last_count_is_estimated() {
    let chars = AnswerChars { text: 100, arguments: 200, signatures: 1000 };
    assert_eq!(estimated_output(chars), 15 + 28 + 62 + 185);
}

#[test]
fn padding_makes_instructions_longer_and_moves_all_behind() {
    let session = read("claude_code/-home-me-work/11111111.jsonl", Agent::ClaudeCode);
    let plain = &session.transcripts[0];
    let padded = plain.padded(3);
    let start = r#"{"model":"claude-opus-4-5-20251101","system":"#;
    let system = r#"[{"type":"text","text":"word word word ","cache_control":{"type":"ephemeral"}}]"#;
    assert!(padded.body.starts_with(format!(r#"{start}{system},"messages":[{{"#).as_bytes()));
    let ends = |transcript: &Transcript| transcript.requests().map(|body| body.len()).collect::<Vec<_>>();
    assert_eq!(ends(&padded), ends(plain).iter().map(|len| len - 2 + system.len()).collect::<Vec<_>>());
}

#[test]
fn an_expired_cache_is_one_that_had_less_than_half_after_five_minutes() {
    let session = read("claude_code/-home-me-work/11111111.jsonl", Agent::ClaudeCode);
    let was_cold = |pause: i64, cached: u64| {
        let mut steps = session.transcripts[0].steps.clone();
        steps[1].at = steps[0].at.map(|at| at + pause);
        steps[1].usage = steps[1].usage.map(|usage| Usage { cached, ..usage });
        Transcript { steps, ..Transcript::default() }.was_cold(1)
    };
    assert!(was_cold(300, 6000) && !was_cold(299, 6000) && !was_cold(300, 6002));
}

#[test]
fn sessions_are_found_where_variables_and_the_home_folder_say() {
    let home = tempfile::TempDir::new().unwrap();
    for folder in [".claude/projects", ".codex/sessions", ".gemini/tmp", "other/sessions"] {
        std::fs::create_dir_all(home.path().join(folder)).unwrap();
    }
    let found = |codex: Option<&str>| {
        let places = places(Some(home.path()), |name| {
            codex.filter(|_| name == "CODEX_HOME").map(|codex| home.path().join(codex))
        });
        let below = |place: &PathBuf| place.strip_prefix(home.path()).unwrap().to_str().unwrap().to_owned();
        places.iter().map(below).collect::<Vec<_>>()
    };
    assert_eq!(found(None), [".claude/projects", ".codex/sessions", ".gemini/tmp"]);
    assert_eq!(found(Some("other")), [".claude/projects", "other/sessions", ".gemini/tmp"]);
    assert_eq!(places(None, |_| None), Vec::<PathBuf>::new());
}

#[test]
fn a_call_before_a_compaction_takes_no_result_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage.jsonl");
    let request = |at: usize, is_compacted: u8, n_entries: usize| {
        format!("[{at},9,0,100,0,9,0,\"main\",{is_compacted},0,0,1,{n_entries},{at}]")
    };
    let requests = [request(0, 0, 1), request(9, 1, 3), request(20, 0, 5)].join(",");
    let entries = r#"["u",9,""],["a",9,"shell"],["s",30,""],["a",9,"shell"],["r",40,"shell"]"#;
    let line = format!(
        r#"{{"id":"0123456789abcdef","client":"claude-code","month":"2026-03","models":["m"],"requests":[{requests}],"entries":[{entries}],"sidechains":[]}}"#
    );
    std::fs::write(&path, line + "\n").unwrap();
    let [(_, place)] = &usage::places(&path).unwrap()[..] else { panic!() };
    let session = usage::read(&path, *place).unwrap();
    let last = body(&session, session.transcripts.len() - 1);
    assert_eq!(last.matches("call_3").count(), 2, "{last}");
    assert!(!last.contains("call_1"), "{last}");
}
