//! Every fuzz target is also a test, begins with a corpus, and has its row in the table of what was run.

use super::{Wrong, files_below, read};

#[test]
fn every_fuzz_target_is_run_by_the_tests_and_told_of() {
    let mut wrong = Wrong::default();
    let (list, told) = (read("fuzz/src/lib.rs"), read("CONTRIBUTING.md"));
    let manifest = read("fuzz/Cargo.toml");
    let targets: Vec<_> =
        manifest.split("[[bin]]\nname = \"").skip(1).filter_map(|bin| bin.split('"').next()).collect();
    if targets.is_empty() {
        wrong.push("fuzz/Cargo.toml: no targets".to_owned());
    }
    for target in targets {
        if !list.contains(&format!("(\"{target}\", {target}::run)")) {
            wrong.push(format!("fuzz/src/lib.rs: TARGETS lacks {target}, so `cargo test --test fuzz` does not run it"));
        }
        if !read(&format!("fuzz/fuzz_targets/{target}.rs")).contains(&format!("{target}::run(input)")) {
            wrong.push(format!("fuzz/fuzz_targets/{target}.rs: runs something else"));
        }
        if files_below(&format!("fuzz/corpus/{target}")).is_empty() {
            wrong.push(format!("fuzz/corpus/{target}: is empty; put inputs there that lead to different places"));
        }
        if !told.contains(&format!("\n| `{target}` |")) {
            wrong.push(format!("CONTRIBUTING.md: no row for the fuzz target {target}"));
        }
    }
    wrong.end();
}
