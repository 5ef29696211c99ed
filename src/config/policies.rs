//! `policies.NAME`: other settings of the edits, for the requests to single upstreams.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::{ConfigError, SourceLocation};
use super::value::{LocatedValue, Value};
use super::{Config, check, preset};
use crate::payload::Keys;
use crate::planner::{Goal, PlanSettings, Planner};
use crate::proxy::NO_EDITS;
use crate::tokens::Meter;
use crate::upstream::routes::{self, Routes};

/// Tables of settings by name, as TOML.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Policies(BTreeMap<String, String>);

/// The tables that a policy may have.
const TABLES: [&str; 10] = [
    "policy",
    "patch_tool_calls",
    "filter_tool_calls",
    "truncate_tool_results",
    "clear_tool_results",
    "deduplicate_tool_results",
    "summarize",
    "request_prompt_cache",
    "reasoning",
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
    preset::apply_goal_under(goal, policy)
}

impl Config {
    /// These settings with those of a policy laid over them.
    pub fn under_policy(&self, name: &str) -> anyhow::Result<Self> {
        let Some(policy) = self.policies.0.get(name) else {
            let mut same = self.clone();
            if name == NO_EDITS {
                same.policy.edits.clear();
            }
            return Ok(same);
        };
        let mut settings = LocatedValue::from_file(Path::new("settings"), &self.to_toml()?)?;
        settings.overlay(with_goal(LocatedValue::from_file(Path::new(&format!("policies.{name}")), policy)?)?);
        Ok(Self::from_value(&settings)?)
    }

    /// The planners of the upstreams, each under the policy that its upstream names, or all under the policy `named`.
    pub fn planners(
        &self,
        named: Option<&str>,
        address: Option<String>,
        meter: Meter,
        keys: Keys,
    ) -> anyhow::Result<Routes<Planner>> {
        if let Some(name) = named {
            self.check_policy_flag(name)?;
            return Ok(Routes::only(self.under_policy(name)?.planner(address, meter, keys)));
        }
        let default = self.planner(address, meter, keys);
        let routes = self
            .upstreams
            .iter()
            .map(|route| Ok((route.requests().unwrap_or_default(), self.planner_for(route, &default)?)));
        Ok(Routes::new(routes.collect::<anyhow::Result<_>>()?, default))
    }

    /// The planner for one of the `[[upstreams]]`: of the policy that it names, by the prices of its host. It shares counts,
    /// keys and address with that of `[upstream]`.
    pub fn planner_for(&self, route: &routes::Settings, default: &Planner) -> anyhow::Result<Planner> {
        let own = route.policy.as_deref().map(|name| self.under_policy(name)).transpose()?;
        Ok(own.as_ref().unwrap_or(self).planner_at(route.url.host(), default))
    }

    /// The planner with these settings for the upstream at a host, with all else of another planner.
    pub fn planner_at(&self, host: &str, default: &Planner) -> Planner {
        let recall = default.settings.recall.clone();
        default.under(PlanSettings { recall, ..self.plan_settings_at(host) })
    }

    /// Checks that there is a policy of this name, which a flag has.
    fn check_policy_flag(&self, name: &str) -> Result<(), ConfigError> {
        if self.policies.0.contains_key(name) {
            return Ok(());
        }
        let names: Vec<_> = self.policies.names().collect();
        let allowed = if names.is_empty() { "none, as [policies] is empty".to_owned() } else { names.join(", ") };
        let message = format!("there is no policies.{name}; allowed: {allowed}");
        Err(ConfigError::at(&SourceLocation::Flag("--policy"), message))
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
        let tried = &self.experiment.policy;
        if tried != NO_EDITS && !self.policies.0.contains_key(tried) {
            let message =
                format!("there is no policies.{tried}; allowed: {NO_EDITS:?}, or the name of a table in [policies]");
            return Err(written.error_at(&["experiment", "policy"], message));
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
