//! `abridge store init` and `abridge doctor` on an engine, encrypted or not.

use std::process::Command;

use crate::engine::{Engine, Redis, on_each_engine};
use crate::it::support::binary;

/// Whether a command has succeeded, and what it has printed.
fn run(engine: &Engine, lines: &str, arguments: &[&str]) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("proxy.toml");
    let base = "recall.public_url = \"http://a.test\"\nupstream.url = \"http://127.0.0.1:1/v1\"\n\
                server.listen = \"127.0.0.1:0\"\nstore.url_env = \"STORE_URL\"\nstore.timeout = \"1s\"\n";
    std::fs::write(&config, format!("{base}store.engine = {:?}\n{lines}", engine.name())).unwrap();
    let mut command = Command::new(binary());
    command.args(arguments).arg("--config").arg(config).env("STORE_URL", engine.url());
    let ran = command.env("STORE_SECRET", "0a".repeat(32)).output().unwrap();
    (ran.status.success(), [ran.stdout, ran.stderr].map(|said| String::from_utf8(said).unwrap()).concat())
}

async fn init_and_doctor_say_whether_the_engine_can_be_used(mut engine: Engine) {
    let sealed = "store.seal = true\nstore.secret_env = \"STORE_SECRET\"\nstore.namespace = \"sealed\"\n";
    let made = match engine {
        Engine::Postgres(_) => "the tables are there",
        Engine::Redis(_) => "Redis can be used as it is",
    };
    for (lines, said) in [("", "survives a crash"), (sealed, "; texts are encrypted there")] {
        if let Engine::Postgres(_) = engine {
            assert!(run(&engine, lines, &["doctor"]).1.contains("abridge store init"));
        }
        // Twice is once.
        for _ in 0..2 {
            let (is_made, printed) = run(&engine, lines, &["store", "init"]);
            assert!(is_made && printed.contains(made), "{printed}");
        }
        let (_, printed) = run(&engine, lines, &["doctor"]);
        assert!(printed.contains("can be written to") && printed.contains(said), "{printed}");
        let (is_read, printed) = run(&engine, lines, &["store", "ls"]);
        // Its heading, and the text that doctor has stored.
        assert!(is_read && printed.lines().count() == 2, "{printed}");
    }
    let (_, printed) = run(&engine, &sealed.replace("store.seal = true\n", ""), &["doctor"]);
    assert!(printed.contains("set store.seal = true"), "{printed}");
    engine.kill();
    for lines in ["", sealed] {
        let (_, printed) = run(&engine, lines, &["doctor"]);
        assert!(printed.contains("cannot be reached"), "{printed}");
        assert!(!run(&engine, lines, &["store", "init"]).0);
    }
}

on_each_engine!(init_and_doctor_say_whether_the_engine_can_be_used);

#[tokio::test]
async fn init_and_doctor_refuse_a_redis_that_removes_what_requests_name() {
    let Some(redis) = Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]).await else { return };
    let engine = Engine::Redis(redis);
    for arguments in [&["doctor"][..], &["store", "init"]] {
        let (is_well, printed) = run(&engine, "", arguments);
        assert!(!is_well && printed.contains("set noeviction there"), "{printed}");
    }
}
