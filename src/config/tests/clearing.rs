//! Errors in the settings of what is cleared, when, and at which prices.

use super::{check, file};
use crate::config::Config;
use crate::draft::EndedTurns;
use crate::edit::clear_tool_results::{AtLeast, Settings};
use crate::edit::trigger::{Keep, Moment};
use crate::planner::{EditName, Goal};
use crate::tokens::prices::Price;

fn clearing(text: &str) -> Settings {
    file(text).unwrap().clear_tool_results
}

#[test]
fn what_contradicts_itself_is_refused() {
    check(&[
        (
            "[clear_tool_results]\nfrontier = \"sliding\"\nwhen = \"turn\"",
            "proxy.toml:3:8: clear_tool_results.when: \"turn\" needs results that stay cleared, and frontier = \"sliding\" decides anew for each request; allowed: frontier = \"sticky\"",
        ),
        (
            "preset = \"eino\"\n[clear_tool_results]\nclear_at_least = \"auto\"",
            "proxy.toml:3:18: clear_tool_results.clear_at_least: \"auto\" needs results that stay cleared, and frontier = \"sliding\" decides anew for each request; allowed: frontier = \"sticky\"",
        ),
        (
            "[[prices]]\nread = 1.5",
            "proxy.toml:2:8: prices.0.read: more than a token that no cache knows; allowed: 0 to 1",
        ),
        (
            "[[prices]]\nread = 0.5\nwrite = 0.4",
            "proxy.toml:3:9: prices.0.write: less than a token that is read costs; allowed: read or more",
        ),
    ]);
}

#[test]
fn prices_are_read_from_whole_numbers_too() {
    let config = file("[[prices]]\nread = 0\nwrite = 1\n[clear_tool_results]\nclear_at_least = \"auto\"").unwrap();
    assert!(config.to_toml().unwrap().contains("read = 0.0\nwrite = 1.0"));
    assert!(config.prices[0].read.is_some_and(Price::is_free));
}

#[test]
fn a_goal_sets_what_the_settings_leave_open() {
    let goal = |name: &str| clearing(&format!("[policy]\ngoal = \"{name}\""));
    let tokens = |settings: &Settings| settings.trigger.0.iter().find_map(|condition| condition.tokens);
    let [careful, balanced, thrifty] = ["careful", "balanced", "thrifty"].map(goal);
    assert_eq!(balanced, Settings::default());
    assert_eq!(balanced, clearing(""));
    assert_eq!(Goal::default(), Goal::Balanced);
    assert!(tokens(&careful) > tokens(&thrifty) && careful.keep_reads > balanced.keep_reads);
    assert!(balanced.keep_reads > thrifty.keep_reads);
    // What is set wins, from whichever source.
    let own = clearing("[policy]\ngoal = \"careful\"\n[clear_tool_results]\nkeep = { rounds = 9 }");
    assert_eq!(own, Settings { keep: Keep::Rounds(9), ..careful });
    let preset = clearing("preset = \"langchain\"\n[policy]\ngoal = \"thrifty\"");
    assert_eq!(preset, clearing("preset = \"langchain\""));
    check(&[(
        "[policy]\ngoal = \"frugal\"",
        "proxy.toml:2:8: policy.goal: \"frugal\" is not a choice; allowed: \"careful\", \"balanced\", \"thrifty\"",
    )]);
}

/// A goal switches pointers, and no edit that the settings have left out.
#[test]
fn a_goal_does_not_change_which_edits_run() {
    let text = "policy.edits = [\"patch_tool_calls\"]\npolicy.goal = \"careful\"\n\
                [policies.near.policy]\ngoal = \"balanced\"\n[policies.far.policy]\ngoal = \"careful\"";
    let config = file(text).unwrap();
    for (policy, min_lines) in [(None, 0), (Some("near"), 6), (Some("far"), 0)] {
        let config = policy.map_or_else(|| config.clone(), |name| config.under_policy(name).unwrap());
        assert_eq!(config.deduplicate_tool_results.min_lines, min_lines, "{policy:?}");
        assert_eq!(config.policy.edits, [EditName::PatchToolCalls], "{policy:?}");
    }
    let own = file("policy.goal = \"careful\"\ndeduplicate_tool_results.min_lines = 9").unwrap();
    assert_eq!(own.deduplicate_tool_results.min_lines, 9);
}

/// Only a thrifty policy takes reasoning of ended turns, also beside others.
#[test]
fn a_goal_says_what_becomes_of_reasoning() {
    let text = "policy.goal = \"thrifty\"\n[policies.near.policy]\ngoal = \"balanced\"\n\
                [policies.own.policy]\ngoal = \"thrifty\"\n[policies.own.reasoning]\nended_turns = \"keep\"";
    let config = file(text).unwrap();
    assert_eq!(Config::default().reasoning.ended_turns, EndedTurns::Keep);
    assert_eq!(config.reasoning.ended_turns, EndedTurns::Clear);
    for policy in ["near", "own"] {
        assert_eq!(config.under_policy(policy).unwrap().reasoning.ended_turns, EndedTurns::Keep, "{policy}");
    }
}

#[test]
fn a_policy_of_an_upstream_has_a_goal_of_its_own() {
    let text = "[clear_tool_results]\nkeep = { results = 5 }\n[policies.far.policy]\ngoal = \"careful\"\n\
                [policies.near.policy]\ngoal = \"careful\"\n[policies.near.clear_tool_results]\nkeep_reads = 1\n\
                [policies.other.clear_tool_results]\nfrontier = \"sliding\"";
    let config = file(text).unwrap();
    let under = |name: &str| config.under_policy(name).unwrap().clear_tool_results;
    let careful = clearing("[policy]\ngoal = \"careful\"");
    // The goal of a policy wins over the top level, and its own keys win over that.
    assert_eq!(under("far"), careful);
    assert_eq!(under("near"), Settings { keep_reads: 1, ..careful });
    assert_eq!((under("other").moment(), under("other").keep), (Moment::Any, Keep::Results(5)));
    check(&[(
        "[policies.x.policy]\ngoal = 1",
        "proxy.toml:2:8: policies.x.policy.goal must be a string; allowed: \"careful\", \"balanced\", \"thrifty\"",
    )]);
}

#[test]
fn what_slides_and_what_presets_say_is_what_it_was() {
    for text in ["[clear_tool_results]\nfrontier = \"sliding\"", "preset = \"eino\"", "preset = \"langchain\""] {
        let settings = clearing(text);
        assert_eq!((settings.moment(), settings.at_least()), (Moment::Any, Some(AtLeast::Tokens(0))), "{text}");
    }
    for preset in ["eino", "langchain"] {
        let settings = clearing(&format!("preset = \"{preset}\""));
        assert_eq!((settings.keep_reads, settings.when), (0, Some(Moment::Any)), "{preset}");
    }
    assert!(!file("preset = \"agno\"").unwrap().policy.edits.contains(&EditName::ClearToolResults));
    assert_eq!(Config::default().clear_tool_results, clearing(""));
}
