//! Remembered counts, and hostile texts.

use super::*;
use crate::platform::testing::thread_time;

fn gauge(model: &str) -> Gauge {
    Meter::new(&Settings::default(), &[]).for_model(Some(model))
}

#[test]
fn encodings_are_those_of_their_models() {
    // The example of OpenAI's cookbook on tiktoken.
    let count = |encoding: Encoding| encoding.count("antidisestablishmentarianism");
    assert_eq!(count(Encoding::Cl100kBase), 6);
    assert_eq!(count(Encoding::O200kBase), 6);
    assert_eq!(count(Encoding::O200kHarmony), 6);
}

#[test]
fn a_long_text_is_tokenised_once_and_a_short_one_is_not_remembered() {
    let tokenised = |counter, text: &str| {
        let meter = Meter::new(&Settings { counter, ..Settings::default() }, &[]);
        let gauge = meter.for_model(None);
        assert_eq!(gauge.text(text), gauge.text(text));
        meter.n_tokenised()
    };
    let long = "word ".repeat(1000);
    assert_eq!([tokenised(Counter::Exact, &long), tokenised(Counter::Exact, "word")], [5000, 8]);
    assert_eq!(tokenised(Counter::Estimate, &long), 10_000, "to look it up would take longer");
}

#[test]
fn with_another_factor_nothing_is_tokenised_again() {
    let meter = Meter::new(&Settings::default(), &[]);
    let text = "word ".repeat(1000);
    let (gauge, other) = (meter.for_model(None), meter.for_model(None).billed_at(Factor::nearest(1.5)));
    let tokens = gauge.text(&text);
    assert_eq!((other.text(&text), meter.n_tokenised()), (tokens * 3 / 2, 5000));
}

#[test]
fn the_beginning_of_a_text_is_counted_once_by_the_name_of_the_whole() {
    let gauge = gauge("gpt-4o");
    let whole = Fingerprint::of(b"a long text");
    assert_eq!(gauge.at_least(whole, 18, || "tiktoken is great! And more."), 6);
    assert_eq!(gauge.at_least(whole, 18, || unreachable!("it is remembered")), 6);
}

#[test]
fn of_a_text_that_was_counted_no_beginning_is_tokenised() {
    let meter = Meter::new(&Settings::default(), &[]);
    let text = "word ".repeat(1000);
    for gauge in [meter.for_model(None), meter.for_model(None).billed_at(Factor::nearest(1.5))] {
        let (tokens, n_tokenised) = (gauge.text(&text), meter.n_tokenised());
        assert_eq!(gauge.at_least(Fingerprint::of(b"its name"), 100, || &text), tokens);
        assert_eq!(meter.n_tokenised(), n_tokenised);
    }
}

#[test]
fn a_window_is_told_with_its_source() {
    let meter = Meter::new(&Settings::default(), &[]);
    meter.models().learn("theirs", 7000);
    let window = meter.models().find("theirs").window;
    assert_eq!(window, Some((7000, models::Source::Upstream)));
    assert_eq!(meter.models().find("nobody-knows").window, None);
}

#[test]
fn an_estimate_is_a_quarter_of_the_bytes() {
    let settings = Settings { counter: Counter::Estimate, ..Settings::default() };
    let gauge = Meter::new(&settings, &[]).for_model(Some("gpt-4o"));
    assert_eq!(gauge.text(&"a".repeat(400)), 100);
}

// === hostile texts ===

fn hostile() -> Vec<(&'static str, String)> {
    const N: usize = 1 << 18;
    let of = |pattern: &str| pattern.repeat(N / pattern.len());
    let base64: String = (0..N)
        .map(|n| char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[(n * n / 7 + n) % 64]))
        .collect();
    vec![
        ("spaces", of(" ")),
        ("line breaks", of("\n")),
        ("tabs and breaks", of("\t\r\n")),
        ("spaces of Unicode", of("\u{3000}\u{a0}")),
        ("one letter", of("a")),
        ("one capital", of("A")),
        ("base64", base64),
        ("quotes", of("\"")),
        ("backslashes", of("\\")),
        ("both", of("\\\"")),
        ("digits", of("7")),
        ("mixed Unicode", of("añ中文字😀\u{200d}👩\u{301}ß\u{5d0}ا")),
        ("combining marks", of("e\u{301}\u{302}")),
        ("emoji", of("😀")),
        ("one blank, then letters", format!(" {}", of("x"))),
        ("apostrophes", of("'s")),
    ]
}

#[test]
fn no_text_makes_counting_slow_or_makes_it_panic() {
    for encoding in [Encoding::O200kBase, Encoding::Cl100kBase] {
        encoding.count("its vocabulary is built before the time is taken");
    }
    for (name, text) in hostile() {
        for encoding in [Encoding::O200kBase, Encoding::Cl100kBase] {
            let before = thread_time();
            let tokens = encoding.count(&text);
            assert!((1..=text.len()).contains(&tokens), "{name}");
            // A quadratic one takes a minute.
            let took = thread_time().saturating_sub(before);
            assert!(took.as_secs() < 10, "{name}: {took:?}");
        }
    }
}

#[test]
fn a_count_in_pieces_is_hardly_more_than_one_of_the_whole() {
    let whole = tiktoken_rs::o200k_base_singleton();
    let prose = include_str!("../../ARCHITECTURE.md");
    let code = include_str!("../dialect/json.rs");
    let one_line = prose.replace('\n', " ");
    let letters = "the quick brown fox jumps over the lazy dog and does not stop at the end of the line ".repeat(300);
    let chinese = "工具调用没有结果：它在完成之前被中断了。".repeat(400);
    for text in [prose, code, &one_line, &letters, &chinese] {
        let (pieces, whole) = (Encoding::O200kBase.count(text), whole.count_ordinary(text));
        assert!(pieces >= whole, "{pieces} of {whole}");
        assert!((pieces - whole) * 1000 <= whole.max(1000), "{pieces} of {whole}");
    }
}

#[test]
fn models_that_split_text_into_more_tokens_are_known() {
    let text = include_str!("../../ARCHITECTURE.md");
    let meter = Meter::new(&Settings::default(), &[]);
    let count = |model: &str| meter.for_model(Some(model)).text(text);
    let plain = count("claude-opus-4-6");
    assert_eq!(plain, count("some-other-model"));
    for same in ["claude-sonnet-4-5-20250929", "claude-opus-4-20250514", "anthropic/claude-haiku-4.5"] {
        assert_eq!(count(same), plain, "{same}");
    }
    for more in ["claude-opus-4-7", "claude-opus-5-20260601", "claude-sonnet-5", "us.anthropic.claude-fable-5-1-v1:0"] {
        assert_eq!(count(more), plain * 155 / 100, "{more}");
    }
    assert_eq!(meter.for_model(Some("claude-opus-5")).text("."), 1, "no more tokens than bytes");
    let settings = "match = \"claude-opus-5\"\nencoding = \"cl100k_base\"";
    let told = Meter::new(&Settings::default(), &[toml::from_str(settings).unwrap()]);
    assert_eq!(told.for_model(Some("claude-opus-5")).text(text), Encoding::Cl100kBase.count(text));
}
