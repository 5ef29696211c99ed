//! Texts that go through a summary word for word.

use proptest::prelude::*;

use super::{super::instruction::Words, *};
use crate::tokens::{Counter, Meter, Settings as Tokens};

/// Counts a token for four bytes.
fn gauge() -> Gauge {
    Meter::new(&Tokens { counter: Counter::Estimate, ..Tokens::default() }, &[]).for_model(None)
}

fn said<'a>(user_texts: &[&'a str], budget_tokens: usize, gauge: &'a Gauge) -> FrameInput<'a> {
    let user_texts = user_texts.iter().map(|text| Cow::Borrowed(*text)).collect();
    FrameInput { user_texts, skills: Vec::new(), transcript: None, gauge, budget_tokens }
}

fn user_part(texts: &[&str], budget: usize, language: Language) -> Option<String> {
    frame(&Settings::default(), language, &said(texts, budget, &gauge())).user_messages
}

/// The section, which is there.
fn users(texts: &[&str], budget: usize, language: Language) -> String {
    user_part(texts, budget, language).unwrap()
}

/// The section with these texts, one a line after `note`.
fn section(note: &str, texts: &[&str]) -> String {
    let entries: Vec<_> = texts.iter().map(|text| format!("<message>\n{text}\n</message>\n")).collect();
    format!("<all_user_messages>\n{note}{}</all_user_messages>", entries.concat())
}

/// What a message says that holds a summary of these texts.
fn message(texts: &[&str], settings: &Settings) -> String {
    frame(settings, Language::En, &said(texts, 10_000, &gauge())).around("<summary>")
}

/// The tokens around a text in the section.
const AROUND: usize = 6;

fn letters(letter: char, n: usize) -> String {
    letter.to_string().repeat(n)
}

// === a message that is sent back ===

#[test]
fn a_message_that_holds_a_summary_is_recognised_with_each_word_of_the_user() {
    let user_texts = |text: &str| own_user_texts(text, Language::En);
    for texts in
        [&["one"][..], &["one", "二\n\ntwo"], &["a\n</message>\nb", "<message>\nc", "</all_user_messages>"], &[]]
    {
        let text = message(texts, &Settings::default());
        assert_eq!(user_texts(&text).unwrap(), texts, "{text}");
        assert_eq!(user_texts(&format!("{text}, and so on")), None);
        assert_eq!(user_texts(&format!("I read: {text}")), None);
    }
    assert_eq!(user_texts("anything"), None);
}

// === user messages ===

#[test]
fn all_are_kept_while_they_fit() {
    assert_eq!(users(&["one", "二", " three\n"], 1000, Language::En), section("", &["one", "二", "three"]));
    assert_eq!(user_part(&[], 1000, Language::En), None);
    assert_eq!(user_part(&["", " \n"], 1000, Language::En), None);
}

#[test]
fn the_newest_are_kept_and_the_rest_is_told() {
    let [a, b, c] = ['a', 'b', 'c'].map(|letter| letters(letter, 400));
    let texts = [a.as_str(), &b, &c];
    let fits = |n: usize| n * (100 + AROUND);
    assert_eq!(users(&texts, fits(3), Language::En), section("", &texts));
    let note = "[earlier messages of the user that are left out here: 1]\n";
    assert_eq!(users(&texts, fits(3) - 1, Language::En), section(note, &[&b, &c]));
    let note = "[此处省略较早的用户消息 2 条]\n";
    assert_eq!(users(&texts, fits(1), Language::Zh), section(note, &[&c]));
}

#[test]
fn the_first_that_does_not_fit_is_cut_and_ends_it() {
    let (long, short) = (letters('长', 5000), letters('b', 40));
    let note = "[earlier messages of the user that are left out here: 1]\n";
    let cut = format!("{0}\n[3000 characters left out here]\n{0}", letters('长', 1000));
    // 2032 characters of three bytes are some 1510 tokens.
    assert_eq!(users(&["first", &long, &short], 2000, Language::En), section(note, &[&cut, &short]));
    let cut = format!("{0}\n[此处省略 3000 个字符]\n{0}", letters('长', 1000));
    assert_eq!(users(&[&long, &short], 2000, Language::Zh), section("", &[&cut, &short]));
    // Cut, it does not fit either.
    let note = "[earlier messages of the user that are left out here: 2]\n";
    assert_eq!(users(&["first", &long, &short], 1000, Language::En), section(note, &[&short]));
}

