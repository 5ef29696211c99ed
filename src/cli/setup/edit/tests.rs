//! Settings before and after a change, and the way back.

use super::*;

const URL: &str = "http://127.0.0.1:8787/v1";

#[test]
fn codex_has_the_key_before_its_first_table_and_a_provider_keeps_all_but_its_url() {
    let text = "# mine\nmodel = \"gpt-5\"\n\n[tui]\nx = 1\n";
    let set = codex(text, URL).unwrap();
    assert_eq!(set, format!("openai_base_url = \"{URL}\"\n{text}"));
    assert_eq!(codex(&set, URL).unwrap(), set);
    let other = "model = 'x' # c\nopenai_base_url = 'https://gate/v1' # gate\n";
    assert_eq!(codex(other, URL).unwrap(), other.replace("'https://gate/v1'", &format!("\"{URL}\"")));
    let provider =
        "model_provider = 'p'\n[model_providers.p]\nname = \"p\" # c\nbase_url='https://gate'\nenv_key = 'K'\n";
    assert_eq!(codex(provider, URL).unwrap(), provider.replace("'https://gate'", &format!("\"{URL}\"")));
    assert_eq!(codex("model_provider = 'ollama'", URL), None);
    assert_eq!(codex("not TOML", URL), None);
}

#[test]
fn a_yaml_key_is_replaced_or_appended() {
    let set = |text| yaml_key(text, "OPENAI_HOST", "http://h");
    for (text, expected) in [
        ("", "OPENAI_HOST: http://h\n"),
        ("a: 1", "a: 1\nOPENAI_HOST: http://h\n"),
        ("---\na: 1 # c\n", "---\na: 1 # c\nOPENAI_HOST: http://h\n"),
        ("OPENAI_HOST: \"http://o\" # c\nb: |\n  text\n", "OPENAI_HOST: http://h # c\nb: |\n  text\n"),
        ("a:\n  OPENAI_HOST: x\n", "a:\n  OPENAI_HOST: x\nOPENAI_HOST: http://h\n"),
        ("OPENAI_HOST : x\r\n", "OPENAI_HOST : http://h\r\n"),
    ] {
        assert_eq!(set(text).as_deref(), Some(expected), "{text:?}");
        assert_eq!(set(expected).as_deref(), Some(expected), "again");
    }
    for text in ["{a: 1}", "- a\n", "a: 1\n---\nb: 2\n", "a: 1\n...\n", "\"OPENAI_HOST\": x\n", "? OPENAI_HOST\n: x\n"]
    {
        assert_eq!(set(text), None, "{text:?}");
    }
    for value in [" >-\n  x", " x\n  y", "\n  x", " &x y\nb: *x", " x\n\n  y", " x\nOPENAI_HOST: y"] {
        assert_eq!(yaml_key(&format!("OPENAI_HOST:{value}\n"), "OPENAI_HOST", "h"), None, "{value:?}");
    }
}

#[test]
fn each_model_of_continue_with_one_of_the_apis_gets_a_base() {
    let text = "name: mine\nmodels:\n  - name: A\n    provider: openai\n    model: gpt-5\n    roles:\n      - chat\n  - name: B\n    \
                apiBase: https://gate/v1\n# c\n\n    provider: anthropic # c\n  - provider: ollama\n    model: q\n  - provider: \"openai\"\n    model: z\n";
    let (set, present) = continue_models(text, URL).unwrap();
    let expected = text
        .replace("    provider: openai\n", &format!("    provider: openai\n    apiBase: {URL}\n"))
        .replace("https://gate/v1", URL)
        .replace("  - provider: \"openai\"\n", &format!("  - provider: \"openai\"\n    apiBase: {URL}\n"));
    assert_eq!(set, expected);
    assert_eq!(present, [("anthropic".to_owned(), "https://gate/v1".to_owned())]);
    assert_eq!(continue_models(&set, URL).unwrap().0, set);
    assert_eq!(continue_models("models:\n  - provider: ollama\n", URL), None);
    for base in ["", " |\n      x", "\n      https://gate"] {
        assert_eq!(continue_models(&format!("models:\n- provider: openai\n  apiBase:{base}\n"), URL), None, "{base:?}");
    }
    let (set, _) = continue_models("models:\n- provider: openai\nrules:\n  apiBase: x\n", "u").unwrap();
    assert_eq!(set, "models:\n- provider: openai\n  apiBase: u\nrules:\n  apiBase: x\n");
}

#[test]
fn a_shell_profile_has_one_line_behind_a_mark() {
    let set = shell("alias x=y", "export A=1");
    assert_eq!(set, format!("alias x=y\n{SHELL_MARK}\nexport A=1\n"));
    assert_eq!(shell(&set, "export A=1"), set);
    assert_eq!(shell(&format!("{set}more\n"), "export A=2"), format!("alias x=y\n{SHELL_MARK}\nexport A=2\nmore\n"));
}

#[test]
fn undoing_takes_back_the_change_and_keeps_what_was_changed_since() {
    let original = "a = 1\nurl = 'old'\nb = 2";
    let written = "a = 1\nurl = 'new'\nb = 2";
    assert_eq!(undo(written, original, written).as_deref(), Some(original));
    assert_eq!(undo("c = 3\na = 1\nurl = 'new'\n", original, written).as_deref(), Some("c = 3\na = 1\nurl = 'old'\n"));
    assert_eq!(undo("url = 'newer'\n", original, written), None);
    assert_eq!(undo("url = 'new'\nurl = 'new'\n", original, written), None);
    let (original, written) = ("a\nurl: old", "a\nurl: new");
    assert_eq!(undo("b\nurl: new\n", original, written).as_deref(), Some("b\nurl: old\n"));
    assert_eq!(undo("a\nurl: newer\n", original, written), None);
}

#[test]
fn the_url_of_a_change_is_found_in_the_text() {
    let with = |url: &str| codex("a = 1\n", &format!("{url}/v1")).unwrap();
    let inserted = changed_lines("a = 1\n", &with(ANY_URL)).1;
    assert_eq!(url_in(&with("http://10.0.0.1:1"), &inserted), Some("http://10.0.0.1:1"));
    assert_eq!(url_in("a = 1\n", &inserted), None);
    assert_eq!(url_in("a: |\n  url: x\nurl: y\n", &format!("url: {ANY_URL}\n")), Some("y"));
    assert_eq!(url_in("a: 1\nurl: http://h\n", &format!("url: {ANY_URL}")), Some("http://h"));
    let inserted = shell("", &format!("export A={ANY_URL}/v1 B={ANY_URL}"));
    assert_eq!(url_in(&shell("x", "export A=http://h/v1 B=http://h"), &inserted), Some("http://h"));
}
