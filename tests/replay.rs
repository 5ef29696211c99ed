//! Two named tests a folder of `fixtures/`: the core makes the recorded bytes of the request, under the recorded plan; and the
//! real binary sends them on, and brings the recorded response back whole, piece by piece, in whatever pieces it comes.
//!
//! `UPDATE_FIXTURES=1` rewrites `plan.snap`, for a person to read; never `rewritten.json`, which is what is right.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]
#![expect(clippy::disallowed_methods, clippy::print_stderr, reason = "the kit plays the other sides of a connection")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use abridge_proxy::dialect;
use abridge_proxy::planner::Planner;
use abridge_proxy::recording::Exchange;
use abridge_proxy::replay::{Difference, ReplayPolicy, find_exchanges, planner_from_toml};
use abridge_proxy::upstream::routes::Routes;
use libtest_mimic::{Arguments, Failed, Trial};
use serde::de::IgnoredAny;

use crossing::{Crossing, Framing};
use it::support::Scene;

mod crossing;
#[expect(dead_code, unused_imports, reason = "it serves the integration tests, too")]
mod it {
    pub(crate) mod support;
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let found = find_exchanges(&root).expect("fixtures can be listed");
    assert!(!found.is_empty(), "there are fixtures");
    let trials = found.into_iter().flat_map(|dir| trials(&root, dir)).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trials(root: &Path, dir: PathBuf) -> [Trial; 2] {
    let name = dir.strip_prefix(root).unwrap_or(&dir).display().to_string();
    let same = dir.clone();
    [
        Trial::test(name.clone(), move || check(&dir)).with_kind("core"),
        Trial::test(name, move || cross(&same)).with_kind("wire"),
    ]
}

fn check(dir: &Path) -> Result<(), Failed> {
    let exchange = Exchange::read(dir)?;
    let planner = planner_from_toml(exchange.policy.as_deref().unwrap_or_default())?;
    check_body(&exchange)?;
    check_plan(dir, &exchange, &planner)?;
    check_meta(&exchange)
}

/// The body is the recorded one to the last byte; rewritten once more it stays as it is; untouched it is not even copied.
fn check_body(exchange: &Exchange) -> Result<(), Failed> {
    let chosen = ReplayPolicy::Fallback(Routes::only(planner_from_toml("")?));
    let now = chosen.rewrite(exchange)?;
    if let Some(difference) = Difference::between(exchange.forwarded(), &now.body) {
        return Err(difference.to_string().into());
    }
    match &exchange.rewritten {
        None if now.body.as_ptr() != exchange.request.as_ptr() => return Err("an unchanged body was copied".into()),
        None => return Ok(()),
        Some(rewritten) if *rewritten == exchange.request => return Err("rewritten.json is needless".into()),
        Some(rewritten) => serde_json::from_slice::<IgnoredAny>(rewritten)?,
    };
    let again = chosen.rewrite(&Exchange { request: now.body.clone(), ..exchange.clone() })?;
    Difference::between(&now.body, &again.body).map_or(Ok(()), |difference| Err(format!("again: {difference}").into()))
}

/// The plan reads as in `plan.snap`. A case that is about its request, not about a response, has one.
fn check_plan(dir: &Path, exchange: &Exchange, planner: &Planner) -> Result<(), Failed> {
    if exchange.rewritten.is_none() && exchange.response.is_some() {
        return Ok(());
    }
    let dialect = dialect::for_path(exchange.meta.path_only()).ok_or("a path that no dialect knows")?;
    let now = match planner.plan(dialect, &exchange.request) {
        Ok(plan) => plan.to_string(),
        Err(error) => format!("{error}\n"),
    };
    if env::var_os("UPDATE_FIXTURES").is_some() {
        fs::write(dir.join("plan.snap"), &now)?;
        return Ok(());
    }
    let recorded =
        exchange.plan.as_deref().ok_or("plan.snap is missing; make it with UPDATE_FIXTURES=1 and read it")?;
    if recorded == now {
        Ok(())
    } else {
        Err(format!("the plan differs\n--- plan.snap\n{recorded}--- now\n{now}").into())
    }
}

/// The chunks add up to the response, and someone said what the case is for.
fn check_meta(exchange: &Exchange) -> Result<(), Failed> {
    let chunks: usize = exchange.meta.chunks.iter().map(|(_, bytes)| bytes).sum();
    let length = exchange.response.as_ref().map_or(0, bytes::Bytes::len);
    if chunks != length {
        return Err(format!("the chunks are {chunks} bytes, the response {length}").into());
    }
    exchange.meta.note.as_ref().map(|_| ()).ok_or_else(|| "meta.json has no note".into())
}

/// The exchange through the real binary, with the folder's policy.
fn cross(dir: &Path) -> Result<(), Failed> {
    let exchange = Exchange::read(dir)?;
    let crossing = Crossing {
        target: exchange.meta.path.clone(),
        request: exchange.request.clone(),
        forwarded: exchange.forwarded().clone(),
        status: exchange.meta.status.unwrap_or(200),
        content_type: exchange.meta.content_type.clone().unwrap_or_else(|| "application/json".to_owned()),
        response: exchange.response.clone().unwrap_or_else(|| "{\"choices\":[]}\n".into()),
    };
    let mut hasher = DefaultHasher::new();
    dir.file_name().hash(&mut hasher);
    crossing::block_on(async {
        // The upstream here is played for one request alone.
        let policy = exchange.policy.as_deref().unwrap_or_default();
        // The second try holds the head of such an answer for up to five seconds, and here the body waits for the head.
        let is_held = dialect::for_path(&crossing.target).is_some_and(|dialect| dialect.facts().opening.is_some());
        let second_try = if is_held { "second_try.enabled = false" } else { "" };
        let mut scene = Scene::with(&format!("tokens.ask_upstream = false\n{second_try}\n{policy}")).await;
        for (n, framing) in (0..).zip(Framing::ALL) {
            let crossed = crossing.run(&mut scene, framing, hasher.finish() + n).await;
            crossed.map_err(|error| format!("{framing:?}: {error}"))?;
        }
        Ok(())
    })
}
