//! The targets of `fuzz/` without a fuzzer: each input of their corpora and of what was found once, and then, from a seed
//! that stays, inputs that are made from them.
//!
//! `fuzz/corpus/TARGET/` is what libFuzzer found to lead to different places, `fuzz/regressions/TARGET/` what it found to be
//! wrong; docs/testing.md says how it is run.
#![expect(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a panic is a test's answer"
)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use targets::draw::Draw;
use targets::{TARGETS, Target};

#[expect(unreachable_pub, reason = "the crate in fuzz/ makes them public")]
#[expect(clippy::disallowed_methods, reason = "an answer that is there has an end")]
#[expect(clippy::disallowed_types, reason = "a judge that shares no code with what it judges")]
#[path = "../fuzz/src/lib.rs"]
mod targets;

/// How many inputs are made for each target.
const N_MADE: usize = 2_000;

/// No input is longer: time is better spent on many.
const LONGEST: usize = 4096;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let trials = TARGETS.into_iter().flat_map(|(name, target)| {
        [
            Trial::test(format!("corpus/{name}"), move || whole_corpus(name, target)),
            Trial::test(format!("mutated/{name}"), move || mutations(name, target)),
        ]
    });
    let all = Trial::test("every_target_is_built_run_and_told_of", every_target_is_built_run_and_told_of);
    libtest_mimic::run(&arguments, trials.chain([all]).collect()).exit_code()
}

/// What cargo-fuzz builds is what the tests run, and each has its row in docs/testing.md.
fn every_target_is_built_run_and_told_of() -> Result<(), Failed> {
    let read = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    let (manifest, told) = (read("fuzz/Cargo.toml")?, read("docs/testing.md")?);
    let built: Vec<_> = manifest.split("[[bin]]\nname = \"").skip(1).filter_map(|bin| bin.split('"').next()).collect();
    let run: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    if built != run {
        return Err(format!("fuzz/Cargo.toml builds {built:?}, and TARGETS of fuzz/src/lib.rs has {run:?}").into());
    }
    for name in run {
        if !read(&format!("fuzz/fuzz_targets/{name}.rs"))?.contains(&format!("{name}::run(input)")) {
            return Err(format!("fuzz/fuzz_targets/{name}.rs runs something else").into());
        }
        if !told.contains(&format!("\n| `{name}` |")) {
            return Err(format!("docs/testing.md has no row for {name}").into());
        }
    }
    Ok(())
}

/// Every file once.
fn whole_corpus(name: &str, target: Target) -> Result<(), Failed> {
    let files = files(name)?;
    if files.is_empty() {
        return Err(format!("fuzz/corpus/{name} is empty").into());
    }
    files.iter().try_for_each(|file| {
        let input = fs::read(file)?;
        run(target, &input).map_err(|failed| format!("{}: {failed}", file.display()).into())
    })
}

/// Inputs that no one has kept.
fn mutations(name: &str, target: Target) -> Result<(), Failed> {
    let inputs: Result<Vec<_>, _> = files(name)?.iter().map(fs::read).collect();
    let (inputs, tokens) = (inputs?, tokens()?);
    let mut draw = Draw::seeded(*b"seed");
    for n in 0..N_MADE {
        let mut input = draw.one_of(&inputs).clone();
        for _ in 0..=draw.below(4) {
            mutate(&mut input, &mut draw, &inputs, &tokens);
        }
        input.truncate(LONGEST);
        run(target, &input).map_err(|failed| {
            format!("input {n}: {failed}\n{}\nKeep it in fuzz/regressions/{name}.", input.escape_ascii())
        })?;
    }
    Ok(())
}

fn mutate(input: &mut Vec<u8>, draw: &mut Draw, inputs: &[Vec<u8>], tokens: &[Vec<u8>]) {
    let at = draw.below(input.len() + 1);
    let end = at + draw.below(input.len() - at + 1);
    match draw.below(7) {
        // A bit, a byte.
        0 => input[..].get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << draw.below(8)),
        1 => input[..].get_mut(at).into_iter().for_each(|byte| *byte = draw.below(256) as u8),
        // A token.
        2 | 3 => drop(input.splice(at..at, draw.one_of(tokens).clone())),
        // A piece less, or again.
        4 => drop(input.drain(at..end)),
        5 => {
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
        // A piece of another input.
        _ => {
            let other = draw.one_of(inputs);
            let from = draw.below(other.len() + 1);
            let to = from + draw.below(other.len() - from + 1);
            input.splice(at..end, other[from..to].iter().copied());
        }
    }
}

fn run(target: Target, input: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| target(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        text.unwrap_or("a panic without words").to_owned()
    })
}

fn files(name: &str) -> Result<Vec<PathBuf>, Failed> {
    let mut files = Vec::new();
    for folder in ["corpus", "regressions"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(folder).join(name);
        if folder.exists() {
            for entry in fs::read_dir(folder)? {
                files.push(entry?.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns what is put into inputs, out of the file that libFuzzer takes it from.
fn tokens() -> Result<Vec<Vec<u8>>, Failed> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/tokens.dict"))?;
    let quoted = text.lines().filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    Ok(quoted.map(unescaped).collect())
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match (byte, behind) {
            (b'\\', [b'x', high, low, behind @ ..]) => {
                let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8;
                bytes.push(digit(*high) << 4 | digit(*low));
                rest = behind;
            }
            (b'\\', [byte, behind @ ..]) => {
                bytes.push(*byte);
                rest = behind;
            }
            _ => bytes.push(*byte),
        }
    }
    bytes
}
