//! Conversations whose results are too long, and the handles in what became of them.

use std::fmt::Write as _;

/// A text that is truncated at the default settings; different for each `seed`.
pub(crate) fn long_text(seed: usize) -> String {
    let mut text = String::new();
    for n in 0..6_000 {
        writeln!(text, "{seed}: line {n} \u{e9}\t\"{}\"", n * 7919 % 1000).unwrap();
    }
    text
}

/// A request whose results are these texts, of a tool `bash` that is offered, too. The model is one whose window is known.
pub(crate) fn with_results(texts: &[String]) -> String {
    let mut messages = String::from("{\"role\":\"user\",\"content\":\"go\"}");
    for (n, text) in texts.iter().enumerate() {
        let text = serde_json::to_string(text).unwrap();
        write!(
            messages,
            ",{{\"role\":\"assistant\",\"tool_calls\":[{{\"id\":\"c{n}\",\"type\":\"function\",\"function\":{{\"name\":\"bash\",\"arguments\":\"{{\\\"n\\\":{n}}}\"}}}}]}},\
             {{\"role\":\"tool\",\"tool_call_id\":\"c{n}\",\"content\":{text}}}"
        )
        .unwrap();
    }
    format!(
        "{{\"model\":\"gpt-4o\",\"messages\":[{messages}],\"tools\":[{{\"type\":\"function\",\"function\":{{\"name\":\"bash\"}}}}]}}"
    )
}

/// The targets that a body says can be asked for, in its order.
pub(crate) fn recalls(body: &[u8]) -> Vec<String> {
    const PATH: &str = "/abridge/recall/";
    let body = std::str::from_utf8(body).unwrap();
    body.match_indices(PATH).filter_map(|(at, _)| body.get(at..at + PATH.len() + 26)).map(str::to_owned).collect()
}
