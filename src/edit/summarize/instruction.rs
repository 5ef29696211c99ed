//! The instruction of the model that summarises, and the words around its summary, in each language.

use std::sync::LazyLock;

use serde::Deserialize;

use super::Settings;
use crate::language::Language;

/// Returns what a model is told to do after the messages that it is to summarise.
pub fn instruction(settings: &Settings, language: Language) -> &str {
    settings.instruction.as_deref().unwrap_or(&words(language).instruction)
}

/// All words of one language.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    instruction: String,
    /// What a model is told before the messages, if it is not given the client's own instructions.
    pub system: String,
    /// What is said after the instruction where the middle of the messages was too much for the model.
    pub middle_left_out: String,
    /// The first sentence of the message that replaces what was summarised.
    pub(super) lead_in: String,
    /// The last one.
    pub(super) continuation: String,
    /// Before the handle of the transcript.
    pub(super) transcript: String,
    /// After it, and before the way to read it.
    pub(super) full_stop: String,
    /// Before names that the messages after the summary use and that it leaves out.
    pub(super) names: String,
    /// Before the skills.
    pub(super) skills: String,
    /// Where the end of a skill is missing.
    pub(super) rest_of_skill: String,
}

// A test reads the files.
static EN: LazyLock<Words> = LazyLock::new(|| toml::from_str(include_str!("instruction/en.toml")).unwrap_or_default());
static ZH: LazyLock<Words> = LazyLock::new(|| toml::from_str(include_str!("instruction/zh.toml")).unwrap_or_default());

/// The words of a language.
pub fn words(language: Language) -> &'static Words {
    language.choose(&EN, &ZH)
}

/// Replaces the middle of a text, of which this many characters are missing.
pub(super) fn characters_left_out(language: Language, n: usize) -> String {
    language.choose(format!("\n[{n} characters left out here]\n"), format!("\n[此处省略 {n} 个字符]\n"))
}

/// Replaces this many messages of the user.
pub(super) fn messages_left_out(language: Language, n: usize) -> String {
    let en = format!("[earlier messages of the user that are left out here: {n}]");
    language.choose(en, format!("[此处省略较早的用户消息 {n} 条]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANGUAGES: [Language; 2] = [Language::En, Language::Zh];

    #[test]
    fn asks_for_everything_in_each_language() {
        let sections = [
            ["Request and intent", "请求与意图"],
            ["Plan", "计划"],
            ["Done and not done", "已完成与未完成"],
            ["Files and code", "文件与代码"],
            ["Exact values", "精确值"],
            ["Errors and fixes", "错误与修复"],
            ["Failed attempts", "失败的尝试"],
            ["All user messages", "所有用户消息"],
            ["Next step", "下一步"],
        ];
        for (n, language) in LANGUAGES.into_iter().enumerate() {
            let settings = Settings::default();
            let text = instruction(&settings, language);
            let headings = sections.iter().enumerate().map(|(at, names)| format!("\n{}. {}", at + 1, names[n]));
            let tags =
                ["analysis", "summary", "all_user_messages"].map(|tag| [format!("<{tag}>"), format!("</{tag}>")]);
            let places: Vec<_> = headings.map(|heading| text.find(&heading)).collect();
            assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{language:?} {places:?}");
            for tag in tags.concat() {
                assert!(text.contains(&tag), "{language:?} {tag}");
            }
        }
    }

    #[test]
    fn forbids_tools_in_each_language() {
        for (language, words) in LANGUAGES.into_iter().zip(["Do not call any tool", "都不要调用"]) {
            assert!(instruction(&Settings::default(), language).contains(words), "{language:?}");
        }
    }

    #[test]
    fn each_language_has_its_own_words() {
        let [en, zh] = LANGUAGES.map(|language| [&words(language).system, &words(language).middle_left_out]);
        assert!(en.iter().all(|text| text.is_ascii() && text.len() > 20), "{en:?}");
        assert!(zh.iter().all(|text| !text.is_ascii() && text.len() > 20), "{zh:?}");
    }

    #[test]
    fn settings_win() {
        let settings = Settings { instruction: Some("Sum it up.".to_owned()), ..Settings::default() };
        assert!(LANGUAGES.into_iter().all(|language| instruction(&settings, language) == "Sum it up."));
    }

    #[test]
    fn no_line_is_broken_by_accident() {
        for language in LANGUAGES {
            let Words { instruction, system, middle_left_out, lead_in, continuation, transcript, names, .. } =
                words(language);
            for text in [instruction, system, middle_left_out, lead_in, continuation, transcript, names] {
                assert!(!text.contains("  ") && !text.contains('\\'), "{text}");
            }
            let has_line_ends = [system, lead_in, continuation, names].map(|text| text.contains('\n'));
            assert_eq!(has_line_ends, [false; 4], "{language:?}");
        }
    }
}
