//! Named settings of the edits: presets and goals, which are defaults below the user's settings and each a piece of
//! `proxy.toml`, and `policies.NAME`, other settings for the requests to single upstreams.
//!
//! Presets make of one request what the systems of the same names make of it, within the rules of abridge: results that the model has
//! not read stay, each call keeps its result, and a request that is not understood is forwarded unchanged.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{ConfigError, SourceLocation};
use super::value::{LocatedValue, Value};
use super::{Config, check};
use crate::payload::Keys;
use crate::planner::{Goal, PlanSettings, Planner};
use crate::proxy::NO_EDITS;
use crate::tokens::Meter;
use crate::upstream::routes::{self, Routes};

/// Tables of settings by name.
#[derive(Clone, Debug, Default, derive_more::Deref, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Policies(BTreeMap<String, toml::Table>);

/// The tables that a policy may have.
const TABLES: &str = "policy patch_tool_calls filter_tool_calls truncate_tool_results clear_tool_results \
    deduplicate_tool_results summarize request_prompt_cache reasoning tools";

/// A set of defaults.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// The defaults that are shown here.
    #[default]
    Default,
    /// The values of Eino's middlewares: patch, reduction, summarization.
    Eino,
    /// The values of `ClearToolUsesEdit` of the package `langchain`.
    Langchain,
    /// The value 3 of Agno's `max_tool_calls_from_history`.
    Agno,
}

impl Preset {
    /// Lays the user's settings on the preset.
    pub(super) fn apply_under(self, written: LocatedValue) -> Result<LocatedValue, ConfigError> {
        match self {
            Self::Default => Ok(written),
            Self::Eino => written.over("preset eino", include_str!("preset/eino.toml")),
            Self::Langchain => written.over("preset langchain", include_str!("preset/langchain.toml")),
            Self::Agno => written.over("preset agno", include_str!("preset/agno.toml")),
        }
    }
}

/// Lays settings on those of a goal. BENCHMARKS.md has the figures that they follow from.
pub(super) fn apply_goal_under(goal: Goal, written: LocatedValue) -> Result<LocatedValue, ConfigError> {
    let settings = match goal {
        Goal::Careful => include_str!("goal/careful.toml"),
        Goal::Balanced => include_str!("goal/balanced.toml"),
        Goal::Thrifty => include_str!("goal/thrifty.toml"),
    };
    written.over("policy.goal", settings)
}

/// A policy over the settings of the goal that it names, if it names one.
fn with_goal(policy: LocatedValue) -> Result<LocatedValue, ConfigError> {
    let Some(named) = policy.get(&["policy", "goal"]) else { return Ok(policy) };
    let goal = Goal::deserialize(named).map_err(|error: ConfigError| error.under_key("goal").under_key("policy"))?;
    apply_goal_under(goal, policy)
}

impl Config {
    /// These settings with those of a policy laid over them.
    pub fn under_policy(&self, name: &str) -> anyhow::Result<Self> {
        let Some(policy) = self.policies.get(name) else {
            let mut same = self.clone();
            if name == NO_EDITS {
                same.policy.edits.clear();
            }
            return Ok(same);
        };
        let mut settings = LocatedValue::from_file(Path::new("settings"), &self.to_toml()?)?;
        settings
            .overlay(with_goal(LocatedValue::from_file(Path::new(&format!("policies.{name}")), &policy.to_string())?)?);
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
            let known = check::known("policies", &self.policies, name);
            known.map_err(|message| ConfigError::at(&SourceLocation::Flag("--policy"), message))?;
            return Ok(Routes::only(self.under_policy(name)?.planner(address, meter, keys)));
        }
        let default = self.planner(address, meter, keys);
        let planner =
            |route: &routes::Settings| Ok((route.requests().unwrap_or_default(), self.planner_for(route, &default)?));
        let routes = self.upstreams.iter().map(planner).collect::<anyhow::Result<_>>()?;
        Ok(Routes::new(routes, default))
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

    /// Checks the policies, and that each one that an upstream names is there.
    pub(super) fn check_policies(&self, written: &LocatedValue) -> Result<(), ConfigError> {
        for name in self.policies.keys() {
            let Some(policy) = written.get(&["policies", name]) else { continue };
            if let Value::Table(tables) = &policy.value
                && let Some(other) = tables.keys().find(|key| TABLES.split(' ').all(|table| table != *key))
            {
                let message = format!("{other:?} is no table of a policy; allowed: {}", TABLES.replace(' ', ", "));
                return Err(written.error_at(&["policies", name, other], message));
            }
            let mut laid = written.clone();
            let under = |error: ConfigError| error.under_key(name).under_key("policies");
            laid.overlay(with_goal(policy.clone()).map_err(under)?);
            let config = Self::from_value(&laid).map_err(under)?;
            check::check(&config, &laid).map_err(under)?;
        }
        let tried = &self.experiment.policy;
        if tried != NO_EDITS && !self.policies.contains_key(tried) {
            let message =
                format!("there is no policies.{tried}; allowed: {NO_EDITS:?}, or the name of a table in [policies]");
            return Err(written.error_at(&["experiment", "policy"], message));
        }
        for (n, upstream) in self.upstreams.iter().enumerate() {
            let known = upstream.policy.iter().try_for_each(|name| check::known("policies", &self.policies, name));
            known.map_err(|message| written.error_at(&["upstreams", &n.to_string(), "policy"], message))?;
        }
        Ok(())
    }
}