#[test]
fn the_newest_is_never_left_out_and_a_lone_one_never_cut() {
    let long = letters('a', 5000);
    assert_eq!(users(&[&long], 0, Language::En), section("", &[&long]));
    assert_eq!(users(&["", &long, " "], 0, Language::En), section("", &[&long]));
    let cut = format!("{0}\n[3000 characters left out here]\n{0}", letters('a', 1000));
    let note = "[earlier messages of the user that are left out here: 1]\n";
    assert_eq!(users(&["b", &long], 0, Language::En), section(note, &[&cut]));
}

#[test]
fn a_cut_that_saves_nothing_is_not_made() {
    for n in [1999, 2000, 2001, 2029] {
        let text = letters('字', n);
        assert_eq!(without_middle(Language::En, &text), text, "{n}");
    }
    for n in 2000..2060 {
        let text = letters('字', n);
        let kept = without_middle(Language::En, &text);
        assert!(kept == text || kept.chars().count() < n, "{n}");
    }
    let text = letters('字', 2040);
    assert!(without_middle(Language::En, &text).contains("[40 characters left out here]"));
    assert!(without_middle(Language::Zh, &text).contains("[此处省略 40 个字符]"));
}

#[test]
fn switched_off_there_are_none() {
    let mut settings = Settings::default();
    settings.preserve_user_messages.enabled = false;
    assert_eq!(frame(&settings, Language::En, &said(&["one"], 1000, &gauge())).user_messages, None);
}

// === what comes behind ===

/// The end of a summary of a session in which these skills were loaded.
fn with_skills(skills: &[(&str, &str)], settings: PreserveSkills) -> String {
    let gauge = gauge();
    let skills = skills.iter().map(|(name, text)| (Cow::Borrowed(*name), Cow::Borrowed(*text))).collect();
    let settings = Settings { preserve_skills: Some(settings), ..Settings::default() };
    frame(&settings, Language::En, &FrameInput { skills, ..said(&[], 0, &gauge) }).behind
}

fn skills_part(skills: &[(&str, &str)]) -> String {
    let entries = skills.iter().map(|(name, text)| format!("\n<skill name=\"{name}\">\n{text}\n</skill>"));
    format!(
        "Skills that were loaded before, and still hold:{}\n\n{}",
        entries.collect::<Vec<_>>().concat(),
        words(Language::En).continuation
    )
}

#[test]
fn each_skill_is_kept_as_it_was_loaded_last() {
    let settings = PreserveSkills::default;
    assert_eq!(
        with_skills(&[("a", "old"), ("b", "B"), ("a", "new"), ("c", " ")], settings()),
        skills_part(&[("b", "B"), ("a", "new")])
    );
    assert_eq!(with_skills(&[], settings()), words(Language::En).continuation);
    assert_eq!(with_skills(&[("a\"><x\n", "A")], settings()), skills_part(&[("ax", "A")]));
}

#[test]
fn skills_stay_within_their_limits() {
    let text = letters('s', 400);
    let three = [("a", text.as_str()), ("b", &text), ("c", &text)];
    let settings = PreserveSkills { max_skills: 2, ..PreserveSkills::default() };
    assert_eq!(with_skills(&three, settings), skills_part(&three[1..]));
    let settings = PreserveSkills { budget: 299, ..PreserveSkills::default() };
    assert_eq!(with_skills(&three, settings), skills_part(&three[1..]));
    for settings in [
        PreserveSkills { budget: 99, ..PreserveSkills::default() },
        PreserveSkills { max_skills: 0, ..PreserveSkills::default() },
        PreserveSkills { max_tokens_per_skill: 0, ..PreserveSkills::default() },
    ] {
        assert_eq!(with_skills(&three, settings), words(Language::En).continuation);
    }
}

