//! What makes a deferred tool known.

use crate::dialect;

#[test]
fn what_names_a_deferred_tool_makes_it_known() {
    let check = |tools: &str, content: &str, expected: bool| {
        let body = format!(
            r#"{{"tools":[{tools}],"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":[{{"type":"tool_use","id":"1","name":"ToolSearch","input":{{}}}}]}},
                    {{"role":"user","content":[{{"type":"tool_result","tool_use_id":"1","content":{content}}}]}}]}}"#
        );
        let conversation = dialect::for_path("/v1/messages").unwrap().parse(body.as_bytes()).unwrap();
        let loads: Vec<_> = conversation.units.iter().map(|unit| unit.flags.loads).collect();
        assert_eq!(loads, [false, false, expected], "{body}");
    };
    let deferred = r#"{"name":"Read"},{"name":"db","defer_loading":true}"#;
    let reference = r#"[{"type":"text","text":"found"},{"tool_name" : "db","type":"tool_reference"}]"#;
    check(deferred, reference, true);
    check(
        deferred,
        r#"[{"type":"tool_reference","tool_name":"Read"},{"type":"tool_reference","tool_name":"db"}]"#,
        true,
    );
    check(r#"{"name":"db","defer_loading":false}"#, reference, false);
    check(r#"{"name":"other","defer_loading":true}"#, reference, false);
    check(deferred, r#"[{"type":"text","text":"{\"type\":\"tool_reference\",\"tool_name\":\"db\"}"}]"#, false);
    check(deferred, r#""db""#, false);
}

#[test]
fn so_does_a_search_of_the_server() {
    let body = br#"{"tools":[{"name":"db","defer_loading":true}],"messages":[{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"tool_search_tool_regex","input":{}},
            {"type":"tool_search_tool_result","tool_use_id":"s","content":{"type":"tool_search_tool_search_result","tool_references":[{"type":"tool_reference","tool_name":"db"}]}}]}]}"#;
    let conversation = dialect::for_path("/v1/messages").unwrap().parse(body).unwrap();
    assert!(conversation.units[0].flags.loads);
}
