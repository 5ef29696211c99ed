//! Many processes that start at once on an empty engine are one fleet.

use std::process::{Child, Command, Stdio};

use abridge_proxy::store::secret::Secrets;

use crate::engine::{Engine, on_each_engine};
use crate::it::support::binary;

/// How many processes.
const N: usize = 200;

/// Each of them stores the same text, whose name is made with the secret.
async fn of_many_processes_that_start_at_once_one_makes_the_secret(engine: Engine) {
    engine.init("").await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("proxy.toml");
    let lines = format!(
        "store = {{ engine = {:?}, url_env = \"STORE_URL\", timeout = \"5m\" }}\nrecall.public_url = \"http://a.test\"\n\
         upstream.url = \"http://127.0.0.1:1/v1\"\nserver.listen = \"127.0.0.1:0\"\n",
        engine.name()
    );
    std::fs::write(&config, lines).unwrap();
    let start = |_| {
        let mut command = Command::new(binary());
        command.args(["doctor", "--config"]).arg(&config).env("STORE_URL", engine.url());
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let processes: Vec<Child> = (0..N).map(start).collect();
    for process in processes {
        let said = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
        assert!(said.contains("can be written to"), "{said}");
    }
    let store = engine.open(Secrets::default()).await.unwrap();
    assert_eq!(store.stats().await.unwrap().payloads, 1, "there are several secrets");
}

on_each_engine!(of_many_processes_that_start_at_once_one_makes_the_secret);