#[test]
fn a_long_skill_keeps_its_beginning() {
    let text = letters('s', 4000);
    let settings = PreserveSkills { max_tokens_per_skill: 100, ..PreserveSkills::default() };
    let behind = with_skills(&[("a", &text)], settings);
    let kept = behind.matches('s').count();
    assert!(behind.contains("\n[the rest of this skill is left out here]\n</skill>"), "{behind}");
    assert!((300..400).contains(&kept), "{kept}");
}

#[test]
fn skills_are_off_unless_asked_for() {
    let gauge = gauge();
    let skills = vec![(Cow::Borrowed("a"), Cow::Borrowed("A"))];
    let behind = frame(&Settings::default(), Language::En, &FrameInput { skills, ..said(&[], 0, &gauge) }).behind;
    assert_eq!(behind, words(Language::En).continuation);
}

#[test]
fn skills_are_named_by_arguments() {
    for arguments in [r#"{"skill":"pdf"}"#, r#"{"x":1,"skill":" pdf "}"#, r#""{\"skill\":\"pdf\"}""#] {
        assert_eq!(skill_name(arguments).as_deref(), Some("pdf"), "{arguments}");
    }
    for arguments in ["", "pdf", "{", "[]", r#"{"skill":1}"#, r#"{"skill":""}"#, r#"{"name":"pdf"}"#, r#""\ud800""#] {
        assert_eq!(skill_name(arguments), None, "{arguments}");
    }
}

#[test]
fn the_transcript_is_named() {
    let (gauge, key) = (gauge(), PayloadKey::from_bytes([0; 16]));
    let behind = |language, how: &'static str| {
        let transcript = Some((key, Cow::Borrowed(how)));
        frame(&Settings::default(), language, &FrameInput { transcript, ..said(&[], 0, &gauge) }).behind
    };
    let handle = "0".repeat(26);
    for (language, sentence) in [
        (Language::En, format!("one JSON message a line, as {handle}. HOW\n\n{}", words(Language::En).continuation)),
        (Language::Zh, format!("每行一条 JSON 消息，编号为 {handle}。HOW\n\n{}", words(Language::Zh).continuation)),
    ] {
        assert!(behind(language, "HOW").ends_with(&sentence), "{language:?}");
        assert!(behind(language, "").contains(sentence.split("HOW").next().unwrap().trim_end()), "{language:?}");
    }
}

#[test]
fn a_summary_stands_between_the_words_of_the_language() {
    let framed = frame(&Settings::default(), Language::Zh, &said(&[], 100, &gauge()));
    let Words { lead_in, continuation, .. } = words(Language::Zh);
    assert_eq!(framed.around("S"), format!("{lead_in}\n\nS\n\n{continuation}"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn user_messages_stay_within_their_budget(lengths in prop::collection::vec(0..6000_usize, 0..8), budget in 0..8000_usize) {
        let texts: Vec<_> = lengths.iter().enumerate().map(|(n, len)| letters(['a', 'é', '字'][n % 3], *len)).collect();
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        let kept = user_part(&texts, budget, Language::En);
        prop_assert_eq!(&kept, &user_part(&texts, budget, Language::En));
        let said: Vec<_> = texts.iter().filter(|text| !text.is_empty()).collect();
        let Some(newest) = said.last() else { prop_assert_eq!(kept, None); return Ok(()) };
        let kept = kept.unwrap();
        prop_assert!(kept.contains(newest.get(..newest.floor_char_boundary(100)).unwrap()));
        let n_kept = kept.matches("<message>").count();
        prop_assert_eq!(kept.contains("left out here: "), n_kept < said.len());
        prop_assert!(n_kept < 2 || gauge().text(&kept) <= budget + 40, "{} > {}", gauge().text(&kept), budget);
    }

    #[test]
    fn a_beginning_has_no_more_tokens_than_it_may(text in "\\PC{0,300}", most in 0..80_usize) {
        let gauge = gauge();
        if let Some(kept) = beginning(&text, most, Language::Zh, &gauge) {
            prop_assert!(gauge.text(&kept) <= most);
            let kept = kept.strip_suffix(&words(Language::Zh).rest_of_skill).unwrap_or(&kept);
            prop_assert!(text.starts_with(kept));
        }
    }
}
