//! Which bodies are planned on the thread that serves requests.

use tokio::time::timeout;

use super::*;

/// Whether a body with a text of so many bytes is planned within a time in which no other thread is free.
async fn is_planned_here(model: &str, n_bytes: usize, within: Duration) -> bool {
    let (engine, _) = engine();
    let text = "x".repeat(n_bytes);
    let body: Bytes = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{text}"}}]}}"#).into();
    let (config, caller) = (config(&PlanSettings::default()), engine.caller(None));
    let editing = engine.edit_body(&config, chat(), body.clone(), options(caller, Apply));
    let edited = timeout(within, editing).await;
    edited.is_ok_and(|edited| {
        check_same_allocation(&body, &edited);
        edited.report.is_some()
    })
}

#[test]
fn only_bodies_whose_tokens_may_be_counted_wait_for_another_thread() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().max_blocking_threads(1).build().unwrap();
    let (free, is_free) = std::sync::mpsc::channel::<()>();
    runtime.block_on(async {
        #[expect(clippy::disallowed_methods, reason = "takes the only thread")]
        let busy = tokio::task::spawn_blocking(move || is_free.recv());
        // Of a window of 128,000 tokens, the trigger is three eighths of the half.
        // A busy machine may be slow at the first, and the others are never planned.
        let (long, short) = (Duration::from_mins(1), Duration::from_millis(200));
        assert!(is_planned_here("gpt-4o", 20_000, long).await);
        assert!(!is_planned_here("gpt-4o", 25_000, short).await);
        assert!(!is_planned_here("gpt-4", 20_000, short).await, "a window of 8,192 tokens");
        drop(free);
        assert!(busy.await.unwrap().is_err());
    });
}
