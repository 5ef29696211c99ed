//! `policies.NAME`: other settings of the edits, for the requests to single upstreams.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Config;
use super::check;
use super::error::ConfigError;
use super::goal;
use super::value::{LocatedValue, Value};
use crate::planner::Goal;

/// Tables of settings by name, as TOML.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Policies(BTreeMap<String, String>);

/// The tables that a policy may have.
const TABLES: [&str; 7] = [
    "policy",
    "patch_tool_calls",
    "filter_tool_calls",
    "truncate_tool_results",
    "clear_tool_results",
    "summarize",
    "tools",
];

impl Policies {
    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let tables = BTreeMap::<String, toml::Table>::deserialize(from)?;
        let texts = tables.into_iter().map(|(name, table)| Ok((name, toml::to_string(&table)?)));
        texts.collect::<Result<_, toml::ser::Error>>().map(Self).map_err(D::Error::custom)
    }
}

impl Serialize for Policies {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let tables = self.0.iter().filter_map(|(name, text)| Some((name, text.parse::<toml::Table>().ok()?)));
        to.collect_map(tables)
    }
}

/// A policy over the settings of the goal that it names, if it names one.
fn with_goal(policy: LocatedValue) -> Result<LocatedValue, ConfigError> {
    let Some(named) = policy.get(&["policy", "goal"]) else { return Ok(policy) };
    let goal = Goal::deserialize(named).map_err(|error: ConfigError| error.under_key("goal").under_key("policy"))?;
    goal::apply_under(goal, policy)
}

impl Config {
    /// These settings with those of a policy laid over them.
    pub fn under_policy(&self, name: &str) -> anyhow::Result<Self> {
        let Some(policy) = self.policies.0.get(name) else { return Ok(self.clone()) };
        let mut settings = LocatedValue::from_file(Path::new("settings"), &self.to_toml()?)?;
        settings.overlay(with_goal(LocatedValue::from_file(Path::new(&format!("policies.{name}")), policy)?)?);
        let mut config = Self::from_value(&settings)?;
        config.read_instruction(&settings)?;
        Ok(config)
    }

    /// Checks the policies, and that each one that an upstream names is there.
    pub(super) fn check_policies(&self, written: &LocatedValue) -> Result<(), ConfigError> {
        for name in self.policies.names() {
            let Some(policy) = written.get(&["policies", name]) else { continue };
            if let Value::Table(tables) = &policy.value
                && let Some(other) = tables.keys().find(|key| !TABLES.contains(&key.as_str()))
            {
                let message = format!("{other:?} is no table of a policy; allowed: {}", TABLES.join(", "));
                return Err(written.error_at(&["policies", name, other], message));
            }
            let mut laid = written.clone();
            let under = |error: ConfigError| error.under_key(name).under_key("policies");
            laid.overlay(with_goal(policy.clone()).map_err(under)?);
            let config = Self::from_value(&laid).map_err(under)?;
            check::check(&config, &laid).map_err(under)?;
        }
        for (n, upstream) in self.upstreams.iter().enumerate() {
            let Some(policy) = upstream.policy.as_ref().filter(|policy| !self.policies.0.contains_key(*policy)) else {
                continue;
            };
            let message = format!("there is no policies.{policy}; allowed: the name of a table in [policies]");
            return Err(written.error_at(&["upstreams", &n.to_string(), "policy"], message));
        }
        Ok(())
    }
}
