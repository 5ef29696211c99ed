//! How long the store keeps what was taken out of conversations whose history is on the server.

use super::*;
use crate::store::tests::conformance::TestClock;

const DAY: u64 = 86_400;

#[tokio::test]
async fn what_a_conversation_on_the_server_names_is_kept_longer() {
    let result = serde_json::to_string(&long_text()).unwrap();
    let input = format!(r#"[{{"type":"function_call_output","call_id":"c","output":{result}}}]"#);
    let call = r#"{"type":"function_call","call_id":"c","name":"cat","arguments":"{}"}"#;
    let inline = input.replacen('[', &format!("[{call},"), 1);
    let history = |field: &str| format!(r#"{{"model":"gpt-5",{field}"input":{input}}}"#);
    for (bodies, days) in [
        (vec![history(r#""previous_response_id":"resp_1","#)], 30),
        (vec![history(r#""conversation":"conv_1","#)], 30),
        (vec![format!(r#"{{"model":"gpt-5","input":{inline}}}"#)], 7),
        // The longer one counts, also when the store has the text already.
        (vec![format!(r#"{{"input":{inline}}}"#), history(r#""previous_response_id":"resp_1","#)], 30),
        (vec![history(r#""conversation":{"id":"conv_1"},"#), format!(r#"{{"input":{inline}}}"#)], 30),
    ] {
        let clock = TestClock::new();
        let store = Arc::new(MemoryStore::new(store::Settings::default(), clock.clock()));
        let engine = Engine::new(Some(store.clone()), WAIT, keys(), Tasks::default(), Events::default());
        let responses = dialect::for_path("/v1/responses").unwrap();
        for body in &bodies {
            let asked = options(engine.caller(None), Apply);
            let edited =
                engine.edit_body(&config(&PlanSettings::default()), responses, Bytes::from(body.clone()), asked).await;
            assert!(edited.changed() && edited.offloaded_bytes > 40_000, "{:?}", edited.report);
        }
        let n_payloads = async || store.stats().await.unwrap().payloads;
        assert_eq!(n_payloads().await, 1);
        clock.forward(days * DAY);
        store.sweep().await.unwrap();
        assert_eq!(n_payloads().await, 1, "{bodies:?}");
        clock.forward(1);
        store.sweep().await.unwrap();
        assert_eq!(n_payloads().await, 0, "{bodies:?}");
    }
}
