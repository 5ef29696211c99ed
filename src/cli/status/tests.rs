//! A status in lines, and its units.

use super::*;

#[test]
fn a_status_prints_in_14_lines() {
    let json = r#"{"version":"1","started":1,"uptime_seconds":7380,"upstream":"http://u/v1","edits":["a","b"],
            "requests":{"total":12345,"edited":12000,"unedited":340,"shed":5},"tokens":{"before":1000000,"after":250000},
            "offloaded_bytes":1536,"billed":{"input":1000,"cached":900,"output":20},"predicted_cached":950,
            "added_ms":{"p50":0.31,"p99":2.26,"count":500},"fail_open":{"bug":0,"not_stored":2},"regrets":{"repeated":3,"recalled":1},
            "store":{"path":"/s","payloads":3,"bytes":4096,"stored_bytes":1024,"file_bytes":2097152,"trouble":"full"},
            "in_flight":1,"buffered_bytes":0,"rss_bytes":52428800,"later":{"x":1}}"#;
    let status: Status = serde_json::from_str(json).unwrap();
    let expected = "\
abridge           1, up 2 hours
upstream          http://u/v1
edits             a b
requests          12,345: 12,000 edited, 340 unedited, 5 shed
tokens            1,000,000 -> 250,000 (-75 %)
offloaded         1.50 KiB in all requests
billed            1,000 input, 900 of them read from cache (90 %), 20 output
predicted cached  950, observed 900
added             p50 0.3 ms, p99 2.3 ms, of the last 500 conversations
fail-open         not_stored 2
regrets           recalled 1, repeated 3
store             /s: 3 payloads, 4.00 KiB as 1.00 KiB, file 2.00 MiB; TROUBLE: full
inspect           off
now               1 in flight, 0 B of bodies held, 50.00 MiB of memory
";
    assert_eq!(status.to_text(), expected);
    let several = r#"{"upstreams":[{"name":"default","url":"http://u/v1","answered":3},
            {"name":"anthropic","url":"http://a","answered":1200,"failed":2}]}"#;
    let status: Status = serde_json::from_str(several).unwrap();
    let (text, mine) = (status.to_text(), "upstream          anthropic: http://a, 1,200 answered, 2 failed\n");
    assert!(text.contains("upstream          default: http://u/v1, 3 answered\n") && text.contains(mine), "{text}");
    let asks = r#"{"upstreams":[{"name":"default","url":"http://u/v1","lessons":[
            {"form":"bridge","model":"m","words":"a","at":86400},{"form":"filled","model":null,"words":"b","at":0}]}]}"#;
    let text = serde_json::from_str::<Status>(asks).unwrap().to_text();
    for line in [
        "forms             default requires of a model without a name: arguments, filled, unique_ids, four_cache_marks, ",
        "                  default requires of m: arguments, filled, leading_system, bridge, unique_ids, nine_ids, ",
        "                  bridge since 1970-01-02, when m was refused: a\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let learnt = r#"{"token_factors":[{"upstream":"default","model":"m","factor":1.55,"answers":1200}]}"#;
    let status: Status = serde_json::from_str(learnt).unwrap();
    let line = "token factor      m at default: 1.55 billed for each one counted, from 1,200 answers\n";
    assert!(status.to_text().contains(line), "{}", status.to_text());
    let caches = r#"{"caches":[{"upstream":"u","model":"m","requests":9,"smallest":1024,"keeps_seconds":300,
            "lost":{"edits":5000,"expired":20},"cost":{"edits":4500,"expired":18}},{"upstream":"u","model":"n","requests":7}]}"#;
    let text = serde_json::from_str::<Status>(caches).unwrap().to_text();
    for line in [
        "cache             m at u, keeps prompts for 5 minutes: tokens lost: 5,000 to edits (costs 4,500), 20 to pauses (costs 18), 0 to the client's changes (costs 0), 0 to the upstream (costs 0)\n",
        "cache             n at u: no cached tokens reported, of 7 requests that had some\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let empty = Status::default().to_text();
    assert!(empty.lines().count() == 14 && empty.contains("none counted"), "{empty}");
}
